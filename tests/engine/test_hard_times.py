"""A full disk and a clock that jumps: neither is a reason to stop speaking."""

import ast
import errno
import itertools
import os
import resource
import shutil
import signal
import socket
import subprocess
import sys
import time
from contextlib import aclosing, contextmanager, suppress
from pathlib import Path

import numpy as np
import pytest
from wyoming.event import Event, read_event, write_event

import wyoming_qwen3tts
from tests.conftest import NUM_THREADS
from tests.support.voice_fixtures import (
    FACTS,
    TRANSCRIPT,
    clip_bytes,
    encoding_model,
    write_voice,
)
from tests.test_app import free_port
from wyoming_qwen3tts.config import Config
from wyoming_qwen3tts.engine.engine import open_engine
from wyoming_qwen3tts.protocol.backend import SpeechRequest
from wyoming_qwen3tts.voices.clips import load_encoded, store_encoded

PACKAGE = Path(wyoming_qwen3tts.__file__).parent
START_S = 30.0


def no_space(*_args, **_kwargs):
    raise OSError(errno.ENOSPC, "No space left on device")


class FullFile:
    """Takes what is written, and finds no place for it when it is closed."""

    def __init__(self, number, _mode):
        self._number = number

    def __enter__(self):
        return self

    def __exit__(self, *_exception):
        os.close(self._number)
        no_space()

    def write(self, content):
        return len(content)


# A full disk


@pytest.mark.parametrize(
    ("owner", "name"), [(Path, "mkdir"), (Path, "open")], ids=["folder", "file"]
)
def test_full_disk_costs_a_voice_only_its_cache(owner, name, tmp_path, monkeypatch, caplog):
    caplog.set_level("INFO")
    folder = write_voice(tmp_path, "en/anna", ref_wav=clip_bytes())
    path = folder / ".cache" / "clip.npz"
    voice = {"x_vector": np.zeros(FACTS.hidden_size, np.float32)}
    model = encoding_model(None)
    with monkeypatch.context() as patched:
        patched.setattr(owner, name, no_space)
        store_encoded(path, voice)
    assert "kept in memory only: [Errno 28] No space left" in caplog.text
    assert not list(folder.rglob("*.part"))
    assert load_encoded(path, None, model) is None
    store_encoded(path, voice)
    assert load_encoded(path, None, model) is not None


@contextmanager
def server_without_disk(data_dir, port):
    """A whole server: no byte of any file can be written, and the log goes to a full device."""
    with Path("/dev/full").open("w") as full:
        process = subprocess.Popen(
            [
                *(sys.executable, "-W", "ignore", "-m", "wyoming_qwen3tts"),
                *("--uri", f"tcp://127.0.0.1:{port}", "--data-dir", str(data_dir)),
            ],
            stderr=full,
            cwd=PACKAGE.parent,
            preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0)),
        )
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def ask(port, event, until):
    deadline_s = time.monotonic() + START_S
    while True:
        with suppress(ConnectionRefusedError):
            connection = socket.create_connection(("127.0.0.1", port), timeout=START_S)
            break
        assert time.monotonic() < deadline_s
        time.sleep(0.05)
    with connection, connection.makefile("rwb") as stream:
        write_event(event, stream)
        events = [read_event(stream)]
        while events[-1].type not in {until, "error"}:
            events.append(read_event(stream))
    assert events[-1].type == until, events[-1].data
    return events


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no full device")
def test_server_on_a_full_disk_speaks_with_a_new_voice_and_ends_well(tiny_bundle, tmp_path):
    source = tiny_bundle("0.6B-base")
    shutil.copytree(source, tmp_path / source.parent.name / source.name)
    folder = write_voice(tmp_path, "en/anna", ref_wav=clip_bytes(), ref_txt=TRANSCRIPT)
    port = free_port()
    with server_without_disk(tmp_path, port) as process:
        (info,) = ask(port, Event("describe"), "info")
        assert "anna-de" in [voice["name"] for voice in info.data["tts"][0]["voices"]]
        for _ in range(2):
            request = Event("synthesize", {"text": "Hello there.", "voice": {"name": "anna"}})
            assert len(ask(port, request, "audio-stop")) > 2
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=10) == 0
    assert not list(folder.rglob("*.npz"))


# The clock

CLOCKS = {
    *("time.time", "time.time_ns", "time.localtime", "time.gmtime"),
    *("datetime.now", "datetime.utcnow", "date.today"),
}


def test_nothing_is_timed_by_a_clock_that_jumps():
    users = {
        str(path.relative_to(PACKAGE))
        for path in PACKAGE.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Attribute)
        and isinstance(node.value, ast.Name)
        and f"{node.value.id}.{node.attr}" in CLOCKS
    }
    assert not users


async def test_clock_that_jumps_while_speaking_changes_nothing(tiny_bundle, tmp_path, monkeypatch):
    source = tiny_bundle("0.6B-custom_voice")
    shutil.copytree(source, tmp_path / source.parent.name / source.name)
    years = itertools.cycle([0.0, 4e9, 1e9, -1e8])
    monkeypatch.setattr(time, "time", lambda: next(years))
    config = Config(data_dirs=(str(tmp_path),), threads=NUM_THREADS, seed=1, idle_unload_seconds=60)

    async def text():
        yield "Hello there. This is what I say, whatever the time may be."

    async with open_engine(config) as engine:
        heard = []
        for _ in range(2):
            async with aclosing(engine.stream(SpeechRequest("ryan"), text())) as chunks:
                heard.append(b"".join([chunk.pcm16() async for chunk in chunks]))
        assert heard[0] == heard[1] != b""
        assert engine.status().models[0].is_loaded
