"""When audio is needed."""

import pytest

from wyoming_qwen3tts.synthesis import timing as module
from wyoming_qwen3tts.synthesis.timing import Playback


class Clock:
    now_s = 100.0

    def perf_counter(self):
        return self.now_s


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(module, "time", clock)
    return clock


def test_nothing_made_is_no_lead(clock):
    playback = Playback()
    clock.now_s += 5
    assert playback.buffered_s == 0
    assert playback.current == 0


def test_playing_starts_with_the_first_audio_and_goes_on(clock):
    playback = Playback()
    playback.record_audio(0, 0.5)
    assert playback.buffered_s == pytest.approx(0.5)
    clock.now_s += 0.3
    assert playback.buffered_s == pytest.approx(0.2)
    playback.record_audio(0, 0.3)
    clock.now_s += 0.6
    assert playback.buffered_s == pytest.approx(-0.1)


def test_audio_of_a_later_utterance_counts_when_all_before_it_is_complete(clock):
    playback = Playback()
    playback.record_audio(0, 1.0)
    playback.record_audio(2, 4.0)
    playback.record_audio(1, 2.0)
    assert playback.buffered_s == pytest.approx(1.0)
    playback.record_end(2)
    assert playback.current == 0
    playback.record_end(0)
    assert (playback.current, playback.buffered_s) == (1, pytest.approx(3.0))
    playback.record_end(1)
    assert (playback.current, playback.buffered_s) == (3, pytest.approx(7.0))
    clock.now_s += 6.5
    assert playback.buffered_s == pytest.approx(0.5)


def test_an_utterance_without_audio_holds_nobody_up(clock):
    playback = Playback()
    playback.record_end(0)
    playback.record_audio(1, 1.0)
    assert (playback.current, playback.buffered_s) == (1, pytest.approx(1.0))
