"""Opening graphs: what is wrong is named, and other devices fall back to the CPU."""

import pytest

from wyoming_qwen3tts.errors import BundleError, GraphInterfaceError
from wyoming_qwen3tts.runtime.session import (
    CPU_EXECUTION,
    CPU_PROVIDER,
    check_graph_io,
    open_session,
    select_execution,
)


@pytest.mark.parametrize(
    ("device", "provider", "bundle_device"),
    [
        ("cuda", "CUDAExecutionProvider", "cuda"),
        ("openvino", "OpenVINOExecutionProvider", "cpu"),
    ],
)
def test_a_device_that_is_there_is_used_with_the_cpu_behind_it(device, provider, bundle_device):
    execution = select_execution(device, available=[provider, CPU_PROVIDER])
    assert execution.providers == (provider, CPU_PROVIDER)
    assert execution.bundle_device == bundle_device


@pytest.mark.parametrize(
    ("device", "package"), [("cuda", "onnxruntime-gpu"), ("openvino", "onnxruntime-openvino")]
)
def test_a_device_that_is_missing_falls_back_with_one_warning(device, package, caplog):
    assert select_execution(device, available=[CPU_PROVIDER]) is CPU_EXECUTION
    assert len(caplog.records) == 1
    assert package in caplog.text


def test_the_cpu_is_always_there(caplog):
    assert select_execution("cpu") is CPU_EXECUTION
    assert not caplog.records


def test_a_graph_that_cannot_be_loaded_is_named(tmp_path):
    path = tmp_path / "talker.onnx"
    path.write_bytes(b"no graph")
    with pytest.raises(BundleError, match=r"talker\.onnx cannot be loaded"):
        open_session(path, num_threads=2)


def test_missing_inputs_and_outputs_are_named(tiny_bundle):
    path = tiny_bundle("0.6B-custom_voice") / "talker.onnx"
    session = open_session(path, num_threads=2)
    with pytest.raises(GraphInterfaceError, match=r"no input 'noise', no output 'mel'"):
        check_graph_io(session, path, inputs=["embeddings", "noise"], outputs=["mel"])
