"""Builds a bundle from a checkpoint: the components, their tensors, and the order of work."""

import hashlib
import shutil
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Final

import numpy as np

from wyoming_qwen3tts import __version__
from wyoming_qwen3tts.builder.checkpoint import Checkpoint
from wyoming_qwen3tts.builder.graphs.code_predictor import build_code_predictor
from wyoming_qwen3tts.builder.graphs.codec import IGNORED_TENSORS, build_codec_decoder
from wyoming_qwen3tts.builder.graphs.encoders import (
    build_codec_encoder,
    build_speaker_encoder,
    ignored_encoder_tensors,
)
from wyoming_qwen3tts.builder.graphs.lm import build_talker, max_positions
from wyoming_qwen3tts.builder.recipe import DEFAULT_PRECISION, Recipe, uniform_recipe
from wyoming_qwen3tts.builder.tables import build_tables
from wyoming_qwen3tts.builder.trial import encode_clip, speak, trial_requests
from wyoming_qwen3tts.errors import BuildError
from wyoming_qwen3tts.files import atomic_directory
from wyoming_qwen3tts.machine import default_num_threads
from wyoming_qwen3tts.runtime.bundle import open_bundle
from wyoming_qwen3tts.runtime.manifest import (
    GRAPH_REVISION,
    MANIFEST_NAME,
    BundleFile,
    BundleSource,
    Manifest,
)
from wyoming_qwen3tts.runtime.tokenizer import TOKENIZER_FILES

Progress = Callable[[str, float], None]
"""Called with the stage and the finished fraction of the whole build, 0 to 1."""

_HASH_CHUNK_BYTES: Final = 1 << 20
_MEGABYTE: Final = 1_000_000
# Enough for the past of every convolution and most of attention to fill; 8 s of sound.
_CALIBRATION_FRAMES: Final = 96
# A quantised weight also has a float32 scale per block; the margin covers those.
_BYTES_PER_VALUE: Final = {"fp32": 4.0, "fp16": 2.0, "int8": 1.0, "int4": 0.5}
_SPACE_MARGIN: Final = 1.15
# Winograd filters are stored transformed; the float32 graph lies beside the int8 one for a while.
_CODEC_GROWTH: Final = {"fp32": 1.15, "int8": 2.3}
# A float32 graph is built to speak with, another to measure ranges, then the int8 graph.
_INT8_CODEC_PASSES: Final = 2


@dataclass(frozen=True)
class _Component:
    """Patterns of one component's tensors. Only Base models encode reference clips."""

    main: tuple[str, ...] = ()
    codec: tuple[str, ...] = ()
    only_base: bool = False


# In the order of building.
_COMPONENTS: Final[Mapping[str, _Component]] = {
    "talker": _Component(("talker.model.layers.*", "talker.model.norm.*", "talker.codec_head.*")),
    "code_predictor": _Component(("talker.code_predictor.*", "talker.model.codec_embedding.*")),
    "embeddings": _Component(
        (
            "talker.model.*_embedding.*",
            "talker.text_projection.*",
            "talker.code_predictor.model.codec_embedding.*",
        )
    ),
    "codec_encoder": _Component(codec=("encoder.*",), only_base=True),
    "speaker_encoder": _Component(("speaker_encoder.*",), only_base=True),
    "codec_decoder": _Component(codec=("decoder.*",)),
}


@dataclass(frozen=True)
class BuildOptions:
    """What to build."""

    recipe: Recipe = field(default_factory=lambda: uniform_recipe(DEFAULT_PRECISION))
    force: bool = False
    """Replace an existing bundle."""
    name: str | None = None
    """Name of the model in the manifest; None takes :func:`model_name`."""


def model_name(checkpoint: Checkpoint) -> str:
    """Return the repository's name in lower case, or a name made of size and type."""
    for candidate in (checkpoint.source_repo, checkpoint.directory.resolve().name):
        if candidate is not None and "qwen3-tts" in candidate.lower():
            return candidate.lower().rsplit("/", 1)[-1]
    return checkpoint.facts.model_name


def default_output(checkpoint: Checkpoint, options: BuildOptions, data_dir: Path) -> Path:
    """Return ``data_dir/<model>/cpu_<recipe>``."""
    return data_dir / (options.name or model_name(checkpoint)) / f"cpu_{options.recipe.name}"


def build_bundle(
    checkpoint_dir: Path,
    output: Path,
    options: BuildOptions | None = None,
    progress: Progress = lambda _stage, _fraction: None,
) -> Path:
    """Build the bundle of a checkpoint; ``output`` appears when everything is written.

    Raises:
        CheckpointError: The checkpoint is incomplete, damaged or of an unknown layout.
        BuildError: The bundle exists, or there is too little space.
    """
    options = options or BuildOptions()
    checkpoint = Checkpoint.open(checkpoint_dir)
    if output.exists() and not options.force:
        raise BuildError(f"{output} exists already; --force builds it again.")
    try:
        with atomic_directory(output) as directory:
            _Build(checkpoint, directory, options, progress).run()
    except OSError as error:
        # numpy only tells how many bytes are missing.
        reason = error.strerror or f"the disk is full: {error}"
        problem = f"The bundle {output} cannot be written ({reason})"
        raise BuildError(f"{problem}; make room, or choose another place with --output.") from error
    progress("done", 1.0)
    return output


class _Build:
    """One build into an empty directory, and its progress."""

    def __init__(
        self, checkpoint: Checkpoint, directory: Path, options: BuildOptions, progress: Progress
    ) -> None:
        self._checkpoint, self._directory = checkpoint, directory
        self._options, self._recipe = options, options.recipe
        is_base = checkpoint.speaker_encoder is not None
        self._components = [
            name for name, each in _COMPONENTS.items() if is_base or not each.only_base
        ]
        self._progress = progress
        self._stage, self._done_bytes, self._stage_end = "", 0, 0
        codec_passes = _INT8_CODEC_PASSES if self._recipe.codec_decoder == "int8" else 0
        self._quantize_bytes = self._bytes_to_read("codec_decoder") * codec_passes
        self._total_bytes = checkpoint.main.path.stat().st_size + self._quantize_bytes
        self._total_bytes += sum(map(self._bytes_to_read, self._components))
        checkpoint.main.on_read = checkpoint.codec.on_read = self._advance

    def run(self) -> None:
        """Write every file."""
        self._check_free_space()
        path = self._checkpoint.main.path
        self._start_stage("checkpoint", path.stat().st_size)
        source_sha256 = sha256_of(path, self._advance)
        for name in self._components:
            self._start_stage(name, self._bytes_to_read(name))
            self._build_component(name)
        self._check_all_read()
        manifest = self._manifest(source_sha256)
        write_manifest(self._directory, manifest)
        if self._recipe.codec_decoder == "int8":
            self._quantize_codec()
            write_manifest(self._directory, manifest)

    def _check_free_space(self) -> None:
        """Compare the free space with an estimate of the bundle's size, on the high side."""
        checkpoint, recipe = self._checkpoint, self._recipe
        tables = _BYTES_PER_VALUE[recipe.embeddings]
        bytes_per_value = {
            "talker": _BYTES_PER_VALUE[recipe.talker.layers],
            "code_predictor": max(_BYTES_PER_VALUE[recipe.code_predictor.layers], tables),
            "embeddings": tables,
        }
        needed = checkpoint.codec.num_bytes() * _CODEC_GROWTH[recipe.codec_decoder]
        for name in self._components:
            num_values = checkpoint.main.num_bytes(_COMPONENTS[name].main) / 2  # stored as bfloat16
            needed += num_values * bytes_per_value.get(name, _BYTES_PER_VALUE["fp32"])
        needed *= _SPACE_MARGIN
        free = shutil.disk_usage(self._directory).free
        if free < needed:
            raise BuildError(
                f"The bundle needs about {needed / _MEGABYTE:.0f} MB, {self._directory.parent} has "
                f"{free // _MEGABYTE} MB free; make room or choose another place "
                "(--output, or the environment variable TMPDIR for verify)."
            )

    def _bytes_to_read(self, name: str) -> int:
        main, codec = _COMPONENTS[name].main, _COMPONENTS[name].codec
        return self._checkpoint.main.num_bytes(main) + self._checkpoint.codec.num_bytes(codec)

    def _start_stage(self, name: str, num_bytes: int) -> None:
        self._stage, self._done_bytes = name, self._stage_end
        self._stage_end += num_bytes

    def _advance(self, num_bytes: int) -> None:
        # Some tensors are read twice; a stage never enters the share of the next one.
        self._done_bytes = min(self._done_bytes + num_bytes, self._stage_end)
        self._progress(self._stage, self._done_bytes / self._total_bytes)

    def _quantize_codec(self) -> None:
        """Replace the codec decoder; its ranges are measured on what the bundle speaks now."""
        self._start_stage("codec_decoder", self._quantize_bytes)
        model = open_bundle(self._directory, default_num_threads())
        requests = trial_requests(model, encode_clip(model), _CALIBRATION_FRAMES, greedy=False)
        codes = np.concatenate(speak(model, requests))
        del model
        checkpoint = self._checkpoint
        build_codec_decoder(checkpoint.codec, checkpoint.codec_decoder, self._directory, codes)

    def _build_component(self, name: str) -> None:
        """Write the files of one component."""
        checkpoint, recipe, directory = self._checkpoint, self._recipe, self._directory
        if name == "talker":
            build_talker(checkpoint.main, checkpoint.talker, recipe, directory)
        elif name == "code_predictor":
            build_code_predictor(checkpoint.main, checkpoint.code_predictor, recipe, directory)
        elif name == "embeddings":
            dtype = np.float16 if recipe.embeddings == "fp16" else np.float32
            build_tables(checkpoint.main, checkpoint.talker, dtype, directory)
            for file in TOKENIZER_FILES:
                shutil.copyfile(checkpoint.directory / file, directory / file)
        elif name == "codec_encoder":
            groups = checkpoint.talker.num_code_groups
            build_codec_encoder(checkpoint.codec, checkpoint.codec_encoder, groups, directory)
        elif name == "speaker_encoder" and checkpoint.speaker_encoder is not None:
            build_speaker_encoder(checkpoint.main, checkpoint.speaker_encoder, directory)
        elif name == "codec_decoder":
            build_codec_decoder(checkpoint.codec, checkpoint.codec_decoder, directory)

    def _check_all_read(self) -> None:
        """Refuse a checkpoint with tensors that no component and no stated reason explains."""
        checkpoint = self._checkpoint
        groups = checkpoint.talker.num_code_groups
        ignored = IGNORED_TENSORS | ignored_encoder_tensors(checkpoint.codec_encoder, groups)
        if checkpoint.speaker_encoder is None:
            # Every checkpoint has the codec's encoder, only Base models a speaker encoder.
            ignored["encoder.*"] = "encodes reference clips, which only Base models take"
        checkpoint.main.finish({})
        checkpoint.codec.finish(ignored)

    def _manifest(self, source_sha256: str) -> Manifest:
        """Return the manifest, still without files."""
        checkpoint, recipe = self._checkpoint, self._recipe
        positions = max_positions(checkpoint.talker)
        precision: dict[str, dict[str, str]] = {
            "talker": asdict(recipe.talker),
            "code_predictor": asdict(recipe.code_predictor),
            "embeddings": {"tables": recipe.embeddings},
            "codec_decoder": {"all": recipe.codec_decoder},
        }
        return Manifest(
            name=self._options.name or model_name(checkpoint),
            recipe=recipe.name,
            precision={name: precision.get(name, {"all": "fp32"}) for name in self._components},
            facts=replace(checkpoint.facts, max_positions=positions),
            source=BundleSource(checkpoint.source_repo, checkpoint.source_revision, source_sha256),
            builder_version=__version__,
            files=(),
            graph_revision=GRAPH_REVISION,
        )


def write_manifest(directory: Path, manifest: Manifest) -> None:
    """Write a manifest that states the size and hash of every file in ``directory``."""
    files = tuple(
        BundleFile(path.name, path.stat().st_size, sha256_of(path))
        for path in sorted(directory.iterdir())
        if path.name != MANIFEST_NAME
    )
    text = replace(manifest, files=files).to_json()
    (directory / MANIFEST_NAME).write_text(text, encoding="utf-8")


def sha256_of(path: Path, on_read: Callable[[int], None] = lambda _bytes: None) -> str:
    """Return the hash of a file; ``on_read`` gets the bytes of every part."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(_HASH_CHUNK_BYTES):
            digest.update(chunk)
            on_read(len(chunk))
    return digest.hexdigest()
