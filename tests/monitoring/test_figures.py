"""What a server tells those who watch it: /metrics, /health and one log line for each request."""

import asyncio
import json
import logging
import re
import shutil
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing, asynccontextmanager

import pytest

from tests.conftest import NUM_THREADS
from tests.monitoring.test_http import get
from tests.monitoring.test_metrics import parse
from tests.protocol.client import eventually
from tests.test_app import Harness, free_port
from wyoming_qwen3tts.config import Config
from wyoming_qwen3tts.engine.engine import open_engine
from wyoming_qwen3tts.errors import BusyError, ConfigError, SynthesisError
from wyoming_qwen3tts.monitoring.health import HealthMonitor
from wyoming_qwen3tts.monitoring.metrics import Metrics
from wyoming_qwen3tts.protocol.backend import SpeechRequest
from wyoming_qwen3tts.protocol.server import ListenerStatus
from wyoming_qwen3tts.synthesis.frame_loop import FrameLoop

P = "wyoming_qwen3tts_"


@pytest.fixture(scope="module")
def data_dir(tmp_path_factory, tiny_bundle):
    root = tmp_path_factory.mktemp("data")
    for name in ("0.6B-custom_voice", "1.7B-voice_design"):
        source = tiny_bundle(name)
        shutil.copytree(source, root / source.parent.name / source.name)
    return root


@asynccontextmanager
async def speaking_server(data_dir, **settings):
    figures = Metrics()
    config = Config(data_dirs=(str(data_dir),), threads=NUM_THREADS, seed=1, **settings)
    async with open_engine(config, figures) as source:
        await eventually(
            lambda: source.status().models and not source.status().models[0].num_users, 30
        )
        yield source, figures


async def one_piece(text):
    yield text


async def speak(source, text="Hello there.", **request):
    async with aclosing(source.stream(SpeechRequest(**request), one_piece(text))) as chunks:
        return [chunk async for chunk in chunks]


def spoken_lines(caplog):
    return [r.message for r in caplog.records if r.message.startswith("Spoke:")]


async def test_requests_of_every_end_are_counted_and_logged(data_dir, caplog, monkeypatch):
    caplog.set_level(logging.INFO)
    async with speaking_server(data_dir, max_requests=1) as (source, figures):
        caplog.clear()
        await speak(source, voice="ryan", language="de")
        await speak(source, voice="designed", speaker="a warm voice")
        await speak(source, "...", voice="ryan")
        stream = source.stream(SpeechRequest("ryan"), one_piece("Some long text. " * 50))
        await anext(stream)
        with pytest.raises(BusyError):
            await speak(source)
        await stream.aclose()
        with monkeypatch.context() as patched:
            patched.setattr(FrameLoop, "step", lambda _: 1 / 0)
            with pytest.raises(SynthesisError):
                await speak(source, voice="ryan")
        values = parse(figures.render())
    counted = {key: value for key, value in values.items() if f"{P}requests_total" in key}
    assert counted == {
        f'{P}requests_total{{finish="stop",voice_kind="preset"}}': 1,
        f'{P}requests_total{{finish="stop",voice_kind="designed"}}': 1,
        f'{P}requests_total{{finish="none",voice_kind="preset"}}': 1,
        f'{P}requests_total{{finish="cancelled",voice_kind="preset"}}': 1,
        f'{P}requests_total{{finish="error",voice_kind="preset"}}': 1,
        f'{P}requests_total{{finish="error",voice_kind="none"}}': 1,
    }
    assert values[f"{P}first_audio_seconds_count"] == 3
    line = re.compile(
        r"Spoke: voice=\w+ kind=(preset|designed) language=\w+ characters=\d+ sentences=\d+ "
        r"first_audio=(none|\d+\.\d{3}s) audio=\d+\.\d\ds rtf=(none|\d+\.\d\d) finish=(\w+)"
    )
    matches = [line.fullmatch(text) for text in spoken_lines(caplog)]
    assert all(matches)
    assert [match[4] for match in matches] == [
        "stop", "stop", "none", "cancelled", "SynthesisError",
    ]  # fmt: skip
    assert "language=de" in matches[0][0]
    assert "Hello" not in caplog.text


async def test_text_is_logged_only_for_debugging(data_dir, caplog):
    async with speaking_server(data_dir) as (source, _):
        await speak(source, "A secret word.", voice="ryan")
        assert "secret" not in "".join(r.message for r in caplog.records if r.levelno > 10)
        caplog.set_level(logging.DEBUG)
        await speak(source, "A secret word.", voice="ryan")
        assert "secret" in caplog.text


async def test_first_audio_counts_from_the_sentence_and_not_from_the_request(data_dir, caplog):
    """The time that a language model thinks is none of ours."""
    caplog.set_level(logging.INFO)

    async def thinking():
        await asyncio.sleep(0.7)
        yield "Hello "
        await asyncio.sleep(0.7)
        yield "there. And"
        yield " so on."

    async with speaking_server(data_dir) as (source, _):
        caplog.clear()
        async with aclosing(source.stream(SpeechRequest("ryan"), thinking())) as chunks:
            assert [chunk async for chunk in chunks]
    (line,) = spoken_lines(caplog)
    assert float(re.search(r"first_audio=([\d.]+)s", line)[1]) < 0.7


async def test_describe_is_answered_while_every_common_thread_is_busy(data_dir):
    async with speaking_server(data_dir) as (source, _):
        await speak(source)
        asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(1))
        is_over = threading.Event()
        hogs = [asyncio.create_task(asyncio.to_thread(is_over.wait, 10)) for _ in range(3)]
        async with asyncio.timeout(1):
            assert await source.voices()
        is_over.set()
        await asyncio.gather(*hogs)


async def test_pages_of_a_server_from_its_start_to_its_end():
    port = free_port()
    harness = Harness(http=str(port))
    async with harness.running(loads=False), await harness.connect() as client:
        code, _, body = await get(port, "/health")
        assert (code, json.loads(body)["status"]) == (503, "starting")
        assert parse((await get(port, "/metrics"))[2])
        harness.may_load.set()
        await client.send("synthesize", {"text": "FAIL"})
        await client.expect("error")
        code, _, body = await get(port, "/health")
        assert code == 200
        assert json.loads(body).items() >= {"status": "ok", "connections": 1}.items()
        values = parse((await get(port, "/metrics"))[2])
        assert values[f'{P}errors_total{{code="SynthesisError"}}'] == 1
        assert values[f"{P}connections"] == values[f"{P}connections_accepted_total"] == 1
        assert values["process_resident_memory_bytes"] > 1e7
        assert values["process_open_fds"] > 3
        assert values["process_threads"] >= 1
        assert values["process_cpu_seconds_total"] > 0


@pytest.mark.parametrize(
    ("settings", "message"),
    [({"http": "nowhere"}, "http: 'nowhere'"), ({"allowed_networks": ("home",)}, "'home'")],
)
async def test_wrong_settings_end_the_start(settings, message):
    async with Harness(**settings).running() as task:
        await asyncio.wait([task], timeout=5)
        with pytest.raises(ConfigError, match=message):
            await task


async def test_metrics_of_the_models(data_dir):
    async with speaking_server(data_dir) as (source, metrics):
        monitor = HealthMonitor(lambda: ListenerStatus(num_connected=3))
        monitor.backend = source
        metrics.watch(monitor)
        await speak(source, voice="ryan")
        values = parse(metrics.render())
        health = monitor.report()
    labels = '{device="cpu",model="tiny-0.6b-custom_voice",precision="fp32"}'
    assert values[f"{P}model_open{labels}"] == 1
    assert values[f"{P}model_weights_bytes{labels}"] > 1e5
    assert values[f"{P}model_load_seconds{labels}"] > 0
    assert values[f"{P}connections"] == 3
    assert values[f"{P}open_requests"] == 0
    assert f"{P}queue" in values
    assert health["status"] == "ok"
    assert {"model": "tiny-0.6b-custom_voice/cpu_fp32", "state": "open", "requests": 0} in health[
        "models"
    ]


async def test_health_fails_where_the_only_model_is_damaged(tmp_path, tiny_bundle):
    source = tiny_bundle("0.6B-custom_voice")
    bundle = tmp_path / source.parent.name / source.name
    shutil.copytree(source, bundle)
    talker = bundle / "talker.onnx"
    talker.write_bytes(b"x" * talker.stat().st_size)
    config = Config(data_dirs=(str(tmp_path),), threads=NUM_THREADS)
    monitor = HealthMonitor(ListenerStatus)
    async with open_engine(config, Metrics()) as backend:
        monitor.backend = backend
        await eventually(lambda: monitor.health == "failed", 30)
        (model,) = monitor.report()["models"]
    assert model["state"] == "failed"
    assert model["message"]
