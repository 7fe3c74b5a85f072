"""One voice of the library: a folder ``<language>/<name>/`` and what is wrong with it.

::

    ref.wav | ref.flac | ref.ogg | ref.mp3    a reference clip: a cloned voice
    ref.txt                                   what the clip says (without it: the timbre alone)
    instruct.txt                              a description in words: a designed voice
    voice.yaml                                settings, all optional (VoiceSettings); alone, with
                                              a preset: that speaker with settings of its own
    .cache/                                   encoded prompts, see voice_cache

wyoming-piper keeps its cloned and designed voices in the same form.
"""

import os
import stat
import unicodedata
from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import Path
from typing import Final, NamedTuple

from wyoming_qwen3tts.errors import ConfigError, VoiceError
from wyoming_qwen3tts.runtime.manifest import ModelType
from wyoming_qwen3tts.text.language import language_code
from wyoming_qwen3tts.voices.clips import (
    check_transcript,
    load_reference_clip,
    speech_duration_s,
)
from wyoming_qwen3tts.voices.voice_settings import (
    SETTINGS_NAME,
    VoiceSettings,
    read_settings,
    read_text,
)

CLIP_NAMES: Final = ("ref.wav", "ref.flac", "ref.ogg", "ref.mp3")
TRANSCRIPT_NAME: Final = "ref.txt"
DESCRIPTION_NAME: Final = "instruct.txt"
CACHE_NAME: Final = ".cache"

_KNOWN_NAMES = frozenset({*CLIP_NAMES, TRANSCRIPT_NAME, DESCRIPTION_NAME, SETTINGS_NAME})
_MAX_NAME_CHARACTERS = 64
# The rate of every published model; a clip is loaded again at the rate of the model that clones it.
_CHECK_RATE_HZ = 24_000


class FileState(NamedTuple):
    """A file as it looks from outside."""

    name: str
    link: tuple[int, ...]
    """Inode, size and times of the entry itself."""
    target: tuple[int, ...]
    """The same of what it points to, when it is a link."""


class FolderState(NamedTuple):
    """A voice folder as it looks from outside: another state means that something changed."""

    identity: tuple[int, ...]
    files: tuple[FileState, ...]
    """Only of files that mean something: the cache beside them changes at other times."""
    error: str | None = None
    """Why the folder cannot be listed."""

    @property
    def names(self) -> frozenset[str]:
        """Names of the files."""
        return frozenset(file.name for file in self.files)


class VoiceKind(StrEnum):
    """What a voice is made of."""

    ICL = "icl"
    """A clip and its transcript, from which speech continues."""
    X_VECTOR = "x_vector"
    """A clip's timbre alone."""
    DESIGNED = "designed"
    """A description in words."""
    PRESET = "preset"
    """A preset speaker with settings of its own."""


@dataclass(frozen=True)
class LibraryVoice:
    """A voice of the library as its folder stands, usable or not."""

    name: str
    """The folder's name, for clients; unique among usable voices, case-blind."""
    language: str
    """Plain two-letter code of the folder above; that folder's name if it is no language."""
    kind: VoiceKind
    directory: Path
    clip: Path | None = None
    text: str = ""
    """Transcript of an ICL voice, description of a designed one."""
    settings: VoiceSettings = field(default_factory=VoiceSettings)
    state: FolderState = field(default=FolderState((), ()), repr=False)
    """The folder as it was when the voice was read."""
    problem: str | None = None
    """Why the voice cannot be used and what to do; None for a usable one."""

    @property
    def model_type(self) -> ModelType:
        """Type of the models that can speak it."""
        match self.kind:
            case VoiceKind.DESIGNED:
                return "voice_design"
            case VoiceKind.PRESET:
                return "custom_voice"
            case _:
                return "base"


def folder_state(directory: Path) -> FolderState:
    """Return what tells a changed voice folder, without opening a file."""
    try:
        folder = directory.stat()
        with os.scandir(directory) as entries:
            files = [_file_state(entry) for entry in entries if entry.name in _KNOWN_NAMES]
    except OSError as error:
        return FolderState((), (), error.strerror or str(error))
    return FolderState((folder.st_dev, folder.st_ino), tuple(sorted(files)))


def _file_state(entry: "os.DirEntry[str]") -> FileState:
    link = entry.stat(follow_symlinks=False)
    try:
        target = entry.stat()
    except OSError:  # a link to nothing
        target = link
    return FileState(entry.name, _numbers(link), _numbers(target))


def _numbers(status: os.stat_result) -> tuple[int, ...]:
    return (status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)


def read_voice(directory: Path, root: Path) -> LibraryVoice:
    """Read and check one voice folder; whatever is wrong with it becomes its ``problem``.

    Args:
        directory: ``<root>/<language>/<name>``.
        root: The library; nothing outside it is read.
    """
    state = folder_state(directory)
    clips = _clips(state)
    voice = LibraryVoice(
        name=printable(unicodedata.normalize("NFC", directory.name)),
        language=language_code(directory.parent.name) or printable(directory.parent.name),
        kind=_kind(state),
        directory=directory,
        clip=directory / clips[0] if clips else None,
        state=state,
    )
    try:
        return _read_files(voice, root)
    except (VoiceError, ConfigError) as error:
        return replace(voice, problem=str(error))


def check_voice_name(name: str) -> None:
    """Check that a name can be a folder everywhere and be typed in a command.

    Raises:
        VoiceError: It cannot.
    """
    good = (
        name == unicodedata.normalize("NFC", name)
        and 0 < len(name) <= _MAX_NAME_CHARACTERS
        and name[0] not in ".-"
        and name.strip(" .") == name
        and not set(name) & set('/\\:*?"<>|')
        # No control, format or private characters, and no spaces but the plain one.
        and all(unicodedata.category(c)[0] not in "CZ" for c in name.replace(" ", ""))
    )
    if not good:
        raise VoiceError(
            f"{printable(name[:100])!r} is no name for a voice: use up to {_MAX_NAME_CHARACTERS} "
            "letters, digits, - and _, beginning with a letter or digit."
        )


def printable(text: str) -> str:
    """Return text that can be shown anywhere: control characters and wrong bytes are escaped."""
    return "".join(
        character if character.isprintable() else ascii(character)[1:-1] for character in text
    )


def _clips(state: FolderState) -> list[str]:
    return [name for name in CLIP_NAMES if name in state.names]


def _kind(state: FolderState) -> VoiceKind:
    if not _clips(state):
        is_described = DESCRIPTION_NAME in state.names or SETTINGS_NAME not in state.names
        return VoiceKind.DESIGNED if is_described else VoiceKind.PRESET
    return VoiceKind.ICL if TRANSCRIPT_NAME in state.names else VoiceKind.X_VECTOR


def _read_files(voice: LibraryVoice, root: Path) -> LibraryVoice:
    names, clips = voice.state.names, _clips(voice.state)
    if voice.state.error is not None:
        raise VoiceError(f"The folder cannot be read: {voice.state.error}.")
    check_voice_name(unicodedata.normalize("NFC", voice.directory.name))
    if language_code(voice.directory.parent.name) is None:
        raise VoiceError(
            f"The folder {voice.language!r} is no language of the models; move the voice to "
            "zh, en, ja, ko, de, fr, ru, pt, es or it."
        )
    for path in (voice.directory, *(voice.directory / name for name in sorted(names))):
        _check_inside(path, root)
    if len(clips) > 1:
        raise VoiceError(f"There are several clips ({', '.join(clips)}); keep one.")
    if SETTINGS_NAME in names:
        voice = replace(voice, settings=read_settings(voice.directory / SETTINGS_NAME))
    _check_preset(voice)
    match voice.kind:
        case VoiceKind.PRESET:
            return voice
        case VoiceKind.DESIGNED:
            return replace(voice, text=_read_description(voice.directory / DESCRIPTION_NAME))
        case VoiceKind.ICL:
            voice = replace(voice, text=_one_line(voice.directory / TRANSCRIPT_NAME))
    check_clip(voice)
    return voice


def _check_preset(voice: LibraryVoice) -> None:
    """Check that a folder has one source: clip, description or the preset of its settings."""
    is_bare = voice.clip is None and DESCRIPTION_NAME not in voice.state.names
    if is_bare and voice.settings.preset is None:
        raise VoiceError(
            f"There is neither a clip ({', '.join(CLIP_NAMES)}) nor a description "
            f"({DESCRIPTION_NAME}), nor a preset in {SETTINGS_NAME}; put one there, or remove the "
            "folder."
        )
    if not is_bare and voice.settings.preset is not None:
        raise VoiceError(
            f"{SETTINGS_NAME} names the preset {printable(voice.settings.preset)}, but there is a "
            "clip or a description too; keep one of them."
        )


def check_clip(voice: LibraryVoice) -> float:
    """Check the clip of a cloned voice and its transcript; return its seconds of speech.

    Raises:
        VoiceError: They cannot be used.
    """
    if voice.clip is None:
        raise VoiceError(f"The voice {voice.name} has no clip.")
    samples = load_reference_clip(voice.clip, _CHECK_RATE_HZ)
    duration_s = speech_duration_s(samples, _CHECK_RATE_HZ)
    if voice.kind is VoiceKind.ICL and (voice.settings.check_transcript or not voice.text):
        try:
            check_transcript(voice.text, duration_s)
        except VoiceError as error:
            hint = f" (If it is all there: check_transcript: false in {SETTINGS_NAME}.)"
            raise VoiceError(f"{error}{hint if voice.text else ''}") from error
    return duration_s


def _check_inside(path: Path, root: Path) -> None:
    """Refuse links that lead out of the library, and whatever is no ordinary file or folder."""
    try:
        real = path.resolve(strict=True)
        mode = real.stat().st_mode
    except (OSError, RuntimeError) as error:
        raise VoiceError(f"{path.name} cannot be read; is it a link to nothing?") from error
    if not real.is_relative_to(root.resolve()):
        raise VoiceError(
            f"{printable(path.name)} is a link that leads out of the voice library; copy what it "
            "points to instead."
        )
    if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
        raise VoiceError(f"{path.name} is no ordinary file.")


def _read_description(path: Path) -> str:
    text = _one_line(path)
    if not text:
        raise VoiceError(f"{path.name} is empty; describe the voice in it.")
    return text


def _one_line(path: Path) -> str:
    return " ".join(read_text(path).split())
