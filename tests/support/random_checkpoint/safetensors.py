"""Write a safetensors file tensor by tensor, as bfloat16 or float32."""

import json
import struct
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from tests.support.random_checkpoint.values import TensorSpec
from wyoming_qwen3tts.arrays import Float32Array

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
    path: Path, content: SafetensorsFile, blocks: BlockSource, on_written: Callable[[int], None]
) -> None:
    """Write a file in one pass.

    Args:
        path: The new file.
        content: Its tensors.
        blocks: Gives the values of a tensor (its number, its spec) as flat blocks.
        on_written: Told the number of bytes after every block.

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
