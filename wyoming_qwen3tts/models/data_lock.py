"""One writer at a time in a data directory, also across processes and their sudden ends."""

import errno
import fcntl
import json
import logging
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from wyoming_qwen3tts.models.provision_state import CancelledError

_LOGGER = logging.getLogger(__name__)

_LOCK_NAME: Final = "lock"
_POLL_S: Final = 0.2
_HELD: Final = {errno.EAGAIN, errno.EACCES}
_MAX_NOTE_BYTES: Final = 4096


@contextmanager
def data_lock(
    work_dir: Path,
    purpose: str,
    on_wait: Callable[[str], None],
    cancelled: threading.Event,
) -> Iterator[None]:
    """Hold the lock of a data directory; the system lets go of it when the process ends.

    Args:
        work_dir: Folder that the lock is in; it is made.
        purpose: What is going to be done, for others who wait.
        on_wait: Told the purpose of whoever holds the lock, again and again while it is held.
        cancelled: Set by another thread to stop waiting.

    Raises:
        CancelledError: Nobody waits any more.
        OSError: The folder cannot be written.
    """
    work_dir.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(work_dir / _LOCK_NAME, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        while not _try_lock(descriptor):
            on_wait(_read_purpose(descriptor))
            if cancelled.wait(_POLL_S):
                raise CancelledError
        note = json.dumps({"pid": os.getpid(), "purpose": purpose}).encode()
        os.truncate(descriptor, 0)
        os.pwrite(descriptor, note, 0)
        yield
    finally:
        os.close(descriptor)


def is_held(work_dir: Path) -> bool:
    """Whether a process works in a data directory now."""
    try:
        descriptor = os.open(work_dir / _LOCK_NAME, os.O_RDONLY)
    except OSError:
        return False
    try:
        return not _try_lock(descriptor)
    finally:
        os.close(descriptor)


def _try_lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in _HELD:
            return False
        # A file system without locks: one server alone works there as well.
        _LOGGER.warning("The data directory cannot be locked (%s)", error.strerror)
    return True


def _read_purpose(descriptor: int) -> str:
    try:
        return str(json.loads(os.pread(descriptor, _MAX_NOTE_BYTES, 0))["purpose"])
    except (ValueError, KeyError, TypeError):
        return ""
