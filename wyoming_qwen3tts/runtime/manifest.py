"""The bundle manifest: what a bundle holds, as ``manifest.json`` states it.

Strict both ways: an unknown key, a missing key, a value of another kind or another format version
is a :class:`ManifestError` that names the key and says what to do.
"""

import dataclasses
import json
import types
import typing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal, get_args, get_origin

from wyoming_qwen3tts.errors import ManifestError
from wyoming_qwen3tts.runtime.facts import ModelFacts

FORMAT_VERSION: Final = 1
MANIFEST_NAME: Final = "manifest.json"

Device = Literal["cpu", "cuda"]
DEVICES: Final[tuple[Device, ...]] = get_args(Device)


@dataclass(frozen=True)
class BundleFile:
    """One file of a bundle."""

    path: str
    """Relative to the bundle's directory."""
    bytes: int
    sha256: str


@dataclass(frozen=True)
class BundleSource:
    """The checkpoint that a bundle was built from."""

    repo: str | None
    """Repository on the model hub, where the path of the checkpoint tells it."""
    revision: str | None
    model_sha256: str
    """Hash of the checkpoint's ``model.safetensors``."""


@dataclass(frozen=True)
class TalkerLayout:
    """What the runtime must know to make the talker's KV cache."""

    num_layers: int
    num_kv_heads: int
    head_size: int
    max_positions: int
    """Positions that the graph's rotary tables cover."""
    cache_type: Literal["float32", "float16"]


@dataclass(frozen=True)
class QuantizationReport:
    """How much quantisation changed one part's weights."""

    component: str
    part: str
    precision: str
    num_tensors: int
    snr_db: float
    """Over all weights of the part together."""
    lowest_snr_db: float
    """Of the tensor that lost most."""


@dataclass(frozen=True)
class Manifest:
    """Contents of ``manifest.json``."""

    format_version: int
    name: str
    """Name of the model, such as ``qwen3-tts-12hz-0.6b-customvoice``."""
    device: Device
    recipe: str
    """Name of the recipe: a precision, or the name of a mixed one."""
    precision: dict[str, dict[str, str]]
    """Component -> part -> precision."""
    facts: ModelFacts
    talker: TalkerLayout
    source: BundleSource
    builder_version: str
    files: tuple[BundleFile, ...]
    quantization: tuple[QuantizationReport, ...]

    def to_json(self) -> str:
        """Return the text of ``manifest.json``."""
        return json.dumps(dataclasses.asdict(self), indent=2, ensure_ascii=False) + "\n"

    @classmethod
    def from_json(cls, text: str, where: str = MANIFEST_NAME) -> "Manifest":
        """Parse the text of a ``manifest.json``.

        Args:
            text: The text.
            where: The file's path, for messages.

        Raises:
            ManifestError: The text is not a manifest of this format version.
        """
        try:
            values = json.loads(text, parse_constant=_refuse_constant)
        except ValueError as error:
            raise ManifestError(f"{where} is no JSON ({error}); {_REBUILD}") from error
        version = values.get("format_version") if isinstance(values, dict) else None
        if version != FORMAT_VERSION:
            raise ManifestError(
                f"{where} has the format version {version!r}, this program reads "
                f"{FORMAT_VERSION}; {_REBUILD}"
            )
        return typing.cast("Manifest", _decode(cls, values, where))


def read_manifest(directory: Path) -> Manifest:
    """Read the manifest of the bundle in ``directory``.

    Raises:
        ManifestError: There is none, or it cannot be used.
    """
    path = directory / MANIFEST_NAME
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ManifestError(f"{path} cannot be read ({error}); {_REBUILD}") from error
    return Manifest.from_json(text, str(path))


_REBUILD = "build the bundle again (wyoming-qwen3tts build CHECKPOINT --force) or fetch it again."


def _refuse_constant(name: str) -> None:
    """Refuse NaN and the infinities, which Python's reader would let through."""
    raise ValueError(f"{name} is no number")


def _decode(kind: Any, value: Any, where: str) -> Any:
    """Turn a JSON value into ``kind``, strictly."""
    if dataclasses.is_dataclass(kind):
        return _decode_fields(kind, value, where)
    origin, arguments = get_origin(kind), get_args(kind)
    if origin is Literal:
        if value not in arguments:
            raise _wrong(where, value, f"one of {', '.join(map(repr, arguments))}")
        return value
    if origin is types.UnionType:
        return None if value is None else _decode(arguments[0], value, where)
    if origin is tuple:
        items = _of_type(list, value, where)
        return tuple(_decode(arguments[0], item, f"{where}[{i}]") for i, item in enumerate(items))
    if origin is dict:
        items = _of_type(dict, value, where)
        return {key: _decode(arguments[1], item, f"{where}.{key}") for key, item in items.items()}
    if kind is float and type(value) is int:
        return float(value)
    return _of_type(kind, value, where)


def _decode_fields(kind: Any, value: Any, where: str) -> Any:
    values = _of_type(dict, value, where)
    hints = typing.get_type_hints(kind)
    # Bundles written before a field came have not got it, and need not be built again.
    optional = {
        field.name for field in dataclasses.fields(kind) if field.default is not dataclasses.MISSING
    }
    unknown = sorted(set(values) - set(hints))
    missing = sorted(set(hints) - set(values) - optional)
    if unknown:
        raise ManifestError(f"{where} has the unknown key {unknown[0]!r}; {_REBUILD}")
    if missing:
        raise ManifestError(f"{where} has no key {missing[0]!r}; {_REBUILD}")
    return kind(**{key: _decode(hints[key], values[key], f"{where}: {key}") for key in values})


def _of_type(kind: type, value: Any, where: str) -> Any:
    """Return ``value`` if it is exactly of ``kind`` (so that True is no number)."""
    if type(value) is not kind:
        raise _wrong(where, value, f"a value of type {kind.__name__}")
    return value


def _wrong(where: str, value: Any, expected: str) -> ManifestError:
    return ManifestError(f"{where} is {value!r}, expected {expected}; {_REBUILD}")
