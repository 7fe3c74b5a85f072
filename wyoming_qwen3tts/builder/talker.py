"""The talker's graph: one for prefill and for steps.

Inputs: ``embeddings`` (B, T, D), ``last_positions`` (B,), ``total_length`` and the cache
``past_key_{i}``, ``past_value_{i}`` (B, H, C, K). The caller binds each ``present_*`` output to the
memory of its ``past_*`` input; then new positions are written in place. Outputs: ``logits``
(B, C + 1) and ``hidden`` (B, D) of the last position. A prefill has B = 1 and any T; a step has
T = 1 and any B, each lane at its own length.

The head keeps the rows of the codes and of end of speech. The official code suppresses all others,
so leaving them out is exact, and nothing needs to be suppressed at run time.
"""

from pathlib import Path

import numpy as np

from wyoming_qwen3tts.arrays import Float32Array
from wyoming_qwen3tts.builder.checkpoint import TensorFile
from wyoming_qwen3tts.builder.config import TalkerConfig
from wyoming_qwen3tts.builder.graph import GraphBuilder
from wyoming_qwen3tts.builder.layers import CachePair, LayerWriter, Positions
from wyoming_qwen3tts.builder.recipe import TalkerPrecision
from wyoming_qwen3tts.builder.weights import Numerics
from wyoming_qwen3tts.runtime.manifest import QuantizationReport

# The rotary tables end here: 8192 positions are eleven minutes of speech in one utterance.
MAX_POSITIONS = 8192


def max_positions(config: TalkerConfig) -> int:
    """Return the number of positions that the graph can hold."""
    return min(config.max_positions, MAX_POSITIONS)


def build_talker(
    main: TensorFile,
    config: TalkerConfig,
    precision: TalkerPrecision,
    numerics: Numerics,
    directory: Path,
) -> tuple[QuantizationReport, ...]:
    """Write ``talker.onnx`` and its data file into ``directory``.

    Raises:
        CheckpointError: A tensor is missing or has another shape.
        BuildError: A weight cannot be quantised.
    """
    transformer = config.transformer
    with GraphBuilder("talker", directory) as graph:
        writer = LayerWriter(graph, numerics)
        embeddings = graph.input("embeddings", np.float32, ["B", "T", transformer.hidden_size])
        last = graph.input("last_positions", np.int32, ["B"])
        total = graph.input("total_length", np.int32, [])
        cosines, sines = writer.rotary(transformer, max_positions(config))
        past, present = _cache(graph, config, numerics.compute_type)
        stack = writer.stack_weights(main, "talker.model", transformer, precision.layers)
        rows = _head_rows(main, config)
        head = writer.linear_weight("codec_head", rows, precision.head, part="head")
        positions = Positions(last, total, cosines, sines)
        x = writer.as_residual(embeddings)
        hidden, _ = writer.run_stack(x, stack, past, positions, present)
        logits = writer.as_float32(writer.linear(hidden, head))
        graph.output(logits, "logits", np.float32, ["B", config.codebook_size + 1])
        hidden = writer.as_float32(hidden)
        graph.output(hidden, "hidden", np.float32, ["B", transformer.hidden_size])
        graph.save()
        return writer.reports()


def _cache(
    graph: GraphBuilder, config: TalkerConfig, dtype: type[np.floating]
) -> tuple[list[CachePair], list[CachePair]]:
    """Declare the cache's inputs and outputs."""
    transformer = config.transformer
    shape: list[int | str] = ["B", transformer.num_kv_heads, "C", transformer.head_size]
    past, present = [], []
    for index in range(transformer.num_layers):
        past.append(
            CachePair(
                graph.input(f"past_key_{index}", dtype, shape),
                graph.input(f"past_value_{index}", dtype, shape),
            )
        )
        present.append(
            CachePair(
                graph.direct_output(f"present_key_{index}", dtype, shape),
                graph.direct_output(f"present_value_{index}", dtype, shape),
            )
        )
    return past, present


def _head_rows(main: TensorFile, config: TalkerConfig) -> Float32Array:
    """Return the head's rows (C + 1, D): every code, then end of speech."""
    shape = (config.vocab_size, config.transformer.hidden_size)
    head = main.read("talker.codec_head.weight", shape)
    return np.concatenate([head[: config.codebook_size], head[config.eos_id : config.eos_id + 1]])
