"""Stored weights against those of the checkpoint, tensor by tensor and by name.

Running a graph shows what all its weights do together; a single damaged one can hide in that. Our
own graphs call a weight the same in every precision, so each can be compared with its float32 form.
"""

import re
from dataclasses import dataclass
from typing import Final

import numpy as np

from wyoming_qwen3tts.arrays import AnyArray
from wyoming_qwen3tts.builder.quantize import QuantizedWeight, dequantize
from wyoming_qwen3tts.builder.verify.census import BlockWeight, GraphCensus, coarsest
from wyoming_qwen3tts.builder.verify.limits import WEIGHT_LIMITS
from wyoming_qwen3tts.builder.verify.parity import ArrayParity
from wyoming_qwen3tts.builder.verify.report import ComponentReport

# Constants are numbered in the order of a graph's making, so equal names may mean different ones.
_CONSTANT: Final = re.compile(r"(^|/)constant_\d+$")
_PRECISIONS: Final = {"float32": "fp32", "float16": "fp16"}
# Half a unit in the last place, relative to a value.
_ROUNDING: Final = {"fp32": 2.0**-24, "fp16": 2.0**-11}
_SMALLEST_HALF: Final = 2.0**-25
_MAX_LISTED: Final = 5
_CHUNK_ROWS: Final = 4096


@dataclass
class _Tensor:
    """How one stored weight compares."""

    name: str
    precision: str
    parity: ArrayParity
    error_steps: float
    """Largest error in steps of the stored type."""

    @property
    def problem(self) -> str | None:
        """What is wrong with it; None if nothing is."""
        limit = WEIGHT_LIMITS[self.precision]
        snr_db, steps = self.parity.snr_db, self.error_steps
        if self.parity.num_not_finite:
            return f"the weight {self.name} has values that are not finite"
        if snr_db < limit.lowest_snr_db or steps > limit.most_steps:
            return (
                f"the weight {self.name} ({self.precision}) is not the checkpoint's: {snr_db:.1f} "
                f"dB, and one value is off by {steps:.3g} steps; {limit.reason}"
            )
        return None


def compare_weights(expected: GraphCensus, given: GraphCensus, entry: ComponentReport) -> None:
    """Compare every weight of a graph with its float32 form in another graph.

    Adds the figures ``weight_snr_db`` (all matrices of the coarsest precision together),
    ``weight_snr_db_lowest`` (of the one that lost most), ``weight_error_steps`` (of the value that
    is furthest off) and ``weights_compared``, and a problem for each weight that is too far off.

    Raises:
        BundleError: A data file cannot be read.
    """
    compared = [
        tensor
        for name in expected.tensors
        if not _CONSTANT.search(name) and (tensor := _compare(name, expected, given)) is not None
    ]
    lossiest = coarsest({tensor.precision for tensor in compared})
    matrices = [
        tensor
        for tensor in compared
        if tensor.precision == lossiest and len(expected.tensors[tensor.name].shape) > 1
    ]
    total = ArrayParity()
    for tensor in matrices:
        total.merge(tensor.parity)
    entry.figures["weights_compared"] = len(compared)
    if matrices:
        entry.figures["weight_snr_db"] = total.snr_db
        entry.figures["weight_snr_db_lowest"] = min(t.parity.snr_db for t in matrices)
        entry.figures["weight_error_steps"] = max(t.error_steps for t in matrices)
    problems = [tensor.problem for tensor in compared if tensor.problem is not None]
    entry.problems += problems[:_MAX_LISTED]
    if len(problems) > _MAX_LISTED:
        entry.problems.append(f"{len(problems) - _MAX_LISTED} more weights are off")


def _compare(name: str, expected: GraphCensus, given: GraphCensus) -> _Tensor | None:
    """Compare one weight; None where the other graph has none of the name and shape."""
    wanted = expected.tensors[name]
    if name in given.block_weights:
        return _compare_blocks(wanted.read(), given, given.block_weights[name])
    stored = given.tensors.get(name)
    if stored is None or stored.shape != wanted.shape or stored.dtype not in _PRECISIONS:
        return None
    precision = _PRECISIONS[stored.dtype]
    parity, steps = ArrayParity(), 0.0
    all_wanted, all_given = np.atleast_1d(wanted.read()), np.atleast_1d(stored.read())
    if all_wanted.dtype.kind != "f":
        return None
    for start in range(0, len(all_wanted), _CHUNK_ROWS):
        part = slice(start, start + _CHUNK_ROWS)
        steps = max(steps, _rounding_steps(all_wanted[part], all_given[part], precision))
        parity.add(all_wanted[part], all_given[part])
    return _Tensor(name, precision, parity, steps)


def _rounding_steps(wanted: AnyArray, given: AnyArray, precision: str) -> float:
    """Return the largest error in units of rounding to the stored type."""
    exact = wanted.astype(np.float64)
    # Sums and angles that another machine computed differ relative to the whole, not to each value.
    scale = np.abs(exact)
    if precision == "fp32":
        scale = np.maximum(scale, np.sqrt(np.mean(exact**2)))
    unit = np.maximum(scale * _ROUNDING[precision], _SMALLEST_HALF if precision == "fp16" else 0.0)
    error = np.abs(given.astype(np.float64) - exact)
    return float(np.max(np.divide(error, unit, out=np.zeros_like(error), where=unit > 0)))


def _compare_blocks(wanted: AnyArray, given: GraphCensus, weight: BlockWeight) -> _Tensor:
    """Compare blocks (N, K / block, bytes) with the matrix (K, N) that our float32 graph holds."""
    scales = np.asarray(given.tensors[weight.scales].read(), np.float32)
    stored = QuantizedWeight(
        packed=np.asarray(given.tensors[weight.blocks].read(), np.uint8),
        scales=scales,
        bits=weight.bits,
        block_size=weight.block_size,
        signal_energy=0.0,
        error_energy=0.0,
    )
    values, exact = dequantize(stored), np.ascontiguousarray(np.asarray(wanted).T)
    parity = ArrayParity()
    parity.add(exact, values)
    error = np.abs(values - exact).reshape(*scales.shape, weight.block_size).max(-1)
    steps = float(np.max(error / np.maximum(np.abs(scales), np.finfo(np.float32).tiny)))
    return _Tensor(weight.name, f"int{weight.bits}", parity, steps)
