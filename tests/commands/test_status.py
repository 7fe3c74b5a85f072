"""The status report in the server's log."""

import asyncio
import logging
import os
import shutil
import signal
from contextlib import aclosing

import pytest

from tests.conftest import NUM_THREADS
from wyoming_qwen3tts.config import Config
from wyoming_qwen3tts.engine.engine import open_engine
from wyoming_qwen3tts.engine.model_pool import ModelPool, ModelUsage
from wyoming_qwen3tts.engine.request_report import RequestReport
from wyoming_qwen3tts.errors import BundleError, RequestError, SynthesisError
from wyoming_qwen3tts.machine import resident_memory_bytes
from wyoming_qwen3tts.models.bundles import read_bundle
from wyoming_qwen3tts.protocol.backend import SpeechRequest

CUSTOM = "0.6B-custom_voice"


@pytest.fixture(autouse=True)
def root_logger():
    """Undo what the command line does to the log, which outlives a test's standard error."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)


@pytest.fixture
def data_dir(tiny_bundle, tmp_path):
    """A data directory with one model."""
    source = tiny_bundle(CUSTOM, "int8")
    shutil.copytree(source, tmp_path / source.parent.name / source.name)
    return tmp_path


# The server's log.


async def test_the_pool_logs_what_a_model_did(tiny_bundle, tiny_model, caplog):
    bundle = read_bundle(tiny_bundle(CUSTOM))
    pool = ModelPool(
        NUM_THREADS,
        max_lanes=1,
        open_model=lambda _: tiny_model(CUSTOM),
    )
    with caplog.at_level(logging.INFO):
        async with pool.use(bundle) as (_, model):
            report = RequestReport("ryan", "en")
            report.audio_s, report.synthesis_s, report.num_utterances = 4.0, 1.0, 2
            report.finish_reasons = ["stop", "length"]
            model.usage.add(report)
        for error, kind in (
            (SynthesisError("lost"), SynthesisError),
            (RequestError("no"), RequestError),
        ):
            with pytest.raises(kind):
                async with pool.use(bundle):
                    raise error
        pool.log_status()
        await pool.unload_idle(0.0)
    lines = [record.message for record in caplog.records if record.message.startswith("Status: ")]
    assert len(lines) == 2
    for word in (
        *("device=cpu", "precision=fp32", "load=", "memory=", "requests=1", "sentences=2"),
        *("generation=1.0s", "audio=4.0s", "rtf=0.25", "warnings=2", "errors=1"),
    ):
        assert word in lines[0]
    assert "state=open" in lines[0]
    assert "state=closed" in lines[1]


async def test_a_model_that_cannot_be_opened_is_an_error_of_the_model(tiny_bundle):
    def refuse(_):
        raise BundleError("it is damaged")

    bundle = read_bundle(tiny_bundle(CUSTOM))
    pool = ModelPool(NUM_THREADS, max_lanes=1, open_model=refuse)
    with pytest.raises(BundleError):
        async with pool.use(bundle):
            pass
    (state,) = pool.status()
    assert (state.usage.num_errors, state.is_loaded, state.num_users) == (1, False, 0)
    assert state.memory_bytes is None
    assert state.usage.rtf is None
    assert "rtf=none" in state.describe()


async def test_a_signal_and_the_end_bring_the_report(data_dir, caplog):
    config = Config(data_dirs=(str(data_dir),), threads=NUM_THREADS)

    async def text():
        yield "Hello there."

    def lines():
        return [each.message for each in caplog.records if each.message.startswith("Status: ")]

    with caplog.at_level(logging.INFO):
        async with open_engine(config) as source:
            async with aclosing(source.stream(SpeechRequest(voice="ryan"), text())) as chunks:
                audio_s = sum([chunk.duration_s async for chunk in chunks])
            os.kill(os.getpid(), signal.SIGUSR1)
            await asyncio.sleep(0.05)
            (at_signal,) = lines()
        assert len(lines()) == 2
    assert audio_s > 0
    assert "errors=0" in at_signal
    assert "requests=0" not in at_signal
    assert "rtf=none" not in at_signal
    assert signal.getsignal(signal.SIGUSR1) is signal.SIG_DFL


def test_usage_adds_up():
    usage = ModelUsage()
    for reasons in (["stop"], ["retry", "length"], []):
        report = RequestReport("ryan", None)
        report.audio_s, report.synthesis_s = 2.0, 3.0
        report.finish_reasons = reasons
        usage.add(report)
    assert (usage.num_requests, usage.num_warnings, usage.rtf) == (3, 2, 1.5)


def test_resident_memory_grows_with_what_is_held():
    before_bytes = resident_memory_bytes()
    block = bytearray(os.urandom(1)) * 30_000_000
    assert resident_memory_bytes() - before_bytes > 20_000_000
    del block
