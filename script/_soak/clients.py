"""Clients: each does one thing over one connection and leaves."""

import asyncio
import random
import socket
import struct
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final, Self

from wyoming.event import Event, async_read_event

from tests.support.hostile_inputs import HostileInput, encode, make_hostile

TEXTS: Final = (
    "Yes.",
    "The light in the kitchen is on.",
    "Good morning! It is ten past seven, and the sun is shining. You have two appointments today.",
    "Guten Morgen. Es ist zehn nach sieben, und die Sonne scheint.",
    "今天天气怎么样？外面很冷。",
    "¿Qué hora es? Son las tres y media de la tarde.",
    "It is 23.5 °C outside, with a 40 % chance of rain at 5:30 pm. " * 3,
    "Once upon a time there was a server that never let the house down. " * 8,
)
CONTROL_TEXT: Final = "This is the control sentence, always the same."
PATIENCE_S: Final = 60.0
_STREAM_LIMIT_BYTES: Final = 1_048_576
_MAX_LOST: Final = 50
_REACT_S: Final = 1.0
_NEVER_READ_S: Final = (3.0, 35.0)
_IDLE_S: Final = (5.0, 40.0)


class LostError(Exception):
    """A well-behaved client did not get what it asked for."""


@dataclass
class Tally:
    """Counts and measurements of one run, shared by all clients."""

    started_s: float = field(default_factory=time.monotonic)
    done: Counter[str] = field(default_factory=Counter)
    hostile: Counter[str] = field(default_factory=Counter)
    """Kind of hostile input -> how often it was sent."""
    reactions: Counter[str] = field(default_factory=Counter)
    """What the server did about hostile input."""
    lost: list[str] = field(default_factory=list)
    """What good clients did not get; must stay empty."""
    describe_s: list[tuple[float, float]] = field(default_factory=list)
    """Time since the start, and how long a describe took."""
    first_audio_s: list[tuple[float, float]] = field(default_factory=list)
    """Time since the start, and the wait for the first audio of the control request."""
    audio_bytes: int = 0

    def now_s(self) -> float:
        return time.monotonic() - self.started_s


class WireClient:
    """One connection to the server."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    @classmethod
    async def connect(cls, port: int) -> Self:
        async with asyncio.timeout(PATIENCE_S):
            streams = await asyncio.open_connection("127.0.0.1", port, limit=_STREAM_LIMIT_BYTES)
        return cls(*streams)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_exception: object) -> None:
        self.writer.transport.abort()

    async def send(self, event_type: str, data: dict[str, Any] | None = None) -> None:
        await self.send_bytes(encode(event_type, data))

    async def send_bytes(self, content: bytes) -> None:
        self.writer.write(content)
        async with asyncio.timeout(PATIENCE_S):
            await self.writer.drain()

    async def read(self) -> Event:
        """Return the next event.

        Raises:
            LostError: The server closed the connection, did not answer, or sent an error.
        """
        try:
            async with asyncio.timeout(PATIENCE_S):
                event = await async_read_event(self.reader)
        except TimeoutError as error:
            raise LostError(f"no answer for {PATIENCE_S:g} s") from error
        except (OSError, asyncio.IncompleteReadError) as error:
            raise LostError(f"the connection broke: {error}") from error
        if event is None:
            raise LostError("the server closed the connection")
        if event.type == "error":
            raise LostError(f"{event.data.get('code')}: {event.data.get('text')}")
        return event

    def reset(self) -> None:
        """Abort the connection with a TCP reset."""
        raw = self.writer.get_extra_info("socket")
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.writer.transport.abort()


class Clients:
    """Everything that clients do to one server."""

    def __init__(self, port: int, tally: Tally, voices: list[str]) -> None:
        self._port = port
        self._tally = tally
        self._voices = voices

    async def act(self, rng: random.Random) -> None:
        """Do one thing, drawn at random."""
        kinds: list[tuple[int, str, Callable[[random.Random], Awaitable[None]]]] = [
            (8, "plain", self._plain),
            (6, "streaming", self._streaming),
            (3, "voice switches", self._switch_voices),
            (4, "hang-up before audio", self._hang_up_before),
            (4, "hang-up during audio", self._hang_up_during),
            (1, "never reading", self._never_read),
            (1, "idle", self._idle),
            (1, "stream without text", self._wait_with_stream),
        ]
        weights, names, actions = zip(*kinds, strict=True)
        index = rng.choices(range(len(kinds)), weights)[0]
        await self._record(names[index], actions[index](rng))

    async def attack(self, rng: random.Random) -> None:
        """Send something hostile."""
        await self._record("hostile", self._attack(rng))

    async def _record(self, name: str, action: Awaitable[None]) -> None:
        try:
            await action
        except (LostError, OSError) as error:  # includes TimeoutError
            if len(self._tally.lost) < _MAX_LOST:
                self._tally.lost.append(f"{self._tally.now_s():.1f} s: {name}: {error!r}")
        self._tally.done[name] += 1

    # Good clients

    async def control(self) -> None:
        """Speak the control sentence and measure the wait for its first audio."""
        await self._record("control", self._control())

    async def _control(self) -> None:
        started_s = time.monotonic()
        async with await WireClient.connect(self._port) as client:
            voice = {"name": self._voices[0]}
            await client.send("synthesize", {"text": CONTROL_TEXT, "voice": voice})
            await self._hear(client, "audio-stop", self._first_audio_timer(started_s))

    def _first_audio_timer(self, started_s: float) -> Callable[[], None]:
        return lambda: self._tally.first_audio_s.append(
            (self._tally.now_s(), time.monotonic() - started_s)
        )

    async def describe(self) -> None:
        """Ask for a description and measure the wait."""
        await self._record("describe", self._describe())

    async def _describe(self) -> None:
        started_s = time.monotonic()
        async with await WireClient.connect(self._port) as client:
            await client.send("describe")
            event = await client.read()
            if event.type != "info" or not event.data["tts"][0]["voices"]:
                raise LostError(f"{event.type} is no description")
        self._tally.describe_s.append((self._tally.now_s(), time.monotonic() - started_s))

    async def _plain(self, rng: random.Random) -> None:
        async with await WireClient.connect(self._port) as client:
            await client.send("synthesize", {"text": rng.choice(TEXTS), "voice": self._voice(rng)})
            await self._hear(client, "audio-stop")

    async def _streaming(self, rng: random.Random) -> None:
        async with await WireClient.connect(self._port) as client:
            text = rng.choice(TEXTS)
            await client.send("synthesize-start", {"voice": self._voice(rng)})
            hearing = asyncio.create_task(self._hear(client, "synthesize-stopped"))
            try:
                for start in range(0, len(text), 12):
                    piece = text[start : start + 12]
                    await client.send("synthesize-chunk", {"text": piece})
                    await asyncio.sleep(rng.uniform(0.0, 0.04))
                await client.send("synthesize", {"text": text})  # for servers that do not stream
                await client.send("synthesize-stop")
                await hearing
            finally:
                hearing.cancel()

    async def _switch_voices(self, rng: random.Random) -> None:
        """Send several requests at once, each with another voice, on one connection."""
        async with await WireClient.connect(self._port) as client:
            count = rng.randint(2, 5)
            for _ in range(count):
                text = rng.choice(TEXTS[:4])
                await client.send("synthesize", {"text": text, "voice": self._voice(rng)})
            for _ in range(count):
                await self._hear(client, "audio-stop")

    async def _hear(
        self, client: WireClient, last: str, on_first: Callable[[], None] | None = None
    ) -> None:
        """Read one answer to its end.

        Raises:
            LostError: It is not complete, or not in order.
        """
        event = await client.read()
        if event.type != "audio-start":
            raise LostError(f"{event.type} instead of audio-start")
        num_bytes = 0
        while (event := await client.read()).type != "audio-stop":
            if event.type != "audio-chunk" or not event.payload:
                raise LostError(f"{event.type} within audio")
            if not num_bytes and on_first is not None:
                on_first()
            num_bytes += len(event.payload)
        if not num_bytes:
            raise LostError("an answer without audio")
        self._tally.audio_bytes += num_bytes
        if last != "audio-stop" and (event := await client.read()).type != last:
            raise LostError(f"{event.type} instead of {last}")

    def _voice(self, rng: random.Random) -> dict[str, str]:
        voice = {"name": rng.choice(self._voices)}
        return (
            voice if rng.random() < 0.5 else {**voice, "language": rng.choice(["en", "de", "zh"])}
        )

    # Careless clients

    async def _hang_up_before(self, rng: random.Random) -> None:
        async with await WireClient.connect(self._port) as client:
            await client.send("synthesize", {"text": TEXTS[-1], "voice": self._voice(rng)})
            await asyncio.sleep(rng.uniform(0.0, 0.05))
            self._leave(client, rng)

    async def _hang_up_during(self, rng: random.Random) -> None:
        async with await WireClient.connect(self._port) as client:
            await client.send("synthesize", {"text": TEXTS[-1] * 4, "voice": self._voice(rng)})
            for _ in range(rng.randint(2, 6)):
                await client.read()
            self._leave(client, rng)

    def _leave(self, client: WireClient, rng: random.Random) -> None:
        way = rng.randrange(3)
        if way == 0:
            client.reset()
        elif way == 1:
            with suppress(OSError):
                client.writer.write_eof()
        else:
            client.writer.close()

    async def _never_read(self, rng: random.Random) -> None:
        async with await WireClient.connect(self._port) as client:
            client.writer.transport.pause_reading()  # type: ignore[attr-defined]
            await client.send("synthesize", {"text": TEXTS[-1] * 10, "voice": self._voice(rng)})
            await asyncio.sleep(rng.uniform(*_NEVER_READ_S))

    async def _idle(self, rng: random.Random) -> None:
        async with await WireClient.connect(self._port):
            await asyncio.sleep(rng.uniform(*_IDLE_S))

    async def _wait_with_stream(self, rng: random.Random) -> None:
        """Open a stream as for a language model that never answers."""
        async with await WireClient.connect(self._port) as client:
            await client.send("synthesize-start", {"voice": self._voice(rng)})
            if rng.random() < 0.5:
                await client.send("synthesize-chunk", {"text": "Let me think. "})
            await asyncio.sleep(rng.uniform(*_IDLE_S))

    # Hostile clients

    async def _attack(self, rng: random.Random) -> None:
        attack = make_hostile(rng)
        async with await WireClient.connect(self._port) as client:
            sending = asyncio.create_task(_send(client, attack))
            reaction = await _watch(client)
            sending.cancel()
            await asyncio.gather(sending, return_exceptions=True)
            self._leave(client, rng)
        self._tally.hostile[attack.kind] += 1
        self._tally.reactions[reaction] += 1


async def _send(client: WireClient, attack: HostileInput) -> None:
    for piece in attack.pieces:
        await client.send_bytes(piece)
        if attack.pause_s:
            await asyncio.sleep(attack.pause_s)


async def _watch(client: WireClient) -> str:
    """Return what the server did within a moment: the first thing that says something."""
    try:
        async with asyncio.timeout(_REACT_S):
            received = await client.reader.read(65_536)
    except TimeoutError:
        return "waited"
    except OSError:
        return "hung up"
    if not received:
        return "hung up"
    return "error" if b'"type": "error"' in received else "answer"
