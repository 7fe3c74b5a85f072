"""How far results are from those that they should be: sums over any number of arrays."""

import math
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from wyoming_qwen3tts.arrays import AnyArray, Float32Array
from wyoming_qwen3tts.builder.quantize import snr_db

TOP_K = 10
"""Best codes whose overlap is measured."""

# Values widened to float64 at once: a few arrays of this size stay in a core's own cache.
_CHUNK_VALUES = 1 << 16


@dataclass
class ArrayParity:
    """Agreement of values with the expected ones."""

    num_values: int = 0
    max_abs_error: float = 0.0
    num_not_finite: int = 0
    """Values that are no numbers; they count as zeros in the sums."""
    product: float = 0.0
    expected_energy: float = 0.0
    given_energy: float = 0.0
    error_energy: float = 0.0

    def add(self, expected: AnyArray, given: AnyArray) -> None:
        """Count an array.

        Raises:
            ValueError: The shapes differ.
        """
        if expected.shape != given.shape:
            raise ValueError(f"gives the shape {given.shape}, where {expected.shape} is expected")
        wanted, got = expected.reshape(-1), given.reshape(-1)
        for start in range(0, len(wanted), _CHUNK_VALUES):
            part = slice(start, start + _CHUNK_VALUES)
            self._add_chunk(wanted[part].astype(np.float64), got[part].astype(np.float64))

    def _add_chunk(self, wanted: NDArray[np.float64], got: NDArray[np.float64]) -> None:
        is_finite = np.isfinite(got)
        if not is_finite.all():
            self.num_not_finite += int((~is_finite).sum())
            got = np.where(is_finite, got, 0.0)
        error = got - wanted
        self.num_values += len(wanted)
        self.max_abs_error = max(self.max_abs_error, float(np.abs(error).max(initial=0.0)))
        self.product += _dot(wanted, got)
        self.expected_energy += _dot(wanted, wanted)
        self.given_energy += _dot(got, got)
        self.error_energy += _dot(error, error)

    def merge(self, other: "ArrayParity") -> None:
        """Add what another one has counted."""
        self.num_values += other.num_values
        self.max_abs_error = max(self.max_abs_error, other.max_abs_error)
        self.num_not_finite += other.num_not_finite
        self.product += other.product
        self.expected_energy += other.expected_energy
        self.given_energy += other.given_energy
        self.error_energy += other.error_energy

    @property
    def cosine(self) -> float:
        """Cosine of the angle between all expected and all given values; 1 for two times zero."""
        norms = math.sqrt(self.expected_energy * self.given_energy)
        if norms == 0.0:
            return float(self.expected_energy == self.given_energy)
        return min(self.product / norms, 1.0)

    @property
    def snr_db(self) -> float:
        """Signal-to-noise ratio, at most :data:`quantize.MAX_SNR_DB`."""
        if self.expected_energy == 0.0 and self.error_energy > 0.0:
            return -snr_db(self.error_energy, self.expected_energy)
        return snr_db(self.expected_energy, self.error_energy)

    def figures(self, prefix: str = "") -> dict[str, float]:
        """Return cosine, largest error and signal-to-noise ratio by name."""
        figures = {
            f"{prefix}cosine": self.cosine,
            f"{prefix}max_abs_error": self.max_abs_error,
            f"{prefix}snr_db": self.snr_db,
        }
        if self.num_not_finite:
            figures[f"{prefix}not_finite"] = self.num_not_finite
        return figures


@dataclass
class ScoreParity:
    """Agreement of scores over codes with the expected ones, position by position."""

    array: ArrayParity = field(default_factory=ArrayParity)
    num_positions: int = 0
    num_equal: int = 0
    """Positions whose best code is the expected one."""
    _overlap: float = 0.0
    _divergence: float = 0.0

    def add(self, expected: Float32Array, given: Float32Array) -> None:
        """Count scores (n, C).

        Raises:
            ValueError: The shapes differ.
        """
        self.array.add(expected, given)
        given = np.nan_to_num(given)
        self.num_positions += len(expected)
        self.num_equal += int((expected.argmax(1) == given.argmax(1)).sum())
        best = min(TOP_K, expected.shape[1])
        for wanted, got in zip(_best(expected, best), _best(given, best), strict=True):
            self._overlap += len(np.intersect1d(wanted, got)) / best
        wanted_log, got_log = _log_softmax(expected), _log_softmax(given)
        self._divergence += float((np.exp(wanted_log) * (wanted_log - got_log)).sum())

    @property
    def agreement(self) -> float:
        """Share of positions whose best code is the expected one."""
        return self.num_equal / max(self.num_positions, 1)

    def figures(self) -> dict[str, float]:
        """Return every figure by name."""
        positions = max(self.num_positions, 1)
        return {
            "positions": self.num_positions,
            "agreement": self.agreement,
            f"top{TOP_K}_overlap": self._overlap / positions,
            "kl_nats": max(self._divergence / positions, 0.0),
            **self.array.figures(),
        }


def _dot(a: NDArray[np.float64], b: NDArray[np.float64]) -> float:
    # Not through BLAS, whose threads would wait for those of onnxruntime to stop spinning.
    return float(np.einsum("i,i->", a, b))


def _best(scores: Float32Array, count: int) -> NDArray[np.intp]:
    return np.argpartition(-scores, count - 1, axis=1)[:, :count]


def _log_softmax(scores: Float32Array) -> NDArray[np.float64]:
    shifted = scores.astype(np.float64) - scores.max(1, keepdims=True)
    result: NDArray[np.float64] = shifted - np.log(np.exp(shifted).sum(1, keepdims=True))
    return result
