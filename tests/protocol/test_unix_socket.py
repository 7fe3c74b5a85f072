"""Socket files: one server never takes away the file of another."""

import asyncio
import socket

import pytest

from tests.protocol.client import WireClient, eventually
from tests.support.fakes import FakeSpeechSource
from wyoming_qwen3tts.errors import ConfigError
from wyoming_qwen3tts.protocol.connection import ConnectionOptions
from wyoming_qwen3tts.protocol.server import Listener


def listener_at(path) -> Listener:
    return Listener(f"unix://{path}", ConnectionOptions(FakeSpeechSource()))


async def connect(listener, path) -> None:
    client = WireClient(*await asyncio.open_unix_connection(path))
    async with client:
        await client.expect_alive()
    await eventually(lambda: listener.status.num_connected == 0)


async def test_live_server_keeps_its_socket(tmp_path):
    path = tmp_path / "voice.sock"
    async with listener_at(path) as listener:
        with pytest.raises(ConfigError, match="another server listens there"):
            await listener_at(path).__aenter__()
        await connect(listener, path)


async def test_server_that_stops_late_leaves_the_socket_of_the_next(tmp_path):
    path = tmp_path / "voice.sock"
    old = await listener_at(path).__aenter__()
    path.unlink()
    async with listener_at(path):
        await old.stop(0.0)
        assert path.is_socket()
    assert not path.exists()


async def test_socket_of_a_server_that_was_killed_is_replaced(tmp_path):
    path = tmp_path / "voice.sock"
    with socket.socket(socket.AF_UNIX) as stale:
        stale.bind(str(path))
    async with listener_at(path) as listener:
        await connect(listener, path)
    assert not path.exists()
