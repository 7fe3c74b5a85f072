"""Where fetched checkpoints lie, in a data directory: whole and checked, or not there.

::

    .checkpoints/
        blobs/<sha256>                                  files by content, each once
        partial/                                        files that are still arriving
        models--<owner>--<name>/
            snapshots/<commit>/...                      checkpoints, made of links into blobs/
            fetched/<commit>.json                       size and hash of every file that arrived
            refs/<branch>                               commit that a branch meant last

The names are those of huggingface_hub's cache, by which the builder tells where a checkpoint came
from. That cache is read too, and never written: what is ours may be removed after a build.
"""

import hashlib
import json
import logging
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

_LOGGER = logging.getLogger(__name__)

STORE_NAME: Final = ".checkpoints"
_BLOBS, _PARTIAL, _SNAPSHOTS = "blobs", "partial", "snapshots"
_REPO_PREFIX: Final = "models--"
_CHUNK_BYTES: Final = 1 << 20
_SHA256_DIGITS: Final = 64


@dataclass(frozen=True)
class FileRecord:
    """What a file was when it arrived."""

    bytes: int
    sha256: str


@dataclass(frozen=True)
class Snapshot:
    """A checkpoint in the store, whole or in parts."""

    repo: str
    revision: str
    directory: Path
    records: Mapping[str, FileRecord]
    """Path -> what arrived."""

    @property
    def num_bytes(self) -> int:
        """Size of what is there."""
        return sum(path.stat().st_size for path in _files(self.directory))


class CheckpointStore:
    """The fetched checkpoints of a data directory. Writers hold the data directory's lock."""

    def __init__(self, data_dir: Path) -> None:
        """Look at the store of a data directory; it need not exist."""
        self.root = data_dir / STORE_NAME

    def snapshot_directory(self, repo: str, revision: str) -> Path:
        """Return where a checkpoint is, or will be."""
        return self._repo(repo) / _SNAPSHOTS / revision

    def blob(self, sha256: str) -> Path:
        """Return where the file of a hash is, or will be."""
        return self.root / _BLOBS / sha256

    def partial(self, repo: str, revision: str, path: str, sha256: str) -> Path:
        """Return where a file lies while it arrives; known content may come from any repository."""
        key = sha256 or "--".join([repo, revision, path]).replace("/", "--")
        return self.root / _PARTIAL / key

    def records(self, repo: str, revision: str) -> dict[str, FileRecord]:
        """Return size and hash of the files of a checkpoint that arrived."""
        try:
            values = json.loads(self._record_file(repo, revision).read_text(encoding="utf-8"))
            return {path: FileRecord(**entry) for path, entry in values.items()}
        except (OSError, ValueError, TypeError, AttributeError):
            return {}

    def add_record(self, repo: str, revision: str, path: str, record: FileRecord) -> None:
        """Note what a file is; the note is replaced as a whole."""
        records = {**self.records(repo, revision), path: record}
        file = self._record_file(repo, revision)
        file.parent.mkdir(parents=True, exist_ok=True)
        partial = file.with_suffix(".partial")
        partial.write_text(json.dumps({name: asdict(each) for name, each in records.items()}))
        partial.replace(file)

    def known_commit(self, repo: str, branch: str) -> str | None:
        """Return the commit that a branch meant when it was last asked for."""
        try:
            return (self._repo(repo) / "refs" / branch).read_text().strip() or None
        except OSError:
            return None

    def note_commit(self, repo: str, branch: str, commit: str) -> None:
        """Remember the commit that a branch means."""
        file = self._repo(repo) / "refs" / branch
        file.parent.mkdir(parents=True, exist_ok=True)
        partial = file.with_name(f"{file.name}.partial")
        partial.write_text(commit)
        partial.replace(file)

    def place(self, source: Path, repo: str, revision: str, path: str) -> Path:
        """Make a file part of a checkpoint without copying it, where the file system can.

        Args:
            source: The file; it stays where it is.
            repo: Repository of the checkpoint.
            revision: Its commit.
            path: Place in the checkpoint.
        """
        target = self.snapshot_directory(repo, revision) / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.unlink(missing_ok=True)
        link_or_copy(source, target)
        return target

    def snapshots(self) -> list[Snapshot]:
        """Return every checkpoint of which something is there."""
        return [
            self._snapshot(directory)
            for directory in sorted(self.root.glob(f"{_REPO_PREFIX}*/{_SNAPSHOTS}/*"))
            if directory.is_dir()
        ]

    def remove_snapshot(self, repo: str, revision: str) -> None:
        """Remove a checkpoint; what it shares with others stays until :meth:`sweep`."""
        # The notes go first: files without notes are not trusted.
        self._record_file(repo, revision).unlink(missing_ok=True)
        shutil.rmtree(self.snapshot_directory(repo, revision), ignore_errors=True)
        _remove_if_empty(self._repo(repo))

    def sweep(self, *, with_partial: bool) -> int:
        """Remove files that no checkpoint uses; returns the bytes that this made free.

        Args:
            with_partial: Remove what has not arrived yet as well, instead of going on with it.
        """
        used = {
            path.stat().st_ino
            for directory in self.root.glob(f"{_REPO_PREFIX}*/{_SNAPSHOTS}/*")
            for path in _files(directory)
        }
        unused = [path for path in _files(self.root / _BLOBS) if path.stat().st_ino not in used]
        if with_partial:
            unused += _files(self.root / _PARTIAL)
        freed = sum(path.stat().st_size for path in unused)
        for path in unused:
            path.unlink(missing_ok=True)
        for folder in self.root.glob(f"{_REPO_PREFIX}*"):
            _remove_if_empty(folder)
        return freed

    def _snapshot(self, directory: Path) -> Snapshot:
        folder = directory.parent.parent.name
        repo, revision = folder.removeprefix(_REPO_PREFIX).replace("--", "/"), directory.name
        return Snapshot(repo, revision, directory, self.records(repo, revision))

    def _repo(self, repo: str) -> Path:
        return self.root / f"{_REPO_PREFIX}{repo.replace('/', '--')}"

    def _record_file(self, repo: str, revision: str) -> Path:
        return self._repo(repo) / "fetched" / f"{revision}.json"


def sha256_of(path: Path, on_read: Callable[[int], None] = lambda _bytes: None) -> str:
    """Return the hash of a file; ``on_read`` is told the bytes of every part."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK_BYTES):
            digest.update(chunk)
            on_read(len(chunk))
    return digest.hexdigest()


def git_sha1_of(path: Path) -> str:
    """Return the hash by which git knows the content of a file (a small one: it is read whole)."""
    content = path.read_bytes()
    header = b"blob %d\0" % len(content)
    return hashlib.sha1(header + content, usedforsecurity=False).hexdigest()


def whole_sha256(digest: str) -> str:
    """Return a digest if it is a whole SHA-256, else nothing."""
    return digest if len(digest) == _SHA256_DIGITS else ""


def link_or_copy(source: Path, target: Path, *, may_point: bool = True) -> None:
    """Give a file a second name; the file system decides how.

    Args:
        source: The file.
        target: Its second name.
        may_point: Whether the second name may end with the first, as a symbolic link does.
    """
    real = source.resolve()
    try:
        target.hardlink_to(real)
    except OSError:  # another file system, or one without hard links
        try:
            if not may_point:
                raise
            target.symlink_to(os.path.relpath(real, target.parent.resolve()))
        except OSError:
            partial = target.with_name(f".{target.name}.partial")
            shutil.copyfile(real, partial)
            partial.replace(target)


def _remove_if_empty(repo_folder: Path) -> None:
    """Remove the folder of a repository of which no checkpoint is there any more."""
    if not any(path.is_dir() for path in repo_folder.glob(f"{_SNAPSHOTS}/*")):
        shutil.rmtree(repo_folder, ignore_errors=True)


def _files(directory: Path) -> Iterator[Path]:
    return (path for path in directory.rglob("*") if path.is_file())
