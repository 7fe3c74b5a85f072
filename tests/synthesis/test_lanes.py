"""Who goes on when what is heard is about to run out."""

from dataclasses import replace

import numpy as np
import pytest

from tests.synthesis.test_synthesizer import request, run_all
from wyoming_qwen3tts.synthesis.frame_loop import FrameLoop
from wyoming_qwen3tts.synthesis.prompt import PromptBuilder
from wyoming_qwen3tts.synthesis.synthesizer import Synthesizer
from wyoming_qwen3tts.synthesis.timing import Playback
from wyoming_qwen3tts.synthesis.utterance import Utterance

PLENTY_S, LITTLE_S = 5.0, 0.1


class ScriptedPlayback(Playback):
    """Its lead is what the test says."""

    buffered = LITTLE_S

    @property
    def buffered_s(self):
        return self.buffered


@pytest.fixture
def endless(endless_model):
    return endless_model


def submit(synthesizer, playback, position, *, max_frames=12):
    wish = request(synthesizer.model, "Hello", seed=position, max_frames=max_frames)
    return synthesizer.submit(replace(wish, position=position, playback=playback))


def num_frames(speeches):
    return [speech.timing.num_frames for speech in speeches]


def steps(synthesizer, count):
    for _ in range(count):
        synthesizer.step()


def test_with_little_audio_ahead_what_is_heard_goes_on_alone(endless):
    synthesizer = Synthesizer(endless, max_lanes=4)
    playback = ScriptedPlayback()
    speeches = [submit(synthesizer, playback, position) for position in range(3)]
    steps(synthesizer, 5)
    assert num_frames(speeches) == [5, 0, 0]
    playback.buffered = PLENTY_S
    steps(synthesizer, 4)
    assert num_frames(speeches) == [9, 4, 3]  # a lane joins in each step
    playback.buffered = LITTLE_S
    steps(synthesizer, 2)
    assert num_frames(speeches) == [11, 4, 3]


def test_the_next_sentence_is_what_is_heard_as_soon_as_the_one_before_is_complete(endless):
    synthesizer = Synthesizer(endless, max_lanes=4)
    playback = ScriptedPlayback()
    speeches = [submit(synthesizer, playback, position, max_frames=3) for position in range(3)]
    run_all(synthesizer, speeches[:1])
    assert num_frames(speeches) == [3, 0, 0]
    run_all(synthesizer, speeches)
    finished = [speech.timing.finished_s for speech in speeches]
    assert finished == sorted(finished)
    assert playback.current == 3


def test_two_answers_that_are_heard_now_share_the_steps(endless):
    synthesizer = Synthesizer(endless, max_lanes=4)
    first, second = ScriptedPlayback(), ScriptedPlayback()
    second.buffered = PLENTY_S
    speeches = [
        submit(synthesizer, playback, position)
        for playback in (first, second)
        for position in range(2)
    ]
    steps(synthesizer, 6)
    assert num_frames(speeches) == [6, 0, 5, 0]


def test_a_new_answer_gets_a_lane_at_once_while_others_are_pressed(endless):
    synthesizer = Synthesizer(endless, max_lanes=2)
    first, second = ScriptedPlayback(), ScriptedPlayback()
    waiting = [submit(synthesizer, first, position) for position in range(3)]
    steps(synthesizer, 2)
    beginning = submit(synthesizer, second, 0)
    steps(synthesizer, 2)
    assert num_frames([*waiting, beginning]) == [4, 0, 0, 2]


def test_a_machine_too_slow_for_one_lane_runs_all_of_them(endless, monkeypatch):
    monkeypatch.setattr(Synthesizer, "single_lane_rtf", 1.2)
    synthesizer = Synthesizer(endless, max_lanes=4)
    speeches = [submit(synthesizer, ScriptedPlayback(), position) for position in (0, 0, 0)]
    later = submit(synthesizer, speeches[0].request.playback, 1)
    steps(synthesizer, 5)
    assert num_frames([*speeches, later]) == [5, 4, 3, 0]  # the last lane is kept free
    run_all(synthesizer, [*speeches, later])


def test_what_waits_for_its_text_does_not_keep_others_from_going_on(endless):
    synthesizer = Synthesizer(endless, max_lanes=3)
    playback = ScriptedPlayback()
    wish = request(endless, "Hello ", max_frames=12)
    growing = synthesizer.submit(replace(wish, playback=playback, is_open=True))
    later = submit(synthesizer, playback, 1)
    steps(synthesizer, 8)
    assert growing.needs_text
    assert later.timing.num_frames > 0
    synthesizer.close_text(growing)
    run_all(synthesizer, [growing, later])


def test_cancelling_what_is_heard_lets_the_others_go_on(endless):
    synthesizer = Synthesizer(endless, max_lanes=3)
    playback = ScriptedPlayback()
    speeches = [submit(synthesizer, playback, position) for position in range(2)]
    steps(synthesizer, 2)
    synthesizer.cancel(speeches[0])
    run_all(synthesizer, speeches)
    assert num_frames(speeches) == [2, 12]
    assert synthesizer.is_blocked


def test_the_cost_of_a_frame_is_measured_while_nothing_runs_beside_it(endless):
    synthesizer = Synthesizer(endless, max_lanes=2)
    pair = [submit(synthesizer, None, 0) for _ in range(2)]
    steps(synthesizer, 11)
    assert synthesizer.single_lane_rtf is None
    run_all(synthesizer, pair)
    run_all(synthesizer, [submit(synthesizer, None, 0)])
    frames_per_s = endless.facts.frame_rate_hz
    assert 0 < synthesizer.single_lane_rtf < 0.5 * frames_per_s


@pytest.mark.parametrize("seed", range(4))
def test_resting_at_any_frame_changes_no_code(endless, seed):
    """A loop in which a random part of the lanes takes part in each step."""
    chance = np.random.default_rng(seed)
    prompts = PromptBuilder(endless)

    def lanes():
        for number, text in enumerate(("Hello", "Turn on the light in the kitchen", "a")):
            wish = request(endless, text, seed=number, max_frames=10 + number)
            utterance = Utterance(wish, endless.facts.sample_rate_hz)
            utterance.start(prompts.build(text, wish.voice, wish.options), wish.options)
            yield utterance

    def run(loop, group, choose):
        for utterance in group:
            loop.add(utterance)
        while loop.utterances:
            loop.step(choose(tuple(loop.utterances)))
        return [utterance.codes for utterance in group]

    def some(lanes):
        return [lane for lane in lanes if chance.random() < 0.5]

    loop = FrameLoop(endless, max_lanes=3)
    alone = [run(loop, [lane], choose=lambda lanes: lanes)[0] for lane in lanes()]
    together = run(FrameLoop(endless, max_lanes=3), list(lanes()), choose=some)
    for wanted, got in zip(alone, together, strict=True):
        assert np.array_equal(wanted, got)
