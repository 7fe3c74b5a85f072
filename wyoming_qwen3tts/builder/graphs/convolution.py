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
from fractions import Fraction
from functools import cache
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from wyoming_qwen3tts.arrays import AnyArray, Int64Array
from wyoming_qwen3tts.builder.graphs.graph import INT64_MAX, Dim, GraphBuilder, Value
from wyoming_qwen3tts.machine import default_num_threads
from wyoming_qwen3tts.runtime.graphs import open_session

NUM_TAPS: Final = 7
NUM_OUTPUTS: Final = 6
NUM_POINTS: Final = NUM_OUTPUTS + NUM_TAPS - 1

# Infinity is one more point. Found by search over small fractions: the relative error of white and
# correlated signals is 4.6e-6 at most, that of direct float32 sums 0.6e-6. Four outputs per block
# would have 2.5e-6 and cost a seventh more time, eight 1.3e-5.
_SIZES = ((1, 1), (1, 3), (2, 3), (3, 2), (3, 1))
_POINTS = [Fraction(0), *(Fraction(sign * n, d) for n, d in _SIZES for sign in (1, -1))]
# onnxruntime packs the weights of a batched product in every run. From this width on, packing costs
# more than one product per point.
_MIN_WIDTH_FOR_SEPARATE_PRODUCTS: Final = 256

_LEVELS = 255
_LARGEST_WEIGHT = 127
_WEIGHT_ZERO_POINT = 128
_SMALLEST_RANGE = 1e-6
_LOW: Final = "low_"
_HIGH: Final = "high_"
_FRAMES_PER_RUN: Final = 8


class ConvSite(NamedTuple):
    """One seven-tap convolution."""

    name: str
    """Prefix of its weights."""
    state: str
    """Name of the state that carries its last inputs, (6 dilation, D)."""
    kernel: AnyArray
    """(D_out, D, 7)."""
    dilation: int


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
    """Put the rows of state ``name``, of ``shape``, before x (T, D); they start as zeros.

    ``next_NAME`` holds the last rows of x for the next run. ``padding`` (1,) is a number of zero
    rows to put behind x; they are not carried.
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
    """Turn a transposed convolution of stride ``rate`` into ordinary ones at the input's rate.

    With a kernel (D_in, D_out, n rate) it makes ``rate`` outputs per input from n inputs. The
    result (rate, D_out, D_in, n) has one kernel for each of them, oldest input first.
    """
    width_in, width_out, taps = weight.shape
    split = weight.reshape(width_in, width_out, taps // rate, rate)[:, :, ::-1]
    return split.transpose(3, 1, 0, 2)


@cache
def winograd_matrices() -> tuple[NDArray[np.float64], ...]:
    """Return A (6, 12), G (12, 7) and B (12, 12), scaled so that no point dominates the rounding.

    Multiplying polynomials of 6 and 7 coefficients by evaluation is y = V^-1 ((V_6 a) * (V_7 g));
    the transpose of that bilinear form is the convolution.
    """
    outputs, taps = (_evaluation(size).astype(np.float64) for size in (NUM_OUTPUTS, NUM_TAPS))
    inputs = _inverse(_evaluation(NUM_POINTS)).astype(np.float64).T
    input_scale = np.abs(inputs).sum(1)
    output_scale = np.abs(outputs.T).max(0)
    taps *= (input_scale * output_scale)[:, None]
    return outputs.T / output_scale, taps, inputs / input_scale[:, None]


def _evaluation(num_coefficients: int) -> AnyArray:
    """Return the fractions that evaluate a polynomial at all points, infinity last."""
    rows = [[point**power for power in range(num_coefficients)] for point in _POINTS]
    infinity = [Fraction(0)] * (num_coefficients - 1) + [Fraction(1)]
    return np.array([*rows, infinity], object)


def _inverse(matrix: AnyArray) -> AnyArray:
    """Invert fractions by Gauss-Jordan elimination; for distinct points no pivot is zero."""
    size = len(matrix)
    rows = np.concatenate([matrix, np.identity(size, object)], axis=1)
    for index in range(size):
        rows[index] /= rows[index, index]
        others = np.arange(size) != index
        rows[others] -= np.multiply.outer(rows[others, index], rows[index])
    return rows[:, size:]


def winograd_conv(graph: GraphBuilder, x: Value, site: ConvSite) -> Value:
    """Convolve x (T, D) into (T, D_out) in float32; zero rows fill the last block of outputs."""
    size = graph.op("Shape", x, start=0, end=1)
    # A floor Mod has the divisor's sign: this is the number of rows up to the next multiple.
    missing = graph.op("Mod", graph.op("Neg", size), [NUM_OUTPUTS * site.dilation])
    width_out, width = site.kernel.shape[:2]
    state_shape = ((NUM_TAPS - 1) * site.dilation, width)
    x = streaming_pad(graph, site.state, x, state_shape, missing)  # (6 J d + 6 d, D)
    # Rows that are d apart belong together: d rows are one step, and every sixth step is the same
    # input of another block of six outputs.
    to_outputs, to_weights, to_inputs = winograd_matrices()
    weights = np.tensordot(to_weights, site.kernel.astype(np.float64).transpose(2, 1, 0), axes=1)
    steps = graph.op("Reshape", x, [-1, site.dilation * width])
    last = graph.length(steps, 0) - (NUM_POINTS - NUM_OUTPUTS)
    places = graph.constant(np.arange(NUM_POINTS)[:, None])
    places = places + graph.op("Range", 0, last, NUM_OUTPUTS)  # (12, J)
    inputs = graph.op("Gather", steps, places, axis=0)  # (12, J, d D)
    inputs = _combine(graph, to_inputs, inputs)
    inputs = graph.op("Reshape", inputs, [NUM_POINTS, -1, width])
    products = _products(graph, inputs, site.name, weights)
    outputs = _combine(graph, to_outputs, products)
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
    for point, part in enumerate(parts):
        stored = graph.weight(f"{name}.weight_{point}", weights[point], np.float32)
        products.append(graph.op("Squeeze", part, [0]) @ stored)
    return graph.op("Concat", products, axis=0)


def int8_conv(
    graph: GraphBuilder, x: Value, site: ConvSite, ranges: dict[str, tuple[float, float]]
) -> Value:
    """Convolve with 8-bit inputs in the site's range and one scale per output channel.

    A range taken from the values of each run would make samples depend on the frames per run.
    """
    low, high = ranges[site.state]
    step = max(high - low, _SMALLEST_RANGE) / _LEVELS
    # Zero has an integer of its own, so padding is exact.
    scale, zero_point = np.float32(step), np.uint8(round(-low / step))
    x = streaming_pad(graph, site.state, x, ((NUM_TAPS - 1) * site.dilation, site.kernel.shape[1]))
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
    for prefix, operator in ((_LOW, "ReduceMin"), (_HIGH, "ReduceMax")):
        extreme = graph.op(operator, x, keepdims=0)
        graph.output(extreme, f"{prefix}{site.state}", np.float32, [])
    return winograd_conv(graph, x, site)


def calibrate(path: Path, codes: Int64Array) -> dict[str, tuple[float, float]]:
    """Run a decoder graph of calibration convolutions over codes (F, G).

    Returns lowest and highest input of each convolution, by the name of its state.
    """
    session = open_session(path, num_threads=default_num_threads())
    outputs = [value.name for value in session.get_outputs()]
    shapes = {value.name: value.shape for value in session.get_inputs()}
    state = {
        name: np.zeros([dim if isinstance(dim, int) else 0 for dim in shape], np.float32)
        for name, shape in shapes.items()
        if name not in ("codes", "position")
    }
    sites = [name.removeprefix(_LOW) for name in outputs if name.startswith(_LOW)]
    ranges = dict.fromkeys(sites, (0.0, 0.0))  # padding is zeros
    for start in range(0, len(codes), _FRAMES_PER_RUN):
        feeds = {"codes": codes[start : start + _FRAMES_PER_RUN], "position": np.array(start)}
        results = dict(zip(outputs, session.run(outputs, {**state, **feeds}), strict=True))
        state = {name: results[f"next_{name}"] for name in state}
        for site, (low, high) in ranges.items():
            low = min(low, float(results[f"{_LOW}{site}"]))
            ranges[site] = low, max(high, float(results[f"{_HIGH}{site}"]))
    return ranges
