"""One connection to the server, spoken well or badly."""

import asyncio
import io
import json
import socket
import struct
from typing import Any, Self

from wyoming.event import Event, async_read_event, write_event

PATIENCE_S = 60.0
_STREAM_LIMIT_BYTES = 1_048_576


class LostError(Exception):
    """A client that did nothing wrong has not got what it asked for."""


def encode(event_type: str, data: dict[str, Any] | None = None) -> bytes:
    """Return an event as bytes, its data apart from the header as Wyoming's own clients do."""
    encoded = io.BytesIO()
    write_event(Event(event_type, data or {}), encoded)
    return encoded.getvalue()


def header(event_type: str, **fields: Any) -> bytes:
    """Return a header line with any fields."""
    return json.dumps({"type": event_type, **fields}).encode() + b"\n"


class WireClient:
    """One connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Use :meth:`connect`."""
        self.reader = reader
        self.writer = writer

    @classmethod
    async def connect(cls, port: int) -> Self:
        """Connect to the server."""
        async with asyncio.timeout(PATIENCE_S):
            streams = await asyncio.open_connection("127.0.0.1", port, limit=_STREAM_LIMIT_BYTES)
        return cls(*streams)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_exception: object) -> None:
        self.writer.transport.abort()

    async def send(self, event_type: str, data: dict[str, Any] | None = None) -> None:
        """Send an event."""
        await self.send_bytes(encode(event_type, data))

    async def send_bytes(self, content: bytes) -> None:
        """Send anything."""
        self.writer.write(content)
        async with asyncio.timeout(PATIENCE_S):
            await self.writer.drain()

    async def read(self) -> Event:
        """Return the next event.

        Raises:
            LostError: The server hung up, said nothing for too long, or sent an error.
        """
        try:
            async with asyncio.timeout(PATIENCE_S):
                event = await async_read_event(self.reader)
        except TimeoutError as error:
            raise LostError(f"no answer for {PATIENCE_S:g} s") from error
        except (OSError, asyncio.IncompleteReadError) as error:
            raise LostError(f"the connection broke: {error}") from error
        if event is None:
            raise LostError("the server hung up")
        if event.type == "error":
            raise LostError(f"{event.data.get('code')}: {event.data.get('text')}")
        return event

    def reset(self) -> None:
        """Break the connection off at once, without a goodbye."""
        raw = self.writer.get_extra_info("socket")
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.writer.transport.abort()
