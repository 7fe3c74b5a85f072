"""Where the host has put a virtual machine's cores.

Hosts move virtual cores. Two that share a cache read memory hardly faster than one, but hand data
to each other quickly; two that do not share one read nearly twice as much, and all that they hand
over is slow. On the machine of the published tables a frame of 0.6B int8 took 41 ms of code
predictor and 21 of codec at the one place, 30 and 35 at the other, and no two measurements needed
to be at the same one. So they wait until the cores share a cache, as those of a home server do.
"""

import time
from collections.abc import Callable
from typing import Final, Protocol

import numpy as np

from script._benchmark.machine import in_threads
from wyoming_qwen3tts.arrays import AnyArray

_BLOCK_BYTES: Final = 128 * 2**20
_TRIES: Final = 4
_APART_GAIN: Final = 1.4
"""Two threads that read so much faster than one do not share a way to memory."""
_FIRST_LOOKS: Final = 12
_PAUSE_S: Final = 0.25
_PATIENCE_S: Final = 6.0


class Placement(Protocol):
    """Tells where the cores are."""

    def settle(self) -> None:
        """Wait until the cores are together, but not forever."""

    def are_apart(self) -> bool | None:
        """Return whether they are apart now; None where they stay where they are."""


class CorePlacement:
    """Watches two cores by what they read alone and together."""

    def __init__(
        self,
        num_threads: int,
        gain: Callable[[], float] | None = None,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        """Look for a while whether they move.

        Args:
            num_threads: Threads of the measurements; only two cores are told apart.
            gain: Returns how many times as fast two threads read as one.
            sleep: Waits.
        """
        self._sleep = sleep
        self._is_known = num_threads == 2
        self._seen: set[bool] = set()
        if self._is_known:
            self._gain = gain or _ReadingGain()
            for _ in range(_FIRST_LOOKS):
                self._look()
                self._sleep(_PAUSE_S)

    def settle(self) -> None:
        """Wait until the cores are together, but not forever."""
        for _ in range(int(_PATIENCE_S / _PAUSE_S)):
            if not self.are_apart():
                return
            self._sleep(_PAUSE_S)

    def are_apart(self) -> bool | None:
        """Return whether they are apart now; None where they stay where they are."""
        if not self._is_known:
            return None
        is_apart = self._look()
        return is_apart if len(self._seen) > 1 else None

    def _look(self) -> bool:
        is_apart = self._gain() >= _APART_GAIN
        self._seen.add(is_apart)
        return is_apart


class _ReadingGain:
    """Reads blocks that are larger than any cache."""

    def __init__(self) -> None:
        self._blocks = [np.ones(_BLOCK_BYTES // 8, np.int64) for _ in range(2)]

    def __call__(self) -> float:
        """Return how many times as much two threads read as one."""
        alone_s = min(_read_s(self._blocks[:1]) for _ in range(_TRIES))
        together_s = min(_read_s(self._blocks) for _ in range(_TRIES))
        return len(self._blocks) * alone_s / together_s


def _read_s(blocks: list[AnyArray]) -> float:
    started_s = time.perf_counter()
    in_threads(blocks, np.bitwise_or.reduce)
    return time.perf_counter() - started_s
