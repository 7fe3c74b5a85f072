"""One connection: reads events and speaks responses at the same time.

``describe`` and ``ping`` are answered while a response is spoken, and a client that goes away is
noticed at once. Responses are spoken one after the other. The expected order of events is::

    synthesize               a plain request
    synthesize-start         opens a stream, which is spoken as soon as it has text
    synthesize-chunk*
    synthesize               in a stream: the copy of the whole text for old servers, not spoken
    synthesize-stop          ends the stream; the next request may follow at once
"""

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any, Final

from wyoming.event import Event
from wyoming.ping import Pong
from wyoming.tts import SynthesizeStopped

from wyoming_qwen3tts.errors import BusyError, ProtocolError, Qwen3TTSError, RequestError
from wyoming_qwen3tts.protocol.backend import SpeechBackend, SpeechRequest
from wyoming_qwen3tts.protocol.info import make_info
from wyoming_qwen3tts.protocol.requests import IncomingText, read_request, read_text
from wyoming_qwen3tts.protocol.response import Response, make_error
from wyoming_qwen3tts.protocol.wire import ClientGoneError, EventWriter, discard_input, read_event

_LOGGER = logging.getLogger(__name__)

MAX_PENDING_REQUESTS: Final = 64
MAX_ERRORS: Final = 50
"""Wrong requests on one connection before it is closed."""
IDLE_TIMEOUT_S: Final = 900.0
"""Home Assistant keeps a stream open while a language model calls tools."""
CLOSE_AFTER_ERROR_S: Final = 2.0
"""A client that stays silent after an error may ignore errors and would wait forever."""
_CLOSE_TIMEOUT_S: Final = 2.0


@dataclass(frozen=True)
class Client:
    """The other end of a connection; the name is for the log."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    name: str
    is_pipe: bool = False
    """stdio: the text of a stream ends with the input, and a silent client is kept."""


@dataclass(frozen=True)
class ConnectionOptions:
    """What all connections of a server share."""

    backend: SpeechBackend
    max_text_chars: int
    """Limit of the text of one request, streamed or not."""
    supports_streaming: bool
    """Whether ``info`` says so; streamed text is spoken in any case."""
    on_error: Callable[[Exception], None]
    """Called with every error that a client is sent."""
    health: Callable[[], Mapping[str, Any]]
    """Answers the ``health`` event."""


class State(Enum):
    """What happens to events and responses."""

    OPEN = auto()
    """Events are answered."""
    DRAINING = auto()
    """No new requests. The connection closes after the last response."""
    REJECTING = auto()
    """The client broke the protocol. It is sent the reason, then closed."""
    CLOSED = auto()


class Connection:
    """Serves one client until it goes away, breaks the protocol or is idle for too long."""

    def __init__(self, client: Client, options: ConnectionOptions) -> None:
        self._client = client
        self._options = options
        self._events = EventWriter(client.writer)
        self._state = State.OPEN
        self._closed = asyncio.Event()
        self._speaking: asyncio.Task[None] | None = None
        self._responses: deque[Response] = deque()
        self._has_responses = asyncio.Event()
        self._is_streaming = False
        """Between synthesize-start and synthesize-stop."""
        self._stream: Response | None = None
        """The response that speaks the open stream; None after it has failed."""
        self._failed: Response | None = None
        """A plain response whose audio-stop is withheld."""
        self._timer: asyncio.TimerHandle | None = None
        self._num_errors = 0
        self._handlers: dict[str, Callable[[Event], Awaitable[None]]] = {
            "describe": self._describe,
            "ping": self._ping,
            "health": self._report_health,
            "synthesize": self._synthesize,
            "synthesize-start": self._start_stream,
            "synthesize-chunk": self._continue_stream,
            "synthesize-stop": self._stop_stream,
        }

    async def run(self) -> None:
        """Serve the client to its end."""
        self._speaking = asyncio.create_task(self._speak_responses())
        tasks = [self._speaking, asyncio.create_task(self._read_events())]
        self._restart_timer(IDLE_TIMEOUT_S)
        try:
            await self._closed.wait()
        finally:
            if self._timer is not None:
                self._timer.cancel()
            for task in tasks:
                task.cancel()
            for result in await asyncio.gather(*tasks, return_exceptions=True):
                if isinstance(result, Exception):
                    _LOGGER.error("%s: unexpected failure: %r", self._client.name, result)
            await self._close_stream()

    def drain(self) -> None:
        """Accept no more requests and close after the last response."""
        if self._state is State.OPEN:
            self._state = State.DRAINING
        if not self._responses:
            self._close()

    def abort(self, reason: RequestError) -> None:
        """Let every pending request fail for this reason, then close."""
        for response in self._responses:
            response.refuse(reason)
        self.drain()

    # Reading

    async def _read_events(self) -> None:
        is_draining = False
        try:
            while await self._serve_event():
                pass
            is_draining = self._end_input()
        except ProtocolError as error:
            await self._reject(error)
        except ClientGoneError as error:
            _LOGGER.debug("%s: connection lost: %s", self._client.name, error)
        finally:
            if not is_draining:
                self._close()

    async def _serve_event(self) -> bool:
        """Read an event and answer it; False at the end of input."""
        try:
            event = await read_event(self._client.reader)
            if event is None:
                return False
            self._restart_timer(IDLE_TIMEOUT_S)
            await self._send_withheld_audio_stop()
            if handler := self._handlers.get(event.type):
                await handler(event)
        except (ProtocolError, ClientGoneError):
            raise
        except Exception as error:  # noqa: BLE001 - one request must not end the others
            await self._report(error)
        await asyncio.sleep(0)  # buffered events come without a wait: let other clients go on
        return True

    def _end_input(self) -> bool:
        """Return whether responses are pending that the client may still read.

        A client may close its sending half after a request. If it has gone, the next write fails.
        """
        if self._client.is_pipe:
            self._end_stream()
        if self._is_streaming:
            return False  # the text will never be complete: the client has gone
        self.drain()
        return bool(self._responses)

    async def _describe(self, _event: Event) -> None:
        voices = await self._options.backend.voices()
        info = make_info(voices, supports_streaming=self._options.supports_streaming)
        await self._events.write(info.event())

    async def _ping(self, event: Event) -> None:
        text = None if event.data.get("text") is None else read_text(event)
        await self._events.write(Pong(text=text).event())

    async def _report_health(self, _event: Event) -> None:
        await self._events.write(Event("health", dict(self._options.health())))

    # Requests

    async def _synthesize(self, event: Event) -> None:
        if not self._is_streaming:
            self._enqueue(event, is_stream=False)

    async def _start_stream(self, event: Event) -> None:
        if self._is_streaming:
            _LOGGER.info("%s: synthesize-start before synthesize-stop", self._client.name)
            self._end_stream()
        self._is_streaming = True
        try:
            self._stream = self._enqueue(event, is_stream=True)
        except BusyError as error:
            await self._report(error)
            await self._events.write(SynthesizeStopped().event())

    async def _continue_stream(self, event: Event) -> None:
        self._require_stream(event)
        if self._stream is None:
            return  # the rest of a stream that has failed
        try:
            self._stream.text.add(read_text(event))
        except RequestError as error:
            self._stream.refuse(error)
            self._stream = None

    async def _stop_stream(self, event: Event) -> None:
        self._require_stream(event)
        self._end_stream()

    def _require_stream(self, event: Event) -> None:
        if not self._is_streaming:
            raise RequestError(f"{event.type} came without synthesize-start before it")

    def _end_stream(self) -> None:
        if self._stream is not None:
            self._stream.end_text()
        self._stream = None
        self._is_streaming = False

    def _enqueue(self, event: Event, *, is_stream: bool) -> Response:
        """Add the response to a request; a wrong request fails in its turn.

        Raises:
            BusyError: Too many requests are pending.
        """
        max_chars = self._options.max_text_chars
        num_chars = sum(response.text.num_waiting_chars for response in self._responses)
        if len(self._responses) >= MAX_PENDING_REQUESTS or num_chars > max_chars:
            raise BusyError(f"{len(self._responses)} requests of this connection are pending")
        request, text, failure = SpeechRequest(), IncomingText(max_chars), None
        try:
            if self._state is not State.OPEN:
                raise BusyError("the server is shutting down")
            request = read_request(event)
            if not is_stream:
                text.add(read_text(event))
                text.end()
        except RequestError as error:
            failure = error
        response = Response(request, text, self._events, is_stream=is_stream)
        if failure is not None:
            response.refuse(failure)
        self._responses.append(response)
        self._has_responses.set()
        return response

    # Speaking

    async def _speak_responses(self) -> None:
        try:
            while self._state is State.OPEN or self._responses:
                self._has_responses.clear()
                if self._responses:
                    await self._speak(self._responses[0])
                else:
                    await self._has_responses.wait()
        except ClientGoneError as error:
            if self._state is not State.REJECTING:
                _LOGGER.info(
                    "%s: client disconnected during playback: %s", self._client.name, error
                )
        finally:
            if self._state is not State.REJECTING:
                self._close()

    async def _speak(self, response: Response) -> None:
        self._restart_timer(IDLE_TIMEOUT_S)
        await self._send_withheld_audio_stop()
        try:
            failure = await response.speak(self._options.backend)
        finally:
            self._responses.popleft()
            if response is self._stream:
                self._stream = None
        self._restart_timer(IDLE_TIMEOUT_S)
        if failure is not None:
            self._count(failure)
            if not response.is_stream:
                self._failed = response
                self._restart_timer(CLOSE_AFTER_ERROR_S)

    async def _send_withheld_audio_stop(self) -> None:
        """End the audio of a plain response that failed, now that the client goes on."""
        failed, self._failed = self._failed, None
        if failed is not None:
            await failed.stop_audio()

    # Ending

    async def _report(self, error: Exception) -> None:
        """Send an error.

        Raises:
            ProtocolError: The client has made too many.
        """
        self._count(error)
        await self._send_withheld_audio_stop()
        await self._events.write(make_error(error))
        if self._num_errors > MAX_ERRORS:
            raise ProtocolError("too many wrong requests")
        self._restart_timer(CLOSE_AFTER_ERROR_S)

    def _count(self, error: Exception) -> None:
        self._options.on_error(error)
        self._num_errors += 1
        if isinstance(error, Qwen3TTSError):
            _LOGGER.warning("%s: %s: %s", self._client.name, error.code, error)
        else:
            _LOGGER.error("%s: unexpected failure: %r", self._client.name, error)
            _LOGGER.debug("Traceback", exc_info=error)

    async def _reject(self, error: ProtocolError) -> None:
        """Send the reason, stop speaking and read no more events."""
        _LOGGER.info("%s: %s; connection closed", self._client.name, error)
        self._options.on_error(error)
        self._state = State.REJECTING
        if self._speaking is not None:
            self._speaking.cancel()
        try:
            await self._events.write(make_error(error))
            self._events.end()
            await discard_input(self._client.reader)
        except OSError:  # includes TimeoutError
            return

    def _restart_timer(self, seconds: float) -> None:
        """Close after this time without an event or a response."""
        if self._timer is not None:
            self._timer.cancel()
        if not self._client.is_pipe:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(seconds, self._on_timer, seconds)

    def _on_timer(self, seconds: float) -> None:
        is_idle = seconds == IDLE_TIMEOUT_S
        if any(response.text.has_ended or not is_idle for response in self._responses):
            self._restart_timer(IDLE_TIMEOUT_S)
            return
        if is_idle:
            _LOGGER.info("%s: idle for %g s; connection closed", self._client.name, seconds)
        self._close()

    def _close(self) -> None:
        self._state = State.CLOSED
        self._closed.set()

    async def _close_stream(self) -> None:
        self._client.writer.close()
        try:
            async with asyncio.timeout(_CLOSE_TIMEOUT_S):
                await self._client.writer.wait_closed()
        except OSError:  # includes TimeoutError: the client does not read the rest
            self._client.writer.transport.abort()
