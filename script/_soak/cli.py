"""Command line of ``script/soak``."""

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from script._soak.plot import draw
from script._soak.run import Plan, run_soak
from script._soak.server import Sample, SoakError
from script._soak.verdict import Judgement, judge, problems

_DESCRIPTION: Final = """\
Start a server with a model of random weights, and let clients use it for a while: some ask for
speech in the ordinary ways, some hang up before or during it, some never read, some send what no
client should send. The server's memory, threads, descriptors and answering times are measured all
the while. The exit status is 0 if they stayed flat and no good client was let down.
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a soak; return the exit status."""
    parser = argparse.ArgumentParser(prog="script/soak", description=_DESCRIPTION)
    parser.add_argument("--minutes", type=float, default=2.0, help="how long (%(default)s)")
    parser.add_argument("--clients", type=int, default=8, help="clients at once (%(default)s)")
    parser.add_argument("--attackers", type=int, default=4, help="besides them (%(default)s)")
    parser.add_argument(
        "--pause",
        type=float,
        default=0.3,
        metavar="SECONDS",
        help="longest pause of a client between two things that it does (%(default)s)",
    )
    parser.add_argument("--seed", type=int, default=0, help="of all that is random (%(default)s)")
    parser.add_argument("--model", default="embedded-random", help="what speaks (%(default)s)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all measurements")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="draw them, as SVG")
    options = parser.parse_args(arguments)
    try:
        report = run_soak(
            Plan(
                minutes=options.minutes,
                num_clients=options.clients,
                num_attackers=options.attackers,
                seed=options.seed,
                model=options.model,
                max_pause_s=options.pause,
            )
        )
    except SoakError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    judgements = _judge(report)
    found = problems(report, judgements)
    report["problems"] = found
    if options.json:
        options.json.write_text(json.dumps(report) + "\n")
    if options.plot:
        options.plot.write_text(draw(report))
    print(_summary(report, judgements))
    return 1 if found else 0


def _judge(report: dict[str, Any]) -> list[Judgement]:
    samples = [Sample(**sample) for sample in report["samples"]]
    series = report["series"]
    return judge(samples, series["describe_s"], series["first_audio_s"], report["duration_s"])


def _summary(report: dict[str, Any], judgements: Sequence[Judgement]) -> str:
    lines = [
        f"{report['duration_s'] / 60:g} minutes, {report['plan']['num_clients']} clients at once "
        f"and {report['plan']['num_attackers']} attackers, "
        f"seed {report['plan']['seed']}; {report['machine']}",
        "",
        *(f"{count:7,}  {kind}" for kind, count in sorted(report["done"].items())),
        f"{report['audio_s']:7,.0f}  seconds of audio heard",
        f"load: server {report['load']['server_cores']:.2f} cores, "
        f"clients {report['load']['client_cores']:.2f}",
        "",
        f"{sum(report['hostile'].values()):,} hostile inputs of {len(report['hostile'])} kinds; "
        f"what the server did: {_list(report['reactions'])}",
        "",
        f"{'':12}  {'early':>9} {'late':>9} {'worst':>9}",
    ]
    for each in judgements:
        values = " ".join(f"{value:9.4g}" for value in (each.early, each.late, each.worst))
        verdict = "flat" if each.is_flat else "NOT FLAT"
        lines.append(f"{each.name:12}  {values} {each.unit:3} {verdict}")
    left = _list(report["left_behind"])
    lines += ["", f"left behind once all had gone: {left}", ""]
    lines += [
        f"standstill at {each['at_s']:.0f} s for {each['duration_s']:.1f} s: {each['reason']}"
        for each in report["standstills"]
    ]
    verdict = "flat, nothing lost" if not report["problems"] else "NOT GOOD"
    return "\n".join([*lines, f"verdict: {verdict}", *report["problems"]])


def _list(counts: dict[str, int]) -> str:
    return ", ".join(f"{name} {count:,}" for name, count in sorted(counts.items()))
