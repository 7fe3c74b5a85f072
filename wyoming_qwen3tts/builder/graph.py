"""GraphBuilder: the one door through which ONNX graphs are written.

Nothing is traced. A component module calls :meth:`GraphBuilder.op` for each operator and gets
:class:`Value` objects back, so that a graph reads like the formula it computes. Large weights go to
an external data file as soon as they are given, so that building needs little more memory than the
largest tensor.
"""

from collections.abc import Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Self

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from wyoming_qwen3tts.arrays import AnyArray
from wyoming_qwen3tts.errors import BuildError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import TracebackType

ONNX_DOMAIN = ""
MICROSOFT_DOMAIN = "com.microsoft"
OPSET = 23
IR_VERSION = 10
# External tensors start at page boundaries, so that the runtime can map them.
DATA_ALIGNMENT_BYTES = 4096
# Smaller constants stay in the graph file, one copy of each.
INLINE_LIMIT_BYTES = 1024


@dataclass(frozen=True)
class Value:
    """A named tensor of a graph."""

    name: str


# Stands for an optional input that is left out.
NONE = Value("")

Dim = int | str


class GraphBuilder:
    """Collects one graph and writes ``<name>.onnx`` with ``<name>.onnx.data`` beside it.

    Use as a context manager; :meth:`save` ends it::

        with GraphBuilder("double", directory) as graph:
            x = graph.input("x", np.float32, ["N"])
            graph.output(graph.op("Add", [x, x]), "y", np.float32, ["N"])
            graph.save()
    """

    def __init__(self, name: str, directory: Path) -> None:
        """Open the data file of component ``name`` in ``directory``."""
        self.name = name
        self.path = directory / f"{name}.onnx"
        self.data_path = directory / f"{name}.onnx.data"
        self._data: BinaryIO = self.data_path.open("wb")
        self._data_bytes = 0
        self._nodes: list[onnx.NodeProto] = []
        self._initializers: list[onnx.TensorProto] = []
        self._inputs: list[onnx.ValueInfoProto] = []
        self._outputs: list[onnx.ValueInfoProto] = []
        self._inline: dict[tuple[str, tuple[int, ...], bytes], Value] = {}
        self._names: set[str] = set()
        self._counters: dict[str, int] = {}
        self._scopes: list[str] = []

    def __enter__(self) -> Self:
        """Return the builder itself."""
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: "TracebackType | None",
    ) -> None:
        """Close the data file."""
        self._data.close()

    @contextmanager
    def scope(self, name: str) -> "Iterator[None]":
        """Prefix the names of nodes and values made inside with ``name``."""
        self._scopes.append(name)
        try:
            yield
        finally:
            self._scopes.pop()

    def input(self, name: str, dtype: type[np.generic], shape: Sequence[Dim]) -> Value:
        """Declare a graph input."""
        self._claim(name)
        self._inputs.append(helper.make_tensor_value_info(name, _onnx_dtype(dtype), list(shape)))
        return Value(name)

    def output(
        self, value: Value, name: str, dtype: type[np.generic], shape: Sequence[Dim | None]
    ) -> None:
        """Declare ``value`` as the graph output ``name``."""
        self._claim(name)
        self._nodes.append(
            helper.make_node("Identity", [value.name], [name], name=f"output.{name}")
        )
        self._outputs.append(helper.make_tensor_value_info(name, _onnx_dtype(dtype), list(shape)))

    def direct_output(
        self, name: str, dtype: type[np.generic], shape: Sequence[Dim | None]
    ) -> Value:
        """Declare an output that an operator writes itself (pass it as one of ``op``'s outputs).

        Needed where input and output share one buffer: a copying Identity would undo the sharing.
        """
        self._claim(name)
        self._outputs.append(helper.make_tensor_value_info(name, _onnx_dtype(dtype), list(shape)))
        return Value(name)

    def constant(
        self, array: "np.typing.ArrayLike", dtype: type[np.generic] | None = None
    ) -> Value:
        """Return a constant; equal small ones are stored once, inside the graph file."""
        value = np.ascontiguousarray(np.asarray(array, dtype))
        if np.asarray(array).ndim == 0:
            value = value.reshape(())
        if value.nbytes > INLINE_LIMIT_BYTES:
            return self._external(self._fresh("constant"), value)
        key = (value.dtype.str, value.shape, value.tobytes())
        if key not in self._inline:
            name = self._fresh("constant")
            self._initializers.append(numpy_helper.from_array(value, name))
            self._inline[key] = Value(name)
        return self._inline[key]

    def weight(self, name: str, array: AnyArray) -> Value:
        """Store a weight in the external data file at once and return it.

        Raises:
            BuildError: The name is taken.
        """
        self._claim(name)
        return self._external(name, array)

    def _external(self, name: str, array: AnyArray) -> Value:
        padding = -self._data_bytes % DATA_ALIGNMENT_BYTES
        self._data.write(b"\0" * padding)
        contiguous = np.ascontiguousarray(array)
        offset = self._data_bytes + padding
        contiguous.tofile(self._data)
        self._data_bytes = offset + contiguous.nbytes
        tensor = TensorProto(name=name, data_location=TensorProto.EXTERNAL)
        tensor.dims.extend(array.shape)
        tensor.data_type = _onnx_dtype(array.dtype)
        entries = {"location": self.data_path.name, "offset": offset, "length": contiguous.nbytes}
        for key, entry in entries.items():
            tensor.external_data.add(key=key, value=str(entry))
        self._initializers.append(tensor)
        return Value(name)

    def op(
        self, op_type: str, inputs: Sequence[Value], *, domain: str = ONNX_DOMAIN, **attributes: Any
    ) -> Value:
        """Add an operator with one output and return that output."""
        (output,) = self.ops(op_type, inputs, 1, domain=domain, **attributes)
        return output

    def ops(
        self,
        op_type: str,
        inputs: Sequence[Value],
        outputs: int | Sequence[Value | None],
        *,
        domain: str = ONNX_DOMAIN,
        **attributes: Any,
    ) -> list[Value]:
        """Add an operator with several outputs and return them in order.

        Args:
            op_type: Operator name.
            inputs: Input values; ``NONE`` leaves an optional one out.
            outputs: Number of outputs, or one entry per output: a value of
                :meth:`direct_output`, ``NONE`` to leave it out, None for a fresh value.
            domain: Operator domain.
            **attributes: Operator attributes.
        """
        wanted: Sequence[Value | None] = [None] * outputs if isinstance(outputs, int) else outputs
        results = [Value(self._fresh(op_type)) if value is None else value for value in wanted]
        self._nodes.append(
            helper.make_node(
                op_type,
                [value.name for value in inputs],
                [value.name for value in results],
                name=self._fresh(f"node.{op_type}"),
                domain=domain,
                **attributes,
            )
        )
        return results

    def cast(self, value: Value, dtype: type[np.generic]) -> Value:
        """Return ``value`` converted to ``dtype``."""
        return self.op("Cast", [value], to=_onnx_dtype(dtype))

    def save(self) -> None:
        """Write the graph file; the data file is complete already."""
        graph = helper.make_graph(
            self._nodes, self.name, self._inputs, self._outputs, self._initializers
        )
        model = helper.make_model(
            graph,
            producer_name="wyoming-qwen3tts",
            ir_version=IR_VERSION,
            opset_imports=[
                helper.make_opsetid(ONNX_DOMAIN, OPSET),
                helper.make_opsetid(MICROSOFT_DOMAIN, 1),
            ],
        )
        self._data.flush()
        self.path.write_bytes(model.SerializeToString())
        self._data.close()
        if self._data_bytes == 0:
            self.data_path.unlink()

    def _fresh(self, kind: str) -> str:
        prefix = "/".join([*self._scopes, kind])
        number = self._counters.get(prefix, 0)
        self._counters[prefix] = number + 1
        name = f"{prefix}_{number}"
        self._claim(name)
        return name

    def _claim(self, name: str) -> None:
        if name in self._names:
            raise BuildError(f"Graph {self.name}: two values are called {name!r}.")
        self._names.add(name)


def _onnx_dtype(dtype: "np.typing.DTypeLike") -> int:
    return int(helper.np_dtype_to_tensor_dtype(np.dtype(dtype)))
