"""How long an utterance took, and when an answer needs audio."""

import time
from dataclasses import dataclass, field


@dataclass
class SynthesisTiming:
    """Times of one utterance, in seconds of ``time.perf_counter``."""

    submitted_s: float = field(default_factory=time.perf_counter)
    started_s: float | None = None
    """Start of the prefill."""
    first_audio_s: float | None = None
    finished_s: float | None = None
    num_frames: int = 0
    audio_s: float = 0.0
    """Length of the audio made so far."""

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

    @property
    def rtf(self) -> float | None:
        """Real-time factor: synthesis seconds per audio second, lower is better."""
        return self.synthesis_s / self.audio_s if self.audio_s else None


class Playback:
    """The playback of one answer: assumed to start with the first audio and never to pause."""

    def __init__(self) -> None:
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
