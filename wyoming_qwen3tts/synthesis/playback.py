"""When the audio of an answer is needed: its utterances are heard one after the other."""

import time


class Playback:
    """The playing of one answer, taken to start with the first audio and never to stop."""

    def __init__(self) -> None:
        """Prepare an answer of which nothing was made."""
        self._made_s: dict[int, float] = {}
        self._ended: set[int] = set()
        self._before_s = 0.0
        self._started_s: float | None = None
        self.front = 0
        """Position of the first utterance that is not complete: what is missing next."""

    def note_audio(self, position: int, duration_s: float) -> None:
        """Take note of audio that was made of one utterance."""
        if self._started_s is None:
            self._started_s = time.perf_counter()
        self._made_s[position] = self._made_s.get(position, 0.0) + duration_s

    def note_end(self, position: int) -> None:
        """Take note that an utterance is complete."""
        self._ended.add(position)
        while self.front in self._ended:
            self._ended.remove(self.front)
            self._before_s += self._made_s.pop(self.front, 0.0)
            self.front += 1

    @property
    def lead_s(self) -> float:
        """Seconds until playing reaches what was not made yet; below 0 it has stopped already."""
        if self._started_s is None:
            return 0.0
        made_s = self._before_s + self._made_s.get(self.front, 0.0)
        return self._started_s + made_s - time.perf_counter()
