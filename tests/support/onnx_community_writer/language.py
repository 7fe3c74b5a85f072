"""The published layout's language graphs: embeddings, talker with cache, code predictor.

========================  ==================================  =================================
graph                     inputs                              outputs
========================  ==================================  =================================
text_embed                text_ids (B, T)                     text_embeds (B, T, D)
codec_embed               codec_ids (B, T)                    codec_embeds (B, T, D)
residual_embed            codec_ids (B, G)                    step_embed (B, D)
talker_cache              inputs_embeds (B, T, D),            logits (B, T, V), hidden_states
                          position_ids (3, B, T),             (B, T, D), then key and value of
                          attention_mask (B, past + T),       each layer, past and new positions
                          key and value of each layer         together
code_predictor            talker_hidden (B, D),               group_logits (B, G - 1, C)
                          codec_ids (B, G)
========================  ==================================  =================================

The cache's names are an accident of the exporter, ``past_kv``, ``past_kv_0_1``, ``past_kv_1_0`` and
so on, those of its outputs mean nothing; only their order tells what they are.
"""

from pathlib import Path

import numpy as np

from tests.support.onnx_community_writer.traced import (
    Numerics,
    TracedOps,
    TracedStack,
    TracedWriter,
)
from wyoming_qwen3tts.builder.checkpoint import Checkpoint, TensorFile
from wyoming_qwen3tts.builder.config import CodePredictorConfig, TalkerConfig
from wyoming_qwen3tts.builder.graphs.graph import Dim, GraphBuilder, Value
from wyoming_qwen3tts.builder.graphs.lm import KeyValue
from wyoming_qwen3tts.builder.recipe import Precision

_PREDICTOR = "talker.code_predictor"
_ROPE_AXES = 3
# Where the exporter's counter stood at the first unnamed output; any number would do.
_FIRST_UNNAMED = 62


def build_text_embed(checkpoint: Checkpoint, numerics: Numerics, directory: Path) -> None:
    """Write ``text_embed.onnx``: the text table and its projection.

    Raises:
        CheckpointError: A tensor is missing or has another shape.
    """
    main, config = checkpoint.main, checkpoint.talker
    inner, width = config.text_hidden_size, config.transformer.hidden_size
    with GraphBuilder("text_embed", directory) as graph:
        ops = TracedOps(TracedWriter(graph, numerics))
        ids = graph.input("text_ids", np.int64, ["B", "T"])
        x = _embed(ops, main, "talker.model.text_embedding", (config.text_vocab_size, inner), ids)
        x = _biased(ops, main, x, "talker.text_projection.linear_fc1", inner, inner)
        x = _biased(ops, main, ops.silu(x), "talker.text_projection.linear_fc2", inner, width)
        graph.output(x, "text_embeds", numerics.compute_type, ["B", "T", width])


def build_codec_embed(checkpoint: Checkpoint, numerics: Numerics, directory: Path) -> None:
    """Write ``codec_embed.onnx``: the talker's codec table.

    Raises:
        CheckpointError: A tensor is missing or has another shape.
    """
    width = checkpoint.talker.transformer.hidden_size
    with GraphBuilder("codec_embed", directory) as graph:
        ops = TracedOps(TracedWriter(graph, numerics))
        ids = graph.input("codec_ids", np.int64, ["B", "T"])
        x = _embed_codec(ops, checkpoint.main, checkpoint.talker, ids)
        graph.output(x, "codec_embeds", numerics.compute_type, ["B", "T", width])


def build_residual_embed(checkpoint: Checkpoint, numerics: Numerics, directory: Path) -> None:
    """Write ``residual_embed.onnx``: the sum of the embeddings of a frame's codes.

    Raises:
        CheckpointError: A tensor is missing or has another shape.
    """
    config = checkpoint.code_predictor
    groups, width = config.num_code_groups, config.talker_hidden_size
    with GraphBuilder("residual_embed", directory) as graph:
        ops = TracedOps(TracedWriter(graph, numerics))
        codes = graph.input("codec_ids", np.int64, ["B", groups])
        rows = _embed_groups(ops, checkpoint.main, config, checkpoint.talker, codes, groups)
        total = graph.op("ReduceSum", [rows, ops.ints(1)], keepdims=0)
        graph.output(total, "step_embed", numerics.compute_type, ["B", width])


def build_talker_cache(
    checkpoint: Checkpoint, precision: Precision, numerics: Numerics, directory: Path
) -> None:
    """Write ``talker_cache.onnx``, the talker with a cache that grows by concatenation.

    Raises:
        CheckpointError: A tensor is missing or has another shape.
        BuildError: A weight cannot be quantised.
    """
    main, config = checkpoint.main, checkpoint.talker
    transformer, dtype = config.transformer, numerics.compute_type
    with GraphBuilder("talker_cache", directory) as graph:
        writer = TracedWriter(graph, numerics)
        ops = TracedOps(writer)
        x = graph.input("inputs_embeds", dtype, ["B", "T", transformer.hidden_size])
        positions = graph.input("position_ids", np.int64, [_ROPE_AXES, "B", "T"])
        attended = graph.input("attention_mask", np.int64, ["B", "total"])
        past = _declare_past(graph, config, dtype)
        tables = ops.rotary_tables(positions, transformer, _ROPE_AXES)
        mask = _cache_mask(ops, attended, past[0].key)
        stack = TracedStack(ops, main, "talker.model", transformer, precision)
        hidden, present = stack.run(x, tables, mask, past)
        shape = (config.vocab_size, transformer.hidden_size)
        weight = main.read("talker.codec_head.weight", shape)
        head = writer.linear("codec_head", weight, precision, "head")
        # Declared first of all outputs, because the cache is told by its place behind them.
        name = "logits_Q4" if precision == "int4" else "logits"
        logits = head(hidden)
        graph.output(logits, name, dtype, ["B", "T", config.vocab_size])
        graph.output(hidden, "hidden_states", dtype, ["B", "T", transformer.hidden_size])
        names = _present_names(transformer.num_layers)
        for pair, pair_names in zip(present, names, strict=True):
            for value, name in zip(pair, pair_names, strict=True):
                graph.output(value, name, dtype, _cache_shape(config))


def build_code_predictor(
    checkpoint: Checkpoint, precision: Precision, numerics: Numerics, directory: Path
) -> None:
    """Write ``code_predictor.onnx``, which scores every group of a frame from the codes before it.

    Raises:
        CheckpointError: A tensor is missing or has another shape.
        BuildError: A weight cannot be quantised.
    """
    main, config = checkpoint.main, checkpoint.code_predictor
    groups, transformer = config.num_code_groups, config.transformer
    with GraphBuilder("code_predictor", directory) as graph:
        writer = TracedWriter(graph, numerics)
        ops = TracedOps(writer)
        hidden = graph.input(
            "talker_hidden", numerics.compute_type, ["B", config.talker_hidden_size]
        )
        codes = graph.input("codec_ids", np.int64, ["B", groups])
        embedded = _embed_groups(ops, main, config, checkpoint.talker, codes, groups - 1)
        x = graph.op("Concat", [ops.unsqueeze(hidden, 1), embedded], axis=1)  # (B, G, D)
        if config.has_projection:
            name = f"{_PREDICTOR}.small_to_mtp_projection"
            width = transformer.hidden_size
            x = _biased(ops, main, x, name, config.talker_hidden_size, width, precision)
        tables = ops.rotary_tables(ops.constant_positions(groups), transformer, 1)
        stack = TracedStack(ops, main, f"{_PREDICTOR}.model", transformer, precision)
        y, _ = stack.run(x, tables, ops.constant_mask(groups))
        scores = []
        for group in range(1, groups):
            shape = (config.codebook_size, transformer.hidden_size)
            head = main.read(f"{_PREDICTOR}.lm_head.{group - 1}.weight", shape)
            weight = writer.linear(f"lm_head.{group - 1}", head, precision, "heads")
            scores.append(weight(ops.slice(y, group, group + 1, 1)))
        logits = graph.op("Concat", scores, axis=1)
        graph.output(
            logits, "group_logits", numerics.compute_type, ["B", groups - 1, config.codebook_size]
        )


def _embed(
    ops: TracedOps, main: TensorFile, name: str, shape: tuple[int, int], ids: Value
) -> Value:
    """Look ids up in a table, which is stored in the numerics' table type."""
    numerics = ops.writer.numerics
    table = ops.graph.weight(name, main.read(f"{name}.weight", shape).astype(numerics.table_type))
    rows = ops.graph.op("Gather", [table, ids], axis=0)
    if numerics.table_type is numerics.compute_type:
        return rows
    return ops.graph.cast(rows, numerics.compute_type)


def _embed_codec(ops: TracedOps, main: TensorFile, config: TalkerConfig, ids: Value) -> Value:
    shape = (config.vocab_size, config.transformer.hidden_size)
    return _embed(ops, main, "talker.model.codec_embedding", shape, ids)


def _embed_groups(
    ops: TracedOps,
    main: TensorFile,
    config: CodePredictorConfig,
    talker: TalkerConfig,
    codes: Value,
    num_groups: int,
) -> Value:
    """Return (B, num_groups, D): the embeddings of the first groups of codes (B, G)."""
    rows = [_embed_codec(ops, main, talker, ops.slice(codes, 0, 1, 1))]
    for group in range(1, num_groups):
        name = f"{_PREDICTOR}.model.codec_embedding.{group - 1}"
        shape = (config.codebook_size, config.talker_hidden_size)
        rows.append(_embed(ops, main, name, shape, ops.slice(codes, group, group + 1, 1)))
    return ops.graph.op("Concat", rows, axis=1)


def _biased(
    ops: TracedOps,
    main: TensorFile,
    x: Value,
    name: str,
    num_inputs: int,
    num_outputs: int,
    precision: Precision = "fp32",
) -> Value:
    writer = ops.writer
    weight = main.read(f"{name}.weight", (num_outputs, num_inputs))
    product = writer.linear(name, weight, precision, "projection")(x)
    bias = writer.vector(f"{name}.bias", main.read(f"{name}.bias", (num_outputs,)))
    return ops.graph.op("Add", [product, bias])


def _cache_shape(config: TalkerConfig) -> list[int | str | None]:
    return ["B", config.transformer.num_kv_heads, None, config.transformer.head_size]


def _declare_past(
    graph: GraphBuilder, config: TalkerConfig, dtype: type[np.floating]
) -> list[KeyValue]:
    transformer = config.transformer
    shape: list[Dim] = ["B", transformer.num_kv_heads, "past", transformer.head_size]
    return [
        KeyValue(*(graph.input(name, dtype, shape) for name in names))
        for names in _past_names(transformer.num_layers)
    ]


def _past_names(num_layers: int) -> list[tuple[str, str]]:
    """Return the names of keys and values; the exporter numbered all but the very first."""
    names = [(f"past_kv_{layer}_0", f"past_kv_{layer}_1") for layer in range(num_layers)]
    return [("past_kv", names[0][1]), *names[1:]]


def _present_names(num_layers: int) -> list[tuple[str, str]]:
    numbers = iter(range(_FIRST_UNNAMED, _FIRST_UNNAMED + 2 * num_layers))
    flat = ["present", *(f"cat_{number}" for number in numbers)]
    return [(flat[2 * layer], flat[2 * layer + 1]) for layer in range(num_layers)]


def _cache_mask(ops: TracedOps, attended: Value, first_past: Value) -> Value:
    """Return the mask (B, 1, T, S): no later position, and none that the caller masked."""
    graph = ops.graph
    one, zero = graph.constant(1, np.int64), graph.constant(0, np.int64)
    past = graph.op("Squeeze", [graph.op("Shape", [first_past], start=2, end=3)])
    total = graph.op("Squeeze", [graph.op("Shape", [attended], start=1, end=2)])
    queries = ops.unsqueeze(graph.op("Range", [past, total, one]), 1)
    keys = graph.op("Range", [zero, total, one])
    causal = graph.op("LessOrEqual", [keys, queries])  # (T, S)
    visible = ops.unsqueeze(graph.cast(attended, np.bool_), 1, 2)  # (B, 1, 1, S)
    return ops.causal_mask(graph.op("And", [causal, visible]))
