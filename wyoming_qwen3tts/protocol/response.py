"""One request: its text as it arrives, and the events that answer it.

::

    plain:   audio-start audio-chunk+ audio-stop
    stream:  audio-start audio-chunk+ audio-stop synthesize-stopped

    failure of a plain request:  ... error
    failure of a stream:         ... error [audio-stop] synthesize-stopped

How a failure ends is chosen for Home Assistant. From 2026 on it raises at ``error``. Older
versions ignore ``error``: they take the audio of a plain request as complete, and cache it
forever, if ``audio-stop`` follows; if the connection is closed instead, the request fails. So
after a failed plain request ``audio-stop`` is withheld. The connection then closes, or sends it
once the client sends another event. A stream of an older version ends at ``synthesize-stopped`` or
at the close, without a difference: it fails only if there was no audio. So a request that fails
from the start gets no audio, not even ``audio-start``.
"""

import asyncio
from contextlib import aclosing
from typing import Final

from wyoming.audio import AudioChunk as WireChunk
from wyoming.audio import AudioStart, AudioStop
from wyoming.tts import SynthesizeStopped

from wyoming_qwen3tts.audio import NUM_CHANNELS, SAMPLE_WIDTH_BYTES, AudioChunk
from wyoming_qwen3tts.errors import RequestError, SynthesisError
from wyoming_qwen3tts.protocol.backend import SpeechBackend, SpeechRequest
from wyoming_qwen3tts.protocol.messages import make_error
from wyoming_qwen3tts.protocol.wire import ClientGoneError, EventWriter

# Samples per event: 0.2 s at 24 kHz, so that a player can start after a part of a chunk.
MAX_BLOCK_SAMPLES: Final = 4_800
AUDIO_TIMEOUT_S: Final = 600.0  # to the next audio after the text is complete


class IncomingText:
    """The text of one request while it arrives, as an iterator over what came since the last."""

    def __init__(self, max_chars: int) -> None:
        self._max_chars = max_chars
        self._num_chars = 0
        self._pieces: list[str] = []
        self._changed = asyncio.Event()
        self.has_ended = False

    def add(self, piece: str) -> None:
        """Append text; raises RequestError if the whole text is too long."""
        self._num_chars += len(piece)
        if self._num_chars > self._max_chars:
            limit = f"more than {self._max_chars} characters"
            raise RequestError(f"the text has {limit}; send it in several requests")
        if piece:
            self._pieces.append(piece)
            self._changed.set()

    def end(self) -> None:
        """Mark the text as complete."""
        self.has_ended = True
        self._changed.set()

    @property
    def num_waiting_chars(self) -> int:
        """Characters that were not read yet."""
        return sum(map(len, self._pieces))

    def __aiter__(self) -> "IncomingText":
        return self

    async def __anext__(self) -> str:
        while not self._pieces:
            if self.has_ended:
                raise StopAsyncIteration
            self._changed.clear()
            await self._changed.wait()
        piece = "".join(self._pieces)
        self._pieces.clear()
        return piece


class Response:
    """Speaks one request, from the first event to the last; the text may still be arriving."""

    def __init__(self, events: EventWriter, max_chars: int, *, is_stream: bool) -> None:
        self.request = SpeechRequest()
        self.text = IncomingText(max_chars)
        self.is_stream = is_stream
        self._events = events
        self._refusal: RequestError | None = None
        self._timer: asyncio.Timeout | None = None
        self._sample_rate_hz: int | None = None
        self._num_samples = 0
        self._owes_audio_stop = False

    def end_text(self) -> None:
        """Mark the text as complete."""
        self.text.end()
        self._restart_timer()

    def refuse(self, error: RequestError) -> None:
        """Let the request fail with this error, at once if it is being spoken."""
        if self._refusal is None:
            self._refusal = error.with_traceback(None)  # a traceback would keep the event
            self.end_text()

    async def speak(self, backend: SpeechBackend) -> Exception | None:
        """Send the whole response; returns the error that the client was sent, if any."""
        failure: Exception | None = None
        try:
            await self._send_audio(backend)
        except ClientGoneError:
            raise
        except Exception as error:  # noqa: BLE001 - otherwise the client would wait forever
            failure = error
            await self._events.write(make_error(error))
        if failure is None or self.is_stream:
            await self.stop_audio()
        if self.is_stream:
            await self._events.write(SynthesizeStopped().event())
        return failure

    async def stop_audio(self) -> None:
        """Send audio-stop, unless audio-start was not sent or audio-stop was."""
        if self._owes_audio_stop:
            self._owes_audio_stop = False
            await self._events.write(AudioStop(timestamp=self._timestamp_ms()).event())

    async def _send_audio(self, backend: SpeechBackend) -> None:
        if self._refusal is not None:
            raise self._refusal
        try:
            async with asyncio.timeout(None) as self._timer:
                self._restart_timer()
                async with aclosing(backend.stream(self.request, self.text)) as chunks:
                    async for chunk in chunks:
                        await self._write(chunk)
                        self._restart_timer()
        except TimeoutError as error:
            if self._refusal is None:
                message = f"there was no audio for {AUDIO_TIMEOUT_S:g} s; the request was given up"
                raise SynthesisError(message) from error
        finally:
            self._timer = None
        if self._refusal is not None:
            raise self._refusal
        if self._sample_rate_hz is None:
            raise SynthesisError("there was no audio for this text")

    async def _write(self, chunk: AudioChunk) -> None:
        """Send a chunk in blocks, audio-start before the first."""
        if not len(chunk.samples):
            return
        audio_format = (chunk.sample_rate_hz, SAMPLE_WIDTH_BYTES, NUM_CHANNELS)
        if self._sample_rate_hz is None:
            self._sample_rate_hz = chunk.sample_rate_hz
            self._owes_audio_stop = True
            await self._events.write(AudioStart(*audio_format, timestamp=0).event())
        pcm = chunk.pcm16()
        block_bytes = MAX_BLOCK_SAMPLES * SAMPLE_WIDTH_BYTES
        for start in range(0, len(pcm), block_bytes):
            audio = pcm[start : start + block_bytes]
            block = WireChunk(*audio_format, audio, timestamp=self._timestamp_ms())
            await self._events.write(block.event())
            self._num_samples += block.samples

    def _timestamp_ms(self) -> int:
        return self._num_samples * 1000 // (self._sample_rate_hz or 1)

    def _restart_timer(self) -> None:
        """Limit the wait for audio, but never the wait for text."""
        if self._timer is None or self._timer.expired():
            return
        now = asyncio.get_running_loop().time()
        if self._refusal is not None:
            self._timer.reschedule(now)
        elif self.text.has_ended:
            self._timer.reschedule(now + AUDIO_TIMEOUT_S)
