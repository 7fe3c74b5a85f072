"""Opening graphs: errors name the file and say what to do; the process has one thread pool."""

import logging

import onnxruntime as ort
import pytest

from wyoming_qwen3tts.errors import BundleError, GraphInterfaceError, is_out_of_memory
from wyoming_qwen3tts.runtime.bundle import open_bundle
from wyoming_qwen3tts.runtime.graphs import check_graph_io, open_session

CUSTOM = "0.6B-custom_voice"


def test_a_graph_that_cannot_be_loaded_is_named(tmp_path):
    path = tmp_path / "talker.onnx"
    path.write_bytes(b"no graph")
    with pytest.raises(BundleError, match=r"talker\.onnx cannot be loaded.*Build or fetch"):
        open_session(path, 2)


@pytest.mark.parametrize("error", [MemoryError(), RuntimeError("std::bad_alloc")])
def test_opening_without_memory_says_so(error, tiny_bundle, monkeypatch):
    def refuse(*_args, **_kwargs):
        raise error

    monkeypatch.setattr(ort, "InferenceSession", refuse)
    with pytest.raises(BundleError, match="out of memory") as caught:
        open_bundle(tiny_bundle(CUSTOM), 2)
    assert "Build" not in str(caught.value)
    assert is_out_of_memory(caught.value)


def test_another_number_of_threads_has_no_effect_and_is_logged_once(tiny_bundle, caplog):
    path = tiny_bundle(CUSTOM) / "talker.onnx"
    open_session(path, 2)
    caplog.clear()
    with caplog.at_level(logging.WARNING):
        open_session(path, 2)
        open_session(path, 3)
        open_session(path, 3)
    assert [record.getMessage() for record in caplog.records] == [
        "Thread pool: it has another size; threads=3 has no effect"
    ]


def test_missing_inputs_and_outputs_are_named(tiny_bundle):
    path = tiny_bundle(CUSTOM) / "talker.onnx"
    session = open_session(path, 2)
    with pytest.raises(GraphInterfaceError, match=r"no input 'noise', no output 'mel'"):
        check_graph_io(session, path, inputs=["embeddings", "noise"], outputs=["mel"])
