"""Opened models: closed when idle, shared while they open, and watched for damage."""

import asyncio
import gc
import logging
import os
import shutil
import subprocess
import sys
import weakref
from contextlib import aclosing
from dataclasses import replace
from pathlib import Path

import pytest

from tests.conftest import NUM_THREADS
from tests.protocol.client import eventually
from wyoming_qwen3tts.config import Config
from wyoming_qwen3tts.engine import engine
from wyoming_qwen3tts.engine.engine import create_speech_source
from wyoming_qwen3tts.engine.file_lease import FileLease
from wyoming_qwen3tts.engine.model_pool import ModelPool
from wyoming_qwen3tts.errors import BundleError, ChecksumError, Qwen3TTSError
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
    return [status.name for status in pool.status() if status.is_loaded]


def pool_open(pool):
    return [slot.bundle for slot in pool._slots.values() if slot.synthesizer is not None]


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
    async with pool.use(bundles[0]) as synthesizer:
        gone = weakref.ref(synthesizer.model.talker)
        assert pool.unload_idle(0.0) == 0, "somebody uses it"
    del synthesizer
    await asyncio.sleep(0.01)  # what woke this task up holds what it woke up with
    assert pool.unload_idle(60.0) == 0
    assert pool.unload_idle(0.0) == 1
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
    async with create_speech_source(config) as source:
        first = await speak(source, "ryan")
        gone = weakref.ref(next(iter(source._pool._slots.values())).synthesizer.model)
        await eventually(lambda: not loaded(source._pool))
        gc.collect()
        assert gone() is None
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
    async with pool.use(bundles[0]) as synthesizer:
        with pytest.raises(BundleError, match=f"{bundles[1].reference}.*out of memory.*precision"):
            async with pool.use(bundles[1]):
                pass
        assert loaded(pool) == [bundles[0].manifest.name]
        async with pool.use(bundles[0]) as same:
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
        async with pool.use(bundles[0]) as synthesizer:
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
    await eventually(lambda: next(iter(pool._slots.values())).opening is None)
    gc.collect()
    assert not failures


# Damage


@pytest.fixture
def no_leases(monkeypatch):
    """As on a network file system: nothing holds up whoever damages a file."""
    monkeypatch.setattr("wyoming_qwen3tts.engine.file_lease.fcntl.F_SETLEASE", -1)


def truncate(path):
    with path.open("r+b") as file:
        file.truncate(path.stat().st_size // 2)


def flip_a_byte(path):
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 0xFF
    with path.open("r+b") as file:  # in place: it is the file that is mapped
        file.write(content)


def remove(path):
    path.unlink()


def replace_by_another(path):
    other = path.with_suffix(".new")
    other.write_bytes(bytes(path.stat().st_size))
    other.replace(path)


DAMAGES = [truncate, flip_a_byte, remove, replace_by_another]
FILES = [
    "talker.onnx.data",
    "codec_decoder.onnx",
    "text_embedding.npy",
    "group_embedding.npy",
    "merges.txt",
]


@pytest.mark.parametrize(
    ("name", "damage"),
    [
        *((name, damage) for name in FILES[:2] for damage in DAMAGES),
        *zip(FILES[2:], DAMAGES, strict=False),
    ],
)
async def test_damage_is_noticed_before_the_next_request_and_so_is_the_repair(
    name, damage, bundles, caplog, no_leases
):
    pool = make_pool([])
    async with pool.use(bundles[0]):
        pass
    path = bundles[0].directory / name
    good, status = path.read_bytes(), path.stat()
    damage(path)
    for _ in range(2):  # it does not heal by itself
        with pytest.raises(Qwen3TTSError, match=str(path)):
            async with pool.use(bundles[0]):
                pass
    assert any(f"{path} was changed" in record.message for record in caplog.records)
    path.write_bytes(good)
    async with pool.use(bundles[0]) as synthesizer:
        assert synthesizer.model.talker is not None
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns + 1))
    async with pool.use(bundles[0]) as reopened:
        assert reopened is not synthesizer, "touched: opened again, and found to be right"


async def test_damage_ends_the_speech_of_this_model_and_of_no_other(
    data_dir, monkeypatch, no_leases
):
    monkeypatch.setattr(engine, "_CARE_S", 0.05)
    config = Config(data_dirs=(str(data_dir),), threads=NUM_THREADS, seed=1)
    async with create_speech_source(config) as source:
        wanted = await speak(source, "designed")
        assert await speak(source, "ryan")
        path = next(data_dir.glob("*custom*/cpu_fp32/talker.onnx.data"))
        good = path.read_bytes()
        long_text = "Hello there, this is a long text. " * 200
        speaking = asyncio.create_task(speak(source, "ryan", long_text))
        await asyncio.sleep(0.3)
        assert not speaking.done()
        os.utime(path)  # nothing else: a graph that meets damage at once takes the process along
        with pytest.raises(BundleError, match=r"talker\.onnx\.data was changed while .* in use"):
            await speaking
        assert await speak(source, "designed") == wanted
        flip_a_byte(path)
        with pytest.raises(ChecksumError, match=r"talker\.onnx\.data.*hash"):
            await speak(source, "ryan")
        path.write_bytes(good)
        assert await speak(source, "ryan")


async def test_replaced_bundle_lets_speech_end_and_is_opened_again(data_dir, monkeypatch):
    monkeypatch.setattr(engine, "_CARE_S", 0.05)
    config = Config(data_dirs=(str(data_dir),), threads=NUM_THREADS, seed=1)
    async with create_speech_source(config) as source:
        assert await speak(source, "ryan")
        directory = next(data_dir.glob("*custom*/cpu_fp32"))
        speaking = asyncio.create_task(speak(source, "ryan", "Hello there, my dear. " * 40))
        await asyncio.sleep(0.2)
        shutil.copytree(directory, directory.with_name("new"))
        directory.rename(directory.with_name(".old"))
        directory.with_name("new").rename(directory)
        assert await speaking
        assert await speak(source, "ryan")


async def test_decoder_that_models_share_is_damaged_for_all_of_them(bundles, no_leases):
    lost = []
    pool = ModelPool(OPTIONS, max_lanes=2, on_loss=lambda synth, error: lost.append((synth, error)))
    async with pool.use(bundles[0]) as first, pool.use(bundles[1]) as second:
        if first.model.codec_decoder is not second.model.codec_decoder:
            pytest.fail("the tiny models no longer share their decoder")
        flip_a_byte(bundles[0].directory / "codec_decoder.onnx.data")
        await pool.check_files()
        assert [synthesizer for synthesizer, _ in lost] == [first, second]
        assert all("codec_decoder.onnx.data" in str(error) for _, error in lost)
    async with pool.use(bundles[1]) as again:  # its own files are whole
        assert again is not second
    with pytest.raises(ChecksumError, match="codec_decoder"):
        async with pool.use(bundles[0]):
            pass


# Leases


def overwrite_in_another_process(path, content):
    """Begin to overwrite a file in place; the process waits as long as it is in use."""
    code = (
        "import sys, time; start = time.monotonic(); file = open(sys.argv[1], 'r+b');"
        "print(time.monotonic() - start); file.truncate(0); file.write(sys.stdin.buffer.read())"
    )
    process = subprocess.Popen(
        [sys.executable, "-S", "-c", code, path], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    process.stdin.write(content)
    process.stdin.close()
    return process


@pytest.mark.skipif(sys.platform != "linux", reason="leases are Linux's")
async def test_whoever_cuts_a_file_in_use_waits_until_it_is_not(data_dir, monkeypatch):
    monkeypatch.setattr(engine, "_CARE_S", 0.05)
    config = Config(data_dirs=(str(data_dir),), threads=NUM_THREADS, seed=1)
    async with create_speech_source(config) as source:
        wanted = await speak(source, "ryan")
        path = next(data_dir.glob("*custom*/cpu_fp32/talker.onnx.data"))
        good = path.read_bytes()
        speaking = asyncio.create_task(speak(source, "ryan", "Hello there, my dear. " * 200))
        await asyncio.sleep(0.3)
        assert not speaking.done()
        with overwrite_in_another_process(path, good[:1000]) as cutting:
            # Its pages are not touched again before they are gone: this process lives.
            await asyncio.wait([speaking])
            assert "talker.onnx.data was changed while it was in use" in str(speaking.exception())
            del speaking  # its traceback would keep the model
            waited_s = float(await asyncio.to_thread(cutting.stdout.readline))
            assert 0.0 < waited_s < 10.0
            await asyncio.to_thread(cutting.wait)
        assert path.stat().st_size == 1000
        with pytest.raises(ChecksumError, match=r"talker\.onnx\.data has 1000 bytes"):
            await speak(source, "ryan")
        with overwrite_in_another_process(path, good) as mending:
            await asyncio.to_thread(mending.wait)
        assert await speak(source, "ryan") == wanted


@pytest.mark.skipif(sys.platform != "linux", reason="leases are Linux's")
def test_lease_holds_writers_up_and_readers_and_renamers_not(tmp_path):
    path = tmp_path / "graph.onnx"
    path.write_bytes(b"good")
    lease = FileLease(path)
    assert lease.is_held
    assert path.read_bytes() == b"good"
    assert not lease.is_wanted_back
    with pytest.raises(BlockingIOError):
        os.open(path, os.O_WRONLY | os.O_NONBLOCK)
    assert lease.is_wanted_back
    lease.release()
    path.write_bytes(b"other")
    again = FileLease(path)
    path.rename(tmp_path / "aside")
    (tmp_path / "aside").unlink()
    assert again.is_held
    assert not again.is_wanted_back


@pytest.mark.parametrize("path", ["/dev/null", "/nowhere/at/all"])
def test_files_without_leases_are_left_alone(path):
    lease = FileLease(Path(path))
    assert not lease.is_held
    assert not lease.is_wanted_back
    lease.release()
