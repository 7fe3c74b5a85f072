"""How answers end for the clients of several versions of Home Assistant.

Each reader below waits for exactly what that version waits for, without any time limit, as it
does; a request that fails must fail there too, and never hang or count as complete.
"""

import asyncio

import pytest

from tests.protocol.client import PATIENCE_S, WireClient, listening
from tests.support.fakes import FakeSpeechSource
from wyoming_qwen3tts.protocol import connection, response

FAILED = "failed"


async def read_plain(client: WireClient, *, knows_errors: bool) -> int | str:
    """Return the number of chunks, or FAILED: plain requests of every version."""
    num_chunks = 0
    while (event := await client.read()) is not None:
        if event.type == "error" and knows_errors:
            return FAILED
        if event.type == "audio-stop":
            return num_chunks
        num_chunks += event.type == "audio-chunk"
    return FAILED


async def read_stream(client: WireClient, *, knows_errors: bool) -> int | str:
    """Return the number of chunks, or FAILED: without any audio the conversion fails."""
    num_chunks = 0
    has_header = False
    while (event := await client.read()) is not None:
        if event.type == "error" and knows_errors:
            return FAILED
        has_header |= event.type == "audio-start"
        num_chunks += has_header and event.type == "audio-chunk"
        if event.type == "synthesize-stopped":
            break
    return num_chunks if has_header else FAILED


async def ask_plain(client: WireClient, text: str, voice: str) -> None:
    await client.send("synthesize", {"text": text, "voice": {"name": voice}})


async def ask_stream(client: WireClient, text: str, voice: str) -> None:
    await client.send("synthesize-start", {"voice": {"name": voice}})
    for word in text.split():
        await client.send("synthesize-chunk", {"text": word + " "})
        await asyncio.sleep(0.01)
    await client.send("synthesize", {"text": text, "voice": {"name": voice}})
    await client.send("synthesize-stop")


VERSIONS = {
    "2024.3, plain": (ask_plain, read_plain, False),
    "2025.7, plain": (ask_plain, read_plain, False),
    "2025.7, streaming": (ask_stream, read_stream, False),
    "2026.11, plain": (ask_plain, read_plain, True),
    "2026.11, streaming": (ask_stream, read_stream, True),
}


@pytest.fixture(params=VERSIONS.values(), ids=VERSIONS.keys())
def version(request, monkeypatch):
    monkeypatch.setattr(connection, "CLOSE_AFTER_ERROR_S", 0.2)
    monkeypatch.setattr(response, "AUDIO_TIMEOUT_S", 0.3)
    return request.param


async def converse(version, text: str, voice: str = "ryan", **source) -> int | str:
    ask, read, knows_errors = version
    async with (
        listening(FakeSpeechSource(**source)) as listener,
        await WireClient.connect(listener) as client,
        asyncio.timeout(PATIENCE_S),
    ):
        asking = asyncio.create_task(ask(client, text, voice))
        result = await read(client, knows_errors=knows_errors)
        client.writer.close()
        await asyncio.gather(asking, return_exceptions=True)
        return result


async def test_speech_is_complete(version):
    assert await converse(version, "Good day") == 7


@pytest.mark.parametrize("text", ["", " ", "\n"])
async def test_nothing_to_say_is_a_short_audio_and_no_failure(version, text):
    assert await converse(version, text) == 1


async def test_unknown_voice_fails(version):
    assert await converse(version, "Good day", voice="nobody") == FAILED


async def test_source_that_hangs_fails(version):
    assert await converse(version, "Good day", is_stuck=True) == FAILED


async def test_failure_before_any_audio_fails(version):
    assert await converse(version, "FAIL Good day") == FAILED


async def test_failure_during_audio_ends(version, request):
    result = await converse(version, "Good FAIL day")
    if "2025.7, streaming" in request.node.name:
        # This version takes any end as a complete one once audio has come; nothing can tell it.
        assert result == 4
    else:
        assert result == FAILED
