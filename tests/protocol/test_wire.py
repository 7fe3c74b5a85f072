import asyncio
import itertools
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from wyoming.event import Event

from wyoming_qwen3tts.errors import ProtocolError, RequestError
from wyoming_qwen3tts.protocol import wire
from wyoming_qwen3tts.protocol.wire import ClientGoneError, EventWriter, read_event

JSON_VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_subnormal=False)
    | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=8,
)
WORDS = st.sampled_from(["text", "voice", "name", "x"])
DATA = st.dictionaries(WORDS, st.text(max_size=30), max_size=3)


def encode(event_type: str, inline: dict, body: dict, payload: bytes) -> bytes:
    header: dict = {"type": event_type, "payload_length": len(payload)}
    if inline:
        header["data"] = inline
    data = json.dumps(body).encode() if body else b""
    if data:
        header["data_length"] = len(data)
    return json.dumps(header).encode() + b"\n" + data + payload


EVENTS = st.tuples(st.text(max_size=10), DATA, DATA, st.binary(max_size=50))


def read_all(pieces: list[bytes]) -> list[Event | str]:
    """Return the events, and the code of an error where one stands."""

    async def run() -> list[Event | str]:
        stream = asyncio.StreamReader(wire.MAX_HEADER_BYTES)
        found: list[Event | str] = []
        for piece in pieces:
            stream.feed_data(piece)
        stream.feed_eof()
        while True:
            try:
                event = await read_event(stream)
            except ProtocolError as error:
                return [*found, type(error).__name__]
            except RequestError as error:
                found.append(type(error).__name__)
                continue
            if event is None:
                return found
            found.append(event)

    return asyncio.run(run())


@settings(max_examples=60, deadline=None)
@given(st.lists(EVENTS, max_size=4), st.data())
def test_any_cut_gives_the_same_events(events, data):
    stream = b"".join(encode(*event) for event in events)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=8)))
    bounds = [0, *cuts, len(stream)]
    pieces = [stream[a:b] for a, b in itertools.pairwise(bounds)]
    expected = [Event(kind, {**inline, **body}) for kind, inline, body, _ in events]
    assert read_all(pieces) == read_all([stream]) == expected


@settings(max_examples=60, deadline=None)
@given(st.lists(EVENTS, min_size=1, max_size=3), st.data())
def test_damaged_bytes_raise_nothing_unexpected(events, data):
    stream = bytearray(b"".join(encode(*event) for event in events))
    for _ in range(data.draw(st.integers(1, 5))):
        stream[data.draw(st.integers(0, len(stream) - 1))] = data.draw(st.integers(0, 255))
    found = read_all([bytes(stream)])
    assert all(
        isinstance(item, Event) or item in {"ProtocolError", "RequestError"} for item in found
    )


@settings(max_examples=60, deadline=None)
@given(
    st.dictionaries(st.sampled_from(["type", "data", "data_length", "payload_length"]), JSON_VALUES)
)
def test_header_of_any_values_raises_nothing_unexpected(header):
    found = read_all([json.dumps(header).encode() + b"\n"])
    assert all(
        isinstance(item, Event) or item in {"ProtocolError", "RequestError"} for item in found
    )


@settings(max_examples=60, deadline=None)
@given(st.binary(max_size=300))
def test_any_bytes_raise_nothing_unexpected(sent):
    found = read_all([sent])
    assert all(
        isinstance(item, Event) or item in {"ProtocolError", "RequestError"} for item in found
    )


def test_events_after_a_wrong_one_are_read():
    stream = encode("ping", {}, {}, b"")
    assert read_all([b'{"type": 5, "data_length": 2}\n{}' + stream]) == [
        "RequestError",
        Event("ping", {}),
    ]


def test_limits_are_inclusive():
    line = b'{"type": "ping", "x": "%s"}'
    fitting = line % (b"x" * (wire.MAX_HEADER_BYTES - len(line) + 2))
    assert read_all([fitting + b"\n"]) == [Event("ping", {})]
    assert read_all([b" " * 2 + fitting + b"\n"]) == ["ProtocolError"]
    largest = wire.MAX_PART_BYTES
    header = b'{"type":"p","payload_length":%d}\n'
    assert read_all([header % largest + b"x" * largest]) == [Event("p", {})]
    assert read_all([header % (largest + 1)]) == ["ProtocolError"]


def test_a_blank_line_is_an_error_and_costs_one():
    ping = encode("ping", {}, {}, b"")
    assert read_all([b"\n \r\n" + ping]) == ["RequestError", "RequestError", Event("ping", {})]


def test_event_is_written_in_one_piece_and_not_to_a_closed_connection():
    class Stream:
        is_closed = False

        def __init__(self) -> None:
            self.written: list[bytes] = []

        def is_closing(self) -> bool:
            return self.is_closed

        def write(self, data: bytes) -> None:
            self.written.append(data)

        async def drain(self) -> None:
            return

    stream = Stream()
    writer = EventWriter(stream)
    asyncio.run(writer.write(Event("pong", {"text": "ä"}, b"\0\1")))
    (written,) = stream.written
    assert read_all([written]) == [Event("pong", {"text": "ä"})]
    assert written.endswith(b"\0\1")
    stream.is_closed = True
    with pytest.raises(ClientGoneError):
        asyncio.run(writer.write(Event("pong")))
    assert len(stream.written) == 1
