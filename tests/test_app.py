import asyncio
import io
import logging
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path

import pytest
from wyoming.event import Event, read_event, write_event

from tests.protocol.client import WireClient, eventually, types
from tests.support.fakes import FakeSpeechSource
from wyoming_qwen3tts import __version__, app
from wyoming_qwen3tts.app import run_server
from wyoming_qwen3tts.cli import main
from wyoming_qwen3tts.commands import health
from wyoming_qwen3tts.commands.health import ask_server
from wyoming_qwen3tts.config import Config
from wyoming_qwen3tts.errors import BundleError, ConfigError
from wyoming_qwen3tts.monitoring.metrics import Metrics

ROOT = Path(__file__).parents[1]
PLAIN = ["audio-start", "audio-chunk", "audio-stop"]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Harness:
    """A server in this process, with a source that can be held back while it loads."""

    def __init__(self, uri: str | None = None, **settings) -> None:
        self.port = free_port()
        self.uri = uri or f"tcp://127.0.0.1:{self.port}"
        self.config = Config(uri=self.uri, shutdown_timeout=1.5, **settings)
        self.source = FakeSpeechSource(frame_s=0.01)
        self.may_load = asyncio.Event()
        self.load_error: Exception | None = None
        self.is_closed = False

    @asynccontextmanager
    async def create_source(self, config):
        assert config is self.config
        await self.may_load.wait()
        if self.load_error is not None:
            raise self.load_error
        try:
            yield self.source
        finally:
            self.is_closed = True

    async def connect(self) -> WireClient:
        async with asyncio.timeout(5):
            while True:
                with suppress(ConnectionRefusedError):
                    return WireClient(*await asyncio.open_connection("127.0.0.1", self.port))
                await asyncio.sleep(0.01)

    @asynccontextmanager
    async def running(self, *, loads: bool = True):
        if loads:
            self.may_load.set()
        task = asyncio.create_task(run_server(self.config, self.create_source, Metrics()))
        try:
            yield task
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


@pytest.fixture
async def harness():
    return Harness()


async def ended(task: asyncio.Task) -> None:
    async with asyncio.timeout(5):
        await task


async def test_serves_and_says_so(harness, caplog):
    caplog.set_level(logging.INFO)
    async with harness.running() as task:
        async with await harness.connect() as client:
            await client.send("describe")
            await client.expect("info")
            await client.send("synthesize", {"text": "Hi"})
            assert types(await client.read_until("audio-stop")) == PLAIN
        assert [r.message for r in caplog.records if r.message.startswith("Ready")]
        os.kill(os.getpid(), signal.SIGTERM)
        await ended(task)
    assert harness.is_closed
    assert caplog.records[-1].message == "Stopped"


async def test_client_that_comes_while_models_load_waits(harness):
    async with harness.running(loads=False), await harness.connect() as client:
        await client.send("describe")
        await client.send("synthesize", {"text": "Hi"})
        await asyncio.sleep(0.1)
        harness.may_load.set()
        await client.expect("info")
        assert types(await client.read_until("audio-stop")) == PLAIN


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_signal_while_models_load_ends_at_once(harness, number):
    async with harness.running(loads=False) as task:
        client = await harness.connect()
        os.kill(os.getpid(), number)
        await ended(task)
        client.writer.close()


async def test_signal_lets_running_requests_end_and_takes_no_more(harness):
    async with harness.running() as task:
        busy, idle = await harness.connect(), await harness.connect()
        await busy.send("synthesize", {"text": "a" * 20})
        await idle.send("ping")
        await idle.expect("pong")
        await busy.expect("audio-start")
        os.kill(os.getpid(), signal.SIGTERM)
        assert await idle.read() is None
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection("127.0.0.1", harness.port)
        await busy.send("synthesize", {"text": "one more"})
        events = await busy.read_to_end()
        assert types(events) == ["audio-chunk", "audio-stop", "error"]
        assert events[-1].data["code"] == "BusyError"
        await ended(task)
        for client in (busy, idle):
            client.writer.close()


async def test_what_takes_too_long_to_end_fails_with_an_error(harness):
    async with harness.running() as task:
        client = await harness.connect()
        await client.send("synthesize-start")
        await client.send("synthesize-chunk", {"text": "a" * 1_000})
        await client.expect("audio-start")
        os.kill(os.getpid(), signal.SIGTERM)
        events = await client.read_to_end()
        assert types(events) == ["audio-chunk", "error", "audio-stop", "synthesize-stopped"]
        await ended(task)
        client.writer.close()
    assert harness.source.num_cancelled == 1


async def test_address_that_is_taken_is_an_error(harness):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", harness.port))
        taken.listen()
        async with harness.running() as task:
            with pytest.raises(ConfigError, match=r"cannot listen on tcp.*--uri"):
                await ended(task)


@pytest.mark.parametrize("uri", ["tcp://127.0.0.1", "tcp://:x", "http://a:1", "", "unix://a"])
async def test_address_that_is_none_is_an_error(uri):
    harness = Harness()
    harness.config = Config(uri=uri)
    async with harness.running() as task:
        with pytest.raises(ConfigError, match="tcp://HOST:PORT"):
            await ended(task)


async def test_model_that_cannot_be_loaded_ends_the_server(harness):
    harness.load_error = BundleError("damaged")
    async with harness.running(loads=False) as task:
        client = await harness.connect()
        await client.send("describe")
        harness.may_load.set()
        with pytest.raises(BundleError, match="damaged"):
            await ended(task)
        assert await client.read() is None
        client.writer.close()


async def test_announced_when_ready_and_withdrawn_first(monkeypatch):
    harness = Harness(zeroconf="kitchen")
    steps = []

    @asynccontextmanager
    async def advertised(name, address, port):
        steps.append(("advertised", name, address.hostname, port, harness.may_load.is_set()))
        yield
        steps.append(("withdrawn", harness.is_closed))

    monkeypatch.setattr(app, "advertised", advertised)
    async with harness.running(loads=False) as task:
        client = await harness.connect()
        assert steps == []
        harness.may_load.set()
        await eventually(lambda: len(steps) == 1)
        client.writer.close()
        os.kill(os.getpid(), signal.SIGTERM)
        await ended(task)
    assert steps == [
        ("advertised", "kitchen", "127.0.0.1", harness.port, True),
        ("withdrawn", False),
    ]


async def test_unix_socket_and_what_is_left_of_it(tmp_path):
    path = tmp_path / "voice.sock"
    stale = socket.socket(socket.AF_UNIX)
    stale.bind(str(path))
    stale.close()
    harness = Harness(uri=f"unix://{path}")
    async with harness.running() as task:
        await eventually(lambda: harness.source is not None and path.exists())
        async with asyncio.timeout(5):
            while True:
                with suppress(OSError):
                    assert (await ask_server(harness.uri, 1.0)).tts[0].name == "qwen3-tts"
                    break
                await asyncio.sleep(0.01)
        os.kill(os.getpid(), signal.SIGTERM)
        await ended(task)
    assert not path.exists()


async def test_unix_socket_never_takes_the_place_of_a_file(tmp_path):
    path = tmp_path / "precious.txt"
    path.write_text("mine")
    async with Harness(uri=f"unix://{path}").running() as task:
        with pytest.raises(ConfigError, match="cannot listen"):
            await ended(task)
    assert path.read_text() == "mine"


# In a process of its own


@contextmanager
def server_process(uri: str, frame_s: float, hangs: str = "", **options):
    fake_server = ["-m", "tests.support.fake_server", uri, str(frame_s), hangs]
    process = subprocess.Popen(
        [sys.executable, "-W", "ignore", *fake_server],
        cwd=ROOT,
        stderr=subprocess.PIPE,
        **options,
    )
    patience = threading.Timer(60, process.kill)
    patience.start()
    try:
        yield process
    finally:
        patience.cancel()
        process.kill()
        process.wait()
        for pipe in (process.stdin, process.stdout, process.stderr):
            if pipe is not None:
                pipe.close()


def wait_for_line(process: subprocess.Popen, start: str) -> None:
    for line in process.stderr:
        if line.decode().startswith(start):
            return
    raise AssertionError(f"the server ended without the line {start}")


def speak_to(port: int, text: str) -> tuple[socket.socket, io.BufferedReader]:
    connection = socket.create_connection(("127.0.0.1", port), timeout=5)
    stream = connection.makefile("rwb")
    write_event(Event("synthesize", {"text": text}), stream)
    assert read_event(stream).type == "audio-start"
    return connection, stream


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signal_to_an_idle_process_exits_0(number):
    with server_process(f"tcp://127.0.0.1:{free_port()}", 0.0) as process:
        wait_for_line(process, "Ready")
        process.send_signal(number)
        assert process.wait(timeout=60) == 0
        assert b"Traceback" not in process.stderr.read()


def test_signal_during_speech_exits_0_within_the_limit():
    port = free_port()
    with server_process(f"tcp://127.0.0.1:{port}", 0.02) as process:
        wait_for_line(process, "Ready")
        connection, stream = speak_to(port, "a" * 10_000)
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=60) == 0
        stream.close()
        connection.close()


def test_second_signal_is_immediate():
    port = free_port()
    with server_process(f"tcp://127.0.0.1:{port}", 0.02) as process:
        wait_for_line(process, "Ready")
        connection, stream = speak_to(port, "a" * 10_000)
        process.send_signal(signal.SIGTERM)
        wait_for_line(process, "SIGTERM")
        process.send_signal(signal.SIGTERM)
        # An orderly end has the code 0.
        assert process.wait(timeout=60) == 128 + signal.SIGTERM
        stream.close()
        connection.close()


@pytest.mark.parametrize("what", ["loop", "thread"])
def test_what_hangs_ends_at_the_deadline(what):
    """Docker kills ten seconds after the signal: there is one deadline for everything."""
    with server_process(f"tcp://127.0.0.1:{free_port()}", 0.0, hangs=what) as process:
        wait_for_line(process, "Ready")
        start = time.monotonic()
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=60) == 0
        assert time.monotonic() - start > 0.4
        assert b"Shutdown took longer than 0.5 s" in process.stderr.read()


async def test_describe_is_answered_while_the_engine_is_imported(monkeypatch):
    """Importing onnxruntime takes seconds: it must not happen in the event loop."""
    harness = Harness()
    threads = []

    def load(_config):
        threads.append(threading.current_thread())
        return lambda config, _metrics: harness.create_source(config)

    monkeypatch.setattr(app, "_load_engine", load)
    harness.may_load.set()
    async with app._create_engine(harness.config, Metrics()) as engine:
        assert engine is harness.source
    assert threads != [threading.main_thread()]


def test_stdio_speaks_what_came_before_the_end_of_input():
    with server_process("stdio://", 0.0, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        sent = io.BytesIO()
        write_event(Event("describe"), sent)
        write_event(Event("synthesize", {"text": "Hi"}), sent)
        write_event(Event("synthesize-start"), sent)
        write_event(Event("synthesize-chunk", {"text": "you"}), sent)
        out, err = process.communicate(sent.getvalue(), timeout=10)
    received = io.BytesIO(out)
    events = list(iter(lambda: read_event(received), None))
    assert types(events) == ["info", *PLAIN, *PLAIN, "synthesize-stopped"]
    assert process.returncode == 0
    assert b"Traceback" not in err


def test_stdio_ends_on_a_signal():
    with server_process("stdio://", 0.0, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        wait_for_line(process, "Ready")
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=60) == 0


def test_health_command_tells_a_living_server_from_a_dead_one(capsys, monkeypatch):
    port = free_port()
    # As in a container: the server's own setting names every interface.
    monkeypatch.setenv("WYOMING_QWEN3TTS_URI", f"tcp://0.0.0.0:{port}")
    with server_process(f"tcp://127.0.0.1:{port}", 0.0) as process:
        wait_for_line(process, "Ready")
        assert main(["health"]) == 0
        assert capsys.readouterr().out == f"wyoming-qwen3tts {__version__}: ok\n"
    assert main(["health"]) == 1
    assert capsys.readouterr().err.startswith("error: tcp://0.0.0.0")
    assert main(["health", "--uri", "stdio://"]) == 1


def test_health_command_finds_the_port_of_the_main_process(tmp_path, monkeypatch):
    """docker run IMAGE --uri tcp://0.0.0.0:10300, with another port in the environment."""
    port = free_port()
    monkeypatch.setenv("WYOMING_QWEN3TTS_URI", "tcp://0.0.0.0:10200")
    cmdline = tmp_path / "cmdline"
    monkeypatch.setattr(health, "_MAIN_PROCESS", cmdline)
    with server_process(f"tcp://127.0.0.1:{port}", 0.0) as process:
        wait_for_line(process, "Ready")
        for flags in (f"--uri\0tcp://0.0.0.0:{port}", f"--uri=tcp://0.0.0.0:{port}"):
            cmdline.write_text(f"/venv/bin/python\0/venv/bin/wyoming-qwen3tts\0--debug\0{flags}\0")
            assert main(["health"]) == 0
        cmdline.write_text(f"/lib/systemd/systemd\0--uri\0tcp://0.0.0.0:{port}\0")
        assert main(["health"]) == 1


def test_health_command_says_that_nothing_answers(capsys):
    with socket.create_server(("127.0.0.1", 0)) as deaf:
        uri = f"tcp://127.0.0.1:{deaf.getsockname()[1]}"
        assert main(["health", "--timeout", "0.1", "--uri", uri]) == 1
    assert capsys.readouterr().err == f"error: {uri}: no answer within 0.1 s\n"


async def test_health_command_fails_where_no_voice_can_speak(monkeypatch):
    harness = Harness()
    status = "failed"
    monkeypatch.setattr(app.HealthMonitor, "report", lambda _monitor: {"status": status})
    arguments = ["health", "--uri", harness.uri]
    async with harness.running():
        await (await harness.connect()).__aexit__()
        assert await asyncio.to_thread(main, arguments) == 1
        status = "installing"
        assert await asyncio.to_thread(main, arguments) == 0
