"""Streaming convolutions of the codec decoder: carried state, im2col, Winograd and int8.

Everything is time-major (T, D): a convolution is then a matrix product, and the runtime packs its
weights once, when it opens the graph. Three quarters of the decoder's arithmetic are the seven-tap
convolutions of the residual units. :func:`winograd_conv` computes them in float32,
:func:`int8_conv` with 8-bit integers.

Winograd F(6, 7) (Toom-Cook): six neighbouring outputs of a seven-tap convolution are a product of
two polynomials. Evaluated at twelve points they cost 12 products instead of 42. With inputs
d_0 .. d_11, taps g_0 .. g_6 and matrices that depend on the points only::

    y = A ((G g) * (B d))        y_i = sum_j g_j d_(i + j),   i = 0 .. 5

The builder computes ``G g``. ``B`` and ``A`` act on all channels alike, so each is one matrix
product with a tiny left side.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cache
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from wyoming_qwen3tts.arrays import AnyArray, Int64Array
from wyoming_qwen3tts.builder.graphs.graph import INT64_MAX, Dim, GraphBuilder, Value
from wyoming_qwen3tts.runtime.graphs import open_session
from wyoming_qwen3tts.threads import default_num_threads

NUM_TAPS: Final = 7
NUM_OUTPUTS: Final = 6
NUM_POINTS: Final = NUM_OUTPUTS + NUM_TAPS - 1

# Infinity is one more point. Found by search over small fractions: the relative error of white and
# correlated signals is 4.6e-6 at most, that of direct float32 sums 0.6e-6. Four outputs per block
# would have 2.5e-6 and cost a seventh more time, eight 1.3e-5.
_POINTS: Final = (
    Fraction(0),
    *(
        sign * Fraction(*point)
        for point in ((1, 1), (1, 3), (2, 3), (3, 2), (3, 1))
        for sign in (1, -1)
    ),
)
# onnxruntime packs the weights of a batched product in every run. From this width on, packing costs
# more than one product per point.
_MIN_WIDTH_FOR_SEPARATE_PRODUCTS: Final = 256

_LEVELS = 255
_LARGEST_WEIGHT = 127
_WEIGHT_ZERO_POINT = 128
_SMALLEST_RANGE = 1e-6
_LOW_PREFIX: Final = "low_"
_HIGH_PREFIX: Final = "high_"
_FRAMES_PER_RUN: Final = 8


@dataclass(frozen=True)
class ConvSite:
    """One seven-tap convolution."""

    name: str
    """Prefix of its weights."""
    state: str
    """Name of the state that carries its last inputs."""
    kernel: AnyArray
    """(D_out, D, 7)."""
    dilation: int

    @property
    def state_shape(self) -> tuple[int, int]:
        """Shape of the carried inputs."""
        return (NUM_TAPS - 1) * self.dilation, self.kernel.shape[1]


Convolution = Callable[[GraphBuilder, Value, ConvSite], Value]
"""Convolves x (T, D) causally into (T, D_out), with carried state and without bias."""


def append_kv(graph: GraphBuilder, name: str, x: Value, shape: Sequence[Dim], keep: int) -> Value:
    """Put state ``name``, of ``shape``, before positions x (1, H, T, K).

    The third dimension of the state has a name, so that it starts empty. ``next_NAME`` holds the
    last ``keep`` positions for the next run.
    """
    joined = graph.op("Concat", graph.input(name, np.float32, shape), x, axis=2)
    kept = graph.op("Slice", joined, [-keep], [INT64_MAX], [2])
    after = [dim if isinstance(dim, int) else None for dim in shape]
    graph.output(kept, f"next_{name}", np.float32, after)
    return joined


def streaming_pad(
    graph: GraphBuilder, name: str, x: Value, shape: tuple[int, int], padding: Value | None = None
) -> Value:
    """Put the rows of state ``name`` before x (T, D); they start as zeros.

    Args:
        graph: The graph.
        name: Name of the state; ``next_NAME`` holds the last rows of x for the next run.
        x: New rows.
        shape: Number of rows to carry, and D.
        padding: Number (1,) of zero rows to put behind x, which are not carried.
    """
    keep, width = shape
    parts = [graph.input(name, np.float32, shape), x]
    if padding is not None:
        parts.append(graph.op("Expand", [0.0], graph.op("Concat", padding, [width], axis=0)))
    joined = graph.op("Concat", parts, axis=0)
    start = graph.op("Shape", x, start=0, end=1)
    kept = graph.op("Slice", joined, start, graph.op("Add", start, [keep]), [0])
    graph.output(kept, f"next_{name}", np.float32, shape)
    return joined


def im2col(graph: GraphBuilder, x: Value, num_taps: int, dilation: int = 1) -> Value:
    """Turn x (T + (num_taps - 1) dilation, D) into (T, num_taps D), the oldest tap first."""
    taps = []
    for tap in range(num_taps):
        rest = (num_taps - 1 - tap) * dilation
        taps.append(graph.op("Slice", x, [tap * dilation], [-rest if rest else INT64_MAX], [0]))
    return graph.op("Concat", taps, axis=1)


def conv_as_linear(weight: AnyArray) -> AnyArray:
    """Turn a kernel (D_out, D_in, taps) into a (D_out, taps D_in) weight for :func:`im2col`."""
    return weight.transpose(0, 2, 1).reshape(weight.shape[0], -1)


def polyphase(weight: AnyArray, rate: int) -> AnyArray:
    """Turn a transposed convolution into an ordinary one at the input's rate.

    A transposed convolution of stride r with a kernel of n r taps makes r outputs per input from n
    inputs; each of the r is a phase.

    Args:
        weight: (D_in, D_out, n r).
        rate: Stride r.

    Returns:
        (r, D_out, D_in, n): ordinary convolution kernels, oldest input first.
    """
    width_in, width_out, taps = weight.shape
    split = weight.reshape(width_in, width_out, taps // rate, rate)[:, :, ::-1]
    return split.transpose(3, 1, 0, 2)


class WinogradMatrices(NamedTuple):
    """The matrices of the scheme, scaled so that no point dominates the rounding."""

    outputs: NDArray[np.float64]
    """A, (6, 12)."""
    taps: NDArray[np.float64]
    """G, (12, 7)."""
    inputs: NDArray[np.float64]
    """B, (12, 12)."""

    def transform(self, kernel: AnyArray) -> NDArray[np.float64]:
        """Return (12, D_in, D_out): one product per point, for a kernel (D_out, D_in, 7)."""
        transposed = kernel.astype(np.float64).transpose(2, 1, 0)
        return np.asarray(np.tensordot(self.taps, transposed, axes=1))


@cache
def winograd_matrices() -> WinogradMatrices:
    """Compute the matrices exactly, then scale and round them.

    Multiplying polynomials of 6 and 7 coefficients by evaluation is y = V^-1 ((V_6 a) * (V_7 g));
    the transpose of that bilinear form is the convolution.
    """
    outputs, taps = (_as_floats(_evaluation(size)) for size in (NUM_OUTPUTS, NUM_TAPS))
    inputs = _as_floats(_inverse(_evaluation(NUM_POINTS))).T
    input_scale = np.abs(inputs).sum(1)
    output_scale = np.abs(outputs.T).max(0)
    return WinogradMatrices(
        outputs.T / output_scale,
        taps * (input_scale * output_scale)[:, None],
        inputs / input_scale[:, None],
    )


def _evaluation(num_coefficients: int) -> list[list[Fraction]]:
    """Return the matrix that evaluates a polynomial at all points, infinity last."""
    rows = [[point**power for power in range(num_coefficients)] for point in _POINTS]
    return [*rows, [Fraction(0)] * (num_coefficients - 1) + [Fraction(1)]]


def _inverse(matrix: list[list[Fraction]]) -> list[list[Fraction]]:
    """Invert by Gauss-Jordan elimination, without rounding."""
    size = len(matrix)
    rows = [
        [*row, *(Fraction(column == i) for column in range(size))] for i, row in enumerate(matrix)
    ]
    for index in range(size):
        pivot = next(row for row in range(index, size) if rows[row][index] != 0)
        rows[index], rows[pivot] = rows[pivot], rows[index]
        rows[index] = [value / rows[index][index] for value in rows[index]]
        for other in range(size):
            if other != index and (factor := rows[other][index]):
                pairs = zip(rows[other], rows[index], strict=True)
                rows[other] = [value - factor * base for value, base in pairs]
    return [row[size:] for row in rows]


def _as_floats(rows: list[list[Fraction]]) -> NDArray[np.float64]:
    return np.array([[float(value) for value in row] for row in rows])


def winograd_conv(graph: GraphBuilder, x: Value, site: ConvSite) -> Value:
    """Convolve x (T, D) into (T, D_out) in float32; zero rows fill the last block of outputs."""
    size = graph.op("Shape", x, start=0, end=1)
    # A floor Mod has the divisor's sign: this is the number of rows up to the next multiple.
    missing = graph.op("Mod", graph.op("Neg", size), [NUM_OUTPUTS * site.dilation])
    x = streaming_pad(graph, site.state, x, site.state_shape, missing)  # (6 J d + 6 d, D)
    # Rows that are d apart belong together: d rows are one step, and every sixth step is the same
    # input of another block of six outputs.
    width_out, width = site.kernel.shape[:2]
    matrices = winograd_matrices()
    steps = graph.op("Reshape", x, [-1, site.dilation * width])
    last = graph.length(steps, 0) - (NUM_POINTS - NUM_OUTPUTS)
    places = graph.constant(np.arange(NUM_POINTS)[:, None])
    places = places + graph.op("Range", 0, last, NUM_OUTPUTS)  # (12, J)
    inputs = graph.op("Gather", steps, places, axis=0)  # (12, J, d D)
    inputs = _combine(graph, matrices.inputs, inputs)
    inputs = graph.op("Reshape", inputs, [NUM_POINTS, -1, width])
    products = _products(graph, inputs, site.name, matrices.transform(site.kernel))
    outputs = _combine(graph, matrices.outputs, products)
    rows = graph.op("Reshape", outputs, [-1, width_out])  # by 6, J, d
    order = graph.op("Range", 0, graph.length(rows, 0), 1)
    order = graph.op("Reshape", order, [NUM_OUTPUTS, -1, site.dilation])
    order = graph.op("Reshape", graph.op("Transpose", order, perm=[1, 0, 2]), [-1])
    order = graph.op("Slice", order, [0], size, [0])  # by J, 6, d: the order of time
    return graph.op("Gather", rows, order, axis=0)


def _combine(graph: GraphBuilder, matrix: AnyArray, x: Value) -> Value:
    """Multiply x (12, ...), flattened to (12, N), by a matrix (M, 12) from the left."""
    flat = graph.op("Reshape", x, [NUM_POINTS, -1])
    return graph.op("MatMul", np.asarray(matrix, np.float32), flat)


def _products(graph: GraphBuilder, x: Value, name: str, weights: AnyArray) -> Value:
    """Multiply x (12, T, D) point by point with weights (12, D, D_out)."""
    if weights.shape[1] < _MIN_WIDTH_FOR_SEPARATE_PRODUCTS:
        return x @ graph.weight(f"{name}.weight", weights, np.float32)
    parts = graph.ops("Split", x, outputs=NUM_POINTS, axis=0, num_outputs=NUM_POINTS)
    products = []
    for point, (part, weight) in enumerate(zip(parts, weights, strict=True)):
        stored = graph.weight(f"{name}.weight_{point}", weight, np.float32)
        products.append(graph.op("Squeeze", part, [0]) @ stored)
    return graph.op("Concat", products, axis=0)


class ValueRange(NamedTuple):
    """Lowest and highest value of a convolution's input."""

    low: float
    high: float

    @property
    def scale(self) -> float:
        """Value of one step of an 8-bit integer; above 0 even where all values are 0."""
        return max(self.high - self.low, _SMALLEST_RANGE) / _LEVELS

    @property
    def zero_point(self) -> int:
        """The integer that stands for 0, so that padding is exact."""
        return round(-self.low / self.scale)


def int8_conv(graph: GraphBuilder, x: Value, site: ConvSite, values: ValueRange) -> Value:
    """Convolve with 8-bit inputs of one fixed range and weights with one scale per output channel.

    A range taken from the values of each run would make samples depend on the frames per run.
    """
    x = streaming_pad(graph, site.state, x, site.state_shape)
    scale, zero_point = np.float32(values.scale), np.uint8(values.zero_point)
    integers = graph.op("QuantizeLinear", x, scale, zero_point)
    weight = conv_as_linear(site.kernel)
    steps = np.maximum(np.abs(weight).max(axis=1), _SMALLEST_RANGE) / _LARGEST_WEIGHT
    # Unsigned: AVX2 without VNNI adds pairs of unsigned times signed products in 16 bits and
    # saturates. Unsigned times unsigned is exact on all processors.
    levels = (np.rint(weight / steps[:, None]).T + _WEIGHT_ZERO_POINT).astype(np.uint8)
    return graph.op(
        "MatMulIntegerToFloat",
        im2col(graph, integers, NUM_TAPS, site.dilation),
        graph.weight(f"{site.name}.weight", levels),
        scale,
        graph.weight(f"{site.name}.steps", steps, np.float32),
        zero_point,
        np.uint8(_WEIGHT_ZERO_POINT),
    )


def calibration_conv(graph: GraphBuilder, x: Value, site: ConvSite) -> Value:
    """Convolve in float32; the lowest and highest inputs become outputs of the graph."""
    for prefix, operator in ((_LOW_PREFIX, "ReduceMin"), (_HIGH_PREFIX, "ReduceMax")):
        extreme = graph.op(operator, x, keepdims=0)
        graph.output(extreme, f"{prefix}{site.state}", np.float32, [])
    return winograd_conv(graph, x, site)


def calibrate(path: Path, codes: Int64Array) -> dict[str, ValueRange]:
    """Run a decoder graph of calibration convolutions over codes (F, G).

    Returns:
        The range of the input of each convolution, by the name of its state.
    """
    session = open_session(path, num_threads=default_num_threads())
    outputs = [value.name for value in session.get_outputs()]
    state = {
        value.name: np.zeros(
            [dim if isinstance(dim, int) else 0 for dim in value.shape], np.float32
        )
        for value in session.get_inputs()
        if value.name not in ("codes", "position")
    }
    ranges: dict[str, ValueRange] = {}
    for start in range(0, len(codes), _FRAMES_PER_RUN):
        feeds = {"codes": codes[start : start + _FRAMES_PER_RUN], "position": np.array(start)}
        results = dict(zip(outputs, session.run(outputs, {**state, **feeds}), strict=True))
        state = {name: results[f"next_{name}"] for name in state}
        for name in outputs:
            if name.startswith(_LOW_PREFIX):
                site = name.removeprefix(_LOW_PREFIX)
                low, high = ranges.get(site, ValueRange(0.0, 0.0))  # padding is zeros
                low = min(low, float(results[name]))
                ranges[site] = ValueRange(low, max(high, float(results[f"{_HIGH_PREFIX}{site}"])))
    return ranges
