"""The server under test, in a process of its own, and what the system says of it."""

import json
import os
import re
import socket
import subprocess
import time
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from script._environment import PYTHON, ROOT

_START_S: Final = 60.0
_STOP_S: Final = 30.0
_BAD_LINES: Final = re.compile(r"Traceback|unexpected failure|never retrieved|\bCRITICAL\b")


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
    cpu_s: float
    """Processor time that it has used."""


class ServerProcess:
    """A real server with the embedded model; its context ends it."""

    def __init__(self, log: Path, model: str) -> None:
        """Prepare a server that writes its log to a file."""
        self.port, self.http_port = _free_port(), _free_port()
        self._log = log
        self._model = model
        self._process: subprocess.Popen[bytes] | None = None
        self.exit_code: int | None = None

    def __enter__(self) -> Self:
        """Start it and wait until it has spoken its first words.

        Raises:
            SoakError: It does not start.
        """
        command = [
            *(str(PYTHON), "-m", "wyoming_qwen3tts"),
            *("--uri", f"tcp://127.0.0.1:{self.port}", "--http", str(self.http_port)),
            *("--model", self._model),
        ]
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(command, stderr=log, cwd=ROOT)
        deadline_s = time.monotonic() + _START_S
        while "Warm after" not in self._log.read_text():
            if self._process.poll() is not None or time.monotonic() > deadline_s:
                self._process.kill()
                raise SoakError(f"the server does not start:\n{self._log.read_text()[-2000:]}")
            time.sleep(0.1)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """End it in good order."""
        if self._process is None:
            return
        self._process.terminate()
        try:
            self.exit_code = self._process.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    @property
    def is_alive(self) -> bool:
        """Whether it still runs."""
        return self._process is not None and self._process.poll() is None

    @property
    def is_stopped(self) -> bool:
        """Whether the system has stopped it (SIGSTOP): it lives, but nothing of it is run."""
        if self._process is None:
            return False
        try:
            stat = (Path("/proc") / str(self._process.pid) / "stat").read_text()
        except OSError:
            return False
        return stat.rpartition(")")[2].split()[0] in "Tt"

    def sample(self, at_s: float) -> Sample:
        """Return the state of the process now.

        Raises:
            SoakError: It has ended.
        """
        if self._process is None or not self.is_alive:
            raise SoakError("the server has ended")
        folder = Path("/proc") / str(self._process.pid)
        fields = (folder / "stat").read_text().rpartition(")")[2].split()
        ticks = int(fields[11]) + int(fields[12])
        pages = int((folder / "statm").read_text().split()[1])
        return Sample(
            at_s=round(at_s, 2),
            rss_mb=round(pages * os.sysconf("SC_PAGE_SIZE") / 2**20, 2),
            num_threads=int(fields[17]),
            num_descriptors=sum(1 for _ in (folder / "fd").iterdir()),
            cpu_s=ticks / os.sysconf("SC_CLK_TCK"),
        )

    def health(self) -> dict[str, object]:
        """Return what the server says of itself."""
        url = f"http://127.0.0.1:{self.http_port}/health"
        with urllib.request.urlopen(url, timeout=10) as answer:
            content: dict[str, object] = json.loads(answer.read())
        return content

    def bad_log_lines(self) -> list[str]:
        """Return the lines of the log that tell of something unforeseen."""
        lines = self._log.read_text(errors="replace").splitlines()
        return [line[:300] for line in lines if _BAD_LINES.search(line)]

    def num_log_lines(self) -> int:
        """Return the length of the log."""
        return len(self._log.read_text(errors="replace").splitlines())


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
