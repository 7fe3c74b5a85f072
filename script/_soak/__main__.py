"""Command line of ``script/soak``: run clients against a server, judge, report."""

import argparse
import asyncio
import dataclasses
import json
import os
import platform
import random
import sys
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from pathlib import Path
from statistics import median
from typing import Any, Final

from script._soak.clients import Clients, Tally, WireClient
from script._soak.server import Sample, ServerProcess, SoakError

_DESCRIPTION: Final = """\
Start a server with a model of random weights and let clients use it for a while: some ask for
speech in the ordinary ways, some hang up before or during it, some never read, some send what no
client should send. Memory, threads, descriptors and answering times of the server are measured.
The exit status is 0 if they stayed flat and every good client was served.
"""
_DESCRIBE_PAUSE_S: Final = 0.5
_CONTROL_PAUSE_S: Final = 2.0
_MAX_SAMPLES: Final = 400
_QUIET_S: Final = 5.0
_LEAVE_S: Final = 60.0
_DESCRIBE_LIMIT_S: Final = 1.0

Series = Sequence[tuple[float, float]]
"""(seconds since the start, value)."""


@dataclasses.dataclass(frozen=True)
class Judgement:
    """One measure early and late in the run."""

    name: str
    early: float
    """Median of the second quarter: the first one fills caches."""
    late: float
    """Median of the last quarter."""
    worst: float
    allowed_growth: float

    @property
    def is_flat(self) -> bool:
        return self.late - self.early <= self.allowed_growth


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a soak; return the exit status."""
    parser = argparse.ArgumentParser(prog="script/soak", description=_DESCRIPTION)
    add = parser.add_argument
    add("--minutes", type=float, default=2.0, help="how long (%(default)s)")
    add("--clients", type=int, default=8, help="clients at once (%(default)s)")
    add("--attackers", type=int, default=4, help="hostile clients at once (%(default)s)")
    add("--pause", type=float, default=0.3, help="longest pause of a client, s (%(default)s)")
    add("--seed", type=int, default=0, help="of everything random (%(default)s)")
    add("--model", help="what speaks; default: a small model of random weights")
    add("--json", type=Path, metavar="FILE", help="write all measurements")
    options = parser.parse_args(arguments)
    try:
        server = ServerProcess(options.model)
        with server:
            report = asyncio.run(_run(options, server))
    except SoakError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    report |= {"exit_code": server.exit_code, "log": server.unexpected_log_lines}
    judgements = judge(report["series"], report["duration_s"])
    report["problems"] = problems(report, judgements)
    if options.json:
        options.json.write_text(json.dumps(report) + "\n")
    print(_summary(report, judgements))
    return 1 if report["problems"] else 0


async def _run(options: argparse.Namespace, server: ServerProcess) -> dict[str, Any]:
    tally, is_over = Tally(), asyncio.Event()
    before = server.sample(0.0)
    async with await WireClient.connect(server.port) as client:
        await client.send("describe")
        voices = [voice["name"] for voice in (await client.read()).data["tts"][0]["voices"]]
    clients = Clients(server.port, tally, voices)

    async def pause(pause_s: float) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(pause_s):
                await is_over.wait()

    async def work(action: Callable[[random.Random], Awaitable[None]], number: int) -> None:
        rng = random.Random(f"{options.seed}/{number}")  # noqa: S311 - repeatable, not secret
        while not is_over.is_set():
            await action(rng)
            await pause(rng.uniform(0.02, options.pause))

    async def repeat(action: Callable[[], Awaitable[None]], pause_s: float) -> None:
        while not is_over.is_set():
            await action()
            await pause(pause_s)

    actions = [clients.act] * options.clients + [clients.attack] * options.attackers
    tasks = [asyncio.create_task(work(action, number)) for number, action in enumerate(actions)]
    tasks.append(asyncio.create_task(repeat(clients.describe, _DESCRIBE_PAUSE_S)))
    tasks.append(asyncio.create_task(repeat(clients.control, _CONTROL_PAUSE_S)))
    duration_s = 60 * options.minutes
    samples: list[Sample] = []
    while (now_s := tally.now_s()) < duration_s:
        samples.append(server.sample(now_s))
        await asyncio.sleep(min(max(1.0, duration_s / _MAX_SAMPLES), duration_s - now_s))
    is_over.set()
    await asyncio.wait(tasks, timeout=_LEAVE_S)
    for task in tasks:
        task.cancel()
    for error in await asyncio.gather(*tasks, return_exceptions=True):
        if isinstance(error, Exception):
            raise SoakError(f"a client of the soak failed: {error!r}") from error
    await asyncio.sleep(_QUIET_S)
    after, health = server.sample(tally.now_s()), server.health()
    return {
        "minutes": options.minutes,
        "seed": options.seed,
        "duration_s": duration_s,
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}, "
        f"Python {platform.python_version()}",
        "done": dict(tally.done),
        "hostile": dict(tally.hostile),
        "reactions": dict(tally.reactions),
        "lost": tally.lost,
        "audio_s": round(tally.audio_bytes / 48_000, 1),
        "left_behind": {
            "connections": health["connections"],
            "requests": health["requests"],
            "descriptors": after.num_descriptors - before.num_descriptors,
            "threads": after.num_threads - before.num_threads,
        },
        "series": {
            "memory, MB": [(each.at_s, each.rss_mb) for each in samples],
            "threads": [(each.at_s, each.num_threads) for each in samples],
            "descriptors": [(each.at_s, each.num_descriptors) for each in samples],
            "describe, s": tally.describe_s,
            "first audio, s": tally.first_audio_s,
        },
    }


def judge(series: dict[str, Series], duration_s: float) -> list[Judgement]:
    """Return a judgement for each measure."""
    # What may grow although nothing leaks: caches that fill, pages that the allocator keeps.
    allowed: dict[str, Callable[[float], float]] = {
        "memory, MB": lambda early: max(6.0, 0.03 * early),
        "threads": lambda _: 1.0,
        "descriptors": lambda _: 4.0,
        "describe, s": lambda early: 0.5 * early + 0.1,
        "first audio, s": lambda early: 0.5 * early + 0.1,
    }
    judgements = []
    for name, values in series.items():
        early = _median_between(values, 0.25 * duration_s, 0.5 * duration_s)
        late = _median_between(values, 0.75 * duration_s, duration_s)
        worst = max(value for _, value in values)
        judgements.append(Judgement(name, early, late, worst, allowed[name](early)))
    return judgements


def problems(report: dict[str, Any], judgements: Sequence[Judgement]) -> list[str]:
    """Return what is wrong, in words; empty if the run was good."""
    found = [
        f"{each.name} grew from {each.early:.3g} to {each.late:.3g}"
        for each in judgements
        if not each.is_flat
    ]
    found += [f"lost: {what}" for what in report["lost"]]
    found += [f"log: {line}" for line in report["log"]]
    if report["exit_code"] != 0:
        found.append(f"the server ended with {report['exit_code']}")
    slowest_s = max(wait_s for _, wait_s in report["series"]["describe, s"])
    if slowest_s > _DESCRIBE_LIMIT_S:
        found.append(f"a describe took {slowest_s:.2f} s")
    left = {name: report["left_behind"][name] for name in ("connections", "requests")}
    return [*found, *(f"{count} {name} left behind" for name, count in left.items() if count)]


def _median_between(values: Series, start_s: float, end_s: float) -> float:
    within = [value for at_s, value in values if start_s <= at_s <= end_s]
    return median(within or [value for _, value in values])


def _summary(report: dict[str, Any], judgements: Sequence[Judgement]) -> str:
    hostile = report["hostile"]
    lines = [
        f"{report['minutes']:g} minutes, seed {report['seed']}; {report['machine']}",
        "",
        *(f"{count:7,}  {kind}" for kind, count in sorted(report["done"].items())),
        f"{report['audio_s']:7,.0f}  seconds of audio heard",
        f"{sum(hostile.values()):,} hostile inputs of {len(hostile)} kinds; "
        f"the server's reaction: {_list(report['reactions'])}",
        "",
        f"{'':16}  {'early':>9} {'late':>9} {'worst':>9}",
    ]
    for each in judgements:
        values = " ".join(f"{value:9.4g}" for value in (each.early, each.late, each.worst))
        lines.append(f"{each.name:16}  {values}  {'flat' if each.is_flat else 'NOT FLAT'}")
    verdict = "NOT GOOD" if report["problems"] else "flat, nothing lost"
    lines += ["", f"left behind at the end: {_list(report['left_behind'])}", f"verdict: {verdict}"]
    return "\n".join([*lines, *report["problems"]])


def _list(counts: dict[str, int]) -> str:
    return ", ".join(f"{name} {count:,}" for name, count in sorted(counts.items()))


if __name__ == "__main__":
    sys.exit(main())
