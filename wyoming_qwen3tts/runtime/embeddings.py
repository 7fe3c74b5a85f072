"""The embedding tables of our own bundles: a request reads its rows of the files and no more.

Mapped into memory, the tables of a server that runs for months would all become resident, since
the system maps 16 pages around each one that is touched: 300 MB of text table for some kilobytes of
rows. Read row by row they stay in the system's own cache, which gives way to whoever needs memory.
"""

import os
import weakref
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import numpy as np

from wyoming_qwen3tts.arrays import AnyArray, Float32Array, Int64Array
from wyoming_qwen3tts.errors import BundleError, GraphInterfaceError

TEXT_TABLE = "text_embedding.npy"
CODEC_TABLE = "codec_embedding.npy"
GROUP_TABLE = "group_embedding.npy"

_BUILD_AGAIN: Final = "Build the bundle again."


class TableEmbeddings:
    """Tables of one bundle: text (V, D), codec (rows, D) and groups (G - 1, C, D)."""

    def __init__(self, directory: Path) -> None:
        """Open the three tables.

        Raises:
            BundleError: A table is missing or unreadable.
            GraphInterfaceError: The tables do not fit together.
        """
        self._text = _RowFile(directory / TEXT_TABLE, 2)
        self._codec = _RowFile(directory / CODEC_TABLE, 2)
        self._groups = _RowFile(directory / GROUP_TABLE, 3)
        widths = {table.shape[-1] for table in (self._text, self._codec, self._groups)}
        if len(widths) != 1:
            raise GraphInterfaceError(
                f"The embedding tables of {directory} have different widths {sorted(widths)}. "
                f"{_BUILD_AGAIN}"
            )

    def text(self, ids: Sequence[int]) -> Float32Array:
        """Return (T, D): projected text embeddings.

        Raises:
            BundleError: The file has been cut short.
        """
        return self._text.rows(np.asarray(ids, np.int64))

    def codec(self, ids: Sequence[int]) -> Float32Array:
        """Return (T, D): rows of the talker's codec table (codes, special ids, speakers).

        Raises:
            BundleError: The file has been cut short.
        """
        return self._codec.rows(np.asarray(ids, np.int64))

    def frames(self, codes: Int64Array) -> Float32Array:
        """Return (F, D): the sum over groups of the embeddings of codes (F, G).

        Raises:
            BundleError: A file has been cut short.
        """
        total = self._codec.rows(codes[:, 0])
        # One group after the other, as the official code adds them: float sums depend on order.
        for group in range(1, codes.shape[1]):
            total += self._groups.rows(codes[:, group], group - 1)
        return total


class _RowFile:
    """A table (..., rows, D) in numpy's format, of which single rows are read."""

    def __init__(self, path: Path, num_dimensions: int) -> None:
        try:
            table: AnyArray = np.load(path, mmap_mode="r", allow_pickle=False)
            self._descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except (OSError, ValueError, EOFError) as error:
            raise BundleError(f"{path} cannot be read: {error}. {_BUILD_AGAIN}") from error
        weakref.finalize(self, os.close, self._descriptor)
        if table.ndim != num_dimensions:
            raise GraphInterfaceError(
                f"{path} has {table.ndim} dimensions, not {num_dimensions}. {_BUILD_AGAIN}"
            )
        if not isinstance(table, np.memmap) or not table.flags.c_contiguous:
            raise GraphInterfaceError(
                f"The rows of {path} are not stored one by one. {_BUILD_AGAIN}"
            )
        self.shape = table.shape
        self._path = path
        self._type = table.dtype
        self._start_bytes = table.offset
        self._row_bytes = table.shape[-1] * table.itemsize

    def rows(self, indices: Int64Array, block: int = 0) -> Float32Array:
        """Return rows (n, D) of one block (rows, D) of the table.

        Raises:
            BundleError: The file has been cut short.
            IndexError: There is no such row.
        """
        num_rows = self.shape[-2]
        found = np.empty((len(indices), self.shape[-1]), np.float32)
        for target, index in zip(found, indices.tolist(), strict=True):
            if not 0 <= index < num_rows:
                raise IndexError(f"{self._path} has {num_rows} rows, none of number {index}")
            offset = self._start_bytes + (block * num_rows + index) * self._row_bytes
            stored = os.pread(self._descriptor, self._row_bytes, offset)
            if len(stored) != self._row_bytes:
                raise BundleError(f"{self._path} has been cut short. {_BUILD_AGAIN}")
            target[:] = np.frombuffer(stored, self._type)
        return found
