"""What the clients did, and what became of it."""

import time
from collections import Counter
from dataclasses import dataclass, field

_MAX_LOST = 50


@dataclass
class Tally:
    """Counts and measurements of one run, shared by all clients."""

    started_s: float = field(default_factory=time.monotonic)
    done: Counter[str] = field(default_factory=Counter)
    """Kind of client -> how often it did what it does."""
    hostile: Counter[str] = field(default_factory=Counter)
    """Kind of hostile input -> how often it was sent."""
    reactions: Counter[str] = field(default_factory=Counter)
    """What the server did about hostile input."""
    lost: list[str] = field(default_factory=list)
    """What good clients did not get; must stay empty."""
    describe_s: list[tuple[float, float]] = field(default_factory=list)
    """Time since the start, and how long a describe took."""
    first_audio_s: list[tuple[float, float]] = field(default_factory=list)
    """Time since the start, and how long the control request waited for its first audio."""
    audio_bytes: int = 0

    def now_s(self) -> float:
        """Return the time since the start."""
        return time.monotonic() - self.started_s

    def lose(self, what: str) -> None:
        """Note that a good client was let down."""
        if len(self.lost) < _MAX_LOST:
            self.lost.append(f"{self.now_s():.1f} s: {what}")
