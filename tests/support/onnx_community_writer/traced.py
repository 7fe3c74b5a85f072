"""Decoder layers as a trace of the official modules leaves them: one operator per line of torch.

::

    x ── norm ── q, k, v ── head norms ── rotate ── concatenate the cache ── repeat k, v ──┐
    │    ┌─────────────────────────────────────────────────────────────────────────────────┘
    │    └─ scores ── + mask ── softmax ── · v ── output ── (layer scale) ──┐
    └────────────────────────────────────────────────────────────────────── + ── MLP branch

Talker, code predictor and codec decoder share these layers. Head norms and layer scales are written
where the checkpoint has them.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from wyoming_qwen3tts.arrays import AnyArray, Float32Array
from wyoming_qwen3tts.builder.checkpoint import TensorFile
from wyoming_qwen3tts.builder.config import TransformerConfig
from wyoming_qwen3tts.builder.graphs.graph import INT64_MAX, GraphBuilder, Value
from wyoming_qwen3tts.builder.graphs.lm import KeyValue, WeightWriter
from wyoming_qwen3tts.builder.recipe import Precision


@dataclass(frozen=True)
class Numerics:
    """Types of a bundle of this layout."""

    compute_type: type[np.floating] = np.float32
    """Type of activations and float weights."""
    table_type: type[np.floating] = np.float32
    """Type of embedding tables."""
    block_size: int = 128


class _Writer(WeightWriter):
    """Stores float weights in the compute type."""

    def __init__(self, graph: GraphBuilder, numerics: Numerics) -> None:
        super().__init__(graph, numerics.block_size)
        self._dtype = numerics.compute_type

    def vector(self, name: str, array: AnyArray) -> Value:
        return self.graph.weight(name, array, self._dtype)


class TracedGraph:
    """A graph and the tensors that it is made of, under their names in the checkpoint."""

    def __init__(
        self,
        graph: GraphBuilder,
        tensors: TensorFile,
        numerics: Numerics | None = None,
        precision: Precision = "fp32",
        prefix: str = "",
    ) -> None:
        """Read tensors below ``prefix`` and store large weights in this precision."""
        self.graph = graph
        self.numerics = numerics or Numerics()
        self.op = graph.op
        self._tensors = tensors
        self._precision = precision
        self._prefix = prefix
        self._writer = _Writer(graph, self.numerics)

    def read(self, name: str, *shape: int) -> Float32Array:
        return self._tensors.read(f"{self._prefix}{name}", shape)

    def has(self, name: str) -> bool:
        return f"{self._prefix}{name}" in self._tensors.shapes

    def store(self, name: str, array: AnyArray) -> Value:
        return self._writer.vector(name, array)

    def stored(self, name: str, *shape: int) -> Value:
        """Read a tensor and store it."""
        return self.store(name, self.read(name, *shape))

    def number(self, value: float) -> "np.floating":
        """Return a scalar of the compute type."""
        return self.numerics.compute_type(value)

    def cast(self, x: Value) -> Value:
        """Return a float32 value in the compute type."""
        is_float32 = self.numerics.compute_type is np.float32
        return x if is_float32 else self.graph.cast(x, self.numerics.compute_type)

    def linear(self, x: Value, name: str, num_inputs: int, num_outputs: int) -> Value:
        """Multiply x (..., K) by a weight (N, K), and add its bias if there is one."""
        weight = self.read(f"{name}.weight", num_outputs, num_inputs)
        product = self._writer.linear(name, weight, self._precision)(x)
        if not self.has(f"{name}.bias"):
            return product
        return product + self.stored(f"{name}.bias", num_outputs)

    def embed(self, name: str, num_rows: int, width: int, ids: Value) -> Value:
        """Look ids up in a table, which is stored in the numerics' table type."""
        numerics, rows = self.numerics, self.read(f"{name}.weight", num_rows, width)
        found = self.op("Gather", self.graph.weight(name, rows, numerics.table_type), ids, axis=0)
        if numerics.table_type is numerics.compute_type:
            return found
        return self.graph.cast(found, numerics.compute_type)

    def slice(self, x: Value, start: int, end: int, axis: int) -> Value:
        """Return positions ``start`` to ``end`` of an axis."""
        return self.op("Slice", x, [start], [end], [axis])

    def norm(self, x: Value, name: str, width: int, eps: float) -> Value:
        """Return x (..., D) divided by its root mean square, times the weight."""
        wide = x if self.numerics.compute_type is np.float32 else self.graph.cast(x, np.float32)
        mean = self.op("ReduceMean", self.op("Pow", wide, 2.0), [-1], keepdims=1)
        normed = wide * self.op("Reciprocal", self.op("Sqrt", mean + eps))
        return self.stored(f"{name}.weight", width) * self.cast(normed)

    def silu(self, x: Value) -> Value:
        return x * self.op("Sigmoid", x)

    def rotary_tables(
        self, positions: Value, num_axes: int, config: TransformerConfig
    ) -> tuple[Value, Value]:
        """Return cosines and sines, (B, 1, T, K) each, of positions (axes, B, T).

        Channels take turns between the axes, as in the official interleaved rotary embedding.
        """
        half = config.head_size // 2
        inverse = (config.rope_theta ** -(np.arange(half) / half)).astype(np.float32)
        channels = self.op("Gather", positions, np.arange(half) % num_axes, axis=0)
        channels = self.op("Transpose", channels, perm=[1, 2, 0])  # (B, T, K / 2)
        angles = self.graph.cast(channels, np.float32) * inverse
        doubled = self.op("Unsqueeze", self.op("Concat", angles, angles, axis=-1), [1])
        return self.cast(self.op("Cos", doubled)), self.cast(self.op("Sin", doubled))

    def causal_mask(self, allowed: Value) -> Value:
        """Turn a bool mask into the one that is added to scores."""
        lowest = np.finfo(self.numerics.compute_type).min
        return self.op("Where", allowed, self.number(0.0), self.number(float(lowest)))

    def constant_mask(self, num_positions: int, window: int | None = None) -> Value:
        """Return the (T, T) mask of a sequence of fixed length."""
        age = np.arange(num_positions)[:, None] - np.arange(num_positions)[None]
        allowed = (age >= 0) & (age < (window or num_positions))
        return self.causal_mask(self.graph.constant(allowed))

    def constant_tables(self, num_positions: int, config: TransformerConfig) -> tuple[Value, Value]:
        """Return the rotary tables of a sequence of fixed length."""
        positions = self.graph.constant(np.arange(num_positions)[None, None])
        return self.rotary_tables(positions, 1, config)

    def layers(
        self,
        x: Value,
        name: str,
        config: TransformerConfig,
        tables: tuple[Value, Value],
        mask: Value,
        past: Sequence[KeyValue] | None = None,
    ) -> tuple[Value, list[KeyValue]]:
        """Run all layers below ``name`` and the last norm over x (B, T, D); return the cache."""
        width, inner, eps = config.hidden_size, config.intermediate_size, config.norm_eps
        present = []
        for index in range(config.num_layers):
            layer = f"{name}.layers.{index}"
            with self.graph.scope(layer):
                normed = self.norm(x, f"{layer}.input_layernorm", width, eps)
                before = past[index] if past else None
                mixed, cache = self._attention(
                    normed, f"{layer}.self_attn", config, tables, mask, before
                )
                present.append(cache)
                x = x + self._scaled(mixed, f"{layer}.self_attn_layer_scale.scale", width)
                normed = self.norm(x, f"{layer}.post_attention_layernorm", width, eps)
                gate = self.linear(normed, f"{layer}.mlp.gate_proj", width, inner)
                up = self.linear(normed, f"{layer}.mlp.up_proj", width, inner)
                change = self.linear(self.silu(gate) * up, f"{layer}.mlp.down_proj", inner, width)
                x = x + self._scaled(change, f"{layer}.mlp_layer_scale.scale", width)
        return self.norm(x, f"{name}.norm", width, eps), present

    def _attention(
        self,
        x: Value,
        name: str,
        config: TransformerConfig,
        tables: tuple[Value, Value],
        mask: Value,
        past: KeyValue | None,
    ) -> tuple[Value, KeyValue]:
        half = config.head_size // 2
        query = self._rotate(self._heads(x, f"{name}.q", config, config.num_heads), tables, half)
        key = self._rotate(self._heads(x, f"{name}.k", config, config.num_kv_heads), tables, half)
        value = self._heads(x, f"{name}.v", config, config.num_kv_heads)
        if past is not None:
            key = self.op("Concat", past.key, key, axis=2)
            value = self.op("Concat", past.value, value, axis=2)
        scores = query @ self.op("Transpose", self._repeat(key, config), perm=[0, 1, 3, 2])
        scores = scores * self.number(config.head_size**-0.5) + mask
        mixed = self.op("Softmax", scores, axis=-1) @ self._repeat(value, config)
        mixed = self.op("Transpose", mixed, perm=[0, 2, 1, 3])
        mixed = self.op("Reshape", mixed, [0, -1, config.query_size])
        output = self.linear(mixed, f"{name}.o_proj", config.query_size, config.hidden_size)
        return output, KeyValue(key, value)

    def _heads(self, x: Value, name: str, config: TransformerConfig, num_heads: int) -> Value:
        """Return query, key or value (B, H, T, K)."""
        size = num_heads * config.head_size
        projected = self.linear(x, f"{name}_proj", config.hidden_size, size)
        heads = self.op("Reshape", projected, [0, -1, num_heads, config.head_size])
        if self.has(f"{name}_norm.weight"):
            heads = self.norm(heads, f"{name}_norm", config.head_size, config.norm_eps)
        return self.op("Transpose", heads, perm=[0, 2, 1, 3])

    def _rotate(self, x: Value, tables: tuple[Value, Value], half: int) -> Value:
        """Rotate x (B, H, T, K); the pairs are (i, i + K / 2)."""
        first, second = self.slice(x, 0, half, -1), self.slice(x, half, INT64_MAX, -1)
        rotated = self.op("Concat", self.op("Neg", second), first, axis=-1)
        cosines, sines = tables
        return x * cosines + rotated * sines

    def _repeat(self, x: Value, config: TransformerConfig) -> Value:
        """Return x (B, H_kv, S, K) with each head as often as query heads share it."""
        groups = config.num_heads // config.num_kv_heads
        if groups == 1:
            return x
        shape = [1, config.num_kv_heads, groups, 1, config.head_size]
        wide = self.op("Expand", self.op("Unsqueeze", x, [2]), shape)
        return self.op("Reshape", wide, [0, config.num_heads, -1, config.head_size])

    def _scaled(self, x: Value, name: str, width: int) -> Value:
        return self.stored(name, width) * x if self.has(name) else x
