"""Settings: fields of frozen dataclasses, read strictly from YAML values or from texts.

``config.py`` and ``voice.yaml`` declare their settings with :func:`setting`.
"""

import dataclasses
import difflib
import logging
import math
import types
import typing
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal, TypeVar

import yaml

from wyoming_qwen3tts.errors import ConfigError

_LOGGER = logging.getLogger(__name__)

_KIND_NAMES: Final = {
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    str: "a text",
    tuple: "a list of texts",
    dict: "a mapping of NAME: TEXT",
}

SettingsT = TypeVar("SettingsT")


@dataclass(frozen=True, kw_only=True)
class Setting:
    """One declared setting."""

    name: str
    kind: type
    """bool, int, float, str, tuple (of texts) or dict (of texts)."""
    optional: bool
    """None is a value."""
    default: Any
    choices: tuple[str, ...]
    doc: str
    """Sentences for users, with the unit."""
    minimum: float | None = None
    maximum: float | None = None
    when_true: str | None = None
    """A text setting that can also be true (this value) or false (None)."""
    item: str | None = None
    """Name of one entry of a list or mapping; also a spelling of its flag."""
    commas: bool = False
    """Entries of the list cannot hold commas, so commas separate them in a text."""
    old_values: Mapping[str, str] = field(default_factory=dict)

    def check(self, value: Any, name: str) -> Any:
        """Return the value in the setting's own type; ``name`` is for the message.

        Raises:
            ConfigError: The value is of the wrong kind or out of range.
        """
        if self.when_true is not None and isinstance(value, bool):
            return self.when_true if value else None
        if value is None and self.optional:
            return None
        if isinstance(value, str) and value in self.old_values:
            new = self.old_values[value]
            _LOGGER.warning("%s: %s is now called %s", name, value, new)
            value = new
        converted = self._convert(value, name)
        if self.choices and converted not in self.choices:
            near = suggestion(str(value), self.choices)
            raise ConfigError(
                f"{name} must be one of {', '.join(self.choices)}, not {value!r}{near}"
            )
        if self.minimum is not None and converted < self.minimum:
            raise ConfigError(f"{name} must be at least {self.minimum:g}, not {value!r}")
        if self.maximum is not None and converted > self.maximum:
            raise ConfigError(f"{name} must be at most {self.maximum:g}, not {value!r}")
        return converted

    def parse(self, text: str | bool | list[str], name: str) -> Any:
        """Return the value of a text from a flag or an environment variable.

        A list is separated by semicolons, or by commas where its entries cannot hold them; or it
        is written as in YAML or JSON. A flag may be repeated. ``none`` or an empty text stands for
        None.

        Raises:
            ConfigError: The text is not a value of this setting.
        """
        if isinstance(text, bool):
            return text
        if isinstance(text, list):
            parts = [self.parse(part, name) for part in text]
            merged = [
                each for part in parts for each in (part.items() if self.kind is dict else part)
            ]
            return self.kind(merged)
        value: Any = text.strip()
        lowered = value.lower()
        if self.optional and lowered in {"", "none", "null"}:
            return None
        try:
            if (self.kind is bool or self.when_true is not None) and lowered in _BOOLEANS:
                value = _BOOLEANS[lowered]
            elif self.kind in {int, float}:
                value = self.kind(value)
            elif self.kind in {tuple, dict}:
                value = self._split(value)
        except (ValueError, yaml.YAMLError) as error:
            raise ConfigError(f"{name} must be {_KIND_NAMES[self.kind]}, not {text!r}") from error
        return self.check(value, name)

    def _split(self, text: str) -> Any:
        if text[:1] in {"[", "{"}:
            return yaml.safe_load(text)
        separator = "," if self.commas and ";" not in text else ";"
        return [part.strip() for part in text.split(separator) if part.strip()]

    def _convert(self, value: Any, name: str) -> Any:
        if self.kind is float and type(value) in {int, float} and math.isfinite(value):
            return float(value)
        if self.kind is tuple:
            parts = (value,) if isinstance(value, str) else value
            if isinstance(parts, list | tuple) and all(isinstance(part, str) for part in parts):
                return tuple(parts)
        elif self.kind is dict:
            if isinstance(value, list | tuple) and all(isinstance(part, str) for part in value):
                value = _pairs(value, name)
            if isinstance(value, Mapping) and all(
                isinstance(text, str) and text.strip() for pair in value.items() for text in pair
            ):
                return {key.strip(): text.strip() for key, text in value.items()}
        elif type(value) is self.kind and self.kind is not float:
            return value
        raise ConfigError(f"{name} must be {_KIND_NAMES[self.kind]}, not {value!r}")


_BOOLEANS: Final = {
    **dict.fromkeys(("true", "yes", "on", "1"), True),
    **dict.fromkeys(("false", "no", "off", "0"), False),
}


def _pairs(entries: Iterable[str], name: str) -> dict[str, str]:
    pairs = {}
    for entry in entries:
        key, separator, text = entry.partition("=")
        if not separator:
            raise ConfigError(f"{name}: {entry!r} is not NAME=TEXT")
        pairs[key] = text
    return pairs


def setting(default: Any, doc: str, **details: Any) -> Any:
    """Declare a field; ``details`` are the optional fields of :class:`Setting`."""
    metadata = {"doc": doc, **details}
    if isinstance(default, dict):
        return field(default_factory=lambda: dict(default), metadata=metadata)
    return field(default=default, metadata=metadata)


def list_settings(kind: type) -> dict[str, Setting]:
    """Return every setting that a dataclass declares, by name."""
    hints = typing.get_type_hints(kind)
    found = {}
    for declared in dataclasses.fields(kind):
        hint = hints[declared.name]
        optional = isinstance(hint, types.UnionType)
        if optional:
            hint = next(arg for arg in hint.__args__ if arg is not types.NoneType)
        origin = typing.get_origin(hint)
        factory = declared.default_factory
        found[declared.name] = Setting(
            name=declared.name,
            kind={Literal: str, Mapping: dict}.get(origin, origin or hint),
            optional=optional,
            default=declared.default if factory is dataclasses.MISSING else factory(),
            choices=typing.get_args(hint) if origin is Literal else (),
            **declared.metadata,
        )
    return found


def read_mapping(
    kind: type, values: Any, source: str, old_names: Mapping[str, str | None] | None = None
) -> dict[str, Any]:
    """Return the checked values of a mapping, as a YAML file has it.

    Args:
        kind: The dataclass that declares the settings.
        values: The mapping; None counts as empty.
        source: Name of the file, for messages.
        old_names: Former name -> name now, or None for a setting that is gone. A dot separates the
            key of a former section from the key in it.

    Raises:
        ConfigError: Keys are unknown, or a value is of the wrong kind or out of range.
    """
    if values is None:
        return {}
    if not isinstance(values, Mapping):
        raise ConfigError(f"{source}: the file must hold keys and values, not {values!r}")
    known, old_names = list_settings(kind), old_names or {}
    found: dict[str, Any] = {}
    unknown: list[str] = []
    for key, value in _flattened(values, old_names):
        name = key
        if key in old_names:
            name = warn_old_name(f"{source}: {key}", old_names[key]) or ""
        if name in known:
            found[name] = known[name].check(value, f"{source}: {key}")
        elif name:
            unknown.append(key + suggestion(key, [*known, *old_names]))
    if unknown:
        plural = "s" if len(unknown) > 1 else ""
        raise ConfigError(f"{source}: unknown setting{plural} {', '.join(unknown)}")
    return found


def _flattened(
    values: Mapping[Any, Any], old_names: Mapping[str, str | None]
) -> Iterable[tuple[str, Any]]:
    """Yield keys and values; those of a former section come with its name before a dot."""
    sections = {name.split(".")[0] for name in old_names if "." in name}
    for key, value in values.items():
        if key in sections and isinstance(value, Mapping | None):
            yield from ((f"{key}.{inner}", leaf) for inner, leaf in (value or {}).items())
        else:
            yield str(key), value


def warn_old_name(old: str, new: str | None) -> str | None:
    """Warn of a setting that was renamed or is gone; return the name now."""
    if new is None:
        _LOGGER.warning("%s has no effect any more; remove it", old)
    else:
        _LOGGER.warning("%s is now called %s; the next release accepts only that", old, new)
    return new


def suggestion(name: str, candidates: Iterable[str]) -> str:
    """Return `` (did you mean X?)`` with the most similar candidate; empty without one."""
    near = difflib.get_close_matches(name, list(candidates), n=1)
    return f" (did you mean {near[0]}?)" if near else ""
