"""One graph of a published bundle, fed in the types that it declares.

Variants of a bundle differ in the types of their inputs and in the names of their outputs
(``logits_Q4``), so types are converted here and outputs are told by their place.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import numpy as np
import onnxruntime as ort

from wyoming_qwen3tts.arrays import AnyArray, Float32Array
from wyoming_qwen3tts.errors import GraphInterfaceError
from wyoming_qwen3tts.runtime.session import check_graph_io

_TYPES: Final[Mapping[str, type[np.generic]]] = {
    "tensor(float)": np.float32,
    "tensor(float16)": np.float16,
    "tensor(int64)": np.int64,
    "tensor(int32)": np.int32,
}


class PublishedGraph:
    """An opened graph."""

    def __init__(
        self, session: ort.InferenceSession, path: Path, *, inputs: Sequence[str], num_outputs: int
    ) -> None:
        """Wrap a session.

        Args:
            session: The session.
            path: The graph's file, for messages.
            inputs: Inputs that it must have; others may follow.
            num_outputs: How many outputs it must have at least.

        Raises:
            GraphInterfaceError: It has not, or an input is of a type that no published graph has.
        """
        check_graph_io(session, path, inputs=inputs, outputs=[])
        self.path = path
        self._session = session
        self._outputs = [value.name for value in session.get_outputs()]
        if len(self._outputs) < num_outputs:
            raise self.contract_error(f"has {len(self._outputs)} outputs, not {num_outputs}")
        self._shapes: dict[str, list[int | str | None]] = {}
        self._types: dict[str, type[np.generic]] = {}
        for value in session.get_inputs():
            if value.type not in _TYPES:
                raise self.contract_error(f"takes {value.name!r} as {value.type}")
            self._shapes[value.name] = list(value.shape)
            self._types[value.name] = _TYPES[value.type]

    @property
    def input_names(self) -> tuple[str, ...]:
        """Names of all inputs, in the graph's order."""
        return tuple(self._shapes)

    @property
    def num_outputs(self) -> int:
        """Number of outputs."""
        return len(self._outputs)

    def dtype(self, name: str) -> type[np.generic]:
        """Return the type of an input."""
        return self._types[name]

    def size(self, name: str, axis: int) -> int | None:
        """Return the size of an input along an axis; None where the graph leaves it open."""
        size = self._shapes[name][axis]
        return size if isinstance(size, int) and size > 0 else None

    def check_size(self, name: str, axis: int, expected: int) -> None:
        """Check the size of an input along an axis, unless the graph leaves it open.

        Raises:
            GraphInterfaceError: The model's configuration says otherwise.
        """
        size = self.size(name, axis)
        if size not in (None, expected):
            raise self.contract_error(
                f"takes {name!r} of size {size}, but the model's configuration says {expected}"
            )

    def run(self, feeds: Mapping[str, AnyArray]) -> list[AnyArray]:
        """Run the graph and return all outputs in their order."""
        typed = {
            name: np.ascontiguousarray(array, self._types[name]) for name, array in feeds.items()
        }
        result: list[AnyArray] = self._session.run(None, typed)
        return result

    def run_rows(self, name: str, rows: AnyArray, others: Mapping[str, AnyArray]) -> Float32Array:
        """Run over a batch and return the first output, row by row where the graph takes no more.

        Args:
            name: An input whose first axis is the batch.
            rows: Its value (B, ...).
            others: The other inputs, with the same first axis.
        """
        feeds = {name: rows, **others}
        if self.size(name, 0) not in (1, None):
            raise self.contract_error(f"takes {self.size(name, 0)} rows at once")
        if self.size(name, 0) is None:
            return as_float32(self.run(feeds)[0])
        single = (
            self.run({key: array[row : row + 1] for key, array in feeds.items()})[0]
            for row in range(len(rows))
        )
        return as_float32(np.concatenate(list(single)))

    def contract_error(self, problem: str) -> GraphInterfaceError:
        """Return an error about this graph; ``problem`` continues "FILE ..."."""
        return GraphInterfaceError(
            f"{self.path} {problem}: it is not a graph of the published layout that this program "
            "knows. Fetch the bundle again, or build one from the checkpoint "
            "(wyoming-qwen3tts build)."
        )


def as_float32(array: AnyArray) -> Float32Array:
    """Return an output in float32."""
    return np.asarray(array, np.float32)
