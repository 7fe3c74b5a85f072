"""Changes to the voice library: whole voice folders come and go, never half ones."""

import errno
import os
import secrets
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import soundfile
import yaml

from wyoming_qwen3tts.arrays import Float32Array
from wyoming_qwen3tts.errors import VoiceError
from wyoming_qwen3tts.text.language import language_code
from wyoming_qwen3tts.voices.clips import (
    check_transcript,
    decode_reference_clip,
    read_clip_file,
    speech_duration_s,
)
from wyoming_qwen3tts.voices.voice_folder import (
    CLIP_NAMES,
    TRANSCRIPT_NAME,
    LibraryVoice,
    check_voice_name,
)
from wyoming_qwen3tts.voices.voice_settings import SETTINGS_NAME

CLIP_RATE_HZ: Final = 24_000
"""Rate of the clips that are written here; that of every published model."""

_PART_SUFFIX = ".part"
_ABANDONED_S = 3_600


@dataclass(frozen=True)
class NewVoice:
    """A voice to add to the library."""

    name: str
    language: str
    """Plain two-letter code."""
    audio: Path
    transcript: str | None = None
    """What the clip says; None clones the timbre alone."""
    description: str | None = None


def add_voice(root: Path, voice: NewVoice) -> Path:
    """Check a clip and make a voice folder of it; return the folder.

    Args:
        root: The library; it is made when it is not there.
        voice: Its name must not be taken.

    Raises:
        VoiceError: The name, the clip or the transcript cannot be used, or the folder cannot be
            written.
    """
    check_voice_name(voice.name)
    if language_code(voice.language) != voice.language:
        raise VoiceError(f"{voice.language!r} is no language code; use one such as en or de.")
    content = read_clip_file(voice.audio)
    samples = decode_reference_clip(content, CLIP_RATE_HZ)
    if voice.transcript is not None:
        check_transcript(voice.transcript, speech_duration_s(samples, CLIP_RATE_HZ))
    with new_folder(root / voice.language / voice.name) as folder:
        clip_name = f"ref{voice.audio.suffix.lower()}"
        if clip_name in CLIP_NAMES:
            (folder / clip_name).write_bytes(content)
        else:
            write_clip(folder / CLIP_NAMES[0], samples)
        if voice.transcript is not None:
            text = " ".join(voice.transcript.split())
            (folder / TRANSCRIPT_NAME).write_text(f"{text}\n", encoding="utf-8")
        if voice.description:
            settings = yaml.safe_dump({"description": voice.description}, allow_unicode=True)
            (folder / SETTINGS_NAME).write_text(settings, encoding="utf-8")
    return root / voice.language / voice.name


def write_clip(path: Path, samples: Float32Array, rate_hz: int = CLIP_RATE_HZ) -> None:
    """Write samples (S,) in [-1, 1] as 16-bit wav."""
    soundfile.write(path, samples, rate_hz, format="WAV", subtype="PCM_16")


def remove_voice(voice: LibraryVoice) -> None:
    """Remove a voice's folder; of a link only the link.

    Raises:
        VoiceError: It cannot be removed.
    """
    try:
        if voice.directory.is_symlink():
            voice.directory.unlink()
        else:
            remove_folder(voice.directory)
    except OSError as error:
        raise VoiceError(
            f"The voice {voice.name} cannot be removed: {error.strerror or error}."
        ) from error


def remove_folder(folder: Path) -> None:
    """Remove a folder so that nobody ever sees a part of it."""
    hidden = _hidden_beside(folder)
    folder.rename(hidden)
    shutil.rmtree(hidden)


@contextmanager
def new_folder(target: Path, *, replace: bool = False) -> Iterator[Path]:
    """Give an empty hidden folder, which becomes ``target`` when the block ends without an error.

    Raises:
        VoiceError: ``target`` is there already (and is not to be replaced), or nothing can be
            written.
    """
    if target.exists() and not replace:
        raise _taken(target)
    part = _hidden_beside(target)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        _sweep(target.parent)
        part.mkdir()
        yield part
        _sync(part)
        if replace and target.exists():
            remove_folder(target)
        _give_name(part, target)
    except OSError as error:
        raise VoiceError(f"{target} cannot be written: {error.strerror or error}.") from error
    finally:
        shutil.rmtree(part, ignore_errors=True)


def _give_name(part: Path, target: Path) -> None:
    try:
        part.rename(target)
    except OSError as error:
        # Somebody made the folder meanwhile: a full folder is never renamed over.
        if error.errno in (errno.EEXIST, errno.ENOTEMPTY):
            raise _taken(target) from error
        raise


def _taken(target: Path) -> VoiceError:
    return VoiceError(f"{target} is there already; remove it first, or choose another name.")


def _hidden_beside(target: Path) -> Path:
    return target.with_name(f".{target.name}.{secrets.token_hex(4)}{_PART_SUFFIX}")


def _sync(folder: Path) -> None:
    """Have files on the disk before their folder gets its name: a crash leaves none empty."""
    for path in folder.iterdir():
        with path.open("rb") as file:
            os.fsync(file.fileno())


def _sweep(parent: Path) -> None:
    """Remove what killed writes left long ago."""
    for path in parent.glob(f".*{_PART_SUFFIX}"):
        if time.time() - path.stat().st_mtime > _ABANDONED_S:
            shutil.rmtree(path, ignore_errors=True)
