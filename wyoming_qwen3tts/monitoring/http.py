"""A few pages over HTTP, for programs that watch: nothing is taken from those who ask but a path.

One request for each connection, small limits, and a place for a few clients at a time.
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import Final, Self

from wyoming_qwen3tts.errors import ConfigError
from wyoming_qwen3tts.protocol.server import Networks, is_allowed

_LOGGER = logging.getLogger(__name__)

_LOOPBACK: Final = "127.0.0.1"
_MAX_HEAD_BYTES: Final = 8_192
_MAX_CLIENTS: Final = 16
_TIMEOUT_S: Final = 5.0
_METHODS: Final = ("GET", "HEAD")
_LINE_END: Final = b"\r\n"


@dataclass(frozen=True)
class Page:
    """What is sent."""

    body: bytes
    content_type: str = "text/plain; charset=utf-8"
    status: HTTPStatus = HTTPStatus.OK


class _RefusalError(Exception):
    """A request that is answered with an error."""

    def __init__(self, status: HTTPStatus, reason: str) -> None:
        super().__init__(reason)
        self.status = status


def parse_http_address(text: str) -> tuple[str, int]:
    """Return host and port of HOST:PORT; of PORT alone it is this machine's own address.

    Raises:
        ConfigError: It is neither.
    """
    host, _, port_text = text.strip().rpartition(":")
    is_port = port_text.isascii() and port_text.isdigit() and int(port_text) < 2**16
    if not is_port or (":" in host and not (host.startswith("[") and host.endswith("]"))):
        raise ConfigError(f"http: {text!r} is no HOST:PORT such as 127.0.0.1:10280, and no PORT")
    return host.strip("[]") or _LOOPBACK, int(port_text)


class HttpEndpoint:
    """Serves pages from the start of its context to the end of it."""

    def __init__(
        self,
        address: str,
        pages: Mapping[str, Callable[[], Page]],
        networks: Networks = (),
    ) -> None:
        """Prepare to listen.

        Args:
            address: HOST:PORT or PORT.
            pages: Path -> what gives the page.
            networks: Whose clients are served.

        Raises:
            ConfigError: The address is none.
        """
        self._address = address
        self._host, self._port = parse_http_address(address)
        self._pages = pages
        self._networks = networks
        self._server: asyncio.Server | None = None
        self._clients: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Self:
        """Begin to listen.

        Raises:
            ConfigError: The address cannot be listened on.
        """
        try:
            self._server = await asyncio.start_server(
                self._accept, self._host, self._port, limit=_MAX_HEAD_BYTES, backlog=_MAX_CLIENTS
            )
        except OSError as error:
            raise ConfigError(
                f"cannot listen on {self._address}: {error}; choose another address with --http"
            ) from error
        _LOGGER.info("Figures at http://%s:%d/metrics", self._host, self.port)
        return self

    async def __aexit__(self, *_exception: object) -> None:
        if self._server is not None:
            self._server.close()
        for client in self._clients:
            client.cancel()
        if self._clients:
            await asyncio.wait(self._clients)

    @property
    def port(self) -> int:
        """The port that was bound."""
        if self._server is None:
            return self._port
        port: int = self._server.sockets[0].getsockname()[1]
        return port

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        is_welcome = is_allowed(writer.get_extra_info("peername"), self._networks)
        if not is_welcome or len(self._clients) >= _MAX_CLIENTS:
            writer.transport.abort()
            return
        task = asyncio.create_task(self._serve(reader, writer))
        self._clients.add(task)
        task.add_done_callback(self._clients.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            # One limit for everything: whoever reads or writes slowly is cut off.
            async with asyncio.timeout(_TIMEOUT_S):
                await self._answer(reader, writer)
                writer.close()
                await writer.wait_closed()
        except (OSError, asyncio.IncompleteReadError):  # includes TimeoutError
            pass
        finally:
            writer.transport.abort()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        method = ""
        try:
            method, path = await _read_request(reader)
            page = self._page(path)
        except _RefusalError as error:
            page = Page(f"{error}\n".encode(), status=error.status)
        except asyncio.IncompleteReadError:
            raise
        except Exception as error:
            _LOGGER.error("A page could not be made: %r", error)  # noqa: TRY400
            _LOGGER.debug("Where it happened", exc_info=error)
            page = Page(b"The page could not be made.\n", status=HTTPStatus.INTERNAL_SERVER_ERROR)
        head = (
            f"HTTP/1.1 {page.status.value} {page.status.phrase}",
            f"Content-Type: {page.content_type}",
            f"Content-Length: {len(page.body)}",
            "Cache-Control: no-store",
            "X-Content-Type-Options: nosniff",
            f"Allow: {', '.join(_METHODS)}",
            "Connection: close",
            "",
            "",
        )
        writer.write("\r\n".join(head).encode() + (b"" if method == "HEAD" else page.body))
        with contextlib.suppress(ConnectionError):
            await writer.drain()

    def _page(self, path: str) -> Page:
        give = self._pages.get(path)
        if give is None:
            there_are = ", ".join(self._pages)
            raise _RefusalError(
                HTTPStatus.NOT_FOUND, f"There is no such page; there are {there_are}."
            )
        return give()


async def _read_request(reader: asyncio.StreamReader) -> tuple[str, str]:
    """Return method and path; what else a request says is read and forgotten."""
    try:
        line = await reader.readuntil(b"\n")
        num_bytes = len(line)
        while (await_end := await reader.readuntil(b"\n")) not in (b"\n", _LINE_END):
            num_bytes += len(await_end)
            if num_bytes > _MAX_HEAD_BYTES:
                raise _too_long()
    except asyncio.LimitOverrunError as error:
        raise _too_long() from error
    parts = line.decode("latin-1").split()
    if len(parts) != 3 or not parts[2].startswith("HTTP/1."):
        raise _RefusalError(HTTPStatus.BAD_REQUEST, "That is no HTTP/1 request.")
    method, target, _ = parts
    if method not in _METHODS:
        raise _RefusalError(HTTPStatus.METHOD_NOT_ALLOWED, "Pages can only be read.")
    return method, target.partition("?")[0]


def _too_long() -> _RefusalError:
    return _RefusalError(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, "The request is too long.")
