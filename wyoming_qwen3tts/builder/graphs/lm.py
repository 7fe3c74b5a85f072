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

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np

from wyoming_qwen3tts.arrays import AnyArray, Float32Array
from wyoming_qwen3tts.builder.checkpoint import TensorFile
from wyoming_qwen3tts.builder.config import TalkerConfig, TransformerConfig
from wyoming_qwen3tts.builder.graphs.graph import Dim, GraphBuilder, Value
from wyoming_qwen3tts.builder.graphs.quantize import (
    MAX_SNR_DB,
    QuantizedWeight,
    block_size_for,
    quantize,
    snr_db,
)
from wyoming_qwen3tts.builder.recipe import Precision, Recipe
from wyoming_qwen3tts.runtime.manifest import QuantizationReport

MAX_POSITIONS: Final = 8192
"""End of the talker's rotary tables: eleven minutes of speech in one utterance."""

_BITS: Final = {"int8": 8, "int4": 4}
# MatMulNBits quantises activations to int8 per block too. Without that it is 2-3 times slower.
_ACCURACY_LEVEL: Final = 4


@dataclass(frozen=True)
class Linear:
    """A stored weight."""

    values: tuple[Value, ...]
    """The (K, N) float32 matrix, or packed blocks and scales."""
    num_inputs: int
    num_outputs: int
    bits: int | None = None
    block_size: int = 0


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
class DecoderWeights:
    """Stored weights of all decoder layers."""

    config: TransformerConfig
    layers: tuple[LayerWeights, ...]
    final_norm: Value


class KeyValue(NamedTuple):
    """Keys and values of one layer, each (B, H, C, K)."""

    key: Value
    value: Value


@dataclass(frozen=True)
class Positions:
    """Positions of the inputs of a run."""

    last: Value
    """(B,) int32: index of the last position of each lane after appending."""
    total: Value
    """int32 scalar: the largest of ``last``, plus 1."""
    cosines: Value
    """(max positions, K / 2)."""
    sines: Value


class DecoderWriter:
    """Writes decoder layers into one graph and records the noise of quantised weights."""

    def __init__(self, graph: GraphBuilder, block_size: int) -> None:
        """Quantise in blocks of at most ``block_size`` inputs."""
        self.graph = graph
        self._block_size = block_size
        self._quantized: dict[tuple[str, Precision], list[tuple[float, float]]] = {}

    def vector(self, name: str, array: AnyArray) -> Value:
        """Store a norm weight, a bias or a table as float32."""
        return self.graph.weight(name, array, np.float32)

    def linear_weight(
        self, name: str, weight: Float32Array, precision: Precision, part: str
    ) -> Linear:
        """Store a weight (N, K); ``part`` groups the report."""
        num_outputs, num_inputs = weight.shape
        if precision not in _BITS:
            return Linear((self.vector(name, weight.T),), num_inputs, num_outputs)
        bits, block_size = _BITS[precision], block_size_for(num_inputs, self._block_size)
        quantized = quantize(weight, bits, block_size)
        self._record(part, precision, quantized)
        values = (
            self.graph.weight(f"{name}.blocks", quantized.packed),
            self.graph.weight(f"{name}.scales", quantized.scales),
        )
        return Linear(values, num_inputs, num_outputs, bits, block_size)

    def linear(self, x: Value, weight: Linear) -> Value:
        """Return x (..., K) times the weight: (..., N)."""
        if weight.bits is None:
            return x @ weight.values[0]
        return self.graph.op(
            "MatMulNBits",
            x,
            *weight.values,
            K=weight.num_inputs,
            N=weight.num_outputs,
            bits=weight.bits,
            block_size=weight.block_size,
            accuracy_level=_ACCURACY_LEVEL,
        )

    def decoder_weights(
        self, tensors: TensorFile, prefix: str, config: TransformerConfig, precision: Precision
    ) -> DecoderWeights:
        """Read and store all layers below ``prefix`` (such as ``talker.model``)."""
        layers = tuple(
            self._layer_weights(tensors, f"{prefix}.layers.{index}", index, config, precision)
            for index in range(config.num_layers)
        )
        final_norm = tensors.read(f"{prefix}.norm.weight", (config.hidden_size,))
        return DecoderWeights(config, layers, self.vector("norm", final_norm))

    def _layer_weights(
        self,
        tensors: TensorFile,
        prefix: str,
        index: int,
        config: TransformerConfig,
        precision: Precision,
    ) -> LayerWeights:
        width, inner = config.hidden_size, config.intermediate_size

        def packed(target: str, num_inputs: int, parts: dict[str, int]) -> Linear:
            """Store weights with the same input as one."""
            arrays = [
                tensors.read(f"{prefix}.{part}.weight", (num_outputs, num_inputs))
                for part, num_outputs in parts.items()
            ]
            name = f"layers.{index}.{target}"
            return self.linear_weight(name, np.concatenate(arrays), precision, "layers")

        def norm(target: str, size: int) -> Value:
            array = tensors.read(f"{prefix}.{target}.weight", (size,))
            return self.vector(f"layers.{index}.{target}", array)

        return LayerWeights(
            input_norm=norm("input_layernorm", width),
            qkv=packed(
                "self_attn.qkv_proj",
                width,
                {
                    "self_attn.q_proj": config.query_size,
                    "self_attn.k_proj": config.kv_size,
                    "self_attn.v_proj": config.kv_size,
                },
            ),
            query_norm=norm("self_attn.q_norm", config.head_size),
            key_norm=norm("self_attn.k_norm", config.head_size),
            output=packed("self_attn.o_proj", config.query_size, {"self_attn.o_proj": width}),
            post_norm=norm("post_attention_layernorm", width),
            gate_up=packed(
                "mlp.gate_up_proj", width, {"mlp.gate_proj": inner, "mlp.up_proj": inner}
            ),
            down=packed("mlp.down_proj", inner, {"mlp.down_proj": width}),
        )

    def rotary(self, config: TransformerConfig, num_positions: int) -> tuple[Value, Value]:
        """Store cosines and sines (num_positions, K / 2) of half-split rotary positions."""
        exponents = np.arange(0, config.head_size, 2) / config.head_size
        angles = np.outer(np.arange(num_positions), config.rope_theta**-exponents)
        cosines = self.vector("rotary.cosines", np.cos(angles))
        return cosines, self.vector("rotary.sines", np.sin(angles))

    def decode(
        self,
        x: Value,
        weights: DecoderWeights,
        past: Sequence[KeyValue] | None,
        positions: Positions,
    ) -> tuple[Value, list[KeyValue]]:
        """Run all layers over inputs (B, T, D).

        Args:
            x: The inputs.
            weights: The weights.
            past: Cache of the earlier positions, None before the first.
            positions: Positions of ``x``.

        Returns:
            The normed vectors (B, D) of the last position, and the new cache.
        """
        config, residual, cache = weights.config, x, []
        normed = self._rms_norm(x, weights.layers[0].input_norm, config)
        next_norms = [*(layer.input_norm for layer in weights.layers[1:]), weights.final_norm]
        for index, (layer, next_norm) in enumerate(zip(weights.layers, next_norms, strict=True)):
            with self.graph.scope(f"layers.{index}"):
                attended, pair = self._attention(
                    normed, layer, config, past[index] if past else None, positions
                )
                cache.append(pair)
                if index == config.num_layers - 1:
                    # Later steps need the last layer's output of the last position only.
                    attended, residual = (
                        self.graph.op("Gather", y, -1, axis=1) for y in (attended, residual)
                    )
                change = self.linear(attended, layer.output)
                normed, residual = self._add_and_norm(residual, change, layer.post_norm, config)
                change = self._mlp(normed, layer)
                normed, residual = self._add_and_norm(residual, change, next_norm, config)
        return normed, cache

    def _rms_norm(self, x: Value, weight: Value, config: TransformerConfig) -> Value:
        """Return x (..., D) divided by its root mean square, times the weight."""
        operator = "SimplifiedLayerNormalization"
        return self.graph.op(operator, x, weight, axis=-1, epsilon=config.norm_eps, stash_type=1)

    def _add_and_norm(
        self, residual: Value, x: Value, weight: Value, config: TransformerConfig
    ) -> list[Value]:
        """Return the norm of the sum, and the sum."""
        return self.graph.ops(
            "SkipSimplifiedLayerNormalization",
            *(residual, x, weight),
            outputs=(True, False, False, True),
            epsilon=config.norm_eps,
        )

    def _attention(
        self,
        x: Value,
        layer: LayerWeights,
        config: TransformerConfig,
        past: KeyValue | None,
        positions: Positions,
    ) -> tuple[Value, KeyValue]:
        sizes = [config.query_size, config.kv_size, config.kv_size]
        projected = self.linear(x, layer.qkv)
        query, key, value = self.graph.ops("Split", projected, sizes, outputs=3, axis=-1)
        query = self._head_norm(query, layer.query_norm, config, config.num_heads)
        key = self._head_norm(key, layer.key_norm, config, config.num_kv_heads)
        attended, new_key, new_value = self.graph.ops(
            "GroupQueryAttention",
            *(query, key, value, *(past or (None, None))),
            *(positions.last, positions.total, positions.cosines, positions.sines),
            outputs=3,
            num_heads=config.num_heads,
            kv_num_heads=config.num_kv_heads,
            do_rotary=1,
            rotary_interleaved=0,
        )
        return attended, KeyValue(new_key, new_value)

    def _head_norm(
        self, x: Value, weight: Value, config: TransformerConfig, num_heads: int
    ) -> Value:
        """Norm each head of x (B, T, H * K) by itself."""
        heads = self.graph.op("Reshape", x, [0, -1, num_heads, config.head_size])
        normed = self._rms_norm(heads, weight, config)
        return self.graph.op("Reshape", normed, [0, -1, num_heads * config.head_size])

    def _mlp(self, x: Value, layer: LayerWeights) -> Value:
        both = self.linear(x, layer.gate_up)
        gate, up = self.graph.ops("Split", both, outputs=2, axis=-1, num_outputs=2)
        # QuickGelu with alpha 1 is SiLU, in one operator.
        return self.linear(self.graph.op("QuickGelu", gate, alpha=1.0) * up, layer.down)

    def _record(self, part: str, precision: Precision, weight: QuantizedWeight) -> None:
        energies = self._quantized.setdefault((part, precision), [])
        energies.append((weight.signal_energy, weight.error_energy))

    def reports(self) -> tuple[QuantizationReport, ...]:
        """Return the noise of the quantised weights, by part."""
        return tuple(
            QuantizationReport(
                component=self.graph.name,
                part=part,
                precision=precision,
                num_tensors=len(energies),
                snr_db=round(snr_db(*map(sum, zip(*energies, strict=True))), 2),
                lowest_snr_db=round(min(MAX_SNR_DB, *(snr_db(*pair) for pair in energies)), 2),
            )
            for (part, precision), energies in self._quantized.items()
        )


def max_positions(config: TalkerConfig) -> int:
    """Return the number of positions that the talker's graph can hold."""
    return min(config.max_positions, MAX_POSITIONS)


def build_talker(
    main: TensorFile, config: TalkerConfig, recipe: Recipe, directory: Path
) -> tuple[QuantizationReport, ...]:
    """Write ``talker.onnx``, one graph for prefill and for steps.

    Inputs: ``embeddings`` (B, T, D), ``last_positions`` (B,), ``total_length`` and the cache
    ``past_key_{i}``, ``past_value_{i}`` (B, H, C, K). The caller binds each ``present_*`` output to
    the memory of its ``past_*`` input; then the graph writes new positions in place. Outputs:
    ``logits`` (B, C + 1) and ``hidden`` (B, D) of the last position. A prefill has B = 1 and any T;
    a step has T = 1 and any B, each lane at its own length.

    The head keeps the rows of the codes and of end of speech. The official code suppresses all
    others, so leaving them out is exact.

    Raises:
        CheckpointError: A tensor is missing or has another shape.
        BuildError: A weight cannot be quantised.
    """
    transformer = config.transformer
    width = transformer.hidden_size
    cache_shape: list[Dim] = ["B", transformer.num_kv_heads, "C", transformer.head_size]
    with GraphBuilder("talker", directory) as graph:
        writer = DecoderWriter(graph, recipe.block_size)
        embeddings = graph.input("embeddings", np.float32, ["B", "T", width])
        last = graph.input("last_positions", np.int32, ["B"])
        total = graph.input("total_length", np.int32, [])
        tables = writer.rotary(transformer, max_positions(config))
        graph.metadata["max_positions"] = str(max_positions(config))
        past = [
            KeyValue(
                graph.input(f"past_key_{layer}", np.float32, cache_shape),
                graph.input(f"past_value_{layer}", np.float32, cache_shape),
            )
            for layer in range(transformer.num_layers)
        ]
        precision = recipe.talker
        weights = writer.decoder_weights(main, "talker.model", transformer, precision.layers)
        rows = main.read("talker.codec_head.weight", (config.vocab_size, width))
        rows = rows[[*range(config.codebook_size), config.eos_id]]
        head = writer.linear_weight("codec_head", rows, precision.head, "head")
        positions = Positions(last, total, *tables)
        hidden, present = writer.decode(embeddings, weights, past, positions)
        logits = writer.linear(hidden, head)
        for layer, (key, value) in enumerate(present):
            graph.output(key, f"present_key_{layer}", np.float32, cache_shape)
            graph.output(value, f"present_value_{layer}", np.float32, cache_shape)
        graph.output(logits, "logits", np.float32, ["B", config.codebook_size + 1])
        graph.output(hidden, "hidden", np.float32, ["B", width])
    return writer.reports()
