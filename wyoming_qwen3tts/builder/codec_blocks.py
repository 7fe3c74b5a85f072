"""The convolutional part of the codec decoder: features (T, latent_dim) to samples.

Everything is time-major (T, D): up-sampling is then a matrix product and a reshape.
"""

import math
from typing import Final

import numpy as np

from wyoming_qwen3tts.arrays import AnyArray, Float32Array
from wyoming_qwen3tts.builder.checkpoint import TensorFile
from wyoming_qwen3tts.builder.codec_convolution import Convolution, ConvolutionSite
from wyoming_qwen3tts.builder.codec_layers import (
    SnakeParameters,
    StreamStates,
    add_squared_sine,
    constant_shape,
    conv_as_linear,
    float32,
    linear,
    polyphase,
    windows,
)
from wyoming_qwen3tts.builder.config import CodecDecoderConfig
from wyoming_qwen3tts.builder.fast_convolution import NUM_TAPS
from wyoming_qwen3tts.builder.graph import GraphBuilder, Value

_RESIDUAL_DILATIONS: Final = (1, 3, 9)
# Element-wise operators with a vector per channel are fast only over long rows, so several rows are
# taken as one.
_FOLDED_WIDTH: Final = 4096


class DecoderBlocks:
    """Adds the convolutional part to a decoder graph."""

    def __init__(
        self,
        graph: GraphBuilder,
        codec: TensorFile,
        config: CodecDecoderConfig,
        states: StreamStates,
        convolution: Convolution,
    ) -> None:
        """Prepare; :meth:`build` adds the operators.

        Args:
            graph: The graph.
            codec: The checkpoint's tensors.
            config: Widths and counts.
            states: Takes the states of this part.
            convolution: How the residual units convolve.
        """
        self._graph = graph
        self._codec = codec
        self._config = config
        self._states = states
        self._convolution = convolution

    def build(self, x: Value) -> None:
        """Add every stage from x (T, latent_dim) to the output ``samples``."""
        graph, config = self._graph, self._config
        rows = math.prod(config.upsampling_ratios)
        x = self._first_conv(x)
        for block, rate in enumerate(config.upsample_rates):
            with graph.scope(_block_name(block)):
                x = self._upsampling(x, block, rows)
                rows *= rate
                for unit in range(len(_RESIDUAL_DILATIONS)):
                    x = self._residual_unit(x, block, unit, rows)
        self._samples(self._last_conv(x, rows))

    def _read(self, name: str, *shape: int) -> Float32Array:
        return self._codec.read(f"decoder.{name}", shape)

    def _width(self, block: int) -> int:
        """Return the channels after ``block`` blocks."""
        return self._config.decoder_dim >> block

    def _first_conv(self, x: Value) -> Value:
        width_in, width_out = self._config.latent_dim, self._config.decoder_dim
        kernel = self._read("decoder.0.conv.weight", width_out, width_in, NUM_TAPS)
        bias = self._read("decoder.0.conv.bias", width_out)
        keep = NUM_TAPS - 1
        x = self._states.carry_rows("decoder_conv", x, (keep, width_in))
        x = windows(self._graph, x, NUM_TAPS)
        return linear(self._graph, x, "decoder.0.conv", conv_as_linear(kernel), bias)

    def _upsampling(self, x: Value, block: int, rows: int) -> Value:
        """Snake, then a transposed convolution over the current and the previous row."""
        graph, rate = self._graph, self._config.upsample_rates[block]
        name = _block_name(block)
        width_in, width = self._width(block), self._width(block + 1)
        x = self._snake(x, f"{name}.0", width_in, rows)
        x = self._states.carry_rows(f"block_{block}_upsampling", x, (1, width_in))
        kernel = self._read(f"{name}.1.conv.weight", width_in, width, 2 * rate)
        bias = self._read(f"{name}.1.conv.bias", width)
        weight = conv_as_linear(polyphase(kernel, rate).reshape(rate * width, width_in, 2))
        x = linear(graph, windows(graph, x, 2), f"{name}.1.conv", weight, np.tile(bias, rate))
        return graph.op("Reshape", [x, constant_shape(graph, -1, width)])

    def _residual_unit(self, x: Value, block: int, unit: int, rows: int) -> Value:
        """Add snake, convolution, snake, 1 x 1 convolution to x (T, D).

        Between the convolutions the signal is measured in half-turns of the second snake, so that
        its phase needs no multiplication and the first convolution's bias no addition of its own.
        """
        graph, width = self._graph, self._width(block + 1)
        name = f"{_block_name(block)}.{unit + 2}"
        y = self._snake(x, f"{name}.act1", width, rows)
        second = self._snake_parameters(f"{name}.act2", width)
        kernel: AnyArray = self._read(f"{name}.conv1.conv.weight", width, width, NUM_TAPS)
        kernel = kernel * second.half_turns[:, None, None]
        bias: AnyArray = self._read(f"{name}.conv1.conv.bias", width) * second.half_turns
        site = ConvolutionSite(
            name=f"{name}.conv1",
            state=f"block_{block}_unit_{unit}",
            kernel=kernel,
            dilation=_RESIDUAL_DILATIONS[unit],
        )
        y = self._convolution.apply(graph, self._states, y, site)
        fold = self._fold(width, rows)
        y = graph.op("Reshape", [y, constant_shape(graph, -1, fold * width)])
        shift = graph.weight(f"{name}.conv1.bias", float32(np.tile(bias, fold)))
        y = graph.op("Add", [y, shift])
        amplitude = second.amplitude * np.sqrt(second.half_turns)
        y = add_squared_sine(graph, y, y, f"{name}.act2", np.tile(amplitude, fold))
        y = graph.op("Reshape", [y, constant_shape(graph, -1, width)])
        weight = self._read(f"{name}.conv2.conv.weight", width, width, 1)[:, :, 0]
        bias = self._read(f"{name}.conv2.conv.bias", width)
        y = linear(graph, y, f"{name}.conv2", weight / second.half_turns, bias)
        return graph.op("Add", [x, y])

    def _snake_parameters(self, name: str, width: int) -> SnakeParameters:
        alpha, beta = (self._read(f"{name}.{part}", width) for part in ("alpha", "beta"))
        return SnakeParameters.from_logarithms(alpha, beta)

    def _fold(self, width: int, rows: int) -> int:
        """Return how many of the ``rows`` per frame to take as one."""
        most = max(_FOLDED_WIDTH // width, 1)
        return max(fold for fold in range(1, min(most, rows) + 1) if rows % fold == 0)

    def _snake(self, x: Value, name: str, width: int, rows: int) -> Value:
        graph = self._graph
        parameters = self._snake_parameters(name, width)
        fold = self._fold(width, rows)
        x = graph.op("Reshape", [x, constant_shape(graph, -1, fold * width)])
        rate = graph.weight(f"{name}.half_turns", float32(np.tile(parameters.half_turns, fold)))
        half_turns = graph.op("Mul", [x, rate])
        amplitude = np.tile(parameters.amplitude, fold)
        x = add_squared_sine(graph, x, half_turns, name, amplitude)
        return graph.op("Reshape", [x, constant_shape(graph, -1, width)])

    def _last_conv(self, x: Value, rows: int) -> Value:
        """Snake and the convolution to one channel: (T, D) to (1, 1, T)."""
        graph, blocks = self._graph, len(self._config.upsample_rates)
        width = self._width(blocks)
        x = self._snake(x, f"decoder.{blocks + 1}", width, rows)
        keep = NUM_TAPS - 1
        x = self._states.carry_rows("last_conv", x, (keep, width))
        x = graph.op("Transpose", [x], perm=[1, 0])
        x = graph.op("Unsqueeze", [x, graph.constant([0], np.int64)])
        name = f"decoder.{blocks + 2}.conv"
        kernel = graph.weight(f"{name}.weight", self._read(f"{name}.weight", 1, width, NUM_TAPS))
        bias = graph.constant(self._read(f"{name}.bias", 1))
        return graph.op("Conv", [x, kernel, bias], kernel_shape=[NUM_TAPS])

    def _samples(self, x: Value) -> None:
        graph = self._graph
        limits = (graph.constant(limit, np.float32) for limit in (-1.0, 1.0))
        clipped = graph.op("Clip", [x, *limits])
        samples = graph.direct_output("samples", np.float32, [None])
        graph.ops("Reshape", [clipped, constant_shape(graph, -1)], [samples])


def _block_name(block: int) -> str:
    return f"decoder.{block + 1}.block"
