"""Checkpoints of random weights with the real dimensions, and the bundles built from them.

They are made once and kept. A stamp beside each directory holds a hash of the code that made it;
when that code changes, the directory is made again.
"""

import hashlib
import shutil
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final

from tests.support.onnx_community_writer import PublishedOptions, write_published_bundle
from tests.support.random_checkpoint import (
    ModelSize,
    Preset,
    RandomCheckpoint,
    RandomCheckpointRecipe,
)
from wyoming_qwen3tts.builder.build import BuildOptions, build_bundle
from wyoming_qwen3tts.builder.checkpoint import Checkpoint
from wyoming_qwen3tts.builder.recipe import Recipe

ROOT: Final = Path(__file__).resolve().parents[2]
DEFAULT_DIRECTORY: Final = ROOT / "data" / "benchmark"
PEER_GRAPHS: Final = ("talker_cache", "code_predictor", "tok_decoder")
"""The graphs of an onnx-community bundle that a frame goes through."""


class Fixtures:
    """What one model size is measured with; everything lies below ``directory``."""

    def __init__(self, directory: Path, size: ModelSize, preset: Preset) -> None:
        self._directory = directory / f"{size.lower()}-{preset}"
        # End of speech is suppressed, so that every utterance has the length that was asked for.
        self._recipe = RandomCheckpointRecipe(model_size=size, preset=preset, eos_gain=0.0)

    def checkpoint(self) -> Path:
        """Return the directory of the checkpoint."""
        sources = (ROOT / "tests/support/random_checkpoint").glob("*.py")
        write = RandomCheckpoint(self._recipe).write
        return _cached(self._directory / "checkpoint", sources, "", write)

    def bundle(self, recipe: Recipe) -> Path:
        """Return the directory of our own bundle."""
        checkpoint = self.checkpoint()

        def make(directory: Path) -> None:
            options = BuildOptions(recipe=recipe, name=f"random-{self._directory.name}")
            build_bundle(checkpoint, directory, options)

        sources = (ROOT / "wyoming_qwen3tts/builder").glob("*.py")
        return _cached(self._directory / f"cpu_{recipe.name}", sources, str(recipe), make)

    def peer_bundle(self, recipe: Recipe) -> Path:
        """Return the same weights in the onnx-community layout."""
        checkpoint = self.checkpoint()
        precision = recipe.talker.layers

        def make(directory: Path) -> None:
            options = PublishedOptions(precision=precision, components=PEER_GRAPHS)
            write_published_bundle(Checkpoint.open(checkpoint), directory, options)

        sources = (ROOT / "tests/support/onnx_community_writer").glob("*.py")
        return _cached(self._directory / f"onnx_community_{precision}", sources, "", make)


def _cached(
    directory: Path, sources: Iterable[Path], extra: str, make: Callable[[Path], object]
) -> Path:
    digest = hashlib.sha256(extra.encode())
    for path in sorted(sources):
        digest.update(path.read_bytes())
    stamp = directory.with_name(f"{directory.name}.stamp")
    if stamp.exists() and stamp.read_text() == digest.hexdigest():
        return directory
    print(f"Making {directory} ...", file=sys.stderr)
    stamp.unlink(missing_ok=True)
    shutil.rmtree(directory, ignore_errors=True)
    directory.parent.mkdir(parents=True, exist_ok=True)
    make(directory)
    stamp.write_text(digest.hexdigest())
    return directory
