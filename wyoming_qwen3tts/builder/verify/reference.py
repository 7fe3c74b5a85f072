"""The reference: a checkpoint's components in float32, built when needed and then removed."""

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np

from wyoming_qwen3tts.builder.build import build_component
from wyoming_qwen3tts.builder.checkpoint import Checkpoint
from wyoming_qwen3tts.builder.components import needed_bytes
from wyoming_qwen3tts.builder.recipe import uniform_recipe
from wyoming_qwen3tts.builder.talker import max_positions
from wyoming_qwen3tts.builder.verify.parts import OwnParts
from wyoming_qwen3tts.builder.verify.structure import Tell
from wyoming_qwen3tts.builder.weights import Numerics
from wyoming_qwen3tts.errors import BuildError

_MEGABYTE = 1_000_000


class Reference:
    """Builds components of a checkpoint into a temporary directory."""

    def __init__(
        self, checkpoint: Checkpoint, directory: Path, device: str, num_threads: int, tell: Tell
    ) -> None:
        """Take an empty directory; ``device`` is that of the bundle to compare with."""
        self.checkpoint = checkpoint
        self._directory = directory
        self._numerics = _reference_numerics(device)
        self._num_threads = num_threads
        self._tell = tell

    @contextmanager
    def components(self, *names: str) -> Iterator[OwnParts]:
        """Build components and give them; their files are gone when the block ends.

        Raises:
            CheckpointError: A tensor is missing or has another shape.
            BuildError: The disk is full.
        """
        directory = Path(tempfile.mkdtemp(dir=self._directory))
        recipe = uniform_recipe("fp32")
        try:
            for name in names:
                self._tell(f"building {name} in float32")
                build_component(name, self.checkpoint, recipe, self._numerics, directory)
            yield OwnParts(
                directory=directory,
                facts=self.checkpoint.facts,
                max_positions=max_positions(self.checkpoint.talker),
                num_threads=self._num_threads,
            )
        finally:
            shutil.rmtree(directory, ignore_errors=True)


@contextmanager
def reference_for(
    checkpoint: Checkpoint, device: str, num_threads: int, tell: Tell
) -> Iterator[Reference]:
    """Give a reference whose directory is removed at the end.

    Raises:
        BuildError: There is too little space for temporary files.
    """
    # The language side at once; every other component takes less, and is there by itself.
    wanted_bytes = needed_bytes(
        checkpoint, uniform_recipe("fp32"), ("embeddings", "talker", "code_predictor")
    )
    with tempfile.TemporaryDirectory(prefix="qwen3tts-verify-") as name:
        directory = Path(name)
        free_bytes = shutil.disk_usage(directory).free
        if free_bytes < wanted_bytes:
            raise BuildError(
                f"Comparing needs up to {wanted_bytes // _MEGABYTE} MB for a while, "
                f"{directory.parent} has {free_bytes // _MEGABYTE} MB free; name another place "
                "with the environment variable TMPDIR."
            )
        yield Reference(checkpoint, directory, device, num_threads, tell)


def _reference_numerics(device: str) -> Numerics:
    """Return float32 numerics with the scales of the device, so that weights can be compared.

    The scales are powers of two: they change no result.
    """
    if device != "cuda":
        return Numerics()
    return replace(Numerics.half_precision(), compute_type=np.float32, table_type=np.float32)
