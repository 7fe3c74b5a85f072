"""Building blocks that language model, codec and speaker encoder share."""

import math
from typing import Literal

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from wyoming_qwen3tts.arrays import AnyArray, Float32Array, Int64Array

_erf = np.frompyfunc(math.erf, 1, 1)


def as_float32(values: AnyArray) -> Float32Array:
    """Round to float32."""
    return values.astype(np.float32)


def silu(values: Float32Array) -> Float32Array:
    """Return x * sigmoid(x)."""
    return values * sigmoid(values)


def gelu(values: Float32Array) -> Float32Array:
    """Return the exact GELU, by erf."""
    return as_float32(0.5 * values * (1 + _erf(values / math.sqrt(2)).astype(np.float64)))


def elu(values: Float32Array) -> Float32Array:
    """Return x, or exp(x) - 1 below 0."""
    return np.where(values > 0, values, np.expm1(np.minimum(values, 0)))


def relu(values: Float32Array) -> Float32Array:
    """Return max(x, 0)."""
    return as_float32(np.maximum(values, 0))


def sigmoid(values: Float32Array) -> Float32Array:
    """Return 1 / (1 + exp(-x))."""
    return as_float32(1 / (1 + np.exp(-values)))


def softmax(values: Float32Array) -> Float32Array:
    """Return the softmax over the last axis."""
    exponentials = np.exp(values - values.max(-1, keepdims=True))
    return as_float32(exponentials / exponentials.sum(-1, keepdims=True))


def snake(values: Float32Array, alpha: Float32Array, beta: Float32Array) -> Float32Array:
    """Snake activation of (channels, S); alpha and beta (channels,) are logarithms."""
    scale = 1 / (np.exp(beta) + 1e-9)
    return as_float32(values + scale[:, None] * np.sin(values * np.exp(alpha)[:, None]) ** 2)


def rms_norm(values: AnyArray, weight: Float32Array, epsilon: float) -> Float32Array:
    """RMS norm over the last axis; cast back before the weight is applied."""
    squares = (values.astype(np.float64) ** 2).mean(-1, keepdims=True)
    return weight * as_float32(values / np.sqrt(squares + epsilon))


def layer_norm(
    values: AnyArray, weight: Float32Array, bias: Float32Array, epsilon: float
) -> Float32Array:
    """Layer norm over the last axis."""
    centred = values - values.mean(-1, keepdims=True)
    deviation = np.sqrt((centred**2).mean(-1, keepdims=True) + epsilon)
    return as_float32(centred / deviation * weight + bias)


def rotate(values: Float32Array, positions: Int64Array, theta: float) -> Float32Array:
    """Rotary embedding of (H, T, K): the first half of a head is rotated against the second."""
    width = values.shape[-1]
    frequencies = 1 / theta ** (np.arange(0, width, 2) / width)
    angles = positions[:, None] * frequencies[None]  # (T, K / 2)
    cosines, sines = np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)
    first, second = values[..., : width // 2], values[..., width // 2 :]
    return np.concatenate(
        [first * cosines - second * sines, second * cosines + first * sines], axis=-1
    )


def attend(
    queries: Float32Array,
    keys: Float32Array,
    values: Float32Array,
    *,
    past: int,
    window: int | None = None,
) -> Float32Array:
    """Causal attention with grouped heads.

    Args:
        queries: (H, T, K).
        keys: (KV heads, past + T, K); KV head j serves the query heads next to each other.
        values: As ``keys``.
        past: Positions before the first query.
        window: A query sees this many positions, itself among them; None sees all.

    Returns:
        (T, H * K).
    """
    num_heads, length, width = queries.shape
    keys, values = (np.repeat(array, num_heads // len(array), axis=0) for array in (keys, values))
    scores = queries @ keys.transpose(0, 2, 1) / math.sqrt(width)  # (H, T, past + T)
    query_positions = np.arange(length)[:, None] + past
    key_positions = np.arange(keys.shape[1])[None]
    visible = key_positions <= query_positions
    if window is not None:
        visible &= key_positions > query_positions - window
    weights = softmax(as_float32(np.where(visible[None], scores, -1e30)))
    return (weights @ values).transpose(1, 0, 2).reshape(length, -1)


def split_heads(values: Float32Array, num_heads: int) -> Float32Array:
    """(T, H * K) to (H, T, K)."""
    return values.reshape(len(values), num_heads, -1).transpose(1, 0, 2)


def conv1d(
    values: Float32Array,
    weight: Float32Array,
    bias: Float32Array | None = None,
    *,
    stride: int = 1,
    dilation: int = 1,
) -> Float32Array:
    """Convolve padded (in, S) with (out, in, kernel); (out, 1, kernel) is a depthwise one."""
    kernel = weight.shape[2]
    span = (kernel - 1) * dilation + 1
    windows = sliding_window_view(values, span, axis=1)[:, ::stride, ::dilation]
    if weight.shape[1] == 1 and len(values) > 1:
        result = np.einsum("ck,csk->cs", weight[:, 0], windows)
    else:
        result = np.tensordot(weight, windows, axes=([1, 2], [0, 2]))
    return as_float32(result if bias is None else result + bias[:, None])


def transposed_conv1d(
    values: Float32Array, weight: Float32Array, bias: Float32Array, *, stride: int
) -> Float32Array:
    """Full transposed convolution of (in, S) with (in, out, kernel), nothing trimmed."""
    kernel = weight.shape[2]
    taps = np.einsum("iok,is->oks", weight, values, optimize=True)
    length = (values.shape[1] - 1) * stride
    result = np.zeros((weight.shape[1], length + kernel), np.float32)
    for tap in range(kernel):
        result[:, tap : tap + length + 1 : stride] += taps[:, tap]
    return as_float32(result + bias[:, None])


def pad_last(
    values: Float32Array, left: int, right: int, mode: Literal["constant", "edge", "reflect"]
) -> Float32Array:
    """Pad (C, S) along S."""
    return np.pad(values, ((0, 0), (left, right)), mode=mode)
