"""One voice folder ``voices/<language>/<name>/`` and what is wrong with it.

It has the form of wyoming-piper's cloned and designed voices::

    ref.wav | ref.flac | ref.ogg | ref.mp3    a reference clip: a cloned voice
    ref.txt         what the clip says; without it only the timbre is cloned
    instruct.txt    a description in words: a designed voice
    voice.yaml      optional settings; alone, with a preset: that speaker with these settings
    .cache/         encoded clips, see clips.py
"""

import os
import unicodedata
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final, Literal, TypeAlias

import yaml

from wyoming_qwen3tts.errors import ConfigError, VoiceError
from wyoming_qwen3tts.runtime.manifest import ModelType
from wyoming_qwen3tts.settings import read_mapping, setting
from wyoming_qwen3tts.synthesis.request import DesignedVoice, PresetSpeaker, SynthesisOptions
from wyoming_qwen3tts.text.language import language_code
from wyoming_qwen3tts.voices.clips import (
    check_transcript,
    decode_reference_clip,
    read_clip_file,
    speech_duration_s,
)

CLIP_NAMES: Final = ("ref.wav", "ref.flac", "ref.ogg", "ref.mp3")
TRANSCRIPT_NAME: Final = "ref.txt"
DESCRIPTION_NAME: Final = "instruct.txt"
SETTINGS_NAME: Final = "voice.yaml"
CHECK_RATE_HZ: Final = 24_000  # of every published model

_FILE_NAMES: Final = frozenset({*CLIP_NAMES, TRANSCRIPT_NAME, DESCRIPTION_NAME, SETTINGS_NAME})
FileState: TypeAlias = tuple[str, int, int]  # name, size and time of change
_MAX_NAME_CHARACTERS = 64
_MAX_TEXT_BYTES = 16 * 2**10


@dataclass(frozen=True)
class VoiceSettings:
    """Contents of ``voice.yaml``; None keeps what the server or the model has."""

    description: str | None = setting(None, "Text in a list of voices.")
    preset: str | None = setting(None, "Preset speaker, in a folder without clip and description.")
    seed: int | None = setting(None, "Number that makes speech repeatable.", minimum=0)
    style: str | None = setting(None, "How to speak, for models that follow instructions.")
    model_size: Literal["any", "0.6B", "1.7B"] = setting("any", "Preferred size of model.")
    check_transcript: bool = setting(True, "Refuse a transcript that does not match the clip.")
    temperature: float | None = setting(None, "0 (greedy) to 10.", minimum=0, maximum=10)
    top_k: int | None = setting(None, "Number of likeliest codes to draw from; 0: all.", minimum=0)
    top_p: float | None = setting(
        None, "Probability of the likeliest codes to draw from.", minimum=0.01, maximum=1.0
    )

    def apply(self, options: SynthesisOptions) -> SynthesisOptions:
        """Return the options with this voice's seed and sampling."""
        options = options.with_sampling(self.temperature, self.top_k, self.top_p)
        return options if self.seed is None else replace(options, seed=self.seed)


@dataclass(frozen=True)
class LibraryVoice:
    """A voice of the library, usable or not."""

    name: str  # the folder's, unique among usable voices
    language: str  # plain code of the folder above, or its name if it is not a language
    directory: Path
    clip: Path | None = None
    text: str | None = None  # transcript of the clip if known; without a clip a description
    settings: VoiceSettings = field(default_factory=VoiceSettings)
    files: tuple[FileState, ...] = field(default=(), repr=False)
    speech_s: float = 0.0  # seconds of speech in the clip
    problem: str | None = None  # why the voice cannot be used and what to do

    @property
    def model_type(self) -> ModelType:
        """Type of the models that speak it."""
        if self.clip is not None:
            return "base"
        return "voice_design" if self.settings.preset is None else "custom_voice"

    @property
    def spoken(self) -> PresetSpeaker | DesignedVoice | None:
        """What a model speaks with; None for a clip, which is encoded first."""
        if self.settings.preset is not None:
            return PresetSpeaker(voice_key(self.settings.preset))
        return None if self.clip is not None else DesignedVoice(self.text or "")


def voice_key(name: str) -> str:
    """Return a voice's name as names are compared: "Uncle Fu" and "uncle_fu" are one voice."""
    return unicodedata.normalize("NFC", name).strip().casefold().replace(" ", "_")


def check_voice_name(name: str) -> None:
    """Raise a VoiceError if a name cannot be a folder name everywhere or typed in a command."""
    good = (
        0 < len(name) <= _MAX_NAME_CHARACTERS
        and name[0] not in ".-"
        and name.strip(" .") == name
        and not set(name) & set('/\\:*?"<>|')
        # No control, format or private characters, and no spaces but the plain one.
        and all(unicodedata.category(c)[0] not in "CZ" for c in name.replace(" ", ""))
    )
    if not good:
        raise VoiceError(
            f"{escape_control_chars(name[:100])!r} is not a name for a voice: use up to "
            f"{_MAX_NAME_CHARACTERS} letters, digits, - and _, beginning with a letter or digit."
        )


def escape_control_chars(text: str) -> str:
    """Return text that can be shown anywhere."""
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)


def read_text(path: Path) -> str:
    """Return the text of a small UTF-8 file without a byte order mark, or raise a VoiceError."""
    try:
        with path.open("rb") as file:
            content = file.read(_MAX_TEXT_BYTES + 1)
        text = content.decode("utf-8-sig")
    except OSError as error:
        raise VoiceError(f"{path.name} cannot be read: {error.strerror or error}.") from error
    except UnicodeDecodeError as error:
        raise VoiceError(f"{path.name} is not UTF-8 text; save it again as UTF-8.") from error
    if len(content) > _MAX_TEXT_BYTES:
        raise VoiceError(f"{path.name} is longer than {_MAX_TEXT_BYTES // 2**10} KB; shorten it.")
    return text


def read_settings(path: Path) -> VoiceSettings:
    """Read ``voice.yaml``, or raise a ConfigError or VoiceError."""
    text = read_text(path)
    try:
        values = yaml.safe_load(text)
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        reason = " ".join(str(error).split())
        raise ConfigError(f"{path.name} is not valid YAML: {reason}") from error
    if isinstance(values, dict) and isinstance(values.get("sampling"), dict):
        values |= values.pop("sampling")  # temperature, top_k and top_p may stand in a section
    return VoiceSettings(**read_mapping(VoiceSettings, values, path.name))


def _list_files(directory: Path) -> tuple[FileState, ...]:
    states: list[FileState] = []
    with os.scandir(directory) as entries:
        for entry in entries:
            if entry.name.lower() in _FILE_NAMES:
                is_link_to_nothing = entry.is_symlink() and not Path(entry.path).exists()
                status = entry.stat(follow_symlinks=not is_link_to_nothing)
                states.append((entry.name, status.st_size, status.st_mtime_ns))
    return tuple(sorted(states))


def read_voice(directory: Path, root: Path, known: LibraryVoice | None = None) -> LibraryVoice:
    """Read and check one voice folder of the library ``root``; an error becomes its problem.

    ``known`` is returned if it was read from the same files.
    """
    problem: str | None = None
    files: tuple[FileState, ...] = ()
    try:
        files = _list_files(directory)
    except OSError as error:
        problem = f"The folder cannot be read: {error.strerror or error}."
    if known is not None and known.files == files:
        return known
    names = {name.lower(): name for name, _, _ in files}
    clips = [name for name, _, _ in files if name.lower() in CLIP_NAMES]
    name, folder_name = unicodedata.normalize("NFC", directory.name), directory.parent.name
    voice = LibraryVoice(
        name=escape_control_chars(name),
        language=language_code(folder_name) or escape_control_chars(folder_name),
        directory=directory,
        clip=directory / clips[0] if clips else None,
        files=files,
        problem=problem,
    )
    try:
        check_voice_name(name)
        for path in (directory, *(directory / each for each in sorted(names.values()))):
            _check_inside(path, root)
        return voice if problem else _read_files(voice, names, len(clips))
    except (VoiceError, ConfigError) as error:
        return replace(voice, problem=problem or str(error))


def _read_files(voice: LibraryVoice, names: Mapping[str, str], num_clips: int) -> LibraryVoice:
    """Return the voice with the contents of its files; ``names`` are in lower case -> on disk."""
    if language_code(voice.language) is None:
        raise VoiceError(
            f"The folder {voice.language!r} is not a language of the models; move the voice to a "
            "folder zh, en, ja, ko, de, fr, ru, pt, es or it."
        )
    if num_clips > 1:
        raise VoiceError("There are several clips; keep one.")
    if SETTINGS_NAME in names:
        voice = replace(voice, settings=read_settings(voice.directory / names[SETTINGS_NAME]))
    preset, has_source = voice.settings.preset, bool(num_clips) or DESCRIPTION_NAME in names
    if not has_source and preset is None:
        raise VoiceError(
            f"There is neither a clip ({', '.join(CLIP_NAMES)}) nor a {DESCRIPTION_NAME}, nor a "
            f"preset in {SETTINGS_NAME}; put one there, or remove the folder."
        )
    if has_source and preset is not None:
        raise VoiceError(
            f"{SETTINGS_NAME} names a preset, but there is a clip or a description too; keep one."
        )
    text_name = TRANSCRIPT_NAME if voice.clip else DESCRIPTION_NAME
    if text_name in names:
        text = read_text(voice.directory / names[text_name])
        voice = replace(voice, text=" ".join(text.split()))
    if voice.clip is not None:
        return replace(voice, speech_s=_check_clip(voice.clip, voice))
    if voice.text == "":
        raise VoiceError(f"{DESCRIPTION_NAME} is empty; describe the voice in it.")
    return voice


def _check_clip(clip: Path, voice: LibraryVoice) -> float:
    """Return the seconds of speech in a clip."""
    samples = decode_reference_clip(read_clip_file(clip), CHECK_RATE_HZ)
    speech_s = speech_duration_s(samples, CHECK_RATE_HZ)
    if voice.text == "" or (voice.text and voice.settings.check_transcript):
        try:
            check_transcript(voice.text, speech_s)
        except VoiceError as error:
            hint = f" (If it is complete, set check_transcript: false in {SETTINGS_NAME}.)"
            raise VoiceError(f"{error}{hint if voice.text else ''}") from error
    return speech_s


def _check_inside(path: Path, root: Path) -> None:
    """Refuse links that lead out of the library, and pipes and other special files."""
    name = escape_control_chars(path.name)
    try:
        real = path.resolve(strict=True)
    except (OSError, RuntimeError) as error:
        raise VoiceError(f"{name} cannot be read; is it a link to nothing?") from error
    if not real.is_relative_to(root.resolve()):
        raise VoiceError(
            f"{name} is a link that leads out of the voice library; copy what it points to instead."
        )
    if name.lower() in _FILE_NAMES and not real.is_file():
        raise VoiceError(f"{name} is not an ordinary file.")
