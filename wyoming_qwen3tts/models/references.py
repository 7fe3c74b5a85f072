"""From what a user writes for a model to an installed bundle, or to a request to build it.

A reference is a model's name or alias (``customvoice``), a repository (``owner/name``,
``owner/name@revision``), the name of an installed bundle, or a path (``./bundle``). A name or
repository may end in a precision: ``customvoice/int4`` or ``customvoice/cpu_int4``.
"""

import hashlib
import json
import logging
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from wyoming_qwen3tts.errors import BundleError, CheckpointError, ConfigError
from wyoming_qwen3tts.models.bundles import (
    EMBEDDED_NAME,
    InstalledBundle,
    demo_voice_bundle,
    installed_bundles,
    intact_bundle,
    read_bundle,
    restore_bundles,
)
from wyoming_qwen3tts.models.registry import (
    PublishedModel,
    expected_facts,
    expected_manifest,
    find_model,
    find_ready_made,
    suggest_models,
)
from wyoming_qwen3tts.runtime.manifest import (
    MANIFEST_NAME,
    ModelFacts,
    facts_from_checkpoint,
)

_LOGGER = logging.getLogger(__name__)

AUTO: Final = "auto"
"""Precision: an installed one, else int8."""
PRECISIONS: Final = ("fp32", "int8", "int4")
"""Precisions that can be built by name."""
WORK_NAME: Final = ".provision"
"""Folder of a data directory for the lock and for progress files."""
_MAIN: Final = "main"
_READY_MADE_OWNER: Final = "onnx-community/"
_VARIANT: Final = re.compile(r"(.+)[/:](?:cpu_([\w.+-]+)|(fp32|fp16|int8|int4))")
_REPO: Final = re.compile(r"[\w.-]+/[\w.-]+")
_COMMIT: Final = re.compile(r"[0-9a-f]{40}")
_WEIGHTS: Final = "model.safetensors"
_HUB_FOLDER: Final = "models--"
_ID_DIGITS: Final = 6
_OUTDATED: Final = "a newer version builds better graphs"


@dataclass(frozen=True)
class BuildRequest:
    """A bundle that must be downloaded or built."""

    name: str
    """Of the model, in the manifest and as a folder."""
    precision: str
    data_dir: Path
    """Home of the bundle, the lock, the progress files and downloaded checkpoints."""
    repo: str | None = None
    """On the hub; None for a local checkpoint."""
    revision: str = _MAIN
    checkpoint: Path | None = None
    """A local checkpoint, which is never changed or removed."""
    is_ready_made: bool = False
    """Whether the repository holds onnx-community bundles, which need no build."""
    fallback: InstalledBundle | None = None
    """An intact bundle of the model, maybe an older one, which serves until this one is ready."""
    damage: str | None = None
    """Why the installed bundle has to be built again."""

    @property
    def variant(self) -> str:
        """Name of the bundle's directory, such as ``cpu_int8``."""
        return f"cpu_{self.precision}"

    @property
    def reference(self) -> str:
        """Value of ``--model`` that means this bundle."""
        return f"{self.name}/{self.variant}"

    @property
    def target(self) -> Path:
        """The bundle's directory."""
        return self.data_dir / self.name / self.variant

    @property
    def progress_file(self) -> Path:
        """File that tells other programs the progress."""
        return self.data_dir / WORK_NAME / f"{self.name}--{self.variant}.json"

    @property
    def model(self) -> PublishedModel | None:
        """The published model at its pinned revision; None for other sources."""
        find = find_ready_made if self.is_ready_made else find_model
        model = None if self.repo is None else find(self.repo)
        if model is None:
            return None
        pinned = model.ready_made_revision if self.is_ready_made else model.revision
        return model if self.revision == pinned else None

    def matches(self, bundle: InstalledBundle) -> bool:
        """Whether an installed bundle is meant."""
        folder, variant = bundle.directory.parent.name, bundle.directory.name
        # Folders with "--" hold another owner's bundle of a model with the same name.
        is_named = self.name == folder or (self.name == bundle.manifest.name and "--" not in folder)
        is_fitting = self.precision in (AUTO, bundle.manifest.recipe)
        return is_named and (is_fitting or variant == self.variant)

    def expected_bundle(self) -> InstalledBundle | None:
        """Return the bundle as far as its voices are known; None while they are not."""
        facts: ModelFacts | None = None
        if self.checkpoint is not None:
            facts = _read_facts(self.checkpoint)
        elif self.model is not None:
            facts = expected_facts(self.model)
        if facts is None:
            return None
        manifest = expected_manifest(self.name, self.precision, facts, self.repo)
        return InstalledBundle(self.target, manifest)

    def installed(self) -> InstalledBundle | None:
        """Return the bundle if it is installed, intact, and newer than its local checkpoint."""
        if self.checkpoint is not None:
            try:
                manifest, weights = self.target / MANIFEST_NAME, self.checkpoint / _WEIGHTS
                if weights.stat().st_ctime > manifest.stat().st_mtime:
                    return None
            except OSError:
                return None
        return intact_bundle(self.target)


def resolve(
    reference: str, data_dirs: Sequence[Path], precision: str = AUTO
) -> InstalledBundle | BuildRequest:
    """Return the bundle that a user means, or the request to build it.

    The first data directory is written to. A precision in the reference goes first.

    Raises:
        ConfigError: The reference means nothing.
        BundleError: The directory holds a bundle that cannot be used.
    """
    if reference.lower() == EMBEDDED_NAME:
        return demo_voice_bundle()
    if not _is_path(reference):
        wanted = _parse(reference, data_dirs[0], precision)
        if fitting := [each for each in installed_bundles(data_dirs) if wanted.matches(each)]:
            return _choose(fitting, data_dirs[0], wanted)
    directory = Path(reference).expanduser().resolve()
    if _names_directory(reference) and (directory / MANIFEST_NAME).is_file():
        return read_bundle(directory)
    request = build_request(reference, data_dirs, precision)
    bundle = None if request.checkpoint is None else request.installed()
    if bundle is not None and bundle.is_outdated:
        return replace(request, fallback=bundle, damage=_OUTDATED)
    return bundle or request


def build_request(reference: str, data_dirs: Sequence[Path], precision: str = AUTO) -> BuildRequest:
    """Return the request to build a bundle, whether it is installed or not.

    Raises:
        ConfigError: The reference means nothing.
    """
    if _names_directory(reference):
        directory = Path(reference).expanduser().resolve()
        if not (directory / "config.json").is_file():
            raise ConfigError(
                f"{directory} holds neither a bundle (manifest.json) nor a checkpoint "
                "(config.json)."
            )
        name = _local_name(directory)
        request = BuildRequest(name, precision, data_dirs[0], checkpoint=directory)
    else:
        request = _parse(reference, data_dirs[0], precision)
        if request.repo is None:
            hint = suggest_models(reference)
            end = "" if hint.endswith("?") else "."
            path = f"./{reference}" if Path(reference).is_dir() else "./directory"
            raise ConfigError(
                f"Unknown model {reference!r}; {hint}{end} "
                f"Or name a directory as {path}, or a repository as owner/name."
            )
    if request.precision == AUTO:
        return replace(request, precision="int4" if request.is_ready_made else "int8")
    if request.precision not in PRECISIONS and not request.is_ready_made:
        raise ConfigError(
            f"{request.reference} is not installed, and only {', '.join(PRECISIONS)} can be built "
            "by name."
        )
    return request


def find_bundle(reference: str | None, data_dirs: Sequence[Path]) -> InstalledBundle:
    """Return the installed bundle that a user means; None means any, else the demo voice.

    Raises:
        ConfigError: It is not installed.
        BundleError: It cannot be used.
    """
    if reference is None:
        return installed_models(data_dirs)[0]
    found = resolve(reference, data_dirs)
    if isinstance(found, InstalledBundle):
        return found
    if found.fallback is not None:
        return found.fallback
    advice = f"get it with: wyoming-qwen3tts models build {reference}"
    if found.damage is not None:
        raise BundleError(f"{found.damage}; {advice}")
    names = ", ".join(bundle.reference for bundle in installed_bundles(data_dirs)) or "none"
    raise ConfigError(f"No model {reference!r} is installed (installed: {names}); {advice}")


def matching_bundles(reference: str, data_dirs: Sequence[Path]) -> list[InstalledBundle]:
    """Return every installed bundle that a reference means, of all precisions if it has none."""
    wanted = _parse(reference, data_dirs[0], AUTO)
    return [bundle for bundle in installed_bundles(data_dirs) if wanted.matches(bundle)]


def referenced_repo(reference: str) -> str | None:
    """Return the repository that a reference means."""
    return _parse(reference, Path(), AUTO).repo


def served_models(
    references: Sequence[str],
    data_dirs: Sequence[Path],
    precision: str = AUTO,
    *,
    is_server: bool = True,
) -> list[InstalledBundle | BuildRequest]:
    """Return the models of a server: the named ones, else all installed ones, else the demo voice.

    A command does not wait for repairs: where an intact bundle is there, it takes that.

    Raises:
        ConfigError: A reference means nothing.
        BundleError: A named bundle cannot be used.
    """
    for data_dir in data_dirs:
        restore_bundles(data_dir)
    found = [resolve(reference, data_dirs, precision) for reference in references]
    found = found or _one_of_each(data_dirs, precision)
    if not is_server:
        found = [(isinstance(m, BuildRequest) and m.fallback) or m for m in found]
    for model in found:
        if isinstance(model, BuildRequest) and model.damage is not None:
            serving = f"; {model.fallback.reference} serves meanwhile" if model.fallback else ""
            _LOGGER.warning("Rebuilding %s: %s%s", model.reference, model.damage, serving)
    return found or [demo_voice_bundle()]


def installed_models(data_dirs: Sequence[Path]) -> list[InstalledBundle]:
    """Return one usable bundle of each installed model, else the demo voice."""
    chosen = _one_of_each(data_dirs, AUTO)
    bundles = [each.fallback if isinstance(each, BuildRequest) else each for each in chosen]
    return [bundle for bundle in bundles if bundle is not None] or [demo_voice_bundle()]


def _one_of_each(data_dirs: Sequence[Path], precision: str) -> list[InstalledBundle | BuildRequest]:
    by_model: dict[str, list[InstalledBundle]] = {}
    for bundle in installed_bundles(data_dirs):
        by_model.setdefault(bundle.directory.parent.name, []).append(bundle)
    return [
        _choose(
            [each for each in bundles if precision in (AUTO, each.manifest.recipe)] or bundles,
            data_dirs[0],
        )
        for bundles in by_model.values()
    ]


def _choose(
    bundles: Sequence[InstalledBundle], data_dir: Path, wanted: BuildRequest | None = None
) -> InstalledBundle | BuildRequest:
    """Return the preferred bundle of a model, or the request that repairs it."""
    best = min(bundles, key=lambda bundle: bundle.rank)
    damage = best.damage()
    if damage is None and not best.is_outdated:
        return best
    whole = best if damage is None else next((b for b in bundles if b.damage() is None), None)
    recipe, source = best.manifest.recipe, best.manifest.source
    if wanted is None or wanted.repo is None:
        repo = None if best.is_published else source.repo
        model = find_model(repo) if repo else None
        revision = source.revision or (model.revision if model else _MAIN)
        wanted = BuildRequest(best.directory.parent.name, recipe, data_dir, repo, revision)
    if wanted.repo is None or (recipe not in PRECISIONS and not wanted.is_ready_made):
        # Its source is unknown: opening it tells what is wrong.
        return whole or best
    return replace(wanted, precision=recipe, fallback=whole, damage=damage or _OUTDATED)


def _is_path(reference: str) -> bool:
    return reference.startswith(("/", "./", "../", "~")) or reference in (".", "..")


def _names_directory(reference: str) -> bool:
    """Whether a path, or another reference with a slash, means a directory; names come first."""
    if _is_path(reference):
        return True
    if "/" not in reference or not Path(reference).is_dir():
        return False
    repo = referenced_repo(reference)
    return repo is None or find_model(repo) is None


def _parse(reference: str, data_dir: Path, precision: str) -> BuildRequest:
    """Return what a reference other than a path states; its precision may be "auto"."""
    match = _VARIANT.fullmatch(reference)
    if match is not None:
        reference, precision = match[1], match[2] or match[3]
    repo, _, revision = reference.partition("@")
    model = find_model(repo)
    if model is not None and revision in ("", model.revision):
        return BuildRequest(model.bundle_name, precision, data_dir, model.repo, model.revision)
    if model is not None:
        repo = model.repo
    elif not _REPO.fullmatch(repo):
        return BuildRequest(reference.lower(), precision, data_dir)
    # With the owner: another's model must not replace the published one.
    name = repo.lower().replace("/", "--")
    is_ready_made = repo.lower().startswith(_READY_MADE_OWNER)
    published = find_ready_made(repo)
    if published is not None and revision in ("", published.ready_made_revision):
        repo, revision = published.ready_made_repo, published.ready_made_revision
    elif revision not in ("", _MAIN):
        is_commit = _COMMIT.fullmatch(revision)
        name += f"-{revision[:_ID_DIGITS] if is_commit else _short_hash(revision)}"
    return BuildRequest(
        name, precision, data_dir, repo, revision or _MAIN, is_ready_made=is_ready_made
    )


def _local_name(directory: Path) -> str:
    """Return a model name that no other checkpoint's directory has."""
    hub_folders = [part for part in directory.parts if part.startswith(_HUB_FOLDER)]
    label = hub_folders[-1].rpartition("--")[2] if hub_folders else directory.name
    slug = re.sub(r"[^a-z0-9.]+", "-", label.lower()).strip("-")
    return f"{slug}-{_short_hash(str(directory))}"


def _short_hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:_ID_DIGITS]


def _read_facts(directory: Path) -> ModelFacts | None:
    """Return the facts of a local checkpoint; None where its build will report an error."""
    names = ("config.json", "speech_tokenizer/config.json", "generation_config.json")
    try:
        values = [json.loads((directory / name).read_text(encoding="utf-8")) for name in names]
        return facts_from_checkpoint(*values)
    except (OSError, ValueError, TypeError, AttributeError, CheckpointError):
        return None
