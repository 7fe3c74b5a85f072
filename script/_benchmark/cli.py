"""Command line of ``script/benchmark``."""

import argparse
import dataclasses
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, get_args

from script._benchmark.campaign import Wishes, run_campaign
from script._benchmark.component_campaign import ComponentCampaign
from script._benchmark.components import COMPONENTS
from script._benchmark.extent import FULL, QUICK, TRIAL, Extent
from script._benchmark.materials import (
    DEFAULT_DIRECTORY,
    Materials,
    find_recipe,
    recipe_names,
)
from script._benchmark.plot import plot_reports
from script._benchmark.processes import BenchmarkError
from script._benchmark.report import FORMAT_VERSION, make_report
from script._benchmark.table import component_table, report_table
from tests.support.random_checkpoint import ModelSize, Preset
from wyoming_qwen3tts.builder.recipe import DEFAULT_PRECISION
from wyoming_qwen3tts.errors import Qwen3TTSError
from wyoming_qwen3tts.paths import default_num_threads

_ALL: Final = ",".join(COMPONENTS)
_DESCRIPTION: Final = """\
Measure one size and precision: milliseconds per frame of each component, real-time factor, time
to first audio, memory, several sentences and clients side by side - as ratios to what the machine
could do and to the design of the published bundles, all measured in the same run. The weights are
random; checkpoint and bundles are made at the first run (a few minutes, 4 to 12 GB) and kept.
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, or draw earlier measurements; return the exit status."""
    parser = _parser()
    options = parser.parse_args(arguments)
    problem = _problem(options)
    if problem:
        parser.error(problem)
    try:
        if options.from_files:
            reports = [_read_report(path) for path in options.from_files]
        elif options.components:
            _run_components(options)
            return 0
        else:
            reports = [_run(options)]
        if options.plot:
            plot_reports(reports, options.plot)
    except Qwen3TTSError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


def _run(options: argparse.Namespace) -> dict[str, Any]:
    wishes = Wishes(
        size=options.size,
        recipe=find_recipe(options.precision),
        preset=options.preset,
        num_threads=options.threads,
        extent=_extent(options),
    )
    materials = Materials(options.data, options.size, options.preset)
    report = make_report(run_campaign(wishes, materials))
    print(report_table(report))
    values = dataclasses.asdict(report)
    _write_json(options.json, values)
    return values


def _run_components(options: argparse.Namespace) -> None:
    materials = Materials(options.data, options.size, options.preset)
    bundle = options.bundle or materials.bundle(find_recipe(options.precision))
    codec = materials.codec_config()
    campaign = ComponentCampaign(bundle, options.against, _extent(options), options.threads)
    figures = [entry for name in options.components for entry in campaign.measure(name, codec)]
    snr_db = campaign.codec_snr_db() if "codec_decoder" in options.components else None
    print(component_table(figures))
    if snr_db is not None:
        print(f"\nSignal to noise of the codec decoder against the other: {snr_db:.1f} dB")
    values = [dataclasses.asdict(entry) for entry in figures]
    _write_json(options.json, {"components": values, "codec_snr_db": snr_db})


def _problem(options: argparse.Namespace) -> str | None:
    """Say what does not fit, before minutes are spent on measuring."""
    if options.from_files and not options.plot:
        return "--from needs --plot"
    if options.plot and options.components:
        return "--components has nothing to plot"
    if (options.bundle or options.against) and not options.components:
        return "--bundle and --against need --components"
    if options.threads < 1:
        return f"--threads {options.threads} is below 1"
    for path in (options.json, options.plot):
        if path is not None and not path.absolute().parent.is_dir():
            return f"there is no directory {path.absolute().parent}"
    return None


def _extent(options: argparse.Namespace) -> Extent:
    if options.preset == "tiny":
        return TRIAL
    return QUICK if options.quick else FULL


def _write_json(path: Path | None, values: Any) -> None:
    if path is not None:
        path.write_text(json.dumps(values, indent=2) + "\n", encoding="utf-8")


def _read_report(path: Path) -> dict[str, Any]:
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise BenchmarkError(f"{path} cannot be read: {error}") from error
    version = values.get("format_version") if isinstance(values, dict) else None
    if version != FORMAT_VERSION:
        raise BenchmarkError(f"{path} is no report of this version; measure again with --json.")
    return dict(values)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="benchmark",
        description=_DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--size", choices=get_args(ModelSize), default="0.6B")
    parser.add_argument(
        "--precision",
        default=DEFAULT_PRECISION,
        metavar="NAME",
        help=f"one of {', '.join(recipe_names())} (default: {DEFAULT_PRECISION})",
    )
    parser.add_argument(
        "--preset",
        choices=get_args(Preset),
        default="real",
        help="tiny tries out the benchmark itself in seconds; its figures mean nothing",
    )
    parser.add_argument("--quick", action="store_true", help="shorter texts, fewer rounds")
    parser.add_argument(
        "--threads",
        type=int,
        default=default_num_threads(),
        metavar="N",
        help="threads of the model (default: the cores of this process, %(default)s)",
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every figure there")
    parser.add_argument(
        "--plot", type=Path, metavar="FILE", help="draw real-time factor and first audio (png, svg)"
    )
    parser.add_argument(
        "--from",
        dest="from_files",
        type=Path,
        nargs="+",
        metavar="FILE",
        help="measure nothing; plot what earlier runs wrote with --json",
    )
    parser.add_argument(
        "--data",
        type=Path,
        default=DEFAULT_DIRECTORY,
        metavar="DIR",
        help="where checkpoints and bundles are kept (default: data/benchmark of the project)",
    )
    components = parser.add_argument_group("work on one graph")
    components.add_argument(
        "--components",
        type=_component_names,
        nargs="?",
        const=tuple(COMPONENTS),
        metavar="A,B",
        help=f"measure single graphs instead; all, or some of {_ALL}",
    )
    components.add_argument(
        "--bundle", type=Path, metavar="DIR", help="measure the graphs of this bundle"
    )
    components.add_argument(
        "--against", type=Path, metavar="DIR", help="take turns with the graphs of this bundle"
    )
    return parser


def _component_names(text: str) -> tuple[str, ...]:
    names = tuple(name.strip() for name in text.split(","))
    unknown = [name for name in names if name not in COMPONENTS]
    if unknown:
        raise argparse.ArgumentTypeError(f"unknown component {unknown[0]!r}; known: {_ALL}")
    return names
