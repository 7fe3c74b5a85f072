"""Making a measurement until nothing disturbed it, as long as time allows."""

import time
from typing import Any, Protocol

from script._benchmark.noise import QUIET
from script._benchmark.placement import Placement


class Measured(Protocol):
    """A process that measures."""

    def run(self, task: str, **arguments: Any) -> dict[str, Any]:
        """Make one measurement and return its figures."""


class Attempts:
    """Repeats disturbed measurements and keeps the least disturbed try of each."""

    def __init__(self, placement: Placement, *, max_tries: int, time_s: float) -> None:
        """Allow so many tries of each measurement, and so much time for repeating in all."""
        self._placement = placement
        self._max_tries = max_tries
        self._left_s = time_s

    def best(self, worker: Measured, task: str, arguments: dict[str, Any]) -> dict[str, Any]:
        """Return the figures of the try that was disturbed least.

        ``cores_apart`` of the figures says whether the cores were apart, or moved meanwhile; None
        where they stay where they are.
        """
        best: dict[str, Any] = {}
        for attempt in range(self._max_tries):
            started_s = time.perf_counter()
            if self._left_s > 0:
                self._placement.settle()
            settled_s = time.perf_counter()
            before = self._placement.are_apart()
            figures = worker.run(task, **arguments)
            after = self._placement.are_apart()
            figures["cores_apart"] = None if after is None else bool(before) or after
            ended_s = time.perf_counter()
            self._left_s -= (ended_s if attempt else settled_s) - started_s
            if not best or _disturbance(figures) < _disturbance(best):
                best = figures
            is_good = not best["cores_apart"] and (best["foreign_cpu"] or 0.0) <= QUIET
            if is_good or self._left_s < ended_s - settled_s:
                break
        return best


def _disturbance(figures: dict[str, Any]) -> tuple[bool, float]:
    return bool(figures["cores_apart"]), float(figures["foreign_cpu"] or 0.0)
