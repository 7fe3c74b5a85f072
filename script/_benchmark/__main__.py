"""Command line of ``script/benchmark``: measure in rounds, then print ratios."""

import argparse
import json
import os
import platform
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from typing import Any, Final, get_args

import onnxruntime as ort

from script._benchmark.fixtures import DEFAULT_DIRECTORY, PEER_GRAPHS, ROOT, Fixtures
from script._benchmark.floor import codec_operations_per_frame, weight_bytes_per_run
from script._benchmark.worker import Worker, WorkerError
from tests.support.random_checkpoint import ModelSize, Preset
from wyoming_qwen3tts.builder.checkpoint import Checkpoint
from wyoming_qwen3tts.builder.recipe import DEFAULT_PRECISION, PRECISIONS, uniform_recipe
from wyoming_qwen3tts.errors import Qwen3TTSError
from wyoming_qwen3tts.machine import default_num_threads
from wyoming_qwen3tts.runtime.manifest import read_manifest

_DESCRIPTION: Final = """\
Measure one model size and precision: real-time factor, first audio, milliseconds per frame of each
component, several sentences and clients side by side, memory. Everything is a ratio of two numbers
of the same run: ours against what the machine can do, against the design of the onnx-community
bundles, and with --against against another checkout of this project. Weights are random; they are
made in the first run (a few minutes, 4 to 12 GB) and kept.
"""
_LANES: Final = 4
_PEER_PAST: Final = 100
_WORD: Final = ("Hello.",)
_SENTENCE: Final = ("The kitchen light is on and the heating is set to 20.",)
_CLIENT: Final = ("The window in the bedroom is still open.",)
_PARAGRAPH: Final = (
    "Good morning, it is half past seven.",
    "Today will be cloudy, with rain in the afternoon.",
    "Your first meeting starts at nine.",
    "The washing machine finished an hour ago.",
    "The front door was left unlocked last night.",
    "Shall I start the coffee machine?",
)
_CASES: Final[dict[str, tuple[int, tuple[str, ...], bool]]] = {
    "word": (1, _WORD, False),
    "sentence": (1, _SENTENCE, False),
    "paragraph, 1 lane": (1, _PARAGRAPH, False),
    "paragraph, 4 lanes": (_LANES, _PARAGRAPH, True),
    "1 client": (_LANES, _CLIENT, False),
    "4 clients": (_LANES, _CLIENT * 4, False),
}
"""Name -> lanes, texts, and whether the texts are sentences of one answer."""
_CHARACTERS_PER_FRAME: Final = 1.2  # 15 characters a second at 12.5 frames a second

Runs = dict[str, list[dict[str, Any]]]


def main(arguments: list[str] | None = None) -> int:
    """Measure and print; return the exit status."""
    options = _parser().parse_args(arguments)
    try:
        report = _measure(options)
    except (Qwen3TTSError, WorkerError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    print(_table(report))
    if options.json:
        options.json.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    return 0


def _measure(options: argparse.Namespace) -> dict[str, Any]:
    fixtures = Fixtures(options.data, options.size, options.preset)
    recipe = uniform_recipe(options.precision)
    bundle = options.bundle or fixtures.bundle(recipe)
    peer_bundle = None if options.no_peer else fixtures.peer_bundle(recipe)
    checkouts = {"here": ROOT, **({"against": options.against} if options.against else {})}
    started_s = time.monotonic()
    with ExitStack() as stack:

        def start(checkout: Path, kind: str, **settings: Any) -> Worker:
            worker = Worker(checkout, kind, num_threads=options.threads, **settings)
            return stack.enter_context(worker)

        machine = start(ROOT, "machine")
        speech = {
            (name, lanes): start(checkout, "speech", bundle_directory=bundle, max_lanes=lanes)
            for lanes in (1, _LANES)
            for name, checkout in checkouts.items()
        }
        for worker in speech.values():
            worker.run("speak", **_arguments(_WORD, 0.0, is_answer=False))
        peer = peer_bundle and start(ROOT, "peer", bundle_directory=peer_bundle, graphs=PEER_GRAPHS)
        runs: dict[str, Any] = {"machine": [], "peer": [], **{name: {} for name in checkouts}}
        for number in range(options.rounds):
            runs["machine"].append(machine.run("probe"))
            for case, (lanes, texts, is_answer) in _CASES.items():
                speak = _arguments(texts, options.length, is_answer=is_answer)
                # Taking turns, so that a drift of the machine hits all checkouts alike.
                for name in checkouts if number % 2 == 0 else reversed(list(checkouts)):
                    result = speech[name, lanes].run("speak", **speak)
                    runs[name].setdefault(case, []).append(result)
            if peer:
                runs["peer"].append(peer.run("frames", num_frames=4, past=_PEER_PAST))
            print(f"Round {number + 1} of {options.rounds}", file=sys.stderr)
    facts = read_manifest(bundle).facts
    codec = Checkpoint.open(fixtures.checkpoint()).codec_decoder
    return {
        "settings": {
            "size": options.size,
            "precision": options.precision,
            "preset": options.preset,
            "threads": options.threads,
            "rounds": options.rounds,
            "duration_s": time.monotonic() - started_s,
        },
        "machine": _machine(),
        "work": {
            "frame_ms": 1e3 * facts.samples_per_frame / facts.sample_rate_hz,
            "talker_bytes": weight_bytes_per_run(bundle / "talker.onnx"),
            "predictor_bytes": weight_bytes_per_run(bundle / "code_predictor.onnx"),
            "codec_operations": codec_operations_per_frame(codec),
        },
        "runs": runs,
    }


def _arguments(texts: tuple[str, ...], length: float, *, is_answer: bool) -> dict[str, Any]:
    frames = [max(4, round(len(text) / _CHARACTERS_PER_FRAME * length)) for text in texts]
    return {"texts": texts, "frames": frames, "is_answer": is_answer}


def _machine() -> dict[str, Any]:
    lines = Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []
    names = [line for line in lines if line.startswith("model name")]
    return {
        "processor": names[0].partition(":")[2].strip() if names else platform.processor(),
        "cores": os.cpu_count(),
        "load": os.getloadavg()[0],
        "python": platform.python_version(),
        "onnxruntime": ort.__version__,
    }


def _table(report: dict[str, Any]) -> str:
    """Return the report as Markdown; medians over the rounds."""
    settings, machine, work, runs = (
        report[name] for name in ("settings", "machine", "work", "runs")
    )
    rates = {key: median(run[key] for run in runs["machine"]) for key in runs["machine"][0]}
    floor = {
        "talker": work["talker_bytes"] / rates["read_gb_per_s"] / 1e6,
        "predictor": work["predictor_bytes"] / rates["read_gb_per_s"] / 1e6,
        "codec": work["codec_operations"] / rates["fp32_gflops"] / 1e6,
    }
    ours = _per_frame_ms(runs["here"]["sentence"])
    peer = {
        part: median(run[f"{part}_ms"] for run in runs["peer"]) if runs["peer"] else None
        for part in floor
    }
    trial = " Tiny trial model: the numbers mean nothing." if settings["preset"] == "tiny" else ""
    lines = [
        f"## {settings['size']} {settings['precision']}",
        "",
        f"Random weights, {settings['threads']} threads, {settings['rounds']} rounds in "
        f"{settings['duration_s']:.0f} s, medians.{trial}",
        f"{machine['processor']}, {machine['cores']} cores, load {machine['load']:.1f} at the end, "
        f"Python {machine['python']}, onnxruntime {machine['onnxruntime']}. It reads "
        f"{rates['read_gb_per_s']:.1f} GB/s and computes {rates['fp32_gflops']:.0f} Gflop/s "
        "in float32.",
        "",
        *_rows("per frame, ms", "here", "floor", "here / floor", "peer design", "peer / here"),
    ]
    lines += [_row(part, ours[part], floor[part], peer[part]) for part in floor]
    complete = None if None in peer.values() else sum(value or 0.0 for value in peer.values())
    lines.append(_row("frame", ours["frame"], sum(floor.values()), complete))
    lines += [
        "",
        f"Floor: reading {work['talker_bytes'] / 1e6:.0f} MB of talker and "
        f"{work['predictor_bytes'] / 1e6:.0f} MB of predictor weights, computing "
        f"{work['codec_operations'] / 1e9:.2f} Gflop of direct codec convolutions.",
        "",
        *_rows("speech", "RTF", "first audio, ms", "memory, MB", "against / here"),
    ]
    against = runs.get("against")
    for case in _CASES:
        here = runs["here"][case]
        audio_s = here[0]["num_frames"] * work["frame_ms"] / 1e3
        first = zip(*(run["first_audio_ms"] for run in here), strict=True)
        ratio = f"{_wall_s(against[case]) / _wall_s(here):.3f}" if against else "-"
        lines.append(
            f"| {case} | {_wall_s(here) / audio_s:.3f} "
            f"| {', '.join(f'{median(values):.0f}' for values in first)} "
            f"| {max(run['peak_rss_mb'] or 0 for run in here):.0f} | {ratio} |"
        )
    lanes = _wall_s(runs["here"]["paragraph, 1 lane"]) / _wall_s(runs["here"]["paragraph, 4 lanes"])
    clients = 4 * _wall_s(runs["here"]["1 client"]) / _wall_s(runs["here"]["4 clients"])
    lines += ["", f"Four lanes / one: {lanes:.2f}. Four clients / one: {clients:.2f}."]
    if against:
        each = [_wall_s(against[case]) / _wall_s(runs["here"][case]) for case in _CASES]
        lines.append(f"Speed against the other checkout, median of the cases: {median(each):.3f}.")
    return "\n".join(lines)


def _rows(*header: str) -> list[str]:
    return [f"| {' | '.join(header)} |", f"|{' --- |' * len(header)}"]


def _row(name: str, here: float, floor: float, peer: float | None) -> str:
    beside = "- | -" if peer is None else f"{peer:.2f} | {peer / here:.2f}"
    return f"| {name} | {here:.2f} | {floor:.2f} | {here / floor:.2f} | {beside} |"


def _wall_s(runs: list[dict[str, Any]]) -> float:
    return float(median(run["wall_s"] for run in runs))


def _per_frame_ms(runs: list[dict[str, Any]]) -> dict[str, float]:
    def part(key: str, first: int = 0) -> float:
        each = [run[key] / (run["num_frames"] - first) for run in runs]
        return 1e3 * float(median(each))

    # The first frame comes from the prefill.
    costs = {"talker": part("talker_s", 1), "predictor": part("predictor_s")}
    costs["codec"] = part("codec_s")
    frame = median((run["wall_s"] - run["prefill_s"]) / run["num_frames"] for run in runs)
    return {**costs, "frame": 1e3 * frame}


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="benchmark",
        description=_DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--size", choices=get_args(ModelSize), default="0.6B")
    add("--precision", choices=PRECISIONS, default=DEFAULT_PRECISION)
    add(
        "--preset", choices=get_args(Preset), default="real", help="tiny tries the benchmark itself"
    )
    add("--threads", type=int, default=default_num_threads(), metavar="N", help="(%(default)s)")
    add("--rounds", type=int, default=3, metavar="N", help="(%(default)s)")
    add(
        "--length",
        type=float,
        default=1.0,
        metavar="SHARE",
        help="share of each text (%(default)s)",
    )
    add("--bundle", type=Path, metavar="DIR", help="measure this bundle of the same dimensions")
    add("--against", type=Path, metavar="CHECKOUT", help="take turns with another checkout")
    add("--no-peer", action="store_true", help="leave out the peer's design")
    add("--json", type=Path, metavar="FILE", help="write every measurement there")
    add("--data", type=Path, default=DEFAULT_DIRECTORY, metavar="DIR", help="(%(default)s)")
    return parser


if __name__ == "__main__":
    sys.exit(main())
