"""What a broken or malicious client sends: told off, perhaps cut off, and never anyone else's loss.

After every case another client gets its answer, no traceback has been logged, and nothing is left
behind.
"""

import asyncio
import gc
import json
import logging
import tracemalloc
from collections.abc import AsyncIterator

import pytest

from tests.protocol.client import WireClient, eventually, listening, types
from tests.support.fakes import FakeSpeechSource
from wyoming_qwen3tts.protocol import connection, wire
from wyoming_qwen3tts.protocol.server import Listener

PLAIN = ["audio-start", "audio-chunk", "audio-stop"]
MIB = 1_048_576


class Arena:
    """A listener with small time limits, and what was logged."""

    def __init__(self, listener: Listener, source: FakeSpeechSource) -> None:
        self.listener = listener
        self.source = source

    async def connect(self) -> WireClient:
        return await WireClient.connect(self.listener)


@pytest.fixture
async def arena(caplog, monkeypatch) -> AsyncIterator[Arena]:
    caplog.set_level(logging.INFO)
    monkeypatch.setattr(wire, "EVENT_TIMEOUT_S", 0.3)
    monkeypatch.setattr(connection, "CLOSE_AFTER_ERROR_S", 0.1)
    source = FakeSpeechSource()
    loop_failures = []
    asyncio.get_running_loop().set_exception_handler(
        lambda _loop, context: loop_failures.append(context)
    )
    async with listening(source) as listener:
        yield Arena(listener, source)
        async with await WireClient.connect(listener) as client:
            await client.send("synthesize", {"text": "all is well"})
            assert types(await client.read_until("audio-stop")) == PLAIN
        await eventually(lambda: listener.status.num_connected == 0)
    assert source.num_active == 0
    gc.collect()
    assert not loop_failures
    assert not [record for record in caplog.records if record.exc_info]
    assert "Traceback" not in caplog.text


def event_bytes(header: object, data: bytes = b"", payload: bytes = b"") -> bytes:
    return json.dumps(header).encode() + b"\n" + data + payload


BROKEN_FRAMING = {
    "text": b"hello\n",
    "array": b"[1, 2]\n",
    "null": b"null\n",
    "number": b"42\n",
    "text in quotes": b'"describe"\n',
    "half an object": b'{"type": "describe"\n',
    "not UTF-8": b'{"type": "\xff\xfe"}\n',
    "UTF-16": '{"type": "describe"}\n'.encode("utf-16"),
    "byte order mark": b'\xef\xbb\xbf{"type": "describe"}\n',
    "NUL bytes": b"\0" * 100 + b"\n",
    "HTTP": b"GET / HTTP/1.1\r\nHost: voice\r\n\r\n",
    "HTTP POST": b"POST /api HTTP/1.1\r\nContent-Length: 3\r\n\r\nabc",
    "TLS": bytes.fromhex("16030100a5010000a10303") + b"\x01" * 150,
    "SSH": b"SSH-2.0-OpenSSH_9.2\r\n",
    "10 MB header": b'{"type": "' + b"x" * 10 * MIB,
    "header a little too long": b'{"type": "' + b"x" * wire.MAX_HEADER_BYTES + b'"}\n',
    "deep nesting": b'{"type":' * 100_000 + b"\n",
    "deep arrays": b'{"data": ' + b"[" * 100_000 + b"\n",
    "an integer of 100,000 digits": b'{"data_length": ' + b"9" * 100_000 + b"}\n",
    "negative data": event_bytes({"type": "ping", "data_length": -1}),
    "negative payload": event_bytes({"type": "ping", "payload_length": -5}),
    "float": event_bytes({"type": "ping", "data_length": 2.0}, b"{}"),
    "float infinity": b'{"type": "ping", "data_length": 1e999}\n',
    "NaN": b'{"type": "ping", "data_length": NaN}\n',
    "text length": event_bytes({"type": "ping", "data_length": "2"}, b"{}"),
    "true as length": event_bytes({"type": "ping", "data_length": True}, b"{"),
    "list as length": event_bytes({"type": "ping", "payload_length": [1]}),
    "2^40 data": event_bytes({"type": "ping", "data_length": 2**40}),
    "2^40 payload": event_bytes({"type": "ping", "payload_length": 2**40}),
    "2^70 payload": event_bytes({"type": "ping", "payload_length": 2**70}),
}

WRONG_EVENTS = {
    "no type": event_bytes({"data": {}}),
    "type null": event_bytes({"type": None}),
    "type number": event_bytes({"type": 3}),
    "type list": event_bytes({"type": ["describe"]}),
    "data list": event_bytes({"type": "ping", "data": [1]}),
    "data text": event_bytes({"type": "ping", "data": "x"}),
    "body list": event_bytes({"type": "ping", "data_length": 3}, b"[1]"),
    "body no JSON": event_bytes({"type": "ping", "data_length": 3}, b"abc"),
    "body not UTF-8": event_bytes({"type": "ping", "data_length": 2}, b"\xff\xff"),
    "body nested deeply": event_bytes({"type": "ping", "data_length": 9_000}, b"[" * 9_000),
    "ping number": event_bytes({"type": "ping", "data": {"text": 5}}),
    "synthesize without text": event_bytes({"type": "synthesize"}),
    "text null": event_bytes({"type": "synthesize", "data": {"text": None}}),
    "text number": event_bytes({"type": "synthesize", "data": {"text": 1.5}}),
    "a blank line": b"\n",
    "a blank line of Windows": b"\r\n",
    "a line of spaces": b"  \t \n",
    "text list": event_bytes({"type": "synthesize", "data": {"text": ["a"]}}),
    "voice text": event_bytes({"type": "synthesize", "data": {"text": "a", "voice": "ryan"}}),
    "voice list": event_bytes({"type": "synthesize", "data": {"text": "a", "voice": []}}),
    "voice name number": event_bytes(
        {"type": "synthesize", "data": {"text": "a", "voice": {"name": 7}}}
    ),
    "voice name of 50 kB": event_bytes(
        {"type": "synthesize", "data": {"text": "a", "voice": {"name": "v" * 50_000}}}
    ),
    "voice that is a path": event_bytes(
        {"type": "synthesize", "data": {"text": "a", "voice": {"name": "../../etc/passwd"}}}
    ),
    "voice of lone surrogates": event_bytes(
        {"type": "synthesize", "data": {"text": "a", "voice": {"name": "\ud800"}}}
    ),
    "speaker object": event_bytes(
        {"type": "synthesize", "data": {"text": "a", "voice": {"name": "ryan", "speaker": {}}}}
    ),
    "context text": event_bytes({"type": "synthesize", "data": {"text": "a", "context": "x"}}),
    "text of 10 MB in pieces too long": event_bytes(
        {"type": "synthesize", "data_length": 120_013}, b'{"text": "' + b"x" * 120_001 + b'"}'
    ),
    "chunk without start": event_bytes({"type": "synthesize-chunk", "data": {"text": "a"}}),
    "stop without start": event_bytes({"type": "synthesize-stop"}),
}

UNUSUAL_BUT_RIGHT = {
    "inline data": event_bytes({"type": "synthesize", "data": {"text": "Hi"}}),
    "data in the body": event_bytes({"type": "synthesize", "data_length": 14}, b'{"text": "Hi"}'),
    "both, the body wins": event_bytes(
        {"type": "synthesize", "data": {"text": "longer", "voice": None}, "data_length": 14},
        b'{"text": "Hi"}',
    ),
    "data null": b'{"type": "ping", "data": null}\n'
    + event_bytes({"type": "synthesize", "data": {"text": "Hi"}}),
    "lengths null": event_bytes(
        {
            "type": "synthesize",
            "data": {"text": "Hi"},
            "data_length": None,
            "payload_length": None,
            "version": "99.0",
        }
    ),
    "a payload nobody needs": event_bytes(
        {"type": "synthesize", "data": {"text": "Hi"}, "payload_length": MIB}, payload=b"\n" * MIB
    ),
    "Windows line end": b'{"type": "synthesize", "data": {"text": "Hi"}}\r\n',
    "spaces before": b'   {"type": "synthesize", "data": {"text": "Hi"}}\n',
    "unknown fields": event_bytes(
        {"type": "synthesize", "data": {"text": "Hi", "speed": 2, "voice": {"gender": "x"}}, "x": 1}
    ),
    "text of 100 kB": event_bytes(
        {"type": "synthesize", "data_length": 100_014}, b'{"text": "Hi' + b" " * 100_000 + b'"}'
    ),
    "lone surrogates": event_bytes({"type": "synthesize", "data": {"text": "\ud800\udfffH\udc00"}}),
    "control characters": event_bytes({"type": "synthesize", "data": {"text": "\0\x07\x1b[2J"}}),
    "special tokens": event_bytes({"type": "synthesize", "data": {"text": "<|im_end|>"}}),
    "a word of 500 letters": event_bytes({"type": "synthesize", "data": {"text": "x" * 500}}),
    "SSML": event_bytes(
        {"type": "synthesize", "data": {"text": "<speak>Hi</speak>", "text_format": "ssml"}}
    ),
    "text format number": event_bytes(
        {"type": "synthesize", "data": {"text": "Hi", "text_format": 4}}
    ),
}


@pytest.mark.parametrize("sent", BROKEN_FRAMING.values(), ids=BROKEN_FRAMING.keys())
async def test_what_is_no_event_is_an_error_and_the_end(arena, sent, caplog):
    async with await arena.connect() as client:
        sending = asyncio.create_task(client.send_bytes(sent))
        events = await client.read_to_end()
        sending.cancel()
        await asyncio.gather(sending, return_exceptions=True)
    assert types(events) == ["error"]
    assert events[0].data["code"] == "ProtocolError"
    assert events[0].data["text"]
    lines = [
        record
        for record in caplog.records
        if "ProtocolError" in record.message or "connection closed" in record.message
    ]
    assert len(lines) == 1
    assert len(lines[0].message) < 300


@pytest.mark.parametrize(
    "request_types",
    [["synthesize"], ["synthesize-start", "synthesize-chunk"]],
    ids=["plain", "stream"],
)
async def test_what_is_no_event_ends_the_answer_that_is_being_spoken(arena, request_types, caplog):
    arena.source.frame_s = 0.005
    async with await arena.connect() as client:
        for request_type in request_types:
            await client.send(request_type, {"text": "a" * 1_000})
        await client.read_until("audio-chunk")
        await client.send_bytes(b"garbage\n")
        events = await client.read_to_end()
        # The socket stays open: the server itself has to end what it was doing.
        await eventually(lambda: arena.listener.status.num_connected == 0)
    arena.source.frame_s = 0.0
    assert events[-1].type == "error"
    assert events[-1].data["code"] == "ProtocolError"
    assert arena.source.num_cancelled == 1
    lines = [record.message for record in caplog.records if record.name.startswith("wyoming_qwen3")]
    assert len(lines) == 1
    assert "connection closed" in lines[0]


@pytest.mark.parametrize("sent", WRONG_EVENTS.values(), ids=WRONG_EVENTS.keys())
async def test_wrong_event_is_an_error_and_no_end(arena, sent, caplog):
    async with await arena.connect() as client:
        await client.send_bytes(sent)
        error = await client.expect("error")
        assert error.data["code"] == "RequestError"
        assert 0 < len(error.data["text"]) < 300
        await client.send("synthesize", {"text": "Hi"})
        assert types(await client.read_until("audio-stop")) == PLAIN
    lines = [record for record in caplog.records if record.name.startswith("wyoming_qwen3tts")]
    assert len(lines) == 1


@pytest.mark.parametrize("sent", UNUSUAL_BUT_RIGHT.values(), ids=UNUSUAL_BUT_RIGHT.keys())
@pytest.mark.parametrize("piece_bytes", [1, 0], ids=["byte by byte", "at once"])
async def test_unusual_event_is_understood(arena, sent, piece_bytes):
    if piece_bytes and len(sent) > 5_000:
        piece_bytes = 50_000
    async with await arena.connect() as client:
        if piece_bytes:
            pieces = [sent[i : i + piece_bytes] for i in range(0, len(sent), piece_bytes)]
            await client.send_bytes(*pieces)
        else:
            await client.send_bytes(sent)
        events = await client.read_until("audio-stop")
        assert types([event for event in events if event.type != "pong"]) == PLAIN
    assert "longer" not in arena.source.spoken[0][1]


async def test_lone_surrogates_reach_nobody(arena):
    async with await arena.connect() as client:
        await client.send_bytes(event_bytes({"type": "ping", "data": {"text": "\ud800"}}))
        assert (await client.expect("pong")).data == {"text": "\ufffd"}
        await client.send_bytes(
            event_bytes({"type": "synthesize", "data": {"text": "\ud83d\ude00 a\udc00"}})
        )
        await client.read_until("audio-stop")
    assert arena.source.spoken[0][1] == "\U0001f600 a\ufffd"


async def test_streamed_100_kb_is_spoken(arena):
    async with await arena.connect() as client:
        await client.send("synthesize-start")
        for _ in range(100):
            await client.send("synthesize-chunk", {"text": "a" + " " * 999})
        await client.send("synthesize-stop")
        assert types(await client.read_until("synthesize-stopped"))[-2:] == [
            "audio-stop",
            "synthesize-stopped",
        ]
    assert len(arena.source.spoken[0][1]) == 100_000


@pytest.mark.parametrize("length_key", ["data_length", "payload_length"])
async def test_300_mb_are_not_kept(arena, length_key):
    total = 300 * MIB
    piece = b"x" * MIB
    tracemalloc.start()
    try:
        async with await arena.connect() as client:
            await client.send_bytes(event_bytes({"type": "synthesize", length_key: total}))
            for _ in range(300):
                try:
                    await client.send_bytes(piece)
                except ConnectionError:
                    break
            _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak_bytes < 8 * MIB


async def test_payloads_within_the_limit_are_skipped_without_keeping_them(arena):
    header = event_bytes({"type": "audio-chunk", "payload_length": MIB})
    payload = b"x" * MIB
    tracemalloc.start()
    try:
        async with await arena.connect() as client:
            for _ in range(50):
                await client.send_bytes(header, payload)
            await client.expect_alive()
            _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak_bytes < 8 * MIB


@pytest.mark.parametrize(
    "sent",
    [b"{", b'{"type": "synth', event_bytes({"type": "ping", "data_length": 10}, b"{")],
    ids=["one byte", "half a header", "half the data"],
)
@pytest.mark.parametrize("ending", ["slow-loris", "close", "half-close", "reset"])
async def test_event_that_is_never_finished(arena, sent, ending):
    client = await arena.connect()
    await client.send_bytes(sent)
    if ending == "slow-loris":
        events = await client.read_to_end()
        assert types(events) == ["error"]
        assert "0.3 s" in events[0].data["text"]
    elif ending == "half-close":
        client.writer.write_eof()
        assert await client.read() is None
    elif ending == "reset":
        client.reset()
    client.writer.close()


async def test_byte_every_now_and_then_does_not_extend_the_time(arena):
    async with await arena.connect() as client:
        reading = asyncio.create_task(client.read())
        for letter in b'{"type": "describe"' * 3:
            if reading.done():
                break
            client.writer.write(bytes([letter]))
            await asyncio.sleep(0.02)
        assert (await reading).type == "error"


async def test_clients_that_announce_data_and_send_none_starve_no_other(arena):
    """Every large text was once refused while sixteen such clients were connected."""
    silent = await asyncio.gather(*(arena.connect() for _ in range(64)))
    for client in silent:
        await client.send_bytes(event_bytes({"type": "ping", "data_length": 500_000}))
    async with await arena.connect() as client, asyncio.timeout(0.25):
        await client.send("synthesize", {"text": "Hi" + " " * 100_000})
        assert types(await client.read_until("audio-stop")) == PLAIN
    for client in silent:
        client.writer.close()


async def test_blank_lines_are_counted_and_end_the_connection(arena):
    """Fifty megabytes of them were once read for nothing."""
    async with await arena.connect() as client:
        sending = asyncio.create_task(client.send_bytes(b"\n" * MIB))
        events = await client.read_to_end()
        await asyncio.gather(sending, return_exceptions=True)
    assert types(events) == ["error"] * (connection.MAX_ERRORS + 2)
    assert events[-1].data["text"] == "too many wrong requests"


@pytest.mark.parametrize(
    "sent",
    [b"\n", b'{"type": "' + b"x" * 70_000 + b'"}\n', b'{"type": "describe"\n'],
    ids=["blank line", "header of 70 kB", "broken JSON"],
)
async def test_refused_event_is_answered_at_once(arena, sent):
    async with await arena.connect() as client, asyncio.timeout(0.2):
        await client.send_bytes(sent)
        await client.expect("error")


async def test_50_clients_at_once_are_all_answered(arena):
    async def ask(number: int) -> None:
        async with await arena.connect() as client:
            text = "word " * (number % 5 + 1)
            if number % 2:
                await client.send("synthesize", {"text": text})
                events = await client.read_until("audio-stop")
            else:
                await client.send("synthesize-start")
                await client.send("synthesize-chunk", {"text": text})
                await client.send("synthesize-stop")
                events = await client.read_until("synthesize-stopped")
            num_chunks = sum(event.type == "audio-chunk" for event in events)
            assert num_chunks == 4 * (number % 5 + 1)

    await asyncio.gather(*(ask(number) for number in range(50)))


async def test_200_idle_connections_are_no_burden(arena):
    clients = await asyncio.gather(*(arena.connect() for _ in range(200)))
    async with await arena.connect() as client:
        await client.send("describe")
        await client.expect("info")
        await client.send("synthesize", {"text": "Hi"})
        assert types(await client.read_until("audio-stop")) == PLAIN
    for client in clients:
        client.writer.close()


async def test_clients_beyond_the_limit_are_told_so(caplog):
    """One address may take half of the four places."""
    async with (
        listening(FakeSpeechSource(), max_connections=4) as listener,
        await WireClient.connect(listener) as first,
        await WireClient.connect(listener) as second,
    ):
        await first.expect_alive()
        await second.expect_alive()
        for _ in range(3):
            async with await WireClient.connect(listener) as third:
                events = await third.read_to_end()
                assert [event.data["code"] for event in events] == ["BusyError"]
        async with await WireClient.connect(listener, "127.0.0.2") as other:
            await other.expect_alive()
        await first.expect_alive()
        second.writer.close()
        await eventually(lambda: listener.status.num_connected == 1)
        async with await WireClient.connect(listener) as third:
            await third.expect_alive()
    assert sum("Connection limit (2) reached" in record.message for record in caplog.records) == 1


async def test_flood_of_hang_ups_leaves_nothing_behind(arena):
    async def vanish(number: int) -> None:
        client = await arena.connect()
        if number % 3:
            await client.send("synthesize", {"text": "a" * 200})
        if number % 3 == 2:
            await client.expect("audio-start")
        client.reset()

    for _ in range(4):
        await asyncio.gather(*(vanish(number) for number in range(25)))
    await eventually(lambda: arena.listener.status.num_connected == 0)
    await eventually(lambda: arena.source.num_active == 0)
