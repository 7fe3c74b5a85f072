"""Fetches checkpoints into the store of a data directory: only what is missing, and checked.

A file that is there was checked when it arrived and is checked again before it is used; one whose
bytes are wrong is named and fetched again. A transfer that breaks off goes on where it stopped, in
the same run or in a later one. With everything there, not one network call is made.
"""

import errno
import logging
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Final

from huggingface_hub import try_to_load_from_cache

from wyoming_qwen3tts.errors import DownloadError, UnavailableError
from wyoming_qwen3tts.machine import free_disk_bytes
from wyoming_qwen3tts.models.checkpoint_store import (
    CheckpointStore,
    FileRecord,
    git_sha1_of,
    sha256_of,
    whole_sha256,
)
from wyoming_qwen3tts.models.hub import (
    Hub,
    HubOptions,
    MissingFileError,
    RemoteFile,
    Retries,
    is_commit,
)
from wyoming_qwen3tts.models.provision_state import CancelledError

_LOGGER = logging.getLogger(__name__)

_MEGABYTE: Final = 1_000_000
_SHA1_DIGITS: Final = 40
# Wrong bytes once may be bad luck; twice is a proxy or mirror that changes them.
_MAX_WRONG: Final = 2
_FULL_DISK: Final = {errno.ENOSPC, errno.EDQUOT}

Progress = Callable[[float, str], None]
"""Called with the finished fraction, 0 to 1, and what is being done."""


@dataclass(frozen=True)
class WantedFile:
    """A file that shall be there."""

    path: str
    num_bytes: int | None = None
    """None where it is not known before the hub was asked."""
    sha256: str = ""
    """All of the hash, its start, or nothing."""
    is_optional: bool = False
    """Whether it is no error that the repository has no such file."""
    also_in: tuple[tuple[str, str], ...] = ()
    """(repository, revision) that have the very same file."""


class Fetcher:
    """Fetches the files of repositories into one store."""

    def __init__(
        self,
        store: CheckpointStore,
        options: HubOptions,
        cancelled: threading.Event,
        progress: Progress = lambda _fraction, _message: None,
    ) -> None:
        """Prepare to fetch.

        Args:
            store: Where files go; the caller holds the data directory's lock.
            options: How the hub is asked.
            cancelled: Set by another thread to end whatever is going on.
            progress: Told how far a call of :meth:`fetch` is.
        """
        self._store = store
        self._options = options
        self._cancelled = cancelled
        self._progress = progress
        self._hub = Hub(options, cancelled)
        self._done_bytes = 0
        self._total_bytes = 0

    def commit_of(self, repo: str, revision: str, path: str = "config.json") -> str:
        """Return the commit that a revision means; without a network, the last one known.

        Args:
            repo: The repository.
            revision: A branch, a tag or a commit.
            path: A file that the repository has.

        Raises:
            DownloadError: Nobody knows.
        """
        if is_commit(revision):
            return revision
        known = self._store.known_commit(repo, revision)
        if known is None and (cached := _cached(repo, revision, path)) is not None:
            known = cached.parents[path.count("/")].name
        if self._options.is_offline:
            if known is None:
                raise self._offline_error(repo, path)
            return known
        try:
            commit = self._hub.describe(repo, revision, path).revision
        except UnavailableError as error:
            if known is None:
                raise
            _LOGGER.warning("%s Taking what %s of %s was last: %s", error, revision, repo, known)
            return known
        with self._disk_errors():
            self._store.note_commit(repo, revision, commit)
        return commit

    def fetch(
        self, repo: str, commit: str, files: Sequence[WantedFile], extra_bytes: int = 0
    ) -> Path:
        """Make files of a commit be there, whole and checked.

        Args:
            repo: The repository.
            commit: The commit.
            files: What is wanted, in the order in which it is fetched.
            extra_bytes: Free space that is needed besides, for what comes afterwards.

        Returns:
            The checkpoint's directory.

        Raises:
            DownloadError: A file cannot be had, or there is too little space; in one sentence.
            CancelledError: Nobody wants it any more.
        """
        self._done_bytes = 0
        self._total_bytes = sum(file.num_bytes or 0 for file in files)
        directory = self._store.snapshot_directory(repo, commit)
        with self._disk_errors():
            missing = [file for file in files if not self._is_there(repo, commit, file)]
            if missing:
                if self._options.is_offline:
                    wanted = [file for file in missing if not file.is_optional]
                    if wanted:
                        raise self._offline_error(repo, wanted[0].path)
                    return directory
                self._fetch_missing(repo, commit, missing, extra_bytes)
        return directory

    def _is_there(self, repo: str, commit: str, file: WantedFile) -> bool:
        """Whether a file is there with the right bytes; takes it from a cache if it can."""
        path = self._store.snapshot_directory(repo, commit) / file.path
        record = self._store.records(repo, commit).get(file.path)
        expected = whole_sha256(file.sha256) or (record.sha256 if record is not None else "")
        if path.is_file():
            # Without any hash a file cannot be trusted: its arrival was cut short.
            if expected and expected == (found := self._checked(path, file, expected)):
                self._note(repo, commit, file.path, path, found)
                return True
            path.unlink()
        candidates = self._candidates(repo, commit, file, expected)
        return any(self._take(candidate, repo, commit, file) for candidate in candidates)

    def _candidates(
        self, repo: str, commit: str, file: WantedFile, expected: str
    ) -> Iterator[Path]:
        """Yield where else on this machine the same file may be."""
        if expected and (blob := self._store.blob(expected)).is_file():
            yield blob
        for source, revision in ((repo, commit), *file.also_in):
            if (cached := _cached(source, revision, file.path)) is not None:
                yield cached

    def _take(self, candidate: Path, repo: str, commit: str, file: WantedFile) -> bool:
        """Make a file that is elsewhere on this machine part of the checkpoint."""
        found = self._checked(candidate, file, file.sha256)
        if not found.startswith(file.sha256):
            return False
        path = self._store.place(candidate, repo, commit, file.path)
        self._note(repo, commit, file.path, path, found)
        _LOGGER.info("%s of %s was on this machine already (%s)", file.path, repo, candidate)
        return True

    def _checked(self, path: Path, file: WantedFile, expected: str) -> str:
        """Return the hash of a file that is there; it counts as done if it is the expected one."""
        before = self._done_bytes
        found = sha256_of(path, lambda num_bytes: self._advance(num_bytes, f"checking {file.path}"))
        if not found.startswith(expected):
            self._done_bytes = before
            _LOGGER.warning("%s is damaged: its sha256 is %s, not %s", path, found, expected)
            if path.is_relative_to(self._store.root):
                # It may be one name of several of the same damaged content.
                self._store.blob(expected).unlink(missing_ok=True)
        return found

    def _fetch_missing(
        self, repo: str, commit: str, files: Sequence[WantedFile], extra_bytes: int
    ) -> None:
        described: list[tuple[WantedFile, RemoteFile]] = []
        for file in files:
            try:
                described.append((file, self._describe(repo, commit, file)))
            except MissingFileError:
                if not file.is_optional:
                    raise
        self._total_bytes += sum(
            (remote.num_bytes or 0) - (file.num_bytes or 0) for file, remote in described
        )
        self._check_space(repo, described, extra_bytes)
        for file, remote in described:
            blob = self._store.blob(whole_sha256(remote.digest) or "-")
            if blob.is_file() and self._take(blob, repo, commit, file):
                continue
            self._fetch_file(file, remote)

    def _describe(self, repo: str, commit: str, file: WantedFile) -> RemoteFile:
        """Ask what a file is; a hub whose answer is another file than the known one is refused."""
        remote = self._hub.describe(repo, commit, file.path)
        known, said = whole_sha256(file.sha256), whole_sha256(remote.digest)
        if known and said and known != said:
            raise DownloadError(
                f"{self._options.address} has another {file.path} of {repo} than the published one "
                f"(sha256 {said}, not {known}); check HF_ENDPOINT."
            )
        num_bytes = remote.num_bytes if remote.num_bytes is not None else file.num_bytes
        return RemoteFile(repo, commit, file.path, num_bytes, known or remote.digest)

    def _check_space(
        self, repo: str, described: Sequence[tuple[WantedFile, RemoteFile]], extra_bytes: int
    ) -> None:
        needed = sum(
            (remote.num_bytes or 0) - _size(self._partial(remote)) for _file, remote in described
        )
        free = free_disk_bytes(self._store.root)
        if free < needed + extra_bytes:
            extra = f" and {extra_bytes // _MEGABYTE} MB for the bundle" if extra_bytes else ""
            raise DownloadError(
                f"{repo} needs {needed // _MEGABYTE} MB{extra}, but {self._store.root.parent} has "
                f"{free // _MEGABYTE} MB free; make room, or choose another --data-dir."
            )

    def _fetch_file(self, file: WantedFile, remote: RemoteFile) -> None:
        partial = self._partial(remote)
        partial.parent.mkdir(parents=True, exist_ok=True)
        for attempt in range(1, _MAX_WRONG + 1):
            before = self._done_bytes
            self._transfer(remote, partial)
            found = sha256_of(partial)
            if not (problem := _problem(file, remote, partial, found)):
                break
            partial.unlink()
            self._done_bytes = before
            if attempt == _MAX_WRONG:
                raise DownloadError(
                    f"{file.path} of {remote.repo} arrived with wrong bytes {attempt} times "
                    f"({problem}); a mirror or proxy changes it, check HF_ENDPOINT and HTTPS_PROXY."
                )
            _LOGGER.warning(
                "%s of %s has wrong bytes (%s); it is fetched again",
                file.path,
                remote.repo,
                problem,
            )
        self._put_in_place(partial, remote, found)

    def _put_in_place(self, partial: Path, remote: RemoteFile, found: str) -> None:
        """Make a checked file part of the checkpoint; whatever is cut short is done again."""
        if whole_sha256(remote.digest):
            blob = self._store.blob(found)
            blob.parent.mkdir(parents=True, exist_ok=True)
            partial.replace(blob)
            path = self._store.place(blob, remote.repo, remote.revision, remote.path)
        else:
            path = self._store.snapshot_directory(remote.repo, remote.revision) / remote.path
            path.parent.mkdir(parents=True, exist_ok=True)
            partial.replace(path)
        self._note(remote.repo, remote.revision, remote.path, path, found)

    def _transfer(self, remote: RemoteFile, partial: Path) -> None:
        """Bring all bytes of a file here, from where an earlier attempt stopped."""
        retries = Retries(self._options, self._cancelled)
        with partial.open("ab") as file:
            furthest = file.tell()
            self._advance(furthest, remote.path)
            while remote.num_bytes is None or file.tell() < remote.num_bytes:
                try:
                    self._receive(remote, file)
                    break
                except UnavailableError as error:
                    file.flush()
                    if file.tell() > furthest:
                        furthest = file.tell()
                        retries.reset()
                    self._advance(0, f"waiting to go on with {remote.path}")
                    retries.wait_after(error)
            file.flush()
            os.fsync(file.fileno())

    def _receive(self, remote: RemoteFile, file: BinaryIO) -> None:
        """Append what one connection brings."""
        offset = file.tell()
        with self._hub.open(remote, offset) as (start, chunks):
            if start != offset:
                # The server cannot go on in the middle.
                file.truncate(start)
                self._advance(start - offset, remote.path)
            for chunk in chunks:
                file.write(chunk)
                self._advance(len(chunk), remote.path)
        if remote.num_bytes is not None and file.tell() < remote.num_bytes:
            raise UnavailableError(
                f"{remote.path} ({remote.repo}) ended after {file.tell()} of {remote.num_bytes} "
                f"bytes; check the network, and the proxy before {self._options.address}."
            )

    def _note(self, repo: str, commit: str, path: str, file: Path, sha256: str) -> None:
        record = FileRecord(file.stat().st_size, sha256)
        if self._store.records(repo, commit).get(path) != record:
            self._store.add_record(repo, commit, path, record)

    def _partial(self, remote: RemoteFile) -> Path:
        known = whole_sha256(remote.digest)
        return self._store.partial(remote.repo, remote.revision, remote.path, known)

    def _advance(self, num_bytes: int, what: str) -> None:
        if self._cancelled.is_set():
            raise CancelledError
        self._done_bytes += num_bytes
        total = max(self._total_bytes, 1)
        done_mb, total_mb = self._done_bytes // _MEGABYTE, total // _MEGABYTE
        fraction = min(self._done_bytes / total, 1.0)
        self._progress(fraction, f"{what}, {done_mb} of {total_mb} MB")

    def _offline_error(self, repo: str, path: str) -> DownloadError:
        return DownloadError(
            f"{path} of {repo} is not on this machine, and fetching is switched off; run once "
            "without --local-files-only (or HF_HUB_OFFLINE)."
        )

    @contextmanager
    def _disk_errors(self) -> Iterator[None]:
        """Say what is wrong with the disk in one sentence."""
        try:
            yield
        except OSError as error:
            if error.errno in _FULL_DISK:
                left = max(self._total_bytes - self._done_bytes, 0) // _MEGABYTE
                free = free_disk_bytes(self._store.root) // _MEGABYTE
                raise DownloadError(
                    f"The disk is full: {left} MB are still to come, {self._store.root} has {free} "
                    "MB free; make room and start again, what has arrived is kept."
                ) from error
            where = error.filename or self._store.root
            raise DownloadError(
                f"{where} cannot be written or read ({error.strerror}); choose another --data-dir, "
                "or mend its permissions."
            ) from error


def _cached(repo: str, revision: str, path: str) -> Path | None:
    """Return a file in huggingface_hub's own cache, as it is on disk."""
    found = try_to_load_from_cache(repo, path, revision=revision)
    return Path(found) if isinstance(found, str) else None


def _problem(file: WantedFile, remote: RemoteFile, partial: Path, found: str) -> str:
    """Return what is wrong with the bytes that arrived; nothing if they are right."""
    size = partial.stat().st_size
    if remote.num_bytes is not None and size != remote.num_bytes:
        return f"{size} bytes, not {remote.num_bytes}"
    expected = whole_sha256(remote.digest) or file.sha256
    if not found.startswith(expected):
        return f"sha256 {found}, not {expected}"
    if len(remote.digest) == _SHA1_DIGITS and git_sha1_of(partial) != remote.digest:
        return f"git hash {git_sha1_of(partial)}, not {remote.digest}"
    return ""


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0
