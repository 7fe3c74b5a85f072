"""Writes bundles in the onnx-community layout, from the same checkpoints as our own.

The tests of the runtime's second layout need them, and the benchmark, whose peer is that design at
the same precision. The graphs are written as a trace of the official modules comes out, operator by
operator: concatenated cache, repeated key/value heads, a code predictor without cache, a codec
decoder without state. The encoders are our own graphs behind other inputs and outputs.

Names, shapes and quirks of inputs and outputs are those that consumers of the published files
describe; the files themselves were not available.
"""

import json
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import numpy as np
import onnx
from onnx import helper, numpy_helper

from tests.support.onnx_community_writer import codec, language
from tests.support.onnx_community_writer.traced import Numerics, TracedGraph
from wyoming_qwen3tts.builder.checkpoint import Checkpoint
from wyoming_qwen3tts.builder.graphs import encoders
from wyoming_qwen3tts.builder.graphs.graph import GraphBuilder
from wyoming_qwen3tts.builder.recipe import Precision

__all__ = ["COMPONENTS", "Numerics", "PublishedOptions", "write_published_bundle"]

COMPONENTS: Final = (
    *("text_embed", "codec_embed", "talker_cache", "code_predictor", "residual_embed"),
    *("tok_decoder", "tok_encoder", "speaker_encoder"),
)
"""Names of the graphs."""

_BLOCK_SIZE: Final = 32  # that of the published int4 files
_ENCODER_SAMPLES: Final = 24_000


@dataclass(frozen=True)
class PublishedOptions:
    """How a bundle in this layout is written."""

    precision: Precision = "fp32"
    """Of the language model's weights; the codec is always float32, as in the published files."""
    numerics: Numerics = field(default_factory=lambda: Numerics(block_size=_BLOCK_SIZE))
    components: tuple[str, ...] = ()
    """Only these; empty for all that the checkpoint has."""
    model_id: str = "onnx-community/Qwen3-TTS-12Hz"
    execution_provider: str = "CPUExecutionProvider"


def write_published_bundle(
    checkpoint: Checkpoint, directory: Path, options: PublishedOptions | None = None
) -> None:
    """Write graphs and ``manifest.json`` into ``directory``, without tokenizer files."""
    options = options or PublishedOptions()
    directory.mkdir(parents=True, exist_ok=True)
    is_base = checkpoint.speaker_encoder is not None
    available = [name for name in COMPONENTS if is_base or name != "speaker_encoder"]
    components = options.components or tuple(available)
    for name in components:
        _write(name, checkpoint, options, directory)
    manifest = {
        "model_id": options.model_id,
        "execution_provider": options.execution_provider,
        "sub_models": {name: {"filename": f"{name}.onnx"} for name in components},
    }
    (directory / "manifest.json").write_text(json.dumps(manifest, indent=2), encoding="utf-8")


def _write(name: str, checkpoint: Checkpoint, options: PublishedOptions, directory: Path) -> None:
    if name in ("tok_encoder", "speaker_encoder"):
        with tempfile.TemporaryDirectory(dir=directory) as scratch:
            _write_encoder(name, checkpoint, Path(scratch), directory / f"{name}.onnx")
        return
    with GraphBuilder(name, directory) as graph:
        if name == "tok_decoder":
            codec.tok_decoder(TracedGraph(graph, checkpoint.codec, prefix="decoder."), checkpoint)
            return
        is_table = name in ("text_embed", "codec_embed", "residual_embed")
        precision = "fp32" if is_table else options.precision
        traced = TracedGraph(graph, checkpoint.main, options.numerics, precision)
        if name == "talker_cache":
            logits_name = "logits_Q4" if options.precision == "int4" else "logits"
            language.talker_cache(traced, checkpoint, logits_name)
        else:
            getattr(language, name)(traced, checkpoint)


def _write_encoder(name: str, checkpoint: Checkpoint, scratch: Path, target: Path) -> None:
    """Write one of our own encoders with the layout's input and output.

    ``tok_encoder`` takes exactly one second, and gives 13 frames for it.
    """
    if name == "tok_encoder":
        config, groups = checkpoint.codec_encoder, checkpoint.talker.num_code_groups
        encoders.build_codec_encoder(checkpoint.codec, config, groups, scratch)
        source = encoders.CODEC_ENCODER
        entry: tuple[str, list[int | str]] = ("audio", [1, config.audio_channels, _ENCODER_SAMPLES])
        num_frames = -(-_ENCODER_SAMPLES // config.samples_per_frame)
        result = ("audio_codes", [1, num_frames, groups])
    else:
        assert checkpoint.speaker_encoder is not None
        encoders.build_speaker_encoder(checkpoint.main, checkpoint.speaker_encoder, scratch)
        source = encoders.SPEAKER_ENCODER
        entry = ("audio", ["B", "S"])
        result = ("speaker_embedding", [1, checkpoint.speaker_encoder.x_vector_size])
    model = onnx.load(scratch / f"{source}.onnx")
    graph = model.graph
    old_entry, old_result = graph.input[0], graph.output[0]
    for port, shape in ((entry, [-1]), (result, result[1])):
        graph.initializer.append(numpy_helper.from_array(np.array(shape), f"{port[0]}.shape"))
    first = helper.make_node("Reshape", [entry[0], "audio.shape"], [old_entry.name])
    last = helper.make_node("Reshape", [old_result.name, f"{result[0]}.shape"], [result[0]])
    graph.node.insert(0, first)
    graph.node.append(last)
    for old, port in ((old_entry, entry), (old_result, result)):
        dtype = old.type.tensor_type.elem_type
        old.CopyFrom(helper.make_tensor_value_info(port[0], dtype, port[1]))
    data = f"{target.name}.data"
    onnx.save(model, target, save_as_external_data=True, location=data, size_threshold=1024)
