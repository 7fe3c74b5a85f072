"""Tiny seeded checkpoints and bundles, written by the project's own code."""

import tempfile
from pathlib import Path

from tests.support.random_checkpoint import (
    PUBLISHED,
    ModelSize,
    RandomCheckpoint,
    RandomCheckpointRecipe,
)
from wyoming_qwen3tts.builder.build import BuildOptions, build_bundle
from wyoming_qwen3tts.builder.recipe import uniform_recipe
from wyoming_qwen3tts.runtime.manifest import ModelType

# Checkpoint name -> its size and type, as the five published repositories.
TINY_CHECKPOINTS: dict[str, tuple[ModelSize, ModelType]] = {
    f"{size}-{model_type}": (size, model_type) for size, model_type in PUBLISHED
}


def write_tiny_checkpoint(
    directory: Path,
    model_type: ModelType = "custom_voice",
    model_size: ModelSize = "0.6B",
    *,
    seed: int = 0,
    num_code_groups: int = 16,
    eos_gain: float = 2.2,
) -> Path:
    """Write a tiny checkpoint of about 2.5 MB (50 ms) and return its directory.

    Args:
        directory: Must not exist, or be empty.
        model_type: Decides presets, dialects and whether there is a speaker encoder.
        model_size: "1.7B" has a talker wider than the code predictor.
        seed: Equal seeds give equal bytes.
        num_code_groups: 2 to 20; published models have 16.
        eos_gain: Factor on the end-of-speech row; 0 makes every utterance run to its limit.
    """
    recipe = RandomCheckpointRecipe(
        model_type=model_type,
        model_size=model_size,
        seed=seed,
        num_code_groups=num_code_groups,
        eos_gain=eos_gain,
    )
    RandomCheckpoint(recipe).write(directory)
    return directory


def write_tiny_bundle(directory: Path, name: str = "tiny") -> Path:
    """Build the float32 bundle of a tiny CustomVoice model: nine voices, ten languages, noise."""
    with tempfile.TemporaryDirectory() as scratch:
        # A low gain gives utterances long enough to hear.
        checkpoint = write_tiny_checkpoint(Path(scratch) / "checkpoint", eos_gain=0.8)
        options = BuildOptions(recipe=uniform_recipe("fp32"), name=name, force=True)
        return build_bundle(checkpoint, directory, options)
