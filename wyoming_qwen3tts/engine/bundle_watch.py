"""Notices that the files of an opened bundle were changed.

Graphs are mapped into memory, not copied, and rows of tables are read when they are needed. A file
that is replaced as a whole (another is renamed over it, or it is removed) stays what it was for
those who have it open. One that is changed in place changes the numbers under the graphs, and one
that is cut short ends the process at the next touch. So files are looked at before each use and
every few seconds, and whoever would change them in place waits until the bundle is closed.
"""

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from wyoming_qwen3tts.engine.file_lease import FileLease
from wyoming_qwen3tts.errors import BundleError, ChecksumError
from wyoming_qwen3tts.models.bundles import InstalledBundle, read_bundle

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
    """Whether it is still the file that is mapped, but with another content, now or soon."""


class BundleWatch:
    """The files of one bundle as they were when it was opened."""

    def __init__(self, directory: Path) -> None:
        """Watch nothing before :meth:`mark`."""
        self._directory = directory
        self._marks: dict[str, _Mark | None] = {}
        self._suspects: set[str] = set()
        self._leases: dict[str, FileLease] = {}
        self._retired: list[FileLease] = []

    def mark(self, bundle: InstalledBundle) -> None:
        """Take note of the files, right before they are opened.

        Raises:
            ChecksumError: A file that was changed under an earlier opening is damaged.
            BundleError: A file is about to be changed.
        """
        for lease in self._retired:
            if lease.is_wanted_back:
                raise BundleError(f"{lease.path} is being changed by another program; try again.")
        self._leases = {
            file.path: FileLease(self._directory / file.path) for file in bundle.manifest.files
        }
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
            if name in self._leases and self._leases[name].is_wanted_back:
                found.append(FileChange(path, is_in_place=True))
                self._suspects.add(name)
            elif now != before:
                is_same_file = now is not None and before is not None and now.inode == before.inode
                found.append(FileChange(path, is_in_place=is_same_file))
                self._suspects.add(name)
        return found

    def retire(self) -> list[FileLease]:
        """Watch no more; return the leases, to be released when nothing maps the files any more."""
        leases = list(self._leases.values())
        self._retired += leases
        self._leases, self._marks = {}, {}
        return leases

    def release(self, leases: list[FileLease]) -> None:
        """Let files be changed."""
        for lease in leases:
            lease.release()
            self._retired.remove(lease)

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
