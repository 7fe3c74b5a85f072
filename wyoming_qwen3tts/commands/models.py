"""``models``: list, fetch, build, check, remove and tidy up models."""

import argparse
import asyncio
import hashlib
import json
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from wyoming_qwen3tts.commands.health import ask_server
from wyoming_qwen3tts.commands.table import print_table
from wyoming_qwen3tts.config import Config, add_flags, is_given
from wyoming_qwen3tts.errors import BuildError, ConfigError
from wyoming_qwen3tts.files import remove_directory
from wyoming_qwen3tts.models.bundles import (
    InstalledBundle,
    installed_bundles,
    read_bundle,
    scan_bundles,
)
from wyoming_qwen3tts.models.checkpoints import (
    data_lock,
    remove_checkpoint,
    repo_directory,
    size_of,
)
from wyoming_qwen3tts.models.install import InstallJob
from wyoming_qwen3tts.models.installer import run_install
from wyoming_qwen3tts.models.progress import InstallProgress, LogReporter, parse_progress
from wyoming_qwen3tts.models.references import (
    WORK_NAME,
    build_request,
    matching_bundles,
    referenced_repo,
    resolve,
)
from wyoming_qwen3tts.models.registry import PublishedModel, published_models
from wyoming_qwen3tts.voices.catalog import Catalog
from wyoming_qwen3tts.voices.library import VoiceLibrary
from wyoming_qwen3tts.voices.voice_folder import escape_control_chars

_MEGABYTE: Final = 1_000_000
_ASK_TIMEOUT_S: Final = 5.0
_INSTALL_FLAGS: Final = ("precision", "local_files_only")
_ACTIONS: Final[tuple[tuple[str, str, tuple[str, ...]], ...]] = (
    ("list", "list models, voices, progress and problems", ("uri",)),
    ("fetch", "download a model's checkpoint without building", _INSTALL_FLAGS),
    (
        "build",
        "download what is missing and build the bundle",
        (*_INSTALL_FLAGS, "keep_checkpoint"),
    ),
    ("remove", "remove a model: its bundles and its checkpoint", ()),
    ("check", "compare every file with its hash", ()),
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the actions of ``models`` and their flags."""
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    for name, words, flags in _ACTIONS:
        action = actions.add_parser(name, help=words)
        add_flags(action, "data_dirs", *flags)
        if name == "list":
            action.add_argument("--json", action="store_true", help="print JSON")
        else:
            action.add_argument(
                "model",
                nargs="*" if name == "check" else "+",
                metavar="MODEL",
                help="a name or name/int4, a repository (owner/name), or a path (./checkpoint)",
            )


def run(args: argparse.Namespace, config: Config) -> int:
    """Carry out an action; return 1 when a file is damaged or a server does not answer.

    Raises:
        Qwen3TTSError: The action is not possible.
    """
    if args.action == "list":
        return _list(args, config)
    if args.action in ("fetch", "build"):
        return _install(args, config)
    return (_remove if args.action == "remove" else _check)(args.model, config.data_paths)


def _list(args: argparse.Namespace, config: Config) -> int:
    data_dirs = config.data_paths
    bundles, problems = scan_bundles(data_dirs)
    rows = [_published_row(model, bundles, data_dirs) for model in published_models()]
    published = {model.bundle_name for model in published_models()}
    rows += [
        {"model": name, "bundles": _bundle_rows(name, bundles)}
        for name in sorted({bundle.manifest.name for bundle in bundles} - published)
    ]
    library = VoiceLibrary(data_dirs)
    voices = library.scan()
    problems += [damage for bundle in bundles if (damage := bundle.damage()) is not None]
    problems += [
        f"voice {voice.name} ({escape_control_chars(str(voice.directory))}): {voice.problem}"
        for voice in voices
        if voice.problem is not None
    ]
    report: dict[str, Any] = {
        "models": rows,
        "states": [vars(each) for data_dir in data_dirs for each in _running(data_dir)],
        "num_voices": len(Catalog(bundles, library, {}).combine(voices)),
        "num_library_voices": sum(voice.problem is None for voice in voices),
        "problems": problems,
        "server": _ask(config.uri) if is_given(args, "uri") else None,
    }
    if args.json:
        print(json.dumps(report, indent=2, ensure_ascii=False))
    else:
        _print_report(report)
    return 1 if report["server"] and report["server"]["problem"] else 0


def _published_row(
    model: PublishedModel, bundles: Sequence[InstalledBundle], data_dirs: Sequence[Path]
) -> dict[str, Any]:
    return {
        "model": model.name,
        "aliases": list(model.aliases),
        "licence": model.licence,
        "features": list(model.features),
        "download_bytes": model.num_bytes,
        "fetched_bytes": sum(size_of(repo_directory(each, model.repo)) for each in data_dirs),
        "bundles": _bundle_rows(model.bundle_name, bundles),
    }


def _bundle_rows(name: str, bundles: Sequence[InstalledBundle]) -> dict[str, dict[str, Any]]:
    return {
        bundle.directory.name: {
            "directory": str(bundle.directory),
            "precision": bundle.manifest.recipe,
            "disk_bytes": bundle.num_bytes,
            "weights_bytes": bundle.open_bytes,
            "problem": bundle.damage(),
        }
        for bundle in bundles
        if bundle.manifest.name == name
    }


def _running(data_dir: Path) -> list[InstallProgress]:
    """Return what a process installs now, and holds the lock for; killed ones leave their files."""
    paths = sorted((data_dir / WORK_NAME).glob("*.json"))
    if not paths:
        return []
    # A lock that is held raises a TimeoutError.
    with suppress(OSError), data_lock(data_dir).acquire(timeout=0):
        return []
    found = (parse_progress(path.read_bytes()) for path in paths)
    return [progress for progress in found if progress is not None and not progress.is_over]


def _ask(uri: str) -> dict[str, Any]:
    """Return what a running server reports about itself."""
    try:
        programs = asyncio.run(ask_server(uri, _ASK_TIMEOUT_S)).tts
    except OSError as error:
        problem = f"does not answer ({str(error) or type(error).__name__})"
        return {"uri": uri, "problem": problem}
    # A voice is listed once for each language.
    num_voices = len({voice.description for program in programs for voice in program.voices})
    name, version = programs[0].name, programs[0].version
    return {"uri": uri, "name": name, "version": version, "num_voices": num_voices, "problem": None}


def _print_report(report: dict[str, Any]) -> None:
    table = [["MODEL", "INSTALLED", "FETCHED", "DOWNLOAD", "FEATURES", "LICENCE"]]
    for row in report["models"]:
        sizes = [f"{name} {_megabytes(it['disk_bytes'])}" for name, it in row["bundles"].items()]
        table.append(
            [
                row["model"],
                " ".join(sizes) or "-",
                _megabytes(row.get("fetched_bytes", 0)),
                _megabytes(row.get("download_bytes", 0)),
                ", ".join(row.get("features", ())),
                row.get("licence", ""),
            ]
        )
    print_table(table)
    print(f"Voices: {report['num_voices']}, of them {report['num_library_voices']} in the library")
    for state in report["states"]:
        print(f"{state['model']}: {InstallProgress(**state).describe()}")
    for problem in report["problems"]:
        print(f"PROBLEM  {problem}")
    if (server := report["server"]) is not None:
        words = server["problem"] or "{name} {version}, {num_voices} voices".format(**server)
        print(f"Server {server['uri']}: {words}")


def _install(args: argparse.Namespace, config: Config) -> int:
    is_fetch = args.action == "fetch"
    for name in args.model:
        find = build_request if is_fetch else resolve
        request = find(name, config.data_paths, config.precision)
        if isinstance(request, InstalledBundle):
            print(f"{request.reference} is installed already: {request.directory}")
            continue
        job = InstallJob(request, is_fetch, config.local_files_only, config.keep_checkpoint)
        final = asyncio.run(run_install(job, LogReporter()))
        if final.state == "failed":
            raise BuildError(final.message)
        if is_fetch:
            print(f"{name}: {final.message}")
        else:
            bundle = read_bundle(request.target)
            print(f"{bundle.reference}: {bundle.directory} ({_megabytes(bundle.num_bytes)})")
    return 0


def _remove(names: Sequence[str], data_dirs: Sequence[Path]) -> int:
    for name in names:
        freed = 0
        for data_dir in filter(Path.is_dir, data_dirs):
            with data_lock(data_dir):
                before = size_of(data_dir)
                for bundle in matching_bundles(name, [data_dir]):
                    remove_directory(bundle.directory)
                    if not any(bundle.directory.parent.iterdir()):
                        bundle.directory.parent.rmdir()
                if (repo := referenced_repo(name)) is not None:
                    remove_checkpoint(data_dir, repo)
                freed += before - size_of(data_dir)
        if not freed:
            raise ConfigError(f"{name!r} is not installed; see: wyoming-qwen3tts models list")
        print(f"Removed {name}: {_megabytes(freed)}")
    return 0


def _check(names: Sequence[str], data_dirs: Sequence[Path]) -> int:
    num_problems, num_files = 0, 0
    bundles = [bundle for name in names for bundle in matching_bundles(name, data_dirs)]
    for bundle in bundles if names else installed_bundles(data_dirs):
        if bundle.is_published:
            print(f"not checked: {bundle.directory} was published without hashes")
            continue
        for file in bundle.manifest.files:
            num_files += 1
            path, problem = bundle.directory / file.path, "is missing"
            if path.is_file():
                with path.open("rb") as content:
                    found = hashlib.file_digest(content, "sha256").hexdigest()
                problem = "" if found == file.sha256 else f"is damaged (sha256 {found})"
            if problem:
                num_problems += 1
                print(f"PROBLEM  {bundle.reference}: {path} {problem}")
    print(f"files checked: {num_files}, damaged or missing: {num_problems}")
    if num_problems:
        print("Repair a damaged model: wyoming-qwen3tts models remove MODEL, then models build")
    return 1 if num_problems else 0


def _megabytes(num_bytes: int) -> str:
    return f"{num_bytes / _MEGABYTE:.0f} MB" if num_bytes else "-"
