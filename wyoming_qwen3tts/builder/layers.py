"""Blocks that the talker and the code predictor share: Qwen3 decoder layers.

::

    x ── input_norm ── qkv ── split ─ q_norm ─┐
    │                               ─ k_norm ─┼─ GroupQueryAttention ── output ──┐
    │                               ── v ─────┘   (rotary, cache)                │
    └────────────────────────────────────────────────────────────────────── + ◄──┘
                                                                            │
    ┌───────────────────────────────────────────────────────────────────────┤
    └─ post_norm ── gate_up ── split ─ silu(gate) · up ── down ── + ◄───────┘

An addition and the norm after it are one operator. Not everything that the operator schemas offer
works on the CPU: GroupQueryAttention's own q/k norms and SwiGLU do not, and MatMulNBits inside
a branch is not prepacked. The talker's three-axis rotary positions are always equal, so they are
plain rotary positions.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from wyoming_qwen3tts.arrays import Float32Array
from wyoming_qwen3tts.builder.checkpoint import TensorFile
from wyoming_qwen3tts.builder.config import TransformerConfig
from wyoming_qwen3tts.builder.graph import MICROSOFT_DOMAIN, NONE, Value
from wyoming_qwen3tts.builder.recipe import Precision
from wyoming_qwen3tts.builder.weights import Linear, Numerics, WeightWriter

__all__ = ["CachePair", "LayerWeights", "LayerWriter", "Numerics", "Positions", "Stack"]


@dataclass(frozen=True)
class LayerWeights:
    """Stored weights of one decoder layer."""

    input_norm: Value
    qkv: Linear
    query_norm: Value
    key_norm: Value
    output: Linear
    post_norm: Value
    gate_up: Linear
    down: Linear


@dataclass(frozen=True)
class Stack:
    """Stored weights of all decoder layers."""

    config: TransformerConfig
    layers: tuple[LayerWeights, ...]
    final_norm: Value


class CachePair(NamedTuple):
    """Keys and values of one layer, each (B, H, C, K)."""

    key: Value
    value: Value


@dataclass(frozen=True)
class Positions:
    """Where the new positions stand."""

    last: Value
    """(B,) int32: index of the last position of each lane after appending."""
    total: Value
    """int32 scalar: the largest of ``last``, plus 1."""
    cosines: Value
    """(max positions, K / 2)."""
    sines: Value


class LayerWriter(WeightWriter):
    """Writes shared blocks into one graph."""

    def as_residual(self, x: Value) -> Value:
        """Return a float32 input of the first layer as it flows through the layers."""
        scale = self.numerics.residual_scale
        if scale != 1:
            x = self.graph.op("Mul", [x, self.graph.constant(scale, np.float32)])
        return self.as_compute_type(x)

    def rms_norm(self, x: Value, weight: Value, eps: float) -> Value:
        """Return x (..., D) divided by its root mean square, times the weight."""
        return self.graph.op(
            "SimplifiedLayerNormalization", [x, weight], axis=-1, epsilon=eps, stash_type=1
        )

    def add_and_norm(
        self, residual: Value, x: Value, weight: Value, eps: float
    ) -> tuple[Value, Value]:
        """Return the norm of the sum, and the sum."""
        normed, _, _, total = self.graph.ops(
            "SkipSimplifiedLayerNormalization",
            [residual, x, weight],
            [None, NONE, NONE, None],
            domain=MICROSOFT_DOMAIN,
            epsilon=eps,
        )
        return normed, total

    def stack_weights(
        self, tensors: TensorFile, prefix: str, config: TransformerConfig, precision: Precision
    ) -> Stack:
        """Read and store all layers below ``prefix`` (such as ``talker.model``)."""
        layers = []
        for index in range(config.num_layers):
            layer = f"layers.{index}"
            layers.append(
                self._layer_weights(tensors, f"{prefix}.{layer}", layer, config, precision)
            )
        final_norm = tensors.read(f"{prefix}.norm.weight", (config.hidden_size,))
        return Stack(config, tuple(layers), self.vector("norm", final_norm))

    def _layer_weights(
        self,
        tensors: TensorFile,
        source: str,
        name: str,
        config: TransformerConfig,
        precision: Precision,
    ) -> LayerWeights:
        width, inner = config.hidden_size, config.intermediate_size
        outputs = {
            "self_attn.q_proj": config.query_size,
            "self_attn.k_proj": config.kv_size,
            "self_attn.v_proj": config.kv_size,
            "mlp.gate_proj": inner,
            "mlp.up_proj": inner,
        }

        residual_scale, mlp_scale = self.numerics.residual_scale, self.numerics.mlp_scale

        def packed(target: str, *parts: str) -> Linear:
            """Store several weights with the same input as one."""
            arrays = [tensors.read(f"{source}.{p}.weight", (outputs[p], width)) for p in parts]
            arrays[-1] *= mlp_scale if parts[-1] == "mlp.up_proj" else 1
            return self.linear_weight(
                f"{name}.{target}", np.concatenate(arrays), precision, "layers"
            )

        def single(target: str, num_inputs: int, scale: float) -> Linear:
            array = tensors.read(f"{source}.{target}.weight", (width, num_inputs)) * scale
            return self.linear_weight(f"{name}.{target}", array, precision, "layers")

        def norm(target: str, size: int) -> Value:
            return self.vector(
                f"{name}.{target}", tensors.read(f"{source}.{target}.weight", (size,))
            )

        return LayerWeights(
            input_norm=norm("input_layernorm", width),
            qkv=packed(
                "self_attn.qkv_proj", "self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"
            ),
            query_norm=norm("self_attn.q_norm", config.head_size),
            key_norm=norm("self_attn.k_norm", config.head_size),
            output=single("self_attn.o_proj", config.query_size, residual_scale),
            post_norm=norm("post_attention_layernorm", width),
            gate_up=packed("mlp.gate_up_proj", "mlp.gate_proj", "mlp.up_proj"),
            down=single("mlp.down_proj", inner, residual_scale / mlp_scale),
        )

    def rotary(self, config: TransformerConfig, num_positions: int) -> tuple[Value, Value]:
        """Store the cosine and sine tables, (num_positions, K / 2) each."""
        cosines, sines = rotary_tables(config, num_positions)
        return self.vector("rotary.cosines", cosines), self.vector("rotary.sines", sines)

    def run_stack(
        self,
        x: Value,
        stack: Stack,
        past: Sequence[CachePair] | None,
        positions: Positions,
        present: Sequence[CachePair] | None = None,
    ) -> tuple[Value, list[CachePair]]:
        """Run all layers.

        Args:
            x: (B, T, D) inputs, as :meth:`as_residual` makes them.
            stack: The weights.
            past: Cache of the earlier positions, None before the first.
            positions: Where x stands.
            present: Graph outputs for the new cache, None for values inside the graph.

        Returns:
            The normed vectors (B, D) of the last position, and the new cache.
        """
        config = stack.config
        eps = config.norm_eps * self.numerics.residual_scale**2
        residual = x
        normed = self.rms_norm(x, stack.layers[0].input_norm, eps)
        next_norms = [*(layer.input_norm for layer in stack.layers[1:]), stack.final_norm]
        new_cache = []
        for index, layer in enumerate(stack.layers):
            with self.graph.scope(f"layers.{index}"):
                attended, pair = self._attention(
                    normed,
                    layer,
                    config,
                    past[index] if past else CachePair(NONE, NONE),
                    positions,
                    present[index] if present else None,
                )
                new_cache.append(pair)
                if index == config.num_layers - 1:
                    # Only the last position is asked for: its MLP is the only one needed.
                    attended, residual = self._last(attended), self._last(residual)
                attended = self.linear(attended, layer.output)
                normed, residual = self.add_and_norm(residual, attended, layer.post_norm, eps)
                change = self._mlp(normed, layer)
                normed, residual = self.add_and_norm(residual, change, next_norms[index], eps)
        return normed, new_cache

    def _last(self, x: Value) -> Value:
        """Return the last position (B, D) of x (B, T, D)."""
        return self.graph.op("Gather", [x, self.graph.constant(-1, np.int64)], axis=1)

    def _attention(
        self,
        x: Value,
        layer: LayerWeights,
        config: TransformerConfig,
        past: CachePair,
        positions: Positions,
        present: CachePair | None,
    ) -> tuple[Value, CachePair]:
        graph = self.graph
        sizes = graph.constant([config.query_size, config.kv_size, config.kv_size], np.int64)
        query, key, value = graph.ops("Split", [self.linear(x, layer.qkv), sizes], 3, axis=-1)
        query = self._head_norm(query, layer.query_norm, config, config.num_heads)
        key = self._head_norm(key, layer.key_norm, config, config.num_kv_heads)
        attended, new_key, new_value = graph.ops(
            "GroupQueryAttention",
            [
                *(query, key, value, past.key, past.value),
                *(positions.last, positions.total, positions.cosines, positions.sines),
            ],
            [None, present.key if present else None, present.value if present else None],
            domain=MICROSOFT_DOMAIN,
            num_heads=config.num_heads,
            kv_num_heads=config.num_kv_heads,
            do_rotary=1,
            rotary_interleaved=0,
        )
        return attended, CachePair(new_key, new_value)

    def _head_norm(
        self, x: Value, weight: Value, config: TransformerConfig, num_heads: int
    ) -> Value:
        """Norm each head of x (B, T, H * K) by itself."""
        constant = self.graph.constant
        heads = constant([0, -1, num_heads, config.head_size], np.int64)
        joined = constant([0, -1, num_heads * config.head_size], np.int64)
        split = self.graph.op("Reshape", [x, heads])
        normed = self.rms_norm(split, weight, config.norm_eps)
        return self.graph.op("Reshape", [normed, joined])

    def _mlp(self, x: Value, layer: LayerWeights) -> Value:
        gate, up = self.graph.ops(
            "Split", [self.linear(x, layer.gate_up)], 2, axis=-1, num_outputs=2
        )
        # QuickGelu with alpha 1 is SiLU, in one operator.
        activated = self.graph.op("QuickGelu", [gate], domain=MICROSOFT_DOMAIN, alpha=1.0)
        return self.linear(self.graph.op("Mul", [activated, up]), layer.down)


def rotary_tables(
    config: TransformerConfig, num_positions: int
) -> tuple[Float32Array, Float32Array]:
    """Return cosines and sines (num_positions, K / 2) of plain half-split rotary positions."""
    exponents = np.arange(0, config.head_size, 2) / config.head_size
    angles = np.outer(np.arange(num_positions), config.rope_theta**-exponents)
    return np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)
