"""The graph writer by itself."""

import numpy as np
import onnx
import pytest

from wyoming_qwen3tts.builder.graphs.graph import DATA_ALIGNMENT_BYTES, GraphBuilder
from wyoming_qwen3tts.errors import BuildError
from wyoming_qwen3tts.runtime.graphs import open_session


def run(path, **feeds):
    return open_session(path, num_threads=2).run(None, feeds)


def test_constants_of_any_size_and_weights_are_there(tmp_path):
    large = np.arange(4096, dtype=np.float32)
    with GraphBuilder("sum", tmp_path) as graph:
        x = graph.input("x", np.float32, [4096])
        total = x + large
        total = total + 2.0
        graph.output(total * graph.weight("half", large), "y", np.float32, [4096])
    (y,) = run(tmp_path / "sum.onnx", x=np.ones(4096, np.float32))
    assert np.array_equal(y, (1 + large + 2) * large)


def test_equal_small_constants_are_stored_once(tmp_path):
    with GraphBuilder("same", tmp_path) as graph:
        x = graph.input("x", np.float32, ["N"])
        assert graph.constant([1, 2]) == graph.constant([1, 2])
        graph.output(x * 2.0 + np.float32(2), "y", np.float32, ["N"])
    model = onnx.load(tmp_path / "same.onnx")
    assert len(model.graph.initializer) == 2
    assert not (tmp_path / "same.onnx.data").exists()


def test_external_tensors_are_aligned_for_mapping(tmp_path):
    with GraphBuilder("two", tmp_path) as graph:
        x = graph.input("x", np.float32, [3])
        for name in ("a", "b"):
            x = x + graph.weight(name, np.ones(3, np.float32))
        graph.output(x, "y", np.float32, [3])
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


def test_python_numbers_become_int64_and_float32(tmp_path):
    with GraphBuilder("numbers", tmp_path) as graph:
        x = graph.input("x", np.float32, ["N", 2])
        y = graph.op("Reshape", x * 0.5 - np.float32(1), [-1])
        graph.output(y / 2.0, "y", np.float32, ["M"])
    (y,) = run(tmp_path / "numbers.onnx", x=np.ones((2, 2), np.float32))
    np.testing.assert_array_equal(y, np.full(4, -0.25, np.float32))


def test_a_failed_build_writes_no_graph(tmp_path):
    with pytest.raises(ValueError, match="failed"), GraphBuilder("failed", tmp_path):
        raise ValueError("failed")
    assert list(tmp_path.iterdir()) == []
