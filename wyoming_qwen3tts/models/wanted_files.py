"""Which files of which repositories a build, or a published bundle, needs."""

import json
from pathlib import Path
from typing import Any, Final

from wyoming_qwen3tts.errors import DownloadError
from wyoming_qwen3tts.models.download import Fetcher, WantedFile
from wyoming_qwen3tts.models.orders import HubCheckpoint, PublishedBundle
from wyoming_qwen3tts.models.registry import CatalogueModel, catalogue_models
from wyoming_qwen3tts.runtime.manifest import MANIFEST_NAME
from wyoming_qwen3tts.runtime.onnx_community import CHECKPOINT_FILES

# What a build reads of a checkpoint in the official layout; small files come first.
_CHECKPOINT_PATHS: Final = (
    *CHECKPOINT_FILES,
    "speech_tokenizer/config.json",
    "speech_tokenizer/model.safetensors",
    "model.safetensors",
)
_ENCODERS: Final = ("tok_encoder", "speaker_encoder")
# A talker without a cache, which old bundles have beside the one with.
_UNUSED_GRAPHS: Final = ("talker",)


def fetch_checkpoint(fetcher: Fetcher, source: HubCheckpoint, extra_bytes: int = 0) -> Path:
    """Fetch what a build reads; returns the checkpoint's directory.

    Args:
        fetcher: Fetches.
        source: The checkpoint.
        extra_bytes: Free space that is needed besides, for the bundle.

    Raises:
        DownloadError: It cannot be fetched.
    """
    commit = fetcher.commit_of(source.repo, source.revision)
    if source.known is None:
        files = [WantedFile(path) for path in _CHECKPOINT_PATHS]
    else:
        files = _known_files(source.known)
    return fetcher.fetch(source.repo, commit, files, extra_bytes)


def fetch_published(fetcher: Fetcher, source: PublishedBundle, variant: str) -> list[Path]:
    """Fetch a bundle of the published layout; returns its files and the checkpoint's own.

    Args:
        fetcher: Fetches.
        source: The repository of all variants.
        variant: Such as ``cpu_int4``.

    Raises:
        DownloadError: It cannot be fetched.
    """
    commit = fetcher.commit_of(source.repo, source.revision, f"{variant}/{MANIFEST_NAME}")
    manifest_file = WantedFile(f"{variant}/{MANIFEST_NAME}")
    directory = fetcher.fetch(source.repo, commit, [manifest_file])
    manifest = _read_json(directory / manifest_file.path)
    model_files = _fetch_model_files(fetcher, source.known, str(manifest.get("model_id", "")))
    config = next(path for path in model_files if path.name == "config.json")
    can_clone = _read_json(config).get("tts_model_type") == "base"
    wanted = [manifest_file, *_graph_files(manifest, variant, can_clone=can_clone)]
    fetcher.fetch(source.repo, commit, wanted)
    graphs = [directory / file.path for file in wanted]
    return [*model_files, *(path for path in graphs if path.is_file())]


def _known_files(model: CatalogueModel) -> list[WantedFile]:
    others = [
        (other.repo, other.revision) for other in catalogue_models() if other.repo != model.repo
    ]
    return [
        WantedFile(
            file.path,
            file.bytes,
            file.sha256,
            also_in=tuple(others) if file.is_shared else (),
        )
        for file in model.files
    ]


def _fetch_model_files(fetcher: Fetcher, known: CatalogueModel | None, model_id: str) -> list[Path]:
    """Fetch the small files of the checkpoint that a published bundle was made of."""
    if known is not None:
        repo, commit = known.repo, known.revision
        files = [file for file in _known_files(known) if file.path in CHECKPOINT_FILES]
    elif model_id.count("/") == 1:
        repo, commit = model_id, fetcher.commit_of(model_id, "main")
        files = [WantedFile(path) for path in CHECKPOINT_FILES]
    else:
        raise DownloadError(
            f"The bundle does not say which model it was made of (model_id is {model_id!r}); fetch "
            "it by hand, with the model's config.json and tokenizer files beside it."
        )
    directory = fetcher.fetch(repo, commit, files)
    return [directory / file.path for file in files]


def _graph_files(manifest: dict[str, Any], variant: str, *, can_clone: bool) -> list[WantedFile]:
    try:
        names = {name: str(entry["filename"]) for name, entry in manifest["sub_models"].items()}
    except (KeyError, TypeError, AttributeError) as error:
        raise DownloadError(
            f"{variant}/{MANIFEST_NAME} does not list graphs ({error!r}); this is no bundle of the "
            "published layout."
        ) from error
    skipped = _UNUSED_GRAPHS if can_clone else (*_UNUSED_GRAPHS, *_ENCODERS)
    files: list[WantedFile] = []
    for name, file in names.items():
        if name not in skipped:
            # Weights first: where the graph is there, its weights are as well, if it has any.
            files.append(WantedFile(f"{variant}/{file}.data", is_optional=True))
            files.append(WantedFile(f"{variant}/{file}"))
    return files


def _read_json(path: Path) -> dict[str, Any]:
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise DownloadError(
            f"{path} cannot be read ({error}); remove it and start again."
        ) from error
    return values if isinstance(values, dict) else {}
