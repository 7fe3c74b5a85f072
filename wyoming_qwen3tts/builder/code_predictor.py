"""The code predictor's graph: one run makes groups 1 .. G-1 of a frame.

All G - 1 steps are unrolled, with the sampling between them and a small KV cache inside the graph;
the weights are stored once and shared by the steps. Everything random comes in from the caller:
``uniforms`` (B, G-1), one draw per code, of which 0 takes the most probable code. ``forced_codes``
(B, G-1) of 0 or more replace the drawn code, which makes teacher-forced measurements possible.

Sampling follows the official order (temperature, top-k, top-p, one multinomial draw):

1. TopK gives scores v and codes, best first; e = exp((v - v[0]) / temperature), 0 from rank
   top-k on
2. c = cumulative sum of e; a code is kept while the sum before it is below top-p of the total
3. the drawn code is the first whose c reaches ``uniform`` times the kept total

Where the talker is wider than the predictor, the projection between them is folded into the
embedding tables; only the talker's hidden vector is projected here.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from wyoming_qwen3tts.arrays import Float32Array
from wyoming_qwen3tts.builder.checkpoint import TensorFile
from wyoming_qwen3tts.builder.config import CodePredictorConfig
from wyoming_qwen3tts.builder.graph import GraphBuilder, Value
from wyoming_qwen3tts.builder.layers import LayerWriter, Positions, Stack
from wyoming_qwen3tts.builder.recipe import CodePredictorPrecision
from wyoming_qwen3tts.builder.weights import Linear, Numerics
from wyoming_qwen3tts.runtime.manifest import QuantizationReport

_PREFIX = "talker.code_predictor"


@dataclass(frozen=True)
class _Inputs:
    """The graph's inputs."""

    hidden: Value
    code0: Value
    uniforms: Value
    temperature: Value
    top_k: Value
    max_top_k: Value
    top_p: Value
    forced_codes: Value


@dataclass(frozen=True)
class _Weights:
    """The graph's weights."""

    stack: Stack
    heads: tuple[Linear, ...]
    table: Value
    """((G - 1) * C, width): inputs of the steps; group 0 first, then groups 1 .. G-2."""
    projection: tuple[Linear, Value] | None
    """Weight and bias from talker width to predictor width."""
    cosines: Value
    sines: Value


@dataclass(frozen=True)
class _Projection:
    """``small_to_mtp_projection`` as the checkpoint has it."""

    weight: Float32Array
    """(width, talker width)."""
    bias: Float32Array
    """(width,)."""


@dataclass(frozen=True)
class _Sampling:
    """Sampling controls, prepared once for all steps."""

    temperature: Value
    """(B, 1)."""
    in_top_k: Value
    """(B, max_top_k) bool: ranks that top-k keeps."""
    top_p: Value
    """(B, 1)."""
    max_top_k: Value
    """(1,)."""
    uniforms: list[Value]
    """(B, 1) for each step."""
    forced: list[Value]
    """(B, 1) for each step."""


def build_code_predictor(
    main: TensorFile,
    config: CodePredictorConfig,
    precision: CodePredictorPrecision,
    numerics: Numerics,
    directory: Path,
) -> tuple[QuantizationReport, ...]:
    """Write ``code_predictor.onnx`` and its data file into ``directory``.

    Raises:
        CheckpointError: A tensor is missing or has another shape.
        BuildError: A weight cannot be quantised.
    """
    with GraphBuilder("code_predictor", directory) as graph:
        writer = LayerWriter(graph, numerics)
        inputs = _declare_inputs(graph, config)
        weights = _store_weights(writer, main, config, precision)
        codes, logits = _unroll(writer, config, inputs, weights)
        steps = config.num_code_groups - 1
        graph.output(graph.op("Concat", codes, axis=1), "codes", np.int64, ["B", steps])
        graph.output(
            graph.op("Concat", [_unsqueeze(graph, scores) for scores in logits], axis=1),
            "group_logits",
            np.float32,
            ["B", steps, config.codebook_size],
        )
        graph.save()
        return writer.reports()


def _declare_inputs(graph: GraphBuilder, config: CodePredictorConfig) -> _Inputs:
    steps = config.num_code_groups - 1
    return _Inputs(
        hidden=graph.input("hidden", np.float32, ["B", config.talker_hidden_size]),
        code0=graph.input("code0", np.int64, ["B"]),
        uniforms=graph.input("uniforms", np.float32, ["B", steps]),
        temperature=graph.input("temperature", np.float32, ["B"]),
        top_k=graph.input("top_k", np.int64, ["B"]),
        max_top_k=graph.input("max_top_k", np.int64, [1]),
        top_p=graph.input("top_p", np.float32, ["B"]),
        forced_codes=graph.input("forced_codes", np.int64, ["B", steps]),
    )


def _store_weights(
    writer: LayerWriter,
    main: TensorFile,
    config: CodePredictorConfig,
    precision: CodePredictorPrecision,
) -> _Weights:
    transformer = config.transformer
    cosines, sines = writer.rotary(transformer, config.num_code_groups)
    stack = writer.stack_weights(main, f"{_PREFIX}.model", transformer, precision.layers)
    heads = tuple(
        writer.linear_weight(
            f"lm_head.{step}",
            main.read(
                f"{_PREFIX}.lm_head.{step}.weight", (config.codebook_size, transformer.hidden_size)
            ),
            precision.heads,
            part="heads",
        )
        for step in range(config.num_code_groups - 1)
    )
    scale = writer.numerics.residual_scale
    folded = _read_projection(main, config)
    tables = []
    for rows in _embedding_tables(main, config):
        inputs = rows if folded is None else rows @ folded.weight.T + folded.bias
        tables.append((inputs * scale).astype(writer.numerics.table_type))
    table = writer.graph.weight("input_embeddings", np.concatenate(tables))
    projection = None
    if folded is not None:
        name = "small_to_mtp_projection"
        projection = (
            writer.linear_weight(name, folded.weight * scale, precision.projection, "projection"),
            writer.vector(f"{name}.bias", folded.bias * scale),
        )
    return _Weights(stack, heads, table, projection, cosines, sines)


def _read_projection(main: TensorFile, config: CodePredictorConfig) -> _Projection | None:
    """Read the projection; None where both widths are equal."""
    if not config.has_projection:
        return None
    name, width = f"{_PREFIX}.small_to_mtp_projection", config.transformer.hidden_size
    return _Projection(
        main.read(f"{name}.weight", (width, config.talker_hidden_size)),
        main.read(f"{name}.bias", (width,)),
    )


def _embedding_tables(main: TensorFile, config: CodePredictorConfig) -> Iterator[Float32Array]:
    """Yield the (C, D) tables of the codes that are fed in: groups 0 .. G-2."""
    codes, width = config.codebook_size, config.talker_hidden_size
    vocabulary = (config.talker_vocab_size, width)
    yield main.read("talker.model.codec_embedding.weight", vocabulary)[:codes]
    for step in range(config.num_code_groups - 2):
        yield main.read(f"{_PREFIX}.model.codec_embedding.{step}.weight", (codes, width))


def _unroll(
    writer: LayerWriter, config: CodePredictorConfig, inputs: _Inputs, weights: _Weights
) -> tuple[list[Value], list[Value]]:
    """Write all steps; return the codes (B, 1) and scores (B, C) of each."""
    graph = writer.graph
    num_lanes = graph.op("Shape", [inputs.code0])
    sampling = _prepare_sampling(graph, config, inputs)
    code0 = _embed(writer, weights.table, inputs.code0)
    x = graph.op("Concat", [_project(writer, inputs.hidden, weights), code0], axis=1)
    cache, codes, logits = None, [], []
    for step in range(config.num_code_groups - 1):
        with graph.scope(f"group.{step + 1}"):
            last = graph.op("Expand", [graph.constant([step + 1], np.int32), num_lanes])
            total = graph.constant(step + 2, np.int32)
            positions = Positions(last, total, weights.cosines, weights.sines)
            hidden, cache = writer.run_stack(x, weights.stack, cache, positions)
            scores = writer.as_float32(writer.linear(hidden, weights.heads[step]))
            code = _draw(graph, scores, sampling, step)
            codes.append(code)
            logits.append(scores)
            if step + 1 < config.num_code_groups - 1:
                first_row = graph.constant((step + 1) * config.codebook_size, np.int64)
                row = graph.op("Squeeze", [graph.op("Add", [code, first_row]), _axis(graph)])
                x = _embed(writer, weights.table, row)
    return codes, logits


def _project(writer: LayerWriter, hidden: Value, weights: _Weights) -> Value:
    """Return the talker's vector as the first input (B, 1, width)."""
    if weights.projection is None:
        return _unsqueeze(writer.graph, writer.as_residual(hidden))
    weight, bias = weights.projection
    x = writer.linear(writer.as_compute_type(hidden), weight)
    return _unsqueeze(writer.graph, writer.graph.op("Add", [x, bias]))


def _embed(writer: LayerWriter, table: Value, rows: Value) -> Value:
    """Return rows (B,) of the table as inputs (B, 1, width)."""
    found = writer.graph.op("Gather", [table, rows], axis=0)
    if writer.numerics.table_type is not writer.numerics.compute_type:
        found = writer.graph.cast(found, writer.numerics.compute_type)
    return _unsqueeze(writer.graph, found)


def _prepare_sampling(
    graph: GraphBuilder, config: CodePredictorConfig, inputs: _Inputs
) -> _Sampling:
    steps = config.num_code_groups - 1
    zero, one = graph.constant(0, np.int64), graph.constant(1, np.int64)
    count = graph.op("Squeeze", [inputs.max_top_k])
    ranks = graph.op("Range", [zero, count, one])
    return _Sampling(
        temperature=_unsqueeze(graph, inputs.temperature),
        in_top_k=graph.op("Less", [ranks, _unsqueeze(graph, inputs.top_k)]),
        top_p=_unsqueeze(graph, inputs.top_p),
        max_top_k=inputs.max_top_k,
        uniforms=graph.ops("Split", [inputs.uniforms], steps, axis=1, num_outputs=steps),
        forced=graph.ops("Split", [inputs.forced_codes], steps, axis=1, num_outputs=steps),
    )


def _draw(graph: GraphBuilder, scores: Value, sampling: _Sampling, step: int) -> Value:
    """Draw one code per lane from scores (B, C): (B, 1)."""
    axis = _axis(graph)
    values, candidates = graph.ops("TopK", [scores, sampling.max_top_k], 2, axis=-1)
    best = graph.op("ReduceMax", [values, axis], keepdims=1)
    relative = graph.op("Div", [graph.op("Sub", [values, best]), sampling.temperature])
    zero = graph.constant(0.0, np.float32)
    weights = graph.op("Where", [sampling.in_top_k, graph.op("Exp", [relative]), zero])
    cumulative = graph.op("CumSum", [weights, graph.constant(1, np.int64)])
    total = graph.op("ReduceMax", [cumulative, axis], keepdims=1)
    before = graph.op("Sub", [cumulative, weights])
    kept = graph.op("Less", [before, graph.op("Mul", [sampling.top_p, total])])
    kept_total = graph.op(
        "ReduceMax", [graph.op("Where", [kept, cumulative, zero]), axis], keepdims=1
    )
    threshold = graph.op("Mul", [sampling.uniforms[step], kept_total])
    passed = graph.cast(graph.op("Less", [cumulative, threshold]), np.int64)
    rank = graph.op("ReduceSum", [passed, axis], keepdims=1)
    drawn = graph.op("GatherElements", [candidates, rank], axis=1)
    forced = sampling.forced[step]
    is_free = graph.op("Less", [forced, graph.constant(0, np.int64)])
    return graph.op("Where", [is_free, drawn, forced])


def _axis(graph: GraphBuilder) -> Value:
    return graph.constant([1], np.int64)


def _unsqueeze(graph: GraphBuilder, x: Value) -> Value:
    """Return (B, ...) as (B, 1, ...)."""
    return graph.op("Unsqueeze", [x, _axis(graph)])
