"""A stand-in for the model hub on loopback, with its HTTP behaviour and its failures.

Small files are answered by the hub itself behind a relative redirect; large ones (*.safetensors,
*.onnx, *.data) by another origin, the content server, whose address the hub hands out.
"""

import hashlib
import json
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import quote, unquote, urlsplit

LARGE_SUFFIXES = (".safetensors", ".onnx", ".data")
COMMIT = "0123456789abcdef0123456789abcdef01234567"
_BLOCK_BYTES = 8192
LISTING = "the list of files"
"""Path of faults that happen to the list of a repository's files."""


@dataclass
class Fault:
    """Something that goes wrong a number of times."""

    path: str
    """End of the file's path that it befalls."""
    status: int | None = None
    """Answer this instead; None answers, but with the body spoilt."""
    headers: dict[str, str] = field(default_factory=dict)
    after_bytes: int = 0
    """How much of the body is sent before what follows."""
    stall_s: float = 0.0
    """Then send nothing for this long, and close."""
    cut: bool = False
    """Then close, as if that were all."""
    reset: bool = False
    """Then reset the connection."""
    flip: bool = False
    """Send a wrong byte."""
    ignore_range: bool = False
    """Answer from the beginning, whatever was asked for."""
    times: int = 1
    """How often; negative for always."""


class Content:
    """Bytes of a served file, which may be too large to hold."""

    def __init__(self, source: bytes | Path) -> None:
        self._source = source
        self.size = len(source) if isinstance(source, bytes) else source.stat().st_size
        self._hashes: tuple[str, str] | None = None

    def blocks(self, start: int, end: int) -> Iterator[bytes]:
        """Yield the bytes from ``start`` to ``end``."""
        if isinstance(self._source, bytes):
            for place in range(start, end, _BLOCK_BYTES):
                yield self._source[place : min(place + _BLOCK_BYTES, end)]
            return
        with self._source.open("rb") as file:
            file.seek(start)
            while start < end:
                block = file.read(min(_BLOCK_BYTES, end - start))
                start += len(block)
                yield block

    @property
    def sha256(self) -> str:
        return self._hash()[0]

    @property
    def git_sha1(self) -> str:
        return self._hash()[1]

    def _hash(self) -> tuple[str, str]:
        if self._hashes is None:
            sha256 = hashlib.sha256()
            git = hashlib.sha1(b"blob %d\0" % self.size, usedforsecurity=False)
            for block in self.blocks(0, self.size):
                sha256.update(block)
                git.update(block)
            self._hashes = sha256.hexdigest(), git.hexdigest()
        return self._hashes


@dataclass
class Repository:
    """Files of one commit."""

    files: dict[str, bytes | Path]
    commit: str = COMMIT
    token: str | None = None
    """Needed to read it."""
    is_gated: bool = False
    listing: Callable[[list[dict]], object] = list
    """Changes what the hub says about the files."""
    _contents: dict[str, Content] = field(default_factory=dict)

    def content(self, path: str) -> Content:
        if path not in self._contents:
            self._contents[path] = Content(self.files[path])
        return self._contents[path]


@dataclass(frozen=True)
class Request:
    """A request that arrived."""

    server: str
    method: str
    path: str
    range: str | None
    authorization: str | None


class StandInHub:
    """Serves repositories, and notes what it was asked."""

    def __init__(self) -> None:
        self.repositories: dict[str, Repository] = {}
        self.faults: list[Fault] = []
        self.requests: list[Request] = []
        self.bytes_sent = 0
        self.block_pause_s = 0.0
        """Slows the transfer of large files down."""
        self.hub = _Server(self, "hub")
        self.content = _Server(self, "content")

    @property
    def endpoint(self) -> str:
        return self.hub.address

    def add_directory(self, repo: str, directory: Path, **options) -> Repository:
        """Serve the files of a directory, read when they are asked for."""
        files = {
            path.relative_to(directory).as_posix(): path
            for path in directory.rglob("*")
            if path.is_file()
        }
        self.repositories[repo] = Repository(files, **options)
        return self.repositories[repo]

    def fail(self, path: str, **options) -> Fault:
        """Let something go wrong with the files whose path ends so."""
        fault = Fault(path, **options)
        self.faults.append(fault)
        return fault

    def take_fault(self, path: str) -> Fault | None:
        for fault in self.faults:
            fits = path.endswith(fault.path) and fault.status is None
            if fits and fault.times != 0:
                fault.times -= 1
                return fault
        return None

    def gets(self, path: str = "") -> list[Request]:
        """Return the requests for bytes of files whose path ends so, redirects left out."""
        return [
            request
            for request in self.requests
            if request.method == "GET"
            and request.path.endswith(path)
            and (request.server == "content" or "resolve-cache" in request.path)
        ]

    def close(self) -> None:
        self.hub.close()
        self.content.close()


@contextmanager
def running_hub() -> Iterator[StandInHub]:
    hub = StandInHub()
    try:
        yield hub
    finally:
        hub.close()


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, owner: StandInHub, name: str) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.owner = owner
        self.name = name
        self.address = f"http://127.0.0.1:{self.server_address[1]}"
        self._thread = threading.Thread(
            target=self.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True
        )
        self._thread.start()

    def close(self) -> None:
        self.shutdown()
        self._thread.join()
        self.server_close()

    def handle_error(self, request, client_address) -> None:
        """Clients that hang up are part of the game."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Server
    wbufsize = 0

    def log_message(self, *_arguments) -> None:
        pass

    def do_HEAD(self) -> None:
        self._answer()

    def do_GET(self) -> None:
        self._answer()

    def _answer(self) -> None:
        owner = self.server.owner
        path = unquote(urlsplit(self.path).path)
        owner.requests.append(
            Request(
                self.server.name,
                self.command,
                path,
                self.headers.get("Range"),
                self.headers.get("Authorization"),
            )
        )
        if self.server.name == "content":
            # /<owner>/<name>/<commit>/<path>
            _, organisation, name, _commit, file = path.split("/", 4)
            self._send_file(f"{organisation}/{name}", file)
        elif path.startswith("/api/resolve-cache/models/"):
            _, _, _, _, organisation, name, _commit, file = path.split("/", 7)
            self._send_file(f"{organisation}/{name}", file)
        elif path.startswith("/api/models/"):
            repo, _, revision = path.removeprefix("/api/models/").partition("/revision/")
            self._list(repo, revision or "main")
        elif "/resolve/" in path:
            repo, _, rest = path[1:].partition("/resolve/")
            revision, _, file = rest.partition("/")
            self._resolve(repo, revision, file)
        else:
            self._error(404, "RepoNotFound", "Not here")

    def _list(self, repo: str, revision: str) -> None:
        """Send the commit of a revision, and its files with sizes and hashes."""
        if self._is_refused(repo, revision) or self._is_out_of_order(LISTING):
            return
        repository = self.server.owner.repositories[repo]
        siblings = []
        for path in repository.files:
            content = repository.content(path)
            entry = {"rfilename": path, "size": content.size, "blobId": content.git_sha1}
            if path.endswith(LARGE_SUFFIXES):
                lfs = {"size": content.size, "sha256": content.sha256, "pointerSize": 130}
                entry |= {"lfs": lfs}
            siblings.append(entry)
        listed = repository.listing(siblings)
        body = json.dumps({"id": repo, "sha": repository.commit, "siblings": listed}).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def _resolve(self, repo: str, revision: str, file: str) -> None:
        if self._is_refused(repo, revision) or self._is_out_of_order(file):
            return
        repository = self.server.owner.repositories[repo]
        if file not in repository.files:
            self._error(404, "EntryNotFound", "Entry not found", repository.commit)
        else:
            self._redirect(repo, repository, file)

    def _is_refused(self, repo: str, revision: str) -> bool:
        repository = self.server.owner.repositories.get(repo)
        authorization = self.headers.get("Authorization")
        if repository is None:
            # As the hub does it: who is nobody is not told what there is.
            if authorization is None:
                self._error(401, "RepoNotFound", "Invalid username or password.")
            else:
                self._error(404, "RepoNotFound", "Repository not found")
        elif authorization == "Bearer expired":
            self._error(401, "", "Invalid credentials in Authorization header")
        elif repository.token and authorization != f"Bearer {repository.token}":
            code = "GatedRepo" if repository.is_gated else "RepoNotFound"
            self._error(401, code, "Access is restricted")
        elif revision not in (repository.commit, "main"):
            self._error(404, "RevisionNotFound", f"Invalid rev id: {revision}")
        else:
            return False
        return True

    def _is_out_of_order(self, file: str) -> bool:
        owner = self.server.owner
        for fault in owner.faults:
            if fault.status is not None and file.endswith(fault.path) and fault.times != 0:
                fault.times -= 1
                self._error(fault.status, "", "Out of order", headers=fault.headers)
                return True
        return False

    def _redirect(self, repo: str, repository: Repository, file: str) -> None:
        content = repository.content(file)
        headers = {"X-Repo-Commit": repository.commit, "Accept-Ranges": "bytes"}
        if file.endswith(LARGE_SUFFIXES):
            headers |= {
                "X-Linked-Etag": f'"{content.sha256}"',
                "X-Linked-Size": str(content.size),
                "ETag": '"of-the-pointer"',
                "Location": f"{self.server.owner.content.address}/{repo}/{repository.commit}/"
                f"{quote(file)}?signature=abc",
            }
            self._send_head(302, headers)
        else:
            location = f"/api/resolve-cache/models/{repo}/{repository.commit}/{quote(file)}"
            self._send_head(307, {**headers, "Location": location})

    def _send_file(self, repo: str, file: str) -> None:
        owner = self.server.owner
        repository = owner.repositories[repo]
        content = repository.content(file)
        fault = None
        if self.command == "GET":
            fault = owner.take_fault(file)
        headers = {"Accept-Ranges": "bytes", "ETag": '"of-the-content"'}
        if self.server.name == "hub":
            headers |= {"X-Repo-Commit": repository.commit, "ETag": f'"{content.git_sha1}"'}
        start, status = 0, 200
        wanted = self.headers.get("Range")
        if wanted and not (fault and fault.ignore_range):
            start, status = int(wanted.removeprefix("bytes=").rstrip("-")), 206
            if start >= content.size:
                headers["Content-Range"] = f"bytes */{content.size}"
                self._error(416, "", "Out of range", headers=headers)
                return
            headers["Content-Range"] = f"bytes {start}-{content.size - 1}/{content.size}"
        headers["Content-Length"] = str(content.size - start)
        self._send_head(status, headers, length=False)
        if self.command == "GET":
            self._send_body(content, start, fault)

    def _send_body(self, content: Content, start: int, fault: Fault | None) -> None:
        owner, end = self.server.owner, content.size
        is_broken = fault is not None and (fault.stall_s or fault.cut or fault.reset)
        if is_broken:
            end = min(end, start + fault.after_bytes)
        for number, block in enumerate(content.blocks(start, end)):
            if number == 0 and fault is not None and fault.flip:
                block = block[:-1] + bytes([block[-1] ^ 1])
            self.wfile.write(block)
            owner.bytes_sent += len(block)
            if owner.block_pause_s:
                time.sleep(owner.block_pause_s)
        if is_broken:
            time.sleep(fault.stall_s)
            if fault.reset:
                linger = struct.pack("ii", 1, 0)
                self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
            self.close_connection = True
            self.connection.close()

    def _error(
        self, status: int, code: str, message: str, commit: str | None = None, headers=None
    ) -> None:
        sent = {"X-Error-Code": code, "X-Error-Message": message, **(headers or {})}
        if commit:
            sent["X-Repo-Commit"] = commit
        self._send_head(status, {name: value for name, value in sent.items() if value})

    def _send_head(self, status: int, headers: dict[str, str], *, length: bool = True) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        if length:
            self.send_header("Content-Length", "0")
        self.end_headers()
