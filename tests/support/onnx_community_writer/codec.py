"""The published layout's codec decoder: 25 frames to two seconds of samples, without state.

Convolutions pad with zeros on the left in every run, as the official modules do, so a frame near
the start of a run sounds as if nothing had been before it. Channel-major throughout, as traced.

Ported from: QwenLM/Qwen3-TTS qwen_tts/core/tokenizer_12hz/modeling_qwen3_tts_tokenizer_v2.py.
"""

from pathlib import Path
from typing import Final

import numpy as np

from tests.support.onnx_community_writer.traced import (
    Numerics,
    TracedOps,
    TracedStack,
    TracedWriter,
)
from wyoming_qwen3tts.arrays import AnyArray, Float32Array
from wyoming_qwen3tts.builder.checkpoint import Checkpoint
from wyoming_qwen3tts.builder.graphs.codec import (
    CONVNEXT_EXPANSION,
    LAYER_NORM_EPSILON,
    PRE_CONV_TAPS,
    RESIDUAL_DILATIONS,
)
from wyoming_qwen3tts.builder.graphs.convolution import NUM_TAPS
from wyoming_qwen3tts.builder.graphs.graph import GraphBuilder, Value
from wyoming_qwen3tts.builder.graphs.tensor_graph import centroids

NUM_FRAMES: Final = 25
"""Frames of each run."""

_SNAKE_EPSILON = 1e-9


def build_tok_decoder(checkpoint: Checkpoint, directory: Path) -> None:
    """Write ``tok_decoder.onnx``: audio_codes (B, 25, G) to waveform (B, 1, 25 * 1920), float32.

    Raises:
        CheckpointError: A tensor is missing or has another shape.
    """
    with GraphBuilder("tok_decoder", directory) as graph:
        _TracedDecoder(graph, checkpoint).build()


class _TracedDecoder:
    """One decoder graph in the making."""

    def __init__(self, graph: GraphBuilder, checkpoint: Checkpoint) -> None:
        self._graph = graph
        self._ops = TracedOps(TracedWriter(graph, Numerics()))
        self._codec = checkpoint.codec
        self._config = checkpoint.codec_decoder

    def build(self) -> None:
        """Add every stage."""
        graph, config = self._graph, self._config
        codes = graph.input("audio_codes", np.int64, ["B", NUM_FRAMES, config.num_quantizers])
        x = self._embed(codes)  # (B, codebook_dim, F)
        x = self._conv(x, "pre_conv.conv", config.codebook_dim, config.latent_dim, PRE_CONV_TAPS)
        x = self._transformer(x)  # (B, latent_dim, F)
        for stage, rate in enumerate(config.upsampling_ratios):
            width = config.latent_dim
            x = self._transposed_conv(x, f"upsample.{stage}.0.conv", width, width, rate, rate)
            x = self._convnext(x, f"upsample.{stage}.1")
        x = self._conv(x, "decoder.0.conv", config.latent_dim, config.decoder_dim, NUM_TAPS)
        for block, rate in enumerate(config.upsample_rates):
            x = self._block(x, f"decoder.{block + 1}.block", config.decoder_dim >> block, rate)
        blocks = len(config.upsample_rates)
        width = config.decoder_dim >> blocks
        x = self._snake(x, f"decoder.{blocks + 1}", width)
        x = self._conv(x, f"decoder.{blocks + 2}.conv", width, 1, NUM_TAPS)
        limits = (graph.constant(limit, np.float32) for limit in (-1.0, 1.0))
        samples = NUM_FRAMES * config.samples_per_frame
        graph.output(graph.op("Clip", [x, *limits]), "waveform", np.float32, ["B", 1, samples])

    def _read(self, name: str, *shape: int) -> Float32Array:
        return self._codec.read(f"decoder.{name}", shape)

    def _weight(self, name: str, array: AnyArray) -> Value:
        return self._graph.weight(name, np.asarray(array, np.float32))

    def _embed(self, codes: Value) -> Value:
        """Sum the centroids of each quantiser, project both sums and add them."""
        config = self._config
        parts = (("rvq_first", 0, 1), ("rvq_rest", 1, config.num_quantizers))
        projected = [self._quantizer(codes, *part) for part in parts]
        return self._graph.op("Add", projected)

    def _quantizer(self, codes: Value, name: str, first: int, end: int) -> Value:
        graph, config = self._graph, self._config
        width = config.codebook_dim // 2
        total: Value | None = None
        for group in range(first, end):
            source = f"quantizer.{name}.vq.layers.{group - first}._codebook"
            usage = self._read(f"{source}.cluster_usage", config.codebook_size)
            sums = self._read(f"{source}.embedding_sum", config.codebook_size, width)
            index = graph.op("Gather", [codes, graph.constant(group, np.int64)], axis=2)
            rows = graph.op("Gather", [self._weight(source, centroids(sums, usage)), index], axis=0)
            total = rows if total is None else graph.op("Add", [total, rows])
        if total is None:
            raise AssertionError("a quantizer has at least one codebook")
        turned = graph.op("Transpose", [total], perm=[0, 2, 1])
        kernel = self._read(f"quantizer.{name}.output_proj.weight", config.codebook_dim, width, 1)
        return graph.op(
            "Conv", [turned, self._weight(f"quantizer.{name}", kernel)], kernel_shape=[1]
        )

    def _transformer(self, x: Value) -> Value:
        ops, config = self._ops, self._config
        transformer = config.transformer
        x = self._graph.op("Transpose", [x], perm=[0, 2, 1])
        name = "pre_transformer"
        hidden = transformer.hidden_size
        x = self._linear(x, f"{name}.input_proj", config.latent_dim, hidden)
        tables = ops.rotary_tables(ops.constant_positions(NUM_FRAMES), transformer, 1)
        mask = ops.constant_mask(NUM_FRAMES, config.sliding_window)
        stack = TracedStack(ops, self._codec, f"decoder.{name}", transformer, "fp32")
        x, _ = stack.run(x, tables, mask)
        x = self._linear(x, f"{name}.output_proj", hidden, config.latent_dim)
        return self._graph.op("Transpose", [x], perm=[0, 2, 1])

    def _linear(self, x: Value, name: str, num_inputs: int, num_outputs: int) -> Value:
        weight = self._weight(
            f"{name}.weight", self._read(f"{name}.weight", num_outputs, num_inputs).T
        )
        bias = self._weight(f"{name}.bias", self._read(f"{name}.bias", num_outputs))
        return self._graph.op("Add", [self._graph.op("MatMul", [x, weight]), bias])

    def _conv(
        self,
        x: Value,
        name: str,
        width_in: int,
        width_out: int,
        taps: int,
        dilation: int = 1,
        group: int = 1,
    ) -> Value:
        """Convolve x (B, D_in, T) causally, with zeros before it."""
        kernel = self._read(f"{name}.weight", width_out, width_in // group, taps)
        bias = self._read(f"{name}.bias", width_out)
        return self._graph.op(
            "Conv",
            [x, self._weight(f"{name}.weight", kernel), self._weight(f"{name}.bias", bias)],
            kernel_shape=[taps],
            dilations=[dilation],
            group=group,
            pads=[(taps - 1) * dilation, 0],
        )

    def _transposed_conv(
        self, x: Value, name: str, width_in: int, width_out: int, rate: int, taps: int
    ) -> Value:
        """Up-sample x (B, D_in, T) by ``rate`` and trim the right end."""
        kernel = self._read(f"{name}.weight", width_in, width_out, taps)
        bias = self._read(f"{name}.bias", width_out)
        return self._graph.op(
            "ConvTranspose",
            [x, self._weight(f"{name}.weight", kernel), self._weight(f"{name}.bias", bias)],
            kernel_shape=[taps],
            strides=[rate],
            pads=[0, taps - rate],
        )

    def _convnext(self, x: Value, name: str) -> Value:
        """Add the ConvNeXt branch to x (B, latent_dim, T)."""
        graph, width = self._graph, self._config.latent_dim
        inner = CONVNEXT_EXPANSION * width
        y = self._conv(x, f"{name}.dwconv.conv", width, width, NUM_TAPS, group=width)
        y = graph.op("Transpose", [y], perm=[0, 2, 1])
        scale, shift = (
            self._weight(f"{name}.norm.{part}", self._read(f"{name}.norm.{part}", width))
            for part in ("weight", "bias")
        )
        y = graph.op("LayerNormalization", [y, scale, shift], axis=-1, epsilon=LAYER_NORM_EPSILON)
        y = graph.op("Gelu", [self._linear(y, f"{name}.pwconv1", width, inner)])
        y = self._linear(y, f"{name}.pwconv2", inner, width)
        y = graph.op("Mul", [self._weight(f"{name}.gamma", self._read(f"{name}.gamma", width)), y])
        return graph.op("Add", [x, graph.op("Transpose", [y], perm=[0, 2, 1])])

    def _block(self, x: Value, name: str, width_in: int, rate: int) -> Value:
        width = width_in // 2
        x = self._snake(x, f"{name}.0", width_in)
        x = self._transposed_conv(x, f"{name}.1.conv", width_in, width, rate, 2 * rate)
        for unit, dilation in enumerate(RESIDUAL_DILATIONS):
            prefix = f"{name}.{unit + 2}"
            y = self._snake(x, f"{prefix}.act1", width)
            y = self._conv(y, f"{prefix}.conv1.conv", width, width, NUM_TAPS, dilation)
            y = self._snake(y, f"{prefix}.act2", width)
            y = self._conv(y, f"{prefix}.conv2.conv", width, width, 1)
            x = self._graph.op("Add", [x, y])
        return x

    def _snake(self, x: Value, name: str, width: int) -> Value:
        """Return ``x + sin(x exp(alpha))^2 / (exp(beta) + 1e-9)``."""
        graph = self._graph
        alpha = np.exp(self._read(f"{name}.alpha", width))[:, None]
        gain = 1 / (np.exp(self._read(f"{name}.beta", width)) + _SNAKE_EPSILON)[:, None]
        sine = graph.op("Sin", [graph.op("Mul", [x, self._weight(f"{name}.alpha", alpha)])])
        square = graph.op("Pow", [sine, graph.constant(2.0, np.float32)])
        return graph.op("Add", [x, graph.op("Mul", [self._weight(f"{name}.gain", gain), square])])
