"""Changes to the voice library: voices are added, removed, and designed from a description.

A VoiceDesign model makes a slightly different voice at every request. A designed voice is frozen
by keeping one of several candidates as a clip, which a Base model clones. Candidates wait in
``voices/.designs/<name>/``, which no scan of the library looks into.
"""

import json
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from functools import cache
from pathlib import Path
from typing import Final

import numpy as np
import soundfile
import yaml

from wyoming_qwen3tts.arrays import Float32Array
from wyoming_qwen3tts.errors import RequestError, VoiceError
from wyoming_qwen3tts.files import atomic_directory, remove_directory
from wyoming_qwen3tts.runtime.speech_model import SpeechModel
from wyoming_qwen3tts.synthesis.request import DesignedVoice, SynthesisRequest, default_options
from wyoming_qwen3tts.synthesis.synthesizer import Synthesizer
from wyoming_qwen3tts.synthesis.utterance import FinishReason
from wyoming_qwen3tts.text.language import language_code, model_language
from wyoming_qwen3tts.voices.clips import (
    check_transcript,
    decode_reference_clip,
    load_reference_clip,
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

DESIGNS_NAME: Final = ".designs"
_DESIGN_NAME = "design.json"
# A little under the limit of a clip: longer speech has not found its end.
_MAX_SPEECH_S = 28.0


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

    Without a transcript, only the timbre is cloned. The language is a plain two-letter code.

    Raises:
        VoiceError: The name is taken, the name, clip or transcript cannot be used, or the folder
            cannot be written.
    """
    check_voice_name(name)
    if language_code(language) != language:
        raise VoiceError(f"{language!r} is not a language code; use one such as en or de.")
    content = read_clip_file(audio)
    samples = decode_reference_clip(content, CHECK_RATE_HZ)
    if transcript is not None:
        check_transcript(transcript, speech_duration_s(samples, CHECK_RATE_HZ))
    target = root / language / name
    if target.exists():
        raise VoiceError(f"{target} is there already; remove it first, or choose another name.")
    with _new_folder(target) as folder:
        clip_name = f"ref{audio.suffix.lower()}"
        if clip_name in CLIP_NAMES:
            (folder / clip_name).write_bytes(content)
        else:
            write_clip(folder / CLIP_NAMES[0], samples, CHECK_RATE_HZ)
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


def write_clip(path: Path, samples: Float32Array, rate_hz: int) -> None:
    """Write samples (S,) in [-1, 1] as 16-bit wav."""
    soundfile.write(path, samples, rate_hz, format="WAV", subtype="PCM_16")


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


@dataclass(frozen=True)
class Candidate:
    """One candidate on disk."""

    seed: int
    duration_s: float
    problem: str | None
    """Why it cannot become a voice; None if it can."""


class VoiceDesigner:
    """Speaks design briefs with a VoiceDesign model."""

    def __init__(self, model: SpeechModel) -> None:
        """Raise a RequestError if it is not a VoiceDesign model."""
        if model.facts.model_type != "voice_design":
            raise RequestError(
                f"{model.name} is a {model.facts.model_type} model; designing a voice needs a "
                "VoiceDesign model. Name one with --model."
            )
        self._synthesizer = Synthesizer(model)
        self.sample_rate_hz = model.facts.sample_rate_hz

    def speak(self, brief: DesignBrief, seed: int) -> tuple[Float32Array, bool]:
        """Return samples (S,), and whether the speech came to its end by itself."""
        facts = self._synthesizer.model.facts
        options = default_options(facts.generation, seed)
        options = replace(
            options,
            language=model_language(brief.language),
            max_frames=min(options.max_frames, int(_MAX_SPEECH_S * facts.frame_rate_hz)),
        )
        voice = DesignedVoice(brief.description)
        speech = self._synthesizer.submit(SynthesisRequest(brief.text, voice, options))
        chunks = [chunk.samples for chunk in self._synthesizer.follow(speech)]
        samples = np.concatenate([*chunks, np.zeros(0, np.float32)])
        return samples, speech.finish_reason is FinishReason.STOP


def design_voice(
    root: Path, name: str, brief: DesignBrief, designer: VoiceDesigner, seeds: Iterable[int]
) -> list[Candidate]:
    """Speak one candidate for each seed, in place of an earlier design of that name.

    Raises:
        VoiceError: The name cannot be that of a voice, or nothing can be written.
    """
    candidates: list[Candidate] = []
    check_voice_name(name)
    with _new_folder(root / DESIGNS_NAME / name) as folder:
        for seed in seeds:
            path = candidate_path(folder, len(candidates) + 1)
            candidates.append(_make_candidate(designer, brief, seed, path))
        design = asdict(brief) | {"candidates": [asdict(candidate) for candidate in candidates]}
        text = json.dumps(design, indent=2, ensure_ascii=False)
        (folder / _DESIGN_NAME).write_text(f"{text}\n", encoding="utf-8")
    return candidates


def _make_candidate(
    designer: VoiceDesigner, brief: DesignBrief, seed: int, path: Path
) -> Candidate:
    """Speak a brief into a wav file and judge it as a clip to clone."""
    samples, has_ended = designer.speak(brief, seed)
    rate_hz, problem = designer.sample_rate_hz, None
    write_clip(path, samples, rate_hz)
    try:
        speech_s = speech_duration_s(load_reference_clip(path, rate_hz), rate_hz)
        check_transcript(brief.text, speech_s)
    except VoiceError as error:
        problem = str(error)
    if not has_ended:
        problem = "It did not come to an end."
    return Candidate(seed, len(samples) / rate_hz, problem)


def candidate_path(folder: Path, number: int) -> Path:
    """Return the file of a candidate, counted from 1."""
    return folder / f"candidate-{number}.wav"


def keep_candidate(root: Path, name: str, number: int) -> Path:
    """Make a candidate (from 1) a voice, remove the others, and return the voice's folder.

    Raises:
        VoiceError: There is no such candidate, it cannot be used, or the name is taken.
    """
    check_voice_name(name)
    folder = root / DESIGNS_NAME / name
    brief, candidates = _load_design(folder)
    if not 1 <= number <= len(candidates):
        raise VoiceError(f"The voice {name} has candidates 1 to {len(candidates)}, not {number}.")
    candidate = candidates[number - 1]
    if candidate.problem is not None:
        raise VoiceError(f"Candidate {number} of {name} is unusable: {candidate.problem}")
    clip = candidate_path(folder, number)
    directory = add_voice(root, name, brief.language, clip, brief.text, brief.description)
    remove_directory(folder)
    return directory


def _load_design(folder: Path) -> tuple[DesignBrief, list[Candidate]]:
    path = folder / _DESIGN_NAME
    try:
        design = json.loads(path.read_text(encoding="utf-8"))
        candidates = [Candidate(**candidate) for candidate in design.pop("candidates")]
        return DesignBrief(**design), candidates
    except FileNotFoundError as error:
        raise VoiceError(
            f"No voice {folder.name} was designed; make candidates with: voice design "
            f"DESCRIPTION --name {folder.name}"
        ) from error
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise VoiceError(f"{path} is damaged; design the voice again.") from error
