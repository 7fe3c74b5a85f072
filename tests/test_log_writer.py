"""Nobody who logs waits for whoever reads the log, and nothing else changes."""

import logging
import os
import re
import signal
import socket
import time
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.test_app import free_port, server_process, wait_for_line
from wyoming_qwen3tts.log_writer import LogWriter

PIPE_BYTES = 65_536


@contextmanager
def logger_to(descriptor, **settings):
    writer = LogWriter(descriptor, **settings)
    writer.setFormatter(logging.Formatter("%(message)s"))
    logger = logging.Logger("test")  # noqa: LOG001 - not one of the tree
    logger.addHandler(writer)
    try:
        yield logger
    finally:
        writer.close()


@contextmanager
def pipe():
    ends = os.pipe()
    try:
        yield ends
    finally:
        for end in ends:
            os.close(end)


def test_lines_are_written_in_order_and_before_the_end():
    with pipe() as (out, into):
        with logger_to(into) as logger:
            for number in range(1_000):
                logger.info("line %d \ud800", number)
        lines = os.read(out, PIPE_BYTES).splitlines()
    assert lines == [b"line %d \\ud800" % number for number in range(1_000)]


def test_a_log_that_nobody_reads_holds_nobody_up_and_says_what_was_lost():
    with pipe() as (out, into), logger_to(into, max_lines=100) as logger:
        started_s = time.monotonic()
        for number in range(5_000):
            logger.info("%d %s", number, "x" * 100)
        assert time.monotonic() - started_s < 2.0
        content, written, num_lost, num_calls = b"", [], 0, 0
        while len(written) + num_lost < 5_000:
            logger.info("somebody reads again")  # says how many were lost before it
            num_calls += 1
            content += os.read(out, PIPE_BYTES)
            written = [int(number) for number in re.findall(rb"(\d+) x{100}\n", content)]
            num_lost = sum(map(int, re.findall(rb"\((\d+) lines of", content)))
    # How many the thread gets to write depends on the machine; what was kept is never lost.
    assert len(written) >= 100
    assert written == sorted(written)
    assert len(written) + num_lost <= 5_000 + num_calls


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no full device")
def test_full_disk_costs_lines_and_nothing_else():
    with Path("/dev/full").open("w") as full, logger_to(full.fileno()) as logger:
        logger.info("lost")
        logger.handlers[0].flush()
        logger.info("lost as well")


def test_a_line_that_cannot_be_made_is_no_failure(monkeypatch):
    monkeypatch.setattr(logging, "raiseExceptions", False)
    with pipe() as (out, into):
        with logger_to(into) as logger:
            logger.info("%d", "no number")
            logger.info("good")
        assert os.read(out, PIPE_BYTES) == b"good\n"


def describes(port):
    with socket.create_connection(("127.0.0.1", port), timeout=5) as connection:
        connection.sendall(b'{"type": "describe"}\n')
        return b'"info"' in connection.recv(1_000)


@pytest.mark.parametrize("num_signals", [1, 2])
def test_server_whose_log_nobody_reads_serves_on_and_ends_well(num_signals):
    port = free_port()
    with server_process(f"tcp://127.0.0.1:{port}", 0.0) as process:
        wait_for_line(process, "Ready")
        for _ in range(900):  # a line each: more than a pipe and its reader's buffer hold
            with socket.create_connection(("127.0.0.1", port), timeout=5) as connection:
                connection.sendall(b"garbage\n")
                assert b"ProtocolError" in connection.recv(1_000)
        assert describes(port)
        started_s = time.monotonic()
        for _ in range(num_signals):
            process.send_signal(signal.SIGTERM)
            time.sleep(0.02)
        code = process.wait(timeout=5)
        # The second may come when the server has ended and only the log is still waited for.
        assert code == 0 if num_signals == 1 else code in (0, 128 + signal.SIGTERM, -signal.SIGTERM)
        assert time.monotonic() - started_s < 3.0
