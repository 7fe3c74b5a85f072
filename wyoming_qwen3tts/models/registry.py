"""The five published models (``data/models.yaml``), by name, alias or repository."""

import difflib
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from typing import Any, Final

import yaml

from wyoming_qwen3tts import __version__
from wyoming_qwen3tts.runtime.manifest import (
    FORMAT_VERSION,
    BundleSource,
    CodecIds,
    GenerationDefaults,
    Manifest,
    ModelFacts,
    ModelType,
    TalkerLayout,
    TextIds,
)

_DATA: Final = "data/models.yaml"
# The same in all published models.
_NUM_CODE_GROUPS: Final = 16
_CODEBOOK_SIZE: Final = 2048
_MAX_POSITIONS: Final = 32_768
_SAMPLE_RATE_HZ: Final = 24_000
_SAMPLES_PER_FRAME: Final = 1920
_TALKER: Final = TalkerLayout(
    num_layers=28, num_kv_heads=8, head_size=128, max_positions=_MAX_POSITIONS, cache_type="float32"
)


@dataclass(frozen=True)
class CheckpointFile:
    """One file of a published checkpoint."""

    path: str
    """Relative to the checkpoint."""
    bytes: int
    """Exact where the whole hash is known, else as observed."""
    sha256: str = ""
    """All 64 digits, or the first ones, or empty."""


@dataclass(frozen=True)
class Measured:
    """Measured needs of a bundle, in bytes."""

    bundle_bytes: int
    """On disk."""
    build_peak_bytes: int
    """Resident memory of the build."""
    serve_peak_bytes: int
    """Resident memory of a server that speaks with it."""


@dataclass(frozen=True)
class PublishedModel:
    """A published checkpoint."""

    name: str
    """Such as ``qwen3-tts-0.6b-customvoice``."""
    aliases: tuple[str, ...]
    repo: str
    revision: str
    """Commit that the hashes belong to."""
    model_type: ModelType
    model_size: str
    hidden_size: int
    """Width of the talker."""
    features: tuple[str, ...]
    """Abilities, in a few words each."""
    licence: str
    files: tuple[CheckpointFile, ...]
    """All that a build reads, the largest last."""
    ready_made_repo: str
    """Where ready-made ONNX bundles of it are."""
    ready_made_revision: str
    measured: Mapping[str, Measured] = field(default_factory=dict)
    """``cpu_int8`` -> what was measured of that bundle."""

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
    shared = [CheckpointFile(**entry) for entry in values["shared_files"]]
    return tuple(_model(entry, shared) for entry in values["models"])


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
    facts = _read()["facts"]
    has_presets = model.model_type == "custom_voice"
    return ModelFacts(
        model_type=model.model_type,
        model_size=model.model_size,
        hidden_size=model.hidden_size,
        num_code_groups=_NUM_CODE_GROUPS,
        codebook_size=_CODEBOOK_SIZE,
        max_positions=_MAX_POSITIONS,
        sample_rate_hz=_SAMPLE_RATE_HZ,
        samples_per_frame=_SAMPLES_PER_FRAME,
        text_ids=TextIds(**facts["text_ids"]),
        codec_ids=CodecIds(**facts["codec_ids"]),
        languages=facts["languages"] | (facts["dialect_languages"] if has_presets else {}),
        speakers=dict(facts["speakers"]) if has_presets else {},
        dialects=dict(facts["dialects"]) if has_presets else {},
        generation=GenerationDefaults(**facts["generation"]),
    )


def expected_manifest(name: str, precision: str, facts: ModelFacts, repo: str | None) -> Manifest:
    """Return the manifest of a bundle that is not built yet, as far as voices need it."""
    return Manifest(
        format_version=FORMAT_VERSION,
        name=name,
        device="cpu",
        recipe=precision,
        precision={},
        facts=facts,
        talker=_TALKER,
        source=BundleSource(repo, revision=None, model_sha256=""),
        builder_version=__version__,
        files=(),
        quantization=(),
    )


@cache
def _read() -> Mapping[str, Any]:
    text = files("wyoming_qwen3tts.models").joinpath(_DATA).read_text(encoding="utf-8")
    values: Mapping[str, Any] = yaml.safe_load(text)
    return values


def _model(entry: Mapping[str, Any], shared: list[CheckpointFile]) -> PublishedModel:
    values = dict(entry)
    files = [*(CheckpointFile(**file) for file in values.pop("files")), *shared]
    published, measured = values.pop("published"), values.pop("measured", {})
    return PublishedModel(
        # Small files first: they show errors before gigabytes are downloaded.
        files=tuple(sorted(files, key=lambda file: file.bytes)),
        aliases=tuple(values.pop("aliases")),
        features=tuple(values.pop("features")),
        ready_made_repo=published["repo"],
        ready_made_revision=published["revision"],
        measured={name: Measured(**figures) for name, figures in measured.items()},
        **values,
    )
