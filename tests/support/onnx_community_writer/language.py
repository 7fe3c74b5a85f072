"""The onnx-community layout's language graphs: embeddings, talker with cache, code predictor.

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

The exporter named the cache by accident: ``past_kv``, ``past_kv_0_1``, ``past_kv_1_0`` and so on.
The names of its outputs mean nothing; only their order is reliable.
"""

import numpy as np

from tests.support.onnx_community_writer.traced import TracedGraph
from wyoming_qwen3tts.builder.checkpoint import Checkpoint
from wyoming_qwen3tts.builder.graphs.graph import Dim, Value
from wyoming_qwen3tts.builder.graphs.lm import KeyValue

_PREDICTOR = "talker.code_predictor"
_ROPE_AXES = 3
# Where the exporter's counter stood at the first unnamed output; any number would do.
_FIRST_UNNAMED = 62


def text_embed(traced: TracedGraph, checkpoint: Checkpoint) -> None:
    """Write the text table and its projection."""
    config, name = checkpoint.talker, "talker.text_projection.linear_fc"
    inner, width = config.text_hidden_size, config.transformer.hidden_size
    ids = traced.graph.input("text_ids", np.int64, ["B", "T"])
    x = traced.embed("talker.model.text_embedding", config.text_vocab_size, inner, ids)
    x = traced.silu(traced.linear(x, f"{name}1", inner, inner))
    x = traced.linear(x, f"{name}2", inner, width)
    traced.graph.output(x, "text_embeds", traced.numerics.compute_type, ["B", "T", width])


def codec_embed(traced: TracedGraph, checkpoint: Checkpoint) -> None:
    """Write the talker's codec table."""
    width = checkpoint.talker.transformer.hidden_size
    ids = traced.graph.input("codec_ids", np.int64, ["B", "T"])
    x = _embed_codec(traced, checkpoint, ids)
    traced.graph.output(x, "codec_embeds", traced.numerics.compute_type, ["B", "T", width])


def residual_embed(traced: TracedGraph, checkpoint: Checkpoint) -> None:
    """Write the sum of the embeddings of a frame's codes."""
    config = checkpoint.code_predictor
    codes = traced.graph.input("codec_ids", np.int64, ["B", config.num_code_groups])
    rows = _embed_groups(traced, checkpoint, codes, config.num_code_groups)
    total = traced.op("ReduceSum", rows, [1], keepdims=0)
    width = config.talker_hidden_size
    traced.graph.output(total, "step_embed", traced.numerics.compute_type, ["B", width])


def talker_cache(traced: TracedGraph, checkpoint: Checkpoint, logits_name: str) -> None:
    """Write the talker with a cache that grows by concatenation."""
    graph, op, dtype = traced.graph, traced.op, traced.numerics.compute_type
    config, transformer = checkpoint.talker, checkpoint.talker.transformer
    width, layers = transformer.hidden_size, range(transformer.num_layers)
    x = graph.input("inputs_embeds", dtype, ["B", "T", width])
    positions = graph.input("position_ids", np.int64, [_ROPE_AXES, "B", "T"])
    attended = graph.input("attention_mask", np.int64, ["B", "total"])
    shape: list[Dim] = ["B", transformer.num_kv_heads, "past", transformer.head_size]
    names = [f"past_kv_{layer}_{part}" for layer in layers for part in (0, 1)]
    values = [graph.input(name, dtype, shape) for name in ["past_kv", *names[1:]]]
    past = [KeyValue(*values[2 * layer : 2 * layer + 2]) for layer in layers]
    # No later position, and none that the caller masked: (B, 1, T, S).
    total = graph.length(attended, 1)
    queries = op("Unsqueeze", op("Range", graph.length(values[0], 2), total, 1), [1])
    causal = op("LessOrEqual", op("Range", 0, total, 1), queries)  # (T, S)
    visible = op("Unsqueeze", graph.cast(attended, np.bool_), [1, 2])
    mask = traced.causal_mask(op("And", causal, visible))
    tables = traced.rotary_tables(positions, _ROPE_AXES, transformer)
    hidden, present = traced.layers(x, "talker.model", transformer, tables, mask, past)
    logits = traced.linear(hidden, "talker.codec_head", width, config.vocab_size)
    # Declared first of all outputs: the cache is told apart by its place behind them.
    graph.output(logits, logits_name, dtype, ["B", "T", config.vocab_size])
    graph.output(hidden, "hidden_states", dtype, ["B", "T", width])
    shape[2] = None
    for index, value in enumerate(value for pair in present for value in pair):
        name = f"cat_{_FIRST_UNNAMED + index - 1}" if index else "present"
        graph.output(value, name, dtype, shape)


def code_predictor(traced: TracedGraph, checkpoint: Checkpoint) -> None:
    """Write the graph that scores every group of a frame from the codes before it."""
    config, dtype = checkpoint.code_predictor, traced.numerics.compute_type
    groups, transformer = config.num_code_groups, config.transformer
    width, size = transformer.hidden_size, config.codebook_size
    hidden = traced.graph.input("talker_hidden", dtype, ["B", config.talker_hidden_size])
    codes = traced.graph.input("codec_ids", np.int64, ["B", groups])
    embedded = _embed_groups(traced, checkpoint, codes, groups - 1)
    x = traced.op("Concat", traced.op("Unsqueeze", hidden, [1]), embedded, axis=1)  # (B, G, D)
    if config.has_projection:
        name = f"{_PREDICTOR}.small_to_mtp_projection"
        x = traced.linear(x, name, config.talker_hidden_size, width)
    tables, mask = traced.constant_tables(groups, transformer), traced.constant_mask(groups)
    y, _ = traced.layers(x, f"{_PREDICTOR}.model", transformer, tables, mask)
    scores = [
        traced.linear(
            traced.slice(y, group, group + 1, 1), f"{_PREDICTOR}.lm_head.{group - 1}", width, size
        )
        for group in range(1, groups)
    ]
    logits = traced.op("Concat", scores, axis=1)
    traced.graph.output(logits, "group_logits", dtype, ["B", groups - 1, size])


def _embed_codec(traced: TracedGraph, checkpoint: Checkpoint, ids: Value) -> Value:
    config = checkpoint.talker
    width = config.transformer.hidden_size
    return traced.embed("talker.model.codec_embedding", config.vocab_size, width, ids)


def _embed_groups(
    traced: TracedGraph, checkpoint: Checkpoint, codes: Value, num_groups: int
) -> Value:
    """Return (B, num_groups, D): the embeddings of the first groups of codes (B, G)."""
    config = checkpoint.code_predictor
    rows = [_embed_codec(traced, checkpoint, traced.slice(codes, 0, 1, 1))]
    for group in range(1, num_groups):
        ids = traced.slice(codes, group, group + 1, 1)
        name = f"{_PREDICTOR}.model.codec_embedding.{group - 1}"
        rows.append(traced.embed(name, config.codebook_size, config.talker_hidden_size, ids))
    return traced.op("Concat", rows, axis=1)
