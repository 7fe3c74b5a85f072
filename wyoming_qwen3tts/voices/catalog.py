"""The voices of a server, and which of them a request means.

Voices are listed from manifests and the voice library; no graph is opened.
"""

import asyncio
import logging
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from wyoming_qwen3tts.errors import RequestError
from wyoming_qwen3tts.models.bundles import InstalledBundle
from wyoming_qwen3tts.protocol.backend import SpeechRequest, VoiceInfo
from wyoming_qwen3tts.runtime.manifest import ModelFacts
from wyoming_qwen3tts.runtime.speech_model import SpeechModel
from wyoming_qwen3tts.synthesis.request import DesignedVoice, PresetSpeaker, SynthesisOptions, Voice
from wyoming_qwen3tts.text.language import language_code
from wyoming_qwen3tts.text.rules import LANGUAGES
from wyoming_qwen3tts.voices.library import VoiceLibrary
from wyoming_qwen3tts.voices.voice_folder import LibraryVoice, voice_key

_LOGGER = logging.getLogger(__name__)

# The preset speakers' character and native language, from the publisher's model card.
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
_EMBEDDED_NOTE = "small English voice; for the real ones name a model"
_KINDS = {"base": "cloned voice", "voice_design": "designed voice", "custom_voice": "own settings"}
_DEFAULT_DESIGN = "A calm, friendly voice."
# A code or name of a language, and at most a script and a region: "de", "zh-Hans-CN", "german".
_LANGUAGE_SUFFIX = re.compile(r"[^\W\d_]+([-_](hans|hant|latn|cyrl))?([-_]([a-z]{2}|\d{3}))?")


@dataclass(frozen=True)
class CatalogVoice:
    """A voice that clients can ask for."""

    info: VoiceInfo
    bundle: InstalledBundle  # the model that speaks it
    source: PresetSpeaker | DesignedVoice | LibraryVoice
    language: str | None = None  # plain code of what it always speaks
    native_language: str | None = None  # what it speaks where neither request nor text tells


class Catalog:
    """Every voice of a server: presets of its models, and voices of the library."""

    def __init__(
        self, bundles: Sequence[InstalledBundle], library: VoiceLibrary, styles: Mapping[str, str]
    ) -> None:
        """List voices of models, most wanted first, with styles as name -> instruction."""
        self._bundles = bundles
        self._library = library
        self._styles = {name.strip().lower(): text for name, text in styles.items()}
        self._warned: set[str] = set()

    async def voices(self) -> list[CatalogVoice]:
        """Return the voices as models and library are now."""
        return self.combine(await self._library.voices())

    def combine(self, library: Iterable[LibraryVoice]) -> list[CatalogVoice]:
        """Return the voices of the models with those of a library, sorted by name.

        A preset that an earlier model has too carries its model's size in its name (ryan-1.7b).
        A library voice takes the place of a preset of the same name.
        """
        by_key: dict[str, CatalogVoice] = {}
        for bundle in self._bundles:
            facts, earlier = bundle.manifest.facts, set(by_key)
            is_design = facts.model_type == "voice_design"
            for speaker, description in _presets(bundle).items():
                name = speaker
                if voice_key(name) in earlier:
                    name = f"{speaker}-{facts.model_size.lower()}"
                    description = f"{description} ({facts.model_size} model)"
                source = DesignedVoice("") if is_design else PresetSpeaker(speaker)
                voice = CatalogVoice(self._info(name, description, facts), bundle, source)
                by_key.setdefault(voice_key(name), voice)
        for entry in library:
            if entry.problem is None and (own := self._from_library(entry)) is not None:
                by_key[voice_key(entry.name)] = own
        return [voice for _, voice in sorted(by_key.items())]

    async def find(self, request: SpeechRequest, default: str | None) -> CatalogVoice:
        """Return the voice that a request means; a name may carry a language ("ryan-de").

        Without a name and a default, the first voice of the first model speaks that knows the
        request's language.
        """
        voices = await self.voices()
        if not voices:
            raise RequestError(
                "There are no voices; install a model, or add a voice to the library of a Base "
                "model."
            )
        name = request.voice or default
        if name is None:
            return self._first(voices, language_code(request.language))
        by_key = {voice_key(voice.info.name): voice for voice in voices}
        key, code = split_language(name, by_key)
        voice = by_key.get(key)
        if voice is not None and (code is None or code in voice.info.languages):
            return voice if code is None else replace(voice, language=code)
        raise RequestError(f"Unknown voice {name[:100]!r}; there are: {', '.join(sorted(by_key))}.")

    async def prepare(
        self,
        voice: CatalogVoice,
        model: SpeechModel,
        options: SynthesisOptions,
        style: str | None,
    ) -> tuple[Voice, SynthesisOptions]:
        """Return what the model speaks with, and the options with the voice's own in their place.

        A new clip is encoded first, or a VoiceError raised. A style is a name or an instruction.
        """
        instruction = self._styles.get(style.strip().lower(), style) if style else None
        source = voice.source
        spoken: Voice
        if isinstance(source, LibraryVoice):
            options = source.settings.apply(options)
            instruction = instruction or source.settings.style
            ready: Voice | None = source.spoken
            if ready is None:
                # Other requests may wait for the same encoding: this one's end must not cancel it.
                encoding = asyncio.wrap_future(self._library.prepare(source, model))
                ready = await asyncio.shield(encoding)
            spoken = ready
        else:
            spoken = source
        if isinstance(spoken, DesignedVoice):
            # The description is the model's instruction: a style can only be added to it.
            words = " ".join(filter(None, [spoken.description, instruction]))
            return DesignedVoice(words or _DEFAULT_DESIGN), options
        instruction = self._supported_instruction(instruction, model.facts)
        return spoken, replace(options, instruction=instruction)

    def _first(self, voices: Sequence[CatalogVoice], code: str | None) -> CatalogVoice:
        """Return the voice for requests without a name."""
        ranks = {bundle.directory: rank for rank, bundle in enumerate(self._bundles)}

        def order(voice: CatalogVoice) -> tuple[bool, int, bool]:
            is_foreign = code is not None and voice.native_language not in (None, code)
            is_unable = code is not None and code not in voice.info.languages
            return (is_unable, ranks.get(voice.bundle.directory, len(ranks)), is_foreign)

        return min(voices, key=order)

    def _supported_instruction(self, instruction: str | None, facts: ModelFacts) -> str | None:
        """Return the instruction if the model follows it; else log once that it does not."""
        if not instruction or facts.follows_instructions:
            return instruction
        model = f"{facts.model_size} {facts.model_type}"
        if model not in self._warned:
            self._warned.add(model)
            _LOGGER.warning("The %s model follows no instructions; styles are ignored", model)
        return None

    def _from_library(self, entry: LibraryVoice) -> CatalogVoice | None:
        """Return a library voice with the model that speaks it; None while no model can."""
        preset, size = entry.settings.preset, entry.settings.model_size
        able = [
            bundle
            for bundle in self._bundles
            if bundle.manifest.facts.model_type == entry.model_type
            and (preset is None or voice_key(preset) in bundle.manifest.facts.speakers)
        ]
        if not able:
            return None
        if entry.settings.style:
            able.sort(key=lambda bundle: not bundle.manifest.facts.follows_instructions)
        able.sort(key=lambda bundle: size not in ("any", bundle.manifest.facts.model_size))
        facts = able[0].manifest.facts
        description = entry.settings.description or f"{entry.name} ({_KINDS[entry.model_type]})"
        info = self._info(entry.name, description, facts)
        if entry.model_type != "base":
            info = replace(info, languages=(entry.language,))
            return CatalogVoice(info, able[0], entry, language=entry.language)
        # A clone speaks every language of its model, its folder's first.
        others = [code for code in info.languages if code != entry.language]
        info = replace(info, languages=(entry.language, *others))
        return CatalogVoice(info, able[0], entry, native_language=entry.language)

    def _info(self, name: str, description: str, facts: ModelFacts) -> VoiceInfo:
        spoken = {language_code(language) for language in facts.spoken_languages}
        return VoiceInfo(
            name=name,
            description=description,
            languages=tuple(code for code in LANGUAGES if code in spoken),
            speakers=tuple(self._styles) if facts.follows_instructions else (),
        )


def split_language(name: str, known: Collection[str]) -> tuple[str, str | None]:
    """Split "ryan-de", "ryan-de-DE" or "Ryan-German" into a known key and a plain code."""
    key = voice_key(name)
    if key in known:
        return key, None
    for dash in reversed([match.start() for match in re.finditer("-", key)]):
        stem, suffix = key[:dash], key[dash + 1 :]
        if stem in known and _LANGUAGE_SUFFIX.fullmatch(suffix):
            return (stem, language_code(suffix)) if language_code(suffix) else (key, None)
    return key, None


def _presets(bundle: InstalledBundle) -> dict[str, str]:
    """Return the names of a model's own voices with their descriptions."""
    facts = bundle.manifest.facts
    if facts.model_type == "voice_design":
        return {"designed": "Designed: describe the voice in words, as the speaker"}
    presets = {}
    for speaker in sorted(facts.speakers):
        name, note = speaker.replace("_", " ").title(), _SPEAKER_NOTES.get(speaker)
        presets[speaker] = f"{name}: {note}" if note else name
        if bundle.is_embedded:
            presets[speaker] = f"{name} ({_EMBEDDED_NOTE})"
    return presets
