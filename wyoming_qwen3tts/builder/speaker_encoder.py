"""The speaker encoder graph: samples (S,) of a clip to an x-vector (D,).

::

    samples ─ log-mel ─ conv ─ 3 x SE-Res2Net ─ all three joined ─ conv ─┐      channel-major
    ┌────────────────────────────────────────────────────────────────────┘
    └ attentive mean and deviation over time ─ linear ─ x-vector

Ported from: QwenLM/Qwen3-TTS modeling_qwen3_tts.py mel_spectrogram and Qwen3TTSSpeakerEncoder.
"""

from pathlib import Path
from typing import Final

import numpy as np

from wyoming_qwen3tts.arrays import Float32Array
from wyoming_qwen3tts.builder.checkpoint import TensorFile
from wyoming_qwen3tts.builder.codec_layers import constant_shape, float32, int64_range
from wyoming_qwen3tts.builder.config import SpeakerEncoderConfig
from wyoming_qwen3tts.builder.graph import GraphBuilder, Value
from wyoming_qwen3tts.builder.mel import (
    HOP_SAMPLES,
    MAGNITUDE_FLOOR,
    MEL_FLOOR,
    PADDING_SAMPLES,
    WINDOW_SAMPLES,
    mel_filters,
    windowed_dft,
)

COMPONENT: Final = "speaker_encoder"

_VARIANCE_FLOOR = 1e-12


def build_speaker_encoder(main: TensorFile, config: SpeakerEncoderConfig, directory: Path) -> None:
    """Write ``speaker_encoder.onnx`` and its data.

    Args:
        main: Tensors of ``model.safetensors``.
        config: Widths and counts.
        directory: Where to write.

    Raises:
        CheckpointError: A tensor is missing or has another shape.
    """
    with GraphBuilder(COMPONENT, directory) as graph:
        _SpeakerEncoder(graph, main, config).build()
        graph.save()


class _SpeakerEncoder:
    """One speaker encoder graph in the making."""

    def __init__(self, graph: GraphBuilder, main: TensorFile, config: SpeakerEncoderConfig) -> None:
        self.graph = graph
        self.main = main
        self.config = config

    def build(self) -> None:
        """Add every stage."""
        graph, config = self.graph, self.config
        samples = graph.input("samples", np.float32, ["S"])
        channels, kernels = config.channels, config.kernel_sizes
        x = self._log_mel(samples)  # (1, mels, T)
        x = self._tdnn(x, "blocks.0", config.num_mels, channels[0], kernels[0], config.dilations[0])
        outputs = []
        for block in range(1, len(channels) - 1):
            x = self._block(x, block)
            outputs.append(x)
        joined = graph.op("Concat", outputs, axis=1)
        width = sum(channels[1:-1])
        x = self._tdnn(joined, "mfa", width, channels[-1], kernels[-1], config.dilations[-1])
        x = self._conv(self._pool(x), "fc", 2 * channels[-1], config.x_vector_size)
        x_vector = graph.direct_output("x_vector", np.float32, [config.x_vector_size])
        graph.ops("Reshape", [x, constant_shape(graph, -1)], [x_vector])

    def _read(self, name: str, *shape: int) -> Float32Array:
        return self.main.read(f"speaker_encoder.{name}", shape)

    def _log_mel(self, samples: Value) -> Value:
        """Return the log-mel spectrogram (1, mels, S // 256) of samples (S,).

        The transform is a matrix product in double precision: the logarithm brings out the quietest
        bands, which a float32 sum over a loud frame would drown.
        """
        graph, config = self.graph, self.config
        sides = graph.constant([PADDING_SAMPLES, PADDING_SAMPLES], np.int64)
        padded = graph.op("Pad", [samples, sides], mode="reflect")
        size = graph.op("Squeeze", [graph.op("Shape", [samples])])
        hop = graph.constant(HOP_SAMPLES, np.int64)
        zero = graph.constant(0, np.int64)
        frames = int64_range(graph, zero, graph.op("Div", [size, hop]))
        starts = graph.op("Mul", [frames, hop])
        starts = graph.op("Unsqueeze", [starts, graph.constant([1], np.int64)])
        places = graph.op("Add", [starts, graph.weight("window", np.arange(WINDOW_SAMPLES))])
        windows = graph.cast(graph.op("Gather", [padded, places], axis=0), np.float64)
        spectrum = graph.op("MatMul", [windows, graph.weight("dft", windowed_dft())])
        real, imaginary = graph.ops(
            "Split", [graph.op("Mul", [spectrum, spectrum])], 2, axis=1, num_outputs=2
        )
        power = graph.op("Add", [real, imaginary])
        floor = graph.constant(MAGNITUDE_FLOOR, np.float64)
        magnitude = graph.cast(graph.op("Sqrt", [graph.op("Add", [power, floor])]), np.float32)
        filters = float32(mel_filters(config.num_mels, config.sample_rate_hz))
        mels = graph.op("MatMul", [magnitude, graph.weight("mel_filters", filters)])
        loud = graph.op("Max", [mels, graph.constant(MEL_FLOOR, np.float32)])
        turned = graph.op("Transpose", [graph.op("Log", [loud])], perm=[1, 0])
        return graph.op("Unsqueeze", [turned, graph.constant([0], np.int64)])

    def _conv(
        self, x: Value, name: str, width_in: int, width_out: int, taps: int = 1, dilation: int = 1
    ) -> Value:
        """Convolve x (1, D_in, T) into (1, D_out, T); the padding reflects."""
        graph = self.graph
        weight = self._read(f"{name}.weight", width_out, width_in, taps)
        bias = self._read(f"{name}.bias", width_out)
        padding = (taps - 1) * dilation
        if padding:
            sides = graph.constant([padding // 2, padding - padding // 2], np.int64)
            no_fill = graph.constant(0.0, np.float32)
            axes = graph.constant([2], np.int64)
            x = graph.op("Pad", [x, sides, no_fill, axes], mode="reflect")
        weights = [graph.weight(f"{name}.weight", weight), graph.weight(f"{name}.bias", bias)]
        return graph.op("Conv", [x, *weights], kernel_shape=[taps], dilations=[dilation])

    def _tdnn(
        self, x: Value, name: str, width_in: int, width_out: int, taps: int = 1, dilation: int = 1
    ) -> Value:
        y = self._conv(x, f"{name}.conv", width_in, width_out, taps, dilation)
        return self.graph.op("Relu", [y])

    def _block(self, x: Value, block: int) -> Value:
        """Add a squeeze-excitation Res2Net branch to x."""
        graph, config = self.graph, self.config
        before, width = config.channels[block - 1], config.channels[block]
        name = f"blocks.{block}"
        with graph.scope(name):
            y = self._tdnn(x, f"{name}.tdnn1", before, width)
            y = self._tdnn(self._res2net(y, block), f"{name}.tdnn2", width, width)
            squeezed = self._mean_over_time(y)
            squeezed = self._conv(squeezed, f"{name}.se_block.conv1", width, config.se_channels)
            squeezed = graph.op("Relu", [squeezed])
            gate = self._conv(squeezed, f"{name}.se_block.conv2", config.se_channels, width)
            y = graph.op("Mul", [y, graph.op("Sigmoid", [gate])])
            return graph.op("Add", [y, x])

    def _res2net(self, x: Value, block: int) -> Value:
        """Convolve groups of channels, each after adding the result of the group before."""
        graph, config = self.graph, self.config
        scale, width = config.res2net_scale, config.channels[block] // config.res2net_scale
        taps, dilation = config.kernel_sizes[block], config.dilations[block]
        first, *others = graph.ops("Split", [x], scale, axis=1, num_outputs=scale)
        results = [first]
        for index, group in enumerate(others):
            carried = graph.op("Add", [group, results[-1]]) if index > 0 else group
            name = f"blocks.{block}.res2net_block.blocks.{index}"
            results.append(self._tdnn(carried, name, width, width, taps, dilation))
        return graph.op("Concat", results, axis=1)

    def _mean_over_time(self, x: Value) -> Value:
        return self.graph.op("ReduceMean", [x, self.graph.constant([2], np.int64)], keepdims=1)

    def _pool(self, x: Value) -> Value:
        """Return (1, 2 D, 1): mean and deviation of x (1, D, T), weighted by attention."""
        graph, config = self.graph, self.config
        width, inner = config.channels[-1], config.attention_channels
        mean = self._mean_over_time(x)
        apart = graph.op("Sub", [x, mean])
        deviation = self._root(self._mean_over_time(graph.op("Mul", [apart, apart])))
        shape = graph.op("Shape", [x])
        context = [x, *(graph.op("Expand", [part, shape]) for part in (mean, deviation))]
        hidden = self._tdnn(graph.op("Concat", context, axis=1), "asp.tdnn", 3 * width, inner)
        scores = self._conv(graph.op("Tanh", [hidden]), "asp.conv", inner, width)
        weights = graph.op("Softmax", [scores], axis=2)
        mean = self._sum_over_time(graph.op("Mul", [weights, x]))
        apart = graph.op("Sub", [x, mean])
        square = graph.op("Mul", [apart, apart])
        deviation = self._root(self._sum_over_time(graph.op("Mul", [weights, square])))
        return graph.op("Concat", [mean, deviation], axis=1)

    def _sum_over_time(self, x: Value) -> Value:
        return self.graph.op("ReduceSum", [x, self.graph.constant([2], np.int64)], keepdims=1)

    def _root(self, variance: Value) -> Value:
        floor = self.graph.constant(_VARIANCE_FLOOR, np.float32)
        return self.graph.op("Sqrt", [self.graph.op("Max", [variance, floor])])
