"""The embedding tables of our own bundles: memory-mapped, so a request touches only its rows."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from wyoming_qwen3tts.arrays import AnyArray, Float32Array, Int64Array
from wyoming_qwen3tts.errors import BundleError, ContractError

TEXT_TABLE = "text_embedding.npy"
CODEC_TABLE = "codec_embedding.npy"
GROUP_TABLE = "group_embedding.npy"


class MappedEmbeddings:
    """Tables of one bundle: text (V, D), codec (rows, D) and groups (G - 1, C, D)."""

    def __init__(self, directory: Path) -> None:
        """Map the three tables.

        Raises:
            BundleError: A table is missing or unreadable.
            ContractError: The tables do not fit together.
        """
        self._text = _map(directory / TEXT_TABLE, 2)
        self._codec = _map(directory / CODEC_TABLE, 2)
        self._groups = _map(directory / GROUP_TABLE, 3)
        widths = {table.shape[-1] for table in (self._text, self._codec, self._groups)}
        if len(widths) != 1:
            raise ContractError(
                f"The embedding tables of {directory} have different widths {sorted(widths)}. "
                "Build the bundle again."
            )

    def text(self, ids: Sequence[int]) -> Float32Array:
        """Return (T, D): projected text embeddings."""
        return self._text[np.asarray(ids, np.int64)].astype(np.float32)

    def codec(self, ids: Sequence[int]) -> Float32Array:
        """Return (T, D): rows of the talker's codec table (codes, special ids, speakers)."""
        return self._codec[np.asarray(ids, np.int64)].astype(np.float32)

    def frames(self, codes: Int64Array) -> Float32Array:
        """Return (F, D): the sum over groups of the embeddings of codes (F, G)."""
        total = self._codec[codes[:, 0]].astype(np.float32)
        # One group after the other, as the official code adds them: float sums depend on order.
        for group in range(1, codes.shape[1]):
            total += self._groups[group - 1, codes[:, group]]
        return total


def _map(path: Path, num_dimensions: int) -> AnyArray:
    try:
        table: AnyArray = np.load(path, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise BundleError(f"{path} cannot be read: {error}. Build the bundle again.") from error
    if table.ndim != num_dimensions:
        raise ContractError(
            f"{path} has {table.ndim} dimensions, not {num_dimensions}. Build the bundle again."
        )
    return table
