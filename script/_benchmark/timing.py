"""Timing calls."""

import time
from collections.abc import Callable
from statistics import median
from typing import Any, Final

MS_PER_S: Final = 1e3


class TimedComponent:
    """Passes everything on to a model's component and notes how long each call took.

    It stands for a talker, a code predictor or a codec decoder without naming their methods, so
    that whatever the synthesis code comes to call is measured too.
    """

    def __init__(
        self, component: object, change: Callable[[Any], Any] = lambda result: result
    ) -> None:
        """Wrap a component; ``change`` may replace what its calls return."""
        self._component = component
        self._change = change
        self.durations_s: dict[str, list[float]] = {}
        """Method -> seconds of each call since the last :meth:`reset`."""

    def reset(self) -> None:
        """Forget all durations."""
        self.durations_s = {}

    def total_s(self, *methods: str) -> float:
        """Return the seconds spent in these methods, in all of them without any name."""
        names = methods or tuple(self.durations_s)
        return sum(sum(self.durations_s.get(name, ())) for name in names)

    def median_ms(self, method: str) -> float | None:
        """Return the median duration of a call; None without any."""
        durations = self.durations_s.get(method)
        return median(durations) * MS_PER_S if durations else None

    def __getattr__(self, name: str) -> Any:
        """Return an attribute of the component, a method as one that is timed."""
        attribute = getattr(self._component, name)
        if not callable(attribute):
            return attribute

        def timed(*args: Any, **kwargs: Any) -> Any:
            started_s = time.perf_counter()
            result = attribute(*args, **kwargs)
            elapsed_s = time.perf_counter() - started_s
            self.durations_s.setdefault(name, []).append(elapsed_s)
            return self._change(result)

        return timed


def durations_ms(work: Callable[[], object], *, num_runs: int, limit_s: float) -> list[float]:
    """Time something up to ``num_runs`` times, at least once, while ``limit_s`` lasts.

    It is run once before, untimed: the first run of its kind allocates memory.
    """
    durations: list[float] = []
    work()
    ends_s = time.perf_counter() + limit_s
    while not durations or (len(durations) < num_runs and time.perf_counter() < ends_s):
        started_s = time.perf_counter()
        work()
        durations.append((time.perf_counter() - started_s) * MS_PER_S)
    return durations
