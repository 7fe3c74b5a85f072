"""The onnx-community layout's codec decoder: 25 frames to two seconds of samples, without state.

Convolutions pad with zeros on the left in every run, as the official modules do, so a frame near
the start of a run sounds as if nothing had been before it. Channel-major throughout, as traced.

Ported from: QwenLM/Qwen3-TTS qwen_tts/core/tokenizer_12hz/modeling_qwen3_tts_tokenizer_v2.py.
"""

from typing import Final

import numpy as np

from tests.support.onnx_community_writer.traced import TracedGraph
from wyoming_qwen3tts.builder.checkpoint import Checkpoint
from wyoming_qwen3tts.builder.config import CodecDecoderConfig
from wyoming_qwen3tts.builder.graphs.codec import (
    CONVNEXT_EXPANSION,
    LAYER_NORM_EPSILON,
    PRE_CONV_TAPS,
    RESIDUAL_DILATIONS,
)
from wyoming_qwen3tts.builder.graphs.convolution import NUM_TAPS
from wyoming_qwen3tts.builder.graphs.graph import Value

NUM_FRAMES: Final = 25
"""Frames of each run."""

_SNAKE_EPSILON = 1e-9


def tok_decoder(traced: TracedGraph, checkpoint: Checkpoint) -> None:
    """Write audio_codes (B, 25, G) to waveform (B, 1, 25 * 1920), float32."""
    graph, config = traced.graph, checkpoint.codec_decoder
    codes = graph.input("audio_codes", np.int64, ["B", NUM_FRAMES, config.num_quantizers])
    first = _quantizer(traced, config, codes, "rvq_first", range(1))
    x = first + _quantizer(traced, config, codes, "rvq_rest", range(1, config.num_quantizers))
    x = _conv(traced, x, "pre_conv.conv", config.codebook_dim, config.latent_dim, PRE_CONV_TAPS)
    x = _transformer(traced, x, config)  # (B, latent_dim, F)
    for stage, rate in enumerate(config.upsampling_ratios):
        width = config.latent_dim
        x = _transposed_conv(traced, x, f"upsample.{stage}.0.conv", width, width, rate, rate)
        x = _convnext(traced, x, f"upsample.{stage}.1", width)
    x = _conv(traced, x, "decoder.0.conv", config.latent_dim, config.decoder_dim, NUM_TAPS)
    for block, rate in enumerate(config.upsample_rates):
        x = _block(traced, x, f"decoder.{block + 1}.block", config.decoder_dim >> block, rate)
    blocks = len(config.upsample_rates)
    width = config.decoder_dim >> blocks
    x = _snake(traced, x, f"decoder.{blocks + 1}", width)
    x = _conv(traced, x, f"decoder.{blocks + 2}.conv", width, 1, NUM_TAPS)
    samples = NUM_FRAMES * config.samples_per_frame
    graph.output(graph.op("Clip", x, -1.0, 1.0), "waveform", np.float32, ["B", 1, samples])


def _quantizer(
    traced: TracedGraph, config: CodecDecoderConfig, codes: Value, name: str, groups: range
) -> Value:
    """Sum the centroids of the groups' codes and project the sum: (B, codebook_dim, F)."""
    width, rows = config.codebook_dim // 2, []
    for layer, group in enumerate(groups):
        source = f"quantizer.{name}.vq.layers.{layer}._codebook"
        usage = traced.read(f"{source}.cluster_usage", config.codebook_size)
        sums = traced.read(f"{source}.embedding_sum", config.codebook_size, width)
        index = traced.op("Gather", codes, group, axis=2)
        centroids = traced.store(source, sums / np.maximum(usage, 1e-5)[:, None])
        rows.append(traced.op("Gather", centroids, index, axis=0))
    total = sum(rows[1:], start=rows[0])
    kernel = traced.stored(f"quantizer.{name}.output_proj.weight", config.codebook_dim, width, 1)
    return traced.op("Conv", traced.op("Transpose", total, perm=[0, 2, 1]), kernel)


def _transformer(traced: TracedGraph, x: Value, config: CodecDecoderConfig) -> Value:
    name, transformer = "pre_transformer", config.transformer
    x = traced.op("Transpose", x, perm=[0, 2, 1])
    x = traced.linear(x, f"{name}.input_proj", config.latent_dim, transformer.hidden_size)
    tables = traced.constant_tables(NUM_FRAMES, transformer)
    mask = traced.constant_mask(NUM_FRAMES, config.sliding_window)
    x, _ = traced.layers(x, name, transformer, tables, mask)
    x = traced.linear(x, f"{name}.output_proj", transformer.hidden_size, config.latent_dim)
    return traced.op("Transpose", x, perm=[0, 2, 1])


def _conv(
    traced: TracedGraph,
    x: Value,
    name: str,
    width_in: int,
    width_out: int,
    taps: int,
    dilation: int = 1,
    group: int = 1,
) -> Value:
    """Convolve x (B, D_in, T) causally, with zeros before it."""
    kernel = traced.stored(f"{name}.weight", width_out, width_in // group, taps)
    bias = traced.stored(f"{name}.bias", width_out)
    pads = [(taps - 1) * dilation, 0]
    return traced.op("Conv", x, kernel, bias, dilations=[dilation], group=group, pads=pads)


def _transposed_conv(
    traced: TracedGraph, x: Value, name: str, width_in: int, width_out: int, rate: int, taps: int
) -> Value:
    """Up-sample x (B, D_in, T) by ``rate`` and trim the right end."""
    kernel = traced.stored(f"{name}.weight", width_in, width_out, taps)
    bias = traced.stored(f"{name}.bias", width_out)
    return traced.op("ConvTranspose", x, kernel, bias, strides=[rate], pads=[0, taps - rate])


def _convnext(traced: TracedGraph, x: Value, name: str, width: int) -> Value:
    """Add the ConvNeXt branch to x (B, latent_dim, T)."""
    inner = CONVNEXT_EXPANSION * width
    y = _conv(traced, x, f"{name}.dwconv.conv", width, width, NUM_TAPS, group=width)
    y = traced.op("Transpose", y, perm=[0, 2, 1])
    norm = [traced.stored(f"{name}.norm.{part}", width) for part in ("weight", "bias")]
    y = traced.op("LayerNormalization", y, norm, axis=-1, epsilon=LAYER_NORM_EPSILON)
    y = traced.op("Gelu", traced.linear(y, f"{name}.pwconv1", width, inner))
    y = traced.linear(y, f"{name}.pwconv2", inner, width) * traced.stored(f"{name}.gamma", width)
    return x + traced.op("Transpose", y, perm=[0, 2, 1])


def _block(traced: TracedGraph, x: Value, name: str, width_in: int, rate: int) -> Value:
    width = width_in // 2
    x = _snake(traced, x, f"{name}.0", width_in)
    x = _transposed_conv(traced, x, f"{name}.1.conv", width_in, width, rate, 2 * rate)
    for unit, dilation in enumerate(RESIDUAL_DILATIONS):
        prefix = f"{name}.{unit + 2}"
        y = _snake(traced, x, f"{prefix}.act1", width)
        y = _conv(traced, y, f"{prefix}.conv1.conv", width, width, NUM_TAPS, dilation)
        y = _snake(traced, y, f"{prefix}.act2", width)
        x = x + _conv(traced, y, f"{prefix}.conv2.conv", width, width, 1)
    return x


def _snake(traced: TracedGraph, x: Value, name: str, width: int) -> Value:
    """Return ``x + sin(x exp(alpha))^2 / (exp(beta) + 1e-9)``."""
    alpha = np.exp(traced.read(f"{name}.alpha", width))[:, None]
    gain = 1 / (np.exp(traced.read(f"{name}.beta", width)) + _SNAKE_EPSILON)[:, None]
    sine = traced.op("Sin", x * traced.store(f"{name}.alpha", alpha))
    return x + traced.op("Pow", sine, 2.0) * traced.store(f"{name}.gain", gain)
