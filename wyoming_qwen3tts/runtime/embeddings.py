"""The embedding tables of our own bundles."""

import os
import weakref
from collections.abc import Sequence
from pathlib import Path
from typing import Final, Literal

import numpy as np

from wyoming_qwen3tts.arrays import AnyArray, Float32Array, Int64Array
from wyoming_qwen3tts.errors import BundleError, GraphInterfaceError

TEXT_TABLE = "text_embedding.npy"
CODEC_TABLE = "codec_embedding.npy"
GROUP_TABLE = "group_embedding.npy"

_BUILD_AGAIN: Final = "Build the bundle again."


class TableEmbeddings:
    """Tables of one bundle: text (V, D), codec (rows, D) and groups (G - 1, C, D).

    The codec tables are read into memory: each frame needs a row of every group. Of the text table,
    300 MB of which a request needs some kilobytes, single rows are read from the file. A mapping
    would become resident over the months, since the kernel maps 16 pages around each one.
    """

    def __init__(self, directory: Path) -> None:
        """Open the three tables.

        Raises:
            BundleError: A table is missing or unreadable.
            GraphInterfaceError: The tables do not fit together.
        """
        self._text = _RowFile(directory / TEXT_TABLE)
        self._codec = _load(directory / CODEC_TABLE, 2)
        self._groups = _load(directory / GROUP_TABLE, 3)
        self._group_index = np.arange(len(self._groups))
        widths = {table.shape[-1] for table in (self._text, self._codec, self._groups)}
        if len(widths) != 1:
            raise GraphInterfaceError(
                f"The embedding tables of {directory} have different widths {sorted(widths)}. "
                f"{_BUILD_AGAIN}"
            )

    def text(self, ids: Sequence[int]) -> Float32Array:
        """Return (T, D): projected text embeddings.

        Raises:
            BundleError: The file was truncated after it was opened.
        """
        return self._text.rows(ids)

    def codec(self, ids: Sequence[int]) -> Float32Array:
        """Return (T, D): rows of the talker's codec table (codes, special ids, speakers)."""
        return self._codec[np.asarray(ids, np.int64)].astype(np.float32)

    def frames(self, codes: Int64Array) -> Float32Array:
        """Return (F, D): the sum over groups of the embeddings of codes (F, G)."""
        total: Float32Array = self._codec[codes[:, 0]].astype(np.float32)
        rows = self._groups[self._group_index, codes[:, 1:]]  # (F, G - 1, D)
        # One group after the other, as the official code adds them: float sums depend on order.
        for group in self._group_index:
            total += rows[:, group]
        return total


class _RowFile:
    """A table (rows, D) in numpy's format, of which single rows are read."""

    def __init__(self, path: Path) -> None:
        table = _load(path, 2, mmap_mode="r")
        try:
            self._descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            raise BundleError(f"{path} cannot be read: {error}. {_BUILD_AGAIN}") from error
        weakref.finalize(self, os.close, self._descriptor)
        if not isinstance(table, np.memmap) or not table.flags.c_contiguous:
            raise GraphInterfaceError(f"The rows of {path} are not contiguous. {_BUILD_AGAIN}")
        self.shape = table.shape
        self._path = path
        self._type = table.dtype
        self._start_bytes = table.offset
        self._row_bytes = table.shape[1] * table.itemsize

    def rows(self, indices: Sequence[int]) -> Float32Array:
        """Return rows (n, D).

        Raises:
            BundleError: The file was truncated after it was opened.
            IndexError: There is no such row.
        """
        found = np.empty((len(indices), self.shape[1]), np.float32)
        for target, index in zip(found, indices, strict=True):
            if not 0 <= index < self.shape[0]:
                raise IndexError(f"{self._path} has {self.shape[0]} rows, none of number {index}")
            offset = self._start_bytes + index * self._row_bytes
            stored = os.pread(self._descriptor, self._row_bytes, offset)
            if len(stored) != self._row_bytes:
                raise BundleError(f"{self._path} was truncated. {_BUILD_AGAIN}")
            target[:] = np.frombuffer(stored, self._type)
        return found


def _load(path: Path, num_dimensions: int, mmap_mode: Literal["r"] | None = None) -> AnyArray:
    """Read a table in numpy's format, or map it."""
    try:
        table: AnyArray = np.load(path, mmap_mode=mmap_mode, allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise BundleError(f"{path} cannot be read: {error}. {_BUILD_AGAIN}") from error
    if table.ndim != num_dimensions:
        raise GraphInterfaceError(
            f"{path} has {table.ndim} dimensions, not {num_dimensions}. {_BUILD_AGAIN}"
        )
    return table
