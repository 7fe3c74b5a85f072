"""The only use of the network but for clients is getting models: with them there, there is none."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from wyoming_qwen3tts.models.registry import find_model
from wyoming_qwen3tts.runtime.manifest import MANIFEST_NAME

CUSTOM_VOICE = "qwen3-tts-0.6b-customvoice"

# Audit hooks see what every part of Python does, other packages included, and cannot be removed:
# so this runs in a process of its own.
SERVE_AND_SPEAK = """
import asyncio, sys
from contextlib import aclosing

used = []

def note(event, arguments):
    if event in {"socket.connect", "socket.sendto", "socket.sendmsg", "socket.getaddrinfo",
                 "socket.gethostbyname", "socket.gethostbyaddr", "urllib.Request"}:
        used.append(event)

sys.addaudithook(note)

from wyoming_qwen3tts.protocol.connection import ConnectionOptions
from wyoming_qwen3tts.protocol.server import Listener
from wyoming_qwen3tts.protocol.backend import SpeechRequest
from wyoming_qwen3tts.config import Config
from wyoming_qwen3tts.engine.engine import open_engine

async def text():
    yield "Hello there. See https://example.org/ or write to me@example.org."

async def main():
    data_dir, *models = sys.argv[1:]
    config = Config(models=tuple(models), data_dirs=(data_dir,), threads=1)
    async with open_engine(config) as source:
        async with Listener("tcp://127.0.0.1:0", ConnectionOptions(source)):
            await source.voices()
            async with aclosing(source.stream(SpeechRequest("ryan"), text())) as chunks:
                num_samples = sum([len(chunk.samples) async for chunk in chunks])
    assert num_samples > 0

asyncio.run(main())
print(used)
"""


@pytest.mark.parametrize("models", [(), (CUSTOM_VOICE,), ("tiny/cpu_fp32",)])
def test_server_with_its_models_there_uses_no_network(tiny_bundle, tmp_path, models):
    model = find_model(CUSTOM_VOICE)
    for name in (model.bundle_name, "tiny"):
        directory = tmp_path / name / "cpu_fp32"
        shutil.copytree(tiny_bundle("0.6B-custom_voice"), directory)
        manifest = directory / MANIFEST_NAME
        manifest.write_text(json.dumps(json.loads(manifest.read_text()) | {"name": name}))
    done = subprocess.run(
        [sys.executable, "-c", SERVE_AND_SPEAK, str(tmp_path), *models],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "[]"
