"""A server whose models are still on their way."""

import asyncio
import json
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from contextlib import aclosing

import pytest
from wyoming.event import Event, read_event, write_event

from tests.conftest import NUM_THREADS
from tests.support.hub import LISTING
from tests.support.hub_fixtures import OWN, child_environment
from wyoming_qwen3tts.config import Config
from wyoming_qwen3tts.engine.engine import open_engine
from wyoming_qwen3tts.errors import ModelNotReadyError
from wyoming_qwen3tts.models import installer as installer_module
from wyoming_qwen3tts.models import registry as model_catalogue
from wyoming_qwen3tts.models.bundles import read_bundle
from wyoming_qwen3tts.models.installer import ModelInstaller
from wyoming_qwen3tts.models.progress import InstallProgress
from wyoming_qwen3tts.models.references import served_models
from wyoming_qwen3tts.protocol.backend import SpeechRequest
from wyoming_qwen3tts.runtime.manifest import MANIFEST_NAME

CUSTOM_VOICE = "qwen3-tts-0.6b-customvoice"
WEIGHTS = "/model.safetensors"
PRESETS = {"aiden", "dylan", "eric", "ono_anna", "ryan", "serena", "sohee", "uncle_fu", "vivian"}


def config_for(tmp_path, *models, **settings) -> Config:
    (tmp_path / "data").mkdir(exist_ok=True)
    data_dir = (str(tmp_path / "data"),)
    return Config(models=models, data_dirs=data_dir, threads=NUM_THREADS, **settings)


async def speak(source, voice=None, text="Hello there."):
    async def pieces():
        yield text

    async with aclosing(source.stream(SpeechRequest(voice=voice), pieces())) as chunks:
        return [chunk async for chunk in chunks]


async def names(source) -> set[str]:
    return {voice.name for voice in await source.voices()}


async def until(condition, timeout_s: float = 30.0) -> None:
    async with asyncio.timeout(timeout_s):
        while True:
            if await condition():
                return
            await asyncio.sleep(0.05)


async def test_voices_are_listed_at_once_and_requests_are_told_how_far_it_is(
    hub, builds_here, tiny_catalogue, tmp_path
):
    hub.block_pause_s = 0.005
    async with open_engine(config_for(tmp_path, CUSTOM_VOICE)) as source:
        assert await names(source) == PRESETS
        told = []

        async def speaks() -> bool:
            try:
                return bool(await speak(source, "ryan"))
            except ModelNotReadyError as error:
                told.append(str(error))
                return False

        await until(speaks)
        assert await names(source) == PRESETS
    start = "qwen3-tts-12hz-0.6b-customvoice/cpu_int8 is not ready yet: "
    assert all(message.startswith(start) for message in told)
    stages = [re.fullmatch(rf"{start}(\w+) \d+ %(, about .*)?\.", each)[1] for each in told]
    assert set(stages) == {"fetching", "building"}


async def test_request_may_wait_for_its_model(hub, builds_here, tmp_path):
    config = config_for(tmp_path, OWN, model_wait_timeout=60.0)
    async with open_engine(config) as source:
        assert await names(source) == set()
        assert await speak(source, "ryan")
        assert await names(source) == PRESETS
        assert await speak(source, "nobody")


async def test_model_that_cannot_come_does_not_stop_the_others(
    hub, builds_here, tiny_catalogue, tiny_bundle, tmp_path
):
    source = tiny_bundle("1.7B-voice_design")
    shutil.copytree(source, tmp_path / "data" / "designer" / "cpu_fp32")
    hub.fail(LISTING, status=404, headers={"X-Error-Code": "RepoNotFound"}, times=-1)
    config = config_for(tmp_path, "tiny-1.7b-voice_design", CUSTOM_VOICE)
    async with open_engine(config) as source:
        assert await names(source) == {*PRESETS, "designed"}

        async def failed() -> bool:
            with pytest.raises(ModelNotReadyError) as caught:
                await speak(source, "ryan")
            return "is not ready: Qwen/Qwen3-TTS-12Hz-0.6B-CustomVoice does not" in str(
                caught.value
            )

        await until(failed)
        assert await speak(source, "designed")


async def test_whole_bundle_speaks_until_the_damaged_one_is_built_again(
    hub, builds_here, tiny_catalogue, tiny_bundle, tmp_path
):
    folder = tmp_path / "data" / model_catalogue.find_model(CUSTOM_VOICE).bundle_name
    for precision in ("fp32", "int8"):
        shutil.copytree(tiny_bundle("0.6B-custom_voice", precision), folder / f"cpu_{precision}")
        manifest = folder / f"cpu_{precision}" / MANIFEST_NAME
        manifest.write_text(json.dumps(json.loads(manifest.read_text()) | {"name": folder.name}))
    (folder / "cpu_int8" / "talker.onnx.data").unlink()
    hub.block_pause_s = 0.005
    async with open_engine(config_for(tmp_path, CUSTOM_VOICE)) as source:
        assert await speak(source, "ryan"), "the other one is there"

        async def is_repaired() -> bool:
            return [state.state for state in source.status().arrivals] == ["ready"]

        await until(is_repaired)
        assert await names(source) == PRESETS
        assert await speak(source, "ryan")
        used = {model.labels[2] for model in source.status().models}
    assert used == {"fp32", "int8"}


@pytest.fixture
def old_bundle(tmp_path, tiny_catalogue, tiny_bundle):
    """Return the installed bundle of a published model, whose graphs are of the first revision."""
    model = model_catalogue.find_model(CUSTOM_VOICE)
    directory = tmp_path / "data" / model.bundle_name / "cpu_int8"
    shutil.copytree(tiny_bundle("0.6B-custom_voice", "int8"), directory)
    manifest = json.loads((directory / MANIFEST_NAME).read_text()) | {"name": model.bundle_name}
    del manifest["graph_revision"]
    manifest["source"] |= {"repo": model.repo, "revision": model.revision}
    (directory / MANIFEST_NAME).write_text(json.dumps(manifest))
    return directory


async def test_bundle_of_older_graphs_speaks_and_is_renewed_in_the_background(
    hub, builds_here, old_bundle, tmp_path
):
    hub.block_pause_s = 0.005
    async with open_engine(config_for(tmp_path)) as source:
        assert await speak(source, "ryan")
        (old,) = source.status().models
        assert old.bundle.is_outdated

        async def is_renewed() -> bool:
            await speak(source, "ryan")
            return not source.status().models[0].bundle.is_outdated

        await until(is_renewed)
        assert await names(source) == PRESETS
        assert [state.state for state in source.status().arrivals] == ["ready"]
    assert not read_bundle(old_bundle).is_outdated


async def test_bundle_of_older_graphs_is_kept_where_its_checkpoint_cannot_be_had(
    hub, builds_here, old_bundle, tmp_path
):
    async with open_engine(config_for(tmp_path, local_files_only=True)) as source:

        async def has_failed() -> bool:
            return [state.state for state in source.status().arrivals] == ["failed"]

        await until(has_failed)
        assert await speak(source, "ryan")
    assert read_bundle(old_bundle).is_outdated
    assert hub.requests == []


def installer_for(tmp_path, *models, **settings) -> ModelInstaller:
    return ModelInstaller(served_models(models, [tmp_path / "data"]), **settings)


@pytest.mark.slow
async def test_hub_that_is_unreachable_is_asked_again_until_it_answers(
    hub, builds_here, tmp_path, monkeypatch
):
    monkeypatch.setattr(installer_module, "_FIRST_RETRY_S", 0.3)
    hub.fail(LISTING, status=503, times=2 * 4)
    installer = installer_for(tmp_path, OWN)
    assert installer.bundles == []
    async with installer.running():

        async def given_up() -> bool:
            with pytest.raises(ModelNotReadyError) as caught:
                await installer.ensure_ready(None)
            return "The next attempt is in 10 seconds." in str(caught.value)

        await until(given_up)
        installed = [bundle async for bundle in installer.installed()]
    assert installed == installer.bundles
    assert installed[0].reference == "someone--tiny/cpu_int8"
    assert not await installer.ensure_ready(installed[0])
    assert [progress.state for progress in installer.progress] == ["ready"]


@pytest.mark.parametrize("retry_s", [0.0, None])
async def test_what_may_work_later_is_tried_again(hub, builds_here, tmp_path, monkeypatch, retry_s):
    """B21: little memory, or a build that was killed for it."""
    real, attempts = installer_module.run_install, []

    async def run_install(job, report):
        attempts.append(job)
        if len(attempts) > 1:
            return await real(job, report)
        failed = InstallProgress(job.request.reference, "failed", 0.0, None, "No memory.", retry_s)
        report(failed)
        return failed

    monkeypatch.setattr(installer_module, "_FIRST_RETRY_S", 0.1)
    monkeypatch.setattr(installer_module, "run_install", run_install)
    installer = installer_for(tmp_path, OWN, wait_s=60.0)
    async with installer.running():
        if retry_s is None:
            with pytest.raises(ModelNotReadyError, match="is not ready: No memory"):
                await installer.ensure_ready(None)
        else:
            assert await installer.ensure_ready(None)
    assert len(attempts) == (1 if retry_s is None else 2)


@pytest.mark.parametrize("text", ['{"model": null, "state": "building"}', "[1]", "\0"])
async def test_progress_files_of_unknown_content_do_not_stop_the_installer(
    hub, builds_here, tmp_path, text
):
    """B22: one such file ended the thread, and no model was ever installed."""
    installer = installer_for(tmp_path, OWN, wait_s=60.0)
    folder = tmp_path / "data" / ".provision"
    folder.mkdir(parents=True)
    (folder / "other--cpu_int8.json").write_text(text)
    async with installer.running():
        assert await installer.ensure_ready(None)


async def test_stopping_a_server_ends_a_transfer_at_once(hub, tmp_path):
    """B23."""
    hub.block_pause_s = 0.05
    installer = installer_for(tmp_path, OWN)
    async with installer.running():

        async def has_begun() -> bool:
            return hub.bytes_sent > 10_000

        await until(has_begun)
        started_s = time.monotonic()
    assert time.monotonic() - started_s < 20.0


# In a process of its own


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def ask(port: int, event: Event, last: str) -> list[Event]:
    """Send an event; return what comes, up to an event of the type ``last`` or an error."""
    with socket.create_connection(("127.0.0.1", port), timeout=20) as connection:
        stream = connection.makefile("rwb")
        write_event(event, stream)
        events = []
        while not events or events[-1].type not in (last, "error"):
            received = read_event(stream)
            assert received is not None
            events.append(received)
        stream.close()
    return events


def connect_when_open(port: int) -> None:
    end_s = time.monotonic() + 20
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
        except OSError:
            assert time.monotonic() < end_s
            time.sleep(0.02)
        else:
            return


@pytest.mark.slow
def test_server_that_meets_every_failure_on_its_way_speaks_in_the_end(hub, tmp_path):
    """One server process, one run through what a bad day of the hub is like."""
    hub.fail(LISTING, status=429, headers={"Retry-After": "0"})
    hub.fail("merges.txt", status=503)
    hub.fail("tokenizer_config.json", flip=True)
    hub.fail(WEIGHTS, cut=True, after_bytes=300_000)
    hub.fail(WEIGHTS, reset=True, after_bytes=300_000)
    hub.fail(WEIGHTS, flip=True)
    hub.fail(WEIGHTS, stall_s=1.5, after_bytes=100_000)
    port = free_port()
    (tmp_path / "data").mkdir()
    environment = {
        **child_environment(hub, tmp_path / "home"),
        "HF_HUB_DOWNLOAD_TIMEOUT": "1",
        "WYOMING_QWEN3TTS_DATA_DIRS": str(tmp_path / "data"),
    }
    flags = ["--uri", f"tcp://127.0.0.1:{port}", "--model", OWN, "--threads", "1"]
    process = subprocess.Popen(
        [sys.executable, "-m", "wyoming_qwen3tts", *flags],
        env=environment,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        connect_when_open(port)
        assert ask(port, Event("describe"), "info")[-1].data["tts"]
        (error,) = ask(port, Event("synthesize", {"text": "Hi"}), "audio-stop")
        assert error.data["code"] == "ModelNotReadyError"
        assert "is not ready yet: fetching" in error.data["text"]
        end_s = time.monotonic() + 60
        while True:
            events = ask(port, Event("synthesize", {"text": "Hi"}), "audio-stop")
            if events[-1].type == "audio-stop":
                break
            assert time.monotonic() < end_s, events[-1].data
            time.sleep(0.2)
        assert events[0].type == "audio-start"
        process.send_signal(signal.SIGTERM)
        _, log = process.communicate(timeout=20)
    finally:
        process.kill()
        process.wait()
    assert process.returncode == 0
    assert "Traceback" not in log
    assert all(fault.times == 0 for fault in hub.faults)
    for words in ("someone--tiny/cpu_int8: fetching", "building", "is damaged", "status 503"):
        assert words in log
