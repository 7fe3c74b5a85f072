"""Seeded values of a checkpoint's tensors, and safetensors files written from them.

Values come in blocks, so that no tensor is held whole.
"""

import json
import math
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any, Final, Literal, Protocol

import numpy as np

from wyoming_qwen3tts.arrays import Float32Array

BLOCK_VALUES: Final = 1 << 20
# Prime, so that no tensor's rows line up with the pool and repeat.
POOL_VALUES: Final = 8_388_593
# As the codec clamps the usage of a code that was never used.
MIN_CLUSTER_USAGE: Final = 1e-5


class Values(Enum):
    """What a tensor holds, and so how its random values are scaled.

    The scales keep activations near 1 through any depth: a random codec with residual branches of
    full size saturates its output clamp, which would hide errors and amplify float noise.
    """

    LINEAR = "weights of a linear layer or convolution"
    TRANSPOSED = "weights of a transposed convolution, two taps of which overlap"
    RESIDUAL = "last convolution of a codec residual unit, kept small"
    OUTPUT = "convolution that yields samples, kept within full scale"
    HEAD = "rows of logits, spread so that a best code stands out"
    EMBEDDING = "codec embedding rows"
    TEXT_EMBEDDING = "text embedding rows, before their projection"
    NORM = "norm weights, near 1"
    BIAS = "biases, near 0"
    LAYER_SCALE = "LayerScale factors, as after training, not their start of 0.01"
    SNAKE = "logarithms of snake parameters"
    CLUSTER_USAGE = "how often each code was used; the last code never was"
    CODEBOOK_SUM = "codebook rows times their usage"
    FLAG = "ones"


@dataclass(frozen=True)
class TensorSpec:
    """One tensor: name, shape, and what it holds."""

    name: str
    shape: tuple[int, ...]
    values: Values

    @property
    def size(self) -> int:
        """Number of values."""
        return math.prod(self.shape)

    @property
    def row_size(self) -> int:
        """Values of one row along the first axis."""
        return math.prod(self.shape[1:])


class Normals(Protocol):
    """A source of standard normal values."""

    def start(self, seed: int, index: int) -> Callable[[int], Float32Array]:
        """Return a function that gives the next n values of tensor ``index``."""


class ExactNormals:
    """A generator of its own for every tensor: nothing is shared, about 20 ns a value."""

    def start(self, seed: int, index: int) -> Callable[[int], Float32Array]:
        """Return a function that gives the next n values of tensor ``index``."""
        generator = np.random.default_rng([seed, index])
        return lambda count: generator.standard_normal(count).astype(np.float32)


class PooledNormals:
    """One pool of values, read in a circle from another place for every tensor."""

    def __init__(self, seed: int) -> None:
        """Fill the pool."""
        self._pool: Float32Array = np.random.default_rng(seed).standard_normal(
            POOL_VALUES, dtype=np.float32
        )

    def start(self, seed: int, index: int) -> Callable[[int], Float32Array]:
        """Return a function that gives the next n values of tensor ``index``."""
        position = int(np.random.default_rng([seed, index]).integers(POOL_VALUES))

        def take(count: int) -> Float32Array:
            nonlocal position
            pieces = []
            while count:
                piece = self._pool[position : position + count]
                pieces.append(piece)
                count -= len(piece)
                position = (position + len(piece)) % POOL_VALUES
            return np.concatenate(pieces)

        return take


class ValueSource:
    """Yields every tensor's values for one file; tensors must be asked for in order."""

    def __init__(
        self, normals: Normals, seed: int, row_gains: Mapping[str, tuple[int, float]] | None = None
    ) -> None:
        """Remember the source.

        Args:
            normals: Where normal values come from.
            seed: Seed of the file.
            row_gains: Tensor name -> (row, factor on that row).
        """
        self._normals = normals
        self._seed = seed
        self._row_gains = dict(row_gains or {})
        self._last_usage: Float32Array = np.ones(0, np.float32)

    def blocks(self, index: int, spec: TensorSpec) -> Iterator[Float32Array]:
        """Yield the values of tensor number ``index``, row by row, in flat blocks."""
        if spec.values is Values.FLAG:
            yield np.ones(spec.size, np.float32)
        elif spec.values is Values.CLUSTER_USAGE:
            self._last_usage = self._cluster_usage(index, spec)
            yield self._last_usage
        else:
            take = self._normals.start(self._seed, index)
            rows_per_block = max(1, BLOCK_VALUES // spec.row_size)
            for first_row in range(0, spec.shape[0], rows_per_block):
                num_rows = min(rows_per_block, spec.shape[0] - first_row)
                rows = take(num_rows * spec.row_size).reshape(num_rows, spec.row_size)
                yield self._scaled(spec, first_row, rows).reshape(-1)

    def _cluster_usage(self, index: int, spec: TensorSpec) -> Float32Array:
        usage = np.random.default_rng([self._seed, index]).uniform(0.5, 2.0, spec.size)
        usage[-1] = 0.0  # one dead code, so that the clamp of its usage is exercised
        return usage.astype(np.float32)

    def _scaled(self, spec: TensorSpec, first_row: int, rows: Float32Array) -> Float32Array:
        """Turn normal values (rows, row_size) into the tensor's values."""
        if spec.values is Values.CODEBOOK_SUM:
            # The usage tensor of a codebook stands right before its sum.
            usage = self._last_usage[first_row : first_row + len(rows)]
            return rows * np.maximum(usage, np.float32(MIN_CLUSTER_USAGE))[:, None]
        scale = _SCALES[spec.values]
        scaled = scale.offset + scale.gain * rows / scale.divisor(spec)
        if spec.name in self._row_gains:
            row, gain = self._row_gains[spec.name]
            if first_row <= row < first_row + len(rows):
                scaled[row - first_row] *= np.float32(gain)
        return scaled


@dataclass(frozen=True)
class _Scale:
    """``offset + gain * normal / divisor``."""

    gain: float
    offset: float = 0.0
    by_fan_in: bool = False

    def divisor(self, spec: TensorSpec) -> float:
        """Return what keeps the variance of an output: the root of the number of its inputs."""
        if spec.values is Values.TRANSPOSED:
            return math.sqrt(2 * spec.shape[0])
        return math.sqrt(spec.row_size) if self.by_fan_in else 1.0


_SCALES: Final[dict[Values, _Scale]] = {
    Values.LINEAR: _Scale(1.0, by_fan_in=True),
    Values.TRANSPOSED: _Scale(1.0),
    Values.RESIDUAL: _Scale(0.25, by_fan_in=True),
    Values.OUTPUT: _Scale(0.12, by_fan_in=True),
    Values.HEAD: _Scale(3.0, by_fan_in=True),
    Values.EMBEDDING: _Scale(0.5),
    Values.TEXT_EMBEDDING: _Scale(1.0),
    Values.NORM: _Scale(0.1, offset=1.0),
    Values.BIAS: _Scale(0.05),
    Values.LAYER_SCALE: _Scale(0.1, offset=0.3),
    Values.SNAKE: _Scale(0.3),
}


StoredType = Literal["BF16", "F32"]
BlockSource = Callable[[int, TensorSpec], Iterator[Float32Array]]

_BYTES_PER_VALUE: dict[StoredType, int] = {"BF16": 2, "F32": 4}
_HEADER_ALIGNMENT_BYTES = 8


@dataclass(frozen=True)
class SafetensorsFile:
    """What a file holds and how."""

    specs: Sequence[TensorSpec]
    """In the order of their values."""
    dtype: StoredType
    """float32 values are rounded to the nearest bfloat16."""
    with_metadata: bool
    """Whether the header says which framework wrote it; not every published file does."""

    @property
    def num_bytes(self) -> int:
        """Bytes of tensor values, without the header."""
        return sum(spec.size for spec in self.specs) * _BYTES_PER_VALUE[self.dtype]

    def header(self) -> bytes:
        """Return the file's first bytes: the length of the JSON header and the header itself."""
        header: dict[str, Any] = {"__metadata__": {"format": "pt"}} if self.with_metadata else {}
        position = 0
        for spec in self.specs:
            end = position + spec.size * _BYTES_PER_VALUE[self.dtype]
            header[spec.name] = {
                "dtype": self.dtype,
                "shape": list(spec.shape),
                "data_offsets": [position, end],
            }
            position = end
        text = json.dumps(header, separators=(",", ":")).encode()
        text += b" " * (-len(text) % _HEADER_ALIGNMENT_BYTES)
        return struct.pack("<Q", len(text)) + text


def write_safetensors(
    path: Path, content: SafetensorsFile, blocks: BlockSource, on_written: Callable[[int], object]
) -> None:
    """Write a file in one pass.

    Args:
        path: The new file.
        content: Its tensors.
        blocks: Gives the values of a tensor (its number, its spec) as flat blocks.
        on_written: Called with the number of bytes after every block.

    Raises:
        ValueError: ``blocks`` gave not as many values as the tensor has.
    """
    with path.open("wb") as file:
        file.write(content.header())
        for index, spec in enumerate(content.specs):
            num_values = 0
            for block in blocks(index, spec):
                encoded = to_bfloat16(block) if content.dtype == "BF16" else block.astype("<f4")
                file.write(encoded.data)
                num_values += block.size
                on_written(encoded.nbytes)
            if num_values != spec.size:
                raise ValueError(f"{spec.name}: {num_values} values for the shape {spec.shape}")


def to_bfloat16(values: Float32Array) -> np.ndarray[Any, np.dtype[np.uint16]]:
    """Round to the nearest bfloat16, ties to even, and return the bit patterns."""
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
    odd = (bits >> 16) & 1
    return ((bits + np.uint32(0x7FFF) + odd) >> 16).astype("<u2")
