"""Few file descriptors: fewer clients at once, a short log, and nobody is lost for long."""

import asyncio
import logging
import resource
import signal
import socket
import time
from contextlib import ExitStack

import pytest

from tests.test_app import free_port, server_process, wait_for_line
from wyoming_qwen3tts import app, machine
from wyoming_qwen3tts.loop_failures import LoopFailures
from wyoming_qwen3tts.protocol.limits import ConnectionLimits

UNLIMITED = resource.RLIM_INFINITY


@pytest.mark.parametrize(
    ("limits", "wanted", "expected", "taken"),
    [
        ((1024, 4096), 700, 700, None),
        ((256, 4096), 700, 700, 700),
        ((256, 512), 700, 512, 512),
        ((256, 256), 700, 256, None),
        ((256, UNLIMITED), 700, 700, 700),
        ((UNLIMITED, UNLIMITED), 700, 700, None),
    ],
)
def test_descriptors_that_may_be_had_are_taken(limits, wanted, expected, taken, monkeypatch):
    asked = []
    monkeypatch.setattr(resource, "getrlimit", lambda _kind: limits)
    monkeypatch.setattr(resource, "setrlimit", lambda _kind, pair: asked.append(pair))
    assert machine.descriptors_for(wanted) == expected
    assert asked == ([] if taken is None else [(taken, limits[1])])


def test_limit_that_cannot_be_raised_is_taken_as_it_is(monkeypatch):
    def refuse(_kind, _pair):
        raise ValueError("not allowed to raise maximum limit")

    monkeypatch.setattr(resource, "getrlimit", lambda _kind: (256, 4096))
    monkeypatch.setattr(resource, "setrlimit", refuse)
    assert machine.descriptors_for(700) == 256


def test_connections_are_as_many_as_there_are_descriptors_for(monkeypatch, caplog):
    limits = ConnectionLimits()
    monkeypatch.setattr(app, "descriptors_for", lambda wanted: wanted)
    assert app._within_descriptors(limits) is limits
    assert not caplog.records
    monkeypatch.setattr(app, "descriptors_for", lambda _wanted: 256)
    assert app._within_descriptors(limits).max_connections == 64
    assert "allows 256 open files, so no more than 64 clients" in caplog.text
    monkeypatch.setattr(app, "descriptors_for", lambda _wanted: 60)
    assert app._within_descriptors(limits).max_connections == 8


async def test_same_failure_of_the_loop_is_logged_once_in_one_line(caplog):
    caplog.set_level(logging.INFO)
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(LoopFailures())
    for number in range(300):
        loop.call_exception_handler({"message": "no more", "exception": OSError(24, "too many")})
        loop.call_exception_handler({"message": f"another {number % 3}"})
    assert [record.getMessage() for record in caplog.records] == [
        "no more: OSError(24, 'too many')",
        *(f"another {number}: None" for number in range(3)),
    ]
    assert not any(record.exc_info for record in caplog.records)


def is_served(port: int) -> bool:
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=2) as connection:
            connection.sendall(b'{"type": "describe"}\n')
            return b'"info"' in connection.recv(1_000)
    except OSError:
        return False


def test_rush_on_a_process_of_few_descriptors_is_survived():
    port, few = free_port(), (60, 60)
    with server_process(
        f"tcp://127.0.0.1:{port}",
        0.0,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, few),
    ) as process:
        wait_for_line(process, "Ready")
        with ExitStack() as rush:
            for _ in range(100):
                rush.enter_context(socket.create_connection(("127.0.0.1", port), timeout=5))
            time.sleep(0.5)
        deadline_s = time.monotonic() + 10.0
        while not is_served(port):
            assert time.monotonic() < deadline_s, "nobody is served any more"
            time.sleep(0.1)
        process.send_signal(signal.SIGTERM)
        log = process.stderr.read().decode()
        assert process.wait(timeout=5) == 0
    assert "Traceback" not in log
    assert len(log.splitlines()) < 40
    assert "Too many open files" in log
