"""One request and what is sent for it.

::

    plain:   audio-start audio-chunk+ audio-stop
    stream:  audio-start audio-chunk+ audio-stop synthesize-stopped

    failure of a plain request:  ... error
    failure of a stream:         ... error [audio-stop] synthesize-stopped

How a failure ends is chosen for Home Assistant. From 2026 on it raises at ``error``, whatever
follows. Older versions ignore ``error``. They take the audio of a plain request as complete, and
cache it for ever, if ``audio-stop`` follows; if the connection is closed instead, the request
fails. So a failed plain answer is left open, and the connection closes it, or pays the
``audio-stop`` when the client goes on. A stream of an older version ends at ``synthesize-stopped``
or at the close, with no difference: it fails if there was no audio at all. So no audio, not even
``audio-start``, is ever sent for a request that fails from the start.
"""

import asyncio
from contextlib import aclosing
from typing import Final

from wyoming.error import Error
from wyoming.event import Event
from wyoming.tts import SynthesizeStopped

from wyoming_qwen3tts.errors import Qwen3TTSError, RequestError, SynthesisError
from wyoming_qwen3tts.protocol.audio_writer import AudioWriter
from wyoming_qwen3tts.protocol.backend import SpeechBackend, SpeechRequest
from wyoming_qwen3tts.protocol.limits import ConnectionLimits
from wyoming_qwen3tts.protocol.requests import IncomingText, without_surrogates
from wyoming_qwen3tts.protocol.wire import ClientGoneError, EventWriter

_MAX_ERROR_CHARS: Final = 1_000


class Answer:
    """One request on its way from the first event to the last."""

    def __init__(
        self, request: SpeechRequest, limits: ConnectionLimits, *, is_stream: bool
    ) -> None:
        """Start an answer whose text is still to come."""
        self.request = request
        self.text = IncomingText(limits)
        self.is_stream = is_stream
        self.unfinished_audio: AudioWriter | None = None
        """Audio of a failed plain answer that still lacks its audio-stop."""
        self._timeout_s = limits.answer_timeout_s
        self._refusal: RequestError | None = None
        self._timer: asyncio.Timeout | None = None

    def end_text(self) -> None:
        """Say that the text is complete."""
        self.text.end()
        self._restart_timer()

    def refuse(self, error: RequestError) -> None:
        """Let the answer fail with this error, at once if it is being spoken."""
        if self._refusal is None:
            # Without its traceback, which would keep the event that was wrong.
            self._refusal = error.with_traceback(None)
            self.text.end()
            self._restart_timer()

    async def speak(self, source: SpeechBackend, events: EventWriter) -> Exception | None:
        """Send the whole answer.

        Returns:
            What went wrong; the client has been told.

        Raises:
            ClientGoneError: There is nobody to answer.
        """
        audio = AudioWriter(events)
        failure: Exception | None = None
        try:
            await self._send_audio(source, audio)
        except ClientGoneError:
            raise
        except Exception as error:  # noqa: BLE001 - whatever failed, the client must not wait for ever
            failure = error
            await events.write(make_error(error))
        if failure is None or self.is_stream:
            await audio.stop()
        elif audio.is_open:
            self.unfinished_audio = audio
        if self.is_stream:
            await events.write(SynthesizeStopped().event())
        return failure

    async def _send_audio(self, source: SpeechBackend, audio: AudioWriter) -> None:
        if self._refusal is not None:
            raise self._refusal
        try:
            async with asyncio.timeout(None) as self._timer:
                self._restart_timer()
                async with aclosing(source.stream(self.request, self.text)) as chunks:
                    async for chunk in chunks:
                        await audio.write(chunk)
                        self._restart_timer()
        except TimeoutError as error:
            if self._timer is not None and self._timer.expired() and self._refusal is None:
                message = f"there was no audio for {self._timeout_s:g} s; the request was given up"
                raise SynthesisError(message) from error
            if self._refusal is None:
                raise
        finally:
            self._timer = None
        if self._refusal is not None:
            raise self._refusal
        if not audio.is_open:
            raise SynthesisError("there was no audio for this text")

    def _restart_timer(self) -> None:
        """Limit the wait for audio, but never the wait for text."""
        if self._timer is None or self._timer.expired():
            return
        now = asyncio.get_running_loop().time()
        if self._refusal is not None:
            self._timer.reschedule(now)
        elif self.text.has_ended:
            self._timer.reschedule(now + self._timeout_s)


def make_error(error: Exception) -> Event:
    """Return the error event: never without text, the class as code."""
    code = error.code if isinstance(error, Qwen3TTSError) else type(error).__name__
    text = without_surrogates(str(error))[:_MAX_ERROR_CHARS].strip()
    return Error(text=text or code, code=code).event()
