"""Where models are: installed bundles, a bundle by name or path, and the embedded ones."""

import fcntl
import json
import logging
import os
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from wyoming_qwen3tts.errors import BuildError, BundleError, ConfigError, ManifestError
from wyoming_qwen3tts.models.registry import find_model
from wyoming_qwen3tts.runtime.manifest import FORMAT_VERSION, MANIFEST_NAME, Manifest, read_manifest

if TYPE_CHECKING:
    from collections.abc import Iterator

_LOGGER = logging.getLogger(__name__)

EMBEDDED_NAME = "embedded-demo"
"""The demo voice, which the package brings along; what is served where there is nothing else."""
RANDOM_NAME = "embedded-random"
"""Random weights with the published models' nine voices and ten languages: for trying clients."""
EMBEDDED_NOTICE = (
    "This is the demo voice: small, English only, trained for short phrases about the home. "
    "For the real voices name a model, for instance --model qwen3-tts-0.6b-customvoice."
)
RANDOM_NOTICE = "This model has random weights: it makes sounds, not words."
_DEMO_VOICE = Path(__file__).parents[1] / "demo_voice"
_RANDOM_SEED = 0
# Where precision is left open: int8 while it is fast enough, int4 where it is not.
_PREFERENCE = ("int8", "int4", "fp32", "fp16")
FASTER_RANK = _PREFERENCE.index("int4")
"""Precisions of a larger rank are slower than the preferred one."""
# What the builder calls what is half-made, and what it replaces.
_BUILDING, _REPLACED = ".building-", ".replaced-"
_REMOVED = ".removed-"
_MARKS = (_BUILDING, _REPLACED, _REMOVED, ".installing")


@dataclass(frozen=True)
class InstalledBundle:
    """A bundle on disk whose manifest was read; none of its graphs was loaded."""

    directory: Path
    manifest: Manifest
    is_published: bool = False
    """Whether it has the published layout, whose manifest states no hashes."""

    @property
    def reference(self) -> str:
        """What ``--model`` takes to mean exactly this bundle."""
        return f"{self.manifest.name}/{self.directory.name}"

    @property
    def rank(self) -> int:
        """Place of its precision in the order of preference; smaller is preferred."""
        recipe = self.manifest.recipe
        return _PREFERENCE.index(recipe) if recipe in _PREFERENCE else len(_PREFERENCE)

    @property
    def is_embedded(self) -> bool:
        """Whether it is an embedded model, which is served only where there is nothing else."""
        return self.manifest.name in (EMBEDDED_NAME, RANDOM_NAME)

    @property
    def notice(self) -> str | None:
        """What those who listen should know of an embedded model."""
        return {EMBEDDED_NAME: EMBEDDED_NOTICE, RANDOM_NAME: RANDOM_NOTICE}.get(self.manifest.name)

    @property
    def num_bytes(self) -> int:
        """Size on disk."""
        return sum(file.bytes for file in self.manifest.files)

    @property
    def open_bytes(self) -> int:
        """Weights of the graphs that stay open while it speaks."""
        return sum(
            file.bytes
            for file in self.manifest.files
            if ".onnx" in file.path and "encoder" not in file.path
        )

    def damage(self) -> str | None:
        """Return which file is missing or of another size; None where all are as they should."""
        for file in self.manifest.files:
            path = self.directory / file.path
            size = path.stat().st_size if path.is_file() else None
            if size != file.bytes:
                found = "is missing" if size is None else f"has {size} bytes, not {file.bytes}"
                return f"{path} {found}"
        return None


@dataclass(frozen=True)
class OutdatedBundle:
    """A bundle of another format version: it cannot be read, but built again from its source."""

    directory: Path
    name: str
    device: str
    recipe: str
    repo: str | None
    """Where its checkpoint came from; None where the manifest does not say."""
    revision: str | None


def outdated_bundle(directory: Path) -> OutdatedBundle | None:
    """Return what can be told of a bundle of another format version; None if it is none.

    Only what every version has had is read, and nothing is taken for granted.
    """
    try:
        values = json.loads((directory / MANIFEST_NAME).read_text(encoding="utf-8"))
        if not isinstance(values["format_version"], int):
            return None
        if values["format_version"] == FORMAT_VERSION:
            return None
        source = values.get("source") or {}
        return OutdatedBundle(
            directory,
            name=str(values["name"]),
            device=str(values["device"]),
            recipe=str(values["recipe"]),
            repo=source.get("repo"),
            revision=source.get("revision"),
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def read_bundle(directory: Path) -> InstalledBundle:
    """Return the bundle in a directory, of our own layout or of the published one.

    Raises:
        BundleError: It cannot be used.
    """
    try:
        return InstalledBundle(directory, read_manifest(directory))
    except ManifestError:
        # Imported here: it brings the model runtime, and most bundles are our own.
        from wyoming_qwen3tts.runtime.onnx_community import (
            is_onnx_community,
            read_onnx_community_manifest,
        )

        if not is_onnx_community(directory):
            raise
        return InstalledBundle(
            directory, read_onnx_community_manifest(directory), is_published=True
        )


def installed_bundles(data_dirs: Sequence[Path]) -> list[InstalledBundle]:
    """Return the bundles that can be read, by name and preference; others are logged."""
    found, problems = scan_bundles(data_dirs)
    for problem in problems:
        _LOGGER.warning("Left out: %s", problem)
    return found


def scan_bundles(data_dirs: Sequence[Path]) -> tuple[list[InstalledBundle], list[str]]:
    """Return the bundles that can be read, by name and preference, and why others cannot."""
    found: list[InstalledBundle] = []
    problems: list[str] = []
    for directory in _bundle_directories(data_dirs):
        try:
            found.append(read_bundle(directory))
        except BundleError as error:
            problems.append(str(error))
    found.sort(key=lambda bundle: (bundle.manifest.name, bundle.rank, bundle.reference))
    return found, problems


def find_bundle(reference: str | None, data_dirs: Sequence[Path]) -> InstalledBundle:
    """Return the bundle that a user means.

    Args:
        reference: A directory, a name such as ``qwen3-tts-12hz-0.6b-customvoice`` (optionally with
            ``/cpu_int8``), or None for any installed one, else the embedded demo voice.
        data_dirs: Where to look; the first is written to.

    Raises:
        ConfigError: No installed bundle has that name.
        BundleError: The bundle cannot be used.
    """
    if reference is not None and Path(reference).is_dir():
        return read_bundle(Path(reference).resolve())
    installed = [bundle for bundle in installed_bundles(data_dirs) if not bundle.is_embedded]
    if reference is None:
        return installed[0] if installed else demo_voice_bundle()
    if (embedded := embedded_bundle(reference, data_dirs[0])) is not None:
        return embedded
    wanted = reference.lower()
    if (model := find_model(wanted)) is not None:
        wanted = model.bundle_name
    for bundle in installed:
        if wanted in (bundle.manifest.name, bundle.reference):
            return bundle
    known = ", ".join(bundle.reference for bundle in installed) or "none"
    raise ConfigError(
        f"No model {reference!r} is installed (installed: {known}). Name a bundle's directory, or "
        f"get it with: wyoming-qwen3tts models build {reference}"
    )


def outdated_bundles(data_dirs: Sequence[Path]) -> list[OutdatedBundle]:
    """Return the bundles of another format version in the data directories."""
    found = (outdated_bundle(directory) for directory in _bundle_directories(data_dirs))
    return [bundle for bundle in found if bundle is not None and bundle.name != RANDOM_NAME]


def demo_voice_bundle() -> InstalledBundle:
    """Return the demo voice, which lies in the package."""
    return InstalledBundle(_DEMO_VOICE, read_manifest(_DEMO_VOICE))


def embedded_bundle(name: str, data_dir: Path) -> InstalledBundle | None:
    """Return the embedded model of a name; None where the name is none of theirs.

    Raises:
        BuildError: The packages that building needs are not installed.
    """
    if name == EMBEDDED_NAME:
        return demo_voice_bundle()
    return _random_bundle(data_dir) if name == RANDOM_NAME else None


def _random_bundle(data_dir: Path) -> InstalledBundle:
    """Return the model of random weights, building it in a few seconds when it is not there."""
    directory = data_dir / RANDOM_NAME / "cpu_fp32"
    if (directory / MANIFEST_NAME).exists() and outdated_bundle(directory) is None:
        return InstalledBundle(directory, read_manifest(directory))
    _LOGGER.info("Building the model of random weights in %s", directory)
    try:
        # Imported here: the server never needs the builder but for this.
        from wyoming_qwen3tts.builder.embedded import build_random_bundle
    except ImportError as error:
        raise BuildError(
            "The model of random weights cannot be built without the build extra: "
            "pip install 'wyoming-qwen3tts[build]'"
        ) from error
    build_random_bundle(directory, name=RANDOM_NAME, seed=_RANDOM_SEED)
    return InstalledBundle(directory, read_manifest(directory))


def remove_bundle(directory: Path) -> None:
    """Remove a bundle so that no moment of it looks like a whole one."""
    hidden = directory.with_name(f".{directory.name}{_REMOVED}{os.getpid()}")
    directory.rename(hidden)
    shutil.rmtree(hidden, ignore_errors=True)


def leftovers(data_dir: Path) -> list[Path]:
    """Return the directories that killed builds and removals left, not those of running ones."""
    return [
        path
        for path in data_dir.glob("*/.*")
        if path.is_dir() and any(mark in path.name for mark in _MARKS) and not _is_locked(path)
    ]


def restore_replaced(data_dir: Path) -> None:
    """Put back the bundles whose replacement was cut short between its two renames."""
    for path in data_dir.glob(f"*/.*{_REPLACED}*"):
        name = path.name[1:].partition(_REPLACED)[0]
        target = path.with_name(name)
        builds = path.parent.glob(f".{name}{_BUILDING}*")
        if not target.exists() and not any(_is_locked(build) for build in builds):
            path.rename(target)
            _LOGGER.warning("Put %s back, whose replacement was cut short", target)


def _is_locked(directory: Path) -> bool:
    """Whether a running build holds its directory."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(descriptor)
    return False


def _bundle_directories(data_dirs: Sequence[Path]) -> "Iterator[Path]":
    for data_dir in data_dirs:
        for manifest in sorted(data_dir.glob(f"*/*/{MANIFEST_NAME}")):
            # Hidden ones are half-made, or were replaced and not yet removed.
            if not manifest.parent.name.startswith(".") and not manifest.parts[-3].startswith("."):
                yield manifest.parent
