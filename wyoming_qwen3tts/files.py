"""Writes files and directories that are complete or absent, also after a kill.

New content goes into a hidden sibling, which takes the place of the target by rename. A sibling
directory is locked while its writer lives; an unlocked one was left by a killed process.
"""

import fcntl
import glob
import os
import secrets
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, Final

_BUILDING: Final = ".building-"
_REPLACED: Final = ".replaced-"
_REMOVED: Final = ".removed-"
_MARKS: Final = (_BUILDING, _REPLACED, _REMOVED, ".installing")  # the last: of older versions


@contextmanager
def atomic_file(path: Path) -> Iterator[BinaryIO]:
    """Open a file that becomes ``path`` when the block ends without an error."""
    partial = path.with_name(f".{path.name}.{secrets.token_hex(4)}.part")
    try:
        with partial.open("xb") as file:
            yield file
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


def atomic_write(path: Path, data: bytes | str) -> None:
    """Write a file as a whole; text is encoded as UTF-8."""
    with atomic_file(path) as file:
        file.write(data.encode() if isinstance(data, str) else data)


@contextmanager
def atomic_directory(target: Path) -> Iterator[Path]:
    """Yield an empty directory that becomes ``target`` when the block ends without an error.

    An existing ``target`` is replaced. Between the two renames a kill leaves it under a hidden
    name, from which :func:`restore_replaced` puts it back.

    Raises:
        OSError: The parent directory cannot be written.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    restore_replaced(target.parent, target.name)
    for path in leftovers(target.parent, target.name):
        shutil.rmtree(path, ignore_errors=True)
    building = Path(tempfile.mkdtemp(prefix=f".{target.name}{_BUILDING}", dir=target.parent))
    lock = _lock(building)
    try:
        yield building
        building.chmod(0o755)
        old = _hidden(target, _REPLACED)
        if target.exists():
            target.rename(old)
        building.rename(target)
        shutil.rmtree(old, ignore_errors=True)
    finally:
        shutil.rmtree(building, ignore_errors=True)
        if lock is not None:
            os.close(lock)
        restore_replaced(target.parent, target.name)


def remove_directory(directory: Path) -> None:
    """Remove a directory; at no moment is a part of it visible."""
    hidden = _hidden(directory, _REMOVED)
    directory.rename(hidden)
    shutil.rmtree(hidden, ignore_errors=True)


def leftovers(parent: Path, name: str | None = None) -> list[Path]:
    """Return the hidden directories in ``parent`` that killed writers (of ``name``) left."""
    pattern = "*" if name is None else glob.escape(name)
    return [
        path
        for mark in _MARKS
        for path in parent.glob(f".{pattern}{mark}*")
        if path.is_dir() and not _is_locked(path)
    ]


def restore_replaced(parent: Path, name: str | None = None) -> list[Path]:
    """Put back the directories (called ``name``) whose replacement was cut short; return them."""
    pattern = "*" if name is None else glob.escape(name)
    restored = []
    for path in parent.glob(f".{pattern}{_REPLACED}*"):
        target = path.with_name(path.name[1:].partition(_REPLACED)[0])
        writers = parent.glob(f".{glob.escape(target.name)}{_BUILDING}*")
        if not target.exists() and not any(_is_locked(each) for each in writers):
            path.rename(target)
            restored.append(target)
    return restored


def _hidden(path: Path, mark: str) -> Path:
    return path.with_name(f".{path.name}{mark}{os.getpid()}-{secrets.token_hex(4)}")


def _lock(directory: Path) -> int | None:
    """Lock a directory until the returned descriptor is closed; None if another process holds it.

    A file system without locks also gives None: leftovers then stay, nothing else.
    """
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        return None
    return descriptor


def _is_locked(directory: Path) -> bool:
    try:
        lock = _lock(directory)
    except FileNotFoundError:  # removed meanwhile
        return True
    if lock is not None:
        os.close(lock)
    return lock is None
