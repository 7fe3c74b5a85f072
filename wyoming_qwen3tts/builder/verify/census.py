"""What a graph file holds: types of weights, quantised operators, inputs, outputs.

The size of a file misleads: a graph can be small because a table was left out, and a "quantised"
one can hold most of its weights in float32. So everything is counted from the graph itself.
"""

import math
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
import onnx
from onnx import AttributeProto, TensorProto, numpy_helper

from wyoming_qwen3tts.arrays import AnyArray
from wyoming_qwen3tts.errors import BundleError

PRECISIONS: Final = ("int4", "int8", "fp16", "fp32")
"""The coarsest first."""

_BLOCK_OPERATOR: Final = "MatMulNBits"
# Operators that work on quantised values, by the beginning or end of their names.
_QUANTIZED_PREFIXES: Final = ("QLinear", "QAttention", "QMoE", "GatherBlockQuantized", "QGemm")
_QUANTIZED_SUFFIXES: Final = ("NBits", "Integer", "IntegerToFloat", "QuantizeLinear")
# Type of a stored weight -> its name in reports, and bytes of a value.
_TYPES: Final[Mapping[int, tuple[str, float]]] = {
    TensorProto.FLOAT: ("float32", 4),
    TensorProto.FLOAT16: ("float16", 2),
    TensorProto.BFLOAT16: ("bfloat16", 2),
    TensorProto.DOUBLE: ("float64", 8),
    TensorProto.INT64: ("int64", 8),
    TensorProto.INT32: ("int32", 4),
    TensorProto.INT8: ("int8", 1),
    TensorProto.UINT8: ("uint8", 1),
    TensorProto.INT4: ("int4", 0.5),
    TensorProto.UINT4: ("uint4", 0.5),
    TensorProto.BOOL: ("bool", 1),
}
_BITS_PRECISION: Final = {8: "int8", 4: "int4"}
# A matrix of fewer values says nothing about the precision of a graph.
_SMALL_VALUES: Final = 4096

Shape = tuple[int | str, ...]


@dataclass(frozen=True)
class StoredTensor:
    """Where a weight's values are."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    num_bytes: int
    values: AnyArray | None
    """The values themselves where the graph file holds them; None in the data file."""
    path: Path
    offset: int

    def read(self) -> AnyArray:
        """Return the values, mapped where they are in the data file.

        Raises:
            BundleError: The data file is missing or too short.
        """
        if self.values is not None:
            return self.values
        try:
            mapped: AnyArray = np.memmap(
                self.path, self.dtype, mode="r", offset=self.offset, shape=self.shape
            )
        except (OSError, ValueError) as error:
            raise BundleError(f"{self.path} does not hold {self.name} ({error}).") from error
        return mapped


@dataclass(frozen=True)
class BlockWeight:
    """A weight (N, K) of MatMulNBits."""

    name: str
    """In our own graphs its parts are called ``name.blocks`` and ``name.scales``."""
    blocks: str
    scales: str
    bits: int
    block_size: int


@dataclass(frozen=True)
class QuantizedOperators:
    """Operators of one kind that work on quantised values."""

    op_type: str
    bits: int | None
    """None where the operator does not state it."""
    block_size: int | None
    num_nodes: int
    num_weights: int
    """Different weights; a graph may use one many times."""

    def describe(self) -> str:
        """Return the clause of a report."""
        details = []
        if self.bits is not None:
            details.append(f"{self.bits} bits")
        if self.block_size is not None:
            details.append(f"blocks of {self.block_size}")
        if self.num_weights != self.num_nodes:
            details.append(f"{self.num_weights} weights")
        return f"{self.num_nodes} {self.op_type}" + (f" ({', '.join(details)})" if details else "")


@dataclass(frozen=True)
class GraphCensus:
    """One graph."""

    name: str
    num_nodes: int
    weight_bytes: Mapping[str, int]
    """Type -> bytes of all weights of that type."""
    operators: tuple[QuantizedOperators, ...]
    precisions: tuple[str, ...]
    """Precisions of the weights, the coarsest first."""
    inputs: Mapping[str, Shape]
    outputs: Mapping[str, Shape]
    input_types: Mapping[str, str]
    tensors: Mapping[str, StoredTensor]
    block_weights: Mapping[str, BlockWeight]
    """By the weight's name."""


def read_census(path: Path) -> GraphCensus:
    """Read a graph file, but none of the values in its data file.

    Raises:
        BundleError: The file cannot be read.
    """
    try:
        model = onnx.load(str(path), load_external_data=False)
    except Exception as error:  # protobuf raises kinds of its own
        raise BundleError(f"{path} cannot be read as a graph ({error}).") from error
    graph = model.graph
    tensors = {tensor.name: _stored(tensor, path) for tensor in _weights(graph)}
    block_weights = {weight.name: weight for weight in _block_weights(graph)}
    weight_bytes: Counter[str] = Counter()
    for tensor in tensors.values():
        weight_bytes[tensor.dtype] += tensor.num_bytes
    return GraphCensus(
        name=path.stem,
        num_nodes=len(graph.node),
        weight_bytes=dict(weight_bytes.most_common()),
        operators=_quantized_operators(graph),
        precisions=_precisions(graph, tensors),
        inputs={value.name: _shape(value) for value in graph.input},
        outputs={value.name: _shape(value) for value in graph.output},
        input_types={
            value.name: _type_name(value.type.tensor_type.elem_type) for value in graph.input
        },
        tensors=tensors,
        block_weights=block_weights,
    )


def coarsest(precisions: Collection[str]) -> str | None:
    """Return the coarsest precision, None if there is none."""
    return next((name for name in PRECISIONS if name in precisions), None)


def _weights(graph: onnx.GraphProto) -> Iterator[onnx.TensorProto]:
    yield from graph.initializer
    for node in graph.node:
        if node.op_type == "Constant":
            for attribute in node.attribute:
                if attribute.type == AttributeProto.TENSOR:
                    constant = onnx.TensorProto()
                    constant.CopyFrom(attribute.t)
                    constant.name = node.output[0]
                    yield constant


def _stored(tensor: onnx.TensorProto, path: Path) -> StoredTensor:
    shape = tuple(tensor.dims)
    _, value_bytes = _TYPES.get(tensor.data_type, ("", 0))
    num_bytes = math.ceil(math.prod(shape) * value_bytes)
    is_external = tensor.data_location == TensorProto.EXTERNAL
    place = {entry.key: entry.value for entry in tensor.external_data} if is_external else {}
    return StoredTensor(
        name=tensor.name,
        dtype=_type_name(tensor.data_type),
        shape=shape,
        num_bytes=num_bytes,
        values=None if is_external else numpy_helper.to_array(tensor),
        path=path.parent / place.get("location", path.name),
        offset=int(place.get("offset", 0)),
    )


def _block_weights(graph: onnx.GraphProto) -> Iterator[BlockWeight]:
    for node in graph.node:
        if node.op_type == _BLOCK_OPERATOR:
            numbers = _numbers(node)
            yield BlockWeight(
                name=node.input[1].removesuffix(".blocks"),
                blocks=node.input[1],
                scales=node.input[2],
                bits=numbers.get("bits", 4),
                block_size=numbers.get("block_size", 0),
            )


def _quantized_operators(graph: onnx.GraphProto) -> tuple[QuantizedOperators, ...]:
    nodes: Counter[tuple[str, int | None, int | None]] = Counter()
    weights: dict[tuple[str, int | None, int | None], set[str]] = {}
    for node in graph.node:
        if not _is_quantized(node.op_type):
            continue
        numbers = _numbers(node)
        key = (node.op_type, numbers.get("bits"), numbers.get("block_size"))
        nodes[key] += 1
        # The weight is the first input of a gather, the second one of a product.
        place = 0 if node.op_type.startswith("Gather") else min(1, len(node.input) - 1)
        weights.setdefault(key, set()).add(node.input[place])
    return tuple(
        QuantizedOperators(*key, num_nodes=count, num_weights=len(weights[key]))
        for key, count in nodes.most_common()
    )


def _is_quantized(op_type: str) -> bool:
    return op_type.startswith(_QUANTIZED_PREFIXES) or op_type.endswith(_QUANTIZED_SUFFIXES)


def _precisions(graph: onnx.GraphProto, tensors: Mapping[str, StoredTensor]) -> tuple[str, ...]:
    """Return the precisions of a graph's matrices, the coarsest first."""
    found, described = set(), set()
    for node in graph.node:
        if _is_quantized(node.op_type):
            found.add(_BITS_PRECISION.get(_numbers(node).get("bits", 8), "int4"))
            described.update(node.input)  # its scales are no weights of their own
    for tensor in tensors.values():
        if tensor.name in described or math.prod(tensor.shape) < _SMALL_VALUES:
            continue
        if tensor.dtype in ("float16", "bfloat16"):
            found.add("fp16")
        elif tensor.dtype == "float32":
            found.add("fp32")
    return tuple(name for name in PRECISIONS if name in found)


def _numbers(node: onnx.NodeProto) -> dict[str, int]:
    return {
        attribute.name: attribute.i
        for attribute in node.attribute
        if attribute.type == AttributeProto.INT
    }


def _shape(value: onnx.ValueInfoProto) -> Shape:
    return tuple(
        dim.dim_value if dim.HasField("dim_value") else dim.dim_param
        for dim in value.type.tensor_type.shape.dim
    )


def _type_name(data_type: int) -> str:
    if data_type in _TYPES:
        return _TYPES[data_type][0]
    return str(TensorProto.DataType.Name(data_type)).lower()
