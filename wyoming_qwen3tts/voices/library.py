"""The voice library: the voices of all data directories, and how they become ready to speak."""

import asyncio
import logging
import multiprocessing
import threading
import time
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeAlias

from wyoming_qwen3tts.arrays import AnyArray
from wyoming_qwen3tts.errors import VoiceError
from wyoming_qwen3tts.runtime.manifest import Manifest
from wyoming_qwen3tts.runtime.speech_model import SpeechModel
from wyoming_qwen3tts.settings import suggestion
from wyoming_qwen3tts.text.language import language_code
from wyoming_qwen3tts.voices.clips import (
    ClonedVoice,
    cache_path,
    cloned_voice,
    encode_apart,
    encode_clip,
    load_encoded,
    read_clip_file,
    store_encoded,
)
from wyoming_qwen3tts.voices.voice_folder import (
    CLIP_NAMES,
    DESCRIPTION_NAME,
    LibraryVoice,
    escape_control_chars,
    read_voice,
    voice_key,
)

_LOGGER = logging.getLogger(__name__)

LIBRARY_NAME: Final = "voices"  # folder in each data directory

_CLIP_SUFFIXES = frozenset(Path(name).suffix for name in CLIP_NAMES)
_MAX_PREPARED = 16
_MAX_SCAN_AGE_S = 2.0
_SCAN_PATIENCE_S = 3.0
# The first scan reads every clip, and there are no earlier voices to answer with.
_FIRST_SCAN_PATIENCE_S = 10.0

Encode: TypeAlias = Callable[[bytes, str | None, SpeechModel], dict[str, AnyArray]]


class VoiceLibrary:
    """Finds voices and prepares them; may be used from several threads."""

    def __init__(self, data_dirs: Sequence[Path], encode: Encode = encode_clip) -> None:
        """Look into ``voices/`` of each data directory; the first voice of a name is taken."""
        self._roots = [data_dir / LIBRARY_NAME for data_dir in data_dirs]
        # Held for as long as a disk takes, so never by the event loop.
        self._scanning = threading.Lock()
        self._preparing = threading.Lock()
        self._known: dict[Path, LibraryVoice] = {}
        self._voices: tuple[LibraryVoice, ...] = ()
        self._scan: Future[tuple[LibraryVoice, ...]] | None = None
        self._scan_started_s = 0.0
        self._prepared: dict[Hashable, tuple[Hashable, Future[ClonedVoice]]] = {}
        self._encoder = ThreadPoolExecutor(1, "clip-encoder")
        self._encode = encode

    def scan(self) -> tuple[LibraryVoice, ...]:
        """Return every voice as its folder is now, sorted by name, unusable ones too.

        A voice is read again only when its files have changed. Problems are logged once.
        """
        with self._scanning:
            self._known = {
                voice.directory: voice
                for root in self._roots
                for voice in _walk(root, root, self._known)
            }
            voices = list(_with_unique_names(self._known.values()))
            reported = {voice.directory: voice.problem for voice in self._voices}
            for voice in voices:
                if voice.problem and reported.get(voice.directory) != voice.problem:
                    path = escape_control_chars(str(voice.directory))
                    _LOGGER.warning("Skipping voice %s: %s", path, voice.problem)
            voices.sort(key=lambda voice: (voice_key(voice.name), voice.language))
            self._voices = tuple(voices)
        return self._voices

    async def voices(self) -> tuple[LibraryVoice, ...]:
        """Return the voices of a scan of the last seconds; of an older one while a disk hangs."""
        now_s = time.monotonic()
        if self._scan is None or (
            self._scan.done() and now_s >= self._scan_started_s + _MAX_SCAN_AGE_S
        ):
            self._scan, self._scan_started_s = _in_daemon_thread(self.scan), now_s
        patience_s = _SCAN_PATIENCE_S if self._known else _FIRST_SCAN_PATIENCE_S
        timeout_s = self._scan_started_s + patience_s - now_s
        if not self._scan.done() and timeout_s > 0:
            await asyncio.wait([asyncio.wrap_future(self._scan)], timeout=timeout_s)
            if not self._scan.done():
                _LOGGER.warning("Voice folders do not answer; using the voices of the last scan")
        return self._scan.result() if self._scan.done() else self._voices

    def named(self, name: str) -> list[LibraryVoice]:
        """Return the voices of a name, unusable ones too; a VoiceError suggests another name."""
        voices = self.scan()
        named = [voice for voice in voices if voice_key(voice.name) == voice_key(name)]
        if not named:
            near = suggestion(name, [voice.name for voice in voices])
            shown = escape_control_chars(name[:100])
            raise VoiceError(f"There is no voice {shown!r} in the library{near}.")
        return named

    def prepare(self, voice: LibraryVoice, model: SpeechModel) -> Future[ClonedVoice]:
        """Return a cloned voice as a Base model speaks it; the future may raise a VoiceError.

        A new clip is encoded first: in one thread, one clip at a time, once for all who wait.
        Prepared voices and encodings on disk do not wait for that thread.
        """
        key = (voice.directory, model.name, model.encoder_id)
        with self._preparing:
            files, future = self._prepared.get(key, ((), None))
            is_failed = future is not None and future.done() and future.exception() is not None
            if future is None or is_failed or files != voice.files:
                future = _in_daemon_thread(partial(self._clone, voice, model))
                self._prepared[key] = (voice.files, future)
                while len(self._prepared) > _MAX_PREPARED:  # each has some MB of codec state
                    self._prepared.pop(next(iter(self._prepared)))
        return future

    def is_encoded(self, voice: LibraryVoice, manifest: Manifest) -> bool:
        """Return whether a clip's encoding for a model is on disk; reads the clip."""
        content = read_clip_file(voice.clip or voice.directory)
        return cache_path(voice.directory, content, voice.text, manifest).exists()

    def close(self) -> None:
        """Cancel the encodings."""
        self._encoder.shutdown(wait=False, cancel_futures=True)
        if self._encode is encode_apart:  # only in a server are all children ours
            for child in multiprocessing.active_children():
                child.terminate()

    def _clone(self, voice: LibraryVoice, model: SpeechModel) -> ClonedVoice:
        try:
            content = read_clip_file(voice.clip or voice.directory)
            path = cache_path(voice.directory, content, voice.text, model)
            if (kept := load_encoded(path, voice.text, model)) is not None:
                return kept
            encoded = self._encoder.submit(self._encode, content, voice.text, model).result()
            store_encoded(path, encoded)
            return cloned_voice(encoded, voice.text, model)
        except VoiceError as error:
            raise VoiceError(f"The voice {voice.name} cannot be used: {error}") from error


def _in_daemon_thread(function: Callable[[], Any]) -> Future[Any]:
    """Start a function in a thread that does not keep the process from exiting."""
    future: Future[Any] = Future()

    def work() -> None:
        try:
            future.set_result(function())
        except BaseException as error:  # noqa: BLE001 - the future raises it
            future.set_exception(error)

    threading.Thread(target=work, name="voices", daemon=True).start()
    return future


def _walk(folder: Path, root: Path, known: Mapping[Path, LibraryVoice]) -> Iterator[LibraryVoice]:
    """Yield the voices, whose folders are two levels below the root, and clips beside them."""
    try:
        for path in sorted(folder.iterdir()):
            if path.name.startswith("."):
                continue
            if path.is_dir() and folder == root:
                yield from _walk(path, root, known)
            elif path.is_dir():
                yield read_voice(path, root, known.get(path))
            elif path.suffix.lower() in _CLIP_SUFFIXES or path.name.lower() == DESCRIPTION_NAME:
                yield _skipped(
                    path,
                    f"{escape_control_chars(path.name)} is not in the folder of a voice; move it "
                    f"to {LIBRARY_NAME}/LANGUAGE/NAME/{CLIP_NAMES[0]}, or use: voice add NAME "
                    "--audio FILE",
                )
    except (FileNotFoundError, NotADirectoryError):
        return
    except OSError as error:
        yield _skipped(folder, f"The folder cannot be read: {error.strerror or error}.")


def _skipped(path: Path, problem: str) -> LibraryVoice:
    is_fixed_name = path.name.lower() in {*CLIP_NAMES, DESCRIPTION_NAME}
    return LibraryVoice(
        name=escape_control_chars(path.parent.name if is_fixed_name else path.stem),
        language=language_code(path.parent.name) or "?",
        directory=path,
        problem=problem,
    )


def _with_unique_names(voices: Iterable[LibraryVoice]) -> Iterator[LibraryVoice]:
    """Yield the voices; of usable ones with the same name only the first stays usable."""
    owners: dict[str, LibraryVoice] = {}
    for voice in voices:
        key = voice_key(voice.name)
        if voice.problem is None and owners.setdefault(key, voice) is not voice:
            problem = f"Its name is that of {owners[key].directory}; rename one of the two folders."
            yield replace(voice, problem=problem)
        else:
            yield voice
