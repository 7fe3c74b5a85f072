"""Bundles on this machine: installed ones, the embedded demo voice, and broken ones."""

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from wyoming_qwen3tts.errors import BundleError, ManifestError
from wyoming_qwen3tts.files import restore_replaced
from wyoming_qwen3tts.runtime.manifest import GRAPH_REVISION, MANIFEST_NAME, Manifest, read_manifest

_LOGGER = logging.getLogger(__name__)

EMBEDDED_NAME: Final = "embedded-demo"
"""The demo voice inside the package, served when no model is installed."""
EMBEDDED_NOTICE: Final = (
    "This is the demo voice: small, English only, trained for short phrases about the home. "
    "For the real voices name a model, for instance --model qwen3-tts-0.6b-customvoice."
)
_DEMO_VOICE: Final = Path(__file__).parents[1] / "demo_voice"
# Random weights that older versions built for trials.
_RETIRED: Final = "embedded-random"
# Preferred first, where the user names no precision.
_PREFERENCE: Final = ("int8", "int4", "fp32", "fp16")


@dataclass(frozen=True)
class InstalledBundle:
    """A bundle on disk. Its manifest was read, its graphs were not."""

    directory: Path
    manifest: Manifest
    is_published: bool = False
    """Whether it has the onnx-community layout, whose manifest has no hashes."""

    @property
    def reference(self) -> str:
        """Value of ``--model`` that means exactly this bundle."""
        return f"{self.manifest.name}/{self.directory.name}"

    @property
    def rank(self) -> int:
        """Place of its precision in the order of preference; smaller is preferred."""
        recipe = self.manifest.recipe
        return _PREFERENCE.index(recipe) if recipe in _PREFERENCE else len(_PREFERENCE)

    @property
    def is_embedded(self) -> bool:
        """Whether it is the demo voice."""
        return self.manifest.name == EMBEDDED_NAME

    @property
    def is_outdated(self) -> bool:
        """Whether the builder makes better graphs by now."""
        is_ours = not (self.is_published or self.is_embedded)
        return is_ours and self.manifest.graph_revision < GRAPH_REVISION

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
        """Return which file is missing or has another size; None for an intact bundle."""
        for file in self.manifest.files:
            path = self.directory / file.path
            size = path.stat().st_size if path.is_file() else None
            if size != file.bytes:
                found = "is missing" if size is None else f"has {size} bytes, not {file.bytes}"
                return f"{path} {found}"
        return None


def read_bundle(directory: Path) -> InstalledBundle:
    """Return the bundle in a directory, of our own layout or of onnx-community's.

    Raises:
        BundleError: The bundle cannot be used.
    """
    try:
        return InstalledBundle(directory, read_manifest(directory))
    except ManifestError:
        # Imported here: it loads the model runtime, and most bundles have our own layout.
        from wyoming_qwen3tts.runtime.onnx_community import (
            is_onnx_community,
            read_onnx_community_manifest,
        )

        if not is_onnx_community(directory):
            raise
        return InstalledBundle(
            directory, read_onnx_community_manifest(directory), is_published=True
        )


def intact_bundle(directory: Path) -> InstalledBundle | None:
    """Return the bundle in a directory if it can be used and has all its files."""
    try:
        bundle = read_bundle(directory)
    except BundleError:
        return None
    return bundle if bundle.damage() is None else None


def demo_voice_bundle() -> InstalledBundle:
    """Return the demo voice of the package."""
    return InstalledBundle(_DEMO_VOICE, read_manifest(_DEMO_VOICE))


def installed_bundles(data_dirs: Sequence[Path]) -> list[InstalledBundle]:
    """Return the readable bundles, by name and preference; log the others."""
    found, problems = scan_bundles(data_dirs)
    for problem in problems:
        _LOGGER.warning("Skipping bundle: %s", problem)
    return found


def scan_bundles(data_dirs: Sequence[Path]) -> tuple[list[InstalledBundle], list[str]]:
    """Return the readable bundles, by name and preference, and the problems of the others."""
    found: list[InstalledBundle] = []
    problems: list[str] = []
    for directory in _bundle_directories(data_dirs):
        try:
            found.append(read_bundle(directory))
        except BundleError as error:
            problems.append(str(error))
    found.sort(key=lambda bundle: (bundle.manifest.name, bundle.rank, bundle.reference))
    return found, problems


def restore_bundles(data_dir: Path) -> None:
    """Put back the bundles whose replacement was cut short."""
    for folder in data_dir.glob("*/"):
        for restored in restore_replaced(folder):
            _LOGGER.warning("Restored %s after an interrupted update", restored)


def _bundle_directories(data_dirs: Sequence[Path]) -> Iterator[Path]:
    for data_dir in data_dirs:
        for manifest in sorted(data_dir.glob(f"*/*/{MANIFEST_NAME}")):
            name, variant = manifest.parts[-3:-1]
            # Hidden ones are incomplete, or about to be removed.
            if not name.startswith(".") and not variant.startswith(".") and name != _RETIRED:
                yield manifest.parent
