"""Kills one of two servers behind a real balancer, under load, and counts what was lost.

The balancer runs with the example in config/replicas; only its addresses are replaced.
"""

import argparse
import asyncio
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from wyoming.audio import AudioChunk, AudioStop
from wyoming.client import AsyncTcpClient
from wyoming.tts import Synthesize

from tests.acceptance.server_process import ServerProcess, free_port

_EXAMPLES = Path(__file__).parents[2] / "config" / "replicas"
_FILES = {"haproxy": "haproxy.cfg", "nginx": "nginx.conf"}
_TEXT = "The washing machine has finished. Somebody should hang up the laundry."
_NUM_CLIENTS = 8
_KILL_AFTER_S = 8.0
_RESTART_AFTER_S = 14.0
_END_AFTER_S = 24.0


@dataclass(frozen=True)
class Request:
    """What became of one request."""

    started_s: float
    """Since the load began."""
    took_s: float
    failure: str
    """Empty for one that was spoken to its end."""


async def ask(port: int, began_s: float) -> Request:
    """Send one request on a connection of its own, as Home Assistant does."""
    started_s = time.perf_counter()
    failure = "closed early"
    num_bytes = 0
    try:
        async with asyncio.timeout(30), AsyncTcpClient("127.0.0.1", port) as client:
            await client.write_event(Synthesize(_TEXT).event())
            while (event := await client.read_event()) is not None:
                if event.type == "error":
                    failure = event.data["text"]
                if AudioChunk.is_type(event.type):
                    num_bytes += len(event.payload or b"")
                if AudioStop.is_type(event.type):
                    failure = "" if num_bytes else "no audio"
                    break
    except (OSError, TimeoutError) as error:
        failure = type(error).__name__
    return Request(started_s - began_s, time.perf_counter() - started_s, failure)


async def load(port: int, servers: list[ServerProcess]) -> tuple[list[Request], float]:
    """Keep clients busy while a server dies and comes back.

    Returns:
        Every request, and when the server was killed.
    """
    began_s = time.perf_counter()
    requests: list[Request] = []

    async def client() -> None:
        while time.perf_counter() - began_s < _END_AFTER_S:
            requests.append(await ask(port, began_s))

    clients = [asyncio.create_task(client()) for _ in range(_NUM_CLIENTS)]
    await asyncio.sleep(_KILL_AFTER_S)
    killed_s = time.perf_counter() - began_s
    servers[0].kill()
    await asyncio.sleep(_RESTART_AFTER_S - _KILL_AFTER_S)
    await asyncio.to_thread(servers[0].start)
    await asyncio.gather(*clients)
    return requests, killed_s


@contextmanager
def balancer(name: str, servers: list[ServerProcess], directory: Path) -> Iterator[int]:
    """Run a balancer with its example; yields the port."""
    program = shutil.which(name, path="/usr/sbin:/usr/local/sbin:/usr/bin:/usr/local/bin")
    if program is None:
        raise SystemExit(f"error: {name} is not installed.")
    port = free_port()
    text = (_EXAMPLES / _FILES[name]).read_text()
    for number, server in enumerate(servers, 1):
        text = text.replace(f"tts-{number}:10200", f"127.0.0.1:{server.port}")
    text = text.replace("bind :10200", f"bind 127.0.0.1:{port}")
    text = text.replace("listen 10200", f"listen 127.0.0.1:{port}")
    file = directory / _FILES[name]
    file.write_text(text)
    command = [program, "-db", "-f", file]
    if name == "nginx":
        quiet = f"daemon off; pid {directory}/nginx.pid; error_log stderr;"
        command = [program, "-c", file, "-g", quiet]
    with subprocess.Popen(command) as process:
        try:
            time.sleep(3)
            yield port
        finally:
            process.terminate()


def report(name: str, requests: list[Request], killed_s: float) -> bool:
    """Print the figures; returns whether nothing was lost but what was being spoken."""
    failed = [request for request in requests if request.failure]
    lost = [request for request in failed if request.started_s > killed_s]
    phases = {
        "two servers": (0.0, killed_s),
        "one killed": (killed_s, _RESTART_AFTER_S),
        "two again": (_RESTART_AFTER_S + 2, _END_AFTER_S),
    }
    print(f"{name}: {len(requests)} requests of {_NUM_CLIENTS} clients, {len(failed)} failed")
    for phase, (start_s, end_s) in phases.items():
        times = [each.took_s for each in requests if start_s <= each.started_s < end_s]
        rate = len(times) / (end_s - start_s)
        longest = max(times)
        print(f"  {phase:12}{rate:6.1f}/s, median {median(times):.3f} s, longest {longest:.3f} s")
    for request in failed:
        when_s = request.started_s - killed_s
        print(f"  failed: started {when_s:+.3f} s from the kill ({request.failure})")
    return not lost and len(failed) <= _NUM_CLIENTS


def check(name: str) -> bool:
    """Try one balancer; returns whether it did its work."""
    with tempfile.TemporaryDirectory(prefix="replicas-") as folder:
        directory = Path(folder)
        servers = [
            ServerProcess(sys.executable, directory / f"server-{number}.log", "--threads", "1")
            for number in (1, 2)
        ]
        try:
            for server in servers:
                server.start()
            with balancer(name, servers, directory) as port:
                requests, killed_s = asyncio.run(load(port, servers))
        finally:
            for server in servers:
                server.stop()
    return report(name, requests, killed_s)


def main() -> int:
    """Read the command line and check."""
    parser = argparse.ArgumentParser(description="Kill a server behind a balancer, under load.")
    parser.add_argument("balancers", nargs="*", metavar="haproxy|nginx", default=list(_FILES))
    outcomes = [check(name) for name in parser.parse_args().balancers]
    return 0 if all(outcomes) else 1


if __name__ == "__main__":
    sys.exit(main())
