"""What an utterance cost."""

import time
from dataclasses import dataclass, field


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
