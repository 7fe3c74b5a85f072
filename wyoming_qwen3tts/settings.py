"""Settings: fields of frozen dataclasses, read strictly from YAML values or from texts.

``config.py`` and ``voice.yaml`` declare their settings with :func:`setting`.
"""

import dataclasses
import difflib
import logging
import math
import types
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal

import yaml

from wyoming_qwen3tts.errors import ConfigError

_LOGGER = logging.getLogger(__name__)

_NONE: Final = frozenset({"", "none", "null"})
_BOOLEANS: Final = {
    **dict.fromkeys(("true", "yes", "on", "1"), True),
    **dict.fromkeys(("false", "no", "off", "0"), False),
}


def _are_texts(values: Any) -> bool:
    return isinstance(values, list | tuple) and all(isinstance(value, str) for value in values)


_KINDS: Final[Mapping[type, tuple[str, Callable[[Any], bool]]]] = {
    bool: ("true or false", lambda value: isinstance(value, bool)),
    int: ("a whole number", lambda value: type(value) is int),
    float: ("a number", lambda value: type(value) in {int, float} and math.isfinite(value)),
    str: ("a text", lambda value: isinstance(value, str)),
    tuple: ("a list of texts", _are_texts),
    dict: (
        "a mapping of NAME: TEXT",
        lambda value: isinstance(value, Mapping) and _are_texts([*value, *value.values()]),
    ),
}
"""Kind of a setting -> its name in messages, and the check of a YAML value."""


@dataclass(frozen=True, kw_only=True)
class Setting:
    """One declared setting."""

    name: str
    kind: type
    optional: bool  # None is a value
    default: Any
    choices: tuple[str, ...]
    doc: str  # sentences for users, with the unit
    minimum: float | None = None
    maximum: float | None = None
    when_true: str | None = None
    """A text setting that can also be true (this value) or false (None)."""
    item: str | None = None  # name of one entry of a list or mapping; also a spelling of its flag
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
        if self.optional and value in (None, ""):  # an empty field of the app's page
            return None
        if isinstance(value, str) and value in self.old_values:
            value = warn_old_name(f"{name}: {value}", self.old_values[value])
        if self.kind in {tuple, dict}:
            value = self._gather(value, name)
        wanted, is_right = _KINDS[self.kind]
        if not is_right(value):
            raise ConfigError(f"{name} must be {wanted}, not {value!r}")
        if self.choices and value not in self.choices:
            near = suggestion(value, self.choices)
            raise ConfigError(
                f"{name} must be one of {', '.join(self.choices)}, not {value!r}{near}"
            )
        if self.minimum is not None and value < self.minimum:
            raise ConfigError(f"{name} must be at least {self.minimum:g}, not {value!r}")
        if self.maximum is not None and value > self.maximum:
            raise ConfigError(f"{name} must be at most {self.maximum:g}, not {value!r}")
        return self.kind(value)

    def _gather(self, value: Any, name: str) -> Any:
        """Return a list or mapping for one entry, or for entries as the app's page gives them."""
        entries = [value] if isinstance(value, str) and self.kind is tuple else value
        if not _are_texts(entries):
            return value
        entries = [entry for entry in entries if entry] or (entries and self.default)
        if self.kind is tuple or isinstance(entries, dict):
            return entries
        return dict(_pair(entry, name) for entry in entries)

    def parse(self, text: str | bool | list[str], name: str) -> Any:
        """Return the checked value of a variable, of a flag, or of a flag that was repeated.

        Raises:
            ConfigError: The text is not a value of this setting.
        """
        value: Any = text
        try:
            if self.kind in {tuple, dict}:
                texts = text if isinstance(text, list) else [str(text)]
                value = [entry for each in texts for entry in self._entries(each.strip())]
            elif isinstance(text, str):
                value = text.strip()
                if self.optional and value.lower() in _NONE:
                    value = None
                elif self.kind is bool or self.when_true is not None:
                    value = _BOOLEANS.get(value.lower(), value)
                else:
                    value = self.kind(value)
        except (ValueError, yaml.YAMLError) as error:
            raise ConfigError(f"{name} must be {_KINDS[self.kind][0]}, not {text!r}") from error
        return self.check(value, name)

    def _entries(self, text: str) -> Sequence[Any]:
        """Split a list at semicolons, or at commas if entries cannot hold them, or read as YAML."""
        if text[:1] in {"[", "{"}:
            value = yaml.safe_load(text)
            return [f"{k}={v}" for k, v in value.items()] if isinstance(value, dict) else value
        separator = "," if self.commas and ";" not in text else ";"
        return [part.strip() for part in text.split(separator) if part.strip()]


def _pair(entry: str, name: str) -> tuple[str, str]:
    key, separator, text = entry.partition("=")
    if not separator:
        raise ConfigError(f"{name}: {entry!r} is not NAME=TEXT")
    return key.strip(), text.strip()


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
    """Return the checked values of a YAML file called ``source`` with settings of ``kind``.

    ``old_names``: former name -> name now, or None for a setting that is gone. A dot separates the
    key of a former section from the key in it.

    Raises:
        ConfigError: Keys are unknown, or a value is of the wrong kind or out of range.
    """
    if not isinstance(values, Mapping | None):
        raise ConfigError(f"{source}: the file must hold keys and values, not {values!r}")
    known, old_names = list_settings(kind), old_names or {}
    sections = {name.partition(".")[0] for name in old_names if "." in name}
    flat: dict[str, Any] = {}
    for key, value in (values or {}).items():
        if key in sections and isinstance(value, Mapping | None):
            flat |= {f"{key}.{inner}": each for inner, each in (value or {}).items()}
        else:
            flat[str(key)] = value
    found: dict[str, Any] = {}
    unknown: list[str] = []
    for key, value in flat.items():
        is_old = key in old_names
        name = warn_old_name(f"{source}: {key}", old_names[key]) if is_old else key
        if name in known:
            found[name] = known[name].check(value, f"{source}: {key}")
        elif name is not None:
            unknown.append(key + suggestion(key, [*known, *old_names]))
    if unknown:
        plural = "s" if len(unknown) > 1 else ""
        raise ConfigError(f"{source}: unknown setting{plural} {', '.join(unknown)}")
    return found


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
