"""``status``: what is installed, what it needs, what is wrong, and whether a server answers."""

import argparse
import asyncio
import json
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import asdict, dataclass, field
from multiprocessing import get_context
from pathlib import Path

from wyoming_qwen3tts.commands.health import ask_server
from wyoming_qwen3tts.config import Config, add_flags, is_given
from wyoming_qwen3tts.engine.speed_record import SpeedRecord
from wyoming_qwen3tts.errors import BundleError
from wyoming_qwen3tts.machine import resident_memory_bytes
from wyoming_qwen3tts.models.bundles import InstalledBundle, outdated_bundles, scan_bundles
from wyoming_qwen3tts.runtime.bundle import open_bundle
from wyoming_qwen3tts.voices.catalog import Catalog
from wyoming_qwen3tts.voices.library import VoiceLibrary
from wyoming_qwen3tts.voices.voice_folder import LibraryVoice, escape_control_chars

_MEGABYTE = 1_000_000
_ASK_TIMEOUT_S = 5.0


@dataclass
class ModelReport:
    """One installed model."""

    name: str
    directory: str
    model_type: str
    device: str
    precision: str
    disk_bytes: int
    weights_bytes: int
    """Weights of the graphs that stay open while it speaks."""
    rtf: float | None
    """Seconds for a second of speech, as last measured on this machine by a server."""
    memory_bytes: int | None = None
    """Resident memory that opening took; None where it was not measured."""
    load_s: float | None = None
    """Seconds that opening took."""
    problem: str | None = None


@dataclass
class ServerReport:
    """What a running server says of itself."""

    uri: str
    name: str | None = None
    version: str | None = None
    num_voices: int = 0
    problem: str | None = None


@dataclass
class StatusReport:
    """Everything that the command prints."""

    models: list[ModelReport] = field(default_factory=list)
    num_voices: int = 0
    """Voices that a server of all these models would offer."""
    num_library_voices: int = 0
    """Usable ones of the library."""
    problems: list[str] = field(default_factory=list)
    """Of bundles that cannot be read, and of the voice library."""
    server: ServerReport | None = None


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the flags of ``status``."""
    add_flags(parser, "data_dirs", "threads", "uri")
    parser.add_argument(
        "--measure",
        action="store_true",
        help="open each model in a process of its own, and measure memory and time",
    )
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(args: argparse.Namespace, config: Config) -> int:
    """Print the report; return 1 if the server at ``--uri`` does not answer.

    Raises:
        ConfigError: The address cannot be asked.
    """
    report = gather(config.data_paths)
    if args.measure:
        for model in report.models:
            _measure_into(model, config.num_threads)
    if is_given(args, "uri"):
        report.server = _ask(config.uri)
    if args.json:
        print(json.dumps(asdict(report), indent=2, ensure_ascii=False))
    else:
        _print(report)
    return 1 if report.server is not None and report.server.problem else 0


def gather(data_dirs: Sequence[Path]) -> StatusReport:
    """Look at bundles and voices; no graph is loaded and nothing is built."""
    bundles, problems = scan_bundles(data_dirs)
    problems += [
        f"{outdated.directory}: of another format version; the server builds it again"
        for outdated in outdated_bundles(data_dirs)
    ]
    library = VoiceLibrary(data_dirs)
    entries = library.scan()
    problems += [_voice_problem(entry) for entry in entries if entry.problem]
    speeds = SpeedRecord(data_dirs[0])
    return StatusReport(
        models=[_model_report(bundle, speeds) for bundle in bundles],
        num_voices=len(Catalog(bundles, library, {}).combine(entries)),
        num_library_voices=sum(entry.problem is None for entry in entries),
        problems=problems,
    )


def _model_report(bundle: InstalledBundle, speeds: SpeedRecord) -> ModelReport:
    manifest = bundle.manifest
    return ModelReport(
        name=manifest.name,
        directory=str(bundle.directory),
        model_type=manifest.facts.model_type,
        device=manifest.device,
        precision=manifest.recipe,
        disk_bytes=bundle.num_bytes,
        weights_bytes=bundle.open_bytes,
        rtf=speeds.rtf(bundle),
        problem=bundle.damage(),
    )


def _voice_problem(entry: LibraryVoice) -> str:
    return f"voice {entry.name} ({escape_control_chars(str(entry.directory))}): {entry.problem}"


def _measure_into(model: ModelReport, num_threads: int) -> None:
    """Open a model in a new process, where nothing else takes memory."""
    if model.problem is not None:
        return
    with ProcessPoolExecutor(max_workers=1, mp_context=get_context("spawn")) as process:
        try:
            opened = process.submit(measure_opening, Path(model.directory), num_threads).result()
        except (BundleError, BrokenProcessPool) as error:
            model.problem = str(error)
        else:
            model.load_s, model.memory_bytes = opened


def measure_opening(directory: Path, num_threads: int) -> tuple[float, int | None]:
    """Open a bundle; return seconds, and the resident memory that it took.

    Raises:
        BundleError: It cannot be opened.
    """
    before_bytes = resident_memory_bytes()
    started_s = time.perf_counter()
    model = open_bundle(directory, num_threads)
    load_s = time.perf_counter() - started_s
    after_bytes = resident_memory_bytes()
    del model
    if before_bytes is None or after_bytes is None:
        return load_s, None
    return load_s, after_bytes - before_bytes


def _ask(uri: str) -> ServerReport:
    report = ServerReport(uri)
    try:
        info = asyncio.run(ask_server(uri, _ASK_TIMEOUT_S))
    except OSError as error:
        report.problem = f"does not answer ({error or type(error).__name__})"
        return report
    report.name, report.version = info.tts[0].name, info.tts[0].version
    report.num_voices = sum(len(program.voices) for program in info.tts)
    return report


def _print(report: StatusReport) -> None:
    if report.models:
        rows = [["MODEL", "DEVICE", "PRECISION", "DISK", "MEMORY", "RTF", "STATE"]]
        rows += [_row(model) for model in report.models]
        widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
        for row in rows:
            cells = [cell.ljust(width) for cell, width in zip(row, widths, strict=True)]
            print("  ".join(cells).rstrip())
        if any(model.memory_bytes is None for model in report.models):
            print("~ is the size of the weights that stay open; --measure opens the models.")
    else:
        print("No model is installed; see: wyoming-qwen3tts models list")
    print(f"Voices: {report.num_voices}, of them {report.num_library_voices} in the library")
    for problem in report.problems:
        print(f"PROBLEM  {problem}")
    if (server := report.server) is not None:
        answer = server.problem or f"{server.name} {server.version}, {server.num_voices} voices"
        print(f"Server {server.uri}: {answer}")


def _row(model: ModelReport) -> list[str]:
    if model.memory_bytes is None:
        memory = f"~{model.weights_bytes / _MEGABYTE:.0f} MB"
    else:
        memory = f"{model.memory_bytes / _MEGABYTE:.0f} MB"
    state = "ready" if model.load_s is None else f"opens in {model.load_s:.1f} s"
    return [
        model.name,
        model.device,
        model.precision,
        f"{model.disk_bytes / _MEGABYTE:.0f} MB",
        memory,
        "-" if model.rtf is None else f"{model.rtf:.2f}",
        f"PROBLEM: {model.problem}" if model.problem else state,
    ]
