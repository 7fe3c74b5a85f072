"""The guard, alone and over a model that misbehaves on purpose; normal speech passes untouched."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from wyoming_qwen3tts.errors import SynthesisError
from wyoming_qwen3tts.synthesis.guard import (
    LEADING_S,
    RUNAWAY_REPEATS,
    RUNAWAY_SILENCE_S,
    TRAILING_S,
    RunawayGuard,
    frame_budget,
)
from wyoming_qwen3tts.synthesis.request import PresetSpeaker, SynthesisRequest, default_options
from wyoming_qwen3tts.synthesis.synthesizer import Synthesizer
from wyoming_qwen3tts.synthesis.utterance import FinishReason

RATE_HZ = 24_000
FRAME = 1920


def tone(duration_s, level=0.3):
    times = np.arange(round(duration_s * RATE_HZ)) / RATE_HZ
    return (level * np.sin(2 * np.pi * 220 * times)).astype(np.float32)


def quiet(duration_s, level=1e-4):
    rng = np.random.default_rng(0)
    return (level * rng.standard_normal(round(duration_s * RATE_HZ))).astype(np.float32)


def through(samples, sizes=(1920,)):
    guard, heard, start, turn = RunawayGuard(RATE_HZ), [], 0, 0
    while start < len(samples):
        size = sizes[turn % len(sizes)]
        heard.append(guard.push(samples[start : start + size]))
        start, turn = start + size, turn + 1
    return np.concatenate([*heard, guard.finish()])


def test_leading_and_trailing_silence_are_bounded():
    heard = through(np.concatenate([quiet(0.5), tone(1.0), quiet(1.0)]))
    assert len(heard) / RATE_HZ == pytest.approx(LEADING_S + 1.0 + TRAILING_S, abs=0.03)


def test_a_click_before_the_speech_is_no_speech():
    click = np.concatenate([tone(0.005), quiet(0.5)])
    heard = through(np.concatenate([click, tone(1.0)]))
    assert len(heard) / RATE_HZ == pytest.approx(LEADING_S + 1.0, abs=0.03)


def test_a_burst_right_before_the_speech_stays_with_it():
    burst = np.concatenate([quiet(0.5), tone(0.008), quiet(0.05), tone(1.0)])
    assert len(through(burst)) / RATE_HZ >= 1.0 + 0.05 + 0.008


def test_a_soft_onset_is_kept():
    soft = tone(0.05, level=0.004)  # -51 dBFS: the breath of an H
    heard = through(np.concatenate([quiet(0.5), soft, tone(0.5)]))
    assert len(heard) / RATE_HZ >= LEADING_S + 0.55 - 0.02


def test_pauses_within_speech_pass_through_whole():
    speech = np.concatenate([tone(0.5), quiet(1.5), tone(0.5)])
    assert np.array_equal(through(speech), speech)


@given(sizes=st.lists(st.sampled_from([480, 1920, 3840, 7680]), min_size=1, max_size=5))
def test_what_is_heard_does_not_depend_on_the_chunks(sizes):
    speech = np.concatenate([tone(0.4), quiet(0.7), tone(0.3)])
    assert np.array_equal(through(speech, sizes), speech)


def test_endless_silence_and_endless_repeats_are_noticed():
    guard = RunawayGuard(RATE_HZ)
    guard.push(tone(0.2))
    guard.push(quiet(RUNAWAY_SILENCE_S - 0.1))
    assert not guard.is_runaway
    guard.push(quiet(0.2))
    assert guard.is_runaway


@pytest.mark.parametrize("cycle", [(302,), (5, 6), (1, 2, 2, 1, 7), (1, 2, 3, 4, 5, 6, 7, 8)])
def test_codes_that_go_round_in_circles_are_noticed(cycle):
    guard = RunawayGuard(RATE_HZ)
    for index in range(RUNAWAY_REPEATS):
        assert not guard.is_runaway
        guard.record_code(cycle[index % len(cycle)])
    assert guard.is_runaway


@given(
    seed=st.integers(0, 2**32),
    stretch=st.integers(1, RUNAWAY_REPEATS - 1),
)
def test_codes_that_come_often_are_no_circle(seed, stretch):
    """Speech has few sounds, and may hold one for long; it is not the same for seconds."""
    codes = np.random.default_rng(seed).integers(0, 4, 300).tolist()
    spoken = [*codes[:50], *[codes[50]] * stretch, 9, *codes[50:]]
    for start in range(0, len(spoken), 40):
        spoken.insert(start, 10 + start)  # one sound in 3 s that is another
    guard = RunawayGuard(RATE_HZ)
    for code in spoken:
        guard.record_code(code)
        assert not guard.is_runaway


def slow_speech(num_words, word_s, pause_s, level=0.3):
    return np.concatenate([tone(word_s, level), quiet(pause_s)] * (num_words - 1) + [tone(word_s)])


@pytest.mark.parametrize("level", [0.3, 0.01, 0.004], ids=["voice", "whisper", "soft whisper"])
@pytest.mark.parametrize("pause_s", [0.3, 1.0, 2.9])
def test_slow_sad_and_quiet_speech_is_heard_whole(pause_s, level):
    speech = slow_speech(4, 0.8, pause_s, level)
    guard, heard = RunawayGuard(RATE_HZ), []
    for start in range(0, len(speech), FRAME):
        heard.append(guard.push(speech[start : start + FRAME]))
        assert not guard.is_runaway
    assert np.array_equal(np.concatenate([*heard, guard.finish()]), speech)


@pytest.mark.parametrize(
    "text",
    [
        "Yes.",
        "No, I am so very sorry.",
        "She left a long time ago, and nobody in this house has laughed since that day.",
        "NATO, BBC, UNICEF",
        "Sie ging vor langer Zeit fort, und seither hat in diesem Haus niemand mehr gelacht.",
    ],
)
def test_the_budget_is_enough_for_the_slowest_speaker(text):
    """Half the speed of a slow reader, and a pause of a second after every third word."""
    words = text.split()
    slow_s = sum(len(word) for word in words) / 14 * 2 + len(words) // 3 * 1.0
    assert frame_budget(text, 12.5) / 12.5 > slow_s


def test_the_budget_is_enough_for_spelled_capitals():
    assert frame_budget("ABCD" * 10, 12.5) / 12.5 > 14 * 1.5


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_samples_that_are_not_finite_are_an_error(value):
    with pytest.raises(SynthesisError, match="higher precision"):
        RunawayGuard(RATE_HZ).push(np.array([0.0, value], np.float32))


@pytest.mark.parametrize("value", [1.0, -1.0, 3e4])
def test_samples_at_full_scale_are_an_error(value):
    """What finite but far too large numbers become when the codec clips them."""
    with pytest.raises(SynthesisError, match="full scale"):
        RunawayGuard(RATE_HZ).push(np.full(FRAME, value, np.float32))


def test_shouting_that_is_clipped_now_and_then_passes_through():
    shout = np.clip(1.3 * tone(0.5, level=1.0), -1.0, 1.0)
    assert 0.3 < np.mean(np.abs(shout) >= 0.999) < 0.5
    assert np.array_equal(through(shout), shout)


@pytest.mark.parametrize(
    ("text", "calm_s", "limit_s"),
    [
        ("Yes.", 0.6, 6),
        ("1次", 0.6, 7),
        ("Turn on the light in the kitchen, please.", 2.6, 14),
        ("今天天气怎么样？", 2.0, 12),
        ("It is 23 degrees outside and the sun is shining over the harbour.", 4.5, 20),
    ],
)
def test_the_budget_lies_far_above_speech_and_far_below_a_runaway(text, calm_s, limit_s):
    budget_s = frame_budget(text, 12.5) / 12.5
    assert 2.0 * calm_s <= budget_s <= limit_s


class ScriptedDecoder:
    """A codec that makes sound of what a script says, one entry a frame, the last one for ever."""

    chunk_ramp = (1, 2, 4)

    def __init__(self, *script):
        self.script = script

    def initial_state(self):
        return 0

    def decode(self, codes, state):
        last = len(self.script) - 1
        frames = [self.script[min(state + index, last)] for index in range(len(codes))]
        return np.concatenate(frames), state + len(codes)


SOUND, SILENT = tone(0.08), quiet(0.08)
NAN = np.full(FRAME, np.nan, np.float32)


@pytest.fixture
def endless(endless_model):
    def with_decoder(*script):
        return replace(endless_model, codec_decoder=ScriptedDecoder(*script))

    return with_decoder


def speak(model, max_frames, **changes):
    options = replace(default_options(model.facts.generation, 1), max_frames=max_frames)
    request = SynthesisRequest("Hello", PresetSpeaker("ryan"), options, guarded=True)
    synthesizer = Synthesizer(replace(model, **changes))
    speech = synthesizer.submit(request)
    while not speech.is_finished:
        synthesizer.step()
    assert synthesizer.is_blocked
    chunks = [chunk.samples for chunk in speech.take_audio()]
    return speech, np.concatenate([*chunks, np.zeros(0, np.float32)])


def test_room_tone_after_speech_ends_early(endless):
    speech, heard = speak(endless(*[SOUND] * 10, SILENT), max_frames=500)
    assert speech.finish_reason is FinishReason.LENGTH
    assert speech.timing.num_frames < 10 + 3.0 / 0.08 + 6
    assert len(heard) / RATE_HZ == pytest.approx(0.8 + TRAILING_S, abs=0.03)


def test_speech_up_to_the_limit_is_heard_whole(endless):
    speech, heard = speak(endless(SOUND), max_frames=30)
    assert speech.finish_reason is FinishReason.LENGTH
    assert len(heard) == 30 * FRAME


def test_nothing_but_silence_is_tried_again_once(endless):
    speech, heard = speak(endless(SILENT), max_frames=20)
    assert speech.num_attempts == 2
    assert speech.finish_reason is FinishReason.LENGTH
    assert len(heard) <= TRAILING_S * RATE_HZ


def test_broken_numbers_before_anything_was_heard_are_tried_again(endless):
    model = endless(SOUND)
    decode, calls = model.codec_decoder.decode, []

    def broken_at_first(codes, state):
        calls.append(codes)
        samples, state = decode(codes, state)
        return (np.full_like(samples, np.nan) if len(calls) == 1 else samples), state

    model.codec_decoder.decode = broken_at_first
    speech, heard = speak(model, max_frames=10)
    assert speech.error is None
    assert speech.num_attempts == 2
    assert np.isfinite(heard).all()
    assert len(heard) == 10 * FRAME


def test_broken_numbers_in_mid_speech_are_an_error_and_never_noise(endless):
    speech, heard = speak(endless(*[SOUND] * 5, NAN), max_frames=50)
    assert isinstance(speech.error, SynthesisError)
    assert speech.num_attempts == 1
    assert np.isfinite(heard).all()


def test_numbers_that_were_broken_once_do_not_break_the_voice_for_good(tiny_model):
    model = tiny_model("0.6B-custom_voice")
    calls = []

    def broken_at_first(embeddings, cache, lane):
        output = model.talker.prefill(embeddings, cache, lane)
        calls.append(len(embeddings))
        if len(calls) == 1:  # what all prompts of the voice share
            cache.blocks[-1][lane, :, : len(embeddings)] = np.nan
        return output

    talker = type("Talker", (), {})()
    talker.__dict__.update(
        prefill=broken_at_first, step=model.talker.step, new_cache=model.talker.new_cache
    )
    speech, heard = speak(model, max_frames=20, talker=talker)
    assert speech.error is None
    assert speech.num_attempts == 2
    assert len(heard)
    assert calls[0] == calls[2], "the second attempt has read the whole prompt"


def test_a_second_attempt_that_ends_well_says_so(tiny_model):
    model = tiny_model("0.6B-custom_voice")
    whole_step, calls = model.talker.prefill, []

    def broken_at_first(*args):
        output = whole_step(*args)
        calls.append(args)
        if len(calls) == 2:  # the second run of the first attempt's prompt
            output.logits[:] = np.nan
        return output

    talker = type("Talker", (), {})()
    talker.__dict__.update(
        prefill=broken_at_first, step=model.talker.step, new_cache=model.talker.new_cache
    )
    speech, heard = speak(model, max_frames=200, talker=talker)
    assert speech.num_attempts == 2
    assert speech.finish_reason is FinishReason.RETRY
    assert len(heard)
