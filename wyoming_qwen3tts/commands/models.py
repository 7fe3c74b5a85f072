"""``models``: list, fetch, build, check, remove and tidy up models."""

import argparse
import json
import shutil
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from tqdm import tqdm

from wyoming_qwen3tts.config import Config, add_flags
from wyoming_qwen3tts.errors import ConfigError
from wyoming_qwen3tts.models.bundles import (
    InstalledBundle,
    installed_bundles,
    leftovers,
    outdated_bundles,
    remove_bundle,
    restore_replaced,
)
from wyoming_qwen3tts.models.checkpoint_store import CheckpointStore, Snapshot, sha256_of
from wyoming_qwen3tts.models.data_lock import data_lock, is_held
from wyoming_qwen3tts.models.orders import WORK_NAME, Wishes, order_for, resolve
from wyoming_qwen3tts.models.provision import Provisioner, ProvisionOptions
from wyoming_qwen3tts.models.provision_state import (
    BarReporter,
    ProvisionState,
    make_reporter,
    read_state,
)
from wyoming_qwen3tts.models.registry import CatalogueModel, catalogue_models, find_model

_MEGABYTE: Final = 1_000_000


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the actions of ``models`` and their flags."""
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    listing = actions.add_parser("list", help="list models: what there is, and what is here")
    listing.add_argument("--json", action="store_true", help="print JSON")
    for name, help_line in (
        ("fetch", "fetch what a model is built of, without building"),
        ("build", "fetch what is missing and build the bundle"),
    ):
        action = actions.add_parser(name, help=help_line)
        action.add_argument(
            "model",
            nargs="+",
            metavar="MODEL",
            help="a name, a repository (owner/name), or a checkpoint's directory",
        )
        add_flags(action, "data_dirs", "precision", "local_files_only", "keep_checkpoint")
    remove = actions.add_parser("remove", help="remove a model: its bundles and its checkpoint")
    remove.add_argument(
        "model", nargs="+", metavar="MODEL", help="a name, or name/cpu_int8 for one bundle"
    )
    prune = actions.add_parser(
        "prune", help="remove what nothing needs: half-made bundles, checkpoints that were built"
    )
    check = actions.add_parser("check", help="compare every file with its hash")
    check.add_argument("model", nargs="*", metavar="MODEL", help="default: all")
    for action in (listing, remove, prune, check):
        add_flags(action, "data_dirs")


def run(args: argparse.Namespace, config: Config) -> int:
    """Carry out an action; return 1 when a file is damaged.

    Raises:
        Qwen3TTSError: The action is not possible.
    """
    data_dirs = config.data_paths
    match args.action:
        case "list":
            return _list(data_dirs, as_json=args.json)
        case "fetch" | "build":
            return _get(args, config)
        case "remove":
            return _remove(args.model, data_dirs)
        case "prune":
            return _prune(data_dirs)
        case _:
            return _check(args.model, data_dirs)


def _list(data_dirs: Sequence[Path], *, as_json: bool) -> int:
    bundles = installed_bundles(data_dirs)
    snapshots = [each for data_dir in data_dirs for each in CheckpointStore(data_dir).snapshots()]
    rows = [_model_row(model, bundles, snapshots) for model in catalogue_models()]
    known = {model.bundle_name for model in catalogue_models()}
    others = sorted({each.manifest.name for each in bundles} - known)
    rows += [_other_row(name, bundles) for name in others]
    states = [state for data_dir in data_dirs for state in _current_states(data_dir / WORK_NAME)]
    if as_json:
        values = {"models": rows, "states": [vars(state) for state in states]}
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
    _print_table(table)
    for state in states:
        print(f"{state.model}: {state.describe()}")
    for outdated in outdated_bundles(data_dirs):
        print(f"{outdated.directory}: of another format version; the server builds it again")
    return 0


def _current_states(work_dir: Path) -> list[ProvisionState]:
    """Return what is going on now; what killed processes left says nothing."""
    if not is_held(work_dir):
        return []
    states = (read_state(path) for path in sorted(work_dir.glob("*.json")))
    return [state for state in states if state is not None and not state.is_over]


def _model_row(
    model: CatalogueModel, bundles: Sequence[InstalledBundle], snapshots: Sequence[Snapshot]
) -> dict[str, Any]:
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
        "fetched_bytes": sum(each.num_bytes for each in snapshots if each.repo == model.repo),
        "bundles": _sizes(model.bundle_name, bundles),
        "measured": {name: vars(values) for name, values in model.measured.items()},
    }


def _other_row(name: str, bundles: Sequence[InstalledBundle]) -> dict[str, Any]:
    return {
        "model": name,
        "licence": "",
        "features": [],
        "download_bytes": 0,
        "fetched_bytes": 0,
        "bundles": _sizes(name, bundles),
    }


def _sizes(name: str, bundles: Sequence[InstalledBundle]) -> dict[str, int]:
    return {
        bundle.directory.name: bundle.num_bytes
        for bundle in bundles
        if bundle.manifest.name == name
    }


def _get(args: argparse.Namespace, config: Config) -> int:
    data_dirs = config.data_paths
    wishes = Wishes(precision=config.precision)
    keep = args.action == "fetch" or config.keep_checkpoint
    provisioner = Provisioner(ProvisionOptions(config.local_files_only, keep), threading.Event())
    for name in args.model:
        find = order_for if args.action == "fetch" else resolve
        wanted = find(name, wishes, data_dirs)
        if isinstance(wanted, InstalledBundle):
            print(f"{wanted.reference} is there already: {wanted.directory}")
            continue
        report = make_reporter()
        try:
            if args.action == "fetch":
                paths = provisioner.fetch(wanted, report)
                print(f"{name}: {paths[0] if paths[0].is_dir() else paths[-1].parent}")
            else:
                bundle = provisioner.provide(wanted, report)
                size = _megabytes(bundle.num_bytes)
                print(f"{bundle.reference}: {bundle.directory} ({size})")
        finally:
            if isinstance(report, BarReporter):
                report.close()
    return 0


def _remove(names: Sequence[str], data_dirs: Sequence[Path]) -> int:
    for name in names:
        removed = 0
        for data_dir in data_dirs:
            with _locked(data_dir, f"removing {name}"):
                removed += _remove_from(name, data_dir)
        if not removed:
            raise ConfigError(f"Nothing of {name!r} is here; see: wyoming-qwen3tts models list")
        print(f"Removed {name}: {_megabytes(removed)}")
    return 0


def _remove_from(name: str, data_dir: Path) -> int:
    """Remove what is here of a model; returns the bytes that this made free."""
    model = find_model(name)
    wanted = name.lower() if model is None else model.bundle_name
    removed = 0
    for bundle in installed_bundles([data_dir]):
        folder = bundle.directory.parent
        if wanted in (bundle.manifest.name, bundle.reference, folder.name):
            removed += bundle.num_bytes
            remove_bundle(bundle.directory)
            if not any(folder.iterdir()):
                folder.rmdir()
    store = CheckpointStore(data_dir)
    for snapshot in store.snapshots():
        if snapshot.repo.lower() == (name.lower() if model is None else model.repo.lower()):
            removed += snapshot.num_bytes
            store.remove_snapshot(snapshot.repo, snapshot.revision)
    store.sweep(with_partial=False)
    return removed


def _prune(data_dirs: Sequence[Path]) -> int:
    freed = 0
    for data_dir in data_dirs:
        with _locked(data_dir, "removing what nothing needs"):
            restore_replaced(data_dir)
            for path in leftovers(data_dir):
                freed += _size(path)
                shutil.rmtree(path, ignore_errors=True)
            store = CheckpointStore(data_dir)
            built = {bundle.manifest.source.repo for bundle in installed_bundles([data_dir])}
            for snapshot in store.snapshots():
                if snapshot.repo in built:
                    store.remove_snapshot(snapshot.repo, snapshot.revision)
            freed += store.sweep(with_partial=True)
    print(f"Removed what nothing needs: {_megabytes(freed)}")
    return 0


def _check(names: Sequence[str], data_dirs: Sequence[Path]) -> int:
    problems, num_files = 0, 0
    for label, path, expected in _known_files(names, data_dirs):
        num_files += 1
        if not path.is_file():
            problem = "is missing"
        elif (found := _hash_shown(path)) != expected:
            problem = f"is damaged (sha256 {found}, not {expected})"
        else:
            continue
        problems += 1
        print(f"PROBLEM  {label}: {path} {problem}")
    print(f"files checked: {num_files}, damaged or missing: {problems}")
    if problems:
        print("Get a damaged model again: wyoming-qwen3tts models remove MODEL, then models build")
    return 1 if problems else 0


def _known_files(
    names: Sequence[str], data_dirs: Sequence[Path]
) -> Iterator[tuple[str, Path, str]]:
    """Yield (owner, file, hash) of every file whose hash is known."""
    wanted = {name.lower() for name in names}
    wanted.update(*(model.names for name in names if (model := find_model(name)) is not None))
    yield from _bundle_files(wanted, data_dirs)
    yield from _checkpoint_files(wanted, data_dirs)


def _bundle_files(wanted: set[str], data_dirs: Sequence[Path]) -> Iterator[tuple[str, Path, str]]:
    for bundle in installed_bundles(data_dirs):
        if wanted and not wanted & {bundle.manifest.name, bundle.reference}:
            continue
        if bundle.is_published:
            print(f"not checked: {bundle.directory} was published without hashes")
            continue
        for file in bundle.manifest.files:
            yield bundle.reference, bundle.directory / file.path, file.sha256


def _checkpoint_files(
    wanted: set[str], data_dirs: Sequence[Path]
) -> Iterator[tuple[str, Path, str]]:
    for data_dir in data_dirs:
        for snapshot in CheckpointStore(data_dir).snapshots():
            if wanted and snapshot.repo.lower() not in wanted:
                continue
            for path, record in snapshot.records.items():
                yield snapshot.repo, snapshot.directory / path, record.sha256


def _hash_shown(path: Path) -> str:
    """Return a file's hash, with a bar for large ones on a terminal."""
    with tqdm(
        total=path.stat().st_size,
        desc=path.name,
        unit="B",
        unit_scale=True,
        leave=False,
        disable=None,
        delay=1,
    ) as bar:
        return sha256_of(path, lambda num_bytes: _advance(bar, num_bytes))


def _advance(bar: Any, num_bytes: int) -> None:
    bar.update(num_bytes)


def _locked(data_dir: Path, purpose: str) -> Any:
    told: list[str] = []

    def say(other: str) -> None:
        if not told:
            told.append(other)
            print(f"Waiting for another process that works on {other or 'a model'}")

    return data_lock(data_dir / WORK_NAME, purpose, say, threading.Event())


def _size(directory: Path) -> int:
    return sum(path.stat().st_size for path in directory.rglob("*") if path.is_file())


def _megabytes(num_bytes: int) -> str:
    return f"{num_bytes / _MEGABYTE:.0f} MB" if num_bytes else "-"


def _print_table(rows: Sequence[Sequence[str]]) -> None:
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    for row in rows:
        cells = [cell.ljust(width) for cell, width in zip(row, widths, strict=True)]
        print("  ".join(cells).rstrip())
