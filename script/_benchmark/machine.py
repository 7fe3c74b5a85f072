"""What the machine itself can do: read memory, multiply in float32, multiply in int8.

These are the floors that a model is compared with. Of computing the best of several tries counts,
since a floor is what the machine can do and not what it did while somebody disturbed it; of reading
the median, since the best may be from a moment when the cores were elsewhere (see ``placement``).
"""

import os
import platform
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any, Final

import numpy as np
import onnxruntime as ort

from wyoming_qwen3tts.arrays import AnyArray
from wyoming_qwen3tts.builder.graph import GraphBuilder
from wyoming_qwen3tts.runtime.session import open_session

# Far larger than any cache.
_READ_BYTES: Final = 256 * 2**20
_MATRIX_SIZE: Final = 1024
_TRIES: Final = 9
_GIGA: Final = 1e9
_KIB_PER_GIB: Final = 2**20


@dataclass(frozen=True)
class Machine:
    """The machine in words."""

    processor: str
    num_cores: int
    memory_gib: float | None
    system: str
    python: str
    numpy: str
    onnxruntime: str


def describe_machine() -> Machine:
    """Say what is known without measuring."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return Machine(
        processor=_first("/proc/cpuinfo", "model name") or platform.processor() or "unknown",
        num_cores=cores or 1,
        memory_gib=_memory_gib(),
        system=f"{platform.system()} {platform.machine()}",
        python=platform.python_version(),
        numpy=np.__version__,
        onnxruntime=ort.__version__,
    )


class MachineSubject:
    """Measures the machine, with one thread and with all that the model gets.

    numpy's own threads must be off (OPENBLAS_NUM_THREADS=1): the threads here are counted.
    """

    def __init__(self, num_threads: int) -> None:
        self._threads = sorted({1, num_threads})
        self._blocks = {count: _blocks(count) for count in self._threads}
        generator = np.random.default_rng(0)
        self._matrices = [
            generator.random((_MATRIX_SIZE, _MATRIX_SIZE), np.float32) for _ in range(num_threads)
        ]
        self._int8 = _Int8Probe(num_threads)

    def run(self, _task: str) -> dict[str, Any]:
        """Return rates by number of threads: GB/s, Gflop/s and Gop/s."""
        return {
            "read_gb_per_s": {str(n): self._read(n) for n in self._threads},
            "fp32_gflops": {str(n): self._multiply(n) for n in self._threads},
            "int8_gops": {str(self._threads[-1]): self._int8.gops()},
        }

    def _read(self, num_threads: int) -> float:
        """Return GB/s: two ways to read, because which one is faster depends on the processor."""
        blocks = self._blocks[num_threads]
        seconds = min(
            median(_tries_s(lambda: in_threads(blocks, lambda block: np.dot(block, block)))),
            median(
                _tries_s(
                    lambda: in_threads(
                        blocks, lambda block: np.bitwise_or.reduce(block.view(np.int64))
                    )
                )
            ),
        )
        return sum(block.nbytes for block in blocks) / seconds / _GIGA

    def _multiply(self, num_threads: int) -> float:
        matrices = self._matrices[:num_threads]
        seconds = _best_s(lambda: in_threads(matrices, lambda matrix: np.matmul(matrix, matrix)))
        return num_threads * _operations() / seconds / _GIGA


class _Int8Probe:
    """A matrix product in int8, by onnxruntime: numpy has no fast one."""

    def __init__(self, num_threads: int) -> None:
        generator = np.random.default_rng(0)
        shape = (_MATRIX_SIZE, _MATRIX_SIZE)
        with tempfile.TemporaryDirectory() as directory:
            with GraphBuilder("probe", Path(directory)) as graph:
                weight = generator.integers(-100, 100, shape, np.int8)
                values = graph.input("values", np.uint8, list(shape))
                product = graph.op("MatMulInteger", [values, graph.weight("weight", weight)])
                graph.output(product, "product", np.int32, list(shape))
                graph.save()
            self._session = open_session(graph.path, num_threads=num_threads)
        self._values = generator.integers(0, 200, shape, np.uint8)

    def gops(self) -> float:
        feeds = {"values": self._values}
        return _operations() / _best_s(lambda: self._session.run(None, feeds)) / _GIGA


def _operations() -> int:
    return 2 * _MATRIX_SIZE**3


def _blocks(num_threads: int) -> list[AnyArray]:
    size = _READ_BYTES // np.dtype(np.float32).itemsize // num_threads
    return [np.ones(size, np.float32) for _ in range(num_threads)]


def in_threads(arrays: Sequence[AnyArray], work: Callable[[AnyArray], object]) -> None:
    """Work on every array in a thread of its own; numpy lets go of the interpreter meanwhile."""
    threads = [threading.Thread(target=work, args=(array,)) for array in arrays[1:]]
    for thread in threads:
        thread.start()
    work(arrays[0])
    for thread in threads:
        thread.join()


def _best_s(work: Callable[[], object]) -> float:
    return min(_tries_s(work))


def _tries_s(work: Callable[[], object]) -> list[float]:
    durations_s = []
    for _ in range(_TRIES):
        started_s = time.perf_counter()
        work()
        durations_s.append(time.perf_counter() - started_s)
    return durations_s


def _memory_gib() -> float | None:
    total = _first("/proc/meminfo", "MemTotal")
    return None if total is None else round(int(total.split()[0]) / _KIB_PER_GIB, 1)


def _first(path: str, key: str) -> str | None:
    """Return the first value of ``key`` in a file of "key: value" lines."""
    try:
        lines = Path(path).read_text().splitlines()
    except OSError:
        return None
    pairs = (line.split(":", 1) for line in lines if ":" in line)
    return next((value.strip() for name, value in pairs if name.strip() == key), None)
