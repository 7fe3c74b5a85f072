"""One connection.

Events are read all the time, also while an answer is spoken: ``describe`` and ``ping`` are answered
at once, and a client that goes away is noticed at once. Answers are spoken one after the other by
a second task; which events make a request, :mod:`.request_line` knows.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final

from wyoming.event import Event
from wyoming.ping import Pong
from wyoming.tts import SynthesizeStopped

from wyoming_qwen3tts.errors import BusyError, ProtocolError, Qwen3TTSError, RequestError
from wyoming_qwen3tts.protocol.answer import Answer, make_error
from wyoming_qwen3tts.protocol.backend import SpeechBackend
from wyoming_qwen3tts.protocol.info import make_info
from wyoming_qwen3tts.protocol.large_events import LargeEvents
from wyoming_qwen3tts.protocol.limits import ConnectionLimits
from wyoming_qwen3tts.protocol.request_line import RequestLine
from wyoming_qwen3tts.protocol.requests import read_text
from wyoming_qwen3tts.protocol.throttle import Throttle
from wyoming_qwen3tts.protocol.wire import ClientGoneError, EventReader, EventWriter

_LOGGER = logging.getLogger(__name__)

_CLOSE_S: Final = 2.0


@dataclass(frozen=True)
class Client:
    """The other end of a connection."""

    reader: asyncio.StreamReader
    """What the client sends."""
    writer: asyncio.StreamWriter
    """What is sent to the client."""
    name: str
    """How the log calls it."""
    listens_after_eof: bool = False
    """A client that sends no more still listens, as in a shell pipe.

    On a socket the end of input means that the client has gone.
    """


class Connection:
    """Serves one client until it goes away or is sent away."""

    def __init__(
        self,
        client: Client,
        source: SpeechBackend,
        limits: ConnectionLimits,
        *,
        supports_streaming: bool = True,
        on_error: Callable[[Exception], None] | None = None,
        large_events: LargeEvents | None = None,
    ) -> None:
        """Serve a client.

        Args:
            client: Who is served.
            source: Speaks.
            limits: What the client may cost.
            supports_streaming: Whether info says so; streamed text is spoken in any case.
            on_error: Called with everything that the client is told was wrong.
            large_events: Those of all connections; None for one that is alone.
        """
        self._client = client
        self._reader = EventReader(client.reader, limits, large_events)
        self._events = EventWriter(client.writer, limits)
        self._source = source
        self._limits = limits
        self._supports_streaming = supports_streaming
        self._on_error = on_error
        self._requests = RequestLine(limits, client.name)
        self._unfinished: Answer | None = None
        self._linger: asyncio.TimerHandle | None = None
        self._num_errors = 0
        self._is_finishing = False
        self._last_event_at = asyncio.get_running_loop().time()
        self._main: asyncio.Task[None] | None = None
        self._speaking: asyncio.Task[None] | None = None
        self._is_sent_away = False
        self._handlers: dict[str, Callable[[Event], Awaitable[None]]] = {
            "describe": self._describe,
            "ping": self._ping,
            "synthesize": self._take_request,
            "synthesize-start": self._take_request,
            "synthesize-chunk": self._take_request,
            "synthesize-stop": self._take_request,
        }

    async def run(self) -> None:
        """Serve until the client goes away, breaks the rules or is idle for too long."""
        self._main = asyncio.create_task(self._read_events())
        self._speaking = asyncio.create_task(self._speak_answers())
        others = [self._speaking]
        if not self._client.listens_after_eof:
            others.append(asyncio.create_task(self._watch_idleness()))
        if self._is_finishing:
            self._hang_up()
        try:
            await asyncio.wait([self._main])
        finally:
            self._stop_linger()
            for task in (self._main, *others):
                task.cancel()
            for result in await asyncio.gather(self._main, *others, return_exceptions=True):
                if isinstance(result, Exception):
                    _LOGGER.error("%s: unexpected failure: %r", self._client.name, result)
            await self._close()

    def finish(self) -> None:
        """Take no more requests and end once the running ones are spoken."""
        self._is_finishing = True
        self._requests.close()
        if self._requests.is_empty:
            self._hang_up()

    def abort(self, reason: RequestError) -> None:
        """Let every running request fail for this reason, then end."""
        self._requests.refuse_all(reason)
        self.finish()

    @property
    def idle_s(self) -> float:
        """Seconds since the client has sent anything; 0 while it is owed an answer."""
        if self._requests.owes_audio:
            return 0.0
        return asyncio.get_running_loop().time() - self._last_event_at

    def make_room(self) -> None:
        """End a connection that nobody uses, because its place is needed."""
        _LOGGER.info("%s: idle for %.0f s; closed to make room", self._client.name, self.idle_s)
        # It takes a moment to end, in which it must not be chosen again.
        self._last_event_at = asyncio.get_running_loop().time()
        self._hang_up()

    # Reading

    async def _read_events(self) -> None:
        throttle = Throttle(self._limits.max_events_per_s)
        while True:
            try:
                if not await self._serve_event(throttle):
                    break
            except ProtocolError as error:
                await self._send_away(error)
                return
            except ClientGoneError as error:
                _LOGGER.debug("%s: connection lost: %s", self._client.name, error)
                return
            except Exception as error:  # noqa: BLE001 - one request must not end the others
                if not await self._report(error):
                    return
        if self._client.listens_after_eof:
            self._requests.end_stream()
            self._is_finishing = True
            if not self._requests.is_empty:
                await asyncio.Event().wait()  # _speak_answers hangs up after the last one

    async def _serve_event(self, throttle: Throttle) -> bool:
        """Read an event and do what it asks for; False at the end of input."""
        await throttle.wait()
        try:
            event = await self._reader.read()
        finally:
            throttle.spend(self._reader.cost)
        if event is None:
            return False
        await self._note_life()
        if handler := self._handlers.get(event.type):
            await handler(event)
        return True

    async def _note_life(self) -> None:
        """Take note that the client goes on."""
        self._last_event_at = asyncio.get_running_loop().time()
        self._stop_linger()
        await self._pay_audio_stop()

    async def _describe(self, event: Event) -> None:
        event.data.clear()  # not needed, and whoever sends much of it may be slow to read
        voices = await self._source.voices()
        info = make_info(voices, supports_streaming=self._supports_streaming)
        await self._events.write(info.event())

    async def _ping(self, event: Event) -> None:
        text = event.data.get("text")
        if text is not None:
            text = read_text(event)
        await self._events.write(Pong(text=text).event())

    async def _take_request(self, event: Event) -> None:
        try:
            self._requests.take(event)
        except BusyError as error:
            if event.type != "synthesize-start":
                raise
            await self._report(error)
            await self._events.write(SynthesizeStopped().event())

    # Speaking

    async def _speak_answers(self) -> None:
        try:
            while True:
                answer = await self._requests.first()
                self._stop_linger()
                await self._pay_audio_stop()
                await self._speak(answer)
                if self._is_finishing and self._requests.is_empty:
                    break
        except ClientGoneError as error:
            if not self._is_sent_away:
                _LOGGER.info("%s: gone while an answer was sent: %s", self._client.name, error)
        finally:
            if not self._is_sent_away:  # else the client is still being told why
                self._hang_up()

    async def _speak(self, answer: Answer) -> None:
        try:
            failure = await answer.speak(self._source, self._events)
        finally:
            self._requests.finish_first()
        if failure is None:
            self._stop_linger()
            return
        self._log(failure)
        self._num_errors += 1
        if not answer.is_stream:
            self._unfinished = answer
            self._start_linger()

    async def _pay_audio_stop(self) -> None:
        """End the audio of a plain answer that failed, now that the client is known to go on."""
        answer, self._unfinished = self._unfinished, None
        if answer is not None and answer.unfinished_audio is not None:
            await answer.unfinished_audio.stop()

    # Ending

    async def _report(self, error: Exception) -> bool:
        """Tell the client and the log what is wrong; False when it has been wrong too often."""
        self._log(error)
        self._num_errors += 1
        try:
            await self._note_life()
            await self._events.write(make_error(error))
            if self._num_errors > self._limits.max_errors:
                await self._send_away(ProtocolError("too many wrong requests"))
                return False
        except ClientGoneError:
            return False
        self._start_linger()
        return True

    async def _send_away(self, error: ProtocolError) -> None:
        """Tell the client why, read no more events and speak no more."""
        _LOGGER.info("%s: %s; connection closed", self._client.name, error)
        self._count(error)
        self._is_sent_away = True
        if self._speaking is not None:
            self._speaking.cancel()
        try:
            await self._events.write(make_error(error))
            self._events.end()
            await self._reader.discard()
        except OSError:
            return

    def _start_linger(self) -> None:
        """Hang up on a client that does not go on after an error.

        It may be one that ignores errors and would wait for ever.
        """
        if self._linger is None and not self._client.listens_after_eof:
            loop = asyncio.get_running_loop()
            self._linger = loop.call_later(self._limits.error_linger_s, self._end_linger)

    def _end_linger(self) -> None:
        self._linger = None
        if self._requests.is_empty:
            self._hang_up()

    def _stop_linger(self) -> None:
        if self._linger is not None:
            self._linger.cancel()
            self._linger = None

    async def _watch_idleness(self) -> None:
        loop = asyncio.get_running_loop()
        limit_s = self._limits.idle_timeout_s
        self._last_event_at = loop.time()
        while (left_s := self._last_event_at + limit_s - loop.time()) > 0:
            await asyncio.sleep(left_s)
            if self._requests.owes_audio:
                self._last_event_at = loop.time()
        _LOGGER.info("%s: idle for %g s; connection closed", self._client.name, limit_s)
        self._hang_up()

    def _hang_up(self) -> None:
        if self._main is not None:
            self._main.cancel()

    async def _close(self) -> None:
        self._client.writer.close()
        try:
            async with asyncio.timeout(_CLOSE_S):
                await self._client.writer.wait_closed()
        except OSError:  # includes TimeoutError: the client does not read the rest
            self._client.writer.transport.abort()

    def _count(self, error: Exception) -> None:
        if self._on_error is not None:
            self._on_error(error)

    def _log(self, error: Exception) -> None:
        self._count(error)
        if isinstance(error, Qwen3TTSError):
            _LOGGER.warning("%s: %s: %s", self._client.name, error.code, error)
        else:
            _LOGGER.error("%s: unexpected failure: %r", self._client.name, error)
            _LOGGER.debug("Where it happened", exc_info=error)
