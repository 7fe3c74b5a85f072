"""The embedding tables of our own bundles."""

import os
import weakref
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import numpy as np

from wyoming_qwen3tts.arrays import AnyArray, Float32Array, Int64Array
from wyoming_qwen3tts.errors import BundleError, GraphInterfaceError
from wyoming_qwen3tts.runtime.manifest import ModelFacts

TEXT_TABLE = "text_embedding.npy"
CODEC_TABLE = "codec_embedding.npy"
GROUP_TABLE = "group_embedding.npy"


class TableEmbeddings:
    """Tables of one bundle: text (V, D), codec (rows, D) and groups (G - 1, C, D).

    The codec tables are in memory: each frame needs a row of every group. Rows of the 300 MB text
    table are read from the file; a mapping would become resident over the months.
    """

    def __init__(self, directory: Path) -> None:
        """Open the tables; raise a BundleError if one is unreadable or does not fit the others."""
        path = directory / TEXT_TABLE
        text = _load(path, 2, mmap_mode="r")
        self._codec = _load(directory / CODEC_TABLE, 2)
        self._groups = _load(directory / GROUP_TABLE, 3)
        self._group_index = np.arange(len(self._groups))
        widths = {table.shape[-1] for table in (text, self._codec, self._groups)}
        if len(widths) != 1:
            raise GraphInterfaceError(
                f"The embedding tables of {directory} have different widths {sorted(widths)}. "
                "Build the bundle again."
            )
        self._num_text_rows = len(text)
        self._file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        weakref.finalize(self, os.close, self._file)
        self._path, self._type = path, text.dtype
        self._row_bytes = text.shape[1] * text.itemsize
        self._start_bytes = path.stat().st_size - text.nbytes  # after numpy's header

    def check(self, facts: ModelFacts) -> None:
        """Raise a GraphInterfaceError where the manifest does not fit: a wrong row is noise."""
        groups, codes, width = self._groups.shape
        kinds = (vars(facts.codec_ids), facts.languages, facts.speakers)
        fits = {
            "hidden_size": facts.hidden_size == width,
            "num_code_groups": facts.num_code_groups == groups + 1,
            "codebook_size": facts.codebook_size == codes,
            "text_ids": max(vars(facts.text_ids).values()) < self._num_text_rows,
            "codec ids": max(row for kind in kinds for row in kind.values()) < len(self._codec),
        }
        if wrong := [name for name, is_right in fits.items() if not is_right]:
            raise GraphInterfaceError(
                f"The manifest beside {self._path} has another {' and '.join(wrong)} than the "
                "tables. Build the bundle again."
            )

    def text(self, ids: Sequence[int]) -> Float32Array:
        """Return (T, D): projected text embeddings."""
        rows = np.empty((len(ids), self._codec.shape[1]), np.float32)
        for row, index in zip(rows, ids, strict=True):
            offset = self._start_bytes + index * self._row_bytes
            stored = os.pread(self._file, self._row_bytes, offset)
            if len(stored) != self._row_bytes:
                raise BundleError(f"{self._path} has no row {index}. Build the bundle again.")
            row[:] = np.frombuffer(stored, self._type)
        return rows

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


def _load(path: Path, num_dimensions: int, mmap_mode: Literal["r"] | None = None) -> AnyArray:
    try:
        table: AnyArray = np.load(path, mmap_mode=mmap_mode, allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise BundleError(f"{path} cannot be read: {error}. Build the bundle again.") from error
    if table.ndim != num_dimensions or not table.flags.c_contiguous:
        raise GraphInterfaceError(f"{path} has not {num_dimensions} dimensions. Build it again.")
    return table
