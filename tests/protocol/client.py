"""A client that speaks Wyoming well, or whatever bytes it is told to."""

import asyncio
import socket
import struct
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any, Self

from wyoming.event import Event, async_read_event, async_write_event

from tests.support.fakes import FakeSpeechSource
from wyoming_qwen3tts.protocol.connection import ConnectionOptions
from wyoming_qwen3tts.protocol.server import Listener

PATIENCE_S = 5.0


@asynccontextmanager
async def listening(source: FakeSpeechSource, **options: Any) -> AsyncIterator[Listener]:
    """Serve a source on a free loopback port."""
    max_connections = options.pop("max_connections", 600)
    connection_options = ConnectionOptions(source, **options)
    async with Listener(
        "tcp://127.0.0.1:0", connection_options, max_connections=max_connections
    ) as listener:
        yield listener


class WireClient:
    """One connection to a listener."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    @classmethod
    async def connect(cls, listener: Listener, address: str = "127.0.0.1") -> Self:
        local = {"local_addr": (address, 0)}
        return cls(*await asyncio.open_connection("127.0.0.1", listener.port, **local))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_exception: object) -> None:
        self.writer.close()
        with suppress(OSError):
            await self.writer.wait_closed()

    async def send(self, event_type: str, data: dict[str, Any] | None = None) -> None:
        await async_write_event(Event(event_type, data or {}), self.writer)

    async def send_bytes(self, *pieces: bytes) -> None:
        for piece in pieces:
            self.writer.write(piece)
            await self.writer.drain()

    async def read(self) -> Event | None:
        """Return the next event, None if the server hung up."""
        async with asyncio.timeout(PATIENCE_S):
            try:
                return await async_read_event(self.reader)
            except (ConnectionError, asyncio.IncompleteReadError):
                return None

    async def expect(self, event_type: str) -> Event:
        event = await self.read()
        assert event is not None, f"the server hung up instead of sending {event_type}"
        assert event.type == event_type, f"{event.type} {event.data} instead of {event_type}"
        return event

    async def read_until(self, event_type: str) -> list[Event]:
        events = [await self.expect_any()]
        while events[-1].type != event_type:
            events.append(await self.expect_any())
        return events

    async def expect_any(self) -> Event:
        event = await self.read()
        assert event is not None, "the server hung up"
        return event

    async def read_to_end(self) -> list[Event]:
        events = []
        while (event := await self.read()) is not None:
            events.append(event)
        return events

    async def expect_alive(self) -> None:
        """Check that the connection still answers, whatever came before."""
        await self.send("ping", {"text": "alive?"})
        while (event := await self.expect_any()).type != "pong":
            pass
        assert event.data["text"] == "alive?"

    def reset(self) -> None:
        """Break the connection off, as a device that loses its power never can but a proxy does."""
        raw = self.writer.get_extra_info("socket")
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.writer.transport.abort()


def types(events: list[Event]) -> list[str]:
    """Return the kinds of events, runs of audio chunks as one."""
    kinds: list[str] = []
    for event in events:
        if not (event.type == "audio-chunk" and kinds and kinds[-1] == "audio-chunk"):
            kinds.append(event.type)
    return kinds


async def eventually(condition: Callable[[], bool], within_s: float = PATIENCE_S) -> None:
    """Wait until a condition holds."""
    async with asyncio.timeout(within_s):
        while not condition():  # noqa: ASYNC110 - there is no event to wait for
            await asyncio.sleep(0.002)
