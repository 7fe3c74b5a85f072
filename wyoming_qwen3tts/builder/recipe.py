"""Recipes: the precision of each part of a bundle. Mixed recipes are YAML files."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, Final, Literal, get_args

import yaml

from wyoming_qwen3tts.errors import BuildError

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
        """Refuse values that the graphs cannot have.

        Raises:
            BuildError: A precision or the block size is unknown.
        """
        parts = self.precision_by_part()
        given = {f"{name} {part}": value for name in parts for part, value in parts[name].items()}
        allowed = {
            **dict.fromkeys(given, PRECISIONS),
            "embeddings": ("fp32", "fp16"),
            "codec_decoder": ("fp32", "int8"),
        }
        given |= {"embeddings": self.embeddings, "codec_decoder": self.codec_decoder}
        for key, value in given.items():
            if value not in allowed[key]:
                raise BuildError(
                    f"Recipe {self.name}: {key} is {value!r}, expected {' or '.join(allowed[key])}."
                )
        size = self.block_size
        if not isinstance(size, int) or size < _MIN_BLOCK_SIZE or size & (size - 1):
            raise BuildError(
                f"Recipe {self.name}: block_size is {size!r}, expected a power of two of "
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
    """Read a recipe file; its name is the file's name without the suffix.

    Raises:
        BuildError: The file is unreadable, or a key is unknown, missing or has a wrong value.
    """
    try:
        values = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise BuildError(f"Recipe {path} cannot be read: {error}") from error
    section = {**_checked(values, Recipe, str(path)), "name": path.stem}
    for key, kind in (("talker", TalkerPrecision), ("code_predictor", CodePredictorPrecision)):
        section[key] = kind(**_checked(section[key], kind, f"{path}: {key}"))
    return Recipe(**section)


def _checked(values: Any, kind: type, where: str) -> Mapping[str, Any]:
    """Return ``values`` if its keys are the fields of ``kind`` but for the file's own name."""
    known = {field.name for field in fields(kind)} - {"name"}
    required = known - set(vars(kind))  # a default is an attribute of the class
    if not isinstance(values, Mapping):
        raise BuildError(f"Recipe {where} is not a mapping; it needs {', '.join(sorted(known))}.")
    unknown, missing = set(values) - known, required - set(values)
    if unknown or missing:
        listed = ", ".join(map(str, sorted(unknown or missing)))
        word = "unknown" if unknown else "missing"
        raise BuildError(f"Recipe {where}: {word} {listed}; it needs {', '.join(sorted(known))}.")
    return values
