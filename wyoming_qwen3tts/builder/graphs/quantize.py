"""Weight-only quantisation in blocks, as the operator MatMulNBits reads it.

A weight (N, K) is cut along K into blocks that share one scale. A value is ``(q - zero) * scale``
with q an unsigned integer of 8 or 4 bits and zero its middle (128 or 8, the operator's default).
Scales come from an error search: clipping the largest values of a block makes all others finer.
"""

from concurrent.futures import ThreadPoolExecutor
from typing import Final

import numpy as np
from numpy.typing import NDArray

from wyoming_qwen3tts.arrays import Float32Array
from wyoming_qwen3tts.errors import BuildError
from wyoming_qwen3tts.machine import default_num_threads

# Scales tried, as fractions of the one that keeps the largest value of a block. Clipping does not
# help at 8 bits; at 4 bits the best scale is usually 0.8 to 1.0 of the largest.
_FRACTIONS: Final = {8: (1.0, 0.985), 4: (1.0, 0.96, 0.92, 0.88, 0.84, 0.80, 0.75, 0.70)}
_LEAST_SQUARES_ROUNDS: Final = 2
_MIN_BLOCK_SIZE: Final = 16
# Values per task of a thread: a few arrays of this size stay in the core's own cache.
_CHUNK_VALUES: Final = 1 << 17


def block_size_for(num_inputs: int, largest: int) -> int:
    """Return the largest power of two up to ``largest`` that divides ``num_inputs``."""
    size = largest
    while num_inputs % size:
        size //= 2
    if size < _MIN_BLOCK_SIZE:
        raise BuildError(
            f"A weight with {num_inputs} inputs cannot be quantised: {_MIN_BLOCK_SIZE} does not "
            "divide that. Build with --precision fp32."
        )
    return size


def quantize(
    weight: Float32Array, bits: int, block_size: int
) -> tuple[NDArray[np.uint8], Float32Array]:
    """Quantise a weight (N, K) to 8 or 4 bits; K must be a multiple of ``block_size``.

    Returns values (N, K / block size, block size * bits / 8), at 4 bits the lower half byte first,
    and scales (N, K / block size).
    """
    num_outputs, num_inputs = weight.shape
    half = 1 << (bits - 1)
    blocks = np.ascontiguousarray(weight, np.float32).reshape(-1, block_size)
    levels = np.empty(blocks.shape, np.uint8)
    scales = np.empty(len(blocks), np.float32)
    rows = max(1, _CHUNK_VALUES // block_size)

    def quantize_rows(start: int) -> None:
        part = slice(start, start + rows)
        if not np.isfinite(blocks[part]).all():
            raise BuildError("A weight has values that are not finite; the checkpoint is damaged.")
        scales[part] = _best_scales(blocks[part], bits)
        levels[part] = _steps(blocks[part], scales[part], half) + np.float32(half)

    with ThreadPoolExecutor(default_num_threads()) as pool:
        list(pool.map(quantize_rows, range(0, len(blocks), rows)))
    if bits == 4:
        levels = np.asarray(levels[:, 0::2] | (levels[:, 1::2] << 4), np.uint8)
    shape = (num_outputs, num_inputs // block_size)
    return levels.reshape(*shape, -1), scales.reshape(shape)


def _best_scales(blocks: Float32Array, bits: int) -> Float32Array:
    """Return for each block (n, block size) the scale of least squared error among those tried."""
    half = 1 << (bits - 1)
    largest = np.take_along_axis(blocks, np.abs(blocks).argmax(1)[:, None], 1)[:, 0]
    best = _nonzero(np.abs(largest) * np.float32(1 / (half - 1)))
    best_error = _squared_error(blocks, best, half)

    def consider(scales: Float32Array) -> None:
        nonlocal best, best_error
        scales = _nonzero(scales)
        error = _squared_error(blocks, scales, half)
        is_better = error < best_error
        best, best_error = np.where(is_better, (scales, error), (best, best_error))

    for fraction in _FRACTIONS[bits]:
        # The range has one step more below zero than above: the sign of the scale puts the
        # largest value on that side.
        consider(largest * np.float32(-fraction / half))
    for _ in range(_LEAST_SQUARES_ROUNDS):
        steps = _steps(blocks, best, half)
        energy = np.einsum("nk,nk->n", steps, steps)
        product = np.einsum("nk,nk->n", steps, blocks)
        consider(np.divide(product, energy, out=best.copy(), where=energy > 0))
    return best


def _nonzero(scales: Float32Array) -> Float32Array:
    """Return the scales; a block of zeros gets any scale but zero."""
    return np.where(scales == 0, np.float32(1), scales)


def _steps(blocks: Float32Array, scales: Float32Array, half: int) -> Float32Array:
    steps = blocks * np.reciprocal(scales)[:, None]
    np.rint(steps, out=steps)
    return np.clip(steps, -half, half - 1, out=steps)


def _squared_error(blocks: Float32Array, scales: Float32Array, half: int) -> Float32Array:
    error = _steps(blocks, scales, half)
    error *= scales[:, None]
    error -= blocks
    return np.asarray(np.einsum("nk,nk->n", error, error), np.float32)
