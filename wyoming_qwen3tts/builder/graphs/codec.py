"""The codec decoder graph: codes (F, G) to samples, stateful and exact.

::

    codes ─ tables ─ causal conv + projection ─ transformer ─┐         time-major, 12.5 Hz
    ┌────────────────────────────────────────────────────────┘
    └ up-sampling + ConvNeXt, twice ─ causal conv ─┐                           to 50 Hz
    ┌──────────────────────────────────────────────┘
    └ 4 x (snake, up-sampling, 3 residual units) ─ snake ─ conv ─ clip        to 24 kHz

There is no look-ahead: a run may decode any number of frames, and states carry what later frames
need of earlier ones. All states start as zeros, which is the zero padding of the original; the
attention history starts empty.

Ported from: QwenLM/Qwen3-TTS qwen_tts/core/tokenizer_12hz/modeling_qwen3_tts_tokenizer_v2.py.
"""

import math
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

import numpy as np

from wyoming_qwen3tts.arrays import AnyArray, Int64Array
from wyoming_qwen3tts.builder.checkpoint import TensorFile
from wyoming_qwen3tts.builder.config import CodecDecoderConfig
from wyoming_qwen3tts.builder.graphs import convolution
from wyoming_qwen3tts.builder.graphs.convolution import NUM_TAPS, conv_as_linear, im2col, polyphase
from wyoming_qwen3tts.builder.graphs.graph import GraphBuilder, Value
from wyoming_qwen3tts.builder.graphs.tensor_graph import TensorGraph

COMPONENT: Final = "codec_decoder"

IGNORED_TENSORS: Final = {
    "decoder.quantizer.*.input_proj.weight": "projects audio features to codes; not for decoding",
}
"""Tensors that decoding does not need, with the reason."""

PRE_CONV_TAPS: Final = 3
CONVNEXT_EXPANSION: Final = 4
LAYER_NORM_EPSILON: Final = 1e-6
RESIDUAL_DILATIONS: Final = (1, 3, 9)

_SNAKE_EPSILON: Final = 1e-9
# Element-wise operators with a vector per channel are fast only over long rows, so several rows are
# taken as one.
_FOLDED_WIDTH: Final = 4096


def build_codec_decoder(
    codec: TensorFile,
    config: CodecDecoderConfig,
    directory: Path,
    calibration_codes: Int64Array | None = None,
) -> None:
    """Write ``codec_decoder.onnx`` and its data.

    With ``calibration_codes`` (F, G) of speech, the seven-tap convolutions of the residual units
    multiply 8-bit integers, in the ranges that the float32 graph takes over these codes. Without
    them everything is float32.
    """

    def write(target: Path, convolve: convolution.Convolution) -> None:
        with GraphBuilder(COMPONENT, target) as graph:
            _Decoder(graph, codec, "decoder", config).build(convolve)

    if calibration_codes is None:
        write(directory, convolution.winograd_conv)
        return
    with TemporaryDirectory(dir=directory, prefix="calibration") as scratch:
        write(Path(scratch), convolution.calibration_conv)
        ranges = convolution.calibrate(Path(scratch) / f"{COMPONENT}.onnx", calibration_codes)
    write(directory, partial(convolution.int8_conv, ranges=ranges))


class _Decoder(TensorGraph):
    """One decoder graph under construction."""

    config: CodecDecoderConfig

    def build(self, convolve: convolution.Convolution) -> None:
        graph, config = self.graph, self.config
        codes = graph.input("codes", np.int64, ["F", config.num_quantizers])
        position = graph.input("position", np.int64, [])
        x = self._pre_conv(self._embed(codes))
        x = self._transformer(x, position, graph.length(codes, 0))
        for stage in range(len(config.upsampling_ratios)):
            x = self._convnext(self._upsample_features(x, stage), stage)
        rows = math.prod(config.upsampling_ratios)  # per frame
        shape = (config.decoder_dim, config.latent_dim, NUM_TAPS)
        kernel, bias = self.affine("decoder.0.conv", *shape)
        x = im2col(graph, self._pad("decoder_conv", x, shape[1], NUM_TAPS - 1), NUM_TAPS)
        x = self.linear(x, "decoder.0.conv", conv_as_linear(kernel), bias)
        for block, rate in enumerate(config.upsample_rates):
            with graph.scope(f"decoder.{block + 1}.block"):
                x = self._upsample(x, block, rows)
                rows *= rate
                for unit in range(len(RESIDUAL_DILATIONS)):
                    x = self._residual_unit(x, block, unit, rows, convolve)
        samples = graph.op("Clip", self._last_conv(x, rows), -1.0, 1.0)
        graph.output(graph.op("Reshape", samples, [-1]), "samples", np.float32, [None])

    def _pad(self, name: str, x: Value, width: int, keep: int) -> Value:
        return convolution.streaming_pad(self.graph, name, x, (keep, width))

    def _embed(self, codes: Value) -> Value:
        """Look codes (F, G) up in one table into which the output projections are folded."""
        graph, config = self.graph, self.config
        groups, rows = config.num_quantizers, config.codebook_size
        tables = np.empty((groups * rows, config.codebook_dim), np.float32)
        for group in range(groups):
            part, layer = ("rvq_first", 0) if group == 0 else ("rvq_rest", group - 1)
            name, width = f"quantizer.{part}", config.codebook_dim // 2
            book = f"{name}.vq.layers.{layer}._codebook"
            table = self.codebook(book, "embedding_sum", rows, width)
            projection = self.read(f"{name}.output_proj.weight", config.codebook_dim, width, 1)
            tables[group * rows : (group + 1) * rows] = table @ projection[:, :, 0].T
        stored = graph.weight("quantizer.tables", tables)
        rows_of_codes = codes + np.arange(groups, dtype=np.int64) * rows
        vectors = graph.op("Gather", stored, rows_of_codes, axis=0)  # (F, G, codebook_dim)
        return graph.op("ReduceSum", vectors, [1], keepdims=0)

    def _pre_conv(self, x: Value) -> Value:
        """Convolve and project: two linear maps with nothing between them, folded into one."""
        width_in, width = self.config.codebook_dim, self.config.latent_dim
        hidden = self.config.transformer.hidden_size
        kernel, bias = self.affine("pre_conv.conv", width, width_in, PRE_CONV_TAPS)
        projection, shift = self.affine("pre_transformer.input_proj", hidden, width)
        weight = _product(projection, conv_as_linear(kernel))
        x = self._pad("pre_conv", x, width_in, PRE_CONV_TAPS - 1)
        x = im2col(self.graph, x, PRE_CONV_TAPS)
        return self.linear(x, "pre_conv", weight, _product(projection, bias) + shift)

    def _transformer(self, x: Value, position: Value, num_frames: Value) -> Value:
        """Run the decoder layers over x (F, hidden); the last norm included."""
        graph, config, transformer = self.graph, self.config, self.config.transformer
        tables = self.rotary(position, num_frames, transformer)
        history = (1, transformer.num_kv_heads, "past", transformer.head_size)
        mask: Value | None = None
        for layer in range(transformer.num_layers):
            name = f"pre_transformer.layers.{layer}"
            with graph.scope(name):
                normed = self._rms_norm(x, f"{name}.input_layernorm")
                query, *pair = self.query_key_value(normed, name, transformer, tables)
                keep = config.sliding_window - 1
                key, value = (
                    convolution.append_kv(graph, f"{part}_{layer}", y, history, keep)
                    for part, y in zip(("key", "value"), pair, strict=True)
                )
                if mask is None:
                    num_keys = graph.length(key, 2)
                    mask = self.causal_mask(num_frames, num_keys, config.sliding_window)
                mixed = self.attend(query, key, value, mask, transformer)
                x = x + self.attention_output(mixed, name, transformer)
                x = x + self._mlp(self._rms_norm(x, f"{name}.post_attention_layernorm"), name)
        return self._rms_norm(x, "pre_transformer.norm")

    def _rms_norm(self, x: Value, name: str) -> Value:
        transformer = self.config.transformer
        scale = self.stored(f"{name}.weight", transformer.hidden_size)
        return self.graph.op("RMSNormalization", x, scale, axis=-1, epsilon=transformer.norm_eps)

    def _mlp(self, x: Value, name: str) -> Value:
        graph, transformer = self.graph, self.config.transformer
        hidden, inner = transformer.hidden_size, transformer.intermediate_size
        gate = self.read(f"{name}.mlp.gate_proj.weight", inner, hidden)
        up = self.read(f"{name}.mlp.up_proj.weight", inner, hidden)
        down = self.read(f"{name}.mlp.down_proj.weight", hidden, inner)
        scale = self.read(f"{name}.mlp_layer_scale.scale", hidden)
        x = self.linear(x, f"{name}.mlp.gate_up_proj", np.concatenate([gate, up]))
        opening, value = graph.ops("Split", x, outputs=2, axis=1, num_outputs=2)
        x = opening * graph.op("Sigmoid", opening) * value
        return self.linear(x, f"{name}.mlp.down_proj", down * scale[:, None])

    def _upsample_features(self, x: Value, stage: int) -> Value:
        """Raise the rate; the transformer's output projection is folded into the first stage."""
        config, width = self.config, self.config.latent_dim
        rate, hidden = config.upsampling_ratios[stage], config.transformer.hidden_size
        name = f"upsample.{stage}"
        kernel, bias = self.affine(f"{name}.0.conv", width, width, rate)
        # The kernel is as long as the stride: outputs of neighbouring inputs do not overlap.
        weight = polyphase(kernel, rate).reshape(rate * width, width)
        shift: AnyArray = np.tile(bias, rate)
        if stage == 0:
            projection, bias = self.affine("pre_transformer.output_proj", width, hidden)
            shift = _product(weight, bias) + shift
            weight = _product(weight, projection)
        return self.graph.op("Reshape", self.linear(x, name, weight, shift), [-1, width])

    def _convnext(self, x: Value, stage: int) -> Value:
        """Add the ConvNeXt branch to x (T, latent_dim)."""
        graph, width = self.graph, self.config.latent_dim
        inner, name = CONVNEXT_EXPANSION * width, f"upsample.{stage}.1"
        with graph.scope(name):
            y = self._pad(f"upsample_{stage}", x, width, NUM_TAPS - 1)
            conv = f"{name}.dwconv.conv"
            y = self.conv(self.channel_major(y), conv, (width, width), NUM_TAPS, group=width)
            y = self.layer_norm(self.time_major(y), f"{name}.norm", width, LAYER_NORM_EPSILON)
            y = self.linear(y, f"{name}.pwconv1", *self.affine(f"{name}.pwconv1", inner, width))
            gamma = self.read(f"{name}.gamma", width)
            weight, bias = self.affine(f"{name}.pwconv2", width, inner)
            y, weight = graph.op("Gelu", y), weight * gamma[:, None]
            return x + self.linear(y, f"{name}.pwconv2", weight, bias * gamma)

    def _upsample(self, x: Value, block: int, rows: int) -> Value:
        """Snake, then a transposed convolution over the current and the previous row."""
        rate, name = self.config.upsample_rates[block], f"decoder.{block + 1}.block"
        width_in = self.config.decoder_dim >> block
        width = width_in // 2
        x = self._snake(x, f"{name}.0", width_in, rows)
        x = self._pad(f"block_{block}_upsampling", x, width_in, 1)
        kernel = self.read(f"{name}.1.conv.weight", width_in, width, 2 * rate)
        bias = self.read(f"{name}.1.conv.bias", width)
        weight = conv_as_linear(polyphase(kernel, rate).reshape(rate * width, width_in, 2))
        x = self.linear(im2col(self.graph, x, 2), f"{name}.1.conv", weight, np.tile(bias, rate))
        return self.graph.op("Reshape", x, [-1, width])

    def _residual_unit(
        self, x: Value, block: int, unit: int, rows: int, convolve: convolution.Convolution
    ) -> Value:
        """Add snake, convolution, snake, 1 x 1 convolution to x (T, D).

        Between the convolutions the signal is the phase of the second snake: the phase then needs
        no multiplication and the first convolution's bias no addition of its own.
        """
        graph, width = self.graph, self.config.decoder_dim >> (block + 1)
        name = f"decoder.{block + 1}.block.{unit + 2}"
        y = self._snake(x, f"{name}.act1", width, rows)
        phase, amplitude = self._snake_parameters(f"{name}.act2", width)
        kernel, bias = self.affine(f"{name}.conv1.conv", width, width, NUM_TAPS)
        in_phase, shift = kernel * phase[:, None, None], bias * phase
        state, dilation = f"block_{block}_unit_{unit}", RESIDUAL_DILATIONS[unit]
        y = convolve(graph, y, convolution.ConvSite(f"{name}.conv1", state, in_phase, dilation))
        fold = _fold(width, rows)
        y = graph.op("Reshape", y, [-1, fold * width])
        y = y + graph.weight(f"{name}.conv1.bias", np.tile(shift, fold), np.float32)
        y = snake(graph, y, y, f"{name}.act2", np.tile(amplitude * np.sqrt(phase), fold))
        y = graph.op("Reshape", y, [-1, width])
        kernel, bias = self.affine(f"{name}.conv2.conv", width, width, 1)
        return x + self.linear(y, f"{name}.conv2", kernel[:, :, 0] / phase, bias)

    def _snake_parameters(self, name: str, width: int) -> tuple[AnyArray, AnyArray]:
        """Return phase and amplitude of ``x + sin(x exp(alpha))^2 / (exp(beta) + 1e-9)``.

        The phase is in half-turns per unit of x; the amplitude is the root of the square's factor.
        """
        alpha, beta = (self.read(f"{name}.{part}", width) for part in ("alpha", "beta"))
        phase = np.exp(alpha.astype(np.float64)) / math.pi
        return phase, 1 / np.sqrt(np.exp(beta.astype(np.float64)) + _SNAKE_EPSILON)

    def _snake(self, x: Value, name: str, width: int, rows: int) -> Value:
        graph, fold = self.graph, _fold(width, rows)
        phase, amplitude = self._snake_parameters(name, width)
        x = graph.op("Reshape", x, [-1, fold * width])
        rate = graph.weight(f"{name}.phase", np.tile(phase, fold), np.float32)
        x = snake(graph, x, x * rate, name, np.tile(amplitude, fold))
        return graph.op("Reshape", x, [-1, width])

    def _last_conv(self, x: Value, rows: int) -> Value:
        """Snake and the convolution to one channel: (T, D) to (1, 1, T)."""
        blocks = len(self.config.upsample_rates)
        width = self.config.decoder_dim >> blocks
        x = self._snake(x, f"decoder.{blocks + 1}", width, rows)
        x = self.channel_major(self._pad("last_conv", x, width, NUM_TAPS - 1))
        return self.conv(x, f"decoder.{blocks + 2}.conv", (width, 1), NUM_TAPS)


def _fold(width: int, rows: int) -> int:
    """Return how many of the ``rows`` per frame to take as one."""
    most = max(_FOLDED_WIDTH // width, 1)
    return max(fold for fold in range(1, min(most, rows) + 1) if rows % fold == 0)


def snake(graph: GraphBuilder, x: Value, phase: Value, name: str, amplitude: AnyArray) -> Value:
    """Return ``x + (amplitude sin(pi phase))^2``; the amplitude must broadcast over x.

    sin(pi r) = A r (r^2 + B) ((r^2 + C) r^2 + D) for |r| <= 1/2, fitted so that the largest error
    of the *square* is least: 8.3e-7. onnxruntime's own Sin runs on one thread and costs more than
    this polynomial and its range reduction together.
    """
    a, b = -0.5520516715175563, -0.9791038204874283
    c, d = -3.623089141213214, 5.812177491371527
    reduced = phase - graph.op("Round", phase)  # within 1/2
    square = reduced * reduced
    factor = graph.weight(f"{name}.amplitude", a * amplitude, np.float32)
    sine = ((square + c) * square + d) * (square + b) * (reduced * factor)
    return x + sine * sine


def _product(left: AnyArray, right: AnyArray) -> AnyArray:
    """Multiply in double precision: folding must not cost accuracy."""
    return left.astype(np.float64) @ right.astype(np.float64)
