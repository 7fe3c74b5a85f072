"""Opening ONNX graphs: threads, providers, and the check of inputs and outputs.

Sessions of one process share one thread pool (:func:`use_global_threads`): sessions with pools of
their own spin against each other and lose more than half of the speed.
"""

import logging
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

import onnxruntime as ort

from wyoming_qwen3tts.errors import BundleError, GraphInterfaceError
from wyoming_qwen3tts.runtime.manifest import Device

_LOGGER = logging.getLogger(__name__)

CPU_PROVIDER = "CPUExecutionProvider"


@dataclass(frozen=True)
class Execution:
    """Where graphs run."""

    bundle_device: Device
    """Which bundles suit it."""
    providers: tuple[str, ...]
    """onnxruntime execution providers, in order of preference."""


CPU_EXECUTION = Execution("cpu", (CPU_PROVIDER,))
_EXECUTIONS = {
    "cpu": CPU_EXECUTION,
    "cuda": Execution("cuda", ("CUDAExecutionProvider", CPU_PROVIDER)),
    "openvino": Execution("cpu", ("OpenVINOExecutionProvider", CPU_PROVIDER)),
}
_PACKAGES = {"cuda": "onnxruntime-gpu", "openvino": "onnxruntime-openvino"}


def select_execution(device: str, available: Collection[str] | None = None) -> Execution:
    """Return how to run on a device; the CPU, with one warning, where it cannot be used.

    Args:
        device: "cpu", "cuda" or "openvino".
        available: Execution providers of this installation; None asks onnxruntime.
    """
    execution = _EXECUTIONS[device]
    wanted = execution.providers[0]
    present = ort.get_available_providers() if available is None else available
    if wanted in present:
        return execution
    _LOGGER.warning(
        "The device %s cannot be used: this onnxruntime has no %s (install %s in place of "
        "onnxruntime). The CPU is used instead.",
        device,
        wanted,
        _PACKAGES.get(device, "onnxruntime"),
    )
    return CPU_EXECUTION


class ThreadPool:
    """The process-wide pool of onnxruntime, set once before the first session.

    onnxruntime itself holds this state for the whole process; the class only remembers that it
    was set, because a second attempt would be an error.
    """

    _num_threads: int | None = None

    @classmethod
    def ensure(cls, num_threads: int) -> int:
        """Set the pool to ``num_threads`` unless it is set already; return its size."""
        if cls._num_threads is None:
            ort.set_global_thread_pool_sizes(num_threads, 1)
            cls._num_threads = num_threads
        return cls._num_threads


def open_session(
    path: Path, *, num_threads: int, providers: Collection[str] = (CPU_PROVIDER,)
) -> ort.InferenceSession:
    """Open one graph.

    Args:
        path: The ``.onnx`` file; its external data lies beside it.
        num_threads: Size of the shared thread pool, if this is the first session.
        providers: Execution providers in order of preference.

    Raises:
        BundleError: The graph cannot be loaded; the message names the file.
    """
    ThreadPool.ensure(num_threads)
    options = ort.SessionOptions()
    options.use_per_session_threads = False
    options.log_severity_level = 3
    options.enable_mem_pattern = False
    options.add_session_config_entry("session.set_denormal_as_zero", "1")
    options.add_session_config_entry("session.force_spinning_stop", "1")
    try:
        return ort.InferenceSession(str(path), options, providers=list(providers))
    except Exception as error:  # onnxruntime raises kinds of its own and plain ones
        raise BundleError(
            f"{path} cannot be loaded: {_first_line(error)}. Build or fetch the bundle again."
        ) from error


def check_graph_io(
    session: ort.InferenceSession,
    path: Path,
    *,
    inputs: Collection[str],
    outputs: Collection[str],
) -> None:
    """Check that a graph has at least these inputs and outputs.

    Raises:
        GraphInterfaceError: Names the file and what it lacks.
    """
    have = (
        {value.name for value in session.get_inputs()},
        {value.name for value in session.get_outputs()},
    )
    missing = [
        f"{kind} {name!r}"
        for kind, wanted, names in (("input", inputs, have[0]), ("output", outputs, have[1]))
        for name in wanted
        if name not in names
    ]
    if missing:
        raise GraphInterfaceError(
            f"{path} has no {', no '.join(missing)}: it was made for another version. "
            "Build the bundle again with this version."
        )


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
