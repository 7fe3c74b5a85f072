"""The talker's key/value cache: one preallocated block per layer, one row per lane.

Layout: ``keys[layer]`` and ``values[layer]`` are (B, H, capacity, K). Positions below
``lengths[lane]`` are valid. Rows are contiguous, so a single lane can be handed to onnxruntime as a
view, and the first n lanes as one batch; graphs write new positions in place.
"""

import math
import mmap
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

import numpy as np

from wyoming_qwen3tts.arrays import AnyArray, Int32Array
from wyoming_qwen3tts.errors import RequestError

# The block grows in steps of this many positions, so that growing is rare and waste is bounded.
GROWTH_POSITIONS = 256
# Elsewhere than on Unix, memory of a process is private without saying so.
_PRIVATE: Final[Mapping[str, int]] = (
    {"flags": mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS} if hasattr(mmap, "MAP_PRIVATE") else {}
)


@dataclass(frozen=True)
class CacheSnapshot:
    """A copy of one lane's first positions: (H, length, K) per layer."""

    keys: tuple[AnyArray, ...]
    values: tuple[AnyArray, ...]

    @property
    def length(self) -> int:
        """Number of positions in the snapshot."""
        return int(self.keys[0].shape[1])

    @property
    def num_bytes(self) -> int:
        """Memory that the snapshot holds."""
        return sum(array.nbytes for array in (*self.keys, *self.values))


class KVCache:
    """Keys and values of every lane."""

    def __init__(
        self,
        *,
        num_layers: int,
        num_lanes: int,
        num_heads: int,
        head_size: int,
        capacity: int,
        max_positions: int,
        dtype: type[np.generic] = np.float32,
    ) -> None:
        """Allocate empty lanes of ``capacity`` positions, which grow to ``max_positions``."""
        self._max_positions = max_positions
        shape = (num_lanes, num_heads, min(_rounded(capacity), max_positions), head_size)
        self.keys: list[AnyArray] = [_zeros(shape, dtype) for _ in range(num_layers)]
        self.values: list[AnyArray] = [_zeros(shape, dtype) for _ in range(num_layers)]
        self.lengths: Int32Array = np.zeros(num_lanes, np.int32)

    @property
    def num_lanes(self) -> int:
        """Number of lanes."""
        return len(self.lengths)

    @property
    def capacity(self) -> int:
        """Positions that every lane has room for now."""
        return int(self.keys[0].shape[2])

    @property
    def max_positions(self) -> int:
        """Positions that a lane can have at most."""
        return self._max_positions

    def reserve(self, length: int) -> None:
        """Make room for ``length`` positions in every lane.

        Raises:
            RequestError: The model has not that many positions.
        """
        if length <= self.capacity:
            return
        if length > self._max_positions:
            raise RequestError(
                f"The text needs more than the model's {self._max_positions} positions; "
                "split it into shorter texts."
            )
        capacity = min(max(_rounded(length), 2 * self.capacity), self._max_positions)
        self._replace_blocks(capacity)

    def shrink(self, capacity: int) -> None:
        """Give memory back: drop to ``capacity`` positions if every lane fits into it."""
        capacity = _rounded(max(capacity, int(self.lengths.max(initial=0))))
        if capacity < self.capacity:
            self._replace_blocks(capacity)

    def clear(self) -> None:
        """Empty every lane and give memory back, as far as there is memory to do so."""
        self.lengths[:] = 0
        with suppress(MemoryError):
            self.shrink(1)

    def _replace_blocks(self, capacity: int) -> None:
        used = int(self.lengths.max(initial=0))
        lanes, heads, _, width = self.keys[0].shape
        shape = (lanes, heads, capacity, width)
        # All before the first is used: if memory runs out, the cache stays as it was. What nobody
        # has written to takes no memory yet, so only one layer is there twice at a time.
        replaced = [
            [_zeros(shape, block.dtype) for block in blocks] for blocks in (self.keys, self.values)
        ]
        for blocks, new_blocks in zip((self.keys, self.values), replaced, strict=True):
            for layer, new_block in enumerate(new_blocks):
                new_block[:, :, :used] = blocks[layer][:, :, :used]
                blocks[layer] = new_block

    def rewind(self, lane: int, length: int) -> None:
        """Forget every position of ``lane`` from ``length`` on."""
        if not 0 <= length <= self.lengths[lane]:
            raise ValueError(f"cannot rewind lane {lane} of {self.lengths[lane]} to {length}")
        self.lengths[lane] = length

    def move(self, source: int, target: int) -> None:
        """Copy lane ``source`` over lane ``target`` and empty ``source``."""
        if source == target:
            return
        used = int(self.lengths[source])
        for block in (*self.keys, *self.values):
            block[target, :, :used] = block[source, :, :used]
        self.lengths[target] = used
        self.lengths[source] = 0

    def swap(self, lane: int, other: int) -> None:
        """Exchange two lanes."""
        used = int(max(self.lengths[lane], self.lengths[other]))
        for block in (*self.keys, *self.values):
            kept = block[lane, :, :used].copy()
            block[lane, :, :used] = block[other, :, :used]
            block[other, :, :used] = kept
        self.lengths[[lane, other]] = self.lengths[[other, lane]]

    def snapshot(self, lane: int, length: int) -> CacheSnapshot:
        """Copy the first ``length`` positions of ``lane``."""
        return CacheSnapshot(
            tuple(block[lane, :, :length].copy() for block in self.keys),
            tuple(block[lane, :, :length].copy() for block in self.values),
        )

    def restore(self, lane: int, snapshot: CacheSnapshot, length: int) -> None:
        """Make the snapshot's first ``length`` positions the whole content of ``lane``."""
        self.reserve(length)
        for blocks, saved in ((self.keys, snapshot.keys), (self.values, snapshot.values)):
            for block, array in zip(blocks, saved, strict=True):
                block[lane, :, :length] = array[:, :length]
        self.lengths[lane] = length


def _rounded(length: int) -> int:
    return -(-length // GROWTH_POSITIONS) * GROWTH_POSITIONS


def _zeros(shape: tuple[int, ...], dtype: type[np.generic] | np.dtype[np.generic]) -> AnyArray:
    """Return a block of which only the pages that are written to take memory.

    numpy asks for huge pages from 4 MB on, and the first position of a lane would then take as much
    as a thousand.

    Raises:
        MemoryError: The system has no address space for it.
    """
    try:
        pages = mmap.mmap(-1, math.prod(shape) * np.dtype(dtype).itemsize, **_PRIVATE)
    except OSError as error:
        raise MemoryError(str(error)) from error
    with suppress(AttributeError, OSError):  # systems and kernels without huge pages
        pages.madvise(mmap.MADV_NOHUGEPAGE)
    return np.frombuffer(pages, dtype).reshape(shape)
