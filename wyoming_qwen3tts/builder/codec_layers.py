"""Blocks that the codec's graphs share: carried state, convolution, attention, snake.

Two layouts occur. *Time-major* (T, D) makes up-sampling and convolution matrix products, whose
weights are packed once, when a session opens; the decoder uses it throughout. *Channel-major*
(1, D, T) is what onnxruntime's convolution wants; the encoder's strided convolutions use it.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from wyoming_qwen3tts.arrays import AnyArray, Float32Array, Int64Array
from wyoming_qwen3tts.builder.graph import Dim, GraphBuilder, Value

# sin(pi r) = A r (r^2 + B) ((r^2 + C) r^2 + D) for |r| <= 1/2, fitted so that the largest error of
# the *square* is least: 8.3e-7. onnxruntime's own Sin runs on one thread and costs more than this
# polynomial and its range reduction together.
_SINE_FACTOR = -0.5520516715175563
_SINE_ROOT = -0.9791038204874283
_SINE_LINEAR = -3.623089141213214
_SINE_CONSTANT = 5.812177491371527
_SNAKE_EPSILON = 1e-9
_MIN_CLUSTER_USAGE = 1e-5
_INT64_MAX = np.iinfo(np.int64).max
_MASKED = -1e30


class StreamStates:
    """The states that a streaming graph takes as ``NAME`` and gives back as ``next_NAME``."""

    def __init__(self, graph: GraphBuilder) -> None:
        """Start without states."""
        self._graph = graph

    def carry_history(self, name: str, x: Value, shape: Sequence[Dim], keep: int) -> Value:
        """Put the positions before ``x`` (1, H, T, K) in front of it; carry the last ``keep``.

        Args:
            name: Name of the state.
            x: New positions.
            shape: Shape of the state; its third dimension has a name, so that it starts empty.
            keep: Most positions to carry to the next call.
        """
        graph = self._graph
        state = graph.input(name, np.float32, shape)
        joined = graph.op("Concat", [state, x], axis=2)
        after = [dim if isinstance(dim, int) else None for dim in shape]
        next_state = graph.direct_output(f"next_{name}", np.float32, after)
        start, end, axis = (graph.constant([at], np.int64) for at in (-keep, _INT64_MAX, 2))
        graph.ops("Slice", [joined, start, end, axis], [next_state])
        return joined

    def carry_rows(
        self, name: str, x: Value, shape: tuple[int, int], padding: Value | None = None
    ) -> Value:
        """Put the rows before ``x`` (T, D) in front of it; they start as zeros.

        Args:
            name: Name of the state.
            x: New rows.
            shape: Number of rows to carry, and D.
            padding: Number (1,) of zero rows to put behind x, which are not carried.
        """
        graph = self._graph
        keep, width = shape
        parts = [graph.input(name, np.float32, shape), x]
        if padding is not None:
            size = graph.op("Concat", [padding, graph.constant([width], np.int64)], axis=0)
            parts.append(graph.op("Expand", [graph.constant([0.0], np.float32), size]))
        joined = graph.op("Concat", parts, axis=0)
        # The carried rows end with x, wherever the padding ends.
        start = graph.op("Shape", [x], start=0, end=1)
        end = graph.op("Add", [start, graph.constant([keep], np.int64)])
        next_state = graph.direct_output(f"next_{name}", np.float32, shape)
        graph.ops("Slice", [joined, start, end, graph.constant([0], np.int64)], [next_state])
        return joined


def constant_shape(graph: GraphBuilder, *dims: int) -> Value:
    """Return a shape constant; -1 is the rest, 0 the input's own size."""
    return graph.constant(dims, np.int64)


def linear(
    graph: GraphBuilder, x: Value, name: str, weight: AnyArray, bias: AnyArray | None = None
) -> Value:
    """Apply a (D_out, D_in) weight, as checkpoints store it, to x (T, D_in) -> (T, D_out)."""
    stored = graph.weight(f"{name}.weight", float32(weight.T))
    if bias is None:
        return graph.op("MatMul", [x, stored])
    return graph.op("Gemm", [x, stored, graph.weight(f"{name}.bias", float32(bias))])


def float32(array: AnyArray) -> Float32Array:
    """Return a contiguous float32 array."""
    return np.ascontiguousarray(array, np.float32)


def windows(graph: GraphBuilder, x: Value, num_taps: int, dilation: int = 1) -> Value:
    """Gather the inputs of each output of a convolution.

    ``x`` is time-major, (T + (num_taps - 1) dilation, D); the result (T, num_taps D) has tap 0,
    the oldest, first.
    """
    if num_taps == 1:
        return x
    axis = graph.constant([0], np.int64)
    taps = []
    for tap in range(num_taps):
        rest = (num_taps - 1 - tap) * dilation
        start = graph.constant([tap * dilation], np.int64)
        end = graph.constant([-rest if rest else _INT64_MAX], np.int64)
        taps.append(graph.op("Slice", [x, start, end, axis]))
    return graph.op("Concat", taps, axis=1)


def conv_as_linear(weight: AnyArray) -> AnyArray:
    """Turn a convolution's (D_out, D_in, taps) into a (D_out, taps D_in) weight for windows."""
    return weight.transpose(0, 2, 1).reshape(weight.shape[0], -1)


def polyphase(weight: AnyArray, rate: int) -> AnyArray:
    """Turn a transposed convolution into an ordinary one at the input's rate.

    A transposed convolution of stride r whose kernel has k = n r taps makes r outputs per input
    from n inputs; each of the r is a phase.

    Args:
        weight: (D_in, D_out, k).
        rate: Stride r, a divisor of k.

    Returns:
        (r, D_out, D_in, n): ordinary convolution kernels, oldest input first.
    """
    width_in, width_out, taps = weight.shape
    split = weight.reshape(width_in, width_out, taps // rate, rate)[:, :, ::-1]
    return split.transpose(3, 1, 0, 2)


@dataclass(frozen=True)
class SnakeParameters:
    """``x + sin(x exp(alpha))^2 / (exp(beta) + 1e-9)`` per channel, the logarithms undone."""

    half_turns: NDArray[np.float64]
    """Half-turns of phase per unit of x."""
    amplitude: NDArray[np.float64]
    """Root of the factor before the squared sine."""

    @classmethod
    def from_logarithms(cls, alpha: AnyArray, beta: AnyArray) -> "SnakeParameters":
        """Take the parameters as checkpoints store them."""
        return cls(
            np.exp(alpha.astype(np.float64)) / math.pi,
            1 / np.sqrt(np.exp(beta.astype(np.float64)) + _SNAKE_EPSILON),
        )


def add_squared_sine(
    graph: GraphBuilder, x: Value, half_turns: Value, name: str, amplitude: AnyArray
) -> Value:
    """Return ``x + (amplitude sin(pi half_turns))^2``; the amplitude must broadcast over x."""
    reduced = graph.op("Sub", [half_turns, graph.op("Round", [half_turns])])  # within 1/2
    square = graph.op("Mul", [reduced, reduced])
    root, slope, constant = (
        graph.constant(number, np.float32) for number in (_SINE_ROOT, _SINE_LINEAR, _SINE_CONSTANT)
    )
    sine = graph.op("Mul", [graph.op("Add", [square, slope]), square])
    sine = graph.op("Mul", [graph.op("Add", [sine, constant]), graph.op("Add", [square, root])])
    factor = graph.weight(f"{name}.amplitude", float32(_SINE_FACTOR * amplitude))
    sine = graph.op("Mul", [sine, graph.op("Mul", [reduced, factor])])
    return graph.op("Add", [x, graph.op("Mul", [sine, sine])])


@dataclass(frozen=True)
class Rotary:
    """Cosine and sine tables, each (1, T, K / 2)."""

    cosine: Value
    sine: Value

    def rotate(self, graph: GraphBuilder, x: Value) -> Value:
        """Rotate x (1, H, T, K); the pairs are (i, i + K / 2)."""
        return graph.op("RotaryEmbedding", [x, self.cosine, self.sine])


def rotary(graph: GraphBuilder, positions: Value, head_size: int, theta: float) -> Rotary:
    """Compute the rotary tables of positions (T,) int64, however large they are.

    Whole turns are taken off in double precision, because a float32 angle of position 10000 is
    already wrong in the fourth digit.
    """
    inverse = theta ** -(np.arange(0, head_size, 2, dtype=np.float64) / head_size)
    column = graph.op("Unsqueeze", [positions, graph.constant([0, 2], np.int64)])
    turns = graph.op(
        "Mul",
        [
            graph.cast(column, np.float64),
            graph.constant(inverse / (2 * math.pi), np.float64),
        ],
    )
    part = graph.op("Sub", [turns, graph.op("Floor", [turns])])
    angles = graph.op(
        "Mul",
        [
            graph.cast(part, np.float32),
            graph.constant(2 * math.pi, np.float32),
        ],
    )
    return Rotary(graph.op("Cos", [angles]), graph.op("Sin", [angles]))


def length(graph: GraphBuilder, x: Value, axis: int) -> Value:
    """Return the size of ``x`` along ``axis`` as an int64 scalar."""
    shape = graph.op("Shape", [x], start=axis, end=axis + 1)
    return graph.op("Squeeze", [shape])


def causal_mask(
    graph: GraphBuilder, num_queries: Value, num_keys: Value, window: int | None
) -> Value:
    """Return the additive mask (T, S) of the last T of S positions.

    A query sees itself and what came before, at most ``window`` positions in all.
    """
    zero, one = graph.constant(0, np.int64), graph.constant(1, np.int64)
    first = graph.op("Sub", [num_keys, num_queries])
    queries = graph.op("Range", [first, num_keys, one])
    queries = graph.op("Unsqueeze", [queries, graph.constant([1], np.int64)])
    age = graph.op("Sub", [queries, graph.op("Range", [zero, num_keys, one])])  # (T, S)
    visible = graph.op("GreaterOrEqual", [age, zero])
    if window is not None:
        near = graph.op("Less", [age, graph.constant(window, np.int64)])
        visible = graph.op("And", [visible, near])
    return graph.op(
        "Where",
        [visible, graph.constant(0.0, np.float32), graph.constant(_MASKED, np.float32)],
    )


def split_heads(graph: GraphBuilder, x: Value, num_heads: int, head_size: int) -> Value:
    """Turn (T, H K) into (1, H, T, K)."""
    shaped = graph.op("Reshape", [x, constant_shape(graph, 1, -1, num_heads, head_size)])
    return graph.op("Transpose", [shaped], perm=[0, 2, 1, 3])


def attend(
    graph: GraphBuilder,
    query: Value,
    key: Value,
    value: Value,
    mask: Value,
    *,
    num_heads: int,
    num_kv_heads: int,
    head_size: int,
) -> Value:
    """Attend; the queries are scaled already.

    Args:
        graph: The graph.
        query: (1, H, T, K).
        key: (1, H_kv, S, K).
        value: (1, H_kv, S, K).
        mask: (T, S), added to the scores.
        num_heads: H.
        num_kv_heads: H_kv, a divisor of H; neighbouring query heads share one.
        head_size: K.

    Returns:
        (T, H K).
    """
    if num_kv_heads != num_heads:
        # One more axis lets every group of query heads meet its key head.
        groups = num_heads // num_kv_heads
        query = graph.op(
            "Reshape", [query, constant_shape(graph, num_kv_heads, groups, -1, head_size)]
        )
        key, value = (
            graph.op("Reshape", [x, constant_shape(graph, num_kv_heads, 1, -1, head_size)])
            for x in (key, value)
        )
    turned = graph.op("Transpose", [key], perm=[0, 1, 3, 2])
    scores = graph.op("Add", [graph.op("MatMul", [query, turned]), mask])
    mixed = graph.op("MatMul", [graph.op("Softmax", [scores], axis=-1), value])
    if num_kv_heads != num_heads:
        mixed = graph.op("Reshape", [mixed, constant_shape(graph, 1, num_heads, -1, head_size)])
    joined = graph.op("Transpose", [mixed], perm=[0, 2, 1, 3])
    return graph.op("Reshape", [joined, constant_shape(graph, -1, num_heads * head_size)])


def int64_range(graph: GraphBuilder, start: Value, count: Value) -> Value:
    """Return ``count`` whole numbers from ``start`` on, as int64 (count,)."""
    return graph.op("Range", [start, graph.op("Add", [start, count]), graph.constant(1, np.int64)])


def row_offsets(num_tables: int, table_size: int) -> Int64Array:
    """Return the first row of each of several tables that are stored one below the other."""
    return np.arange(num_tables, dtype=np.int64) * table_size


def centroids(total: AnyArray, usage: AnyArray) -> AnyArray:
    """Return a codebook (C, D) from its training sums (C, D) and counts (C,)."""
    return total / np.maximum(usage, _MIN_CLUSTER_USAGE)[:, None]
