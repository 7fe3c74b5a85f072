"""Open models: closed when idle, shared while they open, read again after a replacement."""

import asyncio
import gc
import logging
import shutil
import threading
import weakref
from contextlib import aclosing
from dataclasses import replace

import pytest

from tests.conftest import NUM_THREADS
from tests.protocol.client import eventually
from wyoming_qwen3tts.config import Config
from wyoming_qwen3tts.engine import model_pool
from wyoming_qwen3tts.engine.engine import open_engine
from wyoming_qwen3tts.engine.model_pool import ModelPool
from wyoming_qwen3tts.errors import BundleError
from wyoming_qwen3tts.models.bundles import read_bundle
from wyoming_qwen3tts.protocol.backend import SpeechRequest
from wyoming_qwen3tts.runtime.bundle import open_bundle

OPTIONS = NUM_THREADS
NAMES = ("0.6B-custom_voice", "1.7B-voice_design")


@pytest.fixture
def data_dir(tiny_bundle, tmp_path):
    for name in NAMES:
        source = tiny_bundle(name)
        shutil.copytree(source, tmp_path / source.parent.name / source.name)
    return tmp_path


@pytest.fixture
def bundles(data_dir):
    return [read_bundle(path.parent) for path in sorted(data_dir.glob("*/*/manifest.json"))]


def opener(calls, *errors):
    """Return a function that opens bundles, failing with these errors first."""
    left = list(errors)

    def open_it(bundle):
        calls.append(bundle.reference)
        if left and (error := left.pop(0)) is not None:
            raise error
        return open_bundle(bundle.directory, OPTIONS)

    return open_it


def make_pool(calls, *errors, **settings):
    return ModelPool(OPTIONS, max_lanes=2, open_model=opener(calls, *errors), **settings)


def loaded(pool):
    return [status.labels[0] for status in pool.status() if status.is_loaded]


def pool_open(pool):
    return [model.bundle for model in pool._models.values() if model.synthesizer is not None]


async def text(words):
    yield words


async def speak(source, voice, words="Hello there."):
    async with aclosing(source.stream(SpeechRequest(voice), text(words))) as chunks:
        return b"".join([chunk.pcm16() async for chunk in chunks])


# Memory


async def test_idle_model_is_closed_and_its_memory_freed(bundles, caplog):
    caplog.set_level(logging.INFO)
    calls = []
    pool = make_pool(calls)
    async with pool.use(bundles[0]) as (synthesizer, _):
        gone = weakref.ref(synthesizer.model.talker)
        assert await pool.unload_idle(0.0) == 0, "somebody uses it"
    del synthesizer
    await asyncio.sleep(0.01)  # what woke this task up holds what it woke up with
    assert await pool.unload_idle(60.0) == 0
    assert await pool.unload_idle(0.0) == 1
    gc.collect()
    assert gone() is None
    assert any("memory went from" in record.message for record in caplog.records)
    async with pool.use(bundles[0]):
        assert len(calls) == 2


async def test_setting_closes_idle_models_of_a_server(data_dir, caplog):
    caplog.set_level(logging.INFO)
    config = Config(
        data_dirs=(str(data_dir),),
        threads=NUM_THREADS,
        idle_unload_seconds=0.1,
        seed=1,
        voice="ryan",
    )
    async with open_engine(config) as source:
        first = await speak(source, "ryan")
        gone = weakref.ref(next(iter(source.pool._models.values())).synthesizer.model)
        await eventually(lambda: not loaded(source.pool) and gone() is None)
        assert await speak(source, "ryan") == first


async def test_limit_closes_what_was_unused_longest(bundles, caplog):
    caplog.set_level(logging.INFO)
    calls = []
    sizes = [bundle.open_bytes for bundle in bundles]
    first, second = (bundle.manifest.name for bundle in bundles)
    pool = make_pool(calls, memory_limit_bytes=sum(sizes))
    for bundle in bundles:
        async with pool.use(bundle):
            pass
    assert loaded(pool) == [first, second]
    pool = make_pool(calls, memory_limit_bytes=sum(sizes) - 1)
    for bundle in (*bundles, bundles[0]):
        async with pool.use(bundle):
            assert loaded(pool) == [bundle.manifest.name]
    assert len(calls) == 5


async def test_model_larger_than_the_limit_is_open_alone_and_stays_open(bundles):
    calls = []
    pool = make_pool(calls, memory_limit_bytes=1)
    for _ in range(2):
        async with pool.use(bundles[0]):
            pass
    assert loaded(pool) == [bundles[0].manifest.name]
    assert len(calls) == 1


async def test_models_that_open_at_once_count_each_other(bundles):
    """The idle one is closed for both; what is in use is closed as soon as it is not."""
    third = replace(bundles[0], directory=bundles[0].directory.with_name("cpu_copy"))
    shutil.copytree(bundles[0].directory, third.directory)
    size = max(bundle.open_bytes for bundle in bundles)
    pool = make_pool([], memory_limit_bytes=2 * size)
    async with pool.use(third):
        pass

    async def hold(bundle, is_over):
        async with pool.use(bundle):
            await is_over.wait()

    ends = [asyncio.Event(), asyncio.Event()]
    both = [asyncio.create_task(hold(*each)) for each in zip(bundles, ends, strict=True)]
    await eventually(lambda: len(calls_open := pool_open(pool)) == 2 and third not in calls_open)
    pool._memory_limit_bytes = size
    assert len(pool_open(pool)) == 2, "both are in use"
    ends[0].set()
    await both[0]
    assert pool_open(pool) == [bundles[1]]
    ends[1].set()
    await both[1]
    assert pool_open(pool) == [bundles[1]]


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        BundleError("talker.onnx cannot be loaded: std::bad_alloc. Build the bundle again."),
        RuntimeError("Failed to allocate memory for requested buffer of size 99"),
        OSError(12, "Cannot allocate memory"),
    ],
)
async def test_without_memory_idle_models_make_room(bundles, error):
    calls = []
    pool = make_pool(calls, None, error)
    async with pool.use(bundles[0]):
        pass
    async with pool.use(bundles[1]):
        assert loaded(pool) == [bundles[1].manifest.name]
    assert len(calls) == 3


async def test_without_any_memory_it_is_an_error_and_the_others_go_on(bundles):
    pool = make_pool([], None, MemoryError())
    async with pool.use(bundles[0]) as (synthesizer, _):
        with pytest.raises(BundleError, match=f"{bundles[1].reference}.*out of memory.*precision"):
            async with pool.use(bundles[1]):
                pass
        assert loaded(pool) == [bundles[0].manifest.name]
        async with pool.use(bundles[0]) as (same, _):
            assert same is synthesizer
    async with pool.use(bundles[1]):
        pass


async def test_unexpected_failure_to_open_names_the_bundle(bundles):
    pool = make_pool([], ValueError("odd"))
    with pytest.raises(BundleError, match=r"cpu_fp32 cannot be opened: ValueError\('odd'\)"):
        async with pool.use(bundles[0]):
            pass


async def test_client_that_leaves_while_a_model_opens_does_not_make_it_open_twice(bundles):
    calls = []
    pool = make_pool(calls)

    async def use():
        async with pool.use(bundles[0]) as (synthesizer, _):
            return synthesizer

    impatient, patient = asyncio.create_task(use()), asyncio.create_task(use())
    await eventually(lambda: bool(calls))
    impatient.cancel()
    await asyncio.gather(impatient, return_exceptions=True)
    late = asyncio.create_task(use())
    assert await patient is await late
    assert len(calls) == 1


async def test_opening_that_nobody_waits_for_any_more_may_fail_silently(bundles):
    calls, failures = [], []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: failures.append(context))
    pool = make_pool(calls, BundleError("damaged"))

    async def use():
        async with pool.use(bundles[0]):
            pass

    impatient = asyncio.create_task(use())
    await eventually(lambda: bool(calls))
    impatient.cancel()
    await asyncio.gather(impatient, return_exceptions=True)
    await eventually(lambda: next(iter(pool._models.values())).opening is None)
    gc.collect()
    assert not failures


async def test_memory_of_a_closed_model_is_freed_outside_the_event_loop(bundles, monkeypatch):
    """Freeing 1.5 GB takes long enough to delay every client."""
    threads = []
    monkeypatch.setattr(
        model_pool, "trim_free_memory", lambda: threads.append(threading.current_thread())
    )
    pool = make_pool([])
    async with pool.use(bundles[0]):
        pass
    assert await pool.unload_idle(0.0) == 1
    assert len(threads) == 1
    assert threads[0] is not threading.main_thread()


async def test_replaced_bundle_is_read_again_with_its_voices(data_dir, tiny_bundle):
    config = Config(data_dirs=(str(data_dir),), threads=NUM_THREADS, seed=1)
    async with open_engine(config) as source:
        assert await speak(source, "ryan")
        assert "whisper" not in {v.name: v for v in await source.voices()}["ryan"].speakers
        directory = next(data_dir.glob("*custom*/cpu_fp32"))
        speaking = asyncio.create_task(speak(source, "ryan", "Hello there, my dear. " * 20))
        await asyncio.sleep(0.1)
        directory.rename(directory.with_name(".old"))
        shutil.copytree(tiny_bundle("1.7B-custom_voice"), directory)
        assert await speaking
        await source.pool.unload_idle(0.0)
        assert await speak(source, "ryan")
        assert "whisper" in {v.name: v for v in await source.voices()}["ryan"].speakers


async def test_model_that_cannot_speak_says_why_until_it_can(bundles):
    pool = make_pool([], BundleError("talker.onnx is damaged"))
    with pytest.raises(BundleError):
        async with pool.use(bundles[0]):
            pass
    assert pool.status()[0].error == "talker.onnx is damaged"
    async with pool.use(bundles[0]):
        pass
    assert pool.status()[0].error is None
    pool.record_error(bundles[0], ValueError("no sound"))
    assert pool.status()[0].error == "no sound"
