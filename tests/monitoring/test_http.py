"""The pages /metrics and /health over HTTP."""

import json
from contextlib import asynccontextmanager

import aiohttp
import pytest

from wyoming_qwen3tts.errors import ConfigError
from wyoming_qwen3tts.monitoring import http
from wyoming_qwen3tts.monitoring.health import HealthMonitor
from wyoming_qwen3tts.monitoring.http import parse_http_address, serve_pages
from wyoming_qwen3tts.monitoring.metrics import Metrics
from wyoming_qwen3tts.protocol.server import ListenerStatus, parse_networks


async def get(port: int, path: str, method: str = "GET") -> tuple[int, str, str]:
    """Return the status, the type and the body of an answer."""
    async with (
        aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=5)) as session,
        session.request(method, f"http://127.0.0.1:{port}{path}") as answer,
    ):
        return answer.status, answer.headers.get("Content-Type", ""), await answer.text()


@asynccontextmanager
async def serving(address: str = "0"):
    monitor = HealthMonitor(ListenerStatus)
    networks = parse_networks(["192.168.1.0/24"])
    async with serve_pages(address, Metrics(), monitor, networks) as port:
        yield port, monitor


async def test_pages():
    async with serving() as (port, monitor):
        status, content_type, body = await get(port, "/metrics")
        assert status == 200
        assert content_type.startswith("text/plain; version=")
        assert "wyoming_qwen3tts_characters_total 0.0" in body
        assert (await get(port, "/metrics?x=1"))[0] == 200
        assert (await get(port, "/metrics", "HEAD"))[0] == 200
        status, content_type, body = await get(port, "/health")
        assert (status, json.loads(body)["status"]) == (503, "starting")
        assert content_type.startswith("application/json")
        monitor.backend = object()
        status, _, body = await get(port, "/health")
        assert (status, json.loads(body)["status"]) == (200, "ok")
        for path, method, expected in (("/", "GET", 404), ("/metrics", "POST", 405)):
            assert (await get(port, path, method))[0] == expected


async def test_clients_of_other_networks_get_nothing(monkeypatch):
    monkeypatch.setattr(http, "is_allowed", lambda _peer, _networks: False)
    async with serving() as (port, _):
        assert (await get(port, "/metrics"))[0] == 403


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("10280", ("127.0.0.1", 10280)),
        (":10280", ("127.0.0.1", 10280)),
        ("0.0.0.0:1", ("0.0.0.0", 1)),
        ("[::1]:99", ("::1", 99)),
        ("voice.local:80", ("voice.local", 80)),
    ],
)
def test_address(text, address):
    assert parse_http_address(text) == address


@pytest.mark.parametrize("text", ["", "a", "a:b", "::1:99", "1.2.3.4:", "1.2.3.4:70000", "a:²"])
def test_address_that_is_none_is_an_error(text):
    with pytest.raises(ConfigError, match=r"http: .* is not HOST:PORT"):
        parse_http_address(text)


async def test_address_that_is_taken_is_an_error():
    async with serving() as (port, _):
        with pytest.raises(ConfigError, match=r"cannot listen on .*--http"):
            async with serving(f"127.0.0.1:{port}"):
                pass
