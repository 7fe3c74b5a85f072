"""Files of the model hub: what a file is, and its bytes from any place on.

Over huggingface_hub, so that endpoint and mirrors (``HF_ENDPOINT``), tokens, proxies and
certificates are as they are for every program that uses it. Only the transfer is ours: its own
keeps nothing of a download that was cut short.
"""

import logging
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Final

from huggingface_hub import constants, get_hf_file_metadata, get_session, hf_hub_url
from huggingface_hub.errors import HfHubHTTPError
from huggingface_hub.utils import (  # type: ignore[attr-defined]  # documented, but not marked
    build_hf_headers,
    hf_raise_for_status,
)

from wyoming_qwen3tts import __version__
from wyoming_qwen3tts.errors import DownloadError, UnavailableError
from wyoming_qwen3tts.models.provision_state import CancelledError

_LOGGER = logging.getLogger(__name__)

_LIBRARY: Final = "wyoming-qwen3tts"
_PARTIAL: Final = 206
_RANGE_REFUSED: Final = 416
_BUSY_STATUSES: Final = {408, 425, 429}
_FIRST_SERVER_ERROR: Final = 500
# A hub that wants to be left alone for longer is reported instead.
_MAX_WAIT_S: Final = 300.0
_MAX_BACKOFF_S: Final = 30.0


class MissingFileError(DownloadError):
    """The repository has no such file."""


@dataclass(frozen=True)
class HubOptions:
    """How the hub is asked."""

    endpoint: str | None = None
    """Address of the hub; None takes huggingface_hub's own (``HF_ENDPOINT``)."""
    local_files_only: bool = False
    """Never use the network."""
    timeout_s: float = float(constants.HF_HUB_DOWNLOAD_TIMEOUT)
    """Silence after which a connection counts as lost."""
    num_retries: int = 6
    """Failures in a row, without a byte in between, before giving up."""
    first_wait_s: float = 0.5
    """Wait before the first retry; each further one waits twice as long."""

    @property
    def is_offline(self) -> bool:
        """Whether the network must not be used (``HF_HUB_OFFLINE`` says so for all programs)."""
        return self.local_files_only or bool(constants.HF_HUB_OFFLINE)

    @property
    def address(self) -> str:
        """Where the hub is, for messages."""
        return self.endpoint or constants.ENDPOINT


@dataclass(frozen=True)
class RemoteFile:
    """A file on the hub."""

    repo: str
    revision: str
    """Commit."""
    path: str
    num_bytes: int | None
    """None where the hub does not say."""
    digest: str
    """SHA-256 of a large file, git's SHA-1 of a small one, or nothing."""


class Hub:
    """The model hub, asked patiently."""

    def __init__(self, options: HubOptions, cancelled: threading.Event) -> None:
        """Prepare to ask; nothing is sent yet.

        Args:
            options: How to ask.
            cancelled: Set by another thread to end whatever is going on.
        """
        self._options = options
        self._cancelled = cancelled
        self._http = _http_library()
        if not _LOGGER.isEnabledFor(logging.DEBUG):
            # It has a line for every request at the level at which a server logs.
            logging.getLogger(self._http.__name__).setLevel(logging.WARNING)

    def describe(self, repo: str, revision: str, path: str) -> RemoteFile:
        """Ask what a file is.

        Raises:
            MissingFileError: The repository has no such file.
            UnavailableError: The hub cannot be reached, or is overloaded.
            DownloadError: The hub refuses.
        """
        retries = Retries(self._options, self._cancelled)
        while True:
            try:
                return self._describe(repo, revision, path)
            except UnavailableError as error:
                retries.wait_after(error)

    @contextmanager
    def open(self, file: RemoteFile, offset: int) -> Iterator[tuple[int, Iterator[bytes]]]:
        """Open the stream of a file's bytes, once; it breaks off where the network does.

        Args:
            file: The file.
            offset: Bytes that are there already.

        Yields:
            (place of the first byte, chunks of bytes). The place is 0 where the server cannot go on
            in the middle.

        Raises:
            UnavailableError: The hub cannot be reached, or the connection was lost on the way.
            DownloadError: The hub refuses.
        """
        headers = build_hf_headers(library_name=_LIBRARY, library_version=__version__)
        headers["Accept-Encoding"] = "identity"
        if offset:
            headers["Range"] = f"bytes={offset}-"
        url = self._url(file.repo, file.revision, file.path)
        try:
            # Authorization is dropped by the client where the hub hands over to another server.
            with get_session().stream(
                "GET", url, headers=headers, timeout=self._options.timeout_s, follow_redirects=True
            ) as response:
                if not (offset and response.status_code == _RANGE_REFUSED):
                    hf_raise_for_status(response)
                    yield _start_of(response), self._chunks(response)
                    return
        except (self._http.HTTPError, self._http.StreamError) as error:
            raise self._explain(error, file.repo, file.revision, file.path) from error
        with self.open(file, 0) as stream:
            yield stream

    def _describe(self, repo: str, revision: str, path: str) -> RemoteFile:
        self._check_cancelled()
        try:
            found = get_hf_file_metadata(
                self._url(repo, revision, path),
                timeout=self._options.timeout_s,
                library_name=_LIBRARY,
                library_version=__version__,
            )
        except (self._http.HTTPError, self._http.StreamError) as error:
            raise self._explain(error, repo, revision, path) from error
        if found.commit_hash is None and not is_commit(revision):
            raise DownloadError(
                f"{self._options.address} does not answer as a model hub does; check HF_ENDPOINT "
                "and proxy settings."
            )
        return RemoteFile(repo, found.commit_hash or revision, path, found.size, found.etag or "")

    def _chunks(self, response: Any) -> Iterator[bytes]:
        # In the pieces that arrive: what were gathered for larger ones would be lost in a break.
        for chunk in response.iter_bytes():
            self._check_cancelled()
            yield chunk

    def _check_cancelled(self) -> None:
        if self._cancelled.is_set():
            raise CancelledError

    def _url(self, repo: str, revision: str, path: str) -> str:
        return hf_hub_url(repo, path, revision=revision, endpoint=self._options.endpoint)

    def _explain(self, error: Exception, repo: str, revision: str, path: str) -> DownloadError:
        """Return what went wrong, in one sentence that says what to do."""
        address = self._options.address
        if isinstance(error, HfHubHTTPError):
            return self._explain_status(error.response, repo, revision, path)
        if isinstance(error, self._http.ProxyError):
            return UnavailableError(
                f"The proxy does not let through to {address} ({_reason(error)}); check "
                "HTTPS_PROXY and NO_PROXY."
            )
        if isinstance(error, self._http.ConnectError | self._http.ConnectTimeout):
            return UnavailableError(
                f"{address} cannot be reached ({_reason(error)}); check the network, and "
                "HF_ENDPOINT and HTTPS_PROXY where you use them."
            )
        if isinstance(error, self._http.TimeoutException):
            return UnavailableError(
                f"{address} sent nothing of {path} ({repo}) for {self._options.timeout_s:g} s; "
                "check the network."
            )
        return UnavailableError(
            f"The connection to {address} broke while {path} ({repo}) was fetched "
            f"({_reason(error)}); check the network."
        )

    def _explain_status(self, response: Any, repo: str, revision: str, path: str) -> DownloadError:
        status, code = response.status_code, response.headers.get("X-Error-Code", "")
        address = self._options.address
        if status in _BUSY_STATUSES or status >= _FIRST_SERVER_ERROR:
            wait_s = _requested_wait_s(response.headers)
            asked = f"; it asks to wait {wait_s:.0f} s" if wait_s is not None else ""
            failure = UnavailableError(
                f"{address} cannot give {path} ({repo}) now (status {status}){asked}; "
                "try again later."
            )
            failure.retry_after_s = wait_s
            return failure
        if code == "EntryNotFound":
            return MissingFileError(
                f"{repo} has no file {path} at revision {revision} ({status}); name another "
                "revision, or a repository in the official layout."
            )
        if code == "RevisionNotFound":
            return DownloadError(f"{repo} has no revision {revision} ({status}); name another one.")
        if code == "GatedRepo":
            return DownloadError(
                f"{repo} is only for those who accepted its terms ({status}); accept them on "
                f"{address}/{repo}, then log in with: hf auth login (or set HF_TOKEN)."
            )
        if "credentials" in response.headers.get("X-Error-Message", ""):
            return DownloadError(
                f"{address} does not accept your token ({status}); log in again with: hf auth "
                "login (or set HF_TOKEN), or log out."
            )
        if status in {401, 403, 404}:
            return DownloadError(
                f"{repo} does not exist on {address}, or is private ({status}); check the name, "
                "or log in with: hf auth login (or set HF_TOKEN)."
            )
        return DownloadError(f"{address} refuses {path} ({repo}) with status {status}.")


class Retries:
    """How often and how long to wait when something fails that may work later."""

    def __init__(self, options: HubOptions, cancelled: threading.Event) -> None:
        """Start with all retries."""
        self._options = options
        self._cancelled = cancelled
        self._num_failures = 0

    def reset(self) -> None:
        """Take note that something arrived."""
        self._num_failures = 0

    def wait_after(self, error: UnavailableError) -> None:
        """Wait before the next attempt.

        Raises:
            UnavailableError: The given error, when there is no use in another attempt.
            CancelledError: Nobody waits any more.
        """
        self._num_failures += 1
        backoff_s = self._options.first_wait_s * 2 ** (self._num_failures - 1)
        wait_s = max(min(backoff_s, _MAX_BACKOFF_S), error.retry_after_s or 0.0)
        if self._num_failures > self._options.num_retries or wait_s > _MAX_WAIT_S:
            raise error
        _LOGGER.info("%s Trying again in %.0f s.", error, wait_s)
        if self._cancelled.wait(wait_s):
            raise CancelledError


def is_commit(revision: str) -> bool:
    """Whether a revision is a whole commit id, which always means the same files."""
    return re.fullmatch(r"[0-9a-f]{40}", revision) is not None


def _http_library() -> Any:
    """Return the module of the errors that huggingface_hub lets through.

    That is httpx in its version 1 and httpx2 in version 2; the base of its own errors tells.
    """
    base = next(kind for kind in HfHubHTTPError.__mro__ if kind.__name__ == "HTTPError")
    return import_module(base.__module__.partition(".")[0])


def _start_of(response: Any) -> int:
    """Return the place of the first byte of a response."""
    if response.status_code != _PARTIAL:
        return 0
    match = re.match(r"bytes (\d+)-", response.headers.get("Content-Range", ""))
    return int(match[1]) if match else 0


def _requested_wait_s(headers: Any) -> float | None:
    """Return how long the hub asks to wait: ``Retry-After: 5``, or ``ratelimit: "api";r=0;t=5``."""
    after = headers.get("Retry-After", "")
    if after.isdigit():
        return float(after)
    match = re.search(r"\br=0;\s*t=(\d+)", headers.get("ratelimit", ""))
    return float(match[1]) if match else None


def _reason(error: Exception) -> str:
    return " ".join(str(error).split()) or type(error).__name__
