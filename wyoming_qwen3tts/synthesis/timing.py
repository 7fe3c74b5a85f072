"""How long an utterance took, and when an answer needs audio."""

import time
from dataclasses import dataclass


@dataclass
class SynthesisTiming:
    """Times of one utterance, in seconds of ``time.perf_counter``."""

    started_s: float | None = None  # of the prefill
    first_audio_s: float | None = None
    finished_s: float | None = None
    num_frames: int = 0
    audio_s: float = 0.0  # length of the audio made so far

    @property
    def rtf(self) -> float | None:
        """Seconds of synthesis per second of audio; None before the end and without audio."""
        if self.started_s is None or self.finished_s is None or not self.audio_s:
            return None
        return (self.finished_s - self.started_s) / self.audio_s


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
