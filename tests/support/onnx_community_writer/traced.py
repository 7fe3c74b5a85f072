"""Decoder layers as a trace of the official modules leaves them: one operator per line of torch.

::

    x ── norm ── q, k, v ── head norms ── rotate ── concatenate the cache ── repeat k, v ──┐
    │    ┌─────────────────────────────────────────────────────────────────────────────────┘
    │    └─ scores ── + mask ── softmax ── · v ── output ── (layer scale) ──┐
    └────────────────────────────────────────────────────────────────────── + ── MLP branch

The code predictor, the talker and the codec decoder share these layers; head norms and layer scales
are there where the checkpoint has them.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from wyoming_qwen3tts.arrays import AnyArray
from wyoming_qwen3tts.builder.checkpoint import TensorFile
from wyoming_qwen3tts.builder.config import TransformerConfig
from wyoming_qwen3tts.builder.graphs.graph import GraphBuilder, Value
from wyoming_qwen3tts.builder.graphs.lm import KeyValue, WeightWriter
from wyoming_qwen3tts.builder.recipe import Precision

_INT64_MAX = np.iinfo(np.int64).max


@dataclass(frozen=True)
class Numerics:
    """Types of a published bundle."""

    compute_type: type[np.floating] = np.float32
    """Type of activations and float weights."""
    table_type: type[np.floating] = np.float32
    """Type of embedding tables."""
    block_size: int = 128


class TracedWriter(WeightWriter):
    """Stores weights in the compute type."""

    def __init__(self, graph: GraphBuilder, numerics: Numerics) -> None:
        """Write into ``graph``."""
        super().__init__(graph, numerics.block_size)
        self.numerics = numerics

    def vector(self, name: str, array: AnyArray) -> Value:
        """Store a float weight."""
        return self.graph.weight(name, array, self.numerics.compute_type)

    def as_compute_type(self, x: Value) -> Value:
        """Return a float32 value in the compute type."""
        compute_type = self.numerics.compute_type
        return x if compute_type is np.float32 else self.graph.cast(x, compute_type)

    def as_float32(self, x: Value) -> Value:
        """Return a value of the compute type in float32."""
        return x if self.numerics.compute_type is np.float32 else self.graph.cast(x, np.float32)


class TracedOps:
    """Small operators, decomposed."""

    def __init__(self, writer: TracedWriter) -> None:
        """Write into the writer's graph, in its compute type."""
        self.writer = writer
        self.graph: GraphBuilder = writer.graph

    def ints(self, *values: int) -> Value:
        """Return an int64 vector: a shape, axes, starts, ends."""
        return self.graph.constant(values, np.int64)

    def number(self, value: float) -> Value:
        """Return a scalar of the compute type."""
        return self.graph.constant(value, self.writer.numerics.compute_type)

    def unsqueeze(self, x: Value, *axes: int) -> Value:
        """Return x with axes of size 1 at these places."""
        return self.graph.op("Unsqueeze", [x, self.ints(*axes)])

    def slice(self, x: Value, start: int, end: int, axis: int) -> Value:
        """Return positions ``start`` to ``end`` of an axis."""
        return self.graph.op("Slice", [x, self.ints(start), self.ints(end), self.ints(axis)])

    def rms_norm(self, x: Value, weight: Value, eps: float) -> Value:
        """Return x (..., D) divided by its root mean square, times the weight."""
        graph = self.graph
        wide = self.writer.as_float32(x)
        square = graph.op("Pow", [wide, graph.constant(2.0, np.float32)])
        mean = graph.op("ReduceMean", [square, self.ints(-1)], keepdims=1)
        root = graph.op("Sqrt", [graph.op("Add", [mean, graph.constant(eps, np.float32)])])
        normed = graph.op("Mul", [wide, graph.op("Reciprocal", [root])])
        return graph.op("Mul", [weight, self.writer.as_compute_type(normed)])

    def silu(self, x: Value) -> Value:
        """Return x * sigmoid(x)."""
        return self.graph.op("Mul", [x, self.graph.op("Sigmoid", [x])])

    def rotary_tables(
        self, positions: Value, config: TransformerConfig, num_axes: int
    ) -> tuple[Value, Value]:
        """Return cosines and sines, (B, 1, T, K) each.

        Args:
            positions: (axes, B, T) int64.
            config: Head width and base.
            num_axes: Rows of ``positions``; channels take turns between them, as in the official
                interleaved three-axis rotary embedding.
        """
        graph, half = self.graph, config.head_size // 2
        axes = graph.constant(np.arange(half) % num_axes, np.int64)
        inverse = config.rope_theta ** -(np.arange(half) / half)
        by_channel = graph.op("Gather", [positions, axes], axis=0)  # (K / 2, B, T)
        by_channel = graph.op("Transpose", [by_channel], perm=[1, 2, 0])
        angles = graph.op(
            "Mul", [graph.cast(by_channel, np.float32), graph.constant(inverse, np.float32)]
        )
        doubled = graph.op("Concat", [angles, angles], axis=-1)
        doubled = self.unsqueeze(doubled, 1)
        cosines, sines = (graph.op(name, [doubled]) for name in ("Cos", "Sin"))
        return self.writer.as_compute_type(cosines), self.writer.as_compute_type(sines)

    def rotate(self, x: Value, tables: tuple[Value, Value], head_size: int) -> Value:
        """Rotate x (B, H, T, K); the pairs are (i, i + K / 2)."""
        graph, half = self.graph, head_size // 2
        first, second = self.slice(x, 0, half, -1), self.slice(x, half, _INT64_MAX, -1)
        turned = graph.op("Concat", [graph.op("Neg", [second]), first], axis=-1)
        cosines, sines = tables
        return graph.op("Add", [graph.op("Mul", [x, cosines]), graph.op("Mul", [turned, sines])])

    def causal_mask(self, allowed: Value) -> Value:
        """Turn a bool mask into the one that is added to scores."""
        lowest = self.number(float(np.finfo(self.writer.numerics.compute_type).min))
        return self.graph.op("Where", [allowed, self.number(0.0), lowest])

    def constant_mask(self, num_positions: int, window: int | None = None) -> Value:
        """Return the (T, T) mask of a sequence of fixed length."""
        age = np.arange(num_positions)[:, None] - np.arange(num_positions)[None]
        allowed = (age >= 0) & (age < (window or num_positions))
        return self.causal_mask(self.graph.constant(allowed))

    def constant_positions(self, num_positions: int) -> Value:
        """Return positions (1, 1, T)."""
        return self.graph.constant(np.arange(num_positions)[None, None], np.int64)


class TracedStack:
    """A stack of decoder layers."""

    def __init__(
        self,
        ops: TracedOps,
        tensors: TensorFile,
        prefix: str,
        config: TransformerConfig,
        precision: Precision,
    ) -> None:
        """Take the layers below ``prefix`` (such as ``talker.model``)."""
        self._ops = ops
        self._graph = ops.graph
        self._tensors = tensors
        self._prefix = prefix
        self._config = config
        self._precision = precision

    def run(
        self,
        x: Value,
        tables: tuple[Value, Value],
        mask: Value,
        past: Sequence[KeyValue] | None = None,
    ) -> tuple[Value, list[KeyValue]]:
        """Run all layers and the last norm over x (B, T, D), every position; return the cache."""
        present = []
        for index in range(self._config.num_layers):
            name = f"{self._prefix}.layers.{index}"
            with self._graph.scope(name):
                x, cache = self._attention(x, name, tables, mask, past[index] if past else None)
                present.append(cache)
                x = self._mlp(x, name)
        return self._norm(x, f"{self._prefix}.norm", self._config.hidden_size), present

    def _attention(
        self,
        x: Value,
        name: str,
        tables: tuple[Value, Value],
        mask: Value,
        past: KeyValue | None,
    ) -> tuple[Value, KeyValue]:
        config, graph = self._config, self._graph
        source = f"{name}.self_attn"
        normed = self._norm(x, f"{name}.input_layernorm", config.hidden_size)
        query = self._heads(normed, source, "q", config.num_heads)
        key = self._heads(normed, source, "k", config.num_kv_heads)
        value = self._heads(normed, source, "v", config.num_kv_heads)
        query = self._ops.rotate(query, tables, config.head_size)
        key = self._ops.rotate(key, tables, config.head_size)
        if past is not None:
            key = graph.op("Concat", past.key, key, axis=2)
            value = graph.op("Concat", past.value, value, axis=2)
        mixed = self._attend(query, self._repeat(key), self._repeat(value), mask)
        output = self._linear(mixed, f"{source}.o_proj", config.query_size, config.hidden_size)
        return self._add(x, output, f"{name}.self_attn_layer_scale"), KeyValue(key, value)

    def _heads(self, x: Value, source: str, kind: str, num_heads: int) -> Value:
        """Return query, key or value (B, H, T, K), normed where the checkpoint has the norm."""
        config, size = self._config, num_heads * self._config.head_size
        projected = self._linear(x, f"{source}.{kind}_proj", config.hidden_size, size)
        heads = self._graph.op(
            "Reshape", [projected, self._ops.ints(0, -1, num_heads, config.head_size)]
        )
        if f"{source}.{kind}_norm.weight" in self._tensors:
            heads = self._norm(heads, f"{source}.{kind}_norm", config.head_size)
        return self._graph.op("Transpose", [heads], perm=[0, 2, 1, 3])

    def _repeat(self, x: Value) -> Value:
        """Return x (B, H_kv, S, K) with each head as often as query heads share it."""
        config = self._config
        groups = config.num_heads // config.num_kv_heads
        if groups == 1:
            return x
        wide = self._graph.op(
            "Expand",
            [
                self._ops.unsqueeze(x, 2),
                self._ops.ints(1, config.num_kv_heads, groups, 1, config.head_size),
            ],
        )
        shape = self._ops.ints(0, config.num_heads, -1, config.head_size)
        return self._graph.op("Reshape", [wide, shape])

    def _attend(self, query: Value, key: Value, value: Value, mask: Value) -> Value:
        """Return (B, T, H K) from query (B, H, T, K) and key, value (B, H, S, K)."""
        graph, config = self._graph, self._config
        turned = graph.op("Transpose", [key], perm=[0, 1, 3, 2])
        scores = graph.op("MatMul", [query, turned])
        scores = graph.op("Mul", [scores, self._ops.number(config.head_size**-0.5)])
        weights = graph.op("Softmax", [graph.op("Add", [scores, mask])], axis=-1)
        mixed = graph.op("Transpose", [graph.op("MatMul", [weights, value])], perm=[0, 2, 1, 3])
        return graph.op("Reshape", [mixed, self._ops.ints(0, -1, config.query_size)])

    def _mlp(self, x: Value, name: str) -> Value:
        config = self._config
        width, inner = config.hidden_size, config.intermediate_size
        normed = self._norm(x, f"{name}.post_attention_layernorm", width)
        gate = self._linear(normed, f"{name}.mlp.gate_proj", width, inner)
        up = self._linear(normed, f"{name}.mlp.up_proj", width, inner)
        product = self._graph.op("Mul", [self._ops.silu(gate), up])
        change = self._linear(product, f"{name}.mlp.down_proj", inner, width)
        return self._add(x, change, f"{name}.mlp_layer_scale")

    def _add(self, x: Value, change: Value, scale_name: str) -> Value:
        if f"{scale_name}.scale" in self._tensors:
            array = self._tensors.read(f"{scale_name}.scale", (self._config.hidden_size,))
            scale = self._ops.writer.vector(f"{scale_name}.scale", array)
            change = self._graph.op("Mul", [scale, change])
        return self._graph.op("Add", [x, change])

    def _linear(self, x: Value, name: str, num_inputs: int, num_outputs: int) -> Value:
        writer = self._ops.writer
        weight = self._tensors.read(f"{name}.weight", (num_outputs, num_inputs))
        return writer.linear(name, weight, self._precision, "layers")(x)

    def _norm(self, x: Value, name: str, width: int) -> Value:
        weight = self._ops.writer.vector(
            f"{name}.weight", self._tensors.read(f"{name}.weight", (width,))
        )
        return self._ops.rms_norm(x, weight, self._config.norm_eps)
