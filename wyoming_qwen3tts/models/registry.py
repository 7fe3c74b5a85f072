"""The published models (``data/models.yaml``), by name, alias or repository."""

import difflib
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any, Final

import yaml

from wyoming_qwen3tts.runtime.manifest import (
    BundleSource,
    Manifest,
    ModelFacts,
    ModelType,
    decode_strictly,
)

_DATA: Final = "data/models.yaml"


@dataclass(frozen=True)
class CheckpointFile:
    """One file of a published checkpoint."""

    path: str
    bytes: int
    """Exact where the whole hash is known, else as observed."""
    sha256: str = ""
    """All 64 digits, or the first ones, or empty; 40 digits are git's SHA-1."""


@dataclass(frozen=True)
class PublishedModel:
    """A published checkpoint."""

    name: str
    aliases: tuple[str, ...]
    repo: str
    revision: str
    """Commit that the hashes belong to."""
    model_type: ModelType
    model_size: str
    hidden_size: int
    features: tuple[str, ...]
    """Abilities, in a few words each."""
    licence: str
    files: tuple[CheckpointFile, ...]
    """All that a build reads, the largest last."""
    ready_made_repo: str
    """Where ready-made ONNX bundles of it are."""
    ready_made_revision: str

    @property
    def bundle_name(self) -> str:
        """Name in the manifest of its bundles, and of their directory."""
        return self.repo.rsplit("/", 1)[-1].lower()

    @property
    def num_bytes(self) -> int:
        """Size of the checkpoint."""
        return sum(file.bytes for file in self.files)

    @property
    def names(self) -> tuple[str, ...]:
        """All names that a user may write, in lower case."""
        return (self.name, self.bundle_name, self.repo.lower(), *self.aliases)


@cache
def published_models() -> tuple[PublishedModel, ...]:
    """Return the published models."""
    values = _read()
    models = []
    for entry in values["models"]:
        # Small files first: they show errors before gigabytes are downloaded.
        files = sorted([*entry["files"], *values["shared_files"]], key=lambda file: file["bytes"])
        models.append(decode_strictly(PublishedModel, {**entry, "files": files}, _DATA))
    return tuple(models)


def find_model(name: str) -> PublishedModel | None:
    """Return the model with a name, alias or repository, in any case."""
    wanted = name.strip().lower().replace("_", "-")
    return next((model for model in published_models() if wanted in model.names), None)


def find_ready_made(repo: str) -> PublishedModel | None:
    """Return the model whose ready-made ONNX bundles are in a repository."""
    wanted = repo.lower()
    models = published_models()
    return next((model for model in models if model.ready_made_repo.lower() == wanted), None)


def suggest_models(name: str) -> str:
    """Return the nearest names, as a half-sentence for a message."""
    names = [known for model in published_models() for known in (model.name, *model.aliases)]
    near = difflib.get_close_matches(name.lower(), names, n=1)
    listed = ", ".join(model.name for model in published_models())
    return f"did you mean {near[0]}?" if near else f"there are {listed}"


def expected_facts(model: PublishedModel) -> ModelFacts:
    """Return the facts that the model's configuration states."""
    values = _read()
    own = {name: getattr(model, name) for name in ("model_type", "model_size", "hidden_size")}
    presets = values["preset_facts"] if model.model_type == "custom_voice" else {}
    facts: ModelFacts = decode_strictly(ModelFacts, {**values["facts"], **presets, **own}, _DATA)
    return facts


def expected_manifest(name: str, precision: str, facts: ModelFacts, repo: str | None) -> Manifest:
    """Return the manifest of a bundle that is not built yet, as far as voices need it."""
    return Manifest(name=name, recipe=precision, facts=facts, source=BundleSource(repo), files=())


@cache
def _read() -> dict[str, Any]:
    text = files("wyoming_qwen3tts.models").joinpath(_DATA).read_text(encoding="utf-8")
    values: dict[str, Any] = yaml.safe_load(text)
    return values
