"""Which layout a prompt has when nobody asks for one."""

from dataclasses import replace

import numpy as np
import pytest

from wyoming_qwen3tts.runtime.manifest import Manifest
from wyoming_qwen3tts.synthesis.prompt import PromptBuilder, default_layout
from wyoming_qwen3tts.synthesis.request import (
    PresetSpeaker,
    TextLayout,
    XVectorVoice,
    default_options,
)

PRESET = PresetSpeaker("ryan")
CLONE = XVectorVoice(np.zeros(4, np.float32))


@pytest.mark.parametrize(
    ("stated", "voice", "layout"),
    [
        (None, PRESET, TextLayout.NON_STREAMING),
        (None, CLONE, TextLayout.STREAMING),
        (False, PRESET, TextLayout.STREAMING),
        (True, CLONE, TextLayout.NON_STREAMING),
    ],
)
def test_what_the_checkpoint_states_comes_before_the_kind_of_voice(
    stated, voice, layout, tiny_model
):
    model = tiny_model("0.6B-custom_voice")
    defaults = replace(model.facts.generation, non_streaming_mode=stated)
    assert default_layout(voice, defaults) is layout


def test_a_model_that_reads_while_it_speaks_gets_its_text_bit_by_bit(tiny_model):
    model = tiny_model("0.6B-custom_voice")
    defaults = replace(model.facts.generation, non_streaming_mode=False)
    reading = replace(model, facts=replace(model.facts, generation=defaults))
    options = default_options(defaults, seed=0)
    prompt = PromptBuilder(reading).build("Turn on the light.", PRESET, options)
    assert len(prompt.trailing) == len(model.tokenizer.encode("Turn on the light."))
    assert len(PromptBuilder(model).build("Turn on the light.", PRESET, options).trailing) == 0


def test_a_manifest_from_before_the_setting_states_nothing(tiny_bundle):
    text = (tiny_bundle("0.6B-custom_voice") / "manifest.json").read_text()
    manifest = Manifest.from_json(text.replace(',\n      "non_streaming_mode": null', ""))
    assert manifest.facts.generation.non_streaming_mode is None
    assert "non_streaming_mode" in text
