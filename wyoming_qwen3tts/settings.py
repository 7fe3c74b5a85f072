"""Settings: declared once as fields of frozen dataclasses, read strictly.

A section is a frozen dataclass whose fields are made by :func:`setting`. Whoever reads it (a YAML
file, flags, the environment) asks :func:`list_settings` what there is and hands the values over to
:func:`build_section`; an unknown name is refused together with the nearest right one.
"""

import dataclasses
import difflib
import math
import types
import typing
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal, TypeVar

from wyoming_qwen3tts.errors import ConfigError

Path: typing.TypeAlias = tuple[str, ...]
"""Names from the outermost section to the setting."""

_METADATA_KEY: Final = "wyoming_qwen3tts.setting"
_KIND_NAMES: Final = {
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    str: "a text",
    tuple: "a list of texts",
}

SectionT = TypeVar("SectionT")


@dataclass(frozen=True)
class _Declaration:
    """What :func:`setting` notes beside a field."""

    doc: str
    minimum: float | None
    maximum: float | None
    when_true: str | None


@dataclass(frozen=True)
class Setting:
    """One setting of a section or of a section inside it."""

    path: Path
    kind: type
    """bool, int, float, str or tuple."""
    default: Any
    doc: str
    """A sentence for people, with the unit."""
    optional: bool
    """None is a value."""
    choices: tuple[str, ...] = ()
    minimum: float | None = None
    maximum: float | None = None
    when_true: str | None = None
    """A text setting that can also be switched on (this value) and off (None)."""

    def check(self, value: Any, name: str) -> Any:
        """Return the value in the setting's own type.

        Args:
            value: What a YAML file or a command line gave.
            name: How the source calls this setting, for the message.

        Raises:
            ConfigError: The value is of the wrong kind or out of range.
        """
        if self.when_true is not None and isinstance(value, bool):
            return self.when_true if value else None
        if value is None and self.optional:
            return None
        converted = self._convert(value, name)
        if self.choices and converted not in self.choices:
            raise ConfigError(
                f"{name} must be one of {', '.join(self.choices)}, not {value!r}"
                + _suggest(str(value), self.choices)
            )
        if self.minimum is not None and converted < self.minimum:
            raise ConfigError(f"{name} must be at least {self.minimum:g}, not {value!r}")
        if self.maximum is not None and converted > self.maximum:
            raise ConfigError(f"{name} must be at most {self.maximum:g}, not {value!r}")
        return converted

    def parse(self, text: str, name: str) -> Any:
        """Return the value that a text from a flag or an environment variable stands for.

        Lists are separated by commas; ``none`` (or nothing at all) stands for None.

        Raises:
            ConfigError: The text does not stand for a value of this setting.
        """
        lowered = text.strip().lower()
        if self.optional and lowered in {"", "none", "null"}:
            return None
        if self.kind is bool or self.when_true is not None:
            if lowered in {"true", "yes", "on", "1"}:
                return self.check(True, name)
            if lowered in {"false", "no", "off", "0"}:
                return self.check(False, name)
        value: Any = text
        try:
            if self.kind is int:
                value = int(text)
            elif self.kind is float:
                value = float(text)
            elif self.kind is tuple:
                value = tuple(part.strip() for part in text.split(",") if part.strip())
        except ValueError as error:
            raise ConfigError(f"{name} must be {_KIND_NAMES[self.kind]}, not {text!r}") from error
        return self.check(value, name)

    def _convert(self, value: Any, name: str) -> Any:
        if self.kind is float and type(value) in {int, float} and math.isfinite(value):
            return float(value)
        if self.kind is tuple:
            parts = (value,) if isinstance(value, str) else value
            if isinstance(parts, list | tuple) and all(isinstance(part, str) for part in parts):
                return tuple(parts)
        elif type(value) is self.kind and self.kind is not float:
            return value
        raise ConfigError(f"{name} must be {_KIND_NAMES[self.kind]}, not {value!r}")


def setting(
    default: Any,
    doc: str,
    *,
    minimum: float | None = None,
    maximum: float | None = None,
    when_true: str | None = None,
) -> Any:
    """Declare a field of a section.

    Args:
        default: The value without a word from the user.
        doc: A sentence for people, with the unit.
        minimum: The least value that is taken.
        maximum: The greatest value that is taken.
        when_true: For a text: the value when it is merely switched on.
    """
    declaration = _Declaration(doc, minimum, maximum, when_true)
    return dataclasses.field(default=default, metadata={_METADATA_KEY: declaration})


def section(doc: str) -> dict[str, Any]:
    """Return the metadata of a field that is a section of its own."""
    return {_METADATA_KEY: _Declaration(doc, None, None, None)}


def list_settings(kind: type, path: Path = ()) -> Iterator[Setting]:
    """Yield every setting of a section, those of inner sections in their place."""
    hints = typing.get_type_hints(kind)
    for field in dataclasses.fields(kind):
        declaration: _Declaration = field.metadata[_METADATA_KEY]
        hint = hints[field.name]
        here = (*path, field.name)
        if dataclasses.is_dataclass(hint):
            yield from list_settings(typing.cast("type", hint), here)
            continue
        optional = isinstance(hint, types.UnionType) and types.NoneType in hint.__args__
        if optional:
            hint = next(arg for arg in hint.__args__ if arg is not types.NoneType)
        origin = typing.get_origin(hint)
        is_choice = origin is Literal
        yield Setting(
            path=here,
            kind=str if is_choice else origin or hint,
            default=field.default,
            doc=declaration.doc,
            optional=optional,
            choices=typing.get_args(hint) if is_choice else (),
            minimum=declaration.minimum,
            maximum=declaration.maximum,
            when_true=declaration.when_true,
        )


def section_doc(kind: type, path: Path) -> str:
    """Return the sentence that was declared for an inner section."""
    for name in path[:-1]:
        kind = typing.get_type_hints(kind)[name]
    fields = {field.name: field for field in dataclasses.fields(kind)}
    declaration: _Declaration = fields[path[-1]].metadata[_METADATA_KEY]
    return declaration.doc


def read_mapping(kind: type, values: Any, source: str) -> dict[Path, Any]:
    """Return the checked values of a nested mapping, as a YAML file has it.

    Args:
        kind: The section that the mapping describes.
        values: The mapping; None counts as empty.
        source: Name of the file, for messages.

    Raises:
        ConfigError: Keys are unknown, or a value is of the wrong kind or out of range.
    """
    known = {known_setting.path: known_setting for known_setting in list_settings(kind)}
    found: dict[Path, Any] = {}
    unknown: dict[str, str] = {}
    _read_level(known, values, (), source, found, unknown)
    if unknown:
        raise ConfigError(f"{source}: {_describe_unknown(unknown)}")
    return {
        path: known[path].check(value, f"{source}: {'.'.join(path)}")
        for path, value in found.items()
    }


def _read_level(
    known: Mapping[Path, Setting],
    values: Any,
    path: Path,
    source: str,
    found: dict[Path, Any],
    unknown: dict[str, str],
) -> None:
    """Sort a level's values into unchecked ones and unknown keys with the nearest right ones."""
    if values is None:
        return
    if not isinstance(values, Mapping):
        name = ".".join(path) or "the file"
        raise ConfigError(f"{source}: {name} must hold keys and values, not {values!r}")
    names_here = {other[len(path)] for other in known if other[: len(path)] == path}
    for name, value in values.items():
        here = (*path, str(name))
        if here in known:
            found[here] = value
        elif str(name) in names_here:
            _read_level(known, value, here, source, found, unknown)
        else:
            key = ".".join(here)
            every_key = [".".join(other) for other in known]
            siblings = [".".join((*path, name_here)) for name_here in names_here]
            unknown[key] = _nearest(key, every_key, siblings)


def _describe_unknown(unknown: Mapping[str, str]) -> str:
    """Return what to say of all unknown keys at once, so that nobody finds them one by one."""
    if len(unknown) == 1:
        ((key, near),) = unknown.items()
        return f"unknown setting {key}" + (f"; did you mean {near}?" if near else "")
    listed = [f"{key} (did you mean {near}?)" if near else key for key, near in unknown.items()]
    return f"unknown settings {', '.join(listed)}"


def build_section(kind: type[SectionT], values: Mapping[Path, Any]) -> SectionT:
    """Return a section with these values and defaults for the rest."""
    arguments: dict[str, Any] = {}
    hints = typing.get_type_hints(kind)
    for field in dataclasses.fields(typing.cast("Any", kind)):
        inner = {path[1:]: value for path, value in values.items() if path[0] == field.name}
        if dataclasses.is_dataclass(hints[field.name]):
            arguments[field.name] = build_section(hints[field.name], inner)
        elif inner:
            arguments[field.name] = inner[()]
    return kind(**arguments)


def _suggest(name: str, candidates: Iterable[str]) -> str:
    near = _nearest(name, candidates)
    return f"; did you mean {near}?" if near else ""


def _nearest(name: str, *candidates: Iterable[str]) -> str:
    """Return the most similar name of the first group that has one; empty without any."""
    for names in candidates:
        if near := difflib.get_close_matches(name, list(names), n=1, cutoff=0.6):
            return near[0]
    return ""
