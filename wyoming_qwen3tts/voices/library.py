"""The voice library: every voice folder in the data directories, and its voice ready to speak.

A scan costs a few system calls for each voice that has not changed, so it may run at every
``describe``: voices come, change and go without a restart.
"""

import difflib
import logging
import threading
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final, NamedTuple

from wyoming_qwen3tts.errors import VoiceError
from wyoming_qwen3tts.runtime.speech_model import SpeechModel
from wyoming_qwen3tts.synthesis.request import DesignedVoice, PresetSpeaker, Voice
from wyoming_qwen3tts.voices import voice_cache
from wyoming_qwen3tts.voices.clips import read_clip_file
from wyoming_qwen3tts.voices.cloning import cloned_voice, encode_clip
from wyoming_qwen3tts.voices.voice_folder import (
    FolderState,
    LibraryVoice,
    VoiceKind,
    folder_state,
    printable,
    read_voice,
)

_LOGGER = logging.getLogger(__name__)

LIBRARY_NAME: Final = "voices"
"""Folder of the library in each data directory."""

_MAX_PREPARED = 64
_ESCAPES = "It is a link that leads out of the voice library; copy what it points to instead."


class _PreparedKey(NamedTuple):
    directory: Path
    state: FolderState
    model_name: str
    encoder_id: str


class VoiceLibrary:
    """Finds voices and makes them ready; may be used from several threads."""

    def __init__(self, data_dirs: Sequence[Path]) -> None:
        """Look into ``voices/`` of each data directory; earlier ones win a name."""
        self._roots = [data_dir / LIBRARY_NAME for data_dir in data_dirs]
        self._known: dict[Path, LibraryVoice] = {}
        self._reported: dict[Path, str] = {}
        self._scanning = threading.Lock()
        self._prepared: OrderedDict[_PreparedKey, Voice] = OrderedDict()
        self._preparing = threading.Lock()

    def scan(self) -> tuple[LibraryVoice, ...]:
        """Return every voice as its folder stands now, sorted by name, unusable ones too.

        A problem is logged when it is found; a voice is read again when its files change.
        """
        with self._scanning:
            folders = [(path, root) for root in self._roots for path in _folders(root)]
            escaping = {path for path, root in folders if not _is_inside(path, root)}
            self._known = {
                directory: self._read(directory, root)
                for language, root in folders
                if language not in escaping
                for directory in _folders(language)
            }
            voices = _with_unique_names(self._known.values())
            problems = {voice.directory: voice.problem for voice in voices if voice.problem}
            self._report(problems | dict.fromkeys(escaping, _ESCAPES))
        return tuple(sorted(voices, key=lambda voice: (voice.name.casefold(), voice.language)))

    def find(self, name: str) -> LibraryVoice:
        """Return the usable voice of a name, matched case-blind.

        Raises:
            VoiceError: There is none, or it cannot be used; the message says why.
        """
        voices = self.scan()
        named = [voice for voice in voices if voice.name.casefold() == name.casefold()]
        for voice in named:
            if voice.problem is None:
                return voice
        if named:
            raise VoiceError(f"The voice {named[0].name} cannot be used: {named[0].problem}")
        near = difflib.get_close_matches(name, [voice.name for voice in voices], n=1)
        hint = f"; did you mean {near[0]}?" if near else "."
        raise VoiceError(f"There is no voice {printable(name[:100])!r} in the library{hint}")

    def prepare(self, entry: LibraryVoice, model: SpeechModel, encoder_id: str = "") -> Voice:
        """Return the voice as a model speaks it, encoding its clip only if nobody has yet.

        Args:
            entry: A usable voice.
            model: A model of the entry's ``model_type``.
            encoder_id: What tells the model's encoders from others, see
                :func:`voice_cache.encoder_id`; part of the cache's key.

        Raises:
            VoiceError: The voice, or its clip as it is now, cannot be used with this model.
        """
        if entry.problem is not None:
            raise VoiceError(f"The voice {entry.name} cannot be used: {entry.problem}")
        if entry.kind is VoiceKind.DESIGNED:
            return DesignedVoice(entry.text)
        if entry.kind is VoiceKind.PRESET:
            return PresetSpeaker((entry.settings.preset or "").strip().replace(" ", "_"))
        key = _PreparedKey(entry.directory, entry.state, model.name, encoder_id)
        with self._preparing:
            if key not in self._prepared:
                self._prepared[key] = _prepare_clone(entry, model, encoder_id)
            self._prepared.move_to_end(key)
            while len(self._prepared) > _MAX_PREPARED:
                self._prepared.popitem(last=False)
            return self._prepared[key]

    def _read(self, directory: Path, root: Path) -> LibraryVoice:
        known = self._known.get(directory)
        if known is not None and known.state == folder_state(directory):
            return known
        return read_voice(directory, root)

    def _report(self, problems: Mapping[Path, str]) -> None:
        for path, problem in problems.items():
            if self._reported.get(path) != problem:
                _LOGGER.warning("Left out %s: %s", printable(str(path)), problem)
        self._reported = dict(problems)


def _folders(directory: Path) -> list[Path]:
    """Return the folders in a folder, sorted; hidden ones are left out."""
    try:
        return sorted(path for path in directory.iterdir() if _is_folder(path))
    except FileNotFoundError:
        return []
    except OSError as error:
        _LOGGER.warning("%s cannot be listed: %s", printable(str(directory)), error.strerror)
        return []


def _is_folder(path: Path) -> bool:
    if path.name.startswith("."):
        return False
    try:
        return path.is_dir()
    except OSError:  # it cannot even be looked at, which is for the voice to say
        return True


def _is_inside(path: Path, root: Path) -> bool:
    return path.resolve().is_relative_to(root.resolve())


def _with_unique_names(voices: Iterable[LibraryVoice]) -> list[LibraryVoice]:
    """Return the voices; of several usable ones with one name only the first stays usable."""
    owners: dict[str, LibraryVoice] = {}
    unique: list[LibraryVoice] = []
    for voice in voices:
        owner = owners.setdefault(voice.name.casefold(), voice) if voice.problem is None else voice
        if owner is not voice:
            problem = f"Its name is that of {owner.directory}; rename one of the two folders."
            unique.append(replace(voice, problem=problem))
        else:
            unique.append(voice)
    return unique


def _prepare_clone(entry: LibraryVoice, model: SpeechModel, encoder_id: str) -> Voice:
    if entry.clip is None:
        raise VoiceError(f"The voice {entry.name} has no clip.")
    content = read_clip_file(entry.clip)
    transcript = entry.text if entry.kind is VoiceKind.ICL else None
    key = voice_cache.cache_key(content, transcript, model, encoder_id)
    encoded = voice_cache.load(entry.directory, key, model.facts, has_codes=transcript is not None)
    if encoded is None:
        must_match = entry.settings.check_transcript
        try:
            encoded = encode_clip(content, transcript, model, must_match=must_match)
        except VoiceError as error:
            raise VoiceError(f"The voice {entry.name} cannot be used: {error}") from error
        voice_cache.store(entry.directory, key, encoded)
    return cloned_voice(encoded, transcript)
