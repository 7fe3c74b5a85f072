"""The Qwen3 decoder layers of talker and code predictor, and the talker's graph.

One layer::

    x ── input_norm ── qkv ── split ─ q_norm ─┐
    │                               ─ k_norm ─┼─ GroupQueryAttention ── output ──┐
    │                               ── v ─────┘   (rotary, cache)                │
    └────────────────────────────────────────────────────────────────────── + ◄──┘
                                                                            │
    ┌───────────────────────────────────────────────────────────────────────┤
    └─ post_norm ── gate_up ── split ─ silu(gate) · up ── down ── + ◄───────┘

An addition and the norm after it are one operator. The operator schemas offer more than the CPU
provider implements: it has no q/k norms in GroupQueryAttention and no SwiGLU, and it does not
prepack a MatMulNBits inside a branch. The three axes of the talker's rotary positions are always
equal, so the graph uses plain rotary positions.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np

from wyoming_qwen3tts.arrays import AnyArray, Float32Array
from wyoming_qwen3tts.builder.checkpoint import TensorFile
from wyoming_qwen3tts.builder.config import TalkerConfig, TransformerConfig
from wyoming_qwen3tts.builder.graphs.graph import Dim, GraphBuilder, Value
from wyoming_qwen3tts.builder.graphs.quantize import block_size_for, quantize
from wyoming_qwen3tts.builder.recipe import Precision, Recipe

_BITS: Final = {"int8": 8, "int4": 4}


Linear = Callable[[Value], Value]
"""Multiplies x (..., K) by a stored weight: (..., N)."""
Positions = tuple[Value, Value, Value, Value]
"""The last position of each lane after appending (B,) int32, the largest of them plus 1, and the
rotary cosines and sines (max positions, K / 2)."""


class KeyValue(NamedTuple):
    """Keys and values of one layer, each (B, H, C, K)."""

    key: Value
    value: Value


class WeightWriter:
    """Stores weights in one graph, quantised or not."""

    def __init__(self, graph: GraphBuilder, block_size: int) -> None:
        self.graph = graph
        self._block_size = block_size

    def vector(self, name: str, array: AnyArray) -> Value:
        """Store a norm weight, a bias or a table as float32."""
        return self.graph.weight(name, array, np.float32)

    def linear(self, name: str, weight: Float32Array, precision: Precision) -> Linear:
        """Store a weight (N, K)."""
        if precision not in _BITS:
            stored = self.vector(name, weight.T)
            return lambda x: x @ stored
        num_outputs, num_inputs = weight.shape
        bits, block_size = _BITS[precision], block_size_for(num_inputs, self._block_size)
        packed, scales = quantize(weight, bits, block_size)
        blocks = self.graph.weight(f"{name}.blocks", packed)
        values = [blocks, self.graph.weight(f"{name}.scales", scales)]
        # MatMulNBits quantises activations to int8 per block too. Without that (accuracy level 4)
        # it is 2-3 times slower.
        sizes = {"K": num_inputs, "N": num_outputs, "bits": bits, "block_size": block_size}
        return lambda x: self.graph.op("MatMulNBits", x, values, accuracy_level=4, **sizes)

    def rotary(self, config: TransformerConfig, num_positions: int) -> tuple[Value, Value]:
        """Store cosines and sines (num_positions, K / 2) of half-split rotary positions."""
        exponents = np.arange(0, config.head_size, 2) / config.head_size
        angles = np.outer(np.arange(num_positions), config.rope_theta**-exponents)
        cosines = self.vector("rotary.cosines", np.cos(angles))
        return cosines, self.vector("rotary.sines", np.sin(angles))


class _Layer:
    """One decoder layer: its stored weights, and the operators that use them."""

    def __init__(
        self,
        writer: WeightWriter,
        tensors: TensorFile,
        prefix: str,
        name: str,
        config: TransformerConfig,
        precision: Precision,
    ) -> None:
        self._graph, self._config = writer.graph, config
        width, inner = config.hidden_size, config.intermediate_size

        def linear(target: str, num_inputs: int, parts: dict[str, int]) -> Linear:
            """Store weights with the same input as one."""
            read, shapes = tensors.read, {part: (n, num_inputs) for part, n in parts.items()}
            arrays = [read(f"{prefix}.{part}.weight", shape) for part, shape in shapes.items()]
            return writer.linear(f"{name}.{target}", np.concatenate(arrays), precision)

        def norm(target: str, size: int) -> Value:
            weight = tensors.read(f"{prefix}.{target}.weight", (size,))
            return writer.vector(f"{name}.{target}", weight)

        self.input_norm = norm("input_layernorm", width)
        sizes = (config.query_size, config.kv_size, config.kv_size)
        parts = {f"self_attn.{part}_proj": size for part, size in zip("qkv", sizes, strict=True)}
        self._qkv = linear("self_attn.qkv_proj", width, parts)
        self._query_norm = norm("self_attn.q_norm", config.head_size)
        self._key_norm = norm("self_attn.k_norm", config.head_size)
        output = "self_attn.o_proj"
        self.output = linear(output, config.query_size, {output: width})
        self.post_norm = norm("post_attention_layernorm", width)
        parts = {"mlp.gate_proj": inner, "mlp.up_proj": inner}
        self._gate_up = linear("mlp.gate_up_proj", width, parts)
        self._down = linear("mlp.down_proj", inner, {"mlp.down_proj": width})

    def attention(
        self, x: Value, past: KeyValue | None, positions: Positions
    ) -> tuple[Value, KeyValue]:
        """Return the attended heads (B, T, H K) of normed x (B, T, D), and the cache."""
        graph, config = self._graph, self._config
        sizes = [config.query_size, config.kv_size, config.kv_size]
        query, key, value = graph.ops("Split", self._qkv(x), sizes, outputs=3, axis=-1)
        query = self._head_norm(query, self._query_norm, config.num_heads)
        key = self._head_norm(key, self._key_norm, config.num_kv_heads)
        attended, *cache = graph.ops(
            "GroupQueryAttention",
            *(query, key, value, *(past or (None, None)), *positions),
            outputs=3,
            num_heads=config.num_heads,
            kv_num_heads=config.num_kv_heads,
            do_rotary=1,
            rotary_interleaved=0,
        )
        return attended, KeyValue(*cache)

    def _head_norm(self, x: Value, weight: Value, num_heads: int) -> Value:
        """Norm each head of x (B, T, H K) by itself."""
        op, size = self._graph.op, self._config.head_size
        heads = op("Reshape", x, [0, -1, num_heads, size])
        normed = _rms_norm(heads, weight, self._config.norm_eps)
        return op("Reshape", normed, [0, -1, num_heads * size])

    def mlp(self, x: Value) -> Value:
        """Return the MLP's output for normed x."""
        both = self._gate_up(x)
        gate, up = self._graph.ops("Split", both, outputs=2, axis=-1, num_outputs=2)
        # QuickGelu with alpha 1 is SiLU, in one operator.
        return self._down(self._graph.op("QuickGelu", gate, alpha=1.0) * up)


class Decoder:
    """A stack of decoder layers and the norm after it."""

    def __init__(
        self,
        writer: WeightWriter,
        tensors: TensorFile,
        prefix: str,
        config: TransformerConfig,
        precision: Precision,
    ) -> None:
        self._graph, self._config = writer.graph, config
        self._layers = [
            _Layer(writer, tensors, f"{prefix}.layers.{i}", f"layers.{i}", config, precision)
            for i in range(config.num_layers)
        ]
        final_norm = tensors.read(f"{prefix}.norm.weight", (config.hidden_size,))
        self._final_norm = writer.vector("norm", final_norm)

    def run(
        self, x: Value, past: Sequence[KeyValue] | None, positions: Positions
    ) -> tuple[Value, list[KeyValue]]:
        """Return the normed vectors (B, D) of the last of inputs x (B, T, D), and the new cache.

        ``past`` is None before the first position.
        """
        residual, cache, layers = x, [], self._layers
        normed = _rms_norm(x, layers[0].input_norm, self._config.norm_eps)
        next_norms = [*(layer.input_norm for layer in layers[1:]), self._final_norm]
        for index, (layer, next_norm) in enumerate(zip(layers, next_norms, strict=True)):
            with self._graph.scope(f"layers.{index}"):
                attended, pair = layer.attention(normed, past[index] if past else None, positions)
                cache.append(pair)
                if layer is layers[-1]:
                    # The caller needs the last position only, and so does the last MLP.
                    attended = self._graph.op("Gather", attended, -1, axis=1)
                    residual = self._graph.op("Gather", residual, -1, axis=1)
                output = layer.output(attended)
                normed, residual = self._add_and_norm(residual, output, layer.post_norm)
                normed, residual = self._add_and_norm(residual, layer.mlp(normed), next_norm)
        return normed, cache

    def _add_and_norm(self, residual: Value, x: Value, weight: Value) -> list[Value]:
        """Return the norm of the sum, and the sum."""
        operator, flags = "SkipSimplifiedLayerNormalization", (True, False, False, True)
        epsilon = self._config.norm_eps
        return self._graph.ops(operator, residual, x, weight, outputs=flags, epsilon=epsilon)


def _rms_norm(x: Value, weight: Value, epsilon: float) -> Value:
    """Return x (..., D) divided by its root mean square, times the weight."""
    operator = "SimplifiedLayerNormalization"
    return x.graph.op(operator, x, weight, axis=-1, epsilon=epsilon, stash_type=1)


def max_positions(config: TalkerConfig) -> int:
    """Return the rows of the talker's rotary tables: at most eleven minutes of speech."""
    return min(config.max_positions, 8192)


def build_talker(main: TensorFile, config: TalkerConfig, recipe: Recipe, directory: Path) -> None:
    """Write ``talker.onnx``, one graph for prefill and for steps.

    Inputs: ``embeddings`` (B, T, D), ``last_positions`` (B,), ``total_length`` and the cache
    ``past_key_{i}``, ``past_value_{i}`` (B, H, C, K). The caller binds each ``present_*`` output to
    the memory of its ``past_*`` input; then the graph writes new positions in place. Outputs:
    ``logits`` (B, C + 1) and ``hidden`` (B, D) of the last position. A prefill has B = 1 and any T;
    a step has T = 1 and any B, each lane at its own length.

    The head keeps the rows of the codes and of end of speech. The official code suppresses all
    others, so leaving them out is exact.
    """
    transformer, width = config.transformer, config.transformer.hidden_size
    cache_shape: list[Dim] = ["B", transformer.num_kv_heads, "C", transformer.head_size]
    with GraphBuilder("talker", directory) as graph:
        writer = WeightWriter(graph, recipe.block_size)
        embeddings = graph.input("embeddings", np.float32, ["B", "T", width])
        last = graph.input("last_positions", np.int32, ["B"])
        total = graph.input("total_length", np.int32, [])
        tables = writer.rotary(transformer, max_positions(config))
        graph.metadata["max_positions"] = str(max_positions(config))
        past = [
            KeyValue(
                *(
                    graph.input(f"past_{part}_{layer}", np.float32, cache_shape)
                    for part in KeyValue._fields
                )
            )
            for layer in range(transformer.num_layers)
        ]
        decoder = Decoder(writer, main, "talker.model", transformer, recipe.talker.layers)
        rows = main.read("talker.codec_head.weight", (config.vocab_size, width))
        rows = rows[[*range(config.codebook_size), config.eos_id]]
        head = writer.linear("codec_head", rows, recipe.talker.head)
        hidden, present = decoder.run(embeddings, past, (last, total, *tables))
        for layer, pair in enumerate(present):
            for part, value in zip(KeyValue._fields, pair, strict=True):
                graph.output(value, f"present_{part}_{layer}", np.float32, cache_shape)
        graph.output(head(hidden), "logits", np.float32, ["B", config.codebook_size + 1])
        graph.output(hidden, "hidden", np.float32, ["B", width])
