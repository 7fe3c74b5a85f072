"""One request and the events that answer it.

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
from wyoming.error import Error
from wyoming.event import Event
from wyoming.tts import SynthesizeStopped

from wyoming_qwen3tts.audio import NUM_CHANNELS, SAMPLE_WIDTH_BYTES, AudioChunk
from wyoming_qwen3tts.errors import Qwen3TTSError, RequestError, SynthesisError
from wyoming_qwen3tts.protocol.backend import SpeechBackend, SpeechRequest
from wyoming_qwen3tts.protocol.requests import IncomingText, without_surrogates
from wyoming_qwen3tts.protocol.wire import ClientGoneError, EventWriter

MAX_BLOCK_SAMPLES: Final = 4_800
"""Samples per event: 0.2 s at 24 kHz, so that a player can start after a part of a chunk."""
AUDIO_TIMEOUT_S: Final = 600.0
"""Time to the next audio after the text is complete, before the request fails."""
_MAX_ERROR_CHARS: Final = 1_000


class Response:
    """Speaks one request, from the first event to the last."""

    def __init__(
        self, request: SpeechRequest, text: IncomingText, events: EventWriter, *, is_stream: bool
    ) -> None:
        """Prepare to speak text that may still be arriving."""
        self.text = text
        self.is_stream = is_stream
        self._request = request
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
        """Send the whole response.

        Returns:
            The error that the client was sent, if any.

        Raises:
            ClientGoneError: The client has gone.
        """
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
                async with aclosing(backend.stream(self._request, self.text)) as chunks:
                    async for chunk in chunks:
                        await self._write(chunk)
                        self._restart_timer()
        except TimeoutError as error:
            if self._refusal is None:
                if self._timer is None or not self._timer.expired():
                    raise
                message = f"there was no audio for {AUDIO_TIMEOUT_S:g} s; the request was given up"
                raise SynthesisError(message) from error
        finally:
            self._timer = None
        if self._refusal is not None:
            raise self._refusal
        if self._sample_rate_hz is None:
            raise SynthesisError("there was no audio for this text")

    async def _write(self, chunk: AudioChunk) -> None:
        """Send a chunk at once, audio-start before the first.

        Raises:
            SynthesisError: The sample rate has changed; players read it only once.
        """
        if not len(chunk.samples):
            return
        rate = chunk.sample_rate_hz
        if self._sample_rate_hz is None:
            self._sample_rate_hz = rate
            self._owes_audio_stop = True
            start = AudioStart(rate, SAMPLE_WIDTH_BYTES, NUM_CHANNELS, timestamp=0)
            await self._events.write(start.event())
        elif rate != self._sample_rate_hz:
            raise SynthesisError(
                f"the sample rate changed from {self._sample_rate_hz} to {rate} Hz "
                "within one response"
            )
        pcm = chunk.pcm16()
        block_bytes = MAX_BLOCK_SAMPLES * SAMPLE_WIDTH_BYTES
        for start_byte in range(0, len(pcm), block_bytes):
            block = WireChunk(
                rate=rate,
                width=SAMPLE_WIDTH_BYTES,
                channels=NUM_CHANNELS,
                audio=pcm[start_byte : start_byte + block_bytes],
                timestamp=self._timestamp_ms(),
            )
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


def make_error(error: Exception) -> Event:
    """Return the error event: never without text, the class name as code."""
    code = error.code if isinstance(error, Qwen3TTSError) else type(error).__name__
    text = without_surrogates(str(error))[:_MAX_ERROR_CHARS].strip()
    return Error(text=text or code, code=code).event()
