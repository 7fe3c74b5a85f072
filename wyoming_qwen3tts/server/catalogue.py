"""The voices of a server, and what a client's request means in terms of them.

Listing reads manifests and the voice library, never a graph.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from wyoming_qwen3tts import __version__
from wyoming_qwen3tts.errors import RequestError
from wyoming_qwen3tts.model.speech_model import SpeechModel
from wyoming_qwen3tts.protocol.speech_source import SpeechRequest, VoiceInfo
from wyoming_qwen3tts.server.bundles import InstalledBundle
from wyoming_qwen3tts.synthesis.voice import DesignedVoice, PresetSpeaker, Voice
from wyoming_qwen3tts.text.language import language_code
from wyoming_qwen3tts.text.language_data import LANGUAGES

# The preset speakers' character and native language, in the words of their publisher's model card.
_SPEAKER_NOTES = {
    "vivian": "bright young woman, a little edgy; native Chinese",
    "serena": "warm, gentle young woman; native Chinese",
    "uncle_fu": "seasoned man with a low, mellow voice; native Chinese",
    "dylan": "youthful, clear man from Beijing; speaks the Beijing dialect in Chinese",
    "eric": "lively, slightly husky man from Chengdu; speaks the Sichuan dialect in Chinese",
    "ryan": "dynamic man with a strong rhythm; native English",
    "aiden": "sunny American man; native English",
    "ono_anna": "playful, light young woman; native Japanese",
    "sohee": "warm, expressive woman; native Korean",
}
_DESIGNED_NAME = "designed"
_EMBEDDED_NOTE = "demo: random weights, sounds but no words"


@dataclass(frozen=True)
class CatalogueVoice:
    """A voice that clients can ask for."""

    info: VoiceInfo
    bundle: InstalledBundle
    """The model that speaks it."""
    make: Callable[[SpeechModel, str | None], Voice]
    """(opened model, the request's style or None) -> the voice."""
    language: str | None = None
    """Plain code that the voice always speaks; None leaves it to request and text."""


def preset_voices(bundle: InstalledBundle) -> list[CatalogueVoice]:
    """Return a CustomVoice model's speakers, or a VoiceDesign model's one open voice."""
    facts = bundle.manifest.facts
    spoken = {language_code(name) for name in facts.spoken_languages}
    languages = tuple(code for code in LANGUAGES if code in spoken)
    if facts.model_type == "voice_design":
        info = VoiceInfo(
            name=_DESIGNED_NAME,
            description=f"Described in words, sent as the speaker ({bundle.reference})",
            languages=languages,
            version=__version__,
        )
        return [CatalogueVoice(info, bundle, lambda _, style: DesignedVoice(style or ""))]
    return [
        CatalogueVoice(
            VoiceInfo(
                name=speaker,
                description=_describe(speaker, bundle),
                languages=languages,
                version=__version__,
            ),
            bundle,
            _preset(speaker),
        )
        for speaker in sorted(facts.speakers)
    ]


def _preset(speaker: str) -> Callable[[SpeechModel, str | None], Voice]:
    return lambda _model, _style: PresetSpeaker(speaker)


def find_voice(
    voices: Sequence[CatalogueVoice], request: SpeechRequest, default: str | None
) -> CatalogueVoice:
    """Return the voice that a request means.

    A name may carry a language ("ryan-de"). Without a name the default voice speaks, or the first
    one of the request's language.

    Raises:
        RequestError: There is no such voice; the message lists those there are.
    """
    name = request.voice or default
    if not voices:
        raise RequestError("No voice is there; install a model, or add one to the voice library.")
    if name is None:
        code = language_code(request.language) if request.language else None
        matching = [voice for voice in voices if code in voice.info.languages]
        return (matching or list(voices))[0]
    by_name = {voice.info.name.lower(): voice for voice in voices}
    wanted = name.strip().lower()
    if wanted in by_name:
        return by_name[wanted]
    stem, _, suffix = wanted.rpartition("-")
    pinned = by_name.get(stem)
    if pinned is not None and suffix in pinned.info.languages:
        return CatalogueVoice(pinned.info, pinned.bundle, pinned.make, language=suffix)
    raise RequestError(f"Unknown voice {name[:100]!r}; there are: {', '.join(sorted(by_name))}.")


def _describe(speaker: str, bundle: InstalledBundle) -> str:
    name = speaker.replace("_", " ").title()
    if bundle.is_embedded:
        return f"{name} ({_EMBEDDED_NOTE})"
    note = _SPEAKER_NOTES.get(speaker)
    return f"{name}: {note}" if note else name
