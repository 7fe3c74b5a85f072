"""Who is let in: by network, and when all places are taken."""

import logging

import pytest

from tests.protocol.client import WireClient, eventually, types
from tests.support.fakes import FakeSpeechSource
from wyoming_qwen3tts.errors import ConfigError
from wyoming_qwen3tts.protocol import server as listener_module
from wyoming_qwen3tts.protocol.connection import ConnectionOptions
from wyoming_qwen3tts.protocol.server import Listener, is_allowed, parse_networks

LAN = ["192.168.1.0/24", "fd00::/8", " 10.1.2.3 "]


@pytest.mark.parametrize(
    ("networks", "address", "expected"),
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
def test_networks(networks, address, expected):
    assert is_allowed((address, 4_711), parse_networks(networks)) is expected


@pytest.mark.parametrize("peer", ["", None, b"\0abstract"])
def test_local_sockets_are_for_the_file_system_to_guard(peer):
    assert is_allowed(peer, parse_networks(LAN))


@pytest.mark.parametrize("text", ["home", "192.168.1", "192.168.1.0/33", "", "*", "192.168.1.*"])
def test_what_is_no_network_is_an_error(text):
    with pytest.raises(ConfigError, match=r"allowed_networks: .* such as 192"):
        parse_networks([text])


async def test_client_of_another_network_is_rejected_with_one_line(caplog, monkeypatch):
    caplog.set_level(logging.INFO)
    monkeypatch.setattr(listener_module, "is_allowed", lambda _peer, _networks: False)
    async with Listener("tcp://127.0.0.1:0", ConnectionOptions(FakeSpeechSource())) as listener:
        for _ in range(5):
            async with await WireClient.connect(listener) as client:
                await client.send("describe")
                assert await client.read() is None
        await eventually(lambda: listener.status.num_denied == 5)
        assert listener.status.num_accepted == listener.status.num_connected == 0
        monkeypatch.undo()
        async with await WireClient.connect(listener) as client:
            await client.expect_alive()
        assert listener.status.num_accepted == 1
    assert [record.message for record in caplog.records] == [
        "Rejected 127.0.0.1: not in allowed_networks"
    ]


async def test_many_rejected_addresses_are_not_logged_for_ever(caplog, monkeypatch):
    monkeypatch.setattr(listener_module, "_MAX_LOGGED_ADDRESSES", 2)
    networks = parse_networks(LAN)
    options = ConnectionOptions(FakeSpeechSource())
    listener = Listener("tcp://127.0.0.1:0", options, networks=networks)

    class Writer:
        class transport:  # noqa: N801
            abort = staticmethod(lambda: None)

        def __init__(self, address) -> None:
            self.address = address

        def get_extra_info(self, _name):
            return (self.address, 4_711)

    for number in range(10):
        listener._accept(None, Writer(f"203.0.113.{number}"))
    assert len(listener._denied) == len(caplog.records) == 2
    assert listener.status.num_denied == 10


async def test_errors_are_told_to_whoever_counts_them():
    errors = []
    options = ConnectionOptions(FakeSpeechSource(), on_error=errors.append)
    async with (
        Listener("tcp://127.0.0.1:0", options) as listener,
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
