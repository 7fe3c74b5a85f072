"""Who is let in: by network, and when all places are taken."""

import asyncio
import logging

import pytest

from tests.protocol.client import WireClient, eventually, types
from tests.support.fakes import FakeSpeechSource
from wyoming_qwen3tts.errors import ConfigError
from wyoming_qwen3tts.protocol import server as listener_module
from wyoming_qwen3tts.protocol.limits import ConnectionLimits
from wyoming_qwen3tts.protocol.networks import AllowedNetworks
from wyoming_qwen3tts.protocol.server import Listener

LAN = ["192.168.1.0/24", "fd00::/8", " 10.1.2.3 "]


@pytest.mark.parametrize(
    ("networks", "address", "is_allowed"),
    [
        ([], "8.8.8.8", True),
        (LAN, "192.168.1.77", True),
        (LAN, "192.168.2.77", False),
        (LAN, "10.1.2.3", True),
        (LAN, "10.1.2.4", False),
        (LAN, "fd12::1", True),
        (LAN, "fe80::1%eth0", False),
        (["fe80::/10"], "fe80::1%eth0", True),
        (LAN, "::ffff:192.168.1.5", True),
        (LAN, "::ffff:192.168.9.5", False),
        (LAN, "127.0.0.1", True),
        (LAN, "::1", True),
        (LAN, "::ffff:127.0.0.1", True),
        (["192.168.1.99/24"], "192.168.1.5", True),  # an address of the network means the network
        (["0.0.0.0/0"], "8.8.8.8", True),
        (["0.0.0.0/0"], "2001:db8::1", False),
    ],
)
def test_networks(networks, address, is_allowed):
    assert AllowedNetworks(networks).allows((address, 4_711)) is is_allowed


@pytest.mark.parametrize("peer", ["", None, b"\0abstract"])
def test_local_sockets_are_for_the_file_system_to_guard(peer):
    assert AllowedNetworks(LAN).allows(peer)


@pytest.mark.parametrize("text", ["home", "192.168.1", "192.168.1.0/33", "", "*", "192.168.1.*"])
def test_what_is_no_network_is_an_error(text):
    with pytest.raises(ConfigError, match=r"allow: .* is no network such as"):
        AllowedNetworks([text])


class Foreign(AllowedNetworks):
    """Takes this machine for a stranger."""

    is_open = False

    def allows(self, peer):
        return self.is_open or super().allows(("203.0.113.9", peer[1]))


async def test_stranger_is_sent_away_with_one_line(caplog):
    caplog.set_level(logging.INFO)
    networks = Foreign(LAN)
    source = FakeSpeechSource()
    limits = ConnectionLimits()
    async with Listener("tcp://127.0.0.1:0", source, limits, networks=networks) as listener:
        for _ in range(5):
            async with await WireClient.connect(listener) as client:
                await client.send("describe")
                assert await client.read() is None
        await eventually(lambda: listener.status.num_foreign == 5)
        assert listener.status.num_accepted == listener.num_connections == 0
        networks.is_open = True
        async with await WireClient.connect(listener) as client:
            await client.expect_alive()
        assert listener.status.num_accepted == 1
    assert [record.message for record in caplog.records] == [
        "127.0.0.1 is in no network that is allowed; its connections are closed"
    ]


async def test_many_strangers_are_forgotten_in_time(caplog, monkeypatch):
    monkeypatch.setattr(listener_module, "_MAX_REMEMBERED", 2)
    listener = Listener("tcp://127.0.0.1:0", FakeSpeechSource(), ConnectionLimits())

    class Writer:
        class transport:  # noqa: N801
            abort = staticmethod(lambda: None)

    for number in range(10):
        listener._send_away(Writer(), f"203.0.113.{number}")
        assert len(listener._foreign) <= 2
    assert len(caplog.records) == 10


async def test_idle_clients_cannot_occupy_every_place(monkeypatch, caplog):
    caplog.set_level(logging.INFO)
    monkeypatch.setattr(listener_module, "_EXPENDABLE_S", 0.1)
    limits = ConnectionLimits(max_connections=3)
    source = FakeSpeechSource(frame_s=0.02)
    async with Listener("tcp://127.0.0.1:0", source, limits) as listener:
        busy = await WireClient.connect(listener)
        await busy.send("synthesize", {"text": "a" * 60})
        idle = [await WireClient.connect(listener) for _ in range(2)]
        async with await WireClient.connect(listener) as early:
            assert types(await early.read_to_end()) == ["error"]
        await asyncio.sleep(0.15)
        newcomers = [await WireClient.connect(listener) for _ in range(2)]
        for client in newcomers:
            await client.expect_alive()
        for client in idle:
            assert await client.read() is None
        # The one that is spoken to keeps its place, and so do those that have just come.
        async with await WireClient.connect(listener) as late:
            assert types(await late.read_to_end()) == ["error"]
        assert types(await busy.read_until("audio-stop"))[-1] == "audio-stop"
        for client in (busy, *idle, *newcomers):
            client.writer.close()
        assert listener.status.num_beyond_limit == 2
    assert sum("closed to make room" in record.message for record in caplog.records) == 2


async def test_errors_are_told_to_whoever_counts_them():
    errors = []
    async with (
        Listener(
            "tcp://127.0.0.1:0", FakeSpeechSource(), ConnectionLimits(), on_error=errors.append
        ) as listener,
        await WireClient.connect(listener) as client,
    ):
        await client.send("synthesize-stop")
        await client.expect("error")
        await client.send("synthesize", {"text": "FAIL"})
        await client.read_until("error")
        await client.send_bytes(b"GET / HTTP/1.1\r\n")
        assert types(await client.read_to_end())[-1] == "error"
    assert [type(error).__name__ for error in errors] == [
        "RequestError",
        "SynthesisError",
        "ProtocolError",
    ]
