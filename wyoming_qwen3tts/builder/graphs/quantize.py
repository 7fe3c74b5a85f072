"""Weight-only quantisation in blocks, as the operator MatMulNBits reads it.

A weight (N, K) is cut along K into blocks that share one scale; a value is ``(q - zero) * scale``
with q an unsigned integer of 8 or 4 bits and zero its middle (128 or 8, the operator's default).
Scales are found by error search, not taken from the largest value alone: clipping the few largest
values of a block a little makes all its others finer.
"""

import math
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from wyoming_qwen3tts.arrays import AnyArray, Float32Array
from wyoming_qwen3tts.errors import BuildError
from wyoming_qwen3tts.threads import default_num_threads

# Scales tried, as fractions of the one that keeps the largest value of a block. Eight bits clip
# nothing with gain; four bits gain most between 0.8 and 1.
_FRACTIONS = {8: (1.0, 0.985), 4: (1.0, 0.96, 0.92, 0.88, 0.84, 0.80, 0.75, 0.70)}
_LEAST_SQUARES_ROUNDS = 2
_MIN_BLOCK_SIZE = 16
# Stands for "no error at all", which JSON has no number for.
MAX_SNR_DB: Final = 200.0
# Values handled at once by a thread: a few arrays of this size stay in the core's own cache.
_CHUNK_VALUES = 1 << 17


@dataclass(frozen=True)
class QuantizedWeight:
    """A weight (N, K) in blocks of ``block_size`` along K."""

    packed: NDArray[np.uint8]
    """(N, K / block_size, block_size * bits / 8); at 4 bits the lower half byte comes first."""
    scales: Float32Array
    """(N, K / block_size)."""
    bits: int
    block_size: int
    signal_energy: float
    """Sum of squares of the weight."""
    error_energy: float
    """Sum of squares of the difference that quantisation makes."""

    @property
    def snr_db(self) -> float:
        """Signal-to-noise ratio of the weight."""
        return snr_db(self.signal_energy, self.error_energy)


def snr_db(signal_energy: float, error_energy: float) -> float:
    """Return the ratio in decibels, at most :data:`MAX_SNR_DB`."""
    if error_energy <= signal_energy * 10 ** (-MAX_SNR_DB / 10):
        return MAX_SNR_DB
    return 10 * math.log10(signal_energy / error_energy)


def block_size_for(num_inputs: int, largest: int) -> int:
    """Return the largest power of two up to ``largest`` that divides ``num_inputs``.

    Raises:
        BuildError: No block of at least 16 fits.
    """
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
    weight: Float32Array,
    bits: int,
    block_size: int,
    *,
    search: bool = True,
    scale_type: type[np.floating] = np.float32,
) -> QuantizedWeight:
    """Quantise a weight (N, K).

    Args:
        weight: The weight; K must be a multiple of ``block_size``.
        bits: 8 or 4.
        block_size: Inputs that share a scale, a power of two of at least 16.
        search: Search scales for the least squared error; otherwise the largest value of each
            block fixes its scale, and no value is off by more than half a step.
        scale_type: Type in which the graph will store the scales; they are rounded to it.

    Raises:
        BuildError: A value is not finite.
    """
    num_outputs, num_inputs = weight.shape
    blocks = np.ascontiguousarray(weight, np.float32).reshape(-1, block_size)
    levels = np.empty(blocks.shape, np.uint8)
    scales = np.empty(len(blocks), np.float32)
    rows = max(1, _CHUNK_VALUES // block_size)

    def quantize_rows(start: int) -> tuple[float, float]:
        part = slice(start, min(start + rows, len(blocks)))
        if not np.isfinite(blocks[part]).all():
            raise BuildError("A weight has values that are not finite; the checkpoint is damaged.")
        scales[part], levels[part] = _quantize_blocks(blocks[part], bits, search, scale_type)
        error = (levels[part].astype(np.float32) - (1 << (bits - 1))) * scales[part, None]
        error -= blocks[part]
        return _energy(blocks[part]), _energy(error)

    with ThreadPoolExecutor(default_num_threads()) as pool:
        energies = list(pool.map(quantize_rows, range(0, len(blocks), rows)))
    signal, error = (sum(column) for column in zip(*energies, strict=True))
    shape = (num_outputs, num_inputs // block_size)
    return QuantizedWeight(
        packed=_pack(levels, bits).reshape(*shape, block_size * bits // 8),
        scales=scales.reshape(shape),
        bits=bits,
        block_size=block_size,
        signal_energy=signal,
        error_energy=error,
    )


def dequantize(weight: QuantizedWeight) -> Float32Array:
    """Return the (N, K) weight that the graph effectively multiplies with."""
    levels: AnyArray = weight.packed
    if weight.bits == 4:
        levels = np.stack([levels & 0xF, levels >> 4], axis=-1)
    shape = (*weight.scales.shape, weight.block_size)
    centred = levels.reshape(shape).astype(np.float32) - (1 << (weight.bits - 1))
    return np.asarray(
        (centred * weight.scales[..., None]).reshape(len(weight.scales), -1), np.float32
    )


def _quantize_blocks(
    blocks: Float32Array, bits: int, search: bool, scale_type: type[np.floating]
) -> tuple[Float32Array, NDArray[np.uint8]]:
    """Return scales (n,) and levels (n, block) of blocks (n, block)."""
    half = 1 << (bits - 1)
    largest = np.take_along_axis(blocks, np.abs(blocks).argmax(1)[:, None], 1)[:, 0]
    # Without search the range is symmetric, -127..127 or -7..7, so that no value is clipped.
    best = _usable(np.abs(largest) * np.float32(1 / (half - 1)), scale_type)
    if search:
        best = _search(blocks, largest, best, bits, scale_type)
    steps = _rounded(blocks, best, half)
    return best, (steps + np.float32(half)).astype(np.uint8)


def _search(
    blocks: Float32Array,
    largest: Float32Array,
    start: Float32Array,
    bits: int,
    scale_type: type[np.floating],
) -> Float32Array:
    """Return for each block the scale of least squared error among those tried."""
    half = 1 << (bits - 1)
    best, error = start, _squared_error(blocks, start, half)
    for fraction in _FRACTIONS[bits]:
        # The range has one step more below zero than above: the sign of the scale puts the
        # largest value on that side.
        scale = _usable(largest * np.float32(-fraction / half), scale_type)
        best, error = _better(best, error, scale, _squared_error(blocks, scale, half))
    for _ in range(_LEAST_SQUARES_ROUNDS):
        steps = _rounded(blocks, best, half)
        energy = np.einsum("nk,nk->n", steps, steps)
        product = np.einsum("nk,nk->n", steps, blocks)
        fitted = np.divide(product, energy, out=best.copy(), where=energy > 0)
        scale = _usable(fitted, scale_type)
        best, error = _better(best, error, scale, _squared_error(blocks, scale, half))
    return best


def _better(
    best: Float32Array, best_error: Float32Array, scale: Float32Array, error: Float32Array
) -> tuple[Float32Array, Float32Array]:
    wins = error < best_error
    return np.where(wins, scale, best), np.where(wins, error, best_error)


def _usable(scales: Float32Array, scale_type: type[np.floating]) -> Float32Array:
    """Round scales as the graph stores them; a block of zeros gets any scale but zero."""
    rounded = scales.astype(scale_type).astype(np.float32)
    return np.where(rounded == 0, np.float32(1), rounded)


def _rounded(blocks: Float32Array, scales: Float32Array, half: int) -> Float32Array:
    steps = blocks * np.reciprocal(scales)[:, None]
    np.rint(steps, out=steps)
    return np.clip(steps, -half, half - 1, out=steps)


def _squared_error(blocks: Float32Array, scales: Float32Array, half: int) -> Float32Array:
    error = _rounded(blocks, scales, half)
    error *= scales[:, None]
    error -= blocks
    return np.asarray(np.einsum("nk,nk->n", error, error), np.float32)


def _energy(values: Float32Array) -> float:
    flat = values.reshape(-1)
    return float(np.dot(flat, flat))


def _pack(levels: NDArray[np.uint8], bits: int) -> NDArray[np.uint8]:
    if bits == 8:
        return levels
    return np.asarray(levels[:, 0::2] | (levels[:, 1::2] << 4), np.uint8)
