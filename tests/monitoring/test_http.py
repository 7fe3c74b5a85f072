"""The pages for programs that watch, and clients that mean no good."""

import asyncio
import logging
from contextlib import asynccontextmanager

import pytest

from tests.protocol.client import eventually
from wyoming_qwen3tts.errors import ConfigError
from wyoming_qwen3tts.monitoring import http as http_endpoint
from wyoming_qwen3tts.monitoring.http import HttpEndpoint, Page, parse_http_address

MIB = 1_048_576


def broken_page():
    raise ValueError("no figures")


PAGES = {"/metrics": lambda: Page(b"up 1\n"), "/broken": broken_page}


@asynccontextmanager
async def serving(networks=()):
    async with HttpEndpoint("0", PAGES, networks) as endpoint:
        yield endpoint
        await eventually(lambda: not endpoint._clients)


async def ask(endpoint, request: bytes) -> tuple[int, bytes]:
    """Return the status and the body of the answer; 0 if there was none."""
    reader, writer = await asyncio.open_connection("127.0.0.1", endpoint.port)
    try:
        async with asyncio.timeout(5):
            writer.write(request)
            answer = await reader.read()
    except ConnectionError:
        answer = b""
    finally:
        writer.transport.abort()
    head, _, body = answer.partition(b"\r\n\r\n")
    if not head:
        return 0, b""
    lines = dict(line.split(": ") for line in head.decode().split("\r\n")[1:])
    assert lines["Connection"] == "close"
    if not request.startswith(b"HEAD"):
        assert int(lines["Content-Length"]) == len(body)
    return int(head.split()[1]), body


@pytest.mark.parametrize(
    ("request_bytes", "status", "body"),
    [
        (b"GET /metrics HTTP/1.1\r\nHost: a\r\n\r\n", 200, b"up 1\n"),
        (b"GET /metrics?x=1 HTTP/1.0\n\n", 200, b"up 1\n"),
        (b"HEAD /metrics HTTP/1.1\r\n\r\n", 200, b""),
        (b"GET / HTTP/1.1\r\n\r\n", 404, b"There is no such page; there are /metrics, /broken.\n"),
        (b"GET /metrics/../../etc/passwd HTTP/1.1\r\n\r\n", 404, None),
        (b"GET http://a/metrics HTTP/1.1\r\n\r\n", 404, None),
        (b"POST /metrics HTTP/1.1\r\nContent-Length: 3\r\n\r\n", 405, None),
        (b"DELETE /metrics HTTP/1.1\r\n\r\n", 405, None),
        (b"GET /broken HTTP/1.1\r\n\r\n", 500, b"The page could not be made.\n"),
        (b"GET /metrics\r\n\r\n", 400, None),
        (b"GET /met rics HTTP/1.1\r\n\r\n", 400, None),
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 400, None),
        (b"\xff\xfe\x00 \xff \xff\r\n\r\n", 400, None),
        (b"\r\n\r\n", 400, None),
        (b'{"type": "describe"}\n\n', 400, None),
    ],
)
async def test_answers(request_bytes, status, body):
    async with serving() as endpoint:
        got_status, got_body = await ask(endpoint, request_bytes)
        assert got_status == status
        assert body is None or got_body == body
        assert b"Traceback" not in got_body


@pytest.mark.parametrize(
    "request_bytes",
    [
        b"GET /" + b"x" * MIB,
        b"GET /metrics HTTP/1.1\r\n" + b"x" * MIB,
        b"GET /metrics HTTP/1.1\r\n" + b"A: b\r\n" * 100_000,
    ],
    ids=["path", "header", "many headers"],
)
async def test_long_requests_are_not_kept(request_bytes):
    async with serving() as endpoint:
        status, _ = await ask(endpoint, request_bytes)
        assert status in {0, 431}  # the answer may be lost when more was sent than read
        assert await ask(endpoint, b"GET /metrics HTTP/1.1\r\n\r\n") == (200, b"up 1\n")


@pytest.mark.parametrize("sent", [b"", b"G", b"GET /metrics HTTP/1.1\r\nHost:"])
async def test_slow_clients_are_cut_off(sent, monkeypatch):
    monkeypatch.setattr(http_endpoint, "_TIMEOUT_S", 0.1)
    async with serving() as endpoint:
        assert await ask(endpoint, sent) == (0, b"")


async def test_places_are_few_and_given_back(monkeypatch):
    monkeypatch.setattr(http_endpoint, "_TIMEOUT_S", 0.3)
    async with serving() as endpoint:
        idle = [await asyncio.open_connection("127.0.0.1", endpoint.port) for _ in range(40)]
        await asyncio.sleep(0.05)
        assert len(endpoint._clients) <= 16
        assert await ask(endpoint, b"GET /metrics HTTP/1.1\r\n\r\n") == (0, b"")
        await eventually(lambda: not endpoint._clients)
        assert await ask(endpoint, b"GET /metrics HTTP/1.1\r\n\r\n") == (200, b"up 1\n")
        for _, writer in idle:
            writer.transport.abort()


async def test_hang_ups_leave_nothing_behind(caplog):
    caplog.set_level(logging.INFO)
    failures = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: failures.append(context))
    async with serving() as endpoint:
        for sent in (b"", b"GET", b"GET /metrics HTTP/1.1\r\n\r\n"):
            _, writer = await asyncio.open_connection("127.0.0.1", endpoint.port)
            writer.write(sent)
            writer.transport.abort()
    assert not failures
    assert len(caplog.records) == 1  # where it listens


async def test_strangers_get_nothing(monkeypatch):
    monkeypatch.setattr(http_endpoint, "is_allowed", lambda _peer, _networks: False)
    async with serving() as endpoint:
        assert await ask(endpoint, b"GET /metrics HTTP/1.1\r\n\r\n") == (0, b"")


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
    with pytest.raises(ConfigError, match=r"http: .* is no HOST:PORT"):
        parse_http_address(text)


async def test_address_that_is_taken_is_an_error():
    async with serving() as endpoint:
        with pytest.raises(ConfigError, match=r"cannot listen on .*--http"):
            async with HttpEndpoint(f"127.0.0.1:{endpoint.port}", PAGES):
                pass
