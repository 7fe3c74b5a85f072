"""Listens on tcp://, unix:// or stdio:// and keeps the connections."""

import asyncio
import errno
import ipaddress
import logging
import os
import socket
import stat
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, Self
from urllib.parse import urlsplit

from wyoming.event import async_get_stdin

from wyoming_qwen3tts.errors import BusyError, ConfigError
from wyoming_qwen3tts.protocol.backend import SpeechBackend
from wyoming_qwen3tts.protocol.connection import Client, Connection, ConnectionOptions
from wyoming_qwen3tts.protocol.response import make_error
from wyoming_qwen3tts.protocol.wire import MAX_HEADER_BYTES, encode_event

_LOGGER = logging.getLogger(__name__)

ERROR_FLUSH_TIMEOUT_S: Final = 1.0
_BACKLOG: Final = 128
_SEND_BUFFER_BYTES: Final = 131_072
"""A small kernel buffer shows soon that a client does not read; the default may be megabytes."""
_MAX_LOGGED_ADDRESSES: Final = 256

Networks = Sequence[ipaddress.IPv4Network | ipaddress.IPv6Network]


@dataclass(frozen=True)
class Address:
    """A parsed server address; the scheme is tcp, unix or stdio."""

    scheme: str
    host: str = ""
    port: int = 0
    path: str = ""


def parse_uri(uri: str) -> Address:
    """Return the parts of a server address.

    Raises:
        ConfigError: The text is not tcp://HOST:PORT, unix:///PATH or stdio://.
    """
    forms = "tcp://HOST:PORT, unix:///PATH or stdio://"
    try:
        parts = urlsplit(uri)
        host, port = parts.hostname, parts.port
    except ValueError as error:
        raise ConfigError(f"the address {uri!r} is not one of {forms}: {error}") from error
    if parts.scheme == "tcp" and host is not None and port is not None:
        return Address("tcp", host=host, port=port)
    if parts.scheme == "unix" and parts.path and not parts.netloc:
        return Address("unix", path=parts.path)
    if parts.scheme == "stdio":
        return Address("stdio")
    raise ConfigError(f"the address {uri!r} is not one of {forms}")


def parse_networks(texts: Sequence[str]) -> Networks:
    """Return networks such as ``192.168.1.0/24``.

    Raises:
        ConfigError: A text is not a network.
    """
    try:
        return [ipaddress.ip_network(text.strip(), strict=False) for text in texts]
    except ValueError as error:
        raise ConfigError(
            f"allowed_networks: {error}; write a network such as 192.168.1.0/24 or fd00::/8"
        ) from error


def is_allowed(peer: Any, networks: Networks) -> bool:
    """Return whether a client is in one of the networks, on this machine, or there are none.

    Args:
        peer: The address as the socket gives it; local sockets have none and are allowed.
        networks: The allowed networks.
    """
    if not networks or not isinstance(peer, tuple):
        return True
    address = ipaddress.ip_address(str(peer[0]).partition("%")[0])
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
        address = address.ipv4_mapped
    return address.is_loopback or any(address in network for network in networks)


@dataclass
class ListenerStatus:
    """Counts of clients."""

    num_connected: int = 0
    num_accepted: int = 0
    num_beyond_limit: int = 0
    num_denied: int = 0
    """Rejected because of their network."""


class Listener:
    """Accepts clients from the start of its context to :meth:`stop` or the end of the context."""

    def __init__(
        self,
        uri: str,
        backend: SpeechBackend,
        *,
        max_connections: int = 64,
        max_text_chars: int = 120_000,
        supports_streaming: bool = True,
        networks: Networks = (),
        on_error: Callable[[Exception], None] = lambda _error: None,
        health: Callable[[], Mapping[str, Any]] = dict,
    ) -> None:
        """Prepare to listen; raises ConfigError. The options are those of ConnectionOptions."""
        self._uri = uri
        self._address = parse_uri(uri)
        self._options = ConnectionOptions(
            backend, max_text_chars, supports_streaming, on_error, health
        )
        self._max_connections = max_connections
        self._networks = networks
        self._server: asyncio.Server | None = None
        self._inode: int | None = None
        self._connections: dict[asyncio.Task[None], Connection] = {}
        self._status = ListenerStatus()
        self._is_full = False
        self._denied: set[str] = set()

    async def __aenter__(self) -> Self:
        """Begin to listen; raises ConfigError."""
        options: dict[str, Any] = {"limit": MAX_HEADER_BYTES, "backlog": _BACKLOG}
        address = self._address
        try:
            if address.scheme == "tcp":
                self._server = await asyncio.start_server(
                    self._accept, address.host, address.port, **options
                )
            elif address.scheme == "unix":
                _remove_stale_socket(address.path)
                self._server = await asyncio.start_unix_server(
                    self._accept, address.path, **options
                )
                self._inode = _socket_inode(address.path)
            else:
                self._serve(await _stdio_client())
        except (OSError, ValueError) as error:
            raise ConfigError(
                f"cannot listen on {self._uri}: {error}; choose another address with --uri"
            ) from error
        return self

    async def __aexit__(self, *_exception: object) -> None:
        await self.stop(0.0)

    @property
    def port(self) -> int:
        """The bound TCP port; differs from the address where that says 0."""
        if self._server is None or self._address.scheme != "tcp":
            return 0
        port: int = self._server.sockets[0].getsockname()[1]
        return port

    @property
    def status(self) -> ListenerStatus:
        """Counts of clients until now."""
        return replace(self._status, num_connected=len(self._connections))

    async def wait_for_input_end(self) -> None:
        """Wait until the client on stdio:// has been served; on a socket forever."""
        if self._address.scheme == "stdio":
            await self._wait_for_connections(None)
        else:
            await asyncio.Event().wait()

    async def stop(self, timeout_s: float) -> None:
        """Close the socket and end every connection.

        Args:
            timeout_s: Time for pending requests; those that take longer fail with an error.
        """
        if self._server is not None:
            self._server.close()
            self._server = None
            if self._inode is not None and self._inode == _socket_inode(self._address.path):
                Path(self._address.path).unlink()  # noqa: ASYNC240 - it is one file
        for connection in self._connections.values():
            connection.drain()
        await self._wait_for_connections(timeout_s)
        for connection in self._connections.values():
            connection.abort(BusyError("the server is shutting down; try again later"))
        await self._wait_for_connections(ERROR_FLUSH_TIMEOUT_S)
        for task in self._connections:
            task.cancel()
        await self._wait_for_connections(None)

    async def _wait_for_connections(self, timeout_s: float | None) -> None:
        if self._connections:
            await asyncio.wait(list(self._connections), timeout=timeout_s)

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        peer = writer.get_extra_info("peername")
        if not is_allowed(peer, self._networks):
            self._deny(writer, str(peer[0]))
        elif len(self._connections) >= self._max_connections:
            self._refuse(writer)
        else:
            self._is_full = False
            writer.get_extra_info("socket").setsockopt(
                socket.SOL_SOCKET, socket.SO_SNDBUF, _SEND_BUFFER_BYTES
            )
            name = f"{peer[0]}:{peer[1]}" if isinstance(peer, tuple) else "local client"
            self._serve(Client(reader, writer, name))

    def _serve(self, client: Client) -> None:
        connection = Connection(client, self._options)
        self._status.num_accepted += 1
        task = asyncio.create_task(connection.run())
        self._connections[task] = connection
        task.add_done_callback(self._connections.pop)

    def _deny(self, writer: asyncio.StreamWriter, address: str) -> None:
        self._status.num_denied += 1
        if address not in self._denied and len(self._denied) < _MAX_LOGGED_ADDRESSES:
            _LOGGER.warning("Rejected %s: not in allowed_networks", address)
            self._denied.add(address)
        writer.transport.abort()

    def _refuse(self, writer: asyncio.StreamWriter) -> None:
        self._status.num_beyond_limit += 1
        limit = self._max_connections
        if not self._is_full:  # one line, not one for each client
            _LOGGER.warning("Connection limit (%d) reached, rejecting clients", limit)
            self._is_full = True
        error = BusyError(f"{limit} clients are connected already; try again later")
        writer.write(encode_event(make_error(error)))
        writer.close()


def _socket_inode(path: str) -> int | None:
    """Return the inode of a socket file, None if there is none."""
    try:
        status = Path(path).stat()
    except FileNotFoundError:
        return None
    return status.st_ino if stat.S_ISSOCK(status.st_mode) else None


def _remove_stale_socket(path: str) -> None:
    """Remove the socket of a server that has ended.

    Raises:
        OSError: A server listens there.
    """
    if _socket_inode(path) is None:
        return
    with socket.socket(socket.AF_UNIX) as probe:
        probe.setblocking(False)
        try:
            probe.connect(path)
        except ConnectionRefusedError:
            Path(path).unlink()
        else:
            raise OSError(errno.EADDRINUSE, "another server listens there")


async def _stdio_client() -> Client:
    loop = asyncio.get_running_loop()
    reader = await async_get_stdin(loop)
    # A copy of the descriptor: closing the transport must not close sys.stdout.
    pipe = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    # The reader is never fed; its protocol signals when everything was written.
    transport, protocol = await loop.connect_write_pipe(
        lambda: asyncio.StreamReaderProtocol(asyncio.StreamReader()), pipe
    )
    writer = asyncio.StreamWriter(transport, protocol, None, loop)
    return Client(reader, writer, "stdio", is_pipe=True)
