"""Who may be spoken: as many requests as are allowed, those that wait for text not counted.

A client may open a stream long before a language model has written a word of it, or keep it open
after the last. It costs next to nothing then, and must not keep others from being spoken.
"""

from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from contextlib import contextmanager

from wyoming_qwen3tts.engine.narration import Answer
from wyoming_qwen3tts.errors import BusyError


class Admission:
    """The requests of a server that are open."""

    def __init__(self, max_waiting: int) -> None:
        """Admit at most ``max_waiting`` requests that are spoken or wait to be spoken."""
        self._max_waiting = max_waiting
        self._answers: set[Answer] = set()
        self._num_open = 0

    @property
    def num_open(self) -> int:
        """Requests that were admitted and have not ended, those that wait for text among them."""
        return self._num_open

    @contextmanager
    def request(self) -> Iterator[None]:
        """Keep a place for a request while the context lasts.

        Raises:
            BusyError: There is none.
        """
        self._check()
        self._num_open += 1
        try:
            yield
        finally:
            self._num_open -= 1

    @contextmanager
    def answering(self, answer: Answer) -> Iterator[None]:
        """Look after the answer to an admitted request while the context lasts."""
        self._answers.add(answer)
        try:
            yield
        finally:
            self._answers.remove(answer)

    async def text(self, answer: Answer, text: AsyncIterator[str]) -> AsyncGenerator[str, None]:
        """Yield the text of an answer, which may have given its place away while it was idle.

        Raises:
            BusyError: It has, and there is none left.
        """
        async for piece in text:
            if answer.is_idle:
                self._check()
            yield piece

    def _check(self) -> None:
        num_busy = self._num_open - sum(answer.is_idle for answer in self._answers)
        if num_busy >= self._max_waiting:
            raise BusyError(f"{num_busy} requests are open already; try again later.")
