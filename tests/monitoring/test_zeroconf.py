"""Discovery: others find the server, and no failure of it ends the server."""

import asyncio
import builtins
import socket
import uuid
from contextlib import AsyncExitStack, asynccontextmanager
from urllib.parse import urlsplit

import pytest
from zeroconf import ServiceStateChange
from zeroconf.asyncio import AsyncServiceBrowser, AsyncZeroconf

from tests.protocol.client import eventually
from wyoming_qwen3tts.monitoring import zeroconf as discovery

LOOPBACK = urlsplit("tcp://127.0.0.1:10200")
EVERY_HOST = urlsplit("tcp://0.0.0.0:10200")
SERVICE_TYPE = "_wyoming._tcp.local."


@pytest.fixture(autouse=True)
def _short_interval(monkeypatch):
    monkeypatch.setattr(discovery, "CHECK_INTERVAL_S", 0.02)


@pytest.fixture
def announced(monkeypatch):
    """Hosts that are announced now; without any network."""
    hosts = []

    @asynccontextmanager
    async def announce(_instance, host, _port):
        hosts.append(host)
        yield
        hosts.remove(host)

    monkeypatch.setattr(discovery, "_announced", announce)
    return hosts


async def test_others_find_the_server_while_it_is_advertised():
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
            async with discovery.advertised(name, LOOPBACK, 4_321):
                assert await changes.get() is ServiceStateChange.Added
                found = await listener.async_get_service_info(SERVICE_TYPE, full_name)
                assert found.parsed_addresses() == ["127.0.0.1"]
                assert found.port == 4_321
            while await changes.get() is not ServiceStateChange.Removed:
                pass
    finally:
        await browser.async_cancel()
        await listener.async_close()


async def test_two_servers_of_one_machine_get_two_names(caplog):
    caplog.set_level("INFO")
    name = f"test-{uuid.uuid4().hex[:8]}"
    async with AsyncExitStack() as stack, asyncio.timeout(20):
        for number in range(2):
            await stack.enter_async_context(discovery.advertised(name, LOOPBACK, 4_321 + number))
            await eventually(
                lambda count=number + 1: caplog.text.count("Zeroconf: advertised as") == count, 15
            )
    names = {record.args[0] for record in caplog.records if "advertised as" in record.message}
    assert len(names) == 2
    assert not [record for record in caplog.records if record.levelname != "INFO"]


async def test_network_that_comes_late_is_waited_for(announced, monkeypatch, caplog):
    has_network = False

    async def find_host(_address):
        if not has_network:
            raise OSError("Network is unreachable")
        return "192.168.1.7"

    monkeypatch.setattr(discovery, "find_host", find_host)
    async with discovery.advertised("x", EVERY_HOST, 1):
        await asyncio.sleep(0.1)
        assert announced == []
        has_network = True
        await eventually(lambda: announced == ["192.168.1.7"])
    assert [record.message for record in caplog.records] == [
        "Zeroconf: not advertised: Network is unreachable; trying again every 0.02 s"
    ]


async def test_changed_address_is_advertised(announced, monkeypatch):
    host = "192.168.1.7"

    async def find_host(_address):
        return host

    monkeypatch.setattr(discovery, "find_host", find_host)
    async with discovery.advertised("x", EVERY_HOST, 1):
        await eventually(lambda: announced == ["192.168.1.7"])
        host = "192.168.1.99"
        await eventually(lambda: announced == ["192.168.1.99"])


@pytest.mark.parametrize("host", ["0.0.0.0", "[::]"])
async def test_address_of_every_interface_is_never_announced(host, monkeypatch):
    class Probe(socket.socket):
        def connect(self, address):
            super().connect(("127.0.0.1", address[1]))

    monkeypatch.setattr(discovery.socket, "socket", Probe)
    assert await discovery.find_host(urlsplit(f"tcp://{host}:1")) == "127.0.0.1"


async def test_host_name_becomes_an_address():
    assert await discovery.find_host(urlsplit("tcp://localhost:1")) == "127.0.0.1"
    assert await discovery.find_host(urlsplit("tcp://127.0.0.1:1")) == "127.0.0.1"
    with pytest.raises(OSError):  # noqa: PT011 - the system's own words
        await discovery.find_host(urlsplit("tcp://[::1]:1"))


async def test_socket_file_is_not_advertised(caplog):
    async with discovery.advertised("x", urlsplit("unix:///run/x"), 0):
        await eventually(lambda: "only tcp:// addresses" in caplog.text)


async def test_missing_package_is_named(monkeypatch, caplog):
    real_import = builtins.__import__

    def refuse(name, *rest, **named):
        if name.startswith("zeroconf"):
            raise ModuleNotFoundError(name=name)
        return real_import(name, *rest, **named)

    monkeypatch.setattr(builtins, "__import__", refuse)
    async with discovery.advertised("x", LOOPBACK, 1):
        await eventually(lambda: "wyoming-qwen3tts[zeroconf]" in caplog.text)


async def test_automatic_name_is_that_of_the_machine(announced, monkeypatch):
    names = []

    @asynccontextmanager
    async def announce(instance, _host, _port):
        names.append(instance)
        yield

    monkeypatch.setattr(discovery, "_announced", announce)
    for _ in range(2):
        async with discovery.advertised("auto", LOOPBACK, 1):
            await eventually(lambda: names != [])
    assert set(names) == {f"qwen3-tts-{uuid.getnode():012x}"}
