"""What an utterance cost, and what a frame costs."""

import time
from dataclasses import dataclass, field
from typing import Final

# How much of the past counts after another frame: the codec decodes several frames at once, and the
# machine has other things to do at times.
_MEMORY: Final = 0.95
_MIN_FRAMES: Final = 8


@dataclass
class FrameCost:
    """What a frame takes when only one lane runs, as measured lately."""

    _seconds: float = 0.0
    _weight: float = 0.0
    _num_frames: int = 0

    def note(self, seconds: float) -> None:
        """Take a frame into account."""
        self._seconds = _MEMORY * self._seconds + seconds
        self._weight = _MEMORY * self._weight + 1.0
        self._num_frames += 1

    @property
    def frame_s(self) -> float | None:
        """Seconds for a frame; None before enough frames were made."""
        return self._seconds / self._weight if self._num_frames >= _MIN_FRAMES else None


@dataclass
class SynthesisTiming:
    """Times of one utterance, in seconds of a monotonic clock."""

    submitted_s: float = field(default_factory=time.perf_counter)
    started_s: float | None = None
    """When its prefill began."""
    first_audio_s: float | None = None
    finished_s: float | None = None
    num_frames: int = 0
    num_samples: int = 0

    def audio_duration_s(self, sample_rate_hz: int) -> float:
        """Length of the audio made so far."""
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
        """Real-time factor: synthesis seconds per audio second, lower is better."""
        audio_s = self.audio_duration_s(sample_rate_hz)
        return self.synthesis_s / audio_s if audio_s else None
