"""``recipe.yaml``: everything that decides the result, read strictly."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

import yaml

RECIPE: Final = Path(__file__).with_name("recipe.yaml")


def read_recipe(path: Path = RECIPE) -> Any:
    """Return the recipe as nested namespaces.

    Raises:
        ValueError: A key is missing or unknown; the shipped recipe has the right ones.
    """
    known, values = (yaml.safe_load(each.read_text(encoding="utf-8")) for each in (RECIPE, path))
    if wrong := _keys(known) ^ _keys(values):
        raise ValueError(f"{path}: missing or unknown keys: {', '.join(sorted(wrong))}")
    return SimpleNamespace(
        **{
            key: SimpleNamespace(**value) if isinstance(value, dict) else value
            for key, value in values.items()
        }
    )


def _keys(values: dict[str, Any]) -> set[str]:
    sections = {key: value for key, value in values.items() if isinstance(value, dict)}
    return {*values, *(f"{key}.{name}" for key in sections for name in sections[key])}
