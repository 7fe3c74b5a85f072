"""The bundle manifest ``manifest.json``, and the facts about a model that it states.

Ids and counts come from the checkpoint; none has a default here. Reading is strict: an unknown or
missing key, a value of another type or another format version is an error that names the key.
"""

import dataclasses
import hashlib
import json
import re
import types
import typing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal, get_args, get_origin

from wyoming_qwen3tts.errors import CheckpointError, ManifestError

FORMAT_VERSION: Final = 1
MANIFEST_NAME: Final = "manifest.json"
GRAPH_REVISION: Final = 2
"""Raised when the builder makes better graphs: servers build older bundles again. Since 2: an int8
codec that is exact on every processor, and a code predictor that reports invalid numbers."""

ModelType = Literal["custom_voice", "base", "voice_design"]

_REBUILD: Final = "build or fetch the bundle again (wyoming-qwen3tts build CHECKPOINT --force)."
_FILE_NAME: Final = re.compile(r"\w[\w.-]*")
_MAX_NUMBER: Final = 10_000_000
# Spelling in config.json -> spelling in the repository names. Other sizes are passed through.
_SIZES: Final = {"0b6": "0.6B", "1b7": "1.7B"}
_GENERATION_KEYS: Final = {"predictor_do_sample": "subtalker_dosample"}
# Keys of earlier manifests that nothing reads.
_RETIRED: Final = ("talker", "quantization")


@dataclass(frozen=True)
class TextIds:
    """Ids of the text tokenizer that the prompt needs."""

    im_start: int
    im_end: int
    assistant: int
    tts_pad: int
    tts_bos: int
    tts_eos: int


@dataclass(frozen=True)
class CodecIds:
    """Special rows of the talker's codec embedding table."""

    pad: int
    bos: int
    eos: int
    think: int
    nothink: int
    think_bos: int
    think_eos: int


@dataclass(frozen=True)
class GenerationDefaults:
    """Sampling defaults of the checkpoint."""

    do_sample: bool
    temperature: float
    top_k: int
    top_p: float
    repetition_penalty: float
    predictor_do_sample: bool
    predictor_temperature: float
    predictor_top_k: int
    predictor_top_p: float
    max_new_tokens: int
    non_streaming_mode: bool | None = None
    """Whether the whole text goes into the prompt; None leaves it to the kind of voice."""


@dataclass(frozen=True)
class ModelFacts:
    """Facts of one model."""

    model_type: ModelType
    model_size: str
    hidden_size: int
    """Width D of the talker, its embeddings and of an x-vector."""
    num_code_groups: int
    codebook_size: int
    max_positions: int
    sample_rate_hz: int
    samples_per_frame: int
    text_ids: TextIds
    codec_ids: CodecIds
    languages: dict[str, int]
    """Language and dialect names as the checkpoint spells them ("english") -> codec id."""
    speakers: dict[str, int]
    """Preset speakers in lower case -> row of the codec embedding table."""
    dialects: dict[str, str]
    """Speaker -> dialect (a key of ``languages``) that replaces auto and Chinese."""
    generation: GenerationDefaults

    def __post_init__(self) -> None:
        """Refuse numbers that no model has."""
        check_numbers(self)

    @property
    def frame_rate_hz(self) -> float:
        """Frames per second of audio."""
        return self.sample_rate_hz / self.samples_per_frame

    @property
    def follows_instructions(self) -> bool:
        """Whether a style instruction has an effect: not on Base, not on the 0.6B CustomVoice."""
        return self.model_type == "voice_design" or (
            self.model_type == "custom_voice" and self.model_size != "0.6B"
        )

    @property
    def model_name(self) -> str:
        """Name of the published model with these facts."""
        return f"qwen3-tts-12hz-{self.model_size}-{self.model_type.replace('_', '')}".lower()

    @property
    def spoken_languages(self) -> tuple[str, ...]:
        """Languages that a request may name, without dialects, sorted."""
        return tuple(sorted(name for name in self.languages if "dialect" not in name))


def facts_from_checkpoint(
    config: dict[str, Any], codec_config: dict[str, Any], generation: dict[str, Any]
) -> ModelFacts:
    """Read ``config.json``, ``speech_tokenizer/config.json`` and ``generation_config.json``.

    Raises:
        CheckpointError: A key is missing or has a value of another type.
    """
    try:
        talker = config["talker_config"]
        values = {
            "model_type": config["tts_model_type"],
            "model_size": _SIZES.get(config["tts_model_size"], config["tts_model_size"]),
            "hidden_size": talker["hidden_size"],
            "num_code_groups": talker["num_code_groups"],
            "codebook_size": talker["code_predictor_config"]["vocab_size"],
            "max_positions": talker["max_position_embeddings"],
            "sample_rate_hz": codec_config["output_sample_rate"],
            "samples_per_frame": codec_config["decode_upsample_rate"],
            "text_ids": {name: config[f"{name}_token_id"] for name in _names(TextIds)},
            "codec_ids": {
                name: talker["codec_eos_token_id" if name == "eos" else f"codec_{name}_id"]
                for name in _names(CodecIds)
            },
            "languages": talker["codec_language_id"],
            "speakers": {name.lower(): row for name, row in talker["spk_id"].items()},
            "dialects": {
                name.lower(): value for name, value in talker["spk_is_dialect"].items() if value
            },
            "generation": {
                name: generation[key]
                for name in _names(GenerationDefaults)
                if (key := _GENERATION_KEYS.get(name, name.replace("predictor_", "subtalker_")))
                in generation
            },
        }
        facts: ModelFacts = decode_strictly(ModelFacts, values, "configuration")
    except (KeyError, ValueError, TypeError, AttributeError) as error:
        problem = f"configuration has no key {error}" if isinstance(error, KeyError) else error
        raise CheckpointError(
            f"The checkpoint's {problem}; is it a Qwen3-TTS 12 Hz checkpoint?"
        ) from error
    return facts


def _names(kind: type) -> list[str]:
    return [field.name for field in dataclasses.fields(kind)]


@dataclass(frozen=True)
class BundleFile:
    """One file of a bundle; the path is relative to its directory."""

    path: str
    bytes: int
    sha256: str


@dataclass(frozen=True)
class BundleSource:
    """The checkpoint that a bundle was built from."""

    repo: str | None
    """Repository on the model hub, if the path of the checkpoint contains it."""
    revision: str | None = None
    model_sha256: str = ""


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """Contents of ``manifest.json``."""

    format_version: int = FORMAT_VERSION
    name: str
    """Name of the model, such as ``qwen3-tts-12hz-0.6b-customvoice``."""
    device: Literal["cpu"] = "cpu"
    recipe: str
    """A precision, or the name of a mixed recipe."""
    precision: dict[str, dict[str, str]] = field(default_factory=dict)
    """Component -> part -> precision."""
    facts: ModelFacts
    source: BundleSource
    builder_version: str = ""
    files: tuple[BundleFile, ...]
    graph_revision: int = 1
    """Bundles that do not state it are the first."""

    @property
    def encoder_id(self) -> str:
        """Hash of the files that clips go through, for kept encodings."""
        encoders = ("codec_encoder.", "speaker_encoder.", "codec_decoder.")
        files = sorted((f.path, f.sha256) for f in self.files if f.path.startswith(encoders))
        return hashlib.sha256(json.dumps(files).encode()).hexdigest()

    def to_json(self) -> str:
        """Return the text of ``manifest.json``."""
        return json.dumps(dataclasses.asdict(self), indent=2, ensure_ascii=False) + "\n"

    @classmethod
    def from_json(cls, text: str, where: str = MANIFEST_NAME) -> "Manifest":
        """Parse a manifest; raise a ManifestError that names ``where`` if it cannot be used."""
        try:
            values = json.loads(text)
        except ValueError as error:
            raise ManifestError(f"{where} is not valid JSON ({error}); {_REBUILD}") from error
        version = values.get("format_version") if isinstance(values, dict) else None
        if version != FORMAT_VERSION:
            raise ManifestError(f"{where} has another format version, {version!r}; {_REBUILD}")
        known = {key: value for key, value in values.items() if key not in _RETIRED}
        try:
            manifest: Manifest = decode_strictly(cls, known, where)
        except ValueError as error:
            raise ManifestError(f"{error}; {_REBUILD}") from error
        for file in manifest.files:
            if not _FILE_NAME.fullmatch(file.path):
                raise ManifestError(f"{where} names the file {file.path!r}; {_REBUILD}")
        return manifest


def read_manifest(directory: Path) -> Manifest:
    """Read a bundle's manifest; raise a ManifestError if it is missing or cannot be used."""
    path = directory / MANIFEST_NAME
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ManifestError(f"{path} cannot be read ({error}); {_REBUILD}") from error
    return Manifest.from_json(text, str(path))


def decode_strictly(kind: Any, value: Any, where: str) -> Any:
    """Turn a JSON value into ``kind``: a dataclass, tuple, dict, Literal, optional or plain type.

    A value that does not fit is a ValueError, whose message begins with ``where``.
    """
    if dataclasses.is_dataclass(kind):
        return _decode_fields(kind, value, where)
    origin, arguments = get_origin(kind), get_args(kind)
    if origin is Literal:
        if value in arguments:
            return value
        raise _wrong(where, value, f"one of {', '.join(map(repr, arguments))}")
    if origin is types.UnionType:
        return None if value is None else decode_strictly(arguments[0], value, where)
    if origin is tuple:
        items = enumerate(_of_type(list, value, where))
        return tuple(decode_strictly(arguments[0], item, f"{where}[{i}]") for i, item in items)
    if origin is dict:
        entries = _of_type(dict, value, where).items()
        return {key: decode_strictly(arguments[1], item, f"{where}.{key}") for key, item in entries}
    if kind is float and type(value) is int:
        return float(value)
    return _of_type(kind, value, where)


def _decode_fields(kind: Any, value: Any, where: str) -> Any:
    values, hints = _of_type(dict, value, where), typing.get_type_hints(kind)
    # Fields with a default are newer than some bundles, which need not be built again for them.
    fields = dataclasses.fields(kind)
    missing = dataclasses.MISSING
    required = {f.name for f in fields if f.default is missing and f.default_factory is missing}
    if unknown := values.keys() - hints.keys():
        raise ValueError(f"{where} has the unknown key {min(unknown)!r}")
    if absent := required - values.keys():
        raise ValueError(f"{where} has no key {min(absent)!r}")
    return kind(
        **{key: decode_strictly(hints[key], values[key], f"{where}: {key}") for key in values}
    )


def check_numbers(kind: Any, lowest: int = 1) -> None:
    """Raise a ValueError for numbers that cannot be sizes (above 0), or rows and defaults."""
    values = kind if isinstance(kind, dict) else vars(kind)
    for name, value in values.items():
        if isinstance(value, dict) or dataclasses.is_dataclass(value):
            check_numbers(value, lowest=0)
        for number in value if isinstance(value, tuple) else (value,):
            least = lowest if type(number) is int else 0
            if type(number) in (int, float) and not least <= number <= _MAX_NUMBER:
                raise ValueError(f"{name} is {number}, which no model has")


def _of_type(kind: type, value: Any, where: str) -> Any:
    if type(value) is not kind:  # True is not an int
        raise _wrong(where, value, f"a value of type {kind.__name__}")
    return value


def _wrong(where: str, value: Any, expected: str) -> ValueError:
    return ValueError(f"{where} is {value!r}, expected {expected}")
