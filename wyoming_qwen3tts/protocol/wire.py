"""Reads and writes Wyoming events within bounds.

An event is one line of JSON (``type``, optional ``data``, ``data_length``, ``payload_length``),
then ``data_length`` bytes of JSON that are merged over ``data``, then ``payload_length`` raw bytes.
The wyoming package reads without limits and fails on values of the wrong type, so only its encoder
is used.
"""

import asyncio
import io
import json
import reprlib
from typing import Any, Final

from wyoming.event import Event, write_event

from wyoming_qwen3tts.errors import ProtocolError, RequestError

MAX_HEADER_BYTES: Final = 65_536  # as in the wyoming package; also the limit of the stream
MAX_PART_BYTES: Final = 1_048_576  # of the data after the header, and of the payload
EVENT_TIMEOUT_S: Final = 10.0  # for the rest of an event after its first byte
WRITE_TIMEOUT_S: Final = 30.0  # for which a client may leave its events unread


class ClientGoneError(ConnectionError):
    """The client has closed the connection or does not read."""


async def read_event(stream: asyncio.StreamReader) -> Event | None:
    """Wait for the next event; returns it without its payload, None at the end of input.

    Raises:
        ProtocolError: The bytes are not an event, or it is too long or too slow. The stream cannot
            be read any further.
        RequestError: This event is wrong; the next one can be read.
        ClientGoneError: The connection broke.
    """
    try:
        async with asyncio.timeout(None) as limit:
            if not (first := await stream.read(1)):
                return None
            limit.reschedule(asyncio.get_running_loop().time() + EVENT_TIMEOUT_S)
            return await _read_rest(stream, first)
    except asyncio.IncompleteReadError:
        return None
    except OSError as error:
        if limit.expired():
            message = f"an event was begun and not finished within {EVENT_TIMEOUT_S:g} s"
            raise ProtocolError(message) from error
        raise ClientGoneError(str(error)) from error


async def _read_rest(stream: asyncio.StreamReader, first: bytes) -> Event:
    if first not in b"{ \t\r\n":
        raise ProtocolError(f"not a Wyoming event: it begins with {first!r}, not with '{{'")
    try:
        line = first if first == b"\n" else first + await stream.readuntil(b"\n")
    except asyncio.LimitOverrunError as error:
        message = f"the header line is longer than {MAX_HEADER_BYTES} bytes"
        raise ProtocolError(message) from error
    if not line.strip():
        raise RequestError("a blank line is not a Wyoming event")
    header = _load_json(line, "not a Wyoming event: the header line", ProtocolError)
    num_data_bytes = _read_length(header, "data_length")
    num_payload_bytes = _read_length(header, "payload_length")
    body = await stream.readexactly(num_data_bytes)
    await stream.readexactly(num_payload_bytes)  # text-to-speech needs no payload
    # The whole event is consumed: from here on errors concern only this event.
    event_type, data = header.get("type"), header.get("data")
    if not isinstance(event_type, str):
        raise RequestError(f"the type of an event must be a text, not {reprlib.repr(event_type)}")
    what = f"the data of {reprlib.repr(event_type)}"
    if not isinstance(data, dict | None):
        raise RequestError(f"{what} must be an object, not {reprlib.repr(data)}")
    more = _load_json(body, what, RequestError) if body else {}
    return Event(type=event_type, data={**(data or {}), **more})


def _load_json(content: bytes, what: str, error_class: type[RequestError]) -> dict[str, Any]:
    try:
        loaded = json.loads(content.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise error_class(f"{what} is not valid JSON ({str(error)[:100]})") from error
    if not isinstance(loaded, dict):
        raise error_class(f"{what} is not a JSON object")
    return loaded


def _read_length(header: dict[str, Any], key: str) -> int:
    value = header.get(key)
    if value is None:
        return 0
    if type(value) is not int or not 0 <= value <= MAX_PART_BYTES:
        kind = f"a whole number from 0 to {MAX_PART_BYTES}"
        raise ProtocolError(f"{key} must be {kind}, not {reprlib.repr(value)}")
    return value


def encode_event(event: Event) -> bytes:
    """Return an event as it goes over the wire."""
    encoded = io.BytesIO()
    write_event(event, encoded)
    return encoded.getvalue()


class EventWriter:
    """Writes events to a client that may have stopped reading."""

    def __init__(self, stream: asyncio.StreamWriter) -> None:
        self._stream = stream

    async def write(self, event: Event) -> None:
        """Send an event; waits while the client is slow; raises ClientGoneError."""
        if self._stream.is_closing():
            raise ClientGoneError("the connection is closed")
        # In one piece, not by writelines as the wyoming package does: on a lost connection Python
        # 3.12.1 and 3.13.0 leave the descriptor watched, and the next client with that number
        # hangs.
        self._stream.write(encode_event(event))
        try:
            async with asyncio.timeout(WRITE_TIMEOUT_S):
                await self._stream.drain()
        except TimeoutError as error:
            raise ClientGoneError(f"the client read nothing for {WRITE_TIMEOUT_S:g} s") from error
        except OSError as error:
            raise ClientGoneError(str(error)) from error
