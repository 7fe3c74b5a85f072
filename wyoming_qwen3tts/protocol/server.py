"""Listens on tcp://, unix:// or stdio:// and keeps the connections."""

import asyncio
import errno
import ipaddress
import logging
import os
import socket
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Self
from urllib.parse import SplitResult, urlsplit

from wyoming.event import async_get_stdin

from wyoming_qwen3tts.errors import BusyError, ConfigError
from wyoming_qwen3tts.protocol.backend import half_of
from wyoming_qwen3tts.protocol.connection import Connection, ConnectionOptions
from wyoming_qwen3tts.protocol.messages import make_error
from wyoming_qwen3tts.protocol.wire import MAX_HEADER_BYTES, encode_event

_LOGGER = logging.getLogger(__name__)

ERROR_FLUSH_TIMEOUT_S: Final = 1.0
# A small kernel buffer shows soon that a client does not read; the default may be megabytes.
_SEND_BUFFER_BYTES: Final = 131_072
_MAX_LOGGED_ADDRESSES: Final = 256

Networks = Sequence[ipaddress.IPv4Network | ipaddress.IPv6Network]


def parse_uri(uri: str) -> SplitResult:
    """Return the parts of a server address; raises ConfigError."""
    problem = f"the address {uri!r} is not one of tcp://HOST:PORT, unix:///PATH or stdio://"
    try:
        parts = urlsplit(uri)
        has_host = parts.hostname is not None and parts.port is not None
    except ValueError as error:
        raise ConfigError(f"{problem}: {error}") from error
    has_path = bool(parts.path) and not parts.netloc
    if not {"tcp": has_host, "unix": has_path, "stdio": True}.get(parts.scheme, False):
        raise ConfigError(problem)
    return parts


def parse_networks(texts: Sequence[str]) -> Networks:
    """Return networks such as ``192.168.1.0/24``; raises ConfigError."""
    try:
        return [ipaddress.ip_network(text.strip(), strict=False) for text in texts]
    except ValueError as error:
        advice = "write an address or a network such as 192.168.1.0/24"
        raise ConfigError(f"allowed_networks: {error}; {advice}") from error


def is_allowed(peer: Any, networks: Networks) -> bool:
    """Return whether a client is in one of the networks, on this machine, or there are none."""
    if not networks or not isinstance(peer, tuple):  # a local socket has no address
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
    num_denied: int = 0  # because of their network


class Listener:
    """Accepts clients from the start of its context to :meth:`stop` or its end."""

    def __init__(
        self,
        uri: str,
        options: ConnectionOptions,
        max_connections: int = 64,
        networks: Networks = (),
        on_input_end: Callable[[], None] = lambda: None,
    ) -> None:
        """Prepare to listen; ``on_input_end`` is called after stdio:// was served."""
        self.status = ListenerStatus()
        self._uri = uri
        self._address = parse_uri(uri)
        self._options = options
        self._max_connections = max_connections
        self._networks = networks
        self._on_input_end = on_input_end
        self._server: asyncio.Server | None = None
        self._inode: int | None = None
        self._connections: dict[asyncio.Task[None], Connection] = {}
        self._is_full = False
        self._denied: set[str] = set()

    async def __aenter__(self) -> Self:
        """Begin to listen; raises ConfigError."""
        listen: dict[str, Any] = {"limit": MAX_HEADER_BYTES, "backlog": 128}
        accept, address = self._accept, self._address
        try:
            if address.scheme == "tcp":
                host, port = address.hostname, address.port
                self._server = await asyncio.start_server(accept, host, port, **listen)
            elif address.scheme == "unix":
                _check_unused(address.path)
                self._server = await asyncio.start_unix_server(accept, address.path, **listen)
                self._inode = Path(address.path).stat().st_ino  # noqa: ASYNC240 - one file
            else:
                reader, writer = await _open_stdio()
                task = self._serve(Connection(reader, writer, self._options, "stdio", is_pipe=True))
                task.add_done_callback(lambda _task: self._on_input_end())
        except (OSError, ValueError) as error:
            advice = "choose another address with --uri"
            raise ConfigError(f"cannot listen on {self._uri}: {error}; {advice}") from error
        return self

    async def __aexit__(self, *_exception: object) -> None:
        await self.stop(0.0)

    @property
    def port(self) -> int:
        """The bound TCP port; differs from the address where that says 0."""
        if self._server is None or self._address.scheme != "tcp":
            return 0
        return int(self._server.sockets[0].getsockname()[1])

    async def stop(self, timeout_s: float) -> None:
        """Close the socket, wait for pending requests for this time, then let them fail."""
        self._close_socket()
        for connection in self._connections.values():
            connection.drain()
        await self._wait_for_connections(timeout_s)
        for connection in self._connections.values():
            connection.drain(BusyError("the server is shutting down; try again later"))
        await self._wait_for_connections(ERROR_FLUSH_TIMEOUT_S)
        for task, connection in self._connections.items():
            connection.abort()  # its client does not read
            task.cancel()
        await self._wait_for_connections(None)

    def _close_socket(self) -> None:
        if self._server is not None:
            self._server.close()
        with suppress(FileNotFoundError):
            path = Path(self._address.path)
            if self._inode is not None and path.stat().st_ino == self._inode:
                path.unlink()  # otherwise it is the socket of the next server
        self._server = self._inode = None

    async def _wait_for_connections(self, timeout_s: float | None) -> None:
        if self._connections:
            await asyncio.wait(list(self._connections), timeout=timeout_s)

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        peer = writer.get_extra_info("peername")
        if not is_allowed(peer, self._networks):
            self.status.num_denied += 1
            if peer[0] not in self._denied and len(self._denied) < _MAX_LOGGED_ADDRESSES:
                _LOGGER.warning("Rejected %s: not in allowed_networks", peer[0])
                self._denied.add(peer[0])
            writer.transport.abort()
            return
        address = str(peer[0]) if isinstance(peer, tuple) else None
        limit, num_connected = self._max_connections, len(self._connections)
        if num_connected < limit and address is not None:
            num_connected = sum(each.address == address for each in self._connections.values())
            limit = half_of(limit)
        if num_connected >= limit:
            self.status.num_beyond_limit += 1
            if not self._is_full:  # one line, not one for each client
                _LOGGER.warning("Connection limit (%d) reached, rejecting clients", limit)
                self._is_full = True
            error = BusyError(f"{limit} clients are connected already; try again later")
            writer.write(encode_event(make_error(error)))
            writer.close()
            return
        self._is_full = False
        writer.get_extra_info("socket").setsockopt(
            socket.SOL_SOCKET, socket.SO_SNDBUF, _SEND_BUFFER_BYTES
        )
        name = "local client" if address is None else f"{address}:{peer[1]}"
        self._serve(Connection(reader, writer, self._options, name, address=address))

    def _serve(self, connection: Connection) -> asyncio.Task[None]:
        def forget(task: asyncio.Task[None]) -> None:
            del self._connections[task]
            self.status.num_connected -= 1

        self.status.num_accepted += 1
        self.status.num_connected += 1
        task = asyncio.create_task(connection.run())
        self._connections[task] = connection
        task.add_done_callback(forget)
        return task


def _check_unused(path: str) -> None:
    """Raise OSError if a server listens there: asyncio would replace its socket file."""
    nobody_listens = (FileNotFoundError, ConnectionRefusedError)
    with socket.socket(socket.AF_UNIX) as probe, suppress(*nobody_listens):
        probe.setblocking(False)
        probe.connect(path)
        raise OSError(errno.EADDRINUSE, "another server listens there")


async def _open_stdio() -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    loop = asyncio.get_running_loop()
    reader = await async_get_stdin(loop)
    # A copy of the descriptor: closing the transport must not close sys.stdout.
    pipe = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    # The reader is never fed; its protocol signals when everything was written.
    transport, protocol = await loop.connect_write_pipe(
        lambda: asyncio.StreamReaderProtocol(asyncio.StreamReader()), pipe
    )
    return reader, asyncio.StreamWriter(transport, protocol, None, loop)
