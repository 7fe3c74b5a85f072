"""Writes the log in a thread of its own.

Whoever reads the log of a server may stop reading: a pager that is scrolled back, a log collector
that hangs. A pipe holds 64 kB, and then everybody who logs would wait for that reader, which is
everybody who speaks or asks, and even the signal that ends the server.
"""

import logging
import os
import queue
import threading
import time
from contextlib import suppress
from typing import Final

_MAX_LINES: Final = 10_000
_PATIENCE_S: Final = 0.5
_PAUSE_S: Final = 0.005


class LogWriter(logging.Handler):
    """Takes every line at once; what nobody reads is lost, and how much is said later."""

    def __init__(self, descriptor: int, max_lines: int = _MAX_LINES) -> None:
        """Write to a file descriptor, which stays open.

        Args:
            descriptor: Where to; a stream would keep a lock that ends the program badly.
            max_lines: Lines that are kept while nobody reads.
        """
        super().__init__()
        self._descriptor = descriptor
        self._lines: queue.Queue[bytes | None] = queue.Queue(max_lines)
        self._num_lost = 0
        threading.Thread(target=self._write_lines, name="log", daemon=True).start()

    def emit(self, record: logging.LogRecord) -> None:
        """Take a line."""
        try:
            line = self.format(record).encode("utf-8", "backslashreplace")
        except Exception:  # noqa: BLE001 - as every handler of the standard library
            self.handleError(record)
            return
        try:
            self._lines.put_nowait(line + b"\n")
        except queue.Full:
            self._num_lost += 1

    def flush(self) -> None:
        """Wait until everything is written, but not for whoever does not read."""
        deadline_s = time.monotonic() + _PATIENCE_S
        while self._lines.unfinished_tasks and time.monotonic() < deadline_s:
            time.sleep(_PAUSE_S)

    def close(self) -> None:
        """End the thread once it has written everything."""
        self.flush()
        with suppress(queue.Full):
            self._lines.put_nowait(None)
        super().close()

    def _write_lines(self) -> None:
        while (line := self._lines.get()) is not None:
            num_lost, self._num_lost = self._num_lost, 0
            if num_lost:
                line += b"(%d lines of the log were lost: nobody read it)\n" % num_lost
            # A full disk costs the line, not the server.
            with suppress(OSError):
                while line:
                    line = line[os.write(self._descriptor, line) :]
            self._lines.task_done()
