"""Where models are: installed bundles, a bundle by name or path, and the embedded default."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from wyoming_qwen3tts.errors import BuildError, BundleError, ConfigError
from wyoming_qwen3tts.model.manifest import MANIFEST_NAME, Manifest, read_manifest

if TYPE_CHECKING:
    from collections.abc import Iterator

_LOGGER = logging.getLogger(__name__)

EMBEDDED_NAME = "embedded-demo"
EMBEDDED_NOTICE = (
    "This is the embedded demo model: random weights that make sounds, not words. "
    "Build or fetch a real model and name it with --model to hear speech."
)
_EMBEDDED_SEED = 0


@dataclass(frozen=True)
class InstalledBundle:
    """A bundle on disk whose manifest was read; none of its graphs was loaded."""

    directory: Path
    manifest: Manifest

    @property
    def reference(self) -> str:
        """What ``--model`` takes to mean exactly this bundle."""
        return f"{self.manifest.name}/{self.directory.name}"

    @property
    def is_embedded(self) -> bool:
        """Whether it is the embedded demo model."""
        return self.manifest.name == EMBEDDED_NAME

    @property
    def num_bytes(self) -> int:
        """Size on disk."""
        return sum(file.bytes for file in self.manifest.files)


def installed_bundles(data_dirs: Sequence[Path]) -> list[InstalledBundle]:
    """Return the bundles in the data directories, sorted by name; unreadable ones are logged."""
    found: list[InstalledBundle] = []
    for directory in _bundle_directories(data_dirs):
        try:
            found.append(InstalledBundle(directory, read_manifest(directory)))
        except BundleError as error:
            _LOGGER.warning("Left out: %s", error)
    return sorted(found, key=lambda bundle: bundle.reference)


def find_bundle(reference: str | None, data_dirs: Sequence[Path]) -> InstalledBundle:
    """Return the bundle that a user means.

    Args:
        reference: A directory, a name such as ``qwen3-tts-12hz-0.6b-customvoice`` (optionally with
            ``/cpu_int8``), or None for any installed one, else the embedded demo model, which is
            built when it is not there.
        data_dirs: Where to look; the first is written to.

    Raises:
        ConfigError: No installed bundle has that name.
        BundleError: The bundle cannot be used.
    """
    if reference is not None and Path(reference).is_dir():
        directory = Path(reference).resolve()
        return InstalledBundle(directory, read_manifest(directory))
    installed = [bundle for bundle in installed_bundles(data_dirs) if not bundle.is_embedded]
    if reference is None:
        return installed[0] if installed else embedded_bundle(data_dirs[0])
    if reference == EMBEDDED_NAME:
        return embedded_bundle(data_dirs[0])
    for bundle in installed:
        if reference.lower() in (bundle.manifest.name, bundle.reference):
            return bundle
    known = ", ".join(bundle.reference for bundle in installed) or "none"
    raise ConfigError(
        f"No model {reference!r} is installed (installed: {known}). Name a bundle's directory, or "
        "build one with: wyoming-qwen3tts build CHECKPOINT"
    )


def embedded_bundle(data_dir: Path) -> InstalledBundle:
    """Return the embedded demo model, building it in a few seconds when it is not there.

    Raises:
        BuildError: The packages that building needs are not installed.
    """
    directory = data_dir / EMBEDDED_NAME / "cpu_fp32"
    if (directory / MANIFEST_NAME).exists():
        return InstalledBundle(directory, read_manifest(directory))
    _LOGGER.info("Building the embedded demo model in %s", directory)
    try:
        # Imported here: the server never needs the builder but for this.
        from wyoming_qwen3tts.builder.embedded import build_embedded_bundle
    except ImportError as error:
        raise BuildError(
            "No model is named or installed, and the embedded demo model cannot be built without "
            "the build extra: pip install 'wyoming-qwen3tts[build]'"
        ) from error
    build_embedded_bundle(directory, name=EMBEDDED_NAME, seed=_EMBEDDED_SEED)
    return InstalledBundle(directory, read_manifest(directory))


def _bundle_directories(data_dirs: Sequence[Path]) -> "Iterator[Path]":
    for data_dir in data_dirs:
        for manifest in sorted(data_dir.glob(f"*/*/{MANIFEST_NAME}")):
            yield manifest.parent
