"""The recipe of the demo voice: ``recipe.yaml`` as frozen dataclasses, read strictly."""

from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Final, TypeVar

import yaml

RECIPE: Final = Path(__file__).with_name("recipe.yaml")

SectionT = TypeVar("SectionT")


@dataclass(frozen=True)
class SpeechRecipe:
    """What is spoken by the source voice."""

    voice: str
    lead_frames: int
    num_texts: int
    texts_per_shard: int
    num_held_out: int
    num_validation: int


@dataclass(frozen=True)
class CodecRecipe:
    """Widths and training of the codec."""

    num_groups: int
    codebook_size: int
    latent_width: int
    encoder_width: int
    encoder_steps: int
    encoder_shards: int
    width: int
    decoder_channels: int
    learning_rate: float
    batch_size: int
    segment_frames: int
    steps: int
    predicted_shards: int
    predicted_share: float


@dataclass(frozen=True)
class LanguageRecipe:
    """Widths and training of talker and code predictor."""

    width: int
    intermediate: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_width: int
    predictor_width: int
    predictor_intermediate: int
    predictor_layers: int
    predictor_heads: int
    predictor_kv_heads: int
    predictor_head_width: int
    text_width: int
    dropout: float
    batch_size: int
    steps: int
    warm_up_steps: int
    learning_rate: float
    history_noise: float
    predictor_share: float


@dataclass(frozen=True)
class Recipe:
    """Everything."""

    seed: int
    speech: SpeechRecipe
    codec: CodecRecipe
    language: LanguageRecipe


def read_recipe(path: Path = RECIPE) -> Recipe:
    """Read a recipe.

    Raises:
        ValueError: A key is missing or unknown.
    """
    values: dict[str, Any] = yaml.safe_load(path.read_text(encoding="utf-8"))
    if set(values) != {field.name for field in fields(Recipe)}:
        raise ValueError(f"{path}: the sections are {', '.join(values)}")
    return Recipe(
        seed=values["seed"],
        speech=_section(SpeechRecipe, values["speech"], path),
        codec=_section(CodecRecipe, values["codec"], path),
        language=_section(LanguageRecipe, values["language"], path),
    )


def _section(kind: type[SectionT], values: dict[str, Any], path: Path) -> SectionT:
    try:
        return kind(**values)
    except TypeError as error:
        raise ValueError(f"{path}: {error}") from error
