"""Convolution by minimal filtering (Toom-Cook, known as Winograd convolution).

Six neighbouring outputs of a convolution with seven taps are two polynomials' product in disguise:
evaluated at twelve points instead of multiplied out, they cost 12 products instead of 42. With
inputs d_0 .. d_11, taps g_0 .. g_6 and matrices that only depend on the points::

    y = A ((G g) * (B d))        y_i = sum_j g_j d_(i + j),   i = 0 .. 5

``G g`` is computed once, when the graph is built. ``B`` and ``A`` act on every channel alike, so in
time-major layout each is one matrix product with a tiny left side.
"""

from dataclasses import dataclass
from fractions import Fraction
from typing import Final

import numpy as np
from numpy.typing import NDArray

from wyoming_qwen3tts.arrays import AnyArray

NUM_OUTPUTS: Final = 6
NUM_TAPS: Final = 7
NUM_POINTS: Final = NUM_OUTPUTS + NUM_TAPS - 1

# One more point is infinity. Chosen by search over small fractions: white and correlated signals
# come out with a relative error of 4.6e-6 at most, direct float32 sums have 0.6e-6. Four outputs
# would have 2.5e-6 and cost a seventh more time, eight 1.3e-5.
_POINTS = (
    Fraction(0),
    *(
        sign * Fraction(*point)
        for point in ((1, 1), (1, 3), (2, 3), (3, 2), (3, 1))
        for sign in (1, -1)
    ),
)

_Rows = list[list[Fraction]]


@dataclass(frozen=True)
class MinimalFilter:
    """The three matrices of the scheme, scaled so that no point dominates the rounding."""

    outputs: NDArray[np.float64]
    """A, (6, 12)."""
    taps: NDArray[np.float64]
    """G, (12, 7)."""
    inputs: NDArray[np.float64]
    """B, (12, 12)."""

    def transform(self, kernel: AnyArray) -> NDArray[np.float64]:
        """Return (12, D_in, D_out): one product per point, for a kernel (D_out, D_in, 7)."""
        turned = kernel.astype(np.float64).transpose(2, 1, 0)
        product: NDArray[np.float64] = np.tensordot(self.taps, turned, axes=1)
        return product


def minimal_filter() -> MinimalFilter:
    """Compute the matrices exactly, then scale and round them.

    Multiplying polynomials of 6 and 7 coefficients by evaluation is y = V^-1 ((V_6 a) * (V_7 g));
    the transpose of that bilinear form is the convolution.
    """
    outputs = _as_floats(_evaluation(NUM_OUTPUTS)).T
    taps = _as_floats(_evaluation(NUM_TAPS))
    inputs = _as_floats(_inverse(_evaluation(NUM_POINTS))).T
    input_scale = np.abs(inputs).sum(1)
    output_scale = np.abs(outputs).max(0)
    return MinimalFilter(
        outputs / output_scale,
        taps * (input_scale * output_scale)[:, None],
        inputs / input_scale[:, None],
    )


def _evaluation(num_coefficients: int) -> _Rows:
    """Return the matrix that evaluates a polynomial at every point, infinity last."""
    rows = [[point**power for power in range(num_coefficients)] for point in _POINTS]
    leading = [Fraction(0)] * (num_coefficients - 1) + [Fraction(1)]
    return [*rows, leading]


def _inverse(matrix: _Rows) -> _Rows:
    """Invert by Gauss-Jordan elimination, without rounding."""
    size = len(matrix)
    rows = [
        [*row, *(Fraction(int(column == index)) for column in range(size))]
        for index, row in enumerate(matrix)
    ]
    for index in range(size):
        pivot = next(row for row in range(index, size) if rows[row][index] != 0)
        rows[index], rows[pivot] = rows[pivot], rows[index]
        rows[index] = [value / rows[index][index] for value in rows[index]]
        for other in range(size):
            if other != index:
                factor = rows[other][index]
                rows[other] = [
                    value - factor * base
                    for value, base in zip(rows[other], rows[index], strict=True)
                ]
    return [row[size:] for row in rows]


def _as_floats(rows: _Rows) -> NDArray[np.float64]:
    return np.array([[float(value) for value in row] for row in rows])
