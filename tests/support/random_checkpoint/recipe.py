"""What a random checkpoint shall be: type, size, widths, seed."""

from dataclasses import dataclass
from typing import Literal, get_args

from wyoming_qwen3tts.errors import BuildError
from wyoming_qwen3tts.runtime.manifest import MODEL_TYPES, ModelType

ModelSize = Literal["0.6B", "1.7B"]
Preset = Literal["tiny", "real"]

# The Mimi encoder of the tiny preset has 20 quantizers, of which the first are kept.
MAX_CODE_GROUPS = 20

# The combinations that were published.
PUBLISHED: tuple[tuple[ModelSize, ModelType], ...] = (
    ("0.6B", "custom_voice"),
    ("0.6B", "base"),
    ("1.7B", "custom_voice"),
    ("1.7B", "base"),
    ("1.7B", "voice_design"),
)


@dataclass(frozen=True)
class RandomCheckpointRecipe:
    """Everything that decides a random checkpoint; equal recipes give equal files."""

    model_type: ModelType = "custom_voice"
    model_size: ModelSize = "0.6B"
    """Decides the talker's width, whether the code predictor has a projection and, on CustomVoice,
    whether instructions are followed."""
    preset: Preset = "tiny"
    """"tiny" is for tests (about 2.5 MB); "real" has the published dimensions (2.5 or 4.5 GB)."""
    seed: int = 0
    num_code_groups: int = 16
    eos_gain: float = 2.2
    """Factor on the end-of-speech row of the codec head. Plain random weights hardly ever stop; 2.2
    spreads tiny utterances over 2 to 40 frames, 0 never stops before the limit."""

    def __post_init__(self) -> None:
        """Refuse what cannot be written.

        Raises:
            BuildError: A field is out of its range.
        """
        if self.model_type not in MODEL_TYPES:
            raise BuildError(f"Unknown model type {self.model_type!r}; use one of {MODEL_TYPES}.")
        if self.model_size not in get_args(ModelSize):
            raise BuildError(f"Unknown size {self.model_size!r}; use one of {get_args(ModelSize)}.")
        if self.preset not in get_args(Preset):
            raise BuildError(f"Unknown preset {self.preset!r}; use one of {get_args(Preset)}.")
        if not 2 <= self.num_code_groups <= MAX_CODE_GROUPS:
            raise BuildError(
                f"{self.num_code_groups} code groups are not possible; "
                f"use 2 to {MAX_CODE_GROUPS}, the published models have 16."
            )
        if self.seed < 0:
            raise BuildError(f"The seed is {self.seed}; use a number that is not negative.")
