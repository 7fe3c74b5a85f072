"""Random checkpoints in the official layout, for tests, benchmarks and first starts.

They speak noise, but every file, name, shape and special id is where the published checkpoints have
it, so that builder and runtime take them like real ones. Needs numpy alone.
"""

from tests.support.random_checkpoint.recipe import (
    PUBLISHED,
    ModelSize,
    Preset,
    RandomCheckpointRecipe,
)
from tests.support.random_checkpoint.writer import RandomCheckpoint

__all__ = ["PUBLISHED", "ModelSize", "Preset", "RandomCheckpoint", "RandomCheckpointRecipe"]
