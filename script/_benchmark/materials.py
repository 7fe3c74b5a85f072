"""Checkpoints of random weights and the bundles built from them: made once and kept.

Beside each directory lies a stamp with a hash of the code that made it. When that code changes, the
directory is made again, so that no measurement is of yesterday's graphs.
"""

import hashlib
import os
import shutil
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final

from script._benchmark import conditioned, published
from script._benchmark.conditioned import ConditionedTensors
from script._benchmark.processes import log
from tests.support.onnx_community_writer import PublishedOptions, write_published_bundle
from tests.support.random_checkpoint import (
    ModelSize,
    Preset,
    RandomCheckpoint,
    RandomCheckpointRecipe,
)
from tests.support.random_checkpoint.architecture import codec_config
from wyoming_qwen3tts.builder.build import BuildOptions, build_bundle
from wyoming_qwen3tts.builder.checkpoint import Checkpoint
from wyoming_qwen3tts.builder.codec_decoder import CodecPrecision, build_codec_decoder
from wyoming_qwen3tts.builder.config import CodecDecoderConfig, read_codec_decoder_config
from wyoming_qwen3tts.builder.recipe import (
    PRECISIONS,
    Precision,
    Recipe,
    load_recipe,
    uniform_recipe,
)
from wyoming_qwen3tts.errors import BuildError
from wyoming_qwen3tts.runtime.manifest import MANIFEST_NAME

_ROOT: Final = Path(__file__).resolve().parent.parent.parent
DEFAULT_DIRECTORY: Final = _ROOT / "data" / "benchmark"
RECIPE_DIRECTORY: Final = _ROOT / "config" / "recipes"
_PACKAGE: Final = _ROOT / "wyoming_qwen3tts"
_BUILDER: Final = _PACKAGE / "builder"
_RANDOM_CHECKPOINT: Final = "random_checkpoint"
_PUBLISHED_LAYOUT: Final = "published_layout"
# Code that leaves no trace in what is measured.
_ENCODERS: Final = ("codec_encoder.py", "speaker_encoder.py", "mel.py", "cli.py", "embedded.py")


def recipe_names() -> list[str]:
    """Return what ``--precision`` takes: the precisions, and the recipe files that come along."""
    return [*PRECISIONS, *sorted(path.stem for path in RECIPE_DIRECTORY.glob("*.yaml"))]


def find_recipe(name: str) -> Recipe:
    """Return the recipe of a precision or of a recipe file that comes along.

    Raises:
        BuildError: There is none of that name.
    """
    for precision in PRECISIONS:
        if name == precision:
            return uniform_recipe(precision)
    path = RECIPE_DIRECTORY / f"{name}.yaml"
    if not path.is_file():
        raise BuildError(f"Unknown precision {name!r}; use one of {', '.join(recipe_names())}.")
    return load_recipe(path)


class Materials:
    """What one size is measured with."""

    def __init__(self, directory: Path, size: ModelSize, preset: Preset) -> None:
        """Keep everything below ``directory``."""
        self._directory = directory / f"{size.lower()}-{preset}"
        self._recipe = RandomCheckpointRecipe(model_size=size, preset=preset, eos_gain=0.0)

    def codec_config(self) -> CodecDecoderConfig:
        """Return the widths of the codec decoder; nothing needs to be made for that."""
        return read_codec_decoder_config(codec_config(self._recipe))

    def checkpoint(self) -> Path:
        """Return the checkpoint's directory."""

        def make(directory: Path) -> None:
            RandomCheckpoint(self._recipe).write(directory)

        sources = (_BUILDER / _RANDOM_CHECKPOINT).glob("*.py")
        return _kept(self._directory / "checkpoint", _hash(sources), make)

    def bundle(self, recipe: Recipe) -> Path:
        """Return the directory of our own bundle."""
        checkpoint = self.checkpoint()

        def make(directory: Path) -> None:
            options = BuildOptions(recipe=recipe, name=f"random-{self._directory.name}")
            build_bundle(checkpoint, directory, options)

        skipped = (_RANDOM_CHECKPOINT, _PUBLISHED_LAYOUT, *_ENCODERS)
        sources = [path for path in _BUILDER.rglob("*.py") if not set(skipped) & set(path.parts)]
        sources.append(_PACKAGE / "model" / "manifest.py")
        digest = _hash(sources, extra=f"{recipe}{_stamp_of(checkpoint)}")
        return _kept(self._directory / f"cpu_{recipe.name}", digest, make)

    def codec_decoders(self, bundle: Path) -> tuple[Path, Path]:
        """Return directories with the float32 and the int8 codec decoder of conditioned weights.

        Args:
            bundle: One of :meth:`bundle`, whose manifest they get.
        """
        return self._codec_decoder(bundle, "fp32"), self._codec_decoder(bundle, "int8")

    def _codec_decoder(self, bundle: Path, precision: CodecPrecision) -> Path:
        checkpoint = Checkpoint.open(self.checkpoint())

        def make(directory: Path) -> None:
            directory.mkdir()
            tensors = ConditionedTensors(checkpoint.codec.path)
            build_codec_decoder(tensors, checkpoint.codec_decoder, directory, precision=precision)
            shutil.copyfile(bundle / MANIFEST_NAME, directory / MANIFEST_NAME)

        sources = [
            *_BUILDER.glob("codec_*.py"),
            _BUILDER / "fast_convolution.py",
            _BUILDER / "graph.py",
        ]
        sources = [path for path in sources if path.name not in _ENCODERS]
        sources.append(Path(conditioned.__file__))
        digest = _hash(sources, extra=_stamp_of(self.checkpoint()))
        return _kept(self._directory / f"codec_decoder_{precision}", digest, make)

    def published_bundle(self, precision: Precision) -> Path:
        """Return the directory of the same model in the published layout."""
        checkpoint = self.checkpoint()

        def make(directory: Path) -> None:
            partial = directory.with_name(f".{directory.name}.partial-{os.getpid()}")
            try:
                write_published_bundle(
                    Checkpoint.open(checkpoint),
                    partial,
                    PublishedOptions(precision=precision, components=published.COMPONENTS),
                )
                partial.rename(directory)
            finally:
                shutil.rmtree(partial, ignore_errors=True)

        sources = [
            *(_BUILDER / _PUBLISHED_LAYOUT).glob("*.py"),
            *(_BUILDER / name for name in ("graph.py", "layers.py", "quantize.py")),
        ]
        digest = _hash(sources, extra=_stamp_of(checkpoint))
        return _kept(self._directory / f"published_{precision}", digest, make)


def _kept(directory: Path, digest: str, make: Callable[[Path], None]) -> Path:
    """Return ``directory``, made anew unless its stamp says ``digest``."""
    stamp = _stamp_path(directory)
    if directory.exists() and _stamp_of(directory) == digest:
        return directory
    log(f"Making {directory} ...")
    started_s = time.monotonic()
    stamp.unlink(missing_ok=True)
    if directory.exists():
        shutil.rmtree(directory)
    directory.parent.mkdir(parents=True, exist_ok=True)
    make(directory)
    stamp.write_text(digest, encoding="ascii")
    log(f"  in {time.monotonic() - started_s:.0f} s")
    return directory


def _stamp_path(directory: Path) -> Path:
    return directory.with_name(f"{directory.name}.stamp")


def _stamp_of(directory: Path) -> str:
    stamp = _stamp_path(directory)
    return stamp.read_text(encoding="ascii") if stamp.exists() else ""


def _hash(sources: Iterable[Path], extra: str = "") -> str:
    """Return a hash of files and text."""
    digest = hashlib.sha256(extra.encode())
    for path in sorted(sources):
        digest.update(path.name.encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()
