"""The library: open a model, list its voices, stream speech."""

import shutil
import subprocess
import sys
import time
from contextlib import closing

import pytest

from tests.conftest import NUM_THREADS
from wyoming_qwen3tts import TTS, AudioChunk
from wyoming_qwen3tts.errors import ConfigError, RequestError


@pytest.fixture(scope="module")
def data_dir(tmp_path_factory, tiny_bundle):
    root = tmp_path_factory.mktemp("library")
    source = tiny_bundle("0.6B-custom_voice")
    shutil.copytree(source, root / source.parent.name / source.name)
    return root


@pytest.fixture(scope="module")
def tts(data_dir):
    with TTS(data_dirs=[str(data_dir)], threads=NUM_THREADS, seed=1) as opened:
        yield opened


def pcm(chunks):
    return b"".join(chunk.pcm16() for chunk in chunks)


def test_import_loads_nothing_heavy():
    code = "import wyoming_qwen3tts, sys; print('numpy' in sys.modules, 'yaml' in sys.modules)"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True)
    assert result.stdout.split() == [b"False", b"False"]


def test_voices_are_listed(tts):
    assert {"ryan", "vivian"} <= {voice.name for voice in tts.voices()}


def test_stream_yields_audio_that_a_seed_repeats(tts):
    chunks = list(tts.stream("Hello there. How are you?", voice="ryan", language="en"))
    assert all(isinstance(chunk, AudioChunk) for chunk in chunks)
    pieces = iter(["Hello there. ", "How are you?"])
    assert pcm(tts.stream(pieces, voice="ryan", language="en")) == pcm(chunks)


def test_closing_a_stream_early_cancels_it(tts):
    with closing(tts.stream("Hello there, long text. " * 50, voice="ryan")) as chunks:
        next(chunks)
    deadline_s = time.monotonic() + 10
    while tts._engine.status().num_requests or tts._engine.status().worker.num_speaking:
        assert time.monotonic() < deadline_s
        time.sleep(0.01)


async def test_async_stream_is_the_same(tts):
    async def pieces():
        yield "Hello there. "
        yield "How are you?"

    text = "Hello there. How are you?"
    options = {"voice": "ryan", "language": "en"}
    whole = [chunk async for chunk in tts.astream(text, **options)]
    assert pcm([chunk async for chunk in tts.astream(pieces(), **options)]) == pcm(whole)
    assert pcm(tts.stream(text, **options)) == pcm(whole)


async def test_failure_of_the_text_ends_the_stream(tts):
    async def failing():
        yield "Hello there. "
        raise ValueError("no more text")

    with pytest.raises(ValueError, match="no more text"):
        async for _ in tts.astream(failing(), voice="ryan"):
            pass


def test_unknown_voice_is_an_error(tts):
    with pytest.raises(RequestError, match="there are: "):
        list(tts.stream("Hello.", voice="cedar"))


def test_wrong_settings_are_refused(data_dir):
    with pytest.raises(ConfigError, match="did you mean threads"):
        TTS(data_dirs=[str(data_dir)], thread=2)
    with pytest.raises(ConfigError):
        TTS("no-such-model", data_dirs=[str(data_dir)])


def test_model_is_named_as_everywhere(data_dir):
    name = "tiny-0.6b-custom_voice/cpu_fp32"
    with TTS(name, data_dirs=[str(data_dir)], threads=NUM_THREADS) as opened:
        assert list(opened.stream("Hello.", voice="ryan"))


def test_greedy_speech_needs_no_seed(data_dir):
    heard = []
    for _ in range(2):
        with TTS(data_dirs=[str(data_dir)], threads=NUM_THREADS, temperature=0) as opened:
            heard.append(pcm(opened.stream("Hello there.", voice="ryan", language="en")))
    assert heard[0] == heard[1] != b""
