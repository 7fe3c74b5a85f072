"""Failures inside: the request gets an error and the next one is spoken, whatever breaks."""

import asyncio
import errno
import gc
import logging
import mmap
import threading
import weakref
from collections import Counter
from contextlib import aclosing, asynccontextmanager
from dataclasses import replace

import pytest

from tests.protocol.client import eventually
from wyoming_qwen3tts.engine import worker as worker_module
from wyoming_qwen3tts.engine.worker import SynthesisWorker, Utterance
from wyoming_qwen3tts.errors import (
    BundleError,
    Qwen3TTSError,
    RequestError,
    SynthesisError,
    synthesis_error,
)
from wyoming_qwen3tts.runtime.kv_cache import KVCache
from wyoming_qwen3tts.synthesis.codec_stream import CodecStream
from wyoming_qwen3tts.synthesis.frame_loop import FrameLoop, Lane, TrailingText
from wyoming_qwen3tts.synthesis.guard import SpeechGuard
from wyoming_qwen3tts.synthesis.prefix_cache import PrefixCache
from wyoming_qwen3tts.synthesis.prompt import PromptBuilder
from wyoming_qwen3tts.synthesis.request import PresetSpeaker, SynthesisRequest, default_options
from wyoming_qwen3tts.synthesis.speech import Speech
from wyoming_qwen3tts.synthesis.synthesizer import Synthesizer
from wyoming_qwen3tts.synthesis.text_feed import TextFeed

PATIENCE_S = 10.0

PLACES = [
    (Synthesizer, "submit"),
    (Synthesizer, "step"),
    (Synthesizer, "_admit"),
    (Synthesizer, "_decode"),
    (Synthesizer, "_end"),
    (PromptBuilder, "build"),
    (FrameLoop, "join"),
    (FrameLoop, "step"),
    (PrefixCache, "prefill"),
    (PrefixCache, "codec_state"),
    (KVCache, "reserve"),
    (KVCache, "snapshot"),
    (Lane, "draw_code0"),
    (TrailingText, "take"),
    (CodecStream, "push"),
    (CodecStream, "decode"),
    (SpeechGuard, "push"),
    (SpeechGuard, "finish"),
    (SpeechGuard, "note_code"),
    (Speech, "add_frame"),
    (Speech, "add_audio"),
    (Speech, "finish"),
    (Speech, "take_audio"),
    (SynthesisWorker, "_begin"),
    (SynthesisWorker, "_step"),
    (SynthesisWorker, "_deliver"),
]
OPEN_PLACES = [
    (Synthesizer, "begin"),
    (Synthesizer, "extend"),
    (Synthesizer, "end_text"),
    (TextFeed, "push"),
    (TextFeed, "finish"),
    (PromptBuilder, "begin"),
    (PromptBuilder, "text_vectors"),
    (TrailingText, "extend"),
    (TrailingText, "close"),
]
PARTS = [
    ("talker", "prefill"),
    ("talker", "step"),
    ("code_predictor", "predict"),
    ("codec_decoder", "decode"),
    ("codec_decoder", "initial_state"),
    ("embeddings", "frames"),
    ("embeddings", "text"),
]
CAUSES = [
    RuntimeError("std::bad_alloc"),
    MemoryError(),
    ValueError("a bug"),
    KeyError("another bug"),
]


def name_of(value):
    if isinstance(value, tuple):
        return f"{getattr(value[0], '__name__', value[0])}.{value[1]}"
    return repr(value)


@asynccontextmanager
async def working():
    worker = SynthesisWorker()
    worker.start()
    try:
        yield worker
    finally:
        await worker.stop()
    assert not worker.status.is_alive
    assert worker.status.num_waiting == 0


def request_for(model, text="Hello there.", max_frames=12):
    options = replace(default_options(model.facts.generation, 3), max_frames=max_frames)
    return SynthesisRequest(text, PresetSpeaker("ryan"), options, guarded=True)


async def hear(worker, utterance):
    async with asyncio.timeout(PATIENCE_S), aclosing(worker.audio(utterance)) as chunks:
        return b"".join([chunk.pcm16() async for chunk in chunks])


async def speak(worker, synthesizer, *, is_open=False):
    utterance = worker.submit(synthesizer, request_for(synthesizer.model), is_open=is_open)
    if is_open:
        worker.extend(utterance, " And this is more", 20)
        worker.extend(utterance, " of it.", 20)
        worker.end_text(utterance)
    return await hear(worker, utterance)


def inject(monkeypatch, owner, name, cause):
    calls = []

    def fail(*_args, **_kwargs):
        calls.append(name)
        raise cause

    monkeypatch.setattr(owner, name, fail)
    return calls


@pytest.fixture
def model(tiny_model):
    return tiny_model("0.6B-custom_voice")


@pytest.mark.parametrize(
    ("place", "cause"),
    [
        (place, CAUSES[(index + turn) % len(CAUSES)])
        for index, place in enumerate(PLACES)
        for turn in range(2)
    ],
    ids=name_of,
)
async def test_whatever_fails_is_an_error_and_the_next_request_is_spoken(
    place, cause, model, monkeypatch
):
    async with working() as worker:
        wanted = await speak(worker, Synthesizer(model, max_lanes=2))
        synthesizer = Synthesizer(model, max_lanes=2)
        with monkeypatch.context() as patched:
            calls = inject(patched, *place, cause)
            with pytest.raises(SynthesisError):
                await speak(worker, synthesizer)
            assert calls
        assert await speak(worker, synthesizer) == wanted


@pytest.mark.parametrize("place", OPEN_PLACES, ids=name_of)
async def test_whatever_fails_while_text_arrives_is_an_error(place, model, monkeypatch):
    async with working() as worker:
        synthesizer = Synthesizer(model, max_lanes=2)
        wanted = await speak(worker, synthesizer, is_open=True)
        with monkeypatch.context() as patched:
            calls = inject(patched, *place, ValueError("a bug"))
            with pytest.raises(SynthesisError, match="a bug"):
                await speak(worker, synthesizer, is_open=True)
            assert calls
        assert await speak(worker, synthesizer, is_open=True) == wanted


@pytest.mark.parametrize("part", PARTS, ids=name_of)
async def test_failure_of_one_model_leaves_the_other_alone(part, model, tiny_model, monkeypatch):
    """Also when memory runs out in the middle of speech."""
    component, name = part
    other = Synthesizer(tiny_model("0.6B-custom_voice"), max_lanes=2)
    broken_part = _Failing(getattr(model, component), name)
    async with working() as worker:
        wanted = await speak(worker, other)
        broken = Synthesizer(replace(model, **{component: broken_part}), max_lanes=2)
        assert await speak(worker, broken) == wanted
        broken_part.cause = RuntimeError("[ONNXRuntimeError] : 6 : Failed to allocate memory")
        results = await asyncio.gather(
            *(speak(worker, synthesizer) for synthesizer in (broken, other, broken, other)),
            return_exceptions=True,
        )
        assert results[1] == results[3] == wanted
        for error in (results[0], results[2]):
            assert isinstance(error, SynthesisError)
            assert "out of memory; close other programs" in str(error)
        broken_part.cause = None
        assert await speak(worker, broken) == wanted
        assert worker.status.num_replaced == 0


class _Failing:
    """A component of a model, one method of which fails on demand."""

    def __init__(self, component, name):
        self._component, self._name = component, name
        self.cause = None

    def __getattr__(self, name):
        if name == self._name and self.cause is not None:
            raise self.cause
        return getattr(self._component, name)


async def test_requests_that_cannot_be_fulfilled_are_no_failures(model, caplog):
    async with working() as worker:
        wrong = replace(request_for(model), voice=PresetSpeaker("nobody"))
        with pytest.raises(RequestError, match="nobody"):
            await hear(worker, worker.submit(Synthesizer(model), wrong))
    assert not caplog.records


@pytest.mark.parametrize(
    "place",
    [
        (SynthesisWorker, "_step"),
        (SynthesisWorker, "_begin"),
        (SynthesisWorker, "_deliver"),
        (Synthesizer, "step"),
        (FrameLoop, "clear"),
        (Speech, "finish"),
        (Utterance, "send"),
    ],
    ids=name_of,
)
async def test_thread_that_dies_is_replaced_and_its_requests_get_an_error(
    place, model, monkeypatch, caplog
):
    caplog.set_level(logging.INFO)
    async with working() as worker:
        synthesizer = Synthesizer(model, max_lanes=2)
        wanted = await speak(worker, synthesizer)
        first_thread = worker._thread
        owner, name = place
        original = getattr(owner, name)

        def die_once(*_args, **_kwargs):
            monkeypatch.setattr(owner, name, original)
            raise SystemExit

        monkeypatch.setattr(owner, name, die_once)
        if place == (FrameLoop, "clear"):
            worker.abandon(synthesizer, SynthesisError("let it die"))
        results = await asyncio.gather(
            *(speak(worker, synthesizer) for _ in range(5)), return_exceptions=True
        )
        # Those that had not begun are spoken by the next thread.
        assert all(pcm == wanted for pcm in results if isinstance(pcm, bytes))
        errors = [error for error in results if not isinstance(error, bytes)]
        assert all(isinstance(error, SynthesisError) for error in errors)
        assert errors or place == (FrameLoop, "clear")
        await eventually(lambda: worker.status.num_replaced == 1)
        await asyncio.to_thread(first_thread.join, PATIENCE_S)
        assert not first_thread.is_alive()
        assert worker.status.is_alive
        assert await speak(worker, synthesizer) == wanted
    deaths = [r for r in caplog.records if "died" in r.message]
    assert len(deaths) == 1
    assert not deaths[0].exc_info  # a traceback is for debug


async def test_thread_that_died_without_a_word_is_noticed_at_the_next_request(model, monkeypatch):
    async with working() as worker:
        synthesizer = Synthesizer(model)
        with monkeypatch.context() as patched:
            patched.setattr(SynthesisWorker, "_hand_over", lambda *_args: None)
            calls = inject(patched, SynthesisWorker, "_step", SystemExit())
            utterance = worker.submit(synthesizer, request_for(model))
            await eventually(lambda: not worker.status.is_alive)
            assert calls
        assert await speak(worker, Synthesizer(model))
        assert worker.status.num_replaced == 1
        worker.release(utterance)


async def test_system_without_threads_is_an_error_and_later_one_is_started(model, monkeypatch):
    async with working() as worker:
        synthesizer = Synthesizer(model)
        wanted = await speak(worker, synthesizer)
        with monkeypatch.context() as patched:
            inject(patched, threading.Thread, "start", RuntimeError("can't start new thread"))
            inject(patched, SynthesisWorker, "_step", SystemExit())
            with pytest.raises(SynthesisError, match="died"):
                await speak(worker, synthesizer)
            with pytest.raises(SynthesisError, match="no thread can be started"):
                await speak(worker, synthesizer)
            assert not worker.status.is_alive
        assert await speak(worker, synthesizer) == wanted


async def test_many_failures_and_deaths_in_a_row_lose_nothing(model, monkeypatch):
    """Every third step fails, every seventh kills the thread."""
    counts = Counter()
    whole_step = SynthesisWorker._step

    def sometimes(self):
        counts["steps"] += 1
        if counts["steps"] % 7 == 0:
            raise SystemExit
        if counts["steps"] % 3 == 0:
            raise MemoryError
        whole_step(self)

    monkeypatch.setattr(SynthesisWorker, "_step", sometimes)
    async with working() as worker:
        synthesizer = Synthesizer(model, max_lanes=2)
        for _ in range(20):
            results = await asyncio.gather(
                *(speak(worker, synthesizer) for _ in range(3)), return_exceptions=True
            )
            counts.update(type(result).__name__ for result in results)
        assert set(counts) <= {"steps", "bytes", "SynthesisError"}
        assert counts["bytes"] + counts["SynthesisError"] == 60
        await eventually(lambda: worker.status.num_speaking == 0)
        monkeypatch.undo()
        assert await speak(worker, synthesizer)


async def test_cancelling_one_utterance_of_a_confused_synthesizer_resets_it(model, monkeypatch):
    async with working() as worker:
        synthesizer = Synthesizer(model, max_lanes=2)
        wanted = await speak(worker, synthesizer)
        with monkeypatch.context() as patched:
            inject(patched, Synthesizer, "cancel", ValueError("not in the loop"))
            utterance = worker.submit(synthesizer, request_for(model, "Word " * 40, 500))
            await utterance.audio.get()
            worker.release(utterance)
            await eventually(lambda: worker.status.num_speaking == 0)
        assert await speak(worker, synthesizer) == wanted


async def test_abandoned_synthesizer_ends_its_utterances_with_the_reason(endless_model):
    async with working() as worker:
        synthesizer = Synthesizer(endless_model, max_lanes=2)
        hearing = [
            asyncio.create_task(
                hear(worker, worker.submit(synthesizer, request_for(endless_model, "Hi.", 5_000)))
            )
            for _ in range(3)
        ]
        await eventually(lambda: worker.status.num_speaking == 3)
        worker.abandon(synthesizer, SynthesisError("its files were damaged"))
        for error in await asyncio.gather(*hearing, return_exceptions=True):
            assert isinstance(error, SynthesisError)
            assert "damaged" in str(error)
        await eventually(lambda: worker.status.num_speaking == 0)


async def test_waiting_thread_keeps_no_model_open(model):
    """Or a model that was closed would still hold its memory."""
    async with working() as worker:
        synthesizer = Synthesizer(model)
        await speak(worker, synthesizer)
        gone = weakref.ref(synthesizer)
        del synthesizer
        await asyncio.sleep(0.05)
        gc.collect()
        assert gone() is None


async def test_what_comes_after_the_stop_is_an_error(model):
    worker = SynthesisWorker()
    worker.start()
    await worker.stop()
    with pytest.raises(SynthesisError, match="server stops"):
        await speak(worker, Synthesizer(model))


async def test_thread_that_hangs_does_not_hold_up_the_stop(model, monkeypatch):
    monkeypatch.setattr(worker_module, "_STOP_S", 0.2)
    is_over = threading.Event()
    worker = SynthesisWorker()
    monkeypatch.setattr(worker, "_step", lambda: is_over.wait(PATIENCE_S))
    worker.start()
    worker.submit(Synthesizer(model), request_for(model))
    await eventually(lambda: worker.status.busy_s > 0.05)
    async with asyncio.timeout(2):
        await worker.stop()
    is_over.set()
    await asyncio.to_thread(worker._thread.join, PATIENCE_S)


@pytest.mark.parametrize("num_blocks", [0, 5])
async def test_memory_that_runs_out_while_the_cache_grows(num_blocks, endless_model, monkeypatch):
    """The blocks that were there already must not be left beside others of another size."""
    long_text = request_for(endless_model, "Word and word and more. " * 40, 4)
    async with working() as worker:
        fresh = Synthesizer(endless_model, max_lanes=2)
        wanted_long = await hear(worker, worker.submit(fresh, long_text))
        short = request_for(endless_model, "Hello.", 30)
        wanted = await hear(worker, worker.submit(Synthesizer(endless_model, max_lanes=2), short))
        synthesizer = Synthesizer(endless_model, max_lanes=2)
        speaking = worker.submit(synthesizer, short)
        await speaking.audio.get()
        with monkeypatch.context() as patched:
            _starve(patched, num_blocks)
            with pytest.raises(SynthesisError, match="out of memory"):
                await hear(worker, worker.submit(synthesizer, long_text))
        assert wanted.endswith(await hear(worker, speaking))
        assert await hear(worker, worker.submit(synthesizer, long_text)) == wanted_long
        assert await hear(worker, worker.submit(synthesizer, short)) == wanted


def _starve(patched, num_blocks):
    """Let the cache allocate so many blocks and no more."""
    whole_mmap, counts = mmap.mmap, Counter()

    def starved_mmap(*args, **kwargs):
        counts["blocks"] += 1
        if counts["blocks"] > num_blocks:
            raise OSError(errno.ENOMEM, "Cannot allocate memory")
        return whole_mmap(*args, **kwargs)

    patched.setattr("wyoming_qwen3tts.runtime.kv_cache.mmap.mmap", starved_mmap)


def test_errors_of_every_kind_say_what_to_do():
    known = BundleError("x is missing")
    assert synthesis_error(known, "It failed") is known
    unknown = synthesis_error(ValueError("x"), "It failed")
    assert isinstance(unknown, Qwen3TTSError)
    assert str(unknown) == "It failed: ValueError: x."
    assert str(synthesis_error(SystemExit(), "It died")) == "It died: SystemExit."
    assert "out of memory" in str(synthesis_error(OSError(12, "Cannot allocate"), "It failed"))
