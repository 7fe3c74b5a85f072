"""Runs a build in a process of its own, whose memory is given back when it ends.

The process has a low priority, ends with this one (also when this one is killed) and says how far
it is in lines of JSON.
"""

import json
import logging
import os
import select
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from importlib.metadata import PackageNotFoundError, version
from typing import IO, Final

from wyoming_qwen3tts.errors import BuildError
from wyoming_qwen3tts.models.provision_state import CancelledError

_LOGGER = logging.getLogger(__name__)

_PROGRAM: Final = "wyoming_qwen3tts"
_POLL_S: Final = 0.2
_END_S: Final = 5.0
_READ_BYTES: Final = 65_536
_ERROR_PREFIX: Final = "error: "


def check_builder() -> None:
    """Check that this installation can build.

    Raises:
        BuildError: It lacks a package; the message says how to get it.
    """
    try:
        # Not by importing: a folder called onnx may lie about.
        version("onnx")
    except PackageNotFoundError as error:
        raise BuildError(
            "Building a model needs the build extra: pip install 'wyoming-qwen3tts[build]'"
        ) from error


def run_build(
    arguments: Sequence[str],
    progress: Callable[[float, str], None],
    cancelled: threading.Event,
) -> None:
    """Run ``wyoming-qwen3tts build`` with ``arguments`` to its end.

    Args:
        arguments: As on the command line.
        progress: Told the finished fraction and the component that is built.
        cancelled: Set by another thread to end the build.

    Raises:
        BuildError: It failed; with its own message.
        CancelledError: It was ended.
    """
    command = [sys.executable, "-m", _PROGRAM, "build", *arguments, "--supervised"]
    with tempfile.TemporaryFile() as errors:
        process = subprocess.Popen(  # noqa: S603 - our own program
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors
        )
        try:
            for line in _lines(process, cancelled):
                _tell(line, progress)
            code = process.wait()
        finally:
            _end(process)
        if code != 0:
            raise BuildError(_explain(code, errors))


def _lines(process: "subprocess.Popen[bytes]", cancelled: threading.Event) -> Iterator[str]:
    """Yield what the process writes, line by line, until it ends."""
    if process.stdout is None:
        return
    rest = b""
    while True:
        if cancelled.is_set():
            raise CancelledError
        if not select.select([process.stdout], [], [], _POLL_S)[0]:
            continue
        piece = os.read(process.stdout.fileno(), _READ_BYTES)
        if not piece:
            return
        *whole, rest = (rest + piece).split(b"\n")
        yield from (line.decode(errors="replace") for line in whole)


def _tell(line: str, progress: Callable[[float, str], None]) -> None:
    try:
        values = json.loads(line)
        progress(values["fraction"], values["stage"])
    except (ValueError, KeyError, TypeError):
        _LOGGER.info("%s", line)


def _end(process: "subprocess.Popen[bytes]") -> None:
    """See to it that the process is gone, politely at first."""
    if process.stdin is not None:
        process.stdin.close()
    try:
        process.wait(_END_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    if process.stdout is not None:
        process.stdout.close()


def _explain(code: int, errors: IO[bytes]) -> str:
    """Return why a build failed."""
    errors.seek(0)
    lines = errors.read().decode(errors="replace").strip().splitlines()
    for line in reversed(lines):
        if line.startswith(_ERROR_PREFIX):
            return line.removeprefix(_ERROR_PREFIX)
    if code == -signal.SIGKILL:
        return (
            "The build was killed from outside, most likely for lack of memory; close other "
            "programs, or build on another machine and copy the bundle."
        )
    reason = lines[-1] if lines else "it said nothing"
    return f"The build ended with status {code}: {reason}"
