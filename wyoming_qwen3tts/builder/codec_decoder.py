"""The codec decoder graph: codes (F, G) to samples, stateful and exact.

::

    codes ─ tables ─ causal conv + projection ─ transformer ─┐         time-major, 12.5 Hz
    ┌────────────────────────────────────────────────────────┘
    └ up-sampling + ConvNeXt, twice ─ causal conv ─┐                           to 50 Hz
    ┌──────────────────────────────────────────────┘
    └ 4 x (snake, up-sampling, 3 residual units) ─ snake ─ conv ─ clip        to 24 kHz

There is no look-ahead: a call may bring any number of frames, and what later frames need of earlier
ones travels in the states (see ``StreamStates``). All states start as zeros, which is the zero
padding of the original; the attention history starts empty.

Ported from: QwenLM/Qwen3-TTS qwen_tts/core/tokenizer_12hz/modeling_qwen3_tts_tokenizer_v2.py.
"""

import math
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final, Literal

import numpy as np

from wyoming_qwen3tts.arrays import AnyArray, Float32Array
from wyoming_qwen3tts.builder.checkpoint import TensorFile
from wyoming_qwen3tts.builder.codec_blocks import DecoderBlocks
from wyoming_qwen3tts.builder.codec_calibration import measure_ranges
from wyoming_qwen3tts.builder.codec_convolution import (
    Convolution,
    FilteredConvolution,
    ObservedConvolution,
    QuantizedConvolution,
)
from wyoming_qwen3tts.builder.codec_layers import (
    Rotary,
    StreamStates,
    attend,
    causal_mask,
    centroids,
    constant_shape,
    conv_as_linear,
    int64_range,
    length,
    linear,
    polyphase,
    rotary,
    row_offsets,
    split_heads,
    windows,
)
from wyoming_qwen3tts.builder.config import CodecDecoderConfig
from wyoming_qwen3tts.builder.graph import GraphBuilder, Value

COMPONENT: Final = "codec_decoder"

IGNORED_TENSORS: Final = {
    "decoder.quantizer.*.input_proj.weight": "projects audio features to codes; not for decoding",
}
"""Tensors that decoding does not need, with the reason."""

_PRE_CONV_TAPS = 3
_CONV_TAPS = 7
_CONVNEXT_EXPANSION = 4
_LAYER_NORM_EPSILON = 1e-6


CodecPrecision = Literal["fp32", "int8"]


def build_codec_decoder(
    codec: TensorFile,
    config: CodecDecoderConfig,
    directory: Path,
    *,
    precision: CodecPrecision = "fp32",
) -> None:
    """Write ``codec_decoder.onnx`` and its data.

    Args:
        codec: Tensors of ``speech_tokenizer/model.safetensors``.
        config: Widths and counts.
        directory: Where to write.
        precision: With "int8" the seven-tap convolutions of the residual units multiply 8-bit
            integers; everything else stays float32. The float32 graph is built and run first, to
            measure ranges.

    Raises:
        CheckpointError: A tensor is missing or has another shape.
    """
    convolution: Convolution = FilteredConvolution()
    if precision == "int8":
        with TemporaryDirectory(dir=directory, prefix="calibration") as scratch:
            path = _write(codec, config, Path(scratch), ObservedConvolution(convolution))
            ranges = measure_ranges(path, config.num_quantizers, config.codebook_size)
        convolution = QuantizedConvolution(ranges)
    _write(codec, config, directory, convolution)


def _write(
    codec: TensorFile, config: CodecDecoderConfig, directory: Path, convolution: Convolution
) -> Path:
    with GraphBuilder(COMPONENT, directory) as graph:
        _Decoder(graph, codec, config, convolution).build()
        graph.save()
    return graph.path


class _Decoder:
    """One decoder graph in the making."""

    def __init__(
        self,
        graph: GraphBuilder,
        codec: TensorFile,
        config: CodecDecoderConfig,
        convolution: Convolution,
    ) -> None:
        self.graph = graph
        self.codec = codec
        self.config = config
        self.convolution = convolution
        self.states = StreamStates(graph)

    def build(self) -> None:
        """Add every stage."""
        graph, config = self.graph, self.config
        codes = graph.input("codes", np.int64, ["F", config.num_quantizers])
        position = graph.input("position", np.int64, [])
        x = self._embed(codes)  # (F, codebook_dim)
        x = self._transformer(self._pre_conv(x), position, length(graph, codes, 0))
        x = self._first_upsampling(x)  # (F r, latent_dim)
        x = self._convnext(x, 0)
        for stage in range(1, len(config.upsampling_ratios)):
            x = self._convnext(self._upsampling(x, stage), stage)
        DecoderBlocks(graph, self.codec, config, self.states, self.convolution).build(x)

    def _read(self, name: str, *shape: int) -> Float32Array:
        return self.codec.read(f"decoder.{name}", shape)

    def _embed(self, codes: Value) -> Value:
        """Look codes (F, G) up in one table into which the output projections are folded."""
        graph, config = self.graph, self.config
        groups, rows = config.num_quantizers, config.codebook_size
        tables = np.empty((groups * rows, config.codebook_dim), np.float32)
        for group in range(groups):
            part, layer = ("rvq_first", 0) if group == 0 else ("rvq_rest", group - 1)
            tables[group * rows : (group + 1) * rows] = self._folded_codebook(part, layer)
        stored = graph.weight("quantizer.tables", tables)
        rows_of_codes = graph.op("Add", [codes, graph.constant(row_offsets(groups, rows))])
        vectors = graph.op("Gather", [stored, rows_of_codes], axis=0)  # (F, G, codebook_dim)
        return graph.op("ReduceSum", [vectors, graph.constant([1], np.int64)], keepdims=0)

    def _folded_codebook(self, part: str, layer: int) -> AnyArray:
        config = self.config
        width = config.codebook_dim // 2
        name = f"quantizer.{part}.vq.layers.{layer}._codebook"
        usage = self._read(f"{name}.cluster_usage", config.codebook_size)
        total = self._read(f"{name}.embedding_sum", config.codebook_size, width)
        projection = self._read(
            f"quantizer.{part}.output_proj.weight", config.codebook_dim, width, 1
        )
        return centroids(total, usage) @ projection[:, :, 0].T

    def _pre_conv(self, x: Value) -> Value:
        """Convolve and project: two linear maps with nothing between them, folded into one."""
        config = self.config
        hidden = config.transformer.hidden_size
        kernel = self._read(
            "pre_conv.conv.weight", config.latent_dim, config.codebook_dim, _PRE_CONV_TAPS
        )
        bias = self._read("pre_conv.conv.bias", config.latent_dim)
        projection = self._read("pre_transformer.input_proj.weight", hidden, config.latent_dim)
        projection_bias = self._read("pre_transformer.input_proj.bias", hidden)
        x = self._carry("pre_conv", x, config.codebook_dim, _PRE_CONV_TAPS - 1)
        return linear(
            self.graph,
            windows(self.graph, x, _PRE_CONV_TAPS),
            "pre_conv",
            _product(projection, conv_as_linear(kernel)),
            _product(projection, bias) + projection_bias,
        )

    def _carry(self, name: str, x: Value, width: int, keep: int) -> Value:
        return self.states.carry_rows(name, x, (keep, width))

    def _transformer(self, x: Value, position: Value, num_frames: Value) -> Value:
        """Run the decoder layers over x (F, hidden); the last norm included."""
        graph, config = self.graph, self.config
        transformer = config.transformer
        positions = int64_range(graph, position, num_frames)
        tables = rotary(graph, positions, transformer.head_size, transformer.rope_theta)
        mask: Value | None = None
        for layer in range(transformer.num_layers):
            name = f"pre_transformer.layers.{layer}"
            with graph.scope(name):
                normed = self._rms_norm(x, f"{name}.input_layernorm")
                query, key, value = self._query_key_value(normed, name, tables)
                key = self._history(f"key_{layer}", key)
                value = self._history(f"value_{layer}", value)
                if mask is None:
                    num_keys = length(graph, key, 2)
                    mask = causal_mask(graph, num_frames, num_keys, config.sliding_window)
                mixed = attend(
                    graph,
                    query,
                    key,
                    value,
                    mask,
                    num_heads=transformer.num_heads,
                    num_kv_heads=transformer.num_kv_heads,
                    head_size=transformer.head_size,
                )
                x = graph.op("Add", [x, self._attention_output(mixed, name)])
                normed = self._rms_norm(x, f"{name}.post_attention_layernorm")
                x = graph.op("Add", [x, self._mlp(normed, name)])
        return self._rms_norm(x, "pre_transformer.norm")

    def _rms_norm(self, x: Value, name: str) -> Value:
        transformer = self.config.transformer
        scale = self._read(f"{name}.weight", transformer.hidden_size)
        stored = self.graph.weight(f"{name}.weight", scale)
        epsilon = transformer.norm_eps
        return self.graph.op("RMSNormalization", [x, stored], axis=-1, epsilon=epsilon)

    def _query_key_value(self, x: Value, name: str, tables: Rotary) -> tuple[Value, Value, Value]:
        """Return query (1, H, F, K), scaled, and key and value (1, H_kv, F, K)."""
        graph, transformer = self.graph, self.config.transformer
        hidden, heads, kv_heads = (
            transformer.hidden_size,
            transformer.num_heads,
            transformer.num_kv_heads,
        )
        query = self._read(f"{name}.self_attn.q_proj.weight", transformer.query_size, hidden)
        key = self._read(f"{name}.self_attn.k_proj.weight", transformer.kv_size, hidden)
        value = self._read(f"{name}.self_attn.v_proj.weight", transformer.kv_size, hidden)
        packed = np.concatenate([query / math.sqrt(transformer.head_size), key, value])
        projected = linear(graph, x, f"{name}.self_attn.qkv_proj", packed)
        split = split_heads(graph, projected, heads + 2 * kv_heads, transformer.head_size)
        sizes = graph.constant([heads + kv_heads, kv_heads], np.int64)
        turning, values = graph.ops("Split", [split, sizes], 2, axis=1)
        turned = tables.rotate(graph, turning)
        sizes = graph.constant([heads, kv_heads], np.int64)
        queries, keys = graph.ops("Split", [turned, sizes], 2, axis=1)
        return queries, keys, values

    def _history(self, name: str, x: Value) -> Value:
        transformer = self.config.transformer
        shape = (1, transformer.num_kv_heads, "past", transformer.head_size)
        return self.states.carry_history(name, x, shape, self.config.sliding_window - 1)

    def _attention_output(self, x: Value, name: str) -> Value:
        hidden, width = self.config.transformer.hidden_size, self.config.transformer.query_size
        weight = self._read(f"{name}.self_attn.o_proj.weight", hidden, width)
        scale = self._read(f"{name}.self_attn_layer_scale.scale", hidden)
        return linear(self.graph, x, f"{name}.self_attn.o_proj", weight * scale[:, None])

    def _mlp(self, x: Value, name: str) -> Value:
        graph, transformer = self.graph, self.config.transformer
        hidden, inner = transformer.hidden_size, transformer.intermediate_size
        gate = self._read(f"{name}.mlp.gate_proj.weight", inner, hidden)
        up = self._read(f"{name}.mlp.up_proj.weight", inner, hidden)
        down = self._read(f"{name}.mlp.down_proj.weight", hidden, inner)
        scale = self._read(f"{name}.mlp_layer_scale.scale", hidden)
        both = linear(graph, x, f"{name}.mlp.gate_up_proj", np.concatenate([gate, up]))
        opened, raised = graph.ops("Split", [both], 2, axis=1, num_outputs=2)
        opened = graph.op("Mul", [opened, graph.op("Sigmoid", [opened])])
        product = graph.op("Mul", [opened, raised])
        return linear(graph, product, f"{name}.mlp.down_proj", down * scale[:, None])

    def _first_upsampling(self, x: Value) -> Value:
        """Project and up-sample: two linear maps with nothing between them, folded into one."""
        config = self.config
        hidden = config.transformer.hidden_size
        projection = self._read("pre_transformer.output_proj.weight", config.latent_dim, hidden)
        projection_bias = self._read("pre_transformer.output_proj.bias", config.latent_dim)
        kernel, bias = self._upsampling_kernel(0)
        weight = _product(kernel, projection)
        return self._raise_rate(x, "upsample.0", weight, _product(kernel, projection_bias) + bias)

    def _upsampling(self, x: Value, stage: int) -> Value:
        kernel, bias = self._upsampling_kernel(stage)
        return self._raise_rate(x, f"upsample.{stage}", kernel, bias)

    def _upsampling_kernel(self, stage: int) -> tuple[AnyArray, AnyArray]:
        """Return the stage's weight (r D, D) and bias (r D,), phase by phase."""
        width, rate = self.config.latent_dim, self.config.upsampling_ratios[stage]
        kernel = self._read(f"upsample.{stage}.0.conv.weight", width, width, rate)
        bias = self._read(f"upsample.{stage}.0.conv.bias", width)
        # The kernel is as long as the stride: outputs of neighbouring inputs do not overlap.
        return polyphase(kernel, rate).reshape(rate * width, width), np.tile(bias, rate)

    def _raise_rate(self, x: Value, name: str, weight: AnyArray, bias: AnyArray) -> Value:
        phases = linear(self.graph, x, name, weight, bias)
        width = self.config.latent_dim
        return self.graph.op("Reshape", [phases, constant_shape(self.graph, -1, width)])

    def _convnext(self, x: Value, stage: int) -> Value:
        """Add the ConvNeXt branch to x (T, latent_dim)."""
        graph, width = self.graph, self.config.latent_dim
        inner = _CONVNEXT_EXPANSION * width
        name = f"upsample.{stage}.1"
        with graph.scope(name):
            taps = self._read(f"{name}.dwconv.conv.weight", width, 1, _CONV_TAPS)
            bias = self._read(f"{name}.dwconv.conv.bias", width)
            y = self._carry(f"upsample_{stage}", x, width, _CONV_TAPS - 1)
            y = self._depthwise(y, f"{name}.dwconv", taps, bias)
            scale, shift = (
                graph.weight(f"{name}.norm.{part}", self._read(f"{name}.norm.{part}", width))
                for part in ("weight", "bias")
            )
            y = graph.op(
                "LayerNormalization", [y, scale, shift], axis=-1, epsilon=_LAYER_NORM_EPSILON
            )
            weight = self._read(f"{name}.pwconv1.weight", inner, width)
            bias = self._read(f"{name}.pwconv1.bias", inner)
            y = graph.op("Gelu", [linear(graph, y, f"{name}.pwconv1", weight, bias)])
            gamma = self._read(f"{name}.gamma", width)
            weight = self._read(f"{name}.pwconv2.weight", width, inner) * gamma[:, None]
            bias = self._read(f"{name}.pwconv2.bias", width) * gamma
            return graph.op("Add", [x, linear(graph, y, f"{name}.pwconv2", weight, bias)])

    def _depthwise(self, x: Value, name: str, taps: AnyArray, bias: AnyArray) -> Value:
        """Convolve every channel of x (T + 6, D) with its own taps (D, 1, 7)."""
        graph = self.graph
        turned = graph.op("Transpose", [x], perm=[1, 0])
        turned = graph.op("Unsqueeze", [turned, graph.constant([0], np.int64)])
        weights = [graph.weight(f"{name}.weight", taps), graph.weight(f"{name}.bias", bias)]
        y = graph.op(
            "Conv",
            [turned, *weights],
            kernel_shape=[taps.shape[2]],
            group=taps.shape[0],
        )
        y = graph.op("Squeeze", [y, graph.constant([0], np.int64)])
        return graph.op("Transpose", [y], perm=[1, 0])


def _product(left: AnyArray, right: AnyArray) -> AnyArray:
    """Multiply in double precision: folding must not cost accuracy."""
    return left.astype(np.float64) @ right.astype(np.float64)
