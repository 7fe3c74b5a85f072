"""Text in pieces: the same ids and the same codes as the text in one."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from wyoming_qwen3tts.errors import RequestError
from wyoming_qwen3tts.synthesis.prompt import IncrementalTokenizer
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

TEXT = (
    "Hello world, turn on the light: it's ten o'clock and 23 degrees. "
    "\u4e2d\u6587\uff0c\u4f60\u597d\u3002 Na\u0131ve e\u0301t\u00e9!"
)
PARTS = ["the ", "It's", " DON'T", "hello", " 123,4", "  ", " ", ".", "...", "!?", "'", "-"]
PARTS += ["e\u0301", "\u0301", "\u4e2d\u6587", "\uff0c", "\u3002", "\u0e01\u0e47", "x\u00b2"]
PARTS += ["\U0001f642", "<|im_end|>"]


@settings(max_examples=300, deadline=None)
@example(parts=["\u0e01\u0e47", "'", "the "])
@given(parts=st.lists(st.sampled_from(PARTS), max_size=12))
def test_ids_of_pieces_are_those_of_the_whole(parts, tiny_model):
    tokenizer = tiny_model("0.6B-custom_voice").tokenizer
    feed, ids = IncrementalTokenizer(tokenizer), []
    for part in parts:
        ids += feed.push(part)
    assert ids + feed.finish() == tokenizer.encode("".join(parts).rstrip())


def greedy(model, voice, **wishes):
    options = default_options(model.facts.generation, 0).greedy()
    return SynthesisRequest(TEXT, voice, replace(options, max_frames=30, **wishes))


@pytest.mark.parametrize(
    ("name", "voice"),
    [
        ("0.6B-custom_voice", PresetSpeaker("ryan")),
        ("1.7B-custom_voice", PresetSpeaker("eric")),
        ("1.7B-voice_design", DesignedVoice("a warm voice")),
        ("0.6B-base", XVectorVoice(np.ones(64, np.float32))),
    ],
)
@pytest.mark.parametrize("size", [1, 3, 17])
def test_codes_of_growing_text_are_those_of_the_whole(name, voice, size, tiny_model):
    model = tiny_model(name)
    whole = Synthesizer(model)
    wanted = whole.submit(greedy(model, voice, layout=TextLayout.STREAMING))
    for _ in whole.follow(wanted):
        pass
    synthesizer = Synthesizer(model)
    request = greedy(model, voice)
    speech = synthesizer.submit(replace(request, is_open=True, text=TEXT[:8]))
    rest = [TEXT[start : start + size] for start in range(8, len(TEXT), size)]
    for piece in rest:
        # As far as it can go with what is known; a starved lane makes nothing.
        for _ in range(3):
            synthesizer.step()
        assert synthesizer.extend(speech, piece) is not speech.is_finished
    synthesizer.close_text(speech)
    while not speech.is_finished:
        synthesizer.step()
    assert np.array_equal(speech.codes, wanted.codes)
    assert speech.finish_reason is wanted.finish_reason


def test_a_lane_waits_for_its_text_and_others_go_on(endless_model):
    synthesizer = Synthesizer(endless_model, max_lanes=2)
    request = greedy(endless_model, PresetSpeaker("ryan"))
    waiting = synthesizer.submit(replace(request, is_open=True, text="Hello wor"))
    while not synthesizer.is_blocked:
        synthesizer.step()
    num_frames = len(waiting.codes)
    other = synthesizer.submit(replace(request, text="Good morning"))
    assert not synthesizer.is_blocked
    for _ in synthesizer.follow(other):
        pass
    assert len(other.codes) == 30
    assert len(waiting.codes) == num_frames < 5
    assert synthesizer.extend(waiting, "ld. ")
    synthesizer.close_text(waiting)
    while not waiting.is_finished:
        synthesizer.step()
    assert len(waiting.codes) == 30


def test_audio_of_a_starved_lane_is_not_held_back(endless_model):
    synthesizer = Synthesizer(endless_model)
    request = greedy(endless_model, PresetSpeaker("ryan"))
    speech = synthesizer.submit(replace(request, is_open=True, text="Hello there my friend, "))
    while not synthesizer.is_blocked:
        synthesizer.step()
    samples = sum(len(chunk.samples) for chunk in speech.take_audio())
    assert samples == len(speech.codes) * endless_model.facts.samples_per_frame
    synthesizer.cancel(speech)
    assert synthesizer.is_blocked


def test_a_transcript_voice_needs_its_text_beforehand(tiny_model):
    model = tiny_model("0.6B-base")
    voice = IclVoice(np.ones(64, np.float32), "a test", np.zeros((5, 16), np.int64))
    with pytest.raises(RequestError, match="text_mode sentences"):
        Synthesizer(model).submit(replace(greedy(model, voice), is_open=True))


def test_text_after_the_end_is_a_programming_error(endless_model):
    synthesizer = Synthesizer(endless_model)
    speech = synthesizer.submit(replace(greedy(endless_model, PresetSpeaker("ryan")), is_open=True))
    synthesizer.close_text(speech)
    synthesizer.close_text(speech)
    with pytest.raises(ValueError, match="is closed"):
        synthesizer.extend(speech, "more")


@pytest.mark.parametrize("text", ["", " ", "\n\t "])
def test_open_utterance_without_text_is_refused(text, tiny_model):
    model = tiny_model("0.6B-custom_voice")
    request = replace(greedy(model, PresetSpeaker("ryan")), text=text, is_open=True)
    with pytest.raises(RequestError, match="at least one word"):
        Synthesizer(model).submit(request)


def test_space_before_the_end_of_text_is_not_spoken(tiny_model):
    model = tiny_model("0.6B-custom_voice")
    tokenizer = IncrementalTokenizer(model.tokenizer)
    ids = tokenizer.push("Hello there. ") + tokenizer.push("And you? ") + tokenizer.finish()
    assert ids == model.tokenizer.encode("Hello there. And you?")


def test_text_never_raises_the_limit_of_the_request(endless_model):
    synthesizer = Synthesizer(endless_model)
    request = greedy(endless_model, PresetSpeaker("ryan"))
    request = replace(request, text="Hello ", is_open=True, guarded=True)
    utterance = synthesizer.submit(request)
    for _ in range(50):
        assert synthesizer.extend(utterance, "and more ")
    synthesizer.close_text(utterance)
    while not utterance.is_finished:
        synthesizer.step()
    assert len(utterance.codes) == request.options.max_frames
    assert not synthesizer.extend(utterance, "too late")
