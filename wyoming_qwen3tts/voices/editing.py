"""Changes to the voice library: voices are added, removed, and designed from a description.

A VoiceDesign model makes a slightly different voice at every request. A designed voice is frozen
by keeping one of several candidates as a clip, which a Base model clones. Candidates wait in
``voices/.designs/<name>/``, which no scan of the library looks into.
"""

import json
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from functools import cache
from pathlib import Path
from typing import Final, TypeAlias

import numpy as np
import soundfile
import yaml

from wyoming_qwen3tts.audio import AudioChunk
from wyoming_qwen3tts.errors import VoiceError
from wyoming_qwen3tts.files import atomic_directory, remove_directory
from wyoming_qwen3tts.runtime.speech_model import SpeechModel
from wyoming_qwen3tts.synthesis.request import DesignedVoice, SynthesisRequest, default_options
from wyoming_qwen3tts.synthesis.synthesizer import Synthesizer
from wyoming_qwen3tts.synthesis.utterance import FinishReason
from wyoming_qwen3tts.text.language import known_language, model_language
from wyoming_qwen3tts.voices.clips import (
    check_transcript,
    decode_reference_clip,
    read_clip_file,
    speech_duration_s,
)
from wyoming_qwen3tts.voices.library import LIBRARY_NAME
from wyoming_qwen3tts.voices.voice_folder import (
    CHECK_RATE_HZ,
    CLIP_NAMES,
    SETTINGS_NAME,
    TRANSCRIPT_NAME,
    LibraryVoice,
    check_voice_name,
)

_DESIGNS_NAME: Final = ".designs"
_DESIGN_NAME: Final = "design.json"
# A little under the limit of a clip: longer speech has not found its end.
_MAX_SPEECH_S: Final = 28.0


@cache
def design_texts() -> dict[str, str]:
    """Return what candidates say, by language."""
    text = Path(__file__).with_name("design_texts.yaml").read_text(encoding="utf-8")
    texts: dict[str, str] = yaml.safe_load(text)
    return texts


def add_voice(
    root: Path,
    name: str,
    language: str,
    audio: Path,
    transcript: str | None = None,
    description: str | None = None,
) -> Path:
    """Check a clip, write it as a voice folder of the library ``root``, and return the folder.

    Without a transcript, only the timbre is cloned.
    """
    check_voice_name(name)
    content = read_clip_file(audio)
    samples = decode_reference_clip(content, CHECK_RATE_HZ)
    if transcript is not None:
        check_transcript(transcript, speech_duration_s(samples, CHECK_RATE_HZ))
    target = root / known_language(language) / name
    if target.exists():
        raise VoiceError(f"{target} is there already; remove it first, or choose another name.")
    with _new_folder(target) as folder:
        clip_name = f"ref{audio.suffix.lower()}"
        if clip_name in CLIP_NAMES:
            (folder / clip_name).write_bytes(content)
        else:
            _write_clip(folder / CLIP_NAMES[0], AudioChunk(samples, CHECK_RATE_HZ))
        if transcript is not None:
            text = " ".join(transcript.split())
            (folder / TRANSCRIPT_NAME).write_text(f"{text}\n", encoding="utf-8")
        if description:
            settings = yaml.safe_dump({"description": description}, allow_unicode=True)
            (folder / SETTINGS_NAME).write_text(settings, encoding="utf-8")
    return target


def remove_voice(voice: LibraryVoice) -> None:
    """Remove a voice's folder, of a link only the link, or raise a VoiceError."""
    path = voice.directory
    if path.is_dir() and path.parent.parent.name != LIBRARY_NAME:
        raise VoiceError(f"{path} is not the folder of one voice; remove it by hand.")
    try:
        if path.is_symlink() or path.is_file():
            path.unlink()
        else:
            remove_directory(path)
    except OSError as error:
        reason = error.strerror or error
        raise VoiceError(f"The voice {voice.name} cannot be removed: {reason}.") from error


def _write_clip(path: Path, audio: AudioChunk) -> None:
    soundfile.write(path, audio.samples, audio.sample_rate_hz, format="WAV", subtype="PCM_16")


@contextmanager
def _new_folder(target: Path) -> Iterator[Path]:
    try:
        with atomic_directory(target) as folder:
            yield folder
    except OSError as error:
        raise VoiceError(f"{target} cannot be written: {error.strerror or error}.") from error


@dataclass(frozen=True)
class DesignBrief:
    """The voice that is wanted, and what its candidates say."""

    description: str
    language: str
    """Plain two-letter code."""
    text: str


Designer: TypeAlias = Callable[[DesignBrief, int], AudioChunk]
"""Speaks a brief with a seed, or raises a VoiceError."""


def speak_brief(model: SpeechModel, brief: DesignBrief, seed: int) -> AudioChunk:
    """Speak with a VoiceDesign model; a VoiceError if the speech does not come to an end."""
    facts, synthesizer = model.facts, Synthesizer(model)
    options = default_options(facts.generation, seed)
    max_frames = min(options.max_frames, int(_MAX_SPEECH_S * facts.frame_rate_hz))
    options = replace(options, language=model_language(brief.language), max_frames=max_frames)
    request = SynthesisRequest(brief.text, DesignedVoice(brief.description), options)
    speech = synthesizer.submit(request)
    chunks = [chunk.samples for chunk in synthesizer.follow(speech)]
    if speech.finish_reason is not FinishReason.STOP:
        raise VoiceError("It did not come to an end.")
    return AudioChunk(np.concatenate([*chunks, np.zeros(0, np.float32)]), facts.sample_rate_hz)


def design_voice(
    root: Path, name: str, brief: DesignBrief, speak: Designer, seeds: Iterable[int]
) -> dict[Path, str | None]:
    """Speak a candidate for each seed, in place of an earlier design of that name.

    Returns their files with the reason why one cannot become a voice; that one is not kept.
    """
    problems: dict[Path, str | None] = {}
    target = root / _DESIGNS_NAME / name
    with _new_folder(target) as folder:
        for number, seed in enumerate(seeds, 1):
            path, problem = folder / f"candidate-{number}.wav", None
            try:
                _write_clip(path, speak(brief, seed))
                samples = decode_reference_clip(read_clip_file(path), CHECK_RATE_HZ)
                check_transcript(brief.text, speech_duration_s(samples, CHECK_RATE_HZ))
            except VoiceError as error:
                problem = str(error)
                path.unlink(missing_ok=True)
            problems[target / path.name] = problem
        text = json.dumps(asdict(brief), indent=2, ensure_ascii=False)
        (folder / _DESIGN_NAME).write_text(f"{text}\n", encoding="utf-8")
    return problems


def keep_candidate(root: Path, name: str, number: int) -> Path:
    """Make a candidate (from 1) a voice, remove the others, and return the voice's folder."""
    folder = root / _DESIGNS_NAME / name
    try:
        design = json.loads((folder / _DESIGN_NAME).read_text(encoding="utf-8"))
        design.pop("candidates", None)  # of older versions
        brief = DesignBrief(**design)
    except FileNotFoundError as error:
        raise VoiceError(
            f"No voice {name} was designed; make candidates with: voice design DESCRIPTION "
            f"--name {name}"
        ) from error
    except (OSError, ValueError, TypeError, AttributeError) as error:
        raise VoiceError(f"The design in {folder} is damaged; design the voice again.") from error
    clip = folder / f"candidate-{number}.wav"
    if not clip.exists():
        there = ", ".join(sorted(path.stem.rpartition("-")[2] for path in folder.glob("*.wav")))
        raise VoiceError(f"{name} has no candidate {number} that can be kept; there are: {there}")
    directory = add_voice(root, name, brief.language, clip, brief.text, brief.description)
    remove_directory(folder)
    return directory
