"""The talker's key/value cache.

``blocks`` has the keys and the values of each layer in turn, (B, H, capacity, K). Positions below
``lengths[lane]`` are valid. Any first lanes are contiguous views: graphs write in place.
"""

import math
import mmap
from contextlib import suppress
from typing import NamedTuple

import numpy as np
from numpy.typing import DTypeLike

from wyoming_qwen3tts.arrays import AnyArray, Int32Array
from wyoming_qwen3tts.errors import RequestError

# Blocks grow in steps of this many positions.
GROWTH_POSITIONS = 256


class CacheSnapshot(NamedTuple):
    """A copy of one lane's first positions: keys and values in turn, (H, length, K)."""

    blocks: tuple[AnyArray, ...]

    @property
    def num_bytes(self) -> int:
        """Memory that the snapshot holds."""
        return sum(array.nbytes for array in self.blocks)


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
        dtype: DTypeLike = np.float32,
    ) -> None:
        """Allocate empty lanes of ``capacity`` positions, which grow to ``max_positions``."""
        self.max_positions = max_positions
        shape = (num_lanes, num_heads, min(_rounded(capacity), max_positions), head_size)
        self.blocks = [_zeros(shape, dtype) for _ in range(2 * num_layers)]
        self.lengths: Int32Array = np.zeros(num_lanes, np.int32)

    @property
    def capacity(self) -> int:
        """Positions that every lane has room for now."""
        return int(self.blocks[0].shape[2])

    def reserve(self, length: int) -> None:
        """Make room for ``length`` positions in every lane, unless the model has fewer."""
        if length <= self.capacity:
            return
        if length > self.max_positions:
            raise RequestError(
                f"The text needs more than the model's {self.max_positions} positions; "
                "split it into shorter texts."
            )
        self._resize(min(max(_rounded(length), 2 * self.capacity), self.max_positions))

    def shrink(self, capacity: int) -> None:
        """Free memory: drop to ``capacity`` positions if every lane fits into it."""
        capacity = _rounded(max(capacity, int(self.lengths.max(initial=0))))
        if capacity < self.capacity:
            self._resize(capacity)

    def clear(self) -> None:
        """Empty every lane and free memory, unless there is too little memory to do so."""
        self.lengths[:] = 0
        with suppress(MemoryError):
            self.shrink(1)

    def _resize(self, capacity: int) -> None:
        used = int(self.lengths.max(initial=0))
        lanes, heads, _, width = self.blocks[0].shape
        shape = (lanes, heads, capacity, width)
        # All are allocated before the first is used: if memory runs out, the cache is unchanged.
        resized = [_zeros(shape, block.dtype) for block in self.blocks]
        for index, block in enumerate(resized):
            block[:, :, :used] = self.blocks[index][:, :, :used]
            self.blocks[index] = block

    def rewind(self, lane: int, length: int) -> None:
        """Forget every position of ``lane`` from ``length`` on."""
        self.lengths[lane] = length

    def move(self, source: int, target: int) -> None:
        """Copy lane ``source`` over lane ``target`` and empty ``source``."""
        if source == target:
            return
        used = int(self.lengths[source])
        for block in self.blocks:
            block[target, :, :used] = block[source, :, :used]
        self.lengths[target] = used
        self.lengths[source] = 0

    def swap(self, lane: int, other: int) -> None:
        """Exchange two lanes."""
        lanes, swapped = [lane, other], [other, lane]
        used = int(self.lengths[lanes].max())
        for block in self.blocks:
            block[lanes, :, :used] = block[swapped, :, :used]
        self.lengths[lanes] = self.lengths[swapped]

    def snapshot(self, lane: int, length: int) -> CacheSnapshot:
        """Copy the first ``length`` positions of ``lane``."""
        return CacheSnapshot(tuple(block[lane, :, :length].copy() for block in self.blocks))

    def restore(self, lane: int, snapshot: CacheSnapshot, length: int) -> None:
        """Make the snapshot's first ``length`` positions the whole content of ``lane``."""
        self.reserve(length)
        for block, array in zip(self.blocks, snapshot.blocks, strict=True):
            block[lane, :, :length] = array[:, :length]
        self.lengths[lane] = length


def _rounded(length: int) -> int:
    return -(-length // GROWTH_POSITIONS) * GROWTH_POSITIONS


def _zeros(shape: tuple[int, ...], dtype: DTypeLike) -> AnyArray:
    """Return a block of which only written pages take memory.

    numpy would ask for huge pages: the first position of a lane then takes as much as a thousand.
    """
    try:
        num_bytes = math.prod(shape) * np.dtype(dtype).itemsize
        pages = mmap.mmap(-1, num_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except OSError as error:
        raise MemoryError(str(error)) from error
    with suppress(AttributeError, OSError):  # systems and kernels without huge pages
        pages.madvise(mmap.MADV_NOHUGEPAGE)
    return np.frombuffer(pages, dtype).reshape(shape)
