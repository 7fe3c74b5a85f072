"""Recipes: which precision each part of a bundle has. Mixed recipes are data, not code."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, Final, Literal, get_args

import yaml

from wyoming_qwen3tts.errors import BuildError

Precision = Literal["fp32", "fp16", "int8", "int4"]
PRECISIONS: Final[tuple[Precision, ...]] = get_args(Precision)
DEFAULT_PRECISION: Final[Precision] = "int8"
# Quantised weights share one scale per this many inputs (fewer where the width does not divide).
DEFAULT_BLOCK_SIZE: Final = 128
# Eight bits bear longer blocks (43.4 in place of 44.1 dB), which are read and added up faster.
_INT8_BLOCK_SIZE: Final = 256
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
    embeddings: Precision
    """fp32 or fp16: quantised embeddings hurt audibly and save no time."""
    block_size: int = DEFAULT_BLOCK_SIZE
    codec_decoder: Precision = "fp32"
    """fp32, or int8 for the convolutions that take most of its time."""

    def __post_init__(self) -> None:
        """Refuse what the graphs cannot be.

        Raises:
            BuildError: A precision or the block size is unknown.
        """
        if self.embeddings not in ("fp32", "fp16"):
            raise BuildError(
                f"Recipe {self.name}: embeddings are {self.embeddings!r}, expected fp32 or fp16."
            )
        if self.codec_decoder not in ("fp32", "int8"):
            raise BuildError(
                f"Recipe {self.name}: codec_decoder is {self.codec_decoder!r}, expected fp32 or "
                "int8."
            )
        if self.block_size < _MIN_BLOCK_SIZE or self.block_size & (self.block_size - 1):
            raise BuildError(
                f"Recipe {self.name}: block_size is {self.block_size}, expected a power of two of "
                f"at least {_MIN_BLOCK_SIZE}."
            )

    def precision_by_part(self) -> dict[str, dict[str, str]]:
        """Return component -> part -> precision of the language side."""
        return {"talker": asdict(self.talker), "code_predictor": asdict(self.code_predictor)}


def uniform_recipe(precision: Precision) -> Recipe:
    """Return the recipe that ``--precision`` names.

    At int4 the talker's head stays int8, since it decides when speech ends, and so does the
    projection, which everything in the predictor starts from; both are read once a frame.
    """
    finer: Precision = "int8" if precision == "int4" else precision
    return Recipe(
        name=precision,
        talker=TalkerPrecision(layers=precision, head=finer),
        code_predictor=CodePredictorPrecision(layers=precision, heads=precision, projection=finer),
        embeddings="fp32" if precision == "fp32" else "fp16",
        block_size=_INT8_BLOCK_SIZE if precision == "int8" else DEFAULT_BLOCK_SIZE,
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
    section = _checked(values, Recipe, str(path), given=("name", "block_size", "codec_decoder"))
    block_size = section.get("block_size", DEFAULT_BLOCK_SIZE)
    if not isinstance(block_size, int):
        raise BuildError(f"Recipe {path}: block_size is {block_size!r}, expected a number.")
    talker = _checked(section["talker"], TalkerPrecision, f"{path}: talker")
    predictor = _checked(section["code_predictor"], CodePredictorPrecision, f"{path}: predictor")
    return Recipe(
        name=path.stem,
        talker=TalkerPrecision(**_precisions(talker, path)),
        code_predictor=CodePredictorPrecision(**_precisions(predictor, path)),
        block_size=block_size,
        **_precisions({"embeddings": section["embeddings"]}, path),
        **_precisions({"codec_decoder": section.get("codec_decoder", "fp32")}, path),
    )


def _checked(values: Any, kind: type, where: str, given: tuple[str, ...] = ()) -> Mapping[str, Any]:
    """Return ``values`` if its keys are the fields of ``kind``; ``given`` ones may be absent."""
    names = {field.name for field in fields(kind)}
    if not isinstance(values, Mapping):
        raise BuildError(f"Recipe {where} is no mapping; it needs {', '.join(sorted(names))}.")
    unknown = set(values) - (names - {"name"})
    missing = names - set(values) - set(given)
    if unknown or missing:
        listed = ", ".join(map(str, sorted(unknown or missing)))
        word = "unknown" if unknown else "missing"
        raise BuildError(f"Recipe {where}: {word} {listed}; it needs {', '.join(sorted(names))}.")
    return values


def _precisions(values: Mapping[str, Any], path: Path) -> dict[str, Any]:
    for key, value in values.items():
        if value not in PRECISIONS:
            raise BuildError(
                f"Recipe {path}: {key} is {value!r}, expected one of {', '.join(PRECISIONS)}."
            )
    return dict(values)
