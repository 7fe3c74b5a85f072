"""Builds a bundle from a checkpoint: the components, their tensors, and the order of work."""

import hashlib
import shutil
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
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
from wyoming_qwen3tts.builder.tables import TABLE_FILES, build_tables
from wyoming_qwen3tts.builder.trial import encode_clip, speak, trial_requests
from wyoming_qwen3tts.errors import BuildError
from wyoming_qwen3tts.files import atomic_directory
from wyoming_qwen3tts.runtime.bundle import open_bundle
from wyoming_qwen3tts.runtime.manifest import (
    FORMAT_VERSION,
    MANIFEST_NAME,
    BundleFile,
    BundleSource,
    Manifest,
    QuantizationReport,
    TalkerLayout,
    read_manifest,
)
from wyoming_qwen3tts.runtime.tokenizer import TOKENIZER_FILES
from wyoming_qwen3tts.threads import default_num_threads

Progress = Callable[[str, float], None]
"""Called with the stage and the finished fraction of the whole build, 0 to 1."""

_DEVICE: Final = "cpu"
_HASH_CHUNK_BYTES: Final = 1 << 20
_MEGABYTE: Final = 1_000_000
# Enough for the past of every convolution and most of attention to fill; 8 s of sound.
_CALIBRATION_FRAMES: Final = 96


@dataclass(frozen=True)
class Component:
    """Files and tensors of one component. Patterns as in :meth:`TensorFile.finish`."""

    files: tuple[str, ...]
    main: tuple[str, ...] = ()
    codec: tuple[str, ...] = ()
    only_base: bool = False
    """Whether only Base models have it: it encodes reference clips."""


def _graph_files(name: str) -> tuple[str, ...]:
    return (f"{name}.onnx", f"{name}.onnx.data")


COMPONENTS: Final[Mapping[str, Component]] = {
    "talker": Component(
        _graph_files("talker"),
        main=("talker.model.layers.*", "talker.model.norm.*", "talker.codec_head.*"),
    ),
    "code_predictor": Component(
        _graph_files("code_predictor"),
        main=("talker.code_predictor.*", "talker.model.codec_embedding.*"),
    ),
    "embeddings": Component(
        (*TABLE_FILES, *TOKENIZER_FILES),
        main=(
            "talker.model.*_embedding.*",
            "talker.text_projection.*",
            "talker.code_predictor.model.codec_embedding.*",
        ),
    ),
    "codec_encoder": Component(_graph_files("codec_encoder"), codec=("encoder.*",), only_base=True),
    "speaker_encoder": Component(
        _graph_files("speaker_encoder"), main=("speaker_encoder.*",), only_base=True
    ),
    "codec_decoder": Component(_graph_files("codec_decoder"), codec=("decoder.*",)),
}
"""Name, as ``--components`` takes it -> component, in the order of building."""

# A quantised weight also has a float32 scale per block; the margin covers those.
_BYTES_PER_VALUE: Final = {"fp32": 4.0, "fp16": 2.0, "int8": 1.0, "int4": 0.5}
_SPACE_MARGIN: Final = 1.15
# Winograd filters are stored transformed (525 MB for 457 MB of tensors); the int8 graph is
# calibrated on a float32 graph, which lies beside it until then.
_CODEC_GROWTH: Final = {"fp32": 1.15, "int8": 2.3}
# A float32 graph is built to speak with, another to measure ranges, then the int8 graph.
_INT8_CODEC_PASSES: Final = 2


@dataclass(frozen=True)
class BuildOptions:
    """What to build."""

    recipe: Recipe = field(default_factory=lambda: uniform_recipe(DEFAULT_PRECISION))
    components: tuple[str, ...] = ()
    """Rebuild only these in an existing bundle; empty for all."""
    force: bool = False
    """Replace an existing bundle."""
    name: str | None = None
    """Name of the model in the manifest; None takes :func:`model_name`."""


def model_name(checkpoint: Checkpoint) -> str:
    """Return the repository's name in lower case, or a name made of size and type."""
    for candidate in (checkpoint.source_repo, checkpoint.directory.resolve().name):
        if candidate is not None and "qwen3-tts" in candidate.lower():
            return candidate.lower().rsplit("/", 1)[-1]
    facts = checkpoint.facts
    return f"qwen3-tts-12hz-{facts.model_size}-{facts.model_type.replace('_', '')}".lower()


def default_output(checkpoint: Checkpoint, options: BuildOptions, data_dir: Path) -> Path:
    """Return ``data_dir/<model>/cpu_<recipe>``."""
    return data_dir / (options.name or model_name(checkpoint)) / f"{_DEVICE}_{options.recipe.name}"


def build_bundle(
    checkpoint_dir: Path,
    output: Path,
    options: BuildOptions | None = None,
    progress: Progress = lambda _stage, _fraction: None,
) -> Path:
    """Build the bundle of a checkpoint and return ``output``.

    Args:
        checkpoint_dir: A checkpoint in the official layout.
        output: The bundle's directory; it appears when everything is written.
        options: What to build; int8 by default.
        progress: Called as the build advances.

    Raises:
        CheckpointError: The checkpoint is incomplete, damaged or of an unknown layout.
        BuildError: The bundle exists, there is too little space, or the options do not fit.
    """
    build = _Build(Checkpoint.open(checkpoint_dir), output, options or BuildOptions(), progress)
    try:
        build.run()
    except OSError as error:
        raise BuildError(
            f"The bundle {output} cannot be written ({error}); free some space, or choose another "
            "place with --output."
        ) from error
    return output


def needed_bytes(checkpoint: Checkpoint, recipe: Recipe, components: Collection[str]) -> int:
    """Return an estimate, on the high side, of the size of ``components``."""
    bytes_per_value = {
        "talker": _BYTES_PER_VALUE[recipe.talker.layers],
        "code_predictor": max(
            _BYTES_PER_VALUE[recipe.code_predictor.layers], _BYTES_PER_VALUE[recipe.embeddings]
        ),
        "embeddings": _BYTES_PER_VALUE[recipe.embeddings],
    }
    total = 0.0
    for name in components:
        num_values = checkpoint.main.num_bytes(COMPONENTS[name].main) / 2  # stored as bfloat16
        total += num_values * bytes_per_value.get(name, _BYTES_PER_VALUE["fp32"])
        growth = _CODEC_GROWTH[recipe.codec_decoder]
        total += checkpoint.codec.num_bytes(COMPONENTS[name].codec) * growth
    return int(total * _SPACE_MARGIN)


class _Build:
    """One build and its progress."""

    def __init__(
        self, checkpoint: Checkpoint, output: Path, options: BuildOptions, progress: Progress
    ) -> None:
        self._checkpoint = checkpoint
        self._output = output
        self._options = options
        self._recipe = options.recipe
        self._components = self._chosen_components()
        self._old = self._old_manifest()
        self._reports: list[QuantizationReport] = []
        self._progress = progress
        self._stage = ""
        self._done_bytes = self._stage_end = 0
        self._total_bytes = checkpoint.main.path.stat().st_size + sum(
            self._bytes_to_read(name) for name in self._components
        )
        if self._has_int8_codec:
            self._total_bytes += self._bytes_to_read("codec_decoder") * _INT8_CODEC_PASSES
        checkpoint.main.on_read = checkpoint.codec.on_read = self._advance

    def run(self) -> None:
        """Build everything into place.

        Raises:
            OSError: The disk is full or cannot be written.
        """
        needed = needed_bytes(self._checkpoint, self._recipe, self._components)
        with atomic_directory(self._output) as directory:
            # Leftovers of killed builds are gone by now.
            check_free_space(directory, needed)
            source = self._source()
            if self._old is not None:
                self._link_other_files(self._old, directory)
            for name in self._components:
                self._start_stage(name, self._bytes_to_read(name))
                self._reports += self._build_component(name, directory)
            self._check_all_read()
            write_manifest(directory, lambda files: self._manifest(files, source))
            if self._has_int8_codec:
                self._quantize_codec(directory)
                write_manifest(directory, lambda files: self._manifest(files, source))
        self._progress("done", 1.0)

    def _chosen_components(self) -> tuple[str, ...]:
        is_base = self._checkpoint.speaker_encoder is not None
        available = [name for name in COMPONENTS if is_base or not COMPONENTS[name].only_base]
        for name in self._options.components:
            if name not in available:
                raise BuildError(
                    f"This model does not have the component {name!r}; it has "
                    f"{', '.join(available)}."
                )
        wanted = self._options.components or available
        return tuple(name for name in available if name in wanted)

    def _old_manifest(self) -> Manifest | None:
        """Return the manifest of the bundle to change, None for a new one."""
        if not self._options.components:
            if self._output.exists() and not self._options.force:
                raise BuildError(f"{self._output} exists already; --force builds it again.")
            return None
        if not (self._output / MANIFEST_NAME).exists():
            raise BuildError(
                f"{self._output} is not a bundle yet; build all components before single ones."
            )
        return read_manifest(self._output)

    def _bytes_to_read(self, name: str) -> int:
        component, checkpoint = COMPONENTS[name], self._checkpoint
        main, codec = component.main, component.codec
        return checkpoint.main.num_bytes(main) + checkpoint.codec.num_bytes(codec)

    def _start_stage(self, name: str, num_bytes: int) -> None:
        self._stage, self._done_bytes = name, self._stage_end
        self._stage_end += num_bytes

    def _advance(self, num_bytes: int) -> None:
        # Some tensors are read twice; a stage never enters the share of the next one.
        self._done_bytes = min(self._done_bytes + num_bytes, self._stage_end)
        self._progress(self._stage, self._done_bytes / self._total_bytes)

    def _source(self) -> BundleSource:
        self._start_stage("checkpoint", self._checkpoint.main.path.stat().st_size)
        digest = sha256_of(self._checkpoint.main.path, self._advance)
        if self._old is not None and self._old.source.model_sha256 != digest:
            raise BuildError(
                f"{self._output} was built from another checkpoint; build all components."
            )
        return BundleSource(self._checkpoint.source_repo, self._checkpoint.source_revision, digest)

    def _link_other_files(self, old: Manifest, directory: Path) -> None:
        """Put the files of the components that stay into the new directory, without copying."""
        rebuilt = {file for name in self._components for file in COMPONENTS[name].files}
        for file in old.files:
            if file.path in rebuilt:
                continue
            try:
                (directory / file.path).hardlink_to(self._output / file.path)
            except OSError:  # a file system without hard links
                shutil.copy2(self._output / file.path, directory / file.path)

    @property
    def _has_int8_codec(self) -> bool:
        return "codec_decoder" in self._components and self._recipe.codec_decoder == "int8"

    def _quantize_codec(self, directory: Path) -> None:
        """Replace the float32 codec decoder of a complete bundle by an int8 one.

        The ranges of its convolutions are measured on what the bundle speaks: random codes give
        other, wider ranges than speech.
        """
        codec, config = self._checkpoint.codec, self._checkpoint.codec_decoder
        self._start_stage(
            "codec_decoder", self._bytes_to_read("codec_decoder") * _INT8_CODEC_PASSES
        )
        model = open_bundle(directory, default_num_threads())
        requests = trial_requests(model, encode_clip(model), _CALIBRATION_FRAMES, greedy=False)
        codes = np.concatenate(speak(model, requests))
        del model
        build_codec_decoder(codec, config, directory, codes)

    def _build_component(self, name: str, directory: Path) -> tuple[QuantizationReport, ...]:
        """Write the files of one component.

        Raises:
            CheckpointError: A tensor is missing or has another shape.
            BuildError: A weight cannot be stored in this precision.
        """
        checkpoint, recipe = self._checkpoint, self._recipe
        if name == "talker":
            return build_talker(checkpoint.main, checkpoint.talker, recipe, directory)
        if name == "code_predictor":
            config = checkpoint.code_predictor
            return build_code_predictor(checkpoint.main, config, recipe, directory)
        if name == "embeddings":
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
        return ()

    def _check_all_read(self) -> None:
        """Refuse a checkpoint with tensors that no component and no stated reason explains."""
        checkpoint = self._checkpoint
        ignored_main: dict[str, str] = {}
        ignored_codec = {
            **IGNORED_TENSORS,
            **ignored_encoder_tensors(checkpoint.codec_encoder, checkpoint.talker.num_code_groups),
        }
        for name, component in COMPONENTS.items():
            if name in self._components:
                continue
            if component.only_base and checkpoint.speaker_encoder is None:
                # Every checkpoint has the codec's encoder, only Base models a speaker encoder.
                reason = "encodes reference clips, which only Base models take"
            else:
                reason = "belongs to a component that is not built now"
                ignored_main.update(dict.fromkeys(component.main, reason))
            ignored_codec.update(dict.fromkeys(component.codec, reason))
        checkpoint.main.finish(ignored_main)
        checkpoint.codec.finish(ignored_codec)

    def _manifest(self, files: tuple[BundleFile, ...], source: BundleSource) -> Manifest:
        checkpoint, options, old = self._checkpoint, self._options, self._old
        transformer = checkpoint.talker.transformer
        positions = max_positions(checkpoint.talker)
        parts: dict[str, dict[str, str]] = {
            **self._recipe.precision_by_part(),
            "embeddings": {"tables": self._recipe.embeddings},
            "codec_decoder": {"all": self._recipe.codec_decoder},
            **{name: {"all": "fp32"} for name in COMPONENTS if COMPONENTS[name].only_base},
        }
        precision = {name: parts[name] for name in self._components}
        reports, recipe = tuple(self._reports), self._recipe.name
        if old is not None:
            precision = {**old.precision, **precision}
            kept = (entry for entry in old.quantization if entry.component not in self._components)
            reports = (*kept, *reports)
            recipe = recipe if recipe == old.recipe else f"{old.recipe}+{recipe}"
        return Manifest(
            format_version=FORMAT_VERSION,
            name=options.name or (old.name if old else model_name(checkpoint)),
            device=_DEVICE,
            recipe=recipe,
            precision=precision,
            facts=replace(checkpoint.facts, max_positions=positions),
            talker=TalkerLayout(
                num_layers=transformer.num_layers,
                num_kv_heads=transformer.num_kv_heads,
                head_size=transformer.head_size,
                max_positions=positions,
                cache_type="float32",
            ),
            source=source,
            builder_version=__version__,
            files=files,
            quantization=reports,
        )


def check_free_space(directory: Path, needed: int) -> None:
    """Check that the file system of ``directory`` has ``needed`` bytes free.

    Raises:
        BuildError: It has less; both numbers are in the message.
    """
    free = shutil.disk_usage(directory).free
    if free < needed:
        raise BuildError(
            f"The bundle needs about {needed // _MEGABYTE} MB, {directory.parent} has "
            f"{free // _MEGABYTE} MB free; make room or choose another place "
            "(--output, or the environment variable TMPDIR for verify)."
        )


def write_manifest(
    directory: Path, manifest_of: Callable[[tuple[BundleFile, ...]], Manifest]
) -> None:
    """Hash every file in ``directory`` and write the manifest that states them."""
    files = tuple(
        BundleFile(path.name, path.stat().st_size, sha256_of(path))
        for path in sorted(directory.iterdir())
        if path.name != MANIFEST_NAME
    )
    (directory / MANIFEST_NAME).write_text(manifest_of(files).to_json(), encoding="utf-8")


def sha256_of(path: Path, progress: Callable[[int], None] = lambda _bytes: None) -> str:
    """Return the hash of a file; ``progress`` gets the bytes of every part."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(_HASH_CHUNK_BYTES):
            digest.update(chunk)
            progress(len(chunk))
    return digest.hexdigest()
