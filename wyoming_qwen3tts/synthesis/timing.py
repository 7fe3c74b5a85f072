"""Clocks: how long an utterance took, what a frame costs, and when audio is needed."""

import time
from dataclasses import dataclass, field
from typing import Final

# Weight of the past after another frame: the codec decodes several frames at once, and other
# programs slow single frames down.
_DECAY: Final = 0.95
_MIN_FRAMES: Final = 8


@dataclass
class FrameTimer:
    """Measures the seconds of a frame when only one lane runs: a decaying mean."""

    _seconds: float = 0.0
    _weight: float = 0.0
    _num_frames: int = 0

    def record(self, seconds: float) -> None:
        """Record one frame."""
        self._seconds = _DECAY * self._seconds + seconds
        self._weight = _DECAY * self._weight + 1.0
        self._num_frames += 1

    @property
    def frame_s(self) -> float | None:
        """Seconds for a frame; None before enough frames were made."""
        return self._seconds / self._weight if self._num_frames >= _MIN_FRAMES else None


@dataclass
class SynthesisTiming:
    """Times of one utterance, in seconds of ``time.perf_counter``."""

    submitted_s: float = field(default_factory=time.perf_counter)
    started_s: float | None = None
    """Start of the prefill."""
    first_audio_s: float | None = None
    finished_s: float | None = None
    num_frames: int = 0
    num_samples: int = 0

    def audio_duration_s(self, sample_rate_hz: int) -> float:
        """Return the length of the audio made so far."""
        return self.num_samples / sample_rate_hz

    @property
    def ttfa_s(self) -> float | None:
        """Time from submission to the first audio."""
        return None if self.first_audio_s is None else self.first_audio_s - self.submitted_s

    @property
    def synthesis_s(self) -> float:
        """Time from the start of the prefill to the end, or to now."""
        if self.started_s is None:
            return 0.0
        return (self.finished_s or time.perf_counter()) - self.started_s

    def rtf(self, sample_rate_hz: int) -> float | None:
        """Return the real-time factor: synthesis seconds per audio second, lower is better."""
        audio_s = self.audio_duration_s(sample_rate_hz)
        return self.synthesis_s / audio_s if audio_s else None


class Playback:
    """The playback of one answer: assumed to start with the first audio and never to pause."""

    def __init__(self) -> None:
        """Start with no audio."""
        self._made_s: dict[int, float] = {}
        self._ended: set[int] = set()
        self._before_s = 0.0
        self._started_s: float | None = None
        self.current = 0
        """Position of the first incomplete utterance: its audio is needed next."""

    def record_audio(self, position: int, duration_s: float) -> None:
        """Record audio of the utterance at ``position``."""
        if self._started_s is None:
            self._started_s = time.perf_counter()
        self._made_s[position] = self._made_s.get(position, 0.0) + duration_s

    def record_end(self, position: int) -> None:
        """Record that the utterance at ``position`` is complete."""
        self._ended.add(position)
        while self.current in self._ended:
            self._ended.remove(self.current)
            self._before_s += self._made_s.pop(self.current, 0.0)
            self.current += 1

    @property
    def buffered_s(self) -> float:
        """Seconds of audio ahead of the listener; below 0 playback has already stopped."""
        if self._started_s is None:
            return 0.0
        made_s = self._before_s + self._made_s.get(self.current, 0.0)
        return self._started_s + made_s - time.perf_counter()
