"""The embedded model of random weights: a tiny seeded checkpoint, built like any other."""

import tempfile
from pathlib import Path

from tests.support.random_checkpoint import RandomCheckpoint, RandomCheckpointRecipe
from wyoming_qwen3tts.builder.build import BuildOptions, build_bundle
from wyoming_qwen3tts.builder.recipe import uniform_recipe


def build_random_bundle(directory: Path, *, name: str, seed: int) -> None:
    """Write its bundle into ``directory``.

    Raises:
        BuildError: The directory cannot be written, or has too little space.
    """
    directory.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="wyoming-qwen3tts-") as scratch:
        checkpoint = Path(scratch) / "checkpoint"
        recipe = RandomCheckpointRecipe(
            model_type="custom_voice",
            model_size="0.6B",
            seed=seed,
            preset="tiny",
            # Longer than what suits tests: it is there to be heard.
            eos_gain=0.8,
        )
        RandomCheckpoint(recipe).write(checkpoint)
        options = BuildOptions(recipe=uniform_recipe("fp32"), name=name, force=True)
        build_bundle(checkpoint, directory, options)
