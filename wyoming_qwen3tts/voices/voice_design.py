"""Designed voices, frozen: candidates made from a description, one of them kept as a clip to clone.

A VoiceDesign model invents the voice anew at every request. A clip of one such voice that a Base
model clones stays the same for ever. Candidates wait in ``voices/.designs/<name>/``, which no scan
of the library looks into.
"""

import json
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Final

import numpy as np

from wyoming_qwen3tts.arrays import Float32Array
from wyoming_qwen3tts.errors import RequestError, VoiceError
from wyoming_qwen3tts.runtime.speech_model import SpeechModel
from wyoming_qwen3tts.synthesis.frame_loop import FinishReason
from wyoming_qwen3tts.synthesis.request import DesignedVoice, SynthesisRequest, default_options
from wyoming_qwen3tts.synthesis.synthesizer import Synthesizer
from wyoming_qwen3tts.text.language import model_language
from wyoming_qwen3tts.voices.clips import (
    check_transcript,
    load_reference_clip,
    speech_duration_s,
)
from wyoming_qwen3tts.voices.editing import (
    NewVoice,
    add_voice,
    new_folder,
    remove_folder,
    write_clip,
)
from wyoming_qwen3tts.voices.voice_folder import check_voice_name

DESIGNS_NAME: Final = ".designs"

# A little under the limit of a clip: whatever runs on to here has not found its end.
_MAX_SPEECH_S = 28.0
_DESIGN_NAME = "design.json"

TEXTS: Final = {
    "zh": "早上好！咖啡已经准备好了，今天的天气会一直晴朗到傍晚。"
    "要不要我打开窗帘，在你吃早餐的时候给你读一读新闻？",
    "en": "Good morning! The coffee is ready, and the weather should stay bright until the "
    "evening. Would you like me to open the blinds and read you the news while you have breakfast?",
    "ja": "おはようございます。コーヒーの用意ができました。今日は夕方までよい天気が続くでしょう。"
    "カーテンを開けて、朝食のあいだにニュースを読みましょうか。",
    "ko": "좋은 아침이에요! 커피가 준비되었고, 오늘 날씨는 저녁까지 맑겠습니다. "
    "커튼을 열고 아침 식사를 하시는 동안 뉴스를 읽어 드릴까요?",
    "de": "Guten Morgen! Der Kaffee ist fertig, und das Wetter bleibt bis zum Abend freundlich. "
    "Soll ich die Rollläden öffnen und dir beim Frühstück die Nachrichten vorlesen?",
    "fr": "Bonjour ! Le café est prêt, et le temps devrait rester agréable jusqu'à ce soir. "
    "Voulez-vous que j'ouvre les volets et que je vous lise les nouvelles au petit déjeuner ?",
    "ru": "Доброе утро! Кофе готов, и погода останется ясной до самого вечера. "
    "Хотите, я открою шторы и почитаю вам новости за завтраком?",
    "pt": "Bom dia! O café está pronto e o tempo deve continuar agradável até à noite. "
    "Quer que eu abra as persianas e leia as notícias durante o café da manhã?",
    "es": "¡Buenos días! El café está listo y el tiempo seguirá agradable hasta la noche. "
    "¿Quieres que abra las persianas y te lea las noticias mientras desayunas?",
    "it": "Buongiorno! Il caffè è pronto e il tempo resterà bello fino a sera. "
    "Vuoi che apra le tapparelle e ti legga le notizie mentre fai colazione?",
}
"""What candidates say, by language: some ten seconds with a statement and a question."""


@dataclass(frozen=True)
class Brief:
    """What voice is wanted, and what its candidates say."""

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
    """Why no voice can be made of it; None if it can."""


class VoiceDesigner:
    """Speaks briefs with a VoiceDesign model."""

    def __init__(self, model: SpeechModel) -> None:
        """Prepare a model.

        Raises:
            RequestError: It is no VoiceDesign model.
        """
        if model.facts.model_type != "voice_design":
            raise RequestError(
                f"{model.name} is a {model.facts.model_type} model; designing a voice needs a "
                "VoiceDesign model. Name one with --model."
            )
        self._synthesizer = Synthesizer(model)
        self.sample_rate_hz = model.facts.sample_rate_hz

    def speak(self, brief: Brief, seed: int) -> tuple[Float32Array, bool]:
        """Return samples (S,), and whether the speech came to its end by itself.

        Raises:
            RequestError: The model does not speak the language.
            SynthesisError: The model failed.
        """
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


def make_candidate(designer: VoiceDesigner, brief: Brief, seed: int, path: Path) -> Candidate:
    """Speak a brief into a wav file and judge it as a clip to clone.

    Raises:
        RequestError: The model does not speak the language.
        SynthesisError: The model failed.
    """
    samples, has_ended = designer.speak(brief, seed)
    rate_hz = designer.sample_rate_hz
    write_clip(path, samples, rate_hz)
    problem = None if has_ended else "It did not come to an end."
    try:
        clip = load_reference_clip(path, rate_hz)
    except VoiceError as error:
        problem = problem or str(error)
    else:
        problem = problem or _pace_problem(brief.text, speech_duration_s(clip, rate_hz))
    return Candidate(seed, len(samples) / rate_hz, problem)


def _pace_problem(text: str, duration_s: float) -> str | None:
    try:
        check_transcript(text, duration_s)
    except VoiceError:
        return f"Its {duration_s:.1f} s of speech cannot be just the text."
    return None


def clip_name(number: int) -> str:
    """Return the file name of a candidate, counted from 1."""
    return f"candidate-{number}.wav"


def save_design(folder: Path, brief: Brief, candidates: list[Candidate]) -> None:
    """Write what candidates in a folder are."""
    design = asdict(brief) | {"candidates": [asdict(candidate) for candidate in candidates]}
    text = json.dumps(design, indent=2, ensure_ascii=False)
    (folder / _DESIGN_NAME).write_text(f"{text}\n", encoding="utf-8")


def load_design(folder: Path) -> tuple[Brief, list[Candidate]]:
    """Read what :func:`save_design` wrote.

    Raises:
        VoiceError: There is no such design, or it is damaged.
    """
    try:
        design = json.loads((folder / _DESIGN_NAME).read_text(encoding="utf-8"))
        candidates = [Candidate(**candidate) for candidate in design.pop("candidates")]
        return Brief(**design), candidates
    except FileNotFoundError as error:
        raise VoiceError(
            f"No voice {folder.name} was designed; make candidates with: voice design "
            f"DESCRIPTION --name {folder.name}"
        ) from error
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise VoiceError(f"{folder / _DESIGN_NAME} is damaged; design the voice again.") from error


def design_folder(root: Path, name: str) -> Path:
    """Return where the candidates of a voice wait.

    Raises:
        VoiceError: The name cannot be that of a voice.
    """
    check_voice_name(name)
    return root / DESIGNS_NAME / name


def new_design(root: Path, name: str) -> AbstractContextManager[Path]:
    """Give a folder for candidates that takes the place of an earlier design of that name."""
    return new_folder(design_folder(root, name), replace=True)


def keep_candidate(root: Path, name: str, number: int) -> Path:
    """Make a library voice of a candidate, remove the others, and return the voice's folder.

    Args:
        root: The library.
        name: Name that the voice was designed under, and will have.
        number: The candidate, counted from 1.

    Raises:
        VoiceError: There is no such candidate, it is no use, or the name is taken.
    """
    folder = design_folder(root, name)
    brief, candidates = load_design(folder)
    if not 1 <= number <= len(candidates):
        raise VoiceError(f"The voice {name} has candidates 1 to {len(candidates)}, not {number}.")
    candidate = candidates[number - 1]
    if candidate.problem is not None:
        raise VoiceError(f"Candidate {number} of {name} is no use: {candidate.problem}")
    voice = NewVoice(
        name=name,
        language=brief.language,
        audio=folder / clip_name(number),
        transcript=brief.text,
        description=brief.description,
    )
    directory = add_voice(root, voice)
    remove_folder(folder)
    return directory
