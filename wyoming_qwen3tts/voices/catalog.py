"""The voices of a server, and what a client's request means in terms of them.

Listing reads manifests and the voice library, never a graph.
"""

import logging
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from wyoming_qwen3tts import __version__
from wyoming_qwen3tts.errors import RequestError
from wyoming_qwen3tts.models.bundles import EMBEDDED_NAME, RANDOM_NAME, InstalledBundle
from wyoming_qwen3tts.protocol.backend import SpeechRequest, VoiceInfo
from wyoming_qwen3tts.runtime.manifest import ModelFacts
from wyoming_qwen3tts.runtime.speech_model import SpeechModel
from wyoming_qwen3tts.synthesis.request import DesignedVoice, PresetSpeaker, SynthesisOptions, Voice
from wyoming_qwen3tts.text.language import language_code
from wyoming_qwen3tts.text.language_data import LANGUAGES
from wyoming_qwen3tts.voices.library import VoiceLibrary
from wyoming_qwen3tts.voices.voice_cache import encoder_id
from wyoming_qwen3tts.voices.voice_folder import LibraryVoice, VoiceKind

_LOGGER = logging.getLogger(__name__)

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
_KINDS = {
    VoiceKind.ICL: "cloned voice",
    VoiceKind.X_VECTOR: "cloned voice",
    VoiceKind.DESIGNED: "designed voice",
    VoiceKind.PRESET: "own settings",
}
_DEFAULT_DESIGN = "A calm, friendly voice."
_EMBEDDED_NOTES = {
    EMBEDDED_NAME: "small English voice; for the real ones name a model",
    RANDOM_NAME: "random weights, sounds but no words",
}


@dataclass(frozen=True)
class OpenDesign:
    """A VoiceDesign model's voice that each request describes anew."""


@dataclass(frozen=True)
class CatalogueVoice:
    """A voice that clients can ask for."""

    info: VoiceInfo
    bundle: InstalledBundle
    """The model that speaks it."""
    source: PresetSpeaker | OpenDesign | LibraryVoice
    """Where the voice comes from."""
    language: str | None = None
    """Plain code that the voice always speaks; None leaves it to request and text."""


class Catalogue:
    """Every voice of a server: presets of its models and voices of the library."""

    def __init__(
        self,
        bundles: Sequence[InstalledBundle],
        library: VoiceLibrary,
        styles: Mapping[str, str],
    ) -> None:
        """List voices of these models.

        Args:
            bundles: The models, most wanted first.
            library: The users' own voices.
            styles: Name -> instruction, offered by voices that follow instructions.
        """
        self._bundles = bundles
        self._library = library
        self._warned: set[str] = set()
        self._styles = {name.lower(): instruction for name, instruction in styles.items()}

    def voices(self) -> list[CatalogueVoice]:
        """Return the voices as models and library stand now.

        A preset that an earlier model has too carries its model's size in its name (ryan-1.7b).
        """
        presets: list[CatalogueVoice] = []
        taken: set[str] = set()
        for bundle in self._bundles:
            own = self._presets(bundle)
            presets += [_sized(preset) if preset.info.name in taken else preset for preset in own]
            taken |= {preset.info.name for preset in presets}
        library = [
            voice
            for entry in self._library.scan()
            if entry.problem is None and (voice := self._from_library(entry)) is not None
        ]
        # A user who calls a voice like a preset means the own one.
        by_name = {voice.info.name.lower(): voice for voice in reversed([*library, *presets])}
        return sorted(by_name.values(), key=lambda voice: voice.info.name.lower())

    def find(self, request: SpeechRequest, default: str | None) -> CatalogueVoice:
        """Return the voice that a request means.

        A name may carry a language ("ryan-de"). Without a name the default voice speaks, or the
        first one of the request's language.

        Raises:
            RequestError: There is no such voice; the message lists those there are.
        """
        voices = self.voices()
        if not voices:
            raise RequestError(
                "No voice is there; install a model, or add a voice to the library of a Base model."
            )
        name = request.voice or default
        if name is None:
            code = language_code(request.language)
            matching = [voice for voice in voices if code in voice.info.languages]
            return (matching or voices)[0]
        by_name = {voice_key(voice.info.name): voice for voice in voices}
        key, code = split_language(name, by_name)
        voice = by_name.get(key)
        if voice is not None and (code is None or code in voice.info.languages):
            return voice if code is None else replace(voice, language=code)
        raise RequestError(
            f"Unknown voice {name[:100]!r}; there are: {', '.join(sorted(by_name))}."
        )

    def prepare(
        self,
        voice: CatalogueVoice,
        model: SpeechModel,
        options: SynthesisOptions,
        style: str | None,
    ) -> tuple[Voice, SynthesisOptions]:
        """Return what the model speaks with; encodes a library clip that is new.

        Args:
            voice: A voice of this catalogue.
            model: Its opened model.
            options: The server's options, which the voice's own may replace.
            style: Name of a style, or an instruction in free words.

        Raises:
            VoiceError: The library voice cannot be used.
        """
        instruction = self._styles.get(style.strip().lower(), style) if style else None
        if isinstance(voice.source, OpenDesign):
            return DesignedVoice(instruction or _DEFAULT_DESIGN), options
        spoken: Voice = (
            voice.source
            if isinstance(voice.source, PresetSpeaker)
            else self._library.prepare(voice.source, model, encoder_id(voice.bundle.manifest))
        )
        if isinstance(voice.source, LibraryVoice):
            options = voice.source.settings.apply(options)
            instruction = instruction or voice.source.settings.style
        if isinstance(spoken, DesignedVoice):
            # The description is the model's instruction: a style can only be added to it.
            return DesignedVoice(" ".join(filter(None, [spoken.description, instruction]))), options
        return spoken, replace(options, instruction=self._followed(instruction, model.facts))

    def _followed(self, instruction: str | None, facts: ModelFacts) -> str | None:
        """Return the instruction if the model follows it; else say once that it does not."""
        if not instruction or facts.follows_instructions:
            return instruction
        model = f"{facts.model_size} {facts.model_type}"
        if model not in self._warned:
            self._warned.add(model)
            _LOGGER.warning("The %s model follows no instructions; styles are ignored", model)
        return None

    def _presets(self, bundle: InstalledBundle) -> list[CatalogueVoice]:
        facts = bundle.manifest.facts
        if facts.model_type == "voice_design":
            info = VoiceInfo(
                name=_DESIGNED_NAME,
                description="Designed: describe the voice in words, as the speaker",
                languages=_languages(facts),
                speakers=tuple(self._styles),
                version=__version__,
            )
            return [CatalogueVoice(info, bundle, OpenDesign())]
        return [
            CatalogueVoice(
                VoiceInfo(
                    name=speaker,
                    description=_describe(speaker, bundle),
                    languages=_languages(facts),
                    speakers=tuple(self._styles) if facts.follows_instructions else (),
                    version=__version__,
                ),
                bundle,
                PresetSpeaker(speaker),
            )
            for speaker in sorted(facts.speakers)
        ]

    def _from_library(self, entry: LibraryVoice) -> CatalogueVoice | None:
        """Return a library voice with the model that speaks it; None while no model can."""
        able = [
            bundle
            for bundle in self._bundles
            if bundle.manifest.facts.model_type == entry.model_type
            and (
                entry.settings.preset is None
                or voice_key(entry.settings.preset) in bundle.manifest.facts.speakers
            )
        ]
        if not able:
            return None
        if entry.settings.style:
            able.sort(key=lambda bundle: not bundle.manifest.facts.follows_instructions)
        wanted = [
            bundle
            for bundle in able
            if entry.settings.model_size in ("any", bundle.manifest.facts.model_size)
        ]
        bundle = (wanted or able)[0]
        kind = _KINDS[entry.kind]
        info = VoiceInfo(
            name=entry.name,
            description=entry.settings.description or f"{entry.name} ({kind})",
            languages=(entry.language,),
            speakers=tuple(self._styles) if bundle.manifest.facts.follows_instructions else (),
            version=__version__,
        )
        return CatalogueVoice(info, bundle, entry, language=entry.language)


def _languages(facts: ModelFacts) -> tuple[str, ...]:
    spoken = {language_code(name) for name in facts.spoken_languages}
    return tuple(code for code in LANGUAGES if code in spoken)


def voice_key(name: str) -> str:
    """Return a voice's name as it is compared: "Uncle Fu" and "uncle_fu" are one."""
    return name.strip().lower().replace(" ", "_")


def split_language(name: str, known: Collection[str]) -> tuple[str, str | None]:
    """Split "ryan-de", "ryan-de-DE" or "Ryan-German" into the voice's key and a plain code.

    Args:
        name: As a client wrote it.
        known: Keys of voices; a known name is never split.
    """
    key = voice_key(name)
    parts = key.split("-")
    for count in range(len(parts), 0, -1):
        stem, suffix = "-".join(parts[:count]), "-".join(parts[count:])
        code = language_code(suffix) if suffix else None
        if stem in known and (not suffix or code is not None):
            return stem, code
    return key, None


def _sized(voice: CatalogueVoice) -> CatalogueVoice:
    size = voice.bundle.manifest.facts.model_size
    info = replace(
        voice.info,
        name=f"{voice.info.name}-{size.lower()}",
        description=f"{voice.info.description} ({size} model)",
    )
    return replace(voice, info=info)


def _describe(speaker: str, bundle: InstalledBundle) -> str:
    name = speaker.replace("_", " ").title()
    if bundle.is_embedded:
        return f"{name} ({_EMBEDDED_NOTES[bundle.manifest.name]})"
    note = _SPEAKER_NOTES.get(speaker)
    return f"{name}: {note}" if note else name
