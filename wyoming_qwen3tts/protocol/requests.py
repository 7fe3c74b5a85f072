"""Reads Wyoming synthesize events into :class:`SpeechRequest`, with every field checked.

The data is read directly: the wyoming classes drop the language where there is a name and the
speaker where there is none, and raise anything from KeyError to AttributeError on wrong types.
"""

import asyncio
import reprlib
from typing import Any, Final

from wyoming.event import Event

from wyoming_qwen3tts.errors import RequestError
from wyoming_qwen3tts.protocol.backend import SpeechRequest

MAX_NAME_CHARS: Final = 2_000
"""Limit of a voice name, a language and a speaker; a speaker may be an instruction."""


def read_request(event: Event) -> SpeechRequest:
    """Return the voice that a ``synthesize`` or ``synthesize-start`` event asks for.

    Raises:
        RequestError: A field has the wrong type or is too long.
    """
    voice = event.data.get("voice")
    if voice is None:
        voice = {}
    if not isinstance(voice, dict):
        raise RequestError(
            f"voice must be an object with name, language and speaker, not {reprlib.repr(voice)}"
        )
    context = event.data.get("context")
    if context is not None and not isinstance(context, dict):
        raise RequestError(f"context must be an object, not {reprlib.repr(context)}")
    return SpeechRequest(
        voice=_read_name(voice, "name"),
        language=_read_name(voice, "language"),
        speaker=_read_name(voice, "speaker"),
    )


def read_text(event: Event) -> str:
    """Return the text of an event.

    Raises:
        RequestError: The event has no text.
    """
    text = event.data.get("text")
    if not isinstance(text, str):
        raise RequestError(f"the text of {event.type} must be a text, not {reprlib.repr(text)}")
    return without_surrogates(text)


def without_surrogates(text: str) -> str:
    r"""Return text that can be encoded: pairs of surrogates joined, lone ones replaced.

    JSON may carry lone surrogates (``"\ud800"``); neither a tokenizer nor UTF-8 accepts them.
    """
    if text.isascii():
        return text
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


class IncomingText:
    """The text of one request while it arrives: an asynchronous iterator over its pieces.

    Text that has arrived since the last read comes as one piece. For one reader and one writer in
    the same event loop.
    """

    def __init__(self, max_chars: int) -> None:
        self._max_chars = max_chars
        self._num_chars = 0
        self._pieces: list[str] = []
        self._changed = asyncio.Event()
        self.has_ended = False
        """Whether the text is complete."""

    def add(self, piece: str) -> None:
        """Append text.

        Raises:
            RequestError: The whole text is too long.
        """
        self._num_chars += len(piece)
        if self._num_chars > self._max_chars:
            raise RequestError(
                f"the text has more than {self._max_chars} characters; send it in several requests"
            )
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


def _read_name(voice: dict[str, Any], key: str) -> str | None:
    value = voice.get(key)
    if value is None:
        return None
    if not isinstance(value, str):
        raise RequestError(f"the {key} of a voice must be a text, not {reprlib.repr(value)}")
    if len(value) > MAX_NAME_CHARS:
        raise RequestError(
            f"the {key} of a voice has {len(value)} characters; the limit is {MAX_NAME_CHARS}"
        )
    return without_surrogates(value)
