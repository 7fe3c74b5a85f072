"""Large events cost other clients next to nothing, and no memory once they were understood."""

import asyncio
import json
import time
import tracemalloc
from contextlib import AsyncExitStack

import pytest

from tests.protocol.client import WireClient, eventually, listening
from tests.support.fakes import FakeSpeechSource
from wyoming_qwen3tts.protocol.large_events import LARGE_BYTES, LargeEvents
from wyoming_qwen3tts.protocol.limits import ConnectionLimits
from wyoming_qwen3tts.protocol.throttle import Throttle

LIMITS = ConnectionLimits()
BODIES = {
    "lists": b'{"x": [' + b",".join([b"[]"] * 340_000) + b"]}",
    "keys": json.dumps({f"k{number}": number for number in range(60_000)}).encode(),
    "escapes": b'{"text": "' + b"\\u00e9" * 170_000 + b'"}',
}
MIB = 2**20


def event_of(event_type: str, body: bytes) -> bytes:
    return json.dumps({"type": event_type, "data_length": len(body)}).encode() + b"\n" + body


async def describe_s(listener) -> float:
    started_s = time.monotonic()
    async with await WireClient.connect(listener) as client:
        await client.send("describe")
        await client.expect("info")
    return time.monotonic() - started_s


@pytest.mark.parametrize("body", BODIES.values(), ids=BODIES.keys())
async def test_many_clients_of_large_events_hold_nobody_up(body):
    sent = event_of("unknown", body)

    async def attack(listener) -> None:
        while True:  # each time as a new client: no throttle knows it
            async with await WireClient.connect(listener) as client:
                await client.send_bytes(sent)
                await client.send("ping")
                await client.read()

    async with listening(FakeSpeechSource(), LIMITS) as listener:
        attackers = [asyncio.create_task(attack(listener)) for _ in range(30)]
        waits_s = []
        for _ in range(10):
            await asyncio.sleep(0.05)
            waits_s.append(await describe_s(listener))
        for attacker in attackers:
            attacker.cancel()
        await asyncio.gather(*attackers, return_exceptions=True)
    assert max(waits_s) < 0.7
    assert sorted(waits_s)[5] < 0.2


@pytest.mark.parametrize("event_type", ["unknown", "describe", "ping", "synthesize"])
async def test_large_events_are_not_kept(event_type, monkeypatch):
    """Not by clients that go on sending nothing, nor by those that do not read the answer."""
    body = b'{"x": [' + b",".join([b"[]"] * 60_000) + b"]}"  # four megabytes once it is loaded
    num_loaded = 0

    async def load(events, content):
        nonlocal num_loaded
        loaded = await load_as_ever(events, content)
        num_loaded += len(content) > LARGE_BYTES
        return loaded

    load_as_ever = LargeEvents.load
    monkeypatch.setattr(LargeEvents, "load", load)
    async with listening(FakeSpeechSource(), LIMITS) as listener, AsyncExitStack() as stack:
        tracemalloc.start()
        stack.callback(tracemalloc.stop)
        for _ in range(5):
            client = await stack.enter_async_context(await WireClient.connect(listener))
            stack.callback(client.writer.transport.abort)
            client.writer.transport.pause_reading()
            await client.send_bytes(event_of(event_type, body))
        await eventually(lambda: num_loaded == 5, 20.0)
        await asyncio.sleep(0.1)
        now_bytes, _ = tracemalloc.get_traced_memory()
    assert now_bytes < 3 * MIB


async def test_a_large_text_is_spoken_as_ever():
    source = FakeSpeechSource()
    text = "a" + " " * 100_000
    async with listening(source, LIMITS) as listener, await WireClient.connect(listener) as client:
        for _ in range(3):
            await client.send("synthesize", {"text": text})
            await client.read_until("audio-stop")
    assert [spoken for _, spoken in source.spoken] == [text] * 3


async def test_what_is_large_waits_for_its_turn_and_what_is_not_does_not():
    events = LargeEvents()
    small, large = b"[1]", b"[" + b" " * LARGE_BYTES + b"2]"
    assert await events.load(large) == [2]
    waiting = asyncio.create_task(events.load(large))
    await asyncio.sleep(0)
    assert not waiting.done()
    assert await events.load(small) == [1]
    assert await waiting == [2]
    with pytest.raises(ValueError, match="Expecting"):
        await events.load(large[:-1])
    assert await asyncio.wait_for(events.load(large), 5.0) == [2]


async def test_places_are_few_and_given_back():
    events = LargeEvents()
    inside, may_leave = [], asyncio.Event()

    async def take(num_bytes) -> None:
        async with events.place(num_bytes):
            inside.append(num_bytes)
            await may_leave.wait()

    tasks = [asyncio.create_task(take(LARGE_BYTES + 1)) for _ in range(40)]
    await asyncio.sleep(0.01)
    assert len(inside) == 16
    small = asyncio.create_task(take(LARGE_BYTES))
    await asyncio.sleep(0.01)
    assert len(inside) == 17
    may_leave.set()
    await asyncio.gather(small, *tasks)
    assert len(inside) == 41


async def test_kilobytes_count_as_events():
    throttle = Throttle(100)
    loop = asyncio.get_running_loop()
    started_s = loop.time()
    await throttle.wait()
    throttle.spend(110.0)
    assert loop.time() - started_s < 0.05
    await throttle.wait()
    assert 0.08 < loop.time() - started_s < 1.0
