"""The command ``wyoming-qwen3tts verify``: a bundle in, a verdict out."""

import argparse
import json
import os
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

from wyoming_qwen3tts.builder.verify.report import ComponentReport, Figure, VerifyReport, verdict
from wyoming_qwen3tts.builder.verify.verify import DEFAULT_FRAMES, VerifyOptions, verify_bundle
from wyoming_qwen3tts.errors import BundleError

_MEGABYTE = 1_000_000
_KILOBYTE = 1_000
_LINE_WIDTH = 100
_INDENT = " " * 8
# Beginnings and ends of the names of figures that are shares.
_SHARES = ("agreement", "overlap", "equal_")


def add_arguments(parser: argparse.ArgumentParser, data_dir: Path = Path("onnx")) -> None:
    """Add the command's arguments; ``data_dir`` is where bundles are by default."""
    parser.add_argument(
        "bundle",
        metavar="BUNDLE",
        help="a bundle's directory, or MODEL/VARIANT in the data directory",
    )
    parser.add_argument(
        "--checkpoint",
        type=Path,
        metavar="DIR",
        help="compare with this checkpoint in float32; without it only files, graphs and manifest "
        "are checked",
    )
    parser.add_argument("--data-dir", type=Path, default=data_dir, metavar="DIR")
    parser.add_argument(
        "--frames",
        type=_positive,
        default=DEFAULT_FRAMES,
        metavar="N",
        help="frames of speech to compare (default: %(default)s)",
    )
    parser.add_argument(
        "--threads", type=_positive, default=len(os.sched_getaffinity(0)), metavar="N"
    )
    parser.add_argument("--json", action="store_true", help="print the report as JSON")


def run(args: argparse.Namespace) -> int:
    """Verify and print the report; return 0 for PASS and 1 for FAIL.

    Raises:
        BundleError: There is no such directory.
        CheckpointError: The checkpoint cannot be used.
    """
    options = VerifyOptions(num_threads=args.threads, num_frames=args.frames)
    report = verify_bundle(_directory(args.bundle, args.data_dir), args.checkpoint, options, _tell)
    if sys.stderr.isatty():
        print("\r\033[K", end="", file=sys.stderr)
    if args.json:
        print(json.dumps(report.as_json(), indent=2, ensure_ascii=False))
    else:
        print("\n".join(report_lines(report)))
    return 0 if report.has_passed else 1


def report_lines(report: VerifyReport) -> Iterator[str]:
    """Yield the report as lines of text."""
    yield f"{report.directory}"
    yield (
        f"{report.name}, {report.recipe} for {report.device}, {report.layout} layout, "
        f"{report.num_files} files of {report.num_bytes / _MEGABYTE:.0f} MB"
    )
    if report.layout == "own":
        yield f"{report.num_hashed} of {report.num_files} sizes and hashes as the manifest states"
    yield ""
    yield "Graphs: what their weights are, and which operators work on quantised ones"
    for entry in report.in_order:
        for census in entry.graphs:
            sizes = ", ".join(
                _size(kind, num_bytes)
                for kind, num_bytes in census.weight_bytes.items()
                if num_bytes >= _KILOBYTE
            )
            operators = "; ".join(group.describe() for group in census.operators)
            yield f"  {census.name:16} {sizes}"
            yield f"  {'':16} {operators or 'none is quantised'}"
    yield ""
    if report.checkpoint is None:
        yield "Not compared with a checkpoint; --checkpoint DIR does that."
    else:
        yield f"Compared with {report.checkpoint} in float32 over {report.num_frames} frames"
    for entry in report.in_order:
        yield from _component_lines(entry)
    yield ""
    yield f"{verdict(report.has_passed)} ({report.seconds:.1f} s)"


def _component_lines(entry: ComponentReport) -> Iterator[str]:
    yield f"  {verdict(entry.has_passed)}  {entry.name:16} {entry.precision or ''}".rstrip()
    figures = ", ".join(f"{name} {_shown(name, value)}" for name, value in entry.figures.items())
    yield from textwrap.wrap(
        figures, _LINE_WIDTH, initial_indent=_INDENT, subsequent_indent=_INDENT
    )
    for fault in entry.faults():
        yield f"{_INDENT}{entry.name}: {fault}"
    for note in entry.notes:
        yield f"{_INDENT}note: {note}"


def _shown(name: str, value: Figure) -> str:
    is_share = name.startswith(_SHARES) or name.endswith(_SHARES)
    if isinstance(value, list):
        return " ".join(f"{100 * part:.0f}%" if is_share else f"{part:.0f}" for part in value)
    if is_share:
        return f"{100 * value:.1f}%"
    if "_db" in name:
        return f"{value:.1f}"
    if "cosine" in name:
        return f"{value:.7f}"
    return f"{value:.0f}" if float(value).is_integer() else f"{value:.3g}"


def _size(kind: str, num_bytes: int) -> str:
    if num_bytes < _MEGABYTE:
        return f"{kind} {num_bytes / _KILOBYTE:.1f} kB"
    return f"{kind} {num_bytes / _MEGABYTE:.1f} MB"


def _directory(reference: str, data_dir: Path) -> Path:
    for directory in (Path(reference), data_dir / reference):
        if directory.is_dir():
            return directory.resolve()
    raise BundleError(
        f"{reference} is no directory, and {data_dir} has no such one; give a bundle's directory."
    )


def _positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError("must be at least 1")
    return value


def _tell(stage: str) -> None:
    if sys.stderr.isatty():
        print(f"\r\033[K{stage} ...", end="", file=sys.stderr, flush=True)
