"""What one client does leaves places and lanes to others, above all while its text is to come."""

import asyncio
import shutil
from contextlib import AsyncExitStack, aclosing

import pytest

from tests.conftest import NUM_THREADS
from tests.protocol.client import WireClient, eventually
from wyoming_qwen3tts.config import Config
from wyoming_qwen3tts.engine import narration
from wyoming_qwen3tts.engine.engine import open_engine
from wyoming_qwen3tts.errors import BusyError
from wyoming_qwen3tts.protocol.backend import SpeechRequest
from wyoming_qwen3tts.protocol.connection import ConnectionOptions
from wyoming_qwen3tts.protocol.server import Listener
from wyoming_qwen3tts.synthesis.utterance import Utterance

REQUEST = SpeechRequest("ryan")
SENTENCE = "Hello there, this is a sentence of some length. And this "


@pytest.fixture
def serve(tiny_bundle, tmp_path, monkeypatch):
    """Return a function that starts a server which waits for text only for a moment."""
    monkeypatch.setattr(narration, "FLUSH_AFTER_S", 0.02)
    monkeypatch.setattr(narration, "OPEN_UTTERANCE_TIMEOUT_S", 0.1)
    source = tiny_bundle("0.6B-custom_voice")
    shutil.copytree(source, tmp_path / source.parent.name / source.name)

    def start(**settings):
        config = Config(data_dirs=(str(tmp_path),), threads=NUM_THREADS, seed=1, **settings)
        return open_engine(config)

    return start


class SlowStream:
    """A client whose text comes when it is told to; it listens all the while."""

    def __init__(self, source):
        self.source = source
        self.audio_s = 0.0
        self._text = asyncio.Queue()
        self.listening = asyncio.create_task(self._listen())

    async def _pieces(self):
        while (piece := await self._text.get()) is not None:
            yield piece

    async def _listen(self):
        async with aclosing(self.source.stream(REQUEST, self._pieces())) as chunks:
            async for chunk in chunks:
                self.audio_s += chunk.duration_s

    def say(self, *pieces):
        for piece in pieces:
            self._text.put_nowait(piece)

    async def __aenter__(self):
        return self

    async def __aexit__(self, *_exception):
        self.listening.cancel()
        await asyncio.gather(self.listening, return_exceptions=True)


async def listen(source, *pieces):
    async def text():
        for piece in pieces:
            yield piece

    async with aclosing(source.stream(REQUEST, text())) as chunks:
        return sum([chunk.duration_s async for chunk in chunks])


def num_idle(source):
    return sum(each.is_idle for each in source._narrations)


async def test_streams_without_text_take_no_place(serve):
    async with serve(max_requests=1) as source, AsyncExitStack() as stack:
        for number in range(5):
            await stack.enter_async_context(SlowStream(source))
            await eventually(lambda number=number: num_idle(source) == number + 1)
        assert source.status().num_requests == 5
        assert await listen(source, "Hello there.")


@pytest.mark.parametrize("text_mode", ["sentences", "continuous"])
async def test_stream_that_goes_on_is_spoken_unless_others_are(serve, text_mode, monkeypatch):
    async with serve(max_requests=1, text_mode=text_mode) as source:
        async with SlowStream(source) as slow:
            slow.say(SENTENCE)
            await eventually(lambda: slow.audio_s > 0.0 and num_idle(source) == 1)
            before_s = slow.audio_s
            assert await listen(source, "Hello there.")
            slow.say("goes on.", None)
            await slow.listening
            assert slow.audio_s > before_s
        async with SlowStream(source) as slow, AsyncExitStack() as stack:
            await eventually(lambda: num_idle(source) == 1)
            other = await stack.enter_async_context(SlowStream(source))
            await eventually(lambda: num_idle(source) == 2)
            monkeypatch.setattr(narration, "FLUSH_AFTER_S", 5.0)
            other.say("Hello ")
            await eventually(lambda: num_idle(source) == 1)
            slow.say("Hello ", None)
            with pytest.raises(BusyError, match="try again"):
                await slow.listening
            other.say("there.", None)
            await other.listening
            assert other.audio_s > 0.0
        assert source.status().num_requests == 0


async def test_text_that_comes_after_the_model_had_enough_is_spoken_all_the_same(
    serve, monkeypatch
):
    monkeypatch.setattr(narration, "OPEN_UTTERANCE_TIMEOUT_S", 1_000.0)
    monkeypatch.setattr("wyoming_qwen3tts.synthesis.synthesizer.frame_budget", lambda *_: 3)
    async with serve(text_mode="continuous") as source, SlowStream(source) as slow:
        slow.say(SENTENCE)
        await eventually(lambda: slow.audio_s > 0.0 and num_idle(source) == 1)
        before_s = slow.audio_s
        slow.say("is the rest of it.", None)
        await slow.listening
        assert slow.audio_s > before_s


async def test_utterances_that_wait_for_text_let_go_of_their_lanes(serve):
    async with (
        serve(text_mode="continuous", parallel_utterances=2) as source,
        AsyncExitStack() as stack,
    ):
        streams = []
        for _ in range(3):
            stream = await stack.enter_async_context(SlowStream(source))
            stream.say(SENTENCE)
            streams.append(stream)
        assert await listen(source, "Hello there.")
        await eventually(lambda: num_idle(source) == 3)
        before_s = [stream.audio_s for stream in streams]
        for stream in streams:
            stream.say("is the rest of it.", None)
            await stream.listening
        assert all(
            stream.audio_s > early_s for stream, early_s in zip(streams, before_s, strict=True)
        )


async def test_one_address_leaves_half_of_the_places_to_others(serve):
    """And the first sentence of a new client goes before later ones of another."""
    async with (
        serve(max_requests=2, parallel_utterances=1) as source,
        Listener("tcp://127.0.0.1:0", ConnectionOptions(source)) as listener,
        await WireClient.connect(listener) as first,
        await WireClient.connect(listener) as second,
        await WireClient.connect(listener, "127.0.0.2") as other,
    ):
        await first.send("synthesize", {"text": "This is a sentence. " * 200})
        await first.expect("audio-start")
        await second.send("synthesize", {"text": "Hello."})
        error = await second.expect("error")
        assert error.data["code"] == "BusyError"
        await other.send("synthesize", {"text": "Hello."})
        await other.read_until("audio-stop")
        assert source.status().num_requests == 1
        await first.expect("audio-chunk")


async def test_codec_that_fails_for_one_client_leaves_the_other_alone(serve, monkeypatch):
    decode = Utterance.decode

    def starved(utterance):
        if "broken" in utterance.request.text:
            raise RuntimeError("[ONNXRuntimeError] : 6 : Failed to allocate memory")
        decode(utterance)

    monkeypatch.setattr(Utterance, "decode", starved)
    text = {"text": "Hello there, this is a sentence.", "voice": {"name": "ryan"}}
    async with (
        serve(parallel_utterances=2) as source,
        Listener("tcp://127.0.0.1:0", ConnectionOptions(source)) as listener,
        await WireClient.connect(listener) as good,
        await WireClient.connect(listener) as bad,
    ):
        heard = []
        for is_alone in (True, False):
            await good.send("synthesize", text)
            if not is_alone:
                await bad.send("synthesize", {"text": "This is broken.", "voice": {"name": "ryan"}})
                (error,) = await bad.read_until("error")
                assert "out of memory; close other programs" in error.data["text"]
            heard.append([each.payload for each in await good.read_until("audio-stop")])
    assert b"".join(filter(None, heard[0])) == b"".join(filter(None, heard[1])) != b""
