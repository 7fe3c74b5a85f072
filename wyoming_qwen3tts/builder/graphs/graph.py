"""GraphBuilder: the only module that writes ONNX graphs.

A graph is written operator by operator, and reads like the formula that it computes. Weights go to
an external data file at once, so a build needs little more memory than its largest tensor.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, Final, Self, Union

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from wyoming_qwen3tts.arrays import AnyArray
from wyoming_qwen3tts.errors import BuildError

INT64_MAX: Final = np.iinfo(np.int64).max
"""End of a Slice that goes to the end of the axis."""
DATA_ALIGNMENT_BYTES: Final = 4096
"""External tensors start at page boundaries, so that the runtime can map them."""

_MICROSOFT_DOMAIN = "com.microsoft"
_MICROSOFT_OPERATORS = frozenset(
    {
        "GroupQueryAttention",
        "MatMulIntegerToFloat",
        "MatMulNBits",
        "QuickGelu",
        "SkipSimplifiedLayerNormalization",
    }
)
_OPSET = 23
_IR_VERSION = 10
# Smaller constants stay in the graph file, one copy of each.
_INLINE_LIMIT_BYTES = 1024

Dim = int | str | None
Operand = Union["Value", AnyArray, "np.generic[Any]", float, Sequence[float], Sequence["Value"]]
"""An input of an operator. Python integers become int64 constants, floats become float32, numpy
values keep their type. A list of values stands for several inputs."""


def _infix(operator: str) -> Callable[["Value", Operand], "Value"]:
    return lambda left, right: left.graph.op(operator, left, right)


@dataclass(frozen=True)
class Value:
    """A named tensor of a graph."""

    name: str
    graph: "GraphBuilder" = field(repr=False, compare=False)

    __add__ = _infix("Add")
    __sub__ = _infix("Sub")
    __mul__ = _infix("Mul")
    __truediv__ = _infix("Div")
    __matmul__ = _infix("MatMul")


class GraphBuilder:
    """Collects one graph; leaving the context writes ``<name>.onnx`` beside its data file.

    ::

        with GraphBuilder("double", directory) as graph:
            x = graph.input("x", np.float32, ["N"])
            graph.output(x * 2.0, "y", np.float32, ["N"])
    """

    def __init__(self, name: str, directory: Path) -> None:
        self.name = name
        self.path = directory / f"{name}.onnx"
        self.metadata: dict[str, str] = {}
        self._data_path = directory / f"{name}.onnx.data"
        self._data: BinaryIO = self._data_path.open("wb")
        self._nodes: list[onnx.NodeProto] = []
        self._initializers: list[onnx.TensorProto] = []
        self._inputs: list[onnx.ValueInfoProto] = []
        self._outputs: list[onnx.ValueInfoProto] = []
        self._output_names: dict[str, str] = {}
        self._inline: dict[tuple[str, tuple[int, ...], bytes], Value] = {}
        self._names = {""}
        self._counters: dict[str, int] = {}
        self._scopes: list[str] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, error_type: type[BaseException] | None, *_details: object) -> None:
        num_bytes = self._data.tell()
        self._data.close()
        if num_bytes == 0:
            self._data_path.unlink()
        if error_type is not None:
            return
        for node in self._nodes:
            for names in (node.input, node.output):
                names[:] = [self._output_names.get(name, name) for name in names]
        graph = helper.make_graph(
            self._nodes, self.name, self._inputs, self._outputs, self._initializers
        )
        opsets = [helper.make_opsetid("", _OPSET), helper.make_opsetid(_MICROSOFT_DOMAIN, 1)]
        model = helper.make_model(
            graph, producer_name="wyoming-qwen3tts", ir_version=_IR_VERSION, opset_imports=opsets
        )
        helper.set_model_props(model, self.metadata)
        self.path.write_bytes(model.SerializeToString())

    @contextmanager
    def scope(self, name: str) -> Iterator[None]:
        """Prefix the names of nodes and values made inside with ``name``."""
        self._scopes.append(name)
        try:
            yield
        finally:
            self._scopes.pop()

    def input(self, name: str, dtype: type[np.generic], shape: Sequence[Dim]) -> Value:
        """Declare a graph input."""
        self._inputs.append(helper.make_tensor_value_info(name, _onnx_dtype(dtype), list(shape)))
        return self._claim(name)

    def output(
        self, value: Value, name: str, dtype: type[np.generic], shape: Sequence[Dim]
    ) -> None:
        """Declare an operator's result as the graph output ``name``."""
        self._claim(name)
        self._output_names[value.name] = name
        self._outputs.append(helper.make_tensor_value_info(name, _onnx_dtype(dtype), list(shape)))

    def constant(
        self, array: "np.typing.ArrayLike", dtype: type[np.generic] | None = None
    ) -> Value:
        """Return a constant; equal small ones are stored once, inside the graph file."""
        value = np.asarray(array, dtype)
        value = np.ascontiguousarray(value).reshape(value.shape)
        if value.nbytes > _INLINE_LIMIT_BYTES:
            return self._external(self._fresh("constant"), value)
        key = (value.dtype.str, value.shape, value.tobytes())
        if key not in self._inline:
            self._inline[key] = self._fresh("constant")
            tensor = numpy_helper.from_array(value, self._inline[key].name)
            self._initializers.append(tensor)
        return self._inline[key]

    def weight(self, name: str, array: AnyArray, dtype: type[np.generic] | None = None) -> Value:
        """Write a weight to the data file, as ``dtype`` if given."""
        return self._external(self._claim(name), np.ascontiguousarray(array, dtype))

    def op(self, operator: str, *inputs: Operand, **attributes: Any) -> Value:
        """Add an operator with one output and return that output."""
        return self.ops(operator, *inputs, outputs=1, **attributes)[0]

    def ops(
        self,
        operator: str,
        *inputs: Operand | None,
        outputs: int | Sequence[bool],
        **attributes: Any,
    ) -> list[Value]:
        """Add an operator and return its outputs in order.

        An input None leaves an optional input out. ``outputs`` is their number, or one flag per
        output; False leaves it out.
        """
        wanted = [True] * outputs if isinstance(outputs, int) else outputs
        names = [value.name for item in inputs for value in self._values(item)]
        results = [self._fresh(operator) if flag else Value("", self) for flag in wanted]
        domain = _MICROSOFT_DOMAIN if operator in _MICROSOFT_OPERATORS else ""
        node_name = self._fresh(f"node.{operator}").name
        ports = (names, [value.name for value in results], node_name)
        self._nodes.append(helper.make_node(operator, *ports, domain=domain, **attributes))
        return [value for value in results if value.name]

    def cast(self, value: Value, dtype: type[np.generic]) -> Value:
        """Return ``value`` converted to ``dtype``."""
        return self.op("Cast", value, to=_onnx_dtype(dtype))

    def length(self, value: Value, axis: int) -> Value:
        """Return the size of ``value`` along ``axis`` as an int64 scalar."""
        return self.op("Squeeze", self.op("Shape", value, start=axis, end=axis + 1))

    def _values(self, operand: Operand | None) -> list[Value]:
        if operand is None:
            return [Value("", self)]
        if isinstance(operand, Value):
            return [operand]
        if isinstance(operand, (np.ndarray, np.generic)):
            return [self.constant(operand)]
        if isinstance(operand, Sequence) and isinstance(operand[0], Value):
            return [value for value in operand if isinstance(value, Value)]
        array = np.asarray(operand)
        return [self.constant(array, np.float32 if array.dtype.kind == "f" else np.int64)]

    def _external(self, value: Value, array: AnyArray) -> Value:
        self._data.write(b"\0" * (-self._data.tell() % DATA_ALIGNMENT_BYTES))
        offset = self._data.tell()
        array.tofile(self._data)
        tensor = TensorProto(name=value.name, data_type=_onnx_dtype(array.dtype), dims=array.shape)
        tensor.data_location = TensorProto.EXTERNAL
        entries = {"location": self._data_path.name, "offset": offset, "length": array.nbytes}
        for key, entry in entries.items():
            tensor.external_data.add(key=key, value=str(entry))
        self._initializers.append(tensor)
        return value

    def _fresh(self, kind: str) -> Value:
        prefix = "/".join([*self._scopes, kind])
        number = self._counters.get(prefix, 0)
        self._counters[prefix] = number + 1
        return self._claim(f"{prefix}_{number}")

    def _claim(self, name: str) -> Value:
        if name in self._names:
            raise BuildError(f"Graph {self.name}: two values are called {name!r}.")
        self._names.add(name)
        return Value(name, self)


def _onnx_dtype(dtype: "np.typing.DTypeLike") -> int:
    return int(helper.np_dtype_to_tensor_dtype(np.dtype(dtype)))
