"""Random checkpoints in the official layout, for tests, benchmarks and trials.

They speak noise, but every file, name, shape and special id is where the published checkpoints have
it, so that builder and runtime take them like real ones.
"""

from tests.support.random_checkpoint.architecture import (
    PUBLISHED,
    ModelSize,
    Preset,
    RandomCheckpointRecipe,
)
from tests.support.random_checkpoint.writer import RandomCheckpoint

__all__ = ["PUBLISHED", "ModelSize", "Preset", "RandomCheckpoint", "RandomCheckpointRecipe"]
