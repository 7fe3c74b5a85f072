"""The graph writer by itself."""

import numpy as np
import onnx
import pytest

from wyoming_qwen3tts.builder.graph import DATA_ALIGNMENT_BYTES, GraphBuilder
from wyoming_qwen3tts.errors import BuildError
from wyoming_qwen3tts.runtime.graphs import open_session


def run(path, **feeds):
    return open_session(path, num_threads=2).run(None, feeds)


def test_constants_of_any_size_and_weights_are_there(tmp_path):
    large = np.arange(4096, dtype=np.float32)
    with GraphBuilder("sum", tmp_path) as graph:
        x = graph.input("x", np.float32, [4096])
        total = graph.op("Add", [x, graph.constant(large)])
        total = graph.op("Add", [total, graph.constant(2.0, np.float32)])
        graph.output(graph.op("Mul", [total, graph.weight("half", large)]), "y", np.float32, [4096])
        graph.save()
    (y,) = run(tmp_path / "sum.onnx", x=np.ones(4096, np.float32))
    assert np.array_equal(y, (1 + large + 2) * large)


def test_equal_small_constants_are_stored_once(tmp_path):
    with GraphBuilder("same", tmp_path) as graph:
        x = graph.input("x", np.float32, ["N"])
        assert graph.constant([1, 2]) == graph.constant([1, 2])
        assert graph.constant(1.0, np.float32) != graph.constant(1, np.int64)
        graph.output(x, "y", np.float32, ["N"])
        graph.save()
    assert not (tmp_path / "same.onnx.data").exists()


def test_external_tensors_are_aligned_for_mapping(tmp_path):
    with GraphBuilder("two", tmp_path) as graph:
        x = graph.input("x", np.float32, [3])
        for name in ("a", "b"):
            x = graph.op("Add", [x, graph.weight(name, np.ones(3, np.float32))])
        graph.output(x, "y", np.float32, [3])
        graph.save()
    model = onnx.load(tmp_path / "two.onnx", load_external_data=False)
    offsets = [
        int(entry.value)
        for tensor in model.graph.initializer
        for entry in tensor.external_data
        if entry.key == "offset"
    ]
    assert offsets == [0, DATA_ALIGNMENT_BYTES]


def test_a_name_is_given_once(tmp_path):
    with GraphBuilder("names", tmp_path) as graph:
        graph.weight("w", np.zeros(1, np.float32))
        with pytest.raises(BuildError, match="'w'"):
            graph.weight("w", np.zeros(1, np.float32))
