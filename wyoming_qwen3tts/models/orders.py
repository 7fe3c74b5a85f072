"""What a user means by ``--model``: a bundle that is there, or an order for one that is not."""

import hashlib
import json
import logging
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from wyoming_qwen3tts.engine.speed_record import SpeedRecord, choose
from wyoming_qwen3tts.errors import BundleError, CheckpointError, ConfigError
from wyoming_qwen3tts.models.bundles import (
    InstalledBundle,
    OutdatedBundle,
    embedded_bundle,
    installed_bundles,
    outdated_bundle,
    read_bundle,
)
from wyoming_qwen3tts.models.registry import (
    CatalogueModel,
    expected_facts,
    expected_manifest,
    find_model,
    find_published,
    suggest_models,
)
from wyoming_qwen3tts.runtime.manifest import (
    DEVICES,
    MANIFEST_NAME,
    BundleSource,
    Device,
    Manifest,
    ModelFacts,
    facts_from_checkpoint,
)

_LOGGER = logging.getLogger(__name__)

AUTO: Final = "auto"
WORK_NAME: Final = ".provision"
"""Folder of a data directory for locks and states."""
PRECISIONS: Final = ("fp32", "fp16", "int8", "int4")
# What "auto" means where nothing is installed yet.
_DEFAULT_PRECISION: Final[dict[Device, str]] = {"cpu": "int8", "cuda": "fp16"}
_PUBLISHED_PRECISION: Final[dict[Device, str]] = {"cpu": "int4", "cuda": "fp16"}
_DEFAULT_REVISION: Final = "main"
_PUBLISHED_OWNER: Final = "onnx-community/"
_VARIANT: Final = re.compile(r"(.+)[/:]((?:cpu|cuda)_[\w.+-]+)")
_REPO: Final = re.compile(r"[\w.-]+/[\w.-]+")
_HUB_FOLDER: Final = "models--"
_ID_DIGITS: Final = 6


@dataclass(frozen=True)
class HubCheckpoint:
    """An official-layout checkpoint on the hub."""

    repo: str
    revision: str
    known: CatalogueModel | None
    """Its entry in the catalogue; None for somebody's own repository."""


@dataclass(frozen=True)
class LocalCheckpoint:
    """An official-layout checkpoint on this machine, which is never changed or removed."""

    directory: Path


@dataclass(frozen=True)
class PublishedBundle:
    """A ready-made bundle of the published layout on the hub."""

    repo: str
    revision: str
    known: CatalogueModel | None


Source = HubCheckpoint | LocalCheckpoint | PublishedBundle


@dataclass(frozen=True)
class Wishes:
    """What a user asks of a model besides its name."""

    device: Device = "cpu"
    precision: str = AUTO
    """Or "auto": what is installed, else int8 on the CPU and fp16 on a GPU."""

    def fit(self, manifest: Manifest) -> bool:
        """Whether an installed bundle is of the wished device and precision."""
        return manifest.device == self.device and self.precision in (AUTO, manifest.recipe)

    def chosen(self, defaults: dict[Device, str]) -> str:
        """Return the precision to get where nothing is installed."""
        return defaults[self.device] if self.precision == AUTO else self.precision


@dataclass(frozen=True)
class Order:
    """A bundle that shall be there."""

    source: Source
    name: str
    """Of the model, in the manifest and as a folder."""
    device: Device
    precision: str
    target: Path
    """The bundle's directory."""
    data_dir: Path
    """Where locks, states and checkpoints are."""
    stand_in: InstalledBundle | None = None
    """An installed bundle of the same model that serves until this one is there."""

    @property
    def variant(self) -> str:
        """Name of the bundle among those of its model, such as ``cpu_int8``."""
        return f"{self.device}_{self.precision}"

    @property
    def reference(self) -> str:
        """What ``--model`` takes to mean this bundle."""
        return f"{self.name}/{self.variant}"

    @property
    def state_file(self) -> Path:
        """Where other programs read how far it is."""
        return self.data_dir / WORK_NAME / f"{self.name}--{self.variant}.json"

    @property
    def source_file(self) -> Path:
        """Where it is noted which local checkpoint the bundle was built from."""
        return self.state_file.with_suffix(".source")

    def expected_bundle(self) -> InstalledBundle | None:
        """Return what the bundle will be, as far as voices go; None while nobody can tell."""
        facts = self._facts()
        if facts is None:
            return None
        repo = None if isinstance(self.source, LocalCheckpoint) else self.source.repo
        source = BundleSource(repo, revision=None, model_sha256="")
        manifest = expected_manifest(self.name, self.device, self.precision, facts, source)
        return InstalledBundle(self.target, manifest)

    def _facts(self) -> ModelFacts | None:
        if isinstance(self.source, LocalCheckpoint):
            return _read_facts(self.source.directory)
        return None if self.source.known is None else expected_facts(self.source.known)


def resolve(reference: str, wishes: Wishes, data_dirs: Sequence[Path]) -> InstalledBundle | Order:
    """Return the bundle that a user means, or the order for it.

    Args:
        reference: A bundle's or checkpoint's directory; a model's name, alias or repository
            (``owner/name``, ``owner/name@revision``); the name of an installed bundle; each but a
            directory optionally with ``/cpu_int8``.
        wishes: Device and precision, where the reference does not say.
        data_dirs: Where bundles are; the first is written to.

    Raises:
        ConfigError: Nothing of that name is known.
        BundleError: The directory holds a bundle that cannot be used.
    """
    if Path(reference).is_dir():
        return _from_directory(Path(reference).resolve(), wishes, data_dirs)
    if (embedded := embedded_bundle(reference, data_dirs[0])) is not None:
        return embedded
    reference, wishes = _split_variant(reference, wishes)
    source = _hub_source(reference)
    name = reference.lower() if source is None else _bundle_name(source)
    fitting = _installed(name, wishes, data_dirs)
    if not fitting:
        return order_for(reference, wishes, data_dirs)
    record = SpeedRecord(data_dirs[0])
    best = choose(fitting, record)
    damage = best.damage()
    if damage is None:
        return best
    whole = [bundle for bundle in fitting if bundle.damage() is None]
    stand_in = choose(whole, record) if whole else None
    if source is None:  # nobody knows how to get it again
        return stand_in or best
    serving = "" if stand_in is None else f"; {stand_in.reference} serves until then"
    _LOGGER.warning("%s; it is built again%s", damage, serving)
    if best.manifest.recipe in PRECISIONS:
        wishes = replace(wishes, precision=best.manifest.recipe)
    return replace(order_for(reference, wishes, data_dirs), stand_in=stand_in)


def order_for(reference: str, wishes: Wishes, data_dirs: Sequence[Path]) -> Order:
    """Return the order for a bundle by the name of its source, whether it is there or not.

    Raises:
        ConfigError: No such source is known.
    """
    if Path(reference).is_dir():
        return _local_order(Path(reference).resolve(), wishes, data_dirs[0])
    reference, wishes = _split_variant(reference, wishes)
    source = _hub_source(reference)
    if source is None:
        hint = suggest_models(reference)
        end = "" if hint.endswith("?") else "."
        raise ConfigError(
            f"No model {reference!r} is known or installed; {hint}{end} "
            "Or name a directory, or a repository as owner/name."
        )
    defaults = _PUBLISHED_PRECISION if isinstance(source, PublishedBundle) else _DEFAULT_PRECISION
    name = _bundle_name(source)
    return _order(source, name, wishes.device, wishes.chosen(defaults), data_dirs[0])


def resolve_installed(order: Order) -> InstalledBundle | None:
    """Return the bundle of an order if it is there by now, whole and of the right source."""
    source = order.source
    if isinstance(source, LocalCheckpoint) and not _is_noted(order, source.directory):
        return None
    try:
        bundle = read_bundle(order.target)
    except BundleError:
        return None
    return bundle if bundle.damage() is None else None


def rebuild_order(bundle: OutdatedBundle, data_dir: Path) -> Order:
    """Return the order that builds a bundle of another format version again, in its place.

    Raises:
        BundleError: Nobody knows where it came from.
    """
    if bundle.repo is None or bundle.recipe not in PRECISIONS or bundle.device not in DEVICES:
        raise BundleError(
            f"{bundle.directory} has the format of another version of this program, and it is not "
            "known from where it can be built again; build it from its checkpoint "
            "(wyoming-qwen3tts build CHECKPOINT --force) or remove it."
        )
    known = find_model(bundle.repo)
    revision = bundle.revision or (known.revision if known is not None else _DEFAULT_REVISION)
    if known is not None and known.revision != revision:
        known = None
    source = HubCheckpoint(bundle.repo, revision, known)
    device = _device(bundle.device)
    return Order(source, bundle.name, device, bundle.recipe, bundle.directory, data_dir)


def checkpoint_id(directory: Path) -> dict[str, Any]:
    """Return what tells one state of a local checkpoint from another, without reading it."""
    weights = (directory / "model.safetensors").stat()
    return {
        "directory": str(directory),
        "bytes": weights.st_size,
        "mtime_ns": weights.st_mtime_ns,
    }


def _order(source: Source, name: str, device: Device, precision: str, data_dir: Path) -> Order:
    if precision not in PRECISIONS:
        raise ConfigError(
            f"No bundle {name}/{device}_{precision} is installed, and only "
            f"{', '.join(PRECISIONS)} can be got by name."
        )
    target = data_dir / name / f"{device}_{precision}"
    return Order(source, name, device, precision, target, data_dir)


def _from_directory(
    directory: Path, wishes: Wishes, data_dirs: Sequence[Path]
) -> InstalledBundle | Order:
    if (directory / MANIFEST_NAME).is_file():
        outdated = outdated_bundle(directory)
        return read_bundle(directory) if outdated is None else rebuild_order(outdated, data_dirs[0])
    order = _local_order(directory, wishes, data_dirs[0])
    return resolve_installed(order) or order


def _local_order(directory: Path, wishes: Wishes, data_dir: Path) -> Order:
    if not (directory / "config.json").is_file():
        raise ConfigError(
            f"{directory} holds neither a bundle (manifest.json) nor a checkpoint (config.json)."
        )
    precision = wishes.chosen(_DEFAULT_PRECISION)
    name = _local_name(directory)
    return _order(LocalCheckpoint(directory), name, wishes.device, precision, data_dir)


def _split_variant(reference: str, wishes: Wishes) -> tuple[str, Wishes]:
    """Return a reference without ``/cpu_int8``, and the wishes with it."""
    match = _VARIANT.fullmatch(reference)
    if match is None:
        return reference, wishes
    device, _, precision = match[2].partition("_")
    return match[1], Wishes(_device(device), precision)


def _is_noted(order: Order, directory: Path) -> bool:
    """Whether the bundle was built from the checkpoint as it is now."""
    try:
        noted = json.loads(order.source_file.read_text(encoding="utf-8"))
        return bool(noted == checkpoint_id(directory))
    except (OSError, ValueError):
        return False


def _hub_source(reference: str) -> HubCheckpoint | PublishedBundle | None:
    repo, _, revision = reference.partition("@")
    known = find_model(repo)
    if known is not None:
        pinned = not revision or revision == known.revision
        return HubCheckpoint(known.repo, revision or known.revision, known if pinned else None)
    if not _REPO.fullmatch(repo):
        return None
    published = find_published(repo)
    if published is not None:
        revision = revision or published.published.revision
        return PublishedBundle(published.published.repo, revision, published)
    if repo.lower().startswith(_PUBLISHED_OWNER):
        return PublishedBundle(repo, revision or _DEFAULT_REVISION, None)
    return HubCheckpoint(repo, revision or _DEFAULT_REVISION, None)


def _bundle_name(source: HubCheckpoint | PublishedBundle) -> str:
    if isinstance(source, HubCheckpoint) and source.known is not None:
        return source.known.bundle_name
    # With the owner: somebody's own model must not pass for the published one.
    name = source.repo.lower().replace("/", "--")
    is_fixed = source.known is not None or source.revision == _DEFAULT_REVISION
    return name if is_fixed else f"{name}-{source.revision[:_ID_DIGITS]}"


def _local_name(directory: Path) -> str:
    """Return a name that no other checkpoint's directory has."""
    label = directory.name
    for part in directory.parts:
        if part.startswith(_HUB_FOLDER):
            label = part.removeprefix(_HUB_FOLDER).rpartition("--")[2]
    digest = hashlib.sha256(str(directory).encode()).hexdigest()[:_ID_DIGITS]
    return f"{re.sub(r'[^a-z0-9.]+', '-', label.lower()).strip('-')}-{digest}"


def _installed(name: str, wishes: Wishes, data_dirs: Sequence[Path]) -> list[InstalledBundle]:
    """Return the installed bundles of a model that fit, damaged ones among them."""
    return [
        bundle
        for bundle in installed_bundles(data_dirs)
        if _is_called(bundle, name) and wishes.fit(bundle.manifest)
    ]


def _is_called(bundle: InstalledBundle, name: str) -> bool:
    folder = bundle.directory.parent.name
    # A folder with an owner in its name holds somebody else's bundles of a model of that name.
    return name == folder or (name == bundle.manifest.name and "--" not in folder)


def _read_facts(directory: Path) -> ModelFacts | None:
    """Return the facts of a local checkpoint; None where the build will say what is wrong."""
    names = ("config.json", "speech_tokenizer/config.json", "generation_config.json")
    try:
        values = [json.loads((directory / name).read_text(encoding="utf-8")) for name in names]
        return facts_from_checkpoint(*values)
    except (OSError, ValueError, TypeError, AttributeError, CheckpointError):
        return None


def _device(name: str) -> Device:
    return next(device for device in DEVICES if device == name)
