import asyncio
import logging

import pytest

from tests.protocol.client import WireClient, eventually, listening, types
from tests.support.fakes import FRAME_SAMPLES, FakeSpeechSource
from wyoming_qwen3tts.protocol import connection, response, server, wire
from wyoming_qwen3tts.protocol.backend import VoiceInfo
from wyoming_qwen3tts.protocol.connection import ConnectionOptions
from wyoming_qwen3tts.protocol.server import Listener

PLAIN = ["audio-start", "audio-chunk", "audio-stop"]
STREAM = [*PLAIN, "synthesize-stopped"]


async def test_plain_request_has_one_start_and_one_stop():
    source = FakeSpeechSource()
    async with listening(source) as listener, await WireClient.connect(listener) as client:
        await client.send("synthesize", {"text": "Hi you", "voice": {"name": "ryan"}})
        events = await client.read_until("audio-stop")

    assert types(events) == PLAIN
    assert events[0].data == {"rate": 24_000, "width": 2, "channels": 1, "timestamp": 0}
    payload = b"".join(event.payload or b"" for event in events)
    assert len(payload) == 5 * FRAME_SAMPLES * 2
    timestamps = [event.data["timestamp"] for event in events]
    assert timestamps == [0, 0, 80, 160, 240, 320, 400]
    request, text = source.spoken[0]
    assert (request.voice, text) == ("ryan", "Hi you")


async def test_language_beside_a_name_reaches_the_source():
    source = FakeSpeechSource()
    voice = {"name": "ryan", "language": "de-DE", "speaker": "whisper"}
    async with listening(source) as listener, await WireClient.connect(listener) as client:
        await client.send("synthesize", {"text": "a", "voice": voice, "context": {"room": "bath"}})
        await client.read_until("audio-stop")

    request, _ = source.spoken[0]
    assert (request.voice, request.language, request.speaker) == ("ryan", "de-DE", "whisper")


@pytest.mark.parametrize("voice", [None, {}, {"name": None}])
async def test_no_voice_is_fine(voice):
    source = FakeSpeechSource()
    async with listening(source) as listener, await WireClient.connect(listener) as client:
        await client.send("synthesize", {"text": "a", "voice": voice})
        await client.read_until("audio-stop")
    assert source.spoken[0][0].voice is None


@pytest.mark.parametrize("text", ["", "   ", "\n\n", "\u200b"])
async def test_nothing_to_say_is_a_short_answer(text):
    async with (
        listening(FakeSpeechSource()) as listener,
        await WireClient.connect(listener) as client,
    ):
        await client.send("synthesize", {"text": text})
        assert types(await client.read_until("audio-stop")) == PLAIN
        await client.send("synthesize-start")
        await client.send("synthesize-chunk", {"text": text})
        await client.send("synthesize-stop")
        assert types(await client.read_until("synthesize-stopped")) == STREAM


async def test_speech_starts_before_the_text_has_ended():
    async with (
        listening(FakeSpeechSource()) as listener,
        await WireClient.connect(listener) as client,
    ):
        await client.send("synthesize-start", {"voice": {"name": "vivian"}})
        await client.send("synthesize-chunk", {"text": "Hel"})
        await client.expect("audio-start")
        for _ in range(3):
            await client.expect("audio-chunk")
        await client.send("synthesize-chunk", {"text": "lo"})
        await client.expect("audio-chunk")
        await client.send("synthesize-stop")
        assert types(await client.read_until("synthesize-stopped")) == STREAM[1:]


async def test_what_home_assistant_sends_is_spoken_once():
    source = FakeSpeechSource()
    async with listening(source) as listener, await WireClient.connect(listener) as client:
        for _ in range(2):  # the state is reset: the connection can be used again
            await client.send("synthesize-start", {"voice": {"name": "ryan"}})
            await client.send("synthesize-chunk", {"text": "Good "})
            await client.send("synthesize-chunk", {"text": "day"})
            await client.send("synthesize", {"text": "Good day", "voice": {"name": "ryan"}})
            await client.send("synthesize-stop")
            assert types(await client.read_until("synthesize-stopped")) == STREAM
        await client.send("synthesize", {"text": "plain"})
        assert types(await client.read_until("audio-stop")) == PLAIN
        await client.expect_alive()
    assert [text for _, text in source.spoken] == ["Good day", "Good day", "plain"]


async def test_pipelined_requests_are_spoken_in_order():
    source = FakeSpeechSource()
    async with listening(source) as listener, await WireClient.connect(listener) as client:
        await client.send("synthesize", {"text": "one"})
        await client.send("synthesize-start")
        await client.send("synthesize-chunk", {"text": "two"})
        await client.send("synthesize-stop")
        await client.send("synthesize", {"text": "three"})
        events = [
            *await client.read_until("audio-stop"),
            *await client.read_until("synthesize-stopped"),
            *await client.read_until("audio-stop"),
        ]
    assert types(events) == [*PLAIN, *STREAM, *PLAIN]
    assert [text for _, text in source.spoken] == ["one", "two", "three"]


async def test_describe_and_ping_are_answered_during_synthesis():
    source = FakeSpeechSource(frame_s=0.05)
    async with listening(source) as listener, await WireClient.connect(listener) as client:
        await client.send("synthesize", {"text": "a" * 40})
        await client.expect("audio-start")
        await client.send("describe")
        await client.send("ping", {"text": "x"})
        await client.send("ping")
        events = await client.read_until("pong")
        assert {event.type for event in events} <= {"audio-chunk", "info", "pong"}
        assert events[-1].data == {"text": "x"}
        assert (await client.read_until("pong"))[-1].data == {"text": None}
        assert source.num_active == 1


@pytest.mark.parametrize(
    "event_type", ["select-program", "transcribe", "audio-start", "run-pipeline", "no-such-event"]
)
async def test_other_events_are_dropped(event_type):
    async with (
        listening(FakeSpeechSource()) as listener,
        await WireClient.connect(listener) as client,
    ):
        await client.send(event_type, {"name": "qwen3-tts"})
        await client.send("ping")
        await client.expect("pong")


async def test_info_is_made_anew_for_each_describe():
    source = FakeSpeechSource()
    async with listening(source) as listener, await WireClient.connect(listener) as client:
        for num_voices in (2, 1):
            source.voice_infos = source.voice_infos[:num_voices]
            await client.send("describe")
            voices = (await client.expect("info")).data["tts"][0]["voices"]
            assert len(voices) == 2 * num_voices


async def test_voices_are_listed_by_language_so_that_their_names_carry_it():
    source = FakeSpeechSource(
        voice_infos=[VoiceInfo("ryan", "Ryan", ("de", "en")), VoiceInfo("anna", "Anna", ("fr",))]
    )
    async with listening(source) as listener, await WireClient.connect(listener) as client:
        await client.send("describe")
        voices = (await client.expect("info")).data["tts"][0]["voices"]
    listed = [(voice["name"], voice["languages"], voice["description"]) for voice in voices]
    assert listed == [
        ("ryan-de", ["de"], "Ryan"),
        ("ryan-en", ["en"], "Ryan"),
        ("anna", ["fr"], "Anna"),
    ]


async def test_requests_of_a_connection_share_what_was_spoken_last():
    source = FakeSpeechSource()
    async with listening(source) as listener:
        for _ in range(2):
            async with await WireClient.connect(listener) as client:
                for _ in range(2):
                    await client.send("synthesize", {"text": "Hi"})
                    await client.read_until("audio-stop")
    first, second, other, _ = (request.conversation for request, _ in source.spoken)
    assert first is second
    assert first is not other


async def test_failing_voice_list_is_an_error_and_no_end():
    source = FakeSpeechSource(voices_error=OSError("disk full"))
    async with listening(source) as listener, await WireClient.connect(listener) as client:
        await client.send("describe")
        error = await client.expect("error")
        assert error.data == {"text": "disk full", "code": "OSError"}
        await client.expect_alive()


# Failures


async def test_failure_before_any_audio_sends_none(caplog):
    async with (
        listening(FakeSpeechSource()) as listener,
        await WireClient.connect(listener) as client,
    ):
        await client.send("synthesize", {"text": "a", "voice": {"name": "nobody"}})
        error = await client.expect("error")
        assert error.data == {"text": "there is no voice 'nobody'", "code": "RequestError"}
        await client.send("synthesize", {"text": "ok"})
        assert types(await client.read_until("audio-stop")) == PLAIN
    warnings = [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert len(warnings) == 1


async def test_failed_plain_answer_is_closed_when_the_client_stays_silent(monkeypatch):
    """A client that ignores errors fails at the close and caches nothing."""
    monkeypatch.setattr(connection, "CLOSE_AFTER_ERROR_S", 0.1)
    async with (
        listening(FakeSpeechSource()) as listener,
        await WireClient.connect(listener) as client,
    ):
        await client.send("synthesize", {"text": "Hi FAIL"})
        events = await client.read_to_end()
    assert types(events) == ["audio-start", "audio-chunk", "error"]


async def test_failed_plain_answer_gets_its_stop_when_the_client_goes_on(monkeypatch):
    monkeypatch.setattr(connection, "CLOSE_AFTER_ERROR_S", 0.1)
    async with (
        listening(FakeSpeechSource()) as listener,
        await WireClient.connect(listener) as client,
    ):
        await client.send("synthesize", {"text": "Hi FAIL"})
        assert types(await client.read_until("error")) == ["audio-start", "audio-chunk", "error"]
        await client.send("ping")
        assert types(await client.read_until("pong")) == ["audio-stop", "pong"]
        await asyncio.sleep(0.2)
        await client.expect_alive()


async def test_pipelined_request_after_a_failure_goes_on_and_keeps_the_connection(monkeypatch):
    monkeypatch.setattr(connection, "CLOSE_AFTER_ERROR_S", 0.1)
    async with (
        listening(FakeSpeechSource()) as listener,
        await WireClient.connect(listener) as client,
    ):
        await client.send("synthesize", {"text": "Hi FAIL"})
        await client.send("synthesize", {"text": "Hi"})
        events = await client.read_until("error") + await client.read_until("audio-stop")
        events += await client.read_until("audio-stop")
        assert types(events) == ["audio-start", "audio-chunk", "error", "audio-stop", *PLAIN]
        await asyncio.sleep(0.2)
        await client.expect_alive()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Hi FAIL", ["audio-start", "audio-chunk", "error", "audio-stop", "synthesize-stopped"]),
        ("FAIL", ["error", "synthesize-stopped"]),
    ],
)
async def test_failed_stream_ends_at_once_and_its_rest_is_not_spoken(text, expected, monkeypatch):
    source = FakeSpeechSource()
    monkeypatch.setattr(connection, "CLOSE_AFTER_ERROR_S", 0.05)
    async with listening(source) as listener, await WireClient.connect(listener) as client:
        await client.send("synthesize-start")
        await client.send("synthesize-chunk", {"text": text})
        assert types(await client.read_until("synthesize-stopped")) == expected
        await asyncio.sleep(0.1)
        await client.send("synthesize-chunk", {"text": "more"})
        await client.send("synthesize", {"text": f"{text} more"})
        await client.send("synthesize-stop")
        await client.send("ping")
        await client.expect("pong")  # neither audio nor a second synthesize-stopped before it
        await client.send("synthesize", {"text": "next"})
        assert types(await client.read_until("audio-stop")) == PLAIN
    assert [spoken for _, spoken in source.spoken] == [text, "next"]


async def test_unexpected_exception_without_text_has_text_and_code():
    async with (
        listening(FakeSpeechSource()) as listener,
        await WireClient.connect(listener) as client,
    ):
        await client.send("synthesize", {"text": "CRASH"})
        error = await client.expect("error")
        assert error.data == {"text": "MemoryError", "code": "MemoryError"}
        await client.expect_alive()


async def test_source_that_gives_nothing_is_given_up(monkeypatch):
    monkeypatch.setattr(response, "AUDIO_TIMEOUT_S", 0.1)
    source = FakeSpeechSource(is_stuck=True)
    async with listening(source) as listener, await WireClient.connect(listener) as client:
        await client.send("synthesize", {"text": "a"})
        error = await client.expect("error")
        assert error.data["code"] == "SynthesisError"
        assert source.num_active == 0
        await client.expect_alive()


async def test_waiting_for_text_is_no_reason_to_give_up(monkeypatch):
    monkeypatch.setattr(response, "AUDIO_TIMEOUT_S", 0.1)
    async with (
        listening(FakeSpeechSource()) as listener,
        await WireClient.connect(listener) as client,
    ):
        await client.send("synthesize-start")
        await client.send("synthesize-chunk", {"text": "I am "})
        await asyncio.sleep(0.3)
        await client.send("synthesize-chunk", {"text": "thinking"})
        await client.send("synthesize-stop")
        assert types(await client.read_until("synthesize-stopped")) == STREAM


async def test_text_that_grows_too_long_fails_its_stream():
    source = FakeSpeechSource(frame_s=0.02)
    async with (
        listening(source, max_text_chars=10) as listener,
        await WireClient.connect(listener) as client,
    ):
        await client.send("synthesize-start")
        await client.send("synthesize-chunk", {"text": "abcd "})
        await client.expect("audio-start")
        for _ in range(4):
            await client.send("synthesize-chunk", {"text": "abcd "})
        events = await client.read_until("synthesize-stopped")
        assert types(events)[-3:] == ["error", "audio-stop", "synthesize-stopped"]
        assert source.num_active == 0
        await client.send("synthesize-stop")
        await client.send("synthesize", {"text": "x" * 11})
        assert "10 characters" in (await client.expect("error")).data["text"]
        await client.send("synthesize", {"text": "x" * 10})
        assert types(await client.read_until("audio-stop")) == PLAIN


async def test_too_many_pipelined_requests_are_busy(monkeypatch):
    monkeypatch.setattr(connection, "MAX_PENDING_REQUESTS", 2)
    source = FakeSpeechSource(frame_s=0.02)
    async with listening(source) as listener, await WireClient.connect(listener) as client:
        for _ in range(2):
            await client.send("synthesize", {"text": "abcde"})
        await client.send("synthesize-start")
        events = await client.read_until("synthesize-stopped")
        assert [event.data.get("code") for event in events[-2:]] == ["BusyError", None]
        await client.send("synthesize-stop")
        assert types(await client.read_until("audio-stop") + await client.read_until("audio-stop"))
        await client.expect_alive()


# Clients that go away


@pytest.mark.parametrize("way", ["close", "reset"])
@pytest.mark.parametrize("moment", ["before audio", "during audio", "waiting for text"])
async def test_client_that_goes_away_frees_the_source_at_once(way, moment, caplog):
    source = FakeSpeechSource(frame_s=0.01)
    async with listening(source) as listener:
        client = await WireClient.connect(listener)
        if moment == "waiting for text":
            await client.send("synthesize-start")
        else:
            await client.send("synthesize", {"text": "a" * 1_000})
            if moment == "during audio":
                await client.expect("audio-start")
        await eventually(lambda: source.num_active == 1)
        if way == "close":
            client.writer.close()
        else:
            client.reset()
        await eventually(lambda: source.num_active == 0, within_s=0.5)
        await eventually(lambda: listener.status.num_connected == 0)
        client.writer.close()
    assert source.num_cancelled == 1
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


async def test_client_that_closes_its_sending_half_gets_its_whole_answer():
    source = FakeSpeechSource(frame_s=0.005)
    async with listening(source) as listener, await WireClient.connect(listener) as client:
        await client.send("synthesize", {"text": "one"})
        await client.send("synthesize-start")
        await client.send("synthesize-chunk", {"text": "two"})
        await client.send("synthesize-stop")
        await client.send("describe")
        client.writer.write_eof()
        await asyncio.sleep(0.2)
        others = {"info", "pong"}  # a pong finds out whether the client is there
        events = [event for event in await client.read_to_end() if event.type not in others]
    assert types(events) == [*PLAIN, *STREAM]
    assert source.num_cancelled == 0


@pytest.mark.parametrize("scheme", ["tcp", "unix"])
async def test_client_that_goes_before_its_first_audio_is_not_spoken_for(scheme, tmp_path, caplog):
    """Its end looks like that of a client that closes its sending half and goes on reading."""
    source, path = FakeSpeechSource(is_stuck=True), tmp_path / "tts.sock"
    uri = "tcp://127.0.0.1:0" if scheme == "tcp" else f"unix://{path}"
    async with Listener(uri, ConnectionOptions(source)) as listener:
        if scheme == "tcp":
            client = await WireClient.connect(listener)
        else:
            client = WireClient(*await asyncio.open_unix_connection(path))
        await client.send("synthesize", {"text": "one"})
        await eventually(lambda: source.num_active == 1)
        client.writer.close()
        await eventually(lambda: source.num_active == 0, within_s=1.0)
        await eventually(lambda: listener.status.num_connected == 0)
    assert source.num_cancelled == 1
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


async def test_stream_without_its_end_is_cancelled_at_the_end_of_input():
    source = FakeSpeechSource(frame_s=0.01)
    async with listening(source) as listener, await WireClient.connect(listener) as client:
        await client.send("synthesize-start")
        await client.send("synthesize-chunk", {"text": "a" * 1_000})
        await client.expect("audio-start")
        client.writer.write_eof()
        await eventually(lambda: source.num_active == 0, within_s=0.5)
    assert source.num_cancelled == 1


async def test_client_that_never_reads_is_cut_off(caplog, monkeypatch):
    monkeypatch.setattr(wire, "WRITE_TIMEOUT_S", 0.2)
    source = FakeSpeechSource()
    async with listening(source) as listener:
        client = await WireClient.connect(listener)
        client.writer.transport.pause_reading()
        await client.send("synthesize", {"text": "a" * 100_000})
        await eventually(lambda: source.num_cancelled == 1)
        await eventually(lambda: listener.status.num_connected == 0)
        async with await WireClient.connect(listener) as other:
            await other.send("synthesize", {"text": "ok"})
            assert types(await other.read_until("audio-stop")) == PLAIN
        client.writer.close()
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


async def test_client_that_never_reads_does_not_delay_the_stop(monkeypatch):
    monkeypatch.setattr(connection, "_CLOSE_TIMEOUT_S", 60.0)
    monkeypatch.setattr(server, "ERROR_FLUSH_TIMEOUT_S", 0.1)
    source = FakeSpeechSource()
    async with listening(source) as listener:
        client = await WireClient.connect(listener)
        client.writer.transport.pause_reading()
        await client.send("synthesize", {"text": "a" * 100_000})
        await eventually(lambda: source.num_active == 1)
        async with asyncio.timeout(20):
            await listener.stop(0.1)
        client.writer.transport.abort()


async def test_client_that_floods_describe_and_never_reads_is_cut_off(monkeypatch):
    monkeypatch.setattr(wire, "WRITE_TIMEOUT_S", 0.2)
    async with listening(FakeSpeechSource()) as listener:
        client = await WireClient.connect(listener)
        client.writer.transport.pause_reading()
        client.writer.write(b'{"type":"describe"}\n' * 20_000)
        await eventually(lambda: listener.status.num_connected == 0)
        client.writer.transport.abort()


# Limits


async def test_idle_client_is_sent_away_and_a_busy_one_is_not(monkeypatch):
    monkeypatch.setattr(connection, "IDLE_TIMEOUT_S", 0.1)
    source = FakeSpeechSource(frame_s=0.02)
    async with (
        listening(source) as listener,
        await WireClient.connect(listener) as idle,
        await WireClient.connect(listener) as busy,
    ):
        await busy.send("synthesize", {"text": "a" * 20})
        assert await idle.read() is None
        assert types(await busy.read_until("audio-stop")) == PLAIN


async def test_client_that_is_always_wrong_is_sent_away(monkeypatch):
    monkeypatch.setattr(connection, "MAX_ERRORS", 3)
    async with (
        listening(FakeSpeechSource()) as listener,
        await WireClient.connect(listener) as client,
    ):
        for _ in range(10):
            await client.send("synthesize-stop")
        events = await client.read_to_end()
    assert types(events) == ["error"] * 5
    assert events[-1].data["code"] == "ProtocolError"


async def test_synthesize_start_twice_ends_the_first():
    source = FakeSpeechSource()
    async with listening(source) as listener, await WireClient.connect(listener) as client:
        await client.send("synthesize-start")
        await client.send("synthesize-chunk", {"text": "one"})
        await client.send("synthesize-start")
        await client.send("synthesize-chunk", {"text": "two"})
        await client.send("synthesize-stop")
        first = await client.read_until("synthesize-stopped")
        second = await client.read_until("synthesize-stopped")
    assert types(first) == types(second) == STREAM
    assert [text for _, text in source.spoken] == ["one", "two"]
