"""The asking side of a worker process."""

import json
import os
import subprocess
import sys
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from wyoming_qwen3tts.errors import Qwen3TTSError

_ROOT: Final = Path(__file__).resolve().parent.parent.parent
_END_TIMEOUT_S: Final = 10.0


def log(text: str) -> None:
    """Tell how far the benchmark is."""
    print(text, file=sys.stderr, flush=True)


class BenchmarkError(Qwen3TTSError):
    """The benchmark cannot go on; the message says why."""


class Worker:
    """One process that measures one subject. Use as a context manager."""

    def __init__(self, kind: str, name: str | None = None, **settings: Any) -> None:
        """Start the process; ``settings`` go to the subject.

        Args:
            kind: A key of ``worker.SUBJECTS``.
            name: What to call it in messages and figures; the kind by default.
            **settings: The subject's arguments, ready for JSON but for paths.
        """
        self.name = name or kind
        values = {
            key: str(value) if isinstance(value, Path) else value for key, value in settings.items()
        }
        self._process = subprocess.Popen(
            [sys.executable, "-m", "script._benchmark.worker", kind, json.dumps(values)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": str(_ROOT), **_SINGLE_THREADED_NUMPY},
        )

    def __enter__(self) -> Self:
        """Return the worker itself."""
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """End the process."""
        if exc_type is not None:
            self._process.kill()
        try:
            self._process.communicate(timeout=_END_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.communicate()

    def run(self, task: str, **arguments: Any) -> dict[str, Any]:
        """Have one measurement made and return its figures.

        Raises:
            BenchmarkError: The process ended; what it had to say stands on standard error.
        """
        stdin, stdout = self._process.stdin, self._process.stdout
        line = ""
        if stdin is not None and stdout is not None:
            try:
                stdin.write(json.dumps({"task": task, **arguments}) + "\n")
                stdin.flush()
                line = stdout.readline()
            except BrokenPipeError:
                line = ""
        if not line:
            code = self._process.wait()
            raise BenchmarkError(
                f"The process that measures {self.name} ended with status {code} at {task!r}; "
                "its own message stands above."
            )
        figures: dict[str, Any] = json.loads(line)
        return figures


# numpy must not start threads of its own beside those that are measured.
_SINGLE_THREADED_NUMPY: Final = {
    "OPENBLAS_NUM_THREADS": "1",
    "OMP_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
}
