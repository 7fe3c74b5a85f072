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
import socket
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, Final

from wyoming.event import Event
from wyoming.ping import Pong
from wyoming.tts import SynthesizeStopped

from wyoming_qwen3tts.errors import BusyError, ProtocolError, Qwen3TTSError, RequestError
from wyoming_qwen3tts.protocol.backend import Conversation, SpeechBackend
from wyoming_qwen3tts.protocol.messages import make_error, make_info, read_request, read_text
from wyoming_qwen3tts.protocol.response import Response
from wyoming_qwen3tts.protocol.wire import (
    MAX_HEADER_BYTES,
    ClientGoneError,
    EventWriter,
    read_event,
)

_LOGGER = logging.getLogger(__name__)

MAX_PENDING_REQUESTS: Final = 64
MAX_ERRORS: Final = 50  # wrong requests on one connection before it is closed
IDLE_TIMEOUT_S: Final = 900.0  # Home Assistant keeps a stream open while a model calls tools
# A client that stays silent after an error may ignore errors and would wait forever.
CLOSE_AFTER_ERROR_S: Final = 2.0
_CLOSE_TIMEOUT_S: Final = 2.0
_POLL_S: Final = 0.05


@dataclass(frozen=True)
class ConnectionOptions:
    """What all connections of a server share."""

    backend: "SpeechBackend | asyncio.Future[SpeechBackend]"  # requests wait while it loads
    max_text_chars: int = 120_000  # of one request, streamed or not
    supports_streaming: bool = True  # what info says; streamed text is spoken in any case
    on_error: Callable[[Exception], None] = lambda _error: None  # for errors that clients are sent
    health: Callable[[], Mapping[str, Any]] = dict  # answers the health event

    async def loaded_backend(self) -> SpeechBackend:
        """Return the backend as soon as it is loaded."""
        backend = self.backend
        return await asyncio.shield(backend) if isinstance(backend, asyncio.Future) else backend


class Connection:
    """Serves one client until it goes away, breaks the protocol or is idle for too long."""

    def __init__(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        options: ConnectionOptions,
        name: str,
        *,
        address: str | None = None,
        is_pipe: bool = False,
    ) -> None:
        self._reader = reader
        self._writer = writer
        self._options = options
        self._name = name  # in the log
        self.address = address  # None for a client of this machine
        self._is_pipe = is_pipe  # a stream's text ends with the input; a silent client is kept
        self._events = EventWriter(writer)
        self._closed = asyncio.Event()
        self._is_draining = False  # no new requests; it closes after the last response
        self._is_rejected = False  # the client broke the protocol; it is sent the reason
        self._responses: deque[Response] = deque()
        self._has_responses = asyncio.Event()
        self._is_streaming = False  # between synthesize-start and synthesize-stop
        self._stream: Response | None = None  # speaks the open stream; None after it has failed
        self._failed: Response | None = None  # a plain one whose audio-stop is withheld
        self._timer: asyncio.TimerHandle | None = None
        self._num_errors = 0
        self._conversation = Conversation()

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
                    _LOGGER.error("%s: unexpected failure: %r", self._name, result)
            self._writer.close()
            try:
                async with asyncio.timeout(_CLOSE_TIMEOUT_S):
                    await self._writer.wait_closed()
            except OSError:  # includes TimeoutError: the client does not read the rest
                self._writer.transport.abort()

    def drain(self, reason: RequestError | None = None) -> None:
        """Accept no more requests and close after the last; with a reason, let all fail now."""
        self._is_draining = True
        if not self._responses:
            self._closed.set()
        if reason is not None:
            for response in self._responses:
                response.refuse(reason)

    def abort(self) -> None:
        """Close without a wait for what the client has not read."""
        self._writer.transport.abort()

    # Reading

    async def _read_events(self) -> None:
        is_over = True
        try:
            while await self._serve_event():
                pass
            if self._is_pipe:
                self._end_stream()
            self.drain()
            # A client may close its sending half after a request. But the text of an open stream
            # will never be complete.
            if self._responses and not self._is_streaming:
                is_over = not self._is_pipe
                if is_over:
                    await self._wait_until_gone()
        except ProtocolError as error:
            await self._reject(error)
        except ClientGoneError as error:
            _LOGGER.debug("%s: connection lost: %s", self._name, error)
        finally:
            if is_over:
                self._closed.set()

    async def _wait_until_gone(self) -> None:
        """Wait until a client that sends no more has gone: its system then resets what we send."""
        await self._events.write(Pong().event())
        peer, error = self._writer.get_extra_info("socket"), (socket.SOL_SOCKET, socket.SO_ERROR)
        # asyncio does not watch a half-closed socket.
        while not self._writer.is_closing() and not peer.getsockopt(*error):  # noqa: ASYNC110
            await asyncio.sleep(_POLL_S)

    async def _serve_event(self) -> bool:
        """Read an event and answer it; False at the end of input."""
        try:
            if (event := await read_event(self._reader)) is None:
                return False
            self._restart_timer(IDLE_TIMEOUT_S)
            await self._send_withheld_audio_stop()
            await self._answer(event)
        except (ProtocolError, ClientGoneError):
            raise
        except Exception as error:  # noqa: BLE001 - one request must not end the others
            await self._report(error)
        await asyncio.sleep(0)  # buffered events come without a wait: let other clients go on
        return True

    async def _answer(self, event: Event) -> None:
        options = self._options
        match event.type:
            case "describe":
                voices = await (await options.loaded_backend()).voices()
                info = make_info(voices, supports_streaming=options.supports_streaming)
                await self._events.write(info)
            case "ping":
                text = None if event.data.get("text") is None else read_text(event)
                await self._events.write(Pong(text=text).event())
            case "health":
                await self._events.write(Event("health", dict(options.health())))
            case "synthesize" if not self._is_streaming:
                self._enqueue(event, is_stream=False)
            case "synthesize-start":
                await self._start_stream(event)
            case "synthesize-chunk" | "synthesize-stop" if not self._is_streaming:
                raise RequestError(f"{event.type} came without synthesize-start before it")
            case "synthesize-chunk" if self._stream is not None:  # it may have failed
                try:
                    self._stream.text.add(read_text(event))
                except RequestError as error:
                    self._stream.refuse(error)
                    self._stream = None
            case "synthesize-stop":
                self._end_stream()

    # Requests

    async def _start_stream(self, event: Event) -> None:
        self._end_stream()  # a client may have forgotten synthesize-stop
        self._is_streaming = True
        try:
            self._stream = self._enqueue(event, is_stream=True)
        except BusyError as error:
            await self._report(error)
            await self._events.write(SynthesizeStopped().event())

    def _end_stream(self) -> None:
        if self._stream is not None:
            self._stream.end_text()
        self._stream = None
        self._is_streaming = False

    def _enqueue(self, event: Event, *, is_stream: bool) -> Response:
        """Add the response to a request; a wrong one fails in its turn; raises BusyError."""
        max_chars = self._options.max_text_chars
        num_chars = sum(response.text.num_waiting_chars for response in self._responses)
        if len(self._responses) >= MAX_PENDING_REQUESTS or num_chars > max_chars:
            raise BusyError(f"{len(self._responses)} requests of this connection are pending")
        response = Response(self._events, max_chars, is_stream=is_stream)
        self._responses.append(response)
        self._has_responses.set()
        try:
            if self._is_draining:
                raise BusyError("the server is shutting down")
            response.request = replace(
                read_request(event), address=self.address, conversation=self._conversation
            )
            if not is_stream:
                response.text.add(read_text(event))
                response.end_text()
        except RequestError as error:
            response.refuse(error)
        return response

    # Speaking

    async def _speak_responses(self) -> None:
        try:
            while self._responses or not self._is_draining:
                self._has_responses.clear()
                if self._responses:
                    await self._speak(self._responses[0])
                else:
                    await self._has_responses.wait()
        except ClientGoneError as error:
            _LOGGER.info("%s: client disconnected during playback: %s", self._name, error)
        finally:
            if not self._is_rejected:
                self._closed.set()

    async def _speak(self, response: Response) -> None:
        self._restart_timer(IDLE_TIMEOUT_S)
        await self._send_withheld_audio_stop()
        try:
            failure = await response.speak(await self._options.loaded_backend())
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
        """Send an error; raises ProtocolError if the client has made too many."""
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
            _LOGGER.warning("%s: %s: %s", self._name, type(error).__name__, error)
        else:
            _LOGGER.error("%s: unexpected failure: %r", self._name, error)
            _LOGGER.debug("Traceback", exc_info=error)

    async def _reject(self, error: ProtocolError) -> None:
        """Send the reason, stop speaking and read no more events."""
        _LOGGER.info("%s: %s; connection closed", self._name, error)
        self._options.on_error(error)
        self._is_rejected = True
        self._speaking.cancel()
        with suppress(OSError):  # includes TimeoutError
            await self._events.write(make_error(error))
            if self._writer.can_write_eof():
                self._writer.write_eof()
            # Closing a socket with unread input resets it, and the client would lose the error.
            async with asyncio.timeout(_CLOSE_TIMEOUT_S):
                while await self._reader.read(MAX_HEADER_BYTES):
                    pass

    def _restart_timer(self, seconds: float) -> None:
        """Close after this time without an event or a response."""
        if self._timer is not None:
            self._timer.cancel()
        if not self._is_pipe:
            self._timer = asyncio.get_running_loop().call_later(seconds, self._on_timer, seconds)

    def _on_timer(self, seconds: float) -> None:
        is_idle = seconds == IDLE_TIMEOUT_S
        if any(response.text.has_ended or not is_idle for response in self._responses):
            self._restart_timer(IDLE_TIMEOUT_S)
            return
        _LOGGER.info("%s: silent for %g s; connection closed", self._name, seconds)
        self._closed.set()
