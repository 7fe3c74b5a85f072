"""``models``: list, fetch, build, check, remove and tidy up models; ``status``: show what works."""

import argparse
import asyncio
import hashlib
import json
import shutil
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import get_context
from pathlib import Path
from typing import Any, Final

from tqdm import tqdm

from wyoming_qwen3tts.commands.health import ask_server
from wyoming_qwen3tts.commands.table import print_table
from wyoming_qwen3tts.config import Config, add_flags, is_given
from wyoming_qwen3tts.errors import BuildError, BundleError, ConfigError
from wyoming_qwen3tts.files import leftovers, remove_directory
from wyoming_qwen3tts.machine import resident_memory_bytes
from wyoming_qwen3tts.models.bundles import (
    InstalledBundle,
    installed_bundles,
    outdated_bundles,
    read_bundle,
    restore_bundles,
    scan_bundles,
)
from wyoming_qwen3tts.models.checkpoints import (
    data_lock,
    downloaded_checkpoints,
    is_locked,
    remove_checkpoint,
    size_of,
)
from wyoming_qwen3tts.models.install import InstallJob, Keep
from wyoming_qwen3tts.models.installer import run_install
from wyoming_qwen3tts.models.progress import InstallProgress, make_reporter, read_progress
from wyoming_qwen3tts.models.references import (
    WORK_NAME,
    build_request,
    matching_bundles,
    referenced_repo,
    resolve,
)
from wyoming_qwen3tts.models.registry import PublishedModel, find_model, published_models
from wyoming_qwen3tts.runtime.bundle import open_bundle
from wyoming_qwen3tts.voices.catalog import Catalog
from wyoming_qwen3tts.voices.library import VoiceLibrary
from wyoming_qwen3tts.voices.voice_folder import escape_control_chars

_MEGABYTE: Final = 1_000_000
_ASK_TIMEOUT_S: Final = 5.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the actions of ``models`` and their flags."""
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    listing = actions.add_parser("list", help="list the published and the installed models")
    status = actions.add_parser("status", help="show installed models, voices, and problems")
    fetch = actions.add_parser("fetch", help="download a model's checkpoint without building")
    build = actions.add_parser("build", help="download what is missing and build the bundle")
    remove = actions.add_parser("remove", help="remove a model: its bundles and its checkpoint")
    prune = actions.add_parser(
        "prune", help="remove incomplete bundles and checkpoints that were built"
    )
    check = actions.add_parser("check", help="compare every file with its hash")
    for action in (fetch, build, remove, check):
        action.add_argument(
            "model",
            nargs="*" if action is check else "+",
            metavar="MODEL",
            help="a name or name/int4, a repository (owner/name), or a path (./checkpoint)",
        )
    for action in (listing, status):
        action.add_argument("--json", action="store_true", help="print JSON")
    status.add_argument(
        "--measure", action="store_true", help="open each model, measure its memory and time"
    )
    add_flags(status, "data_dirs", "threads", "uri")
    add_flags(fetch, "data_dirs", "precision", "local_files_only")
    add_flags(build, "data_dirs", "precision", "local_files_only", "keep_checkpoint")
    for action in (listing, remove, prune, check):
        add_flags(action, "data_dirs")


def run(args: argparse.Namespace, config: Config) -> int:
    """Carry out an action; return 1 when a file is damaged or a server does not answer.

    Raises:
        Qwen3TTSError: The action is not possible.
    """
    data_dirs = config.data_paths
    match args.action:
        case "list":
            return _list(data_dirs, as_json=args.json)
        case "status":
            return _status(args, config)
        case "fetch" | "build":
            return _install(args, config)
        case "remove":
            return _remove(args.model, data_dirs)
        case "prune":
            return _prune(data_dirs)
        case _:
            return _check(args.model, data_dirs)


# List


def _list(data_dirs: Sequence[Path], *, as_json: bool) -> int:
    bundles, problems = scan_bundles(data_dirs)
    rows = [_model_row(model, bundles, data_dirs) for model in published_models()]
    known = {model.bundle_name for model in published_models()}
    rows += [
        {"model": name, "licence": "", "features": [], "download_bytes": 0, "fetched_bytes": 0}
        | {"bundles": _sizes(name, bundles)}
        for name in sorted({bundle.manifest.name for bundle in bundles} - known)
    ]
    running = [progress for data_dir in data_dirs for progress in _running(data_dir)]
    if as_json:
        values = {"models": rows, "states": [vars(progress) for progress in running]}
        print(json.dumps(values, indent=2, ensure_ascii=False))
        return 0
    table = [["MODEL", "INSTALLED", "FETCHED", "DOWNLOAD", "FEATURES", "LICENCE"]]
    for row in rows:
        installed = " ".join(f"{name} {_megabytes(size)}" for name, size in row["bundles"].items())
        table.append(
            [
                row["model"],
                installed or "-",
                _megabytes(row["fetched_bytes"]),
                _megabytes(row["download_bytes"]),
                ", ".join(row["features"]),
                row["licence"],
            ]
        )
    print_table(table)
    for progress in running:
        print(f"{progress.model}: {progress.describe()}")
    for problem in [*problems, *_outdated(data_dirs)]:
        print(f"PROBLEM  {problem}")
    return 0


def _model_row(
    model: PublishedModel, bundles: Sequence[InstalledBundle], data_dirs: Sequence[Path]
) -> dict[str, Any]:
    downloaded = [each for data_dir in data_dirs for each in downloaded_checkpoints(data_dir)]
    return {
        "model": model.name,
        "aliases": list(model.aliases),
        "type": model.model_type,
        "size": model.model_size,
        "repo": model.repo,
        "revision": model.revision,
        "licence": model.licence,
        "features": list(model.features),
        "download_bytes": model.num_bytes,
        "fetched_bytes": sum(each.num_bytes for each in downloaded if each.repo == model.repo),
        "bundles": _sizes(model.bundle_name, bundles),
        "measured": {name: vars(values) for name, values in model.measured.items()},
    }


def _sizes(name: str, bundles: Sequence[InstalledBundle]) -> dict[str, int]:
    named = [bundle for bundle in bundles if bundle.manifest.name == name]
    return {bundle.directory.name: bundle.num_bytes for bundle in named}


def _running(data_dir: Path) -> list[InstallProgress]:
    """Return the installations that run now; files of killed processes do not count."""
    if not is_locked(data_dir):
        return []
    found = (read_progress(path) for path in sorted((data_dir / WORK_NAME).glob("*.json")))
    return [progress for progress in found if progress is not None and not progress.is_over]


def _outdated(data_dirs: Sequence[Path]) -> list[str]:
    return [
        f"{bundle.directory} has another format version; the server builds it again"
        for bundle in outdated_bundles(data_dirs)
    ]


# Status


def _status(args: argparse.Namespace, config: Config) -> int:
    data_dirs = config.data_paths
    bundles, problems = scan_bundles(data_dirs)
    problems += _outdated(data_dirs)
    library = VoiceLibrary(data_dirs)
    entries = library.scan()
    problems += [
        f"voice {entry.name} ({escape_control_chars(str(entry.directory))}): {entry.problem}"
        for entry in entries
        if entry.problem
    ]
    models = [_model_status(bundle) for bundle in bundles]
    if args.measure:
        for model in models:
            _measure_into(model, config.num_threads)
    report: dict[str, Any] = {
        "models": models,
        "num_voices": len(Catalog(bundles, library, {}).combine(entries)),
        "num_library_voices": sum(entry.problem is None for entry in entries),
        "problems": problems,
        "server": _ask(config.uri) if is_given(args, "uri") else None,
    }
    if args.json:
        print(json.dumps(report, indent=2, ensure_ascii=False))
    else:
        _print_status(report)
    return 1 if report["server"] and report["server"]["problem"] else 0


def _model_status(bundle: InstalledBundle) -> dict[str, Any]:
    return {
        "name": bundle.manifest.name,
        "directory": str(bundle.directory),
        "model_type": bundle.manifest.facts.model_type,
        "precision": bundle.manifest.recipe,
        "disk_bytes": bundle.num_bytes,
        "weights_bytes": bundle.open_bytes,
        "memory_bytes": None,
        "load_s": None,
        "problem": bundle.damage(),
    }


def _measure_into(model: dict[str, Any], num_threads: int) -> None:
    """Open a model in a new process, where nothing else takes memory."""
    if model["problem"] is not None:
        return
    with ProcessPoolExecutor(max_workers=1, mp_context=get_context("spawn")) as process:
        try:
            opened = process.submit(measure_opening, Path(model["directory"]), num_threads).result()
            model["load_s"], model["memory_bytes"] = opened
        except (BundleError, BrokenProcessPool) as error:
            model["problem"] = str(error)


def measure_opening(directory: Path, num_threads: int) -> tuple[float, int | None]:
    """Open a bundle; return the seconds and the resident memory that it took.

    Raises:
        BundleError: It cannot be opened.
    """
    before_bytes = resident_memory_bytes()
    started_s = time.perf_counter()
    model = open_bundle(directory, num_threads)
    load_s = time.perf_counter() - started_s
    after_bytes = resident_memory_bytes()
    del model
    is_known = before_bytes is not None and after_bytes is not None
    return load_s, (after_bytes or 0) - (before_bytes or 0) if is_known else None


def _ask(uri: str) -> dict[str, Any]:
    """Return what a running server reports about itself."""
    try:
        programs = asyncio.run(ask_server(uri, _ASK_TIMEOUT_S)).tts
    except OSError as error:
        problem = f"does not answer ({str(error) or type(error).__name__})"
        return {"uri": uri, "name": None, "version": None, "num_voices": 0, "problem": problem}
    num_voices = sum(len(program.voices) for program in programs)
    name, version = programs[0].name, programs[0].version
    return {"uri": uri, "name": name, "version": version, "num_voices": num_voices, "problem": None}


def _print_status(report: dict[str, Any]) -> None:
    models = report["models"]
    if models:
        print_table([["MODEL", "PRECISION", "DISK", "MEMORY", "STATE"], *map(_status_row, models)])
        if any(model["memory_bytes"] is None for model in models):
            print("~ is the size of the weights that stay open; --measure opens the models.")
    else:
        print("No model is installed; see: wyoming-qwen3tts models list")
    print(f"Voices: {report['num_voices']}, of them {report['num_library_voices']} in the library")
    for problem in report["problems"]:
        print(f"PROBLEM  {problem}")
    if (server := report["server"]) is not None:
        words = f"{server['name']} {server['version']}, {server['num_voices']} voices"
        print(f"Server {server['uri']}: {server['problem'] or words}")


def _status_row(model: dict[str, Any]) -> list[str]:
    if model["memory_bytes"] is None:
        memory = f"~{_megabytes(model['weights_bytes'])}"
    else:
        memory = _megabytes(model["memory_bytes"])
    state = "ready" if model["load_s"] is None else f"opens in {model['load_s']:.1f} s"
    problem = model["problem"]
    return [
        model["name"],
        model["precision"],
        _megabytes(model["disk_bytes"]),
        memory,
        f"PROBLEM: {problem}" if problem else state,
    ]


# Fetch and build


def _install(args: argparse.Namespace, config: Config) -> int:
    is_fetch = args.action == "fetch"
    for name in args.model:
        find = build_request if is_fetch else resolve
        request = find(name, config.data_paths, config.precision)
        if isinstance(request, InstalledBundle):
            print(f"{request.reference} is installed already: {request.directory}")
            continue
        keep: Keep = "all" if is_fetch or config.keep_checkpoint else "nothing"
        job = InstallJob(request, is_fetch, config.local_files_only, keep)
        final = asyncio.run(run_install(job, make_reporter()))
        if final.state == "failed":
            raise BuildError(final.message)
        if is_fetch:
            print(f"{name}: {final.message}")
        else:
            bundle = read_bundle(request.target)
            print(f"{bundle.reference}: {bundle.directory} ({_megabytes(bundle.num_bytes)})")
    return 0


# Remove and prune


def _remove(names: Sequence[str], data_dirs: Sequence[Path]) -> int:
    for name in names:
        removed = sum(_remove_from(name, data_dir) for data_dir in data_dirs)
        if not removed:
            raise ConfigError(f"{name!r} is not installed; see: wyoming-qwen3tts models list")
        print(f"Removed {name}: {_megabytes(removed)}")
    return 0


def _remove_from(name: str, data_dir: Path) -> int:
    """Remove a model from a data directory; return the freed bytes."""
    if not data_dir.is_dir():
        return 0
    removed = 0
    with data_lock(data_dir):
        for bundle in matching_bundles(name, [data_dir]):
            removed += bundle.num_bytes
            remove_directory(bundle.directory)
            if not any(bundle.directory.parent.iterdir()):
                bundle.directory.parent.rmdir()
        repo = (referenced_repo(name) or "").lower()
        for checkpoint in downloaded_checkpoints(data_dir):
            if checkpoint.repo.lower() == repo:
                removed += checkpoint.num_bytes
                remove_checkpoint(data_dir, checkpoint.repo, keep_codec=False)
    return removed


def _prune(data_dirs: Sequence[Path]) -> int:
    freed = 0
    for data_dir in filter(Path.is_dir, data_dirs):
        with data_lock(data_dir):
            before = size_of(data_dir)
            restore_bundles(data_dir)
            for path in (path for folder in data_dir.glob("*/") for path in leftovers(folder)):
                shutil.rmtree(path, ignore_errors=True)
            built = {bundle.manifest.source.repo for bundle in installed_bundles([data_dir])}
            for checkpoint in downloaded_checkpoints(data_dir):
                if checkpoint.repo in built or checkpoint.is_remnant:
                    remove_checkpoint(data_dir, checkpoint.repo)
            freed += before - size_of(data_dir)
    print(f"Removed what nothing needs: {_megabytes(freed)}")
    return 0


# Check


def _check(names: Sequence[str], data_dirs: Sequence[Path]) -> int:
    num_problems, num_files = 0, 0
    for label, path, expected in _known_files(names, data_dirs):
        num_files += 1
        if not path.is_file():
            problem = "is missing"
        elif not (found := _sha256(path)).startswith(expected):
            problem = f"is damaged (sha256 {found}, not {expected})"
        else:
            continue
        num_problems += 1
        print(f"PROBLEM  {label}: {path} {problem}")
    print(f"files checked: {num_files}, damaged or missing: {num_problems}")
    if num_problems:
        print("Repair a damaged model: wyoming-qwen3tts models remove MODEL, then models build")
    return 1 if num_problems else 0


def _known_files(
    names: Sequence[str], data_dirs: Sequence[Path]
) -> Iterator[tuple[str, Path, str]]:
    """Yield (owner, file, hash) of every file with a known hash."""
    if names:
        bundles = [bundle for name in names for bundle in matching_bundles(name, data_dirs)]
    else:
        bundles = installed_bundles(data_dirs)
    for bundle in bundles:
        if bundle.is_published:
            print(f"not checked: {bundle.directory} was published without hashes")
            continue
        for file in bundle.manifest.files:
            yield bundle.reference, bundle.directory / file.path, file.sha256
    repos = {referenced_repo(name) for name in names}
    for checkpoint in (each for data_dir in data_dirs for each in downloaded_checkpoints(data_dir)):
        model = find_model(checkpoint.repo)
        is_wanted = not names or checkpoint.repo in repos
        if is_wanted and model is not None and model.revision == checkpoint.revision:
            for known in model.files:
                yield checkpoint.repo, checkpoint.directory / known.path, known.sha256


def _sha256(path: Path) -> str:
    """Return a file's hash, with a bar for large ones on a terminal."""
    digest, size = hashlib.sha256(), path.stat().st_size
    with (
        path.open("rb") as file,
        tqdm(
            total=size, desc=path.name, unit="B", unit_scale=True, leave=False, disable=None
        ) as bar,
    ):
        while chunk := file.read(1 << 20):
            digest.update(chunk)
            bar.update(len(chunk))
    return digest.hexdigest()


def _megabytes(num_bytes: int) -> str:
    return f"{num_bytes / _MEGABYTE:.0f} MB" if num_bytes else "-"
