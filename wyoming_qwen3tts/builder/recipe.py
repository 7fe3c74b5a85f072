"""Recipes: the precision of each part of a bundle. Mixed recipes are YAML files."""

from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal, cast, get_args

import yaml

from wyoming_qwen3tts.errors import BuildError
from wyoming_qwen3tts.runtime.manifest import decode_strictly

Precision = Literal["fp32", "int8", "int4"]
PRECISIONS: Final[tuple[Precision, ...]] = get_args(Precision)
DEFAULT_PRECISION: Final[Precision] = "int8"
# Inputs that share a scale, in the weight and in the 8-bit activations. One outlier channel spoils
# its whole block, so long blocks cost quality that Gaussian weights do not show.
DEFAULT_BLOCK_SIZE: Final = 64
INT4_BLOCK_SIZE: Final = 32
_MIN_BLOCK_SIZE: Final = 16


@dataclass(frozen=True)
class TalkerPrecision:
    """Layers are attention and MLP; the head scores group 0 and end of speech."""

    layers: Precision
    head: Precision


@dataclass(frozen=True)
class CodePredictorPrecision:
    """Layers are attention and MLP; heads score groups 1 and up; the projection adapts widths."""

    layers: Precision
    heads: Precision
    projection: Precision


@dataclass(frozen=True)
class Recipe:
    """One choice of precisions."""

    name: str
    talker: TalkerPrecision
    code_predictor: CodePredictorPrecision
    embeddings: Literal["fp32", "fp16"]
    """Tables are never quantised: it is audible and saves no time."""
    block_size: int = DEFAULT_BLOCK_SIZE
    codec_decoder: Literal["fp32", "int8"] = "fp32"

    def __post_init__(self) -> None:
        """Refuse block sizes that MatMulNBits does not have, with a BuildError."""
        size = self.block_size
        if size < _MIN_BLOCK_SIZE or size & (size - 1):
            problem = f"block_size is {size}, not a power of two from {_MIN_BLOCK_SIZE} on"
            raise BuildError(f"Recipe {self.name}: {problem}.")


def uniform_recipe(precision: Precision) -> Recipe:
    """Return the recipe that ``--precision`` names.

    At int4 two parts that are read once a frame stay int8: the talker's head, which decides when
    speech ends, and the projection, which all of the predictor depends on.
    """
    finer: Precision = "int8" if precision == "int4" else precision
    return Recipe(
        name=precision,
        talker=TalkerPrecision(layers=precision, head=finer),
        code_predictor=CodePredictorPrecision(layers=precision, heads=precision, projection=finer),
        embeddings="fp32" if precision == "fp32" else "fp16",
        block_size=INT4_BLOCK_SIZE if precision == "int4" else DEFAULT_BLOCK_SIZE,
    )


def load_recipe(path: Path) -> Recipe:
    """Read a recipe file, whose stem is the recipe's name; raise a BuildError if it is wrong."""
    try:
        values = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise BuildError(f"Recipe {path} cannot be read: {error}") from error
    if isinstance(values, dict):
        values = {"name": path.stem, **values}
    try:
        return cast("Recipe", decode_strictly(Recipe, values, f"Recipe {path}"))
    except ValueError as error:
        raise BuildError(f"{error}; config/recipes has examples.") from error
