"""Notices that the files of an opened bundle were changed.

Graphs and tables are mapped into memory, not copied. A file that is replaced as a whole (another
is renamed over it, or it is removed) leaves the mapping as it was. One that is changed in place
changes the numbers under the graphs, and one that is cut short ends the process at the next touch.
So files are looked at before each use and every few seconds.
"""

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from wyoming_qwen3tts.errors import ChecksumError
from wyoming_qwen3tts.server.bundles import InstalledBundle, read_bundle

_READ_BYTES: Final = 2**20


@dataclass(frozen=True)
class _Mark:
    """What tells a file from another or an older one."""

    inode: int
    num_bytes: int
    mtime_ns: int


@dataclass(frozen=True)
class FileChange:
    """A file that is not what it was when its bundle was opened."""

    path: Path
    is_in_place: bool
    """Whether it is still the file that is mapped, but with another content."""


class BundleWatch:
    """The files of one bundle as they were when it was opened."""

    def __init__(self, directory: Path) -> None:
        """Watch nothing before :meth:`mark`."""
        self._directory = directory
        self._marks: dict[str, _Mark | None] = {}
        self._suspects: set[str] = set()

    def mark(self, bundle: InstalledBundle) -> None:
        """Take note of the files, right before they are opened.

        Raises:
            ChecksumError: A file that was changed under an earlier opening is damaged.
        """
        self._marks = {
            file.path: _mark(self._directory / file.path) for file in bundle.manifest.files
        }
        if self._suspects:
            self._verify(read_bundle(self._directory))
            self._suspects.clear()

    def changes(self) -> list[FileChange]:
        """Return the files that were changed since; the next mark checks what they hold then."""
        found = []
        for name, before in self._marks.items():
            path = self._directory / name
            now = _mark(path)
            if now != before:
                is_same_file = now is not None and before is not None and now.inode == before.inode
                found.append(FileChange(path, is_in_place=is_same_file))
                self._suspects.add(name)
        return found

    def _verify(self, bundle: InstalledBundle) -> None:
        """Check the suspects against the manifest; published bundles state no hashes."""
        if damage := bundle.damage():
            raise ChecksumError(f"{damage}. Build or fetch the bundle again.")
        for file in bundle.manifest.files:
            if file.path not in self._suspects or bundle.is_published:
                continue
            path = self._directory / file.path
            if _hash(path) != file.sha256:
                raise ChecksumError(
                    f"{path} was changed while it was in use and has not the hash that the "
                    "manifest states. Build or fetch the bundle again."
                )


def _mark(path: Path) -> _Mark | None:
    try:
        status = path.stat()
    except OSError:
        return None
    return _Mark(status.st_ino, status.st_size, status.st_mtime_ns)


def _hash(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(_READ_BYTES):
            digest.update(block)
    return digest.hexdigest()
