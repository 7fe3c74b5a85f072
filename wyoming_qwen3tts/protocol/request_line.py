"""The requests of one connection, from their events to the turn of each answer.

The expected order of events is::

    IDLE       synthesize           -> a plain answer
    IDLE       synthesize-start     -> STREAMING; the answer begins as soon as there is text
    STREAMING  synthesize-chunk*
    STREAMING  synthesize           the compatibility copy of the whole text: not spoken again
    STREAMING  synthesize-stop      -> IDLE; the next request may follow at once
"""

import asyncio
import logging
from collections import deque
from enum import Enum

from wyoming.event import Event

from wyoming_qwen3tts.errors import BusyError, RequestError
from wyoming_qwen3tts.protocol.answer import Answer
from wyoming_qwen3tts.protocol.backend import SpeechRequest
from wyoming_qwen3tts.protocol.limits import ConnectionLimits
from wyoming_qwen3tts.protocol.requests import read_request, read_text

_LOGGER = logging.getLogger(__name__)


class ConnectionState(Enum):
    """What the client may send next."""

    IDLE = "idle"
    STREAMING = "streaming"
    """Between synthesize-start and synthesize-stop."""


class RequestLine:
    """Answers in the order of their requests; the first is the one that is spoken."""

    def __init__(self, limits: ConnectionLimits, client_name: str) -> None:
        """Start without any request."""
        self._limits = limits
        self._client_name = client_name
        self._state = ConnectionState.IDLE
        self._stream: Answer | None = None
        self._answers: deque[Answer] = deque()
        self._has_grown = asyncio.Event()
        self._is_closed = False
        self._takers = {
            "synthesize": self._synthesize,
            "synthesize-start": self._start_stream,
            "synthesize-chunk": self._continue_stream,
            "synthesize-stop": self._stop_stream,
        }

    @property
    def is_empty(self) -> bool:
        """Whether every request was answered."""
        return not self._answers

    @property
    def owes_audio(self) -> bool:
        """Whether the whole text of a request is there, and its answer not yet spoken."""
        return any(answer.text.has_ended for answer in self._answers)

    def take(self, event: Event) -> None:
        """Take one of the synthesize events.

        Raises:
            RequestError: It does not belong here.
            BusyError: Too many requests are waiting; what follows of a stream is passed over.
        """
        self._takers[event.type](event)

    def end_stream(self) -> None:
        """Take the text of the stream as complete, if there is one."""
        if self._stream is not None:
            self._stream.end_text()
        self._stream = None
        self._state = ConnectionState.IDLE

    def close(self) -> None:
        """Refuse every request that is still to come."""
        self._is_closed = True

    def refuse_all(self, reason: RequestError) -> None:
        """Let every request fail for this reason, each in its turn."""
        for answer in self._answers:
            answer.refuse(reason)

    async def first(self) -> Answer:
        """Return the answer whose turn it is; waits for one."""
        while not self._answers:
            self._has_grown.clear()
            await self._has_grown.wait()
        return self._answers[0]

    def finish_first(self) -> None:
        """Take out the answer whose turn it was."""
        if self._answers.popleft() is self._stream:
            self._stream = None  # whatever text is still to come has nobody to speak it

    def _synthesize(self, event: Event) -> None:
        if self._state is ConnectionState.IDLE:
            self._enqueue(self._make_answer(event, is_stream=False))

    def _start_stream(self, event: Event) -> None:
        if self._state is ConnectionState.STREAMING:
            _LOGGER.info(
                "%s: synthesize-start without synthesize-stop before it", self._client_name
            )
            self.end_stream()
        self._state = ConnectionState.STREAMING
        answer = self._make_answer(event, is_stream=True)
        self._enqueue(answer)
        self._stream = answer

    def _continue_stream(self, event: Event) -> None:
        if self._state is ConnectionState.IDLE:
            raise RequestError("synthesize-chunk came without synthesize-start before it")
        if self._stream is None:
            return  # the rest of a stream that has failed
        try:
            self._stream.text.add(read_text(event))
        except RequestError as error:
            self._stream.refuse(error)
            self._stream = None

    def _stop_stream(self, _event: Event) -> None:
        if self._state is ConnectionState.IDLE:
            raise RequestError("synthesize-stop came without synthesize-start before it")
        self.end_stream()

    def _make_answer(self, event: Event, *, is_stream: bool) -> Answer:
        """Return the answer to a request; a wrong request is refused in its turn."""
        try:
            answer = Answer(read_request(event, self._limits), self._limits, is_stream=is_stream)
            if not is_stream:
                answer.text.add(read_text(event))
                answer.end_text()
        except RequestError as error:
            answer = Answer(SpeechRequest(), self._limits, is_stream=is_stream)
            answer.refuse(error)
        return answer

    def _enqueue(self, answer: Answer) -> None:
        if self._is_closed:
            answer.refuse(BusyError("the server is shutting down"))
        num_chars = sum(other.text.num_waiting_chars for other in self._answers)
        if (
            len(self._answers) >= self._limits.max_pending_requests
            or num_chars > self._limits.max_text_chars
        ):
            # Not in its turn: the line is what is full.
            raise BusyError(f"{len(self._answers)} requests of this connection are waiting already")
        self._answers.append(answer)
        self._has_grown.set()
