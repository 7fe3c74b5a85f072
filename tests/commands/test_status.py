"""The status report: of what is installed, and in the server's log."""

import asyncio
import json
import logging
import os
import shutil
import signal
from contextlib import aclosing

import pytest

from tests.conftest import NUM_THREADS
from tests.support.fakes import VOICES, FakeSpeechSource
from wyoming_qwen3tts.cli import main
from wyoming_qwen3tts.config import Config
from wyoming_qwen3tts.engine.engine import open_engine
from wyoming_qwen3tts.engine.model_pool import ModelPool, ModelUsage
from wyoming_qwen3tts.engine.request_report import RequestReport
from wyoming_qwen3tts.errors import BundleError, RequestError, SynthesisError
from wyoming_qwen3tts.machine import resident_memory_bytes
from wyoming_qwen3tts.models.bundles import read_bundle
from wyoming_qwen3tts.protocol.backend import SpeechRequest
from wyoming_qwen3tts.protocol.server import Listener

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


def add_voice(data_dir, name, **files):
    folder = data_dir / "voices" / "en" / name
    folder.mkdir(parents=True)
    for stem, text in files.items():
        (folder / f"{stem}.txt").write_text(text)


def status(*arguments, capsys):
    code = main(["status", *map(str, arguments)])
    return code, capsys.readouterr().out


# The command.


def test_models_voices_and_problems_are_listed(data_dir, tiny_bundle, capsys):
    shutil.copytree(tiny_bundle("1.7B-voice_design"), data_dir / "design" / "cpu_fp32")
    (data_dir / "design" / "cpu_fp32" / "vocab.json").unlink()
    (data_dir / "other" / "cpu_int8").mkdir(parents=True)
    (data_dir / "other" / "cpu_int8" / "manifest.json").write_text("{")
    add_voice(data_dir, "gran", instruct="An old lady with a bright voice.")
    add_voice(data_dir, "nobody")
    custom = read_bundle(next(data_dir.glob("tiny-*/cpu_int8")))

    code, text = status("--data-dir", data_dir, "--json", capsys=capsys)
    report = json.loads(text)
    assert code == 0
    first, second = report["models"]
    assert first["precision"] == "int8"
    assert first["disk_bytes"] == custom.num_bytes > first["weights_bytes"] > 0
    assert first["problem"] is first["memory_bytes"] is report["server"] is None
    assert "vocab.json is missing" in second["problem"]
    assert report["num_library_voices"] == 1
    assert report["num_voices"] > 9
    assert any("manifest.json" in problem for problem in report["problems"])
    assert any("nobody" in problem for problem in report["problems"])

    _, text = status("--data-dir", data_dir, capsys=capsys)
    assert "  ready" in text
    assert "vocab.json is missing" in text
    assert text.count("PROBLEM  ") == 2


def test_nothing_installed_is_said_and_nothing_is_built(tmp_path, capsys):
    code, text = status("--data-dir", tmp_path, capsys=capsys)
    assert code == 0
    assert "No model is installed" in text
    assert not list(tmp_path.iterdir())


def test_memory_is_measured_on_demand(data_dir, capsys):
    arguments = ("--data-dir", data_dir, "--measure", "--threads", NUM_THREADS, "--json")
    (model,) = json.loads(status(*arguments, capsys=capsys)[1])["models"]
    assert model["load_s"] > 0
    assert 1_000_000 < model["memory_bytes"] < 1_000_000_000


async def test_a_running_server_is_asked(tmp_path, capsys):
    async with Listener("tcp://127.0.0.1:0", FakeSpeechSource()) as listener:
        uri = f"tcp://127.0.0.1:{listener.port}"
        arguments = ["--data-dir", tmp_path, "--uri", uri]
        code, text = await asyncio.to_thread(status, *arguments, capsys=capsys)
    assert code == 0
    assert f"Server {uri}: " in text
    assert f"{len(VOICES)} voices" in text
    code, text = await asyncio.to_thread(status, *arguments, capsys=capsys)
    assert code == 1
    assert "does not answer" in text


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
