"""One process per subject, so that its memory and threads are its own.

The process reads a line of JSON for each measurement and answers with one. A worker of another
checkout speaks the same protocol, so two versions can be measured in turns.
"""

import importlib
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any, Final, Self

SUBJECTS: Final = {
    "machine": "MachineSubject",
    "speech": "SpeechSubject",
    "peer": "PeerSubject",
}
"""Kind of subject -> its class in ``subjects``; ``run(task, **arguments)`` measures once."""

# numpy must not start threads beside those that are measured.
_SINGLE_THREADED: Final = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}


class WorkerError(Exception):
    """A worker process ended; its own message is on standard error."""


class Worker:
    """The asking side of a worker process; a context manager."""

    def __init__(self, checkout: Path, kind: str, **settings: Any) -> None:
        """Start a worker with the code of a checkout; ``settings`` go to its subject."""
        values = {
            key: str(value) if isinstance(value, Path) else value for key, value in settings.items()
        }
        self._process = subprocess.Popen(
            [sys.executable, "-m", "script._benchmark.worker", kind, json.dumps(values)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=checkout,
            env={**os.environ, "PYTHONPATH": str(checkout), **_SINGLE_THREADED},
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.communicate()

    def run(self, task: str, **arguments: Any) -> dict[str, Any]:
        """Return one measurement.

        Raises:
            WorkerError: The process ended.
        """
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None  # noqa: S101 - both are pipes
        assert stdout is not None  # noqa: S101
        line = ""
        try:
            stdin.write(json.dumps({"task": task, **arguments}) + "\n")
            stdin.flush()
            line = stdout.readline()
        except BrokenPipeError:
            pass
        if not line:
            raise WorkerError(f"A worker ended with status {self._process.wait()} at {task!r}.")
        result: dict[str, Any] = json.loads(line)
        return result


def main(arguments: list[str]) -> int:
    """Serve one subject until standard input ends."""
    kind, settings = arguments
    # Library output must not mix with the answers.
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    values = json.loads(settings)
    subjects = importlib.import_module("script._benchmark.subjects")
    subject: Any = getattr(subjects, SUBJECTS[kind])(**values)
    for line in sys.stdin:
        request = json.loads(line)
        result = dict(subject.run(request.pop("task"), **request))
        result["peak_rss_mb"] = _peak_rss_mb()
        print(json.dumps(result), file=answers, flush=True)
    return 0


def _peak_rss_mb() -> float | None:
    """Peak resident memory; ``getrusage`` would report the parent's peak for a new process."""
    status = Path("/proc/self/status")
    found = re.search(r"VmHWM:\s*(\d+)", status.read_text()) if status.exists() else None
    return int(found[1]) * 1024 / 1e6 if found else None


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
