"""Embedding tables as ``.npy`` files that the runtime maps: a request touches a few rows of each.

``text_embedding.npy`` (V, D) has the text projection folded in: the projection works on each row by
itself, so projecting the whole vocabulary once is exact, and its weights are not needed afterwards.
``codec_embedding.npy`` (talker vocabulary, D) and ``group_embedding.npy`` (G - 1, C, D) are the
checkpoint's tables as they are.
"""

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from wyoming_qwen3tts.arrays import AnyArray, Float32Array
from wyoming_qwen3tts.builder.checkpoint import TensorFile
from wyoming_qwen3tts.builder.config import TalkerConfig
from wyoming_qwen3tts.errors import BuildError

TEXT_EMBEDDING = "text_embedding.npy"
CODEC_EMBEDDING = "codec_embedding.npy"
GROUP_EMBEDDING = "group_embedding.npy"
TABLE_FILES = (TEXT_EMBEDDING, CODEC_EMBEDDING, GROUP_EMBEDDING)

# Rows projected at once: 4096 rows of width 2048 are 32 MB.
_CHUNK_ROWS = 4096


def build_tables(
    main: TensorFile,
    config: TalkerConfig,
    dtype: type[np.floating],
    directory: Path,
) -> None:
    """Write the three tables into ``directory``.

    Args:
        main: The checkpoint's main tensors.
        config: Widths and counts.
        dtype: float16 or float32.
        directory: The bundle.

    Raises:
        CheckpointError: A tensor is missing or has another shape.
        BuildError: A value does not fit into ``dtype``.
    """
    width, groups = config.transformer.hidden_size, config.num_code_groups
    text_shape = (config.text_vocab_size, width)
    text = _projected_text(main, config)
    _write_npy(directory / TEXT_EMBEDDING, text_shape, dtype, text)

    codec_shape = (config.vocab_size, width)
    codec = main.read("talker.model.codec_embedding.weight", codec_shape)
    _write_npy(directory / CODEC_EMBEDDING, codec_shape, dtype, iter([codec]))

    group_shape = (config.codebook_size, width)
    tables = (
        main.read(f"talker.code_predictor.model.codec_embedding.{group}.weight", group_shape)
        for group in range(groups - 1)
    )
    _write_npy(directory / GROUP_EMBEDDING, (groups - 1, *group_shape), dtype, tables)


def _projected_text(main: TensorFile, config: TalkerConfig) -> Iterator[Float32Array]:
    """Yield the projected text table in chunks of rows."""
    inner, width = config.text_hidden_size, config.transformer.hidden_size
    prefix = "talker.text_projection"
    weight1 = main.read(f"{prefix}.linear_fc1.weight", (inner, inner)).T
    bias1 = main.read(f"{prefix}.linear_fc1.bias", (inner,))
    weight2 = main.read(f"{prefix}.linear_fc2.weight", (width, inner)).T
    bias2 = main.read(f"{prefix}.linear_fc2.bias", (width,))
    table, rows = "talker.model.text_embedding.weight", config.text_vocab_size
    for start in range(0, rows, _CHUNK_ROWS):
        chunk = main.read_rows(table, (rows, inner), start, min(start + _CHUNK_ROWS, rows))
        yield _silu(chunk @ weight1 + bias1) @ weight2 + bias2


def _silu(x: Float32Array) -> Float32Array:
    with np.errstate(over="ignore"):  # exp of a large negative value is infinity, silu then 0
        return np.asarray(x / (1 + np.exp(-x)), np.float32)


def _write_npy(
    path: Path,
    shape: tuple[int, ...],
    dtype: type[np.floating],
    chunks: Iterator[Float32Array],
) -> None:
    """Write an array piece by piece, so that it is never whole in memory."""
    largest = np.finfo(dtype).max
    header = {
        "descr": np.lib.format.dtype_to_descr(np.dtype(dtype)),
        "fortran_order": False,
        "shape": shape,
    }
    with path.open("wb") as file:
        np.lib.format.write_array_header_1_0(file, header)
        for chunk in chunks:
            if not np.all(np.abs(chunk) <= largest):
                raise BuildError(
                    f"{path.name} has values that {np.dtype(dtype).name} cannot hold; build with "
                    "--precision fp32, and if that fails too, the checkpoint is damaged."
                )
            converted: AnyArray = chunk.astype(dtype)
            converted.tofile(file)
