"""One run: starts the server, lets the clients loose, takes samples, and reports."""

import asyncio
import dataclasses
import os
import platform
import random
import tempfile
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from script._soak.clients import Clients
from script._soak.heartbeat import Heartbeat, served_waits
from script._soak.server import Sample, ServerProcess, SoakError
from script._soak.tally import Tally
from script._soak.verdict import describe_latency
from script._soak.wire import WireClient

_DESCRIBE_PAUSE_S: Final = 0.5
_CONTROL_PAUSE_S: Final = 2.0
_NUM_SAMPLES: Final = 400
_MIN_SAMPLE_PAUSE_S: Final = 1.0
_QUIET_S: Final = 5.0
_LEAVE_S: Final = 60.0

Action = Callable[[random.Random], Awaitable[None]]


@dataclass(frozen=True)
class Plan:
    """What to do."""

    minutes: float
    num_clients: int
    """Clients that do one thing after the other, besides those that measure."""
    num_attackers: int
    """Clients that send one hostile thing after the other."""
    seed: int
    model: str
    max_pause_s: float = 0.3
    """Longest pause of a client between two things that it does."""


def run_soak(plan: Plan) -> dict[str, Any]:
    """Run a soak and return its report.

    Raises:
        SoakError: The server does not start, or ends too early.
    """
    with tempfile.TemporaryDirectory() as folder:
        server = ServerProcess(Path(folder) / "server.log", plan.model)
        with server:
            report = asyncio.run(_Run(plan, server).run())
        report["exit_code"] = server.exit_code
        report["bad_log_lines"] = server.bad_log_lines()
        report["num_log_lines"] = server.num_log_lines()
    return report


class _Run:
    """One run against a started server."""

    def __init__(self, plan: Plan, server: ServerProcess) -> None:
        self._plan = plan
        self._server = server
        self._tally = Tally()
        self._samples: list[Sample] = []
        self._is_over = asyncio.Event()

    async def run(self) -> dict[str, Any]:
        """Let everybody work for the time, then wait until the server is quiet."""
        before, own_cpu_s = self._server.sample(0.0), time.process_time()
        duration_s = 60 * self._plan.minutes
        clients = Clients(self._server.port, self._tally, await self._voices())
        # Repeatable, not secret.
        plan = self._plan
        actions = [clients.act] * plan.num_clients + [clients.attack] * plan.num_attackers
        workers = [
            asyncio.create_task(self._work(action, random.Random(f"{plan.seed}/{number}")))  # noqa: S311
            for number, action in enumerate(actions)
        ]
        watchers = [
            asyncio.create_task(self._repeat(clients.describe, _DESCRIBE_PAUSE_S)),
            asyncio.create_task(self._repeat(clients.control, _CONTROL_PAUSE_S)),
        ]
        with Heartbeat(self._tally.now_s, lambda: self._server.is_stopped) as heartbeat:
            await self._take_samples(duration_s)
        own_cpu_s = time.process_time() - own_cpu_s
        self._is_over.set()
        await asyncio.wait([*workers, *watchers], timeout=_LEAVE_S)
        for task in (*workers, *watchers):
            task.cancel()
        results = await asyncio.gather(*workers, *watchers, return_exceptions=True)
        for error in results:
            if isinstance(error, Exception):
                raise SoakError(f"a client of the soak failed: {error!r}") from error
        await asyncio.sleep(_QUIET_S)
        report = self._report(duration_s, before, self._server.sample(self._tally.now_s()))
        describes = served_waits(self._tally.describe_s, heartbeat.standstills)
        report["standstills"] = [dataclasses.asdict(each) for each in heartbeat.standstills]
        report["slowest_describe_s"] = max((wait_s for _, wait_s in describes), default=0.0)
        server_cpu_s = self._samples[-1].cpu_s - before.cpu_s
        report["load"] = {
            "server_cores": round(server_cpu_s / duration_s, 3),
            "client_cores": round(own_cpu_s / duration_s, 3),
        }
        return report

    async def _take_samples(self, duration_s: float) -> None:
        pause_s = max(_MIN_SAMPLE_PAUSE_S, duration_s / _NUM_SAMPLES)
        while (now_s := self._tally.now_s()) < duration_s:
            self._samples.append(self._server.sample(now_s))
            await asyncio.sleep(min(pause_s, duration_s - now_s))

    async def _voices(self) -> list[str]:
        async with await WireClient.connect(self._server.port) as client:
            await client.send("describe")
            info = await client.read()
        return [voice["name"] for voice in info.data["tts"][0]["voices"]]

    async def _work(self, action: Action, rng: random.Random) -> None:
        while not self._is_over.is_set():
            await action(rng)
            # Nobody asks without a pause; and the machine has other things to do.
            await self._pause(rng.uniform(0.02, self._plan.max_pause_s))

    async def _repeat(self, action: Callable[[], Awaitable[None]], pause_s: float) -> None:
        while not self._is_over.is_set():
            await action()
            await self._pause(pause_s)

    async def _pause(self, pause_s: float) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(pause_s):
                await self._is_over.wait()

    def _report(self, duration_s: float, before: Sample, after: Sample) -> dict[str, Any]:
        tally = self._tally
        health = self._server.health()
        return {
            "plan": dataclasses.asdict(self._plan),
            "duration_s": duration_s,
            "machine": f"{platform.machine()}, {os.cpu_count()} cores, Python "
            f"{platform.python_version()}",
            "done": dict(tally.done),
            "hostile": dict(tally.hostile),
            "reactions": dict(tally.reactions),
            "lost": tally.lost,
            "audio_s": round(tally.audio_bytes / 48_000, 1),
            "latency": {
                "describe": describe_latency(tally.describe_s),
                "first_audio": describe_latency(tally.first_audio_s),
            },
            "left_behind": {
                "connections": health["connections"],
                "requests": health["requests"],
                "descriptors": after.num_descriptors - before.num_descriptors,
                "threads": after.num_threads - before.num_threads,
            },
            "before": dataclasses.asdict(before),
            "after": dataclasses.asdict(after),
            "samples": [dataclasses.asdict(sample) for sample in self._samples],
            "series": {
                "describe_s": [(round(at, 2), round(v, 5)) for at, v in tally.describe_s],
                "first_audio_s": [(round(at, 2), round(v, 5)) for at, v in tally.first_audio_s],
            },
        }
