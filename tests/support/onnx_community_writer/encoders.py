"""The published layout's encoders: our own graphs behind the published inputs and outputs.

``tok_encoder`` takes ``audio`` (1, 1, 24000), one second and no other length, and gives 13 frames
for it; ``speaker_encoder`` takes ``audio`` (B, S). What lies between is not traced: no baseline is
measured with encoders, and the same numbers serve the tests better.
"""

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
import onnx
from onnx import helper, numpy_helper

from wyoming_qwen3tts.builder.checkpoint import Checkpoint
from wyoming_qwen3tts.builder.graphs import encoders
from wyoming_qwen3tts.errors import BuildError

NUM_SAMPLES: Final = 24_000
"""Samples of each run of ``tok_encoder``: one second."""


@dataclass(frozen=True)
class _Port:
    """A graph's only input or output."""

    name: str
    shape: tuple[int | str, ...]


def build_tok_encoder(checkpoint: Checkpoint, directory: Path) -> None:
    """Write ``tok_encoder.onnx`` and its data.

    Raises:
        CheckpointError: A tensor is missing or has another shape.
    """
    config = checkpoint.codec_encoder
    groups = checkpoint.talker.num_code_groups
    num_frames = -(-NUM_SAMPLES // config.samples_per_frame)
    with tempfile.TemporaryDirectory(dir=directory) as scratch:
        encoders.build_codec_encoder(checkpoint.codec, config, groups, Path(scratch))
        _republish(
            Path(scratch) / f"{encoders.CODEC_ENCODER}.onnx",
            directory / "tok_encoder.onnx",
            _Port("audio", (1, config.audio_channels, NUM_SAMPLES)),
            _Port("audio_codes", (1, num_frames, groups)),
        )


def build_speaker_encoder(checkpoint: Checkpoint, directory: Path) -> None:
    """Write ``speaker_encoder.onnx`` and its data.

    Raises:
        CheckpointError: A tensor is missing or has another shape.
        BuildError: The model has no speaker encoder.
    """
    config = checkpoint.speaker_encoder
    if config is None:
        raise BuildError(f"{checkpoint.directory} has no speaker encoder: it is no Base model.")
    with tempfile.TemporaryDirectory(dir=directory) as scratch:
        encoders.build_speaker_encoder(checkpoint.main, config, Path(scratch))
        _republish(
            Path(scratch) / f"{encoders.SPEAKER_ENCODER}.onnx",
            directory / "speaker_encoder.onnx",
            _Port("audio", ("B", "S")),
            _Port("speaker_embedding", (1, config.x_vector_size)),
        )


def _republish(source: Path, target: Path, entry: _Port, result: _Port) -> None:
    """Move a graph and its data to ``target`` with another input and output."""
    model = onnx.load(source, load_external_data=False)
    graph = model.graph
    (old_input,), (old_output,) = graph.input, graph.output
    for tensor in graph.initializer:
        for item in tensor.external_data:
            if item.key == "location":
                item.value = f"{target.name}.data"
    graph.node.insert(0, _reshape(graph, entry.name, old_input.name, [-1]))
    shape = [size if isinstance(size, int) else -1 for size in result.shape]
    graph.node.append(_reshape(graph, old_output.name, result.name, shape))
    ports = [
        helper.make_tensor_value_info(port.name, old.type.tensor_type.elem_type, list(port.shape))
        for port, old in ((entry, old_input), (result, old_output))
    ]
    del graph.input[:], graph.output[:]
    graph.input.append(ports[0])
    graph.output.append(ports[1])
    source.with_name(f"{source.name}.data").rename(target.with_name(f"{target.name}.data"))
    target.write_bytes(model.SerializeToString())


def _reshape(
    graph: onnx.GraphProto, source: str, target: str, shape: Sequence[int]
) -> onnx.NodeProto:
    """Return a node that reshapes one value into another; its shape goes into the graph."""
    name = f"published.{target}.shape"
    graph.initializer.append(numpy_helper.from_array(np.array(shape, np.int64), name))
    return helper.make_node("Reshape", [source, name], [target], name=f"published.{target}")
