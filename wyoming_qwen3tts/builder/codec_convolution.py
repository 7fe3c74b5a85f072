"""Ways to compute the seven-tap convolutions of the codec decoder's residual units.

They are three quarters of the decoder's arithmetic. :class:`FilteredConvolution` is exact up to
float32 rounding, :class:`QuantizedConvolution` multiplies 8-bit integers.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Protocol

import numpy as np

from wyoming_qwen3tts.arrays import AnyArray
from wyoming_qwen3tts.builder.codec_layers import (
    StreamStates,
    constant_shape,
    conv_as_linear,
    float32,
    length,
    windows,
)
from wyoming_qwen3tts.builder.fast_convolution import (
    NUM_OUTPUTS,
    NUM_POINTS,
    NUM_TAPS,
    minimal_filter,
)
from wyoming_qwen3tts.builder.graph import MICROSOFT_DOMAIN, GraphBuilder, Value

LOW_PREFIX: Final = "low_"
HIGH_PREFIX: Final = "high_"
"""Outputs of a graph with observed convolutions, followed by the name of the state."""

# onnxruntime packs the weights of a batched product anew in every run. From this width on that
# costs more than taking the batch apart.
_MIN_WIDTH_FOR_SEPARATE_PRODUCTS: Final = 256
_LEVELS_ABOVE_LOWEST = 255
_LARGEST_WEIGHT = 127
_WEIGHT_ZERO_POINT = 128
_SMALLEST_RANGE = 1e-6


@dataclass(frozen=True)
class ConvolutionSite:
    """One convolution: where it is and what it multiplies with."""

    name: str
    """Prefix of its weights."""
    state: str
    """Name of the state that carries its last inputs."""
    kernel: AnyArray
    """(D_out, D, 7)."""
    dilation: int

    @property
    def carried_rows(self) -> int:
        """Inputs that later outputs need."""
        return (NUM_TAPS - 1) * self.dilation


class Convolution(Protocol):
    """A way to convolve causally, with carried state and without bias."""

    def apply(
        self, graph: GraphBuilder, states: StreamStates, x: Value, site: ConvolutionSite
    ) -> Value:
        """Convolve x (T, D) into (T, D_out)."""


class FilteredConvolution:
    """Minimal filtering in float32."""

    def __init__(self) -> None:
        """Compute the scheme's matrices."""
        self._filter = minimal_filter()

    def apply(
        self, graph: GraphBuilder, states: StreamStates, x: Value, site: ConvolutionSite
    ) -> Value:
        """Convolve x (T, D) into (T, D_out); zero rows fill the last block of outputs."""
        size = graph.op("Shape", [x], start=0, end=1)
        block = graph.constant([NUM_OUTPUTS * site.dilation], np.int64)
        # A floor Mod has the divisor's sign, so this is what is missing to the next multiple.
        missing = graph.op("Mod", [graph.op("Neg", [size]), block])
        shape = (site.carried_rows, site.kernel.shape[1])
        x = states.carry_rows(site.state, x, shape, missing)
        return self._filtered(graph, x, size, site)

    def _filtered(self, graph: GraphBuilder, x: Value, size: Value, site: ConvolutionSite) -> Value:
        """Convolve x (6 J d + 6 d, D) and return the first T = ``size`` rows of (6 J d, D_out).

        Rows that are d apart belong together: d rows are taken as one, and every sixth of these is
        the same input of another group of six outputs.
        """
        width_out, width = site.kernel.shape[:2]
        steps = graph.op("Reshape", [x, constant_shape(graph, -1, site.dilation * width)])
        num_steps = length(graph, steps, 0)
        first, stride = graph.constant(0, np.int64), graph.constant(NUM_OUTPUTS, np.int64)
        overlap = graph.constant(NUM_POINTS - NUM_OUTPUTS, np.int64)
        starts = graph.op("Range", [first, graph.op("Sub", [num_steps, overlap]), stride])  # (J,)
        places = graph.op("Add", [graph.constant(np.arange(NUM_POINTS)[:, None]), starts])
        inputs = graph.op("Gather", [steps, places], axis=0)  # (12, J, d D)
        inputs = self._combine(graph, self._filter.inputs, inputs)
        inputs = graph.op("Reshape", [inputs, constant_shape(graph, NUM_POINTS, -1, width)])
        products = _products(graph, inputs, site.name, self._filter.transform(site.kernel))
        outputs = self._combine(graph, self._filter.outputs, products)
        rows = graph.op("Reshape", [outputs, constant_shape(graph, -1, width_out)])  # by 6, J, d
        order = graph.op("Range", [first, length(graph, rows, 0), graph.constant(1, np.int64)])
        shape = constant_shape(graph, NUM_OUTPUTS, -1, site.dilation)
        order = graph.op("Transpose", [graph.op("Reshape", [order, shape])], perm=[1, 0, 2])
        order = graph.op("Reshape", [order, constant_shape(graph, -1)])
        zero = graph.constant([0], np.int64)
        order = graph.op("Slice", [order, zero, size, zero])  # by J, 6, d: the order of time
        return graph.op("Gather", [rows, order], axis=0)

    def _combine(self, graph: GraphBuilder, matrix: AnyArray, x: Value) -> Value:
        """Multiply x (12, ...), flattened to (12, N), by a matrix (M, 12) from the left."""
        flat = graph.op("Reshape", [x, constant_shape(graph, NUM_POINTS, -1)])
        return graph.op("MatMul", [graph.constant(matrix, np.float32), flat])


def _products(graph: GraphBuilder, x: Value, name: str, weights: AnyArray) -> Value:
    """Multiply x (12, T, D) point by point with weights (12, D, D_out)."""
    if weights.shape[1] < _MIN_WIDTH_FOR_SEPARATE_PRODUCTS:
        return graph.op("MatMul", [x, graph.weight(f"{name}.weight", float32(weights))])
    parts = graph.ops("Split", [x], NUM_POINTS, axis=0, num_outputs=NUM_POINTS)
    axis = graph.constant([0], np.int64)
    products = [
        graph.op(
            "MatMul",
            [
                graph.op("Squeeze", [part, axis]),
                graph.weight(f"{name}.weight_{point}", float32(weight)),
            ],
        )
        for point, (part, weight) in enumerate(zip(parts, weights, strict=True))
    ]
    return graph.op("Concat", products, axis=0)


@dataclass(frozen=True)
class ValueRange:
    """The values that a convolution's input takes."""

    low: float
    high: float

    def including(self, low: float, high: float) -> "ValueRange":
        """Return the range that has these values too."""
        return ValueRange(min(self.low, low), max(self.high, high))

    @property
    def scale(self) -> float:
        """Value of one step of an 8-bit integer; above 0 even where every value is 0."""
        return max(self.high - self.low, _SMALLEST_RANGE) / _LEVELS_ABOVE_LOWEST

    @property
    def zero_point(self) -> int:
        """The integer that stands for 0, so that padding is exact."""
        return round(-self.low / self.scale)


class QuantizedConvolution:
    """8-bit inputs, one range per convolution; 8-bit weights, one scale per output channel.

    The ranges are fixed when the graph is built: a range taken from each call's own values would
    make the samples depend on how many frames a call decodes.
    """

    def __init__(self, ranges: Mapping[str, ValueRange]) -> None:
        """Take the input range of every convolution, by the name of its state."""
        self._ranges = ranges

    def apply(
        self, graph: GraphBuilder, states: StreamStates, x: Value, site: ConvolutionSite
    ) -> Value:
        """Convolve x (T, D) into (T, D_out)."""
        values = self._ranges[site.state]
        x = states.carry_rows(site.state, x, (site.carried_rows, site.kernel.shape[1]))
        scale = graph.constant(values.scale, np.float32)
        zero_point = graph.constant(values.zero_point, np.uint8)
        integers = graph.op("QuantizeLinear", [x, scale, zero_point])
        integers = windows(graph, integers, NUM_TAPS, site.dilation)
        weight = conv_as_linear(site.kernel)
        largest = np.maximum(np.abs(weight).max(axis=1), _SMALLEST_RANGE)
        steps = largest / _LARGEST_WEIGHT
        rounded = np.rint(weight / steps[:, None])
        weights = [
            # Unsigned: AVX2 without VNNI adds pairs of unsigned times signed products in 16 bits
            # and saturates. Unsigned times unsigned is exact on all processors.
            graph.weight(f"{site.name}.weight", (rounded.T + _WEIGHT_ZERO_POINT).astype(np.uint8)),
            scale,
            graph.weight(f"{site.name}.steps", float32(steps)),
            zero_point,
            graph.constant(_WEIGHT_ZERO_POINT, np.uint8),
        ]
        return graph.op("MatMulIntegerToFloat", [integers, *weights], domain=MICROSOFT_DOMAIN)


class ObservedConvolution:
    """Another convolution whose input's lowest and highest values become outputs of the graph."""

    def __init__(self, inner: Convolution) -> None:
        """Observe the inputs of ``inner``."""
        self._inner = inner

    def apply(
        self, graph: GraphBuilder, states: StreamStates, x: Value, site: ConvolutionSite
    ) -> Value:
        """Convolve x (T, D) into (T, D_out)."""
        for prefix, operator in ((LOW_PREFIX, "ReduceMin"), (HIGH_PREFIX, "ReduceMax")):
            extreme = graph.op(operator, [x], keepdims=0)
            graph.output(extreme, f"{prefix}{site.state}", np.float32, [])
        return self._inner.apply(graph, states, x, site)
