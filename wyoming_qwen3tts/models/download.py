"""Downloads checkpoints with huggingface_hub: what is missing, continued where it stopped, checked.

huggingface_hub owns metadata, transfer, mirrors (``HF_ENDPOINT``), tokens and proxies. This module
keeps the incomplete file of an interrupted transfer, which huggingface_hub would delete.
"""

import errno
import hashlib
import io
import logging
import re
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path, PurePosixPath
from typing import Any, Final

from huggingface_hub import HfApi, constants, errors, hf_hub_url, try_to_load_from_cache
from huggingface_hub.file_download import http_get
from huggingface_hub.utils import (  # type: ignore[attr-defined]  # documented, but not marked
    build_hf_headers,
)

from wyoming_qwen3tts import __version__
from wyoming_qwen3tts.errors import DownloadError, UnavailableError
from wyoming_qwen3tts.machine import free_disk_bytes
from wyoming_qwen3tts.models.checkpoints import PART_SUFFIX, STORE_NAME, repo_directory
from wyoming_qwen3tts.models.registry import CheckpointFile

_LOGGER = logging.getLogger(__name__)

_LIBRARY: Final = "wyoming-qwen3tts"
_MEGABYTE: Final = 1_000_000
_COMMIT: Final = re.compile(r"[0-9a-f]{40}")
_CHUNK_BYTES: Final = 1 << 18
_HASH: Final = re.compile(r"[0-9a-f]{40}([0-9a-f]{24})?|")
_GIT_DIGITS: Final = 40
# One damaged transfer may be chance; a second one is a proxy or mirror that changes the file.
_MAX_ATTEMPTS: Final = 2
_PAUSES_S: Final = (1, 2, 4, 8)
_BUSY_STATUSES: Final = {408, 416, 425, 429, *range(500, 600)}
_FULL_DISK: Final = {errno.ENOSPC, errno.EDQUOT}


class Downloader:
    """Downloads files of repositories into a data directory, whose lock the caller holds."""

    def __init__(
        self, data_dir: Path, report: Callable[[float], None], *, local_files_only: bool
    ) -> None:
        """``report`` is called with the finished fraction."""
        self._data_dir = data_dir
        self._report = report
        self._is_offline = local_files_only or bool(constants.HF_HUB_OFFLINE)
        self._caches = (data_dir / STORE_NAME, Path(constants.HF_HUB_CACHE))
        # A connection that breaks loses the current chunk; the default is 10 MB.
        constants.DOWNLOAD_CHUNK_SIZE = _CHUNK_BYTES

    def fetch(
        self,
        repo: str,
        revision: str,
        paths: Sequence[str],
        *,
        known: Sequence[CheckpointFile] = (),
        optional: Collection[str] = (),
        extra_share: float = 0.0,
    ) -> Path:
        """Download the missing ones of some files; return the directory that has all of them.

        The repository may lack those that are ``optional``. ``known`` states hashes. The next step
        needs free space too: ``extra_share`` of the size of all files.

        Raises:
            UnavailableError: The hub cannot be reached; files that arrived are kept.
            DownloadError: A file does not exist, is damaged, or does not fit on the disk.
        """
        for path in paths:
            _check_path(path)
        needed = [path for path in paths if path not in optional]
        is_pinned = _COMMIT.fullmatch(revision) is not None
        if is_pinned or self._is_offline:
            directory = self._find_local(repo, revision, needed)
            if directory is not None:
                return directory
        if self._is_offline:
            raise DownloadError(
                f"{repo} is not completely on this machine, and downloads are switched off; run "
                "once without --local-files-only (or HF_HUB_OFFLINE)."
            )
        commit, listed = _list_files(repo, revision)
        directory = self._find_local(repo, commit, needed)
        if directory is None:
            if lacking := [path for path in needed if path not in listed]:
                raise DownloadError(f"{repo} has no file {lacking[0]} at revision {revision}.")
            hashes = {path: file.sha256 for path, file in listed.items()}
            hashes |= {file.path: file.sha256 for file in known if file.sha256}
            files = [replace(listed[path], sha256=hashes[path]) for path in paths if path in listed]
            directory = self._fetch_missing(repo, commit, files, extra_share)
        if not is_pinned:
            branch = repo_directory(self._data_dir, repo) / "refs" / revision
            branch.parent.mkdir(parents=True, exist_ok=True)
            branch.write_text(commit)  # for times without network
        return directory

    def _find_local(self, repo: str, revision: str, paths: Sequence[str]) -> Path | None:
        """Return a directory with all files, in our own cache or the user's."""
        for cache in (self._data_dir / STORE_NAME, constants.HF_HUB_CACHE):
            with _errors(repo, revision, "its files", self._data_dir):
                found = [
                    try_to_load_from_cache(repo, path, cache_dir=cache, revision=revision)
                    for path in paths
                ]
            if all(isinstance(file, str) for file in found):
                return Path(str(found[0])).parents[paths[0].count("/")]
        return None

    def _fetch_missing(
        self, repo: str, commit: str, files: Sequence[CheckpointFile], extra_share: float
    ) -> Path:
        directory = repo_directory(self._data_dir, repo) / "snapshots" / commit
        missing = [file for file in files if _size(directory / file.path) != file.bytes]
        total = sum(file.bytes for file in files)
        finished = total - sum(file.bytes for file in missing)
        needed = total - finished - sum(_size(_part(directory / file.path)) for file in missing)
        extra = int(extra_share * total)
        free = free_disk_bytes(self._data_dir)
        if free < needed + extra:
            bundle = f" and about {extra // _MEGABYTE} MB for the bundle" if extra else ""
            raise DownloadError(
                f"{repo} needs {needed // _MEGABYTE} MB{bundle}, but {self._data_dir} has "
                f"{free // _MEGABYTE} MB free; make room, or choose another --data-dir."
            )
        for file in missing:

            def written(position: int, before: int = finished) -> None:
                self._report(min((before + position) / total, 1.0))

            for pause_s in (*_PAUSES_S, None):
                try:
                    with _errors(repo, commit, file.path, self._data_dir):
                        _fetch_file(repo, commit, directory / file.path, file, written)
                    break
                except UnavailableError as error:
                    if pause_s is None or error.retry_after_s:
                        raise
                    _LOGGER.info("%s Trying again in %d s.", error, pause_s)
                    time.sleep(pause_s)
            finished += file.bytes
        return directory


def _fetch_file(
    repo: str, commit: str, target: Path, file: CheckpointFile, written: Callable[[int], None]
) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    target.unlink(missing_ok=True)
    url, part = hf_hub_url(repo, file.path, revision=commit), _part(target)
    headers = build_hf_headers(library_name=_LIBRARY, library_version=__version__)
    headers["Accept-Encoding"] = "identity"
    for _ in range(_MAX_ATTEMPTS):
        with _ReportedFile(part, written, file) as content:
            if content.tell() > file.bytes:
                content.truncate(0)
            http_get(
                url,
                content,
                resume_size=content.seek(0, io.SEEK_END),
                headers=headers,
                expected_size=file.bytes,
                displayed_filename=file.path,
            )
        if _is_right(part, file):
            part.replace(target)
            return
        _LOGGER.warning("%s of %s is damaged", file.path, repo)
        part.unlink()
    raise DownloadError(
        f"{file.path} of {repo} arrived damaged {_MAX_ATTEMPTS} times; a mirror or "
        "proxy changes it, check HF_ENDPOINT and HTTPS_PROXY."
    )


class _ReportedFile(io.FileIO):
    """A file to append to that reports its size, and takes no more than was announced."""

    def __init__(self, path: Path, written: Callable[[int], None], file: CheckpointFile) -> None:
        super().__init__(path, "a")
        self._written, self._file = written, file

    def write(self, data: Any) -> int:
        if self.tell() + len(data) > self._file.bytes:
            self.truncate(0)
            raise DownloadError(
                f"{self._file.path} is longer than the {self._file.bytes} bytes that the hub "
                "announced; a mirror or proxy changes it, check HF_ENDPOINT and HTTPS_PROXY."
            )
        count = super().write(data)
        self._written(self.tell())
        return count


def _list_files(repo: str, revision: str) -> tuple[str, dict[str, CheckpointFile]]:
    """Return the commit of a revision, and its files by path."""
    timeout_s = float(constants.HF_HUB_DOWNLOAD_TIMEOUT)
    with _errors(repo, revision, "its list of files"):
        info = HfApi(library_name=_LIBRARY, library_version=__version__).model_info(
            repo, revision=revision, files_metadata=True, timeout=timeout_s
        )
        files = {}
        for each in info.siblings or ():
            # Small files have git's hash of their content only.
            digest = each.lfs.sha256 if each.lfs else each.blob_id or ""
            if type(each.size) is not int or each.size < 0 or not _HASH.fullmatch(digest):
                raise ValueError(each)
            files[each.rfilename] = CheckpointFile(each.rfilename, each.size, digest)
        if not _COMMIT.fullmatch(str(info.sha)):
            raise ValueError(info.sha)
    return str(info.sha), files


def _check_path(path: str) -> None:
    """Raise an error for a path that leads out of the checkpoint."""
    parts = PurePosixPath(path).parts
    if not parts or ".." in parts or path.startswith("/") or "\\" in path or "\0" in path:
        raise DownloadError(f"The file name {path!r} is not allowed in a repository.")


def _part(target: Path) -> Path:
    return target.with_name(f"{target.name}{PART_SUFFIX}")


def _size(path: Path) -> int:
    return path.stat().st_size if path.is_file() else 0


def _is_right(path: Path, file: CheckpointFile) -> bool:
    if _size(path) != file.bytes:
        return False
    if len(file.sha256) == _GIT_DIGITS:
        data = b"blob %d\0" % file.bytes + path.read_bytes()
        return hashlib.sha1(data, usedforsecurity=False).hexdigest() == file.sha256
    with path.open("rb") as content:
        return hashlib.file_digest(content, "sha256").hexdigest().startswith(file.sha256)


@contextmanager
def _errors(repo: str, revision: str, what: str, data_dir: Path | None = None) -> Iterator[None]:
    """Turn errors of hub, network and disk into one sentence that says what to do."""
    hub = constants.ENDPOINT
    try:
        yield
    except errors.HfHubHTTPError as error:
        raise _explain_status(error, repo, revision, what) from error
    except errors.HFValidationError as error:
        raise DownloadError(f"{repo!r} is not the name of a repository.") from error
    except (ValueError, TypeError, LookupError, AttributeError) as error:
        text = f"{hub} does not answer as a model hub does; check HF_ENDPOINT and proxy settings."
        raise DownloadError(text) from error
    except OSError as error:
        if error.errno is None:  # huggingface_hub's check of the size
            text = f"{what} of {repo} ended too early; check the network, and proxies on the way."
            raise UnavailableError(text) from error
        if error.errno in _FULL_DISK:
            text = f"The disk of {data_dir} is full; make room and try again, the rest is kept."
            raise DownloadError(text) from error
        raise
    except Exception as error:
        # huggingface_hub lets through the errors of its HTTP library, whichever that is.
        if not type(error).__module__.startswith("httpx"):
            raise
        reason = " ".join(str(error).split()) or type(error).__name__
        raise UnavailableError(
            f"{what} of {repo} cannot be downloaded from {hub} ({reason}); check the network, "
            "and HF_ENDPOINT and HTTPS_PROXY where you use them."
        ) from error


def _explain_status(
    error: errors.HfHubHTTPError, repo: str, revision: str, what: str
) -> DownloadError:
    hub, login = constants.ENDPOINT, "log in with: hf auth login (or set HF_TOKEN)"
    status, headers = error.response.status_code, error.response.headers
    if status in _BUSY_STATUSES:
        busy = UnavailableError(f"{hub} cannot send {what} of {repo} now (status {status}).")
        wait = headers.get("Retry-After", "")
        busy.retry_after_s = float(wait) if wait.isdigit() else None
        return busy
    if isinstance(error, errors.EntryNotFoundError):
        text = f"{repo} has no file {what} at revision {revision}."
    elif isinstance(error, errors.RevisionNotFoundError):
        text = f"{repo} has no revision {revision}; name another one."
    elif isinstance(error, errors.GatedRepoError):
        text = f"{repo} needs its terms accepted; accept them on {hub}/{repo}, then {login}."
    elif "credentials" in headers.get("X-Error-Message", ""):
        text = f"{hub} does not accept your token; log out, or {login}."
    elif status in {401, 403, 404}:
        text = f"{repo} does not exist on {hub}, or is private; check the name, or {login}."
    else:
        text = f"{hub} refuses {what} of {repo} with status {status}."
    return DownloadError(text)
