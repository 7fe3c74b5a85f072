import asyncio
import builtins
import socket
import uuid

import pytest
from zeroconf import ServiceStateChange
from zeroconf.asyncio import AsyncServiceBrowser, AsyncZeroconf

from wyoming_qwen3tts.errors import ConfigError
from wyoming_qwen3tts.monitoring import zeroconf as discovery
from wyoming_qwen3tts.protocol.server import Address

LOOPBACK = Address("tcp", host="127.0.0.1", port=10_200)
SERVICE_TYPE = "_wyoming._tcp.local."


async def test_others_find_the_server_while_it_is_announced():
    changes = asyncio.Queue()
    name = f"test-{uuid.uuid4().hex[:8]}"
    full_name = f"{name}.{SERVICE_TYPE}"

    def note(zeroconf, service_type, name, state_change):
        if name == full_name:
            changes.put_nowait(state_change)

    listener = AsyncZeroconf(interfaces=["127.0.0.1"])
    browser = AsyncServiceBrowser(listener.zeroconf, SERVICE_TYPE, handlers=[note])
    try:
        async with asyncio.timeout(10):
            async with discovery.announced(name, LOOPBACK, 4_321):
                assert await changes.get() is ServiceStateChange.Added
                found = await listener.async_get_service_info(SERVICE_TYPE, full_name)
                assert found.parsed_addresses() == ["127.0.0.1"]
                assert found.port == 4_321
            while await changes.get() is not ServiceStateChange.Removed:
                pass
    finally:
        await browser.async_cancel()
        await listener.async_close()


@pytest.mark.parametrize("host", ["0.0.0.0", "::", ""])
async def test_address_of_every_interface_is_never_announced(host, monkeypatch):
    class Probe(socket.socket):
        def connect(self, address):
            super().connect(("127.0.0.1", address[1]))

    monkeypatch.setattr(discovery.socket, "socket", Probe)
    assert await discovery.find_host(host) == "127.0.0.1"


async def test_without_a_network_the_message_says_so(monkeypatch):
    class Probe(socket.socket):
        def connect(self, address):
            raise OSError("Network is unreachable")

    monkeypatch.setattr(discovery.socket, "socket", Probe)
    with pytest.raises(ConfigError, match="no network"):
        await discovery.find_host("0.0.0.0")


async def test_host_name_becomes_an_address():
    assert await discovery.find_host("localhost") == "127.0.0.1"
    assert await discovery.find_host("127.0.0.1") == "127.0.0.1"
    with pytest.raises(ConfigError, match="needs an IPv4 address"):
        await discovery.find_host("::1")


async def test_socket_files_cannot_be_announced():
    with pytest.raises(ConfigError, match="tcp:// addresses only"):
        async with discovery.announced("x", Address("unix", path="/run/x"), 0):
            raise AssertionError


async def test_missing_package_is_named(monkeypatch):
    real_import = builtins.__import__

    def refuse(name, *rest, **named):
        if name.startswith("zeroconf"):
            raise ModuleNotFoundError(name=name)
        return real_import(name, *rest, **named)

    monkeypatch.setattr(builtins, "__import__", refuse)
    with pytest.raises(ConfigError, match=r"wyoming-qwen3tts\[zeroconf\]"):
        async with discovery.announced("x", LOOPBACK, 1):
            raise AssertionError


def test_automatic_name_is_the_same_at_every_start():
    assert discovery.stable_name() == discovery.stable_name()
    assert discovery.stable_name().startswith("qwen3-tts-")
