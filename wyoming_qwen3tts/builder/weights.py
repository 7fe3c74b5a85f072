"""Weights of the language-model graphs: stored in any precision, used the same way.

A matrix product with a quantised weight is one MatMulNBits, with a float one a MatMul.
"""

from dataclasses import dataclass, field

import numpy as np

from wyoming_qwen3tts.arrays import AnyArray, Float32Array
from wyoming_qwen3tts.builder.graph import MICROSOFT_DOMAIN, GraphBuilder, Value
from wyoming_qwen3tts.builder.quantize import MAX_SNR_DB, block_size_for, quantize, snr_db
from wyoming_qwen3tts.builder.recipe import DEFAULT_BLOCK_SIZE, Precision
from wyoming_qwen3tts.runtime.manifest import QuantizationReport

_BITS = {"int8": 8, "int4": 4}
# Activations are quantised to int8 per block too; the kernels without that are 2-3 times slower.
DEFAULT_ACCURACY_LEVEL = 4


@dataclass(frozen=True)
class Numerics:
    """How a graph computes."""

    compute_type: type[np.floating] = np.float32
    """Type of activations and of the KV cache: float32 on the CPU, float16 on CUDA."""
    block_size: int = DEFAULT_BLOCK_SIZE
    accuracy_level: int = DEFAULT_ACCURACY_LEVEL
    """MatMulNBits: 4 quantises activations too, 0 leaves them."""
    table_type: type[np.floating] = np.float32
    """Type in which embedding tables inside a graph are stored."""
    residual_scale: float = 1.0
    """What flows from layer to layer is this times its true value. Norms undo it, so the results
    are the same; float16 needs it, because true values can exceed its largest one, 65504."""
    mlp_scale: float = 1.0
    """The same for the widest vector inside an MLP."""

    @classmethod
    def half_precision(cls, block_size: int = DEFAULT_BLOCK_SIZE) -> "Numerics":
        """Return the numerics of graphs that compute in float16.

        The scales are powers of two, folded into weights, so they cost neither time nor precision.
        """
        return cls(
            compute_type=np.float16,
            block_size=block_size,
            table_type=np.float16,
            residual_scale=2.0**-5,
            mlp_scale=2.0**-4,
        )


@dataclass(frozen=True)
class Linear:
    """A stored weight, usable any number of times."""

    values: tuple[Value, ...]
    """The (K, N) matrix, or packed blocks and scales."""
    precision: Precision
    num_inputs: int
    num_outputs: int
    block_size: int


@dataclass
class _Energies:
    num_tensors: int = 0
    signal: float = 0.0
    error: float = 0.0
    lowest_snr_db: float = MAX_SNR_DB


@dataclass
class WeightWriter:
    """Stores weights in one graph, and remembers what quantisation cost."""

    graph: GraphBuilder
    numerics: Numerics = field(default_factory=Numerics)
    _energies: dict[tuple[str, Precision], _Energies] = field(default_factory=dict)

    def linear_weight(
        self, name: str, weight: Float32Array, precision: Precision, part: str
    ) -> Linear:
        """Store a weight (N, K); ``part`` groups the report."""
        num_outputs, num_inputs = weight.shape
        if precision in _BITS:
            return self._quantized_weight(name, weight, precision, part)
        value = self.graph.weight(name, np.ascontiguousarray(weight.T, self.numerics.compute_type))
        return Linear((value,), precision, num_inputs, num_outputs, 0)

    def _quantized_weight(
        self, name: str, weight: Float32Array, precision: Precision, part: str
    ) -> Linear:
        num_outputs, num_inputs = weight.shape
        block_size = block_size_for(num_inputs, self.numerics.block_size)
        scale_type = self.numerics.compute_type
        quantized = quantize(weight, _BITS[precision], block_size, scale_type=scale_type)
        energies = self._energies.setdefault((part, precision), _Energies())
        energies.num_tensors += 1
        energies.signal += quantized.signal_energy
        energies.error += quantized.error_energy
        energies.lowest_snr_db = min(energies.lowest_snr_db, quantized.snr_db)
        values = (
            self.graph.weight(f"{name}.blocks", quantized.packed),
            self.graph.weight(f"{name}.scales", quantized.scales.astype(scale_type)),
        )
        return Linear(values, precision, num_inputs, num_outputs, block_size)

    def linear(self, x: Value, weight: Linear) -> Value:
        """Return x (..., K) times the weight: (..., N)."""
        if weight.precision in _BITS:
            return self.graph.op(
                "MatMulNBits",
                [x, *weight.values],
                domain=MICROSOFT_DOMAIN,
                K=weight.num_inputs,
                N=weight.num_outputs,
                bits=_BITS[weight.precision],
                block_size=weight.block_size,
                accuracy_level=self.numerics.accuracy_level,
            )
        (matrix,) = weight.values
        return self.graph.op("MatMul", [x, matrix])

    def vector(self, name: str, array: AnyArray) -> Value:
        """Store a norm weight or a bias in the compute type."""
        return self.graph.weight(name, array.astype(self.numerics.compute_type))

    def as_compute_type(self, x: Value) -> Value:
        """Return a float32 value in the compute type."""
        compute_type = self.numerics.compute_type
        return x if compute_type is np.float32 else self.graph.cast(x, compute_type)

    def as_float32(self, x: Value) -> Value:
        """Return a value of the compute type in float32."""
        return x if self.numerics.compute_type is np.float32 else self.graph.cast(x, np.float32)

    def reports(self) -> tuple[QuantizationReport, ...]:
        """Return what quantisation did to the weights stored so far."""
        return tuple(
            QuantizationReport(
                component=self.graph.name,
                part=part,
                precision=precision,
                num_tensors=energies.num_tensors,
                snr_db=round(snr_db(energies.signal, energies.error), 2),
                lowest_snr_db=round(energies.lowest_snr_db, 2),
            )
            for (part, precision), energies in self._energies.items()
        )
