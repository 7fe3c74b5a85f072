"""Tells a standstill of the machine from one of the server.

A client that waits long does not know whom it has waited for: the server, or a machine that had
stopped its processes or run others. So a thread beside the clients does nothing but sleep for a
moment, again and again, and notes when it was woken much too late, or saw the server stopped.
"""

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Final, Self

_BEAT_S: Final = 0.05
_LATE_S: Final = 0.3


@dataclass(frozen=True)
class Standstill:
    """A time in which nobody could have been served."""

    at_s: float
    """When it began, since the start of the soak."""
    duration_s: float
    reason: str


class Heartbeat:
    """Notes standstills from the start of its context to the end."""

    def __init__(self, now_s: Callable[[], float], is_stopped: Callable[[], bool]) -> None:
        """Prepare to watch.

        Args:
            now_s: The time since the start of the soak.
            is_stopped: Whether the system has stopped the server's process now.
        """
        self.standstills: list[Standstill] = []
        self._now_s = now_s
        self._is_stopped = is_stopped
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._beat, name="heartbeat", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._is_over.set()
        self._thread.join()

    def _beat(self) -> None:
        last_s = self._now_s()
        stopped_s: float | None = None
        while not self._is_over.wait(_BEAT_S):
            now_s = self._now_s()
            if now_s - last_s > _LATE_S:
                self._note(last_s, now_s, "the clients were not run")
            last_s = now_s
            if self._is_stopped():
                stopped_s = now_s if stopped_s is None else stopped_s
            elif stopped_s is not None:
                self._note(stopped_s, now_s, "the server's process was stopped")
                stopped_s = None

    def _note(self, start_s: float, end_s: float, reason: str) -> None:
        self.standstills.append(Standstill(round(start_s, 2), round(end_s - start_s, 2), reason))


def served_waits(
    waits: Sequence[tuple[float, float]], standstills: Sequence[Standstill]
) -> list[tuple[float, float]]:
    """Return the waits (end, duration) in which the machine did not stand still."""
    return [
        (end_s, wait_s)
        for end_s, wait_s in waits
        if not any(
            each.at_s < end_s and each.at_s + each.duration_s > end_s - wait_s
            for each in standstills
        )
    ]
