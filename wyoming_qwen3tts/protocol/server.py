"""Listens on tcp://, unix:// or stdio:// and looks after the connections."""

import asyncio
import contextlib
import logging
import os
import socket
import stat
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, Self
from urllib.parse import urlsplit

from wyoming.event import async_get_stdin

from wyoming_qwen3tts.errors import BusyError, ConfigError
from wyoming_qwen3tts.protocol.answer import make_error
from wyoming_qwen3tts.protocol.backend import SpeechBackend
from wyoming_qwen3tts.protocol.connection import Client, Connection
from wyoming_qwen3tts.protocol.large_events import LargeEvents
from wyoming_qwen3tts.protocol.limits import ConnectionLimits
from wyoming_qwen3tts.protocol.networks import AllowedNetworks
from wyoming_qwen3tts.protocol.wire import EventWriter

_LOGGER = logging.getLogger(__name__)

_BACKLOG: Final = 128
_SEND_BUFFER_BYTES: Final = 131_072
"""The kernel's share of what a client has not read; its own choice may be megabytes."""
_LAST_WORDS_S: Final = 1.0
_MAX_REMEMBERED: Final = 256
_EXPENDABLE_S: Final = 30.0
"""Idle for so long, a connection may be closed when there are too many."""


@dataclass(frozen=True)
class Address:
    """Where to listen, or where a server listens."""

    scheme: str
    """tcp, unix or stdio."""
    host: str = ""
    port: int = 0
    path: str = ""


def parse_uri(uri: str) -> Address:
    """Return the parts of a server's address.

    Raises:
        ConfigError: The text is no tcp://HOST:PORT, unix:///PATH or stdio://.
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


@dataclass
class ListenerStatus:
    """What became of those who connected, for reports."""

    num_connected: int = 0
    """Clients that are connected now."""
    num_accepted: int = 0
    num_beyond_limit: int = 0
    """Sent away because too many were connected."""
    num_foreign: int = 0
    """Sent away because their network is not allowed."""


class Listener:
    """Accepts clients from the start of its context until :meth:`stop` or the end of it."""

    def __init__(
        self,
        uri: str,
        source: SpeechBackend,
        limits: ConnectionLimits,
        *,
        supports_streaming: bool = True,
        networks: AllowedNetworks | None = None,
        on_error: Callable[[Exception], None] | None = None,
    ) -> None:
        """Prepare to listen.

        Args:
            uri: Where.
            source: Speaks.
            limits: What a client may cost.
            supports_streaming: Whether clients are told that text may be sent in pieces.
            networks: Whose clients are served; None for everybody's.
            on_error: Called with everything that clients are told was wrong.

        Raises:
            ConfigError: The address is none.
        """
        self._uri = uri
        self._address = parse_uri(uri)
        self._source = source
        self._limits = limits
        self._supports_streaming = supports_streaming
        self._server: asyncio.Server | None = None
        self._connections: dict[asyncio.Task[None], Connection] = {}
        self._refusals: set[asyncio.Task[None]] = set()
        self._is_full = False
        self._networks = networks or AllowedNetworks()
        self._on_error = on_error
        self._status = ListenerStatus()
        self._foreign: set[str] = set()
        self._large_events = LargeEvents()

    async def __aenter__(self) -> Self:
        """Begin to listen.

        Raises:
            ConfigError: The address cannot be listened on.
        """
        try:
            if self._address.scheme == "tcp":
                self._server = await asyncio.start_server(
                    self._accept, self._address.host, self._address.port, backlog=_BACKLOG
                )
            elif self._address.scheme == "unix":
                _remove_stale_socket(Path(self._address.path))
                self._server = await asyncio.start_unix_server(
                    self._accept, self._address.path, backlog=_BACKLOG
                )
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
        """The TCP port that was bound; of use where the address says 0."""
        if self._server is None or self._address.scheme != "tcp":
            return 0
        port: int = self._server.sockets[0].getsockname()[1]
        return port

    @property
    def num_connections(self) -> int:
        """Clients that are connected now."""
        return len(self._connections)

    @property
    def status(self) -> ListenerStatus:
        """Who came until now."""
        return replace(self._status, num_connected=len(self._connections))

    async def wait_for_input_end(self) -> None:
        """Wait until the one client on stdio:// has been served; on a socket for ever."""
        if self._address.scheme == "stdio":
            await self._wait_for_connections(None)
        else:
            await asyncio.Event().wait()

    async def stop(self, timeout_s: float) -> None:
        """Accept nobody any more, and end every connection.

        Args:
            timeout_s: Seconds that requests get to be spoken to the end; what is then still
                running fails with an error to its client.
        """
        if self._server is not None:
            self._server.close()
            if self._address.scheme == "unix":
                _remove_stale_socket(Path(self._address.path))
            self._server = None
        for connection in self._connections.values():
            connection.finish()
        await self._wait_for_connections(timeout_s)
        for connection in self._connections.values():
            connection.abort(BusyError("the server is shutting down; try again later"))
        await self._wait_for_connections(_LAST_WORDS_S)
        for task in (*self._connections, *self._refusals):
            task.cancel()
        await self._wait_for_connections(None)

    async def _wait_for_connections(self, timeout_s: float | None) -> None:
        if tasks := [*self._connections, *self._refusals]:
            await asyncio.wait(tasks, timeout=timeout_s)

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        peer = writer.get_extra_info("peername")
        if not self._networks.allows(peer):
            self._send_away(writer, str(peer[0]))
            return
        if len(self._connections) >= self._limits.max_connections and not self._make_room():
            self._status.num_beyond_limit += 1
            task = asyncio.create_task(self._refuse(writer))
            self._refusals.add(task)
            task.add_done_callback(self._refusals.discard)
            return
        self._is_full = False
        # A small buffer notices soon that a client does not read, and bounds what it costs.
        writer.get_extra_info("socket").setsockopt(
            socket.SOL_SOCKET, socket.SO_SNDBUF, _SEND_BUFFER_BYTES
        )
        name = f"{peer[0]}:{peer[1]}" if isinstance(peer, tuple) else "local client"
        self._serve(Client(reader, writer, name))

    def _make_room(self) -> bool:
        """End the connection that has been idle longest, so that nobody can occupy them all."""
        idle = max(self._connections.values(), key=lambda connection: connection.idle_s)
        if idle.idle_s < _EXPENDABLE_S:
            return False
        idle.make_room()
        return True

    def _serve(self, client: Client) -> None:
        connection = Connection(
            client,
            self._source,
            self._limits,
            supports_streaming=self._supports_streaming,
            on_error=self._on_error,
            large_events=self._large_events,
        )
        self._status.num_accepted += 1
        task = asyncio.create_task(connection.run())
        self._connections[task] = connection
        task.add_done_callback(self._connections.pop)

    def _send_away(self, writer: asyncio.StreamWriter, address: str) -> None:
        """Close the connection of a client that may not come in, without a word to it."""
        self._status.num_foreign += 1
        if address not in self._foreign:  # one line for each, whatever it tries
            _LOGGER.warning(
                "%s is in no network that is allowed; its connections are closed", address
            )
            if len(self._foreign) >= _MAX_REMEMBERED:
                self._foreign.clear()
            self._foreign.add(address)
        writer.transport.abort()

    async def _refuse(self, writer: asyncio.StreamWriter) -> None:
        limit = self._limits.max_connections
        if not self._is_full:  # one line, not one for each of a thousand clients
            _LOGGER.warning("%d clients are connected; more are sent away", limit)
            self._is_full = True
        error = BusyError(f"{limit} clients are connected already; try again later")
        with contextlib.suppress(OSError):
            await EventWriter(writer, self._limits).write(make_error(error))
        writer.close()


async def _stdio_client() -> Client:
    loop = asyncio.get_running_loop()
    reader = await async_get_stdin(loop)
    # A copy of the descriptor: closing the transport must not close sys.stdout at its back.
    pipe = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    # The reader is never fed; its protocol is the one that knows when everything was written.
    transport, protocol = await loop.connect_write_pipe(
        lambda: asyncio.StreamReaderProtocol(asyncio.StreamReader()), pipe
    )
    writer = asyncio.StreamWriter(transport, protocol, None, loop)
    return Client(reader, writer, "stdio", listens_after_eof=True)


def _remove_stale_socket(path: Path) -> None:
    """Remove a socket that a server before left behind, and nothing else."""
    with contextlib.suppress(FileNotFoundError):
        if stat.S_ISSOCK(path.stat().st_mode):
            path.unlink()
