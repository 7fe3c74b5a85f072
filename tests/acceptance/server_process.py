"""Our server as a process of its own, as users run it."""

import contextlib
import os
import socket
import subprocess
import time
from pathlib import Path

_START_TIMEOUT_S = 120.0


class ServerProcess:
    """One server on a port of this machine; it can be stopped, killed and started again."""

    def __init__(self, python: str, log: Path, *flags: str, port: int = 0) -> None:
        """Prepare a server; nothing is started yet.

        Args:
            python: Interpreter of the environment that has the server.
            log: Where its log lines go.
            flags: More flags for it.
            port: Where it listens; 0 takes a free one.
        """
        self.port = port or free_port()
        self.python = python
        self.log = log
        self.flags = flags
        self._command = [python, "-m", "wyoming_qwen3tts", *flags]
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def uri(self) -> str:
        """Where it listens."""
        return f"tcp://127.0.0.1:{self.port}"

    def start(self, *flags: str, host: str = "127.0.0.1") -> None:
        """Start it and wait until it is ready."""
        with self.log.open("ab") as log:
            offset = log.tell()
            self._process = subprocess.Popen(
                [*self._command, "--uri", f"tcp://{host}:{self.port}", *flags],
                stdout=log,
                stderr=log,
                cwd=Path(__file__).parents[2],
                env=dict(os.environ),
            )
        deadline_s = time.monotonic() + _START_TIMEOUT_S
        while b"Warm-up finished" not in self.log.read_bytes()[offset:]:
            if self._process.poll() is not None or time.monotonic() > deadline_s:
                self.kill()
                raise RuntimeError(f"the server does not start:\n{self.log.read_text()[-2000:]}")
            time.sleep(0.1)

    def stop(self) -> None:
        """End it in good order."""
        if self._process is not None:
            self._process.terminate()
            self._process.wait(30)
            self._process = None

    def kill(self) -> None:
        """End it as a power cut would."""
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                self._process.kill()
            self._process.wait()
            self._process = None


def free_port() -> int:
    """Return a port of the loopback address that nobody uses now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
