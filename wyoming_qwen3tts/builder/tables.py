"""Embedding tables as ``.npy`` files, of which a request reads a few rows.

The text table (V, D) has the text projection folded in: the projection works on each row by itself,
so projecting the whole vocabulary once is exact. The codec table (talker vocabulary, D) and the
group table (G - 1, C, D) are the checkpoint's.
"""

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from wyoming_qwen3tts.arrays import Float32Array
from wyoming_qwen3tts.builder.checkpoint import TensorFile
from wyoming_qwen3tts.builder.config import TalkerConfig
from wyoming_qwen3tts.errors import BuildError
from wyoming_qwen3tts.runtime.embeddings import CODEC_TABLE, GROUP_TABLE, TEXT_TABLE

TABLE_FILES = (TEXT_TABLE, CODEC_TABLE, GROUP_TABLE)

# Rows projected at once: 4096 rows of width 2048 are 32 MB.
_CHUNK_ROWS = 4096


def build_tables(
    main: TensorFile, config: TalkerConfig, dtype: type[np.floating], directory: Path
) -> None:
    """Write the three tables as ``dtype`` into ``directory``."""
    width, num_tables = config.transformer.hidden_size, config.num_code_groups - 1
    codec_shape, group_shape = (config.vocab_size, width), (config.codebook_size, width)
    codec = main.read("talker.model.codec_embedding.weight", codec_shape)
    group_name = "talker.code_predictor.model.codec_embedding.{}.weight".format
    groups = (main.read(group_name(group), group_shape) for group in range(num_tables))
    text_shape = (config.text_vocab_size, width)
    _write(directory / TEXT_TABLE, text_shape, dtype, _projected_text(main, config))
    _write(directory / CODEC_TABLE, codec_shape, dtype, iter([codec]))
    _write(directory / GROUP_TABLE, (num_tables, *group_shape), dtype, groups)


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
        hidden = chunk @ weight1 + bias1
        with np.errstate(over="ignore"):  # exp of a large negative value is infinity, SiLU then 0
            activated = np.asarray(hidden / (1 + np.exp(-hidden)), np.float32)
        yield activated @ weight2 + bias2


def _write(
    path: Path, shape: tuple[int, ...], dtype: type[np.floating], chunks: Iterator[Float32Array]
) -> None:
    """Write an array chunk by chunk, so that it is never whole in memory."""
    header = {"descr": np.dtype(dtype).str, "fortran_order": False, "shape": shape}
    with path.open("wb") as file:
        np.lib.format.write_array_header_1_0(file, header)
        for chunk in chunks:
            if not np.all(np.abs(chunk) <= np.finfo(dtype).max):
                raise BuildError(
                    f"{path.name} has values that {np.dtype(dtype).name} cannot hold; build with "
                    "--precision fp32, and if that fails too, the checkpoint is damaged."
                )
            chunk.astype(dtype).tofile(file)
