"""Builds a whole bundle from a checkpoint: the order of work, and which tensors belong to what."""

import shutil
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from wyoming_qwen3tts import __version__
from wyoming_qwen3tts.builder.bundle_writer import bundle_directory, finish_bundle, sha256_of
from wyoming_qwen3tts.builder.checkpoint import TOKENIZER_FILES, Checkpoint
from wyoming_qwen3tts.builder.code_predictor import build_code_predictor
from wyoming_qwen3tts.builder.codec_decoder import IGNORED_TENSORS, build_codec_decoder
from wyoming_qwen3tts.builder.codec_encoder import build_codec_encoder, ignored_encoder_tensors
from wyoming_qwen3tts.builder.components import CLONING, COMPONENTS, needed_bytes
from wyoming_qwen3tts.builder.recipe import DEFAULT_PRECISION, Recipe, uniform_recipe
from wyoming_qwen3tts.builder.speaker_encoder import build_speaker_encoder
from wyoming_qwen3tts.builder.tables import build_tables
from wyoming_qwen3tts.builder.talker import build_talker, max_positions
from wyoming_qwen3tts.builder.weights import Numerics
from wyoming_qwen3tts.errors import BuildError
from wyoming_qwen3tts.runtime.manifest import (
    FORMAT_VERSION,
    MANIFEST_NAME,
    BundleFile,
    BundleSource,
    Device,
    Manifest,
    QuantizationReport,
    TalkerLayout,
    read_manifest,
)

Progress = Callable[[str, float], None]
"""Called with what is being done and the finished fraction of the whole build, 0 to 1."""


_NO_CLONING = "encodes reference clips, which only Base models take"
_NOT_CHOSEN = "belongs to a component that is not built now"


@dataclass(frozen=True)
class BuildOptions:
    """What to build."""

    recipe: Recipe = field(default_factory=lambda: uniform_recipe(DEFAULT_PRECISION))
    device: Device = "cpu"
    components: tuple[str, ...] = ()
    """Rebuild only these in an existing bundle; empty for all."""
    force: bool = False
    """Replace an existing bundle."""
    name: str | None = None
    """Name of the model in the manifest; None takes :func:`model_name`."""


def model_name(checkpoint: Checkpoint) -> str:
    """Return the model's name: the repository's in lower case, else one made of its facts."""
    for candidate in (checkpoint.source_repo, checkpoint.directory.resolve().name):
        if candidate is not None and "qwen3-tts" in candidate.lower():
            return candidate.lower().rsplit("/", 1)[-1]
    facts = checkpoint.facts
    return f"qwen3-tts-12hz-{facts.model_size}-{facts.model_type.replace('_', '')}".lower()


def default_output(checkpoint: Checkpoint, options: BuildOptions, data_dir: Path) -> Path:
    """Return ``data_dir/<model>/<device>_<recipe>``."""
    name = options.name or model_name(checkpoint)
    return data_dir / name / f"{options.device}_{options.recipe.name}"


def build_bundle(
    checkpoint_dir: Path,
    output: Path,
    options: BuildOptions | None = None,
    progress: Progress = lambda _stage, _fraction: None,
) -> Path:
    """Build the bundle of a checkpoint.

    Args:
        checkpoint_dir: A checkpoint in the official layout.
        output: The bundle's directory; it appears when everything is written.
        options: What to build; int8 for the CPU by default.
        progress: Told how far the build is.

    Returns:
        ``output``.

    Raises:
        CheckpointError: The checkpoint is incomplete, damaged or of an unknown layout.
        BuildError: The bundle exists, there is too little space, or the options do not fit.
    """
    checkpoint = Checkpoint.open(checkpoint_dir)
    _Build(checkpoint, output, options or BuildOptions(), progress).run()
    return output


def build_component(
    name: str, checkpoint: Checkpoint, recipe: Recipe, numerics: Numerics, directory: Path
) -> tuple[QuantizationReport, ...]:
    """Write the files of one of :data:`COMPONENTS` into ``directory``.

    Raises:
        CheckpointError: A tensor is missing or has another shape.
        BuildError: A weight cannot be stored in the wanted precision.
    """
    if name == "talker":
        return build_talker(checkpoint.main, checkpoint.talker, recipe.talker, numerics, directory)
    if name == "code_predictor":
        return build_code_predictor(
            checkpoint.main, checkpoint.code_predictor, recipe.code_predictor, numerics, directory
        )
    if name == "embeddings":
        build_tables(checkpoint.main, checkpoint.talker, numerics.table_type, directory)
        for file in TOKENIZER_FILES:
            shutil.copyfile(checkpoint.directory / file, directory / file)
    elif name == "codec_decoder":
        build_codec_decoder(
            checkpoint.codec,
            checkpoint.codec_decoder,
            directory,
            precision="int8" if recipe.codec_decoder == "int8" else "fp32",
        )
    elif name == "codec_encoder":
        groups = checkpoint.talker.num_code_groups
        build_codec_encoder(checkpoint.codec, checkpoint.codec_encoder, groups, directory)
    elif checkpoint.speaker_encoder is not None:
        build_speaker_encoder(checkpoint.main, checkpoint.speaker_encoder, directory)
    return ()


class _Build:
    """One build: the checkpoint, the wishes, and how far it is."""

    def __init__(
        self, checkpoint: Checkpoint, output: Path, options: BuildOptions, progress: Progress
    ) -> None:
        self._checkpoint = checkpoint
        self._output = output
        self._options = options
        self._progress = progress
        self._numerics = _numerics(options)
        self._components = self._chosen_components()
        self._old = self._old_manifest()
        self._reports: list[QuantizationReport] = []
        self._stage = ""
        self._done_bytes = 0
        self._total_bytes = self._bytes_to_read()
        checkpoint.main.on_read = checkpoint.codec.on_read = self._advance

    def run(self) -> None:
        """Build everything into place."""
        with bundle_directory(
            self._output, needed_bytes(self._checkpoint, self._options.recipe, self._components)
        ) as directory:
            source = self._source()
            if self._old is not None:
                self._link_other_files(self._old, directory)
            for component in self._components:
                self._stage = component
                self._reports += build_component(
                    component, self._checkpoint, self._options.recipe, self._numerics, directory
                )
            self._check_all_read()
            finish_bundle(directory, lambda files: self._manifest(files, source))
        self._progress("done", 1.0)

    def _chosen_components(self) -> tuple[str, ...]:
        available = [
            name
            for name in COMPONENTS
            if name not in CLONING or self._checkpoint.speaker_encoder is not None
        ]
        for name in self._options.components:
            if name not in available:
                raise BuildError(
                    f"This model has no component {name!r}; it has {', '.join(available)}."
                )
        wanted = self._options.components or available
        return tuple(name for name in available if name in wanted)

    def _old_manifest(self) -> Manifest | None:
        """Return the manifest of the bundle to change, None for a new one."""
        exists = (self._output / MANIFEST_NAME).exists()
        if not self._options.components:
            if self._output.exists() and not self._options.force:
                raise BuildError(f"{self._output} exists already; --force builds it again.")
            return None
        if not exists:
            raise BuildError(
                f"{self._output} is no bundle yet; build all components before single ones."
            )
        old = read_manifest(self._output)
        if old.device != self._options.device:
            raise BuildError(
                f"{self._output} was built for {old.device}, not for {self._options.device}; "
                "build all components for another device."
            )
        return old

    def _bytes_to_read(self) -> int:
        """Return the checkpoint's bytes that the build reads, the hash included."""
        checkpoint = self._checkpoint
        total = checkpoint.main.path.stat().st_size
        for name in self._components:
            component = COMPONENTS[name]
            total += checkpoint.main.num_bytes(component.main)
            total += checkpoint.codec.num_bytes(component.codec)
        return total

    def _advance(self, num_bytes: int) -> None:
        self._done_bytes += num_bytes
        self._progress(self._stage, min(self._done_bytes / self._total_bytes, 1.0))

    def _source(self) -> BundleSource:
        self._stage = "checkpoint"
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

    def _check_all_read(self) -> None:
        """Refuse a checkpoint with tensors that no component and no stated reason explains."""
        checkpoint = self._checkpoint
        groups = checkpoint.talker.num_code_groups
        ignored_main: dict[str, str] = {}
        ignored_codec = {
            **IGNORED_TENSORS,
            **ignored_encoder_tensors(checkpoint.codec_encoder, groups),
        }
        for name, component in COMPONENTS.items():
            if name in self._components:
                continue
            is_missing = name in CLONING and checkpoint.speaker_encoder is None
            reason = _NO_CLONING if is_missing else _NOT_CHOSEN
            if not (is_missing and name == "speaker_encoder"):
                ignored_main.update(dict.fromkeys(component.main, reason))
            ignored_codec.update(dict.fromkeys(component.codec, reason))
        checkpoint.main.finish(ignored_main)
        checkpoint.codec.finish(ignored_codec)

    def _manifest(self, files: tuple[BundleFile, ...], source: BundleSource) -> Manifest:
        checkpoint, options, old = self._checkpoint, self._options, self._old
        transformer = checkpoint.talker.transformer
        positions = max_positions(checkpoint.talker)
        precision = self._precision_by_part()
        reports = tuple(self._reports)
        recipe = options.recipe.name
        if old is not None:
            precision = {**old.precision, **precision}
            kept = (entry for entry in old.quantization if entry.component not in self._components)
            reports = (*kept, *reports)
            recipe = recipe if recipe == old.recipe else f"{old.recipe}+{recipe}"
        return Manifest(
            format_version=FORMAT_VERSION,
            name=options.name or (old.name if old else model_name(checkpoint)),
            device=options.device,
            recipe=recipe,
            precision=precision,
            facts=replace(checkpoint.facts, max_positions=positions),
            talker=TalkerLayout(
                num_layers=transformer.num_layers,
                num_kv_heads=transformer.num_kv_heads,
                head_size=transformer.head_size,
                max_positions=positions,
                cache_type="float16" if self._numerics.compute_type is np.float16 else "float32",
            ),
            source=source,
            builder_version=__version__,
            files=files,
            quantization=reports,
        )

    def _precision_by_part(self) -> dict[str, dict[str, str]]:
        """Return component -> part -> precision of what is built now."""
        parts = self._options.recipe.precision_by_part()
        parts["embeddings"] = {"tables": self._options.recipe.embeddings}
        parts["codec_decoder"] = {"all": self._options.recipe.codec_decoder}
        for name in CLONING:
            parts[name] = {"all": "fp32"}
        return {name: parts[name] for name in self._components}


def _numerics(options: BuildOptions) -> Numerics:
    recipe = options.recipe
    if options.device == "cuda":
        precisions = {
            value for parts in recipe.precision_by_part().values() for value in parts.values()
        }
        if "fp32" in precisions:
            raise BuildError("On CUDA the graphs compute in float16; choose fp16, int8 or int4.")
        return Numerics.half_precision(recipe.block_size)
    return Numerics(
        block_size=recipe.block_size,
        table_type=np.float16 if recipe.embeddings == "fp16" else np.float32,
    )
