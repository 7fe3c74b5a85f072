"""Events on the wire, read and written within limits.

An event is one line of JSON (``type``, optional ``data``, ``data_length``, ``payload_length``),
then ``data_length`` bytes of JSON that are merged over ``data``, then ``payload_length`` raw bytes.
The wyoming package reads without any limit and dies on values of the wrong type, so events are
read here; they are encoded by the package.
"""

import asyncio
import io
import reprlib
from typing import Any, Final

from wyoming.event import Event, write_event

from wyoming_qwen3tts.errors import ProtocolError, RequestError
from wyoming_qwen3tts.protocol.large_events import LargeEvents
from wyoming_qwen3tts.protocol.limits import ConnectionLimits

_READ_BYTES: Final = 65_536
_BLANK: Final = b" \t\r\n"
# Bytes that cost as much as an event does anyhow: of JSON, and of what is only skipped.
_ORDINARY_BYTES: Final = 1_000
_SKIPPED_BYTES: Final = 100_000
_MAX_DISCARDED_BYTES: Final = 16 * 1_048_576
_DISCARD_S: Final = 1.0


class ClientGoneError(ConnectionError):
    """The client has closed the connection or does not read; there is nobody to tell."""


class _EndOfInputError(Exception):
    """The client stopped sending in the middle of an event."""


class EventReader:
    """Reads events from a stream that nobody vouches for."""

    def __init__(
        self,
        stream: asyncio.StreamReader,
        limits: ConnectionLimits,
        large_events: LargeEvents | None = None,
    ) -> None:
        """Read from a stream; ``large_events`` are shared with other readers."""
        self._stream = stream
        self._limits = limits
        self._large_events = large_events or LargeEvents()
        self._buffer = bytearray()
        self.cost = 0.0
        """What the last event has cost, as a multiple of an ordinary one."""

    async def read(self) -> Event | None:
        """Return the next event, None at the end of input.

        The wait for an event to begin is not limited here. The payload is skipped: no event that
        a speech server understands has one.

        Raises:
            ProtocolError: The bytes are no event, or it is too long or too slow: what follows
                cannot be trusted.
            RequestError: The event is wrong in itself; the next one can be read.
            ClientGoneError: The connection broke.
        """
        self.cost = 1.0
        if not await self._begin():
            return None
        try:
            async with asyncio.timeout(self._limits.event_timeout_s):
                return await self._read_begun()
        except TimeoutError as error:
            seconds = self._limits.event_timeout_s
            raise ProtocolError(
                f"an event was begun and not finished within {seconds:g} s"
            ) from error
        except _EndOfInputError:
            return None

    async def discard(self) -> None:
        """Read what is still coming for a moment, and forget it.

        Closing a socket with unread input resets it, and the client would lose what it was told.
        """
        self._buffer.clear()
        num_bytes = 0
        try:
            async with asyncio.timeout(_DISCARD_S):
                while num_bytes < _MAX_DISCARDED_BYTES:
                    piece = await self._stream.read(_READ_BYTES)
                    if not piece:
                        return
                    num_bytes += len(piece)
        except OSError:  # includes TimeoutError
            return

    async def _begin(self) -> bool:
        """Wait until the first byte of an event is there; blank lines between events are fine."""
        while True:
            num_blank = len(self._buffer) - len(self._buffer.lstrip(_BLANK))
            del self._buffer[:num_blank]
            if self._buffer:
                return True
            if not await self._fill():
                return False

    async def _fill(self) -> bool:
        try:
            piece = await self._stream.read(_READ_BYTES)
        except OSError as error:
            raise ClientGoneError(str(error)) from error
        self._buffer += piece
        return bool(piece)

    async def _read_begun(self) -> Event:
        if not self._buffer.startswith(b"{"):
            start = bytes(self._buffer[:16])
            raise ProtocolError(f"not a Wyoming event: it begins with {start!r}, not with '{{'")
        header = await self._load_header(await self._take_line())
        data_bytes = _length(header, "data_length", self._limits.max_data_bytes)
        payload_bytes = _length(header, "payload_length", self._limits.max_payload_bytes)
        self.cost += data_bytes / _ORDINARY_BYTES + payload_bytes / _SKIPPED_BYTES
        async with self._large_events.place(data_bytes):
            body = await self._take(data_bytes)
            await self._skip(payload_bytes)
            # From here on the whole event was consumed: what is wrong with it hurts only itself.
            event_type = header.get("type")
            if not isinstance(event_type, str):
                raise RequestError(f"the type of an event must be a text, not {_quote(event_type)}")
            more = await self._load_body(body, event_type) if body else None
        return Event(type=event_type, data=_merge(header.get("data"), more, event_type))

    async def _load_header(self, line: bytes) -> dict[str, Any]:
        self.cost += len(line) / _ORDINARY_BYTES
        try:
            header = await self._large_events.load(line)
        except (ValueError, RecursionError) as error:
            message = f"not a Wyoming event: the header line is no JSON ({_reason(error)})"
            raise ProtocolError(message) from error
        if not isinstance(header, dict):
            raise ProtocolError("not a Wyoming event: the header line is no JSON object")
        return header

    async def _load_body(self, body: bytes, event_type: str) -> Any:
        try:
            return await self._large_events.load(body)
        except (ValueError, RecursionError) as error:
            raise RequestError(
                f"the data of {_quote(event_type)} is no JSON ({_reason(error)})"
            ) from error

    async def _take_line(self) -> bytes:
        num_scanned = 0
        while (end := self._buffer.find(b"\n", num_scanned)) < 0:
            num_scanned = len(self._buffer)
            if num_scanned > self._limits.max_header_bytes:
                break
            if not await self._fill():
                raise _EndOfInputError
        if end < 0 or end > self._limits.max_header_bytes:
            raise ProtocolError(
                f"the header line is longer than {self._limits.max_header_bytes} bytes"
            )
        line = bytes(self._buffer[:end])
        del self._buffer[: end + 1]
        return line

    async def _take(self, num_bytes: int) -> bytes:
        while len(self._buffer) < num_bytes:
            if not await self._fill():
                raise _EndOfInputError
        taken = bytes(self._buffer[:num_bytes])
        del self._buffer[:num_bytes]
        return taken

    async def _skip(self, num_bytes: int) -> None:
        while num_bytes > len(self._buffer):
            num_bytes -= len(self._buffer)
            self._buffer.clear()
            if not await self._fill():
                raise _EndOfInputError
        del self._buffer[:num_bytes]


class EventWriter:
    """Writes events to a client that may have stopped reading."""

    def __init__(self, stream: asyncio.StreamWriter, limits: ConnectionLimits) -> None:
        self._stream = stream
        self._timeout_s = limits.write_timeout_s
        self._has_ended = False

    async def write(self, event: Event) -> None:
        """Send an event; waits while the client is slow.

        Raises:
            ClientGoneError: The client has gone, has not read for too long, or was told that
                nothing more will come.
        """
        encoded = io.BytesIO()
        write_event(event, encoded)
        if self._has_ended or self._stream.is_closing():
            raise ClientGoneError("the connection is closed")
        # In one piece, and never by writelines (as the package's own asynchronous writer does): on
        # a lost connection some versions of Python (3.12.1 and 3.13.0 were seen to) leave the
        # descriptor watched, and the next client that gets the same number is not heard.
        self._stream.write(encoded.getvalue())
        try:
            async with asyncio.timeout(self._timeout_s):
                await self._stream.drain()
        except TimeoutError as error:
            raise ClientGoneError(f"the client read nothing for {self._timeout_s:g} s") from error
        except OSError as error:
            raise ClientGoneError(str(error)) from error

    def end(self) -> None:
        """Tell the client that nothing more will come, where the transport can."""
        self._has_ended = True
        if self._stream.can_write_eof():
            self._stream.write_eof()


def _length(header: dict[str, Any], key: str, limit: int) -> int:
    value = header.get(key)
    if value is None:
        return 0
    if type(value) is not int or value < 0:
        raise ProtocolError(f"{key} must be a whole number of bytes, not {_quote(value)}")
    if value > limit:
        raise ProtocolError(f"{key} is {_quote(value)} bytes; at most {limit} are taken")
    return value


def _merge(inline: Any, body: Any, event_type: str) -> dict[str, Any]:
    data: dict[str, Any] = {}
    for part in (inline, body):
        if part is None:
            continue
        if not isinstance(part, dict):
            raise RequestError(
                f"the data of {_quote(event_type)} must be an object, not {_quote(part)}"
            )
        data.update(part)
    return data


def _quote(value: object) -> str:
    return reprlib.repr(value)


def _reason(error: Exception) -> str:
    return str(error)[:100] if isinstance(error, ValueError) else "nested too deeply"
