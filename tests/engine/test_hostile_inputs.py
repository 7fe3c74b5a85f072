"""Every hostile input of the soak, one by one, against the real engine over a real socket.

What each comes to is written down here, so that a change of it is seen.
"""

import asyncio
import json
import logging
import shutil

import pytest

from tests.conftest import NUM_THREADS
from tests.protocol.client import WireClient, eventually
from tests.support.hostile_inputs import FIXED
from wyoming_qwen3tts.config import Config
from wyoming_qwen3tts.engine.engine import open_engine
from wyoming_qwen3tts.protocol import connection
from wyoming_qwen3tts.protocol.connection import ConnectionOptions
from wyoming_qwen3tts.protocol.server import Listener

REACT_S = 5.0
PING = b'{"type": "ping"}\n'
SPOKEN = {
    "unknown voice",
    "voice that is a path",
    "control characters",
    "zero-width characters",
    "special tokens",
    "word of 2,000 letters",
    "SSML",
    "100 kB of text",
    "lone surrogates",
    "60 requests at once",
    "double start",
}
"""Kinds that can be spoken, were it as a short silence."""
PASSED_OVER = {"unknown event", "200 pings at once", "megabyte of lists", "megabyte of keys"}
"""Kinds after which the connection goes on as if nothing had been."""


async def first_word(client: WireClient, content: bytes) -> str:
    """Send something and return the type of the first event that comes back."""
    sending = asyncio.create_task(client.send_bytes(content))
    try:
        async with asyncio.timeout(REACT_S):
            while not (line := await client.reader.readline()).startswith(b'{"type"'):
                if not line:
                    return "hung up"
        return str(json.loads(line)["type"])
    finally:
        sending.cancel()
        await asyncio.gather(sending, return_exceptions=True)


def expected(kind: str) -> str:
    if kind in SPOKEN:
        return "audio-start"
    return "pong" if kind in PASSED_OVER else "error"


@pytest.fixture
def data_dir(tmp_path, tiny_bundle):
    source = tiny_bundle("0.6B-custom_voice")
    shutil.copytree(source, tmp_path / source.parent.name / source.name)
    return tmp_path


async def test_each_hostile_input_comes_to_what_it_should(data_dir, caplog, monkeypatch):
    caplog.set_level(logging.INFO)
    monkeypatch.setattr(connection, "CLOSE_AFTER_ERROR_S", 0.0)
    config = Config(data_dirs=(str(data_dir),), threads=NUM_THREADS)
    async with (
        open_engine(config) as source,
        Listener("tcp://127.0.0.1:0", ConnectionOptions(source)) as listener,
    ):
        for kind, content in FIXED.items():
            more = PING if kind in PASSED_OVER else b""
            async with await WireClient.connect(listener) as client:
                assert await first_word(client, content + more) == expected(kind), kind
            async with await WireClient.connect(listener) as client:
                await client.send("describe")
                await client.expect("info")
        await eventually(lambda: listener.status.num_connected == 0)
        await eventually(lambda: source.status().num_requests == 0)
        await eventually(lambda: source.status().worker.num_speaking == 0)
    assert not [record for record in caplog.records if record.exc_info]
    assert "unexpected failure" not in caplog.text
