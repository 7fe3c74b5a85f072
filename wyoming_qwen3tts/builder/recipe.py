"""Recipes: the precision of each part of a bundle. Mixed recipes are YAML files."""

from dataclasses import asdict, dataclass
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
    """Precision of the talker's weights."""

    layers: Precision
    """Attention and MLP."""
    head: Precision
    """Scores of group 0 and of end of speech."""


@dataclass(frozen=True)
class CodePredictorPrecision:
    """Precision of the code predictor's weights."""

    layers: Precision
    """Attention and MLP, read once per group and frame."""
    heads: Precision
    """Scores of groups 1 and up."""
    projection: Precision
    """Talker width to predictor width, where the model has it."""


@dataclass(frozen=True)
class Recipe:
    """One choice of precisions."""

    name: str
    talker: TalkerPrecision
    code_predictor: CodePredictorPrecision
    embeddings: Literal["fp32", "fp16"]
    """Tables are never quantised: it is audible and saves no time."""
    block_size: int = DEFAULT_BLOCK_SIZE
    """Inputs that share a scale."""
    codec_decoder: Literal["fp32", "int8"] = "fp32"
    """int8 stores the convolutions that take most of its time in 8 bits."""

    def __post_init__(self) -> None:
        """Refuse block sizes that MatMulNBits does not have, with a BuildError."""
        if self.block_size < _MIN_BLOCK_SIZE or self.block_size & (self.block_size - 1):
            raise BuildError(
                f"Recipe {self.name}: block_size is {self.block_size}, expected a power of two of "
                f"at least {_MIN_BLOCK_SIZE}."
            )

    def precision_by_part(self) -> dict[str, dict[str, str]]:
        """Return component -> part -> precision of talker and code predictor."""
        return {"talker": asdict(self.talker), "code_predictor": asdict(self.code_predictor)}


def uniform_recipe(precision: Precision) -> Recipe:
    """Return the recipe that ``--precision`` names.

    At int4 the talker's head stays int8, since it decides when speech ends, and so does the
    projection, which all of the predictor depends on; both are read once a frame.
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
    """Read a recipe file; the file's name without the suffix is the recipe's name.

    Raises:
        BuildError: The file is unreadable, or a key is unknown, missing or has a wrong value.
    """
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
