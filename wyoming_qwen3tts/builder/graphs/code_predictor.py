"""The code predictor's graph: one run makes groups 1 .. G-1 of a frame.

The graph unrolls all G - 1 steps, with the sampling between them and a small KV cache inside; the
steps share one copy of the weights. The caller supplies the randomness: ``uniforms`` (B, G-1), one
for each code, where 0 selects the most probable code. ``forced_codes`` (B, G-1) of 0 or more
replace the sampled code, for teacher-forced measurements.

Sampling follows the official order (temperature, top-k, top-p, one multinomial draw):

1. TopK gives scores v and codes, best first; e = exp((v - v[0]) / temperature), 0 from rank
   top-k on
2. c = cumulative sum of e; a code is kept while the sum before it is below top-p of the total
3. the sampled code is the first one for which c reaches ``uniform`` times the kept total

A lane with scores that are not finite gets the code -1 in every group.

Where the talker is wider than the predictor, the projection between them is folded into the
embedding tables; the graph projects only the talker's hidden vector.
"""

from pathlib import Path

import numpy as np

from wyoming_qwen3tts.arrays import AnyArray, Float32Array
from wyoming_qwen3tts.builder.checkpoint import TensorFile
from wyoming_qwen3tts.builder.config import CodePredictorConfig
from wyoming_qwen3tts.builder.graphs.graph import GraphBuilder, Value
from wyoming_qwen3tts.builder.graphs.lm import Decoder, WeightWriter
from wyoming_qwen3tts.builder.recipe import Recipe

_PREFIX = "talker.code_predictor"


def build_code_predictor(
    main: TensorFile, config: CodePredictorConfig, recipe: Recipe, directory: Path
) -> None:
    """Write ``code_predictor.onnx`` and its data file."""
    with GraphBuilder("code_predictor", directory) as graph:
        _CodePredictor(graph, main, config, recipe).build()


class _CodePredictor:
    """One code predictor graph under construction."""

    def __init__(
        self, graph: GraphBuilder, main: TensorFile, config: CodePredictorConfig, recipe: Recipe
    ) -> None:
        self.graph, self.main, self.config = graph, main, config
        self.precision = recipe.code_predictor
        self.table_type = np.float32 if recipe.embeddings == "fp32" else np.float16
        self.writer = WeightWriter(graph, recipe.block_size)
        self.num_steps = config.num_code_groups - 1

    def build(self) -> None:
        graph, writer, config, steps = self.graph, self.writer, self.config, self.num_steps
        hidden = graph.input("hidden", np.float32, ["B", config.talker_hidden_size])
        code0 = graph.input("code0", np.int64, ["B"])
        uniforms = graph.input("uniforms", np.float32, ["B", steps])
        temperature = graph.input("temperature", np.float32, ["B"])
        top_k = graph.input("top_k", np.int64, ["B"])
        max_top_k = graph.input("max_top_k", np.int64, [1])
        top_p = graph.input("top_p", np.float32, ["B"])
        forced_codes = graph.input("forced_codes", np.int64, ["B", steps])

        tables = writer.rotary(config.transformer, config.num_code_groups)
        layers = self.precision.layers
        decoder = Decoder(writer, self.main, f"{_PREFIX}.model", config.transformer, layers)
        shape = (config.codebook_size, config.transformer.hidden_size)
        heads = []
        for step in range(steps):
            head = self.main.read(f"{_PREFIX}.lm_head.{step}.weight", shape)
            heads.append(writer.linear(f"lm_head.{step}", head, self.precision.heads))
        projection = self._read_projection()
        table = graph.weight("input_embeddings", self._embeddings(projection))
        if projection is not None:
            name = "small_to_mtp_projection"
            weight, bias = projection
            stored = writer.linear(name, weight, self.precision.projection)
            hidden = stored(hidden) + writer.vector(f"{name}.bias", bias)

        num_lanes = graph.op("Shape", code0)
        ranks = graph.op("Range", 0, graph.op("Squeeze", max_top_k), 1)
        in_top_k = graph.op("Less", ranks, self._unsqueeze(top_k))  # (B, max_top_k)
        temperature, top_p = self._unsqueeze(temperature), self._unsqueeze(top_p)
        sampling = (max_top_k, in_top_k, temperature, top_p)
        uniform = graph.ops("Split", uniforms, outputs=steps, axis=1, num_outputs=steps)
        forced = graph.ops("Split", forced_codes, outputs=steps, axis=1, num_outputs=steps)

        x = [self._unsqueeze(hidden), self._embed(table, code0)]
        inputs, cache, codes, scores = graph.op("Concat", x, axis=1), None, [], []
        for step in range(steps):
            with graph.scope(f"group.{step + 1}"):
                last = graph.op("Expand", np.array([step + 1], np.int32), num_lanes)
                positions = (last, graph.constant(step + 2, np.int32), *tables)
                y, cache = decoder.run(inputs, cache, positions)
                scores.append(heads[step](y))
                sampled = self._sample(scores[-1], uniform[step], sampling)
                is_free = graph.op("Less", forced[step], 0)
                codes.append(graph.op("Where", is_free, sampled, forced[step]))
                if step + 1 < steps:
                    row = codes[-1] + (step + 1) * config.codebook_size
                    inputs = self._embed(table, graph.op("Squeeze", row, [1]))
        all_scores = graph.op("Concat", [self._unsqueeze(s) for s in scores], axis=1)
        # A sum is finite only where all of its terms are.
        total = graph.op("Abs", graph.op("ReduceSum", all_scores, [1, 2], keepdims=0))
        is_finite = self._unsqueeze(graph.op("Less", total, np.float32(np.inf)))
        all_codes = graph.op("Where", is_finite, graph.op("Concat", codes, axis=1), -1)
        graph.output(all_codes, "codes", np.int64, ["B", steps])
        graph.output(all_scores, "group_logits", np.float32, ["B", steps, config.codebook_size])

    def _read_projection(self) -> tuple[Float32Array, Float32Array] | None:
        """Return weight (width, talker width) and bias; None where both widths are equal."""
        if not self.config.has_projection:
            return None
        name, width = f"{_PREFIX}.small_to_mtp_projection", self.config.transformer.hidden_size
        weight = self.main.read(f"{name}.weight", (width, self.config.talker_hidden_size))
        return weight, self.main.read(f"{name}.bias", (width,))

    def _embeddings(self, projection: tuple[Float32Array, Float32Array] | None) -> AnyArray:
        """Return ((G - 1) C, width): inputs of the steps, groups 0 .. G-2 one below the other."""
        codes, width = self.config.codebook_size, self.config.talker_hidden_size
        names = {"talker.model.codec_embedding.weight": self.config.talker_vocab_size}
        for step in range(self.num_steps - 1):
            names[f"{_PREFIX}.model.codec_embedding.{step}.weight"] = codes
        tables = []
        for name, num_rows in names.items():
            rows = self.main.read(name, (num_rows, width))[:codes]
            folded = rows if projection is None else rows @ projection[0].T + projection[1]
            tables.append(folded.astype(self.table_type))
        return np.concatenate(tables)

    def _embed(self, table: Value, rows: Value) -> Value:
        """Return rows (B,) of the table as inputs (B, 1, width)."""
        found = self.graph.op("Gather", table, rows, axis=0)
        if self.table_type is not np.float32:
            found = self.graph.cast(found, np.float32)
        return self._unsqueeze(found)

    def _sample(self, scores: Value, uniform: Value, sampling: tuple[Value, ...]) -> Value:
        """Sample one code per lane (B, 1) from scores (B, C)."""
        op, (max_top_k, in_top_k, temperature, top_p) = self.graph.op, sampling
        values, candidates = self.graph.ops("TopK", scores, max_top_k, outputs=2, axis=-1)
        best = op("ReduceMax", values, [1], keepdims=1)
        exponentials = op("Exp", (values - best) / temperature)
        weights = op("Where", in_top_k, exponentials, 0.0)
        cumulative = op("CumSum", weights, 1)
        total = op("ReduceMax", cumulative, [1], keepdims=1)
        kept = op("Less", cumulative - weights, top_p * total)
        kept_sums = op("Where", kept, cumulative, 0.0)
        threshold = uniform * op("ReduceMax", kept_sums, [1], keepdims=1)
        below = self.graph.cast(op("Less", cumulative, threshold), np.int64)
        rank = op("ReduceSum", below, [1], keepdims=1)
        return op("GatherElements", candidates, rank, axis=1)

    def _unsqueeze(self, x: Value) -> Value:
        """Return (B, ...) as (B, 1, ...)."""
        return self.graph.op("Unsqueeze", x, [1])
