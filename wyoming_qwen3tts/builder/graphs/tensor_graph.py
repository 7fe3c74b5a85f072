"""What the codec's graphs share: tensors under their checkpoint names, attention, and codebooks."""

import math
from typing import Any

import numpy as np

from wyoming_qwen3tts.arrays import AnyArray, Float32Array
from wyoming_qwen3tts.builder.checkpoint import TensorFile
from wyoming_qwen3tts.builder.config import TransformerConfig
from wyoming_qwen3tts.builder.graphs.graph import GraphBuilder, Value

_MASKED = -1e30


class TensorGraph:
    """A graph, the tensors that it is made of, and the operators that the codec graphs share.

    Value names equal the names of the checkpoint's tensors below ``prefix``.
    """

    def __init__(
        self, graph: GraphBuilder, tensors: TensorFile, prefix: str, config: Any = None
    ) -> None:
        self.graph, self.config = graph, config
        self._tensors = tensors
        self._prefix = prefix

    def read(self, name: str, *shape: int) -> Float32Array:
        """Read a tensor of this shape."""
        return self._tensors.read(f"{self._prefix}.{name}", shape)

    def affine(self, name: str, *shape: int) -> tuple[Float32Array, Float32Array]:
        """Read a weight (D_out, ...) of this shape and its bias (D_out,)."""
        return self.read(f"{name}.weight", *shape), self.read(f"{name}.bias", shape[0])

    def stored(self, name: str, *shape: int) -> Value:
        """Read a tensor and store it unchanged."""
        return self.graph.weight(name, self.read(name, *shape))

    def linear(self, x: Value, name: str, weight: AnyArray, bias: AnyArray | None = None) -> Value:
        """Apply a (D_out, D_in) weight, as checkpoints store it, to x (T, D_in) -> (T, D_out)."""
        stored = self.graph.weight(f"{name}.weight", weight.T, np.float32)
        if bias is None:
            return x @ stored
        return self.graph.op("Gemm", x, stored, self.graph.weight(f"{name}.bias", bias, np.float32))

    def conv(
        self, x: Value, name: str, widths: tuple[int, int], taps: int = 1, **attributes: Any
    ) -> Value:
        """Convolve x (1, D_in, T) with the weights ``name``; ``widths`` are D_in and D_out."""
        width_in, width_out = widths[0] // attributes.get("group", 1), widths[1]
        weight = self.stored(f"{name}.weight", width_out, width_in, taps)
        bias = self.stored(f"{name}.bias", width_out)
        return self.graph.op("Conv", x, weight, bias, kernel_shape=[taps], **attributes)

    def codebook(self, name: str, sums: str, rows: int, width: int) -> AnyArray:
        """Return a codebook (C, D), which checkpoints store as sums and counts of training."""
        usage = self.read(f"{name}.cluster_usage", rows)
        return self.read(f"{name}.{sums}", rows, width) / np.maximum(usage, 1e-5)[:, None]

    def layer_norm(self, x: Value, name: str, width: int, epsilon: float) -> Value:
        """Normalize the rows of x (T, D)."""
        scale, shift = (self.stored(f"{name}.{part}", width) for part in ("weight", "bias"))
        return self.graph.op("LayerNormalization", x, scale, shift, axis=-1, epsilon=epsilon)

    def channel_major(self, x: Value) -> Value:
        """Turn (T, D) into (1, D, T)."""
        return self.graph.op("Unsqueeze", self.graph.op("Transpose", x, perm=[1, 0]), [0])

    def time_major(self, x: Value) -> Value:
        """Turn (1, D, T) into (T, D)."""
        return self.graph.op("Transpose", self.graph.op("Squeeze", x, [0]), perm=[1, 0])

    def rotary(
        self, start: Value | int, count: Value, config: TransformerConfig
    ) -> tuple[Value, Value]:
        """Return cosines and sines (1, T, K / 2) of ``count`` positions from ``start`` on.

        Whole turns are taken off in double precision: a float32 angle of position 10000 is wrong
        in the fourth digit.
        """
        graph, half = self.graph, np.arange(0, config.head_size, 2, dtype=np.float64)
        inverse = config.rope_theta ** -(half / config.head_size)
        positions = graph.op("Range", start, graph.op("Add", start, count), 1)
        column = graph.op("Unsqueeze", positions, [0, 2])
        turns = graph.cast(column, np.float64) * (inverse / (2 * math.pi))
        part = turns - graph.op("Floor", turns)
        angles = graph.cast(part, np.float32) * (2 * math.pi)
        return graph.op("Cos", angles), graph.op("Sin", angles)

    def causal_mask(self, num_queries: Value, num_keys: Value, window: int | None) -> Value:
        """Return the additive mask (T, S) of the last T of S positions.

        A query sees itself and earlier positions, at most ``window`` positions in all.
        """
        op = self.graph.op
        queries = op("Unsqueeze", op("Range", num_keys - num_queries, num_keys, 1), [1])
        age = queries - op("Range", 0, num_keys, 1)  # (T, S)
        visible = op("GreaterOrEqual", age, 0)
        if window is not None:
            visible = op("And", visible, op("Less", age, window))
        return op("Where", visible, 0.0, _MASKED)

    def query_key_value(
        self, x: Value, name: str, config: TransformerConfig, tables: tuple[Value, Value]
    ) -> tuple[Value, Value, Value]:
        """Return query (1, H, T, K), scaled, and key and value (1, H_kv, T, K); two are rotated."""
        graph, hidden = self.graph, config.hidden_size
        query = self.read(f"{name}.self_attn.q_proj.weight", config.query_size, hidden)
        key = self.read(f"{name}.self_attn.k_proj.weight", config.kv_size, hidden)
        value = self.read(f"{name}.self_attn.v_proj.weight", config.kv_size, hidden)
        packed = np.concatenate([query / math.sqrt(config.head_size), key, value])
        x = self.linear(x, f"{name}.self_attn.qkv_proj", packed)
        num_heads = config.num_heads + 2 * config.num_kv_heads
        x = graph.op("Reshape", x, [1, -1, num_heads, config.head_size])
        x = graph.op("Transpose", x, perm=[0, 2, 1, 3])
        sizes = [config.num_heads + config.num_kv_heads, config.num_kv_heads]
        rotated, values = graph.ops("Split", x, sizes, outputs=2, axis=1)
        rotated = graph.op("RotaryEmbedding", rotated, *tables)  # pairs (i, i + K / 2)
        sizes = [config.num_heads, config.num_kv_heads]
        queries, keys = graph.ops("Split", rotated, sizes, outputs=2, axis=1)
        return queries, keys, values

    def attend(
        self, query: Value, key: Value, value: Value, mask: Value, config: TransformerConfig
    ) -> Value:
        """Attend with a scaled query (1, H, T, K) to key and value (1, H_kv, S, K): (T, H K)."""
        op, heads, kv_heads = self.graph.op, config.num_heads, config.num_kv_heads
        if kv_heads != heads:
            # One more axis lets each group of query heads meet its key head.
            query = op("Reshape", query, [kv_heads, heads // kv_heads, -1, config.head_size])
            shape = [kv_heads, 1, -1, config.head_size]
            key, value = op("Reshape", key, shape), op("Reshape", value, shape)
        scores = query @ op("Transpose", key, perm=[0, 1, 3, 2]) + mask
        mixed = op("Softmax", scores, axis=-1) @ value
        if kv_heads != heads:
            mixed = op("Reshape", mixed, [1, heads, -1, config.head_size])
        return op("Reshape", op("Transpose", mixed, perm=[0, 2, 1, 3]), [-1, config.query_size])

    def attention_output(self, x: Value, name: str, config: TransformerConfig) -> Value:
        """Project attended heads (T, H K) to (T, hidden), with the layer's scale folded in."""
        shape = (config.hidden_size, config.query_size)
        weight = self.read(f"{name}.self_attn.o_proj.weight", *shape)
        scale = self.read(f"{name}.self_attn_layer_scale.scale", config.hidden_size)
        return self.linear(x, f"{name}.self_attn.o_proj", weight * scale[:, None])
