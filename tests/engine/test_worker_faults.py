"""Failures inside: the request gets an error, and the next one is spoken."""

import asyncio
import errno
import gc
import mmap
import sys
import weakref
from asyncio.subprocess import PIPE
from collections import Counter
from contextlib import aclosing, asynccontextmanager
from dataclasses import replace

import pytest

from tests.protocol.client import eventually
from wyoming_qwen3tts.engine import worker as worker_module
from wyoming_qwen3tts.engine.worker import SynthesisWorker
from wyoming_qwen3tts.errors import (
    BundleError,
    Qwen3TTSError,
    RequestError,
    SynthesisError,
    synthesis_error,
)
from wyoming_qwen3tts.runtime.kv_cache import KVCache
from wyoming_qwen3tts.synthesis.frame_loop import FrameLoop, PrefixCache
from wyoming_qwen3tts.synthesis.guard import RunawayGuard
from wyoming_qwen3tts.synthesis.prompt import IncrementalTokenizer, PromptBuilder
from wyoming_qwen3tts.synthesis.request import PresetSpeaker, SynthesisRequest, default_options
from wyoming_qwen3tts.synthesis.synthesizer import Synthesizer
from wyoming_qwen3tts.synthesis.utterance import FinishReason, Utterance

PATIENCE_S = 10.0

PLACES = [
    (Synthesizer, "add"),
    (Synthesizer, "_admit"),
    (Synthesizer, "_decode"),
    (Synthesizer, "_end"),
    (PromptBuilder, "build"),
    (FrameLoop, "add"),
    (FrameLoop, "step"),
    (PrefixCache, "prefill"),
    (PrefixCache, "codec_state"),
    (KVCache, "reserve"),
    (KVCache, "snapshot"),
    (Utterance, "start"),
    (Utterance, "sample_code0"),
    (Utterance, "add_frame"),
    (Utterance, "decode"),
    (Utterance, "add_audio"),
    (Utterance, "open_codec"),
    (RunawayGuard, "push"),
    (RunawayGuard, "finish"),
    (RunawayGuard, "record_code"),
    (SynthesisWorker, "_submit"),
]
OPEN_PLACES = [
    (Synthesizer, "extend"),
    (Synthesizer, "close_text"),
    (IncrementalTokenizer, "push"),
    (IncrementalTokenizer, "finish"),
    (PromptBuilder, "open"),
    (PromptBuilder, "text_vectors"),
    (Utterance, "add_text"),
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


def request_for(model, text="Hello there.", max_frames=12, **changes):
    options = replace(default_options(model.facts.generation, 3), max_frames=max_frames)
    changes = {"guarded": True, **changes}
    return SynthesisRequest(text, PresetSpeaker("ryan"), options, **changes)


async def hear(worker, utterance):
    async with asyncio.timeout(PATIENCE_S), aclosing(worker.audio(utterance)) as chunks:
        return b"".join([chunk.pcm16() async for chunk in chunks])


async def speak(worker, synthesizer, *, is_open=False):
    request = request_for(synthesizer.model, max_frames=50 if is_open else 12, is_open=is_open)
    utterance = worker.submit(synthesizer, request)
    if is_open:
        await worker.extend(utterance, " And this is more")
        await worker.extend(utterance, " of it.")
        worker.close_text(utterance)
    return await hear(worker, utterance)


async def first_chunk(utterance):
    """Wait for audio without the worker's help, so that nothing cancels the utterance."""
    await eventually(lambda: utterance.timing.audio_s > 0)


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


DEADLY = """
import asyncio, logging, os, sys, time
from pathlib import Path
from wyoming_qwen3tts.engine import worker as module
from wyoming_qwen3tts.runtime.bundle import open_bundle
from wyoming_qwen3tts.synthesis.request import PresetSpeaker, SynthesisRequest, default_options
from wyoming_qwen3tts.synthesis.synthesizer import Synthesizer

async def main():
    logging.basicConfig()
    module._HUNG_S = 1.0
    model = open_bundle(Path(sys.argv[1]), 1)
    worker = module.SynthesisWorker()
    worker.start()
    options = default_options(model.facts.generation, 0)
    request = SynthesisRequest("Hello.", PresetSpeaker("ryan"), options)
    await asyncio.sleep(1.5)  # an idle thread does not count as hung
    print("idle", flush=True)
    Synthesizer.step = {"die": die, "hang": hang}[sys.argv[2]]
    async for _ in worker.audio(worker.submit(Synthesizer(model), request)):
        pass

def die(_self):
    raise SystemExit("a bug")

def hang(_self):
    time.sleep(60)

asyncio.run(main())
"""


@pytest.mark.parametrize(("how", "message"), [("die", "thread died"), ("hang", "Timeout")])
async def test_dead_or_hung_thread_ends_the_process_with_its_stack(how, message, tiny_bundle):
    bundle = str(tiny_bundle("0.6B-custom_voice"))
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", DEADLY, bundle, how, stdout=PIPE, stderr=PIPE
    )
    async with asyncio.timeout(30):
        out, err = await process.communicate()
    assert out == b"idle\n"
    assert process.returncode == 1
    assert message in err.decode()
    assert f"in {how}" in err.decode()


async def test_many_failures_in_a_row_lose_nothing(model, monkeypatch):
    counts = Counter()
    whole_step = FrameLoop.step

    def sometimes(self, *args):
        counts["steps"] += 1
        if counts["steps"] % 3 == 0:
            raise MemoryError
        return whole_step(self, *args)

    monkeypatch.setattr(FrameLoop, "step", sometimes)
    async with working() as worker:
        synthesizer = Synthesizer(model, max_lanes=2)
        for _ in range(10):
            results = await asyncio.gather(
                *(speak(worker, synthesizer) for _ in range(3)), return_exceptions=True
            )
            counts.update(type(result).__name__ for result in results)
        assert set(counts) <= {"steps", "bytes", "SynthesisError"}
        assert counts["bytes"] + counts["SynthesisError"] == 30
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
            await first_chunk(utterance)
            worker.release(utterance)
            await eventually(lambda: worker.status.num_speaking == 0)
        assert await speak(worker, synthesizer) == wanted


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
    with pytest.raises(SynthesisError, match="is stopping"):
        await speak(worker, Synthesizer(model))


async def test_stop_cancels_what_is_spoken(endless_model):
    async with working() as worker:
        request = request_for(endless_model, "Hi.", 5_000, guarded=False)
        utterance = worker.submit(Synthesizer(endless_model), request)
        await first_chunk(utterance)
    assert utterance.is_finished
    assert utterance.finish_reason is FinishReason.CANCELLED


async def test_text_that_an_ended_utterance_cannot_take_is_reported(model, endless_model):
    async with working() as worker:
        request = request_for(endless_model, "Hello there ", 3, is_open=True)
        utterance = worker.submit(Synthesizer(endless_model), request)
        assert await worker.extend(utterance, "my friend ")
        await eventually(lambda: utterance.is_finished)
        assert not await worker.extend(utterance, "and this is lost.")


async def test_audio_that_is_not_taken_pauses_its_utterance_only(endless_model, monkeypatch):
    monkeypatch.setattr(worker_module, "_MAX_BUFFER_S", 1.0)
    async with working() as worker:
        synthesizer = Synthesizer(endless_model, max_lanes=2)
        request = request_for(endless_model, "Hi.", 100, guarded=False)
        slow = worker.submit(synthesizer, request)
        await eventually(lambda: slow.is_blocked and worker.status.busy_s == 0)
        assert slow.timing.num_frames < 20
        assert len(await speak(worker, synthesizer)) > 0
        assert slow.timing.num_frames < 20
        pcm = await hear(worker, slow)
        assert len(pcm) == 2 * 100 * endless_model.facts.samples_per_frame


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
        await first_chunk(speaking)
        with monkeypatch.context() as patched:
            _starve(patched, num_blocks)
            with pytest.raises(SynthesisError, match="out of memory"):
                await hear(worker, worker.submit(synthesizer, long_text))
        assert await hear(worker, speaking) == wanted
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
