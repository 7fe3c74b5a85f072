"""Measures the voice through the whole product: Wyoming client, server, speech recogniser."""

import asyncio
import json
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from wyoming.audio import AudioChunk, AudioStart
from wyoming.client import AsyncTcpClient
from wyoming.event import Event
from wyoming.tts import (
    Synthesize,
    SynthesizeChunk,
    SynthesizeStart,
    SynthesizeStop,
    SynthesizeStopped,
)

from script._demo_voice.hearing import Listener, heard_errors, plain_words, word_error_rate
from wyoming_qwen3tts.arrays import Float32Array

_START_S: Final = 60.0
_ANSWER_S: Final = 60.0


@dataclass(frozen=True)
class Spoken:
    """One phrase as a client got it."""

    text: str
    samples: Float32Array
    rate_hz: int
    first_audio_ms: float
    wall_s: float

    @property
    def audio_s(self) -> float:
        """Its length."""
        return len(self.samples) / self.rate_hz


@dataclass(frozen=True)
class Heard:
    """What became of one phrase."""

    text: str
    heard: str
    num_words: int
    num_errors: int
    audio_s: float
    first_audio_ms: float
    rtf: float


@dataclass(frozen=True)
class Measurement:
    """All phrases together."""

    word_error_rate: float
    median_first_audio_ms: float
    median_rtf: float
    longest_s: float
    phrases: tuple[Heard, ...]

    def write(self, path: Path) -> None:
        """Write it as JSON."""
        path.write_text(json.dumps(asdict(self), indent=1) + "\n", encoding="utf-8")


@asynccontextmanager
async def running_server(arguments: Sequence[str]) -> AsyncIterator[int]:
    """Run the real server with these arguments; gives its port.

    Raises:
        TimeoutError: It did not answer.
    """
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, "-m", "wyoming_qwen3tts", "--uri", f"tcp://127.0.0.1:{port}"]
    process = await asyncio.create_subprocess_exec(
        *command, *arguments, stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        await _wait_for(port)
        yield port
    finally:
        process.terminate()
        await process.wait()


async def _wait_for(port: int) -> None:
    deadline = time.monotonic() + _START_S
    while True:
        try:
            _, writer = await asyncio.open_connection("127.0.0.1", port)
        except OSError:
            if time.monotonic() > deadline:
                raise TimeoutError("the server does not answer") from None
            await asyncio.sleep(0.1)
        else:
            writer.close()
            return


async def speak(port: int, text: str, *, in_pieces: bool = False) -> Spoken:
    """Have a phrase spoken, as one text or word by word.

    Raises:
        RuntimeError: The server sent an error, or closed the connection.
    """
    async with AsyncTcpClient("127.0.0.1", port) as client:
        started_s = time.perf_counter()
        for event in _request(text, in_pieces=in_pieces):
            await client.write_event(event)
        first_s, rate_hz, pieces = None, 0, []
        ending = SynthesizeStopped.is_type if in_pieces else lambda kind: kind == "audio-stop"
        while True:
            event = await asyncio.wait_for(client.read_event(), _ANSWER_S)
            if event is None or event.type == "error":
                raise RuntimeError(f"{text!r}: the server answered {event}")
            if AudioStart.is_type(event.type):
                rate_hz = AudioStart.from_event(event).rate
            elif AudioChunk.is_type(event.type):
                first_s = first_s or time.perf_counter()
                pieces.append(np.frombuffer(AudioChunk.from_event(event).audio, "<i2"))
            elif ending(event.type):
                break
        wall_s = time.perf_counter() - started_s
    samples = np.concatenate(pieces).astype(np.float32) / np.float32(32768)
    first_audio_ms = 1000 * ((first_s or started_s) - started_s)
    return Spoken(text, samples, rate_hz, first_audio_ms, wall_s)


def _request(text: str, *, in_pieces: bool) -> list[Event]:
    if not in_pieces:
        return [Synthesize(text).event()]
    words = text.split(" ")
    pieces = [word + " " for word in words[:-1]] + words[-1:]
    chunks = [SynthesizeChunk(piece).event() for piece in pieces]
    return [SynthesizeStart().event(), *chunks, SynthesizeStop().event()]


async def speak_all(
    texts: Sequence[str], arguments: Sequence[str], *, in_pieces: bool = False
) -> list[Spoken]:
    """Start a server and have every phrase spoken, one after the other."""
    async with running_server(arguments) as port:
        await speak(port, "Hello.")  # the first request may wait for the model
        return [await speak(port, text, in_pieces=in_pieces) for text in texts]


def measure(spoken: Sequence[Spoken], listener: Listener) -> Measurement:
    """Listen to phrases."""
    phrases = []
    for phrase in spoken:
        heard = listener.write_down(phrase.samples, phrase.rate_hz)
        phrases.append(
            Heard(
                text=phrase.text,
                heard=heard,
                num_words=len(plain_words(phrase.text)),
                num_errors=heard_errors(phrase.text, heard),
                audio_s=round(phrase.audio_s, 2),
                first_audio_ms=round(phrase.first_audio_ms, 1),
                rtf=round(phrase.wall_s / max(phrase.audio_s, 1e-3), 3),
            )
        )
    return Measurement(
        word_error_rate=round(word_error_rate([(p.text, p.heard) for p in phrases]), 4),
        median_first_audio_ms=float(np.median([p.first_audio_ms for p in phrases])),
        median_rtf=float(np.median([p.rtf for p in phrases])),
        longest_s=max(p.audio_s for p in phrases),
        phrases=tuple(phrases),
    )


def read_table(path: Path) -> list[dict[str, Any]]:
    """Read what earlier measurements noted."""
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else []
