"""What a published bundle says about itself, and the checkpoint's own files that it needs.

A published bundle holds graphs and a small manifest. Ids, languages, speakers and the tokenizer are
in files of the checkpoint it was made from, which are looked for beside the graphs, in the folder
above (one copy for all variants of a model) and where the caller says.
"""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from wyoming_qwen3tts import __version__
from wyoming_qwen3tts.errors import BundleError, CheckpointError, ManifestError
from wyoming_qwen3tts.runtime.facts import ModelFacts, facts_from_checkpoint
from wyoming_qwen3tts.runtime.manifest import (
    FORMAT_VERSION,
    MANIFEST_NAME,
    BundleFile,
    BundleSource,
    Manifest,
    TalkerLayout,
)

CONFIG_FILE: Final = "config.json"
GENERATION_FILE: Final = "generation_config.json"
CHECKPOINT_FILES: Final = (
    CONFIG_FILE,
    GENERATION_FILE,
    "vocab.json",
    "merges.txt",
    "tokenizer_config.json",
)
"""Files of the checkpoint that must be there."""
_CODEC_CONFIG: Final = Path("speech_tokenizer") / CONFIG_FILE
# The codec is the same in all published checkpoints, so its configuration may be absent.
_PUBLISHED_CODEC: Final = {"output_sample_rate": 24_000, "decode_upsample_rate": 1920}
_FETCH_AGAIN = "Fetch the bundle again."


@dataclass(frozen=True)
class PublishedFiles:
    """A published bundle on disk, none of whose graphs was loaded."""

    directory: Path
    model_id: str
    execution_provider: str
    graphs: dict[str, str]
    """Component -> file name."""
    checkpoint_directory: Path
    """Where the checkpoint's own files are, the tokenizer's among them."""
    config: dict[str, Any]
    facts: ModelFacts

    @property
    def name(self) -> str:
        """Name of the model, as our own bundles of it are called."""
        name = self.model_id.rstrip("/").rsplit("/", 1)[-1].lower()
        if "qwen3-tts" in name:
            return name
        kind = self.facts.model_type.replace("_", "")
        return f"qwen3-tts-12hz-{self.facts.model_size}-{kind}".lower()


def is_published_bundle(directory: Path) -> bool:
    """Whether a directory holds a bundle of the published layout."""
    try:
        values = json.loads((directory / MANIFEST_NAME).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return isinstance(values, dict) and isinstance(values.get("sub_models"), dict)


def read_published_files(directory: Path, checkpoint_dir: Path | None = None) -> PublishedFiles:
    """Read a bundle's manifest and find the checkpoint's files.

    Args:
        directory: The bundle, such as ``.../cpu_int4``.
        checkpoint_dir: Where to look for the checkpoint's files first.

    Raises:
        ManifestError: The manifest is damaged.
        BundleError: Files of the checkpoint are missing or damaged; the message names them and
            says where to get them.
    """
    model_id, execution_provider, graphs = _read_manifest(directory / MANIFEST_NAME)
    given = [] if checkpoint_dir is None else [checkpoint_dir]
    found = _find_checkpoint([*given, directory, directory.parent], directory, model_id)
    config = _read_json(found / CONFIG_FILE)
    codec_config: dict[str, Any] = dict(_PUBLISHED_CODEC)
    if (found / _CODEC_CONFIG).is_file():
        codec_config = _read_json(found / _CODEC_CONFIG)
    try:
        facts = facts_from_checkpoint(config, codec_config, _read_json(found / GENERATION_FILE))
    except CheckpointError as error:
        raise BundleError(f"{found} does not fit: {error}") from error
    return PublishedFiles(
        directory=directory,
        model_id=model_id,
        execution_provider=execution_provider,
        graphs=graphs,
        checkpoint_directory=found,
        config=config,
        facts=facts,
    )


def read_published_manifest(directory: Path, checkpoint_dir: Path | None = None) -> Manifest:
    """Return what our own manifest would say of a published bundle, for lists and menus.

    Published manifests state no hashes, and a gigabyte is not read for a list: a file's place, size
    and time of change stand in for its contents.

    Raises:
        BundleError: As :func:`read_published_files`.
    """
    files = read_published_files(directory, checkpoint_dir)
    talker = files.config["talker_config"]
    variant = directory.name.rsplit("_", 1)[-1]
    paths = sorted(path for path in directory.iterdir() if path.is_file())
    return Manifest(
        format_version=FORMAT_VERSION,
        name=files.name,
        device="cuda" if "CUDA" in files.execution_provider else "cpu",
        recipe=variant,
        precision={},
        facts=files.facts,
        talker=TalkerLayout(
            num_layers=talker["num_hidden_layers"],
            num_kv_heads=talker["num_key_value_heads"],
            head_size=talker["head_dim"],
            max_positions=files.facts.max_positions,
            cache_type="float16" if variant == "fp16" else "float32",
        ),
        source=BundleSource(repo=files.model_id, revision=None, model_sha256=""),
        builder_version=__version__,
        files=tuple(
            BundleFile(path.name, path.stat().st_size, _fingerprint(path))
            for path in paths
            if path.name != MANIFEST_NAME
        ),
        quantization=(),
    )


def _fingerprint(path: Path) -> str:
    status = path.stat()
    identity = f"{path.resolve()}:{status.st_size}:{status.st_mtime_ns}"
    return hashlib.sha256(identity.encode()).hexdigest()


def _read_manifest(path: Path) -> tuple[str, str, dict[str, str]]:
    """Return model id, execution provider and component -> file name."""
    values = _read_json(path, ManifestError)
    try:
        graphs = {name: entry["filename"] for name, entry in values["sub_models"].items()}
    except (KeyError, TypeError, AttributeError) as error:
        raise ManifestError(
            f"{path} does not say which file holds which graph ({error!r}). {_FETCH_AGAIN}"
        ) from error
    for name, file in graphs.items():
        if not isinstance(file, str) or Path(file).name != file:
            raise ManifestError(f"{path}: {name} is in {file!r}, no file name. {_FETCH_AGAIN}")
    provider = values.get("execution_provider", "CPUExecutionProvider")
    return str(values.get("model_id", "")), str(provider), graphs


def _find_checkpoint(places: Sequence[Path], directory: Path, model_id: str) -> Path:
    """Return the first place that has every file: files of two models must not be mixed."""
    missing: dict[Path, list[str]] = {}
    for place in places:
        missing[place] = [name for name in CHECKPOINT_FILES if not (place / name).is_file()]
        if not missing[place]:
            return place
    best = min(places, key=lambda place: len(missing[place]))
    has_some = len(missing[best]) < len(CHECKPOINT_FILES)
    lacking = f"{best} has no {', '.join(missing[best])}" if has_some else "they are nowhere"
    name = model_id.rstrip("/").rsplit("/", 1)[-1]
    repository = (
        f"https://huggingface.co/Qwen/{name}"
        if name.startswith("Qwen3-TTS")
        else "the repository of the model's checkpoint (Qwen/Qwen3-TTS-12Hz-...)"
    )
    raise BundleError(
        f"{directory} is a bundle of the published layout, which comes without the model's own "
        f"files; {lacking}. Put {', '.join(CHECKPOINT_FILES)} from {repository} into "
        f"{directory.parent}, or name the folder that has them. Looked in: "
        f"{', '.join(map(str, places))}."
    )


def _read_json(path: Path, error_class: type[BundleError] = BundleError) -> dict[str, Any]:
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise error_class(f"{path} cannot be read ({error}); fetch it again.") from error
    if not isinstance(values, dict):
        raise error_class(f"{path} is not a JSON object; fetch it again.")
    return values
