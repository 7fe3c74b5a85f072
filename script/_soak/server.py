"""The server under test, in its own process, and what the system reports about it."""

import json
import os
import re
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

from script._tools.environment import ROOT
from tests.support.tiny_checkpoint import write_tiny_bundle

_START_S: Final = 60.0
_STOP_S: Final = 30.0
_UNEXPECTED: Final = re.compile(r"Traceback|unexpected failure|never retrieved|\bCRITICAL\b")


class SoakError(Exception):
    """The soak cannot be run."""


@dataclass(frozen=True)
class Sample:
    """The server's process at one moment."""

    at_s: float
    """Since the start of the soak."""
    rss_mb: float
    num_threads: int
    num_descriptors: int


class ServerProcess:
    """A real server with a model of random weights; its context ends it."""

    def __init__(self, model: str | None) -> None:
        """Prepare a server; None speaks with a small model of random weights, nine voices."""
        self.port, self.http_port = _free_port(), _free_port()
        self._model = model
        self._folder = tempfile.TemporaryDirectory()
        self._log = Path(self._folder.name) / "server.log"
        self.exit_code: int | None = None

    def __enter__(self) -> Self:
        """Start the server and wait until it is warm.

        Raises:
            SoakError: It does not start.
        """
        model = self._model or str(
            write_tiny_bundle(Path(self._folder.name) / "random" / "cpu_fp32", name="random")
        )
        command = [
            *(sys.executable, "-m", "wyoming_qwen3tts", "--model", model),
            *("--uri", f"tcp://127.0.0.1:{self.port}", "--http", str(self.http_port)),
        ]
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(command, stderr=log, cwd=ROOT)
        deadline_s = time.monotonic() + _START_S
        while "Warm" not in self._log.read_text():
            if self._process.poll() is not None or time.monotonic() > deadline_s:
                self._process.kill()
                raise SoakError(f"the server does not start:\n{self._log.read_text()[-2000:]}")
            time.sleep(0.1)
        return self

    def __exit__(self, *_exception: object) -> None:
        """Stop the server with SIGTERM."""
        self._process.terminate()
        try:
            self.exit_code = self._process.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self.unexpected_log_lines = [
            line[:300]
            for line in self._log.read_text(errors="replace").splitlines()
            if _UNEXPECTED.search(line)
        ]
        self._folder.cleanup()

    def sample(self, at_s: float) -> Sample:
        """Return the state of the process now.

        Raises:
            SoakError: It has ended.
        """
        if self._process.poll() is not None:
            raise SoakError("the server has ended")
        folder = Path("/proc") / str(self._process.pid)
        fields = (folder / "stat").read_text().rpartition(")")[2].split()
        pages = int((folder / "statm").read_text().split()[1])
        return Sample(
            at_s=round(at_s, 2),
            rss_mb=round(pages * os.sysconf("SC_PAGE_SIZE") / 1e6, 2),
            num_threads=int(fields[17]),
            num_descriptors=sum(1 for _ in (folder / "fd").iterdir()),
        )

    def health(self) -> dict[str, int]:
        """Return what ``/health`` says."""
        url = f"http://127.0.0.1:{self.http_port}/health"
        with urllib.request.urlopen(url, timeout=10) as answer:
            content: dict[str, int] = json.loads(answer.read())
        return content


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
