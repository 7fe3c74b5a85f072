"""Greedy codes of the whole path, from text, equal those of the numpy oracle."""

from dataclasses import replace

import numpy as np
import pytest

from tests.oracle.codec_decoder import OracleCodecDecoder
from tests.oracle.language_model import OracleLanguageModel, OracleRequest
from wyoming_qwen3tts.synthesis.request import (
    DesignedVoice,
    IclVoice,
    PresetSpeaker,
    SynthesisRequest,
    TextLayout,
    XVectorVoice,
    default_options,
)
from wyoming_qwen3tts.synthesis.synthesizer import Synthesizer

TEXTS = ["Hello world, turn on the light", "a", "", "It's ten o'clock; 23 degrees 中文。"]
MAX_FRAMES = 39
CUSTOM_VOICE_CASES = [
    ("Ryan", "English", None),
    ("Dylan", None, "speak slowly"),
    ("eric", "Chinese", None),
    ("eric", "English", None),
    ("VIVIAN", None, None),
]


def speak(model, text, voice, **wishes):
    """Return the greedy codes (F, G) and the samples (S,) of a text."""
    options = default_options(model.facts.generation, seed=0).greedy()
    options = replace(options, max_frames=MAX_FRAMES, **wishes)
    synthesizer = Synthesizer(model)
    speech = synthesizer.submit(SynthesisRequest(text, voice, options))
    chunks = [chunk.samples for chunk in synthesizer.follow(speech)]
    return speech.codes, np.concatenate(chunks)


def expected(oracle, text, layout, **request):
    whole_text_first = layout is TextLayout.NON_STREAMING
    request = OracleRequest(text, whole_text_first=whole_text_first, **request)
    return oracle.greedy_codes(request, max_new_tokens=MAX_FRAMES + 1)


@pytest.mark.parametrize("layout", list(TextLayout))
@pytest.mark.parametrize("name", ["0.6B-custom_voice", "1.7B-custom_voice"])
def test_custom_voice(name, layout, tiny_model, tiny_checkpoint):
    model, oracle = tiny_model(name), OracleLanguageModel(tiny_checkpoint(name))
    for text in TEXTS:
        for speaker, language, instruction in CUSTOM_VOICE_CASES:
            codes, _ = speak(
                model,
                text,
                PresetSpeaker(speaker),
                language=language,
                instruction=instruction,
                layout=layout,
            )
            wanted = expected(
                oracle,
                text,
                layout,
                language=language or "auto",
                speaker=speaker,
                # The official 0.6B model drops the instruction.
                instruction=instruction if "1.7B" in name else None,
            )
            assert np.array_equal(codes, wanted), (text, speaker, language)


@pytest.mark.parametrize("layout", list(TextLayout))
def test_voice_design(layout, tiny_model, tiny_checkpoint):
    name = "1.7B-voice_design"
    model, oracle = tiny_model(name), OracleLanguageModel(tiny_checkpoint(name))
    for text in TEXTS:
        for language, description in (("German", "a warm voice"), (None, "")):
            codes, _ = speak(
                model, text, DesignedVoice(description), language=language, layout=layout
            )
            wanted = expected(
                oracle, text, layout, language=language or "auto", instruction=description or None
            )
            assert np.array_equal(codes, wanted), (text, language)


@pytest.mark.parametrize("layout", list(TextLayout))
@pytest.mark.parametrize("name", ["0.6B-base", "1.7B-base"])
def test_clones(name, layout, tiny_model, tiny_checkpoint):
    model, oracle = tiny_model(name), OracleLanguageModel(tiny_checkpoint(name))
    rng = np.random.default_rng(0)
    x_vector = rng.standard_normal(model.facts.hidden_size).astype(np.float32)
    # Shorter and longer than the text, so that both ways of laying text beside codes are walked.
    for num_frames, reference_text in ((17, "this is a test"), (3, "a longer reference text")):
        codes = rng.integers(0, model.facts.codebook_size, (num_frames, 16))
        voices = [
            (IclVoice(x_vector, reference_text, codes), (reference_text, codes)),
            (XVectorVoice(x_vector), (None, None)),
        ]
        for text in TEXTS:
            for voice, (oracle_text, oracle_codes) in voices:
                got, _ = speak(model, text, voice, language="English", layout=layout)
                wanted = expected(
                    oracle,
                    text,
                    layout,
                    language="English",
                    x_vector=x_vector,
                    reference_text=oracle_text,
                    reference_codes=oracle_codes,
                )
                assert np.array_equal(got, wanted), (text, num_frames, type(voice))


def test_audio_is_the_decoded_codes(tiny_model, tiny_checkpoint):
    name = "0.6B-custom_voice"
    model = tiny_model(name)
    codes, samples = speak(model, TEXTS[0], PresetSpeaker("ryan"))
    decoder = OracleCodecDecoder(tiny_checkpoint(name))
    assert samples.shape == (len(codes) * 1920,)
    np.testing.assert_allclose(samples, decoder.decode(codes), atol=1e-4)


def test_icl_audio_continues_from_the_reference(tiny_model, tiny_checkpoint):
    name = "0.6B-base"
    model = tiny_model(name)
    rng = np.random.default_rng(1)
    reference = rng.integers(0, model.facts.codebook_size, (15, 16))
    x_vector = rng.standard_normal(model.facts.hidden_size).astype(np.float32)
    voice = IclVoice(x_vector, "this is a test", reference)
    decoder = OracleCodecDecoder(tiny_checkpoint(name))
    for _ in range(2):  # the second time, prefix and codec state come from the cache
        codes, samples = speak(model, TEXTS[0], voice)
        whole = decoder.decode(np.concatenate([reference, codes]))
        decoder.reset()
        np.testing.assert_allclose(samples, whole[len(reference) * 1920 :], atol=1e-4)
