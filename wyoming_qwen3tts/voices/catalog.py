"""The voices of a server, and which of them a request means.

Voices are listed from manifests and the voice library; no graph is opened.
"""

import asyncio
import logging
import re
from collections.abc import AsyncIterator, Collection, Hashable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Final

from wyoming_qwen3tts.errors import ConfigError, RequestError, VoiceError
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

# The preset speakers' native language and character, from the publisher's model card.
_SPEAKER_NOTES: Final = {
    "vivian": ("zh", "bright young woman, a little edgy; native Chinese"),
    "serena": ("zh", "warm, gentle young woman; native Chinese"),
    "uncle_fu": ("zh", "seasoned man with a low, mellow voice; native Chinese"),
    "dylan": ("zh", "youthful, clear man from Beijing; speaks the Beijing dialect in Chinese"),
    "eric": (
        "zh",
        "lively, slightly husky man from Chengdu; speaks the Sichuan dialect in Chinese",
    ),
    "ryan": ("en", "dynamic man with a strong rhythm; native English"),
    "aiden": ("en", "sunny American man; native English"),
    "ono_anna": ("ja", "playful, light young woman; native Japanese"),
    "sohee": ("ko", "warm, expressive woman; native Korean"),
}
_EMBEDDED_NOTE = "small English voice; for the real ones name a model"
_KINDS = {"base": "cloned voice", "voice_design": "designed voice", "custom_voice": "own settings"}
_DEFAULT_DESIGN = "A calm, friendly voice."
_NO_VOICE: Final = "add-a-voice"
_NO_VOICE_TEXT: Final = "No voice yet; add one: wyoming-qwen3tts voice add NAME --audio FILE"
# Voices of other servers, such as "de_DE-thorsten-medium" and "de-DE-KatjaNeural".
_FOREIGN_NAME = re.compile(r"([a-z]{2})[-_][A-Z]{2}-")
# A code or name of a language, and at most a script and a region: "de", "zh-Hans-CN", "german".
_LANGUAGE_SUFFIX = re.compile(r"[^\W\d_]+([-_](hans|hant|latn|cyrl))?([-_]([a-z]{2}|\d{3}))?")


@dataclass(frozen=True)
class CatalogVoice:
    """A voice that clients can ask for."""

    info: VoiceInfo
    bundle: InstalledBundle  # the model that speaks it
    source: PresetSpeaker | DesignedVoice | LibraryVoice
    spoken: tuple[str, ...]  # plain codes of all it can speak; info has those in use
    usual_language: str | None  # what it speaks where neither request nor text tells
    language: str | None = None  # what it always speaks


class Catalog:
    """Every voice of a server: presets of its models, and voices of the library."""

    def __init__(
        self,
        bundles: Sequence[InstalledBundle],
        library: VoiceLibrary,
        styles: Mapping[str, str],
        languages: Sequence[str] = (),
    ) -> None:
        """List voices of models, most wanted first, with styles as name -> instruction.

        ``languages``: those in use, the usual one first; none means all that a voice speaks.
        """
        self._bundles = bundles
        self._library = library
        self._styles = {name.strip().lower(): text for name, text in styles.items()}
        self._languages = [language_code(name) for name in languages]
        if None in self._languages:
            unknown = ", ".join(name for name in languages if language_code(name) is None)
            raise ConfigError(
                f"languages: unknown {unknown}; the models speak {', '.join(LANGUAGES)}."
            )
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
                native, _ = _SPEAKER_NOTES.get(speaker, (None, ""))
                voice = self._voice(name, description, bundle, source, native)
                by_key.setdefault(voice_key(name), voice)
        for entry in library:
            if entry.problem is None and (own := self._from_library(entry)) is not None:
                by_key[voice_key(entry.name)] = own
        return [voice for _, voice in sorted(by_key.items())]

    async def infos(self) -> list[VoiceInfo]:
        """Return what clients see: the voices, and for models that have none what to do."""
        voices = await self.voices()
        infos = [voice.info for voice in voices]
        speaking = {voice.bundle.directory for voice in voices}
        for bundle in self._bundles:
            if bundle.manifest.facts.model_type == "base" and bundle.directory not in speaking:
                source = DesignedVoice("")
                infos.append(self._voice(_NO_VOICE, _NO_VOICE_TEXT, bundle, source).info)
                break
        return infos

    async def find(
        self, request: SpeechRequest, default: str | None, *, is_lenient: bool = False
    ) -> CatalogVoice:
        """Return the voice that a request means; a name may carry a language ("ryan-de").

        Without a name and a default, the first voice of the first model speaks that knows the
        request's language. ``is_lenient``: the default speaks for unknown names too.
        """
        voices = await self.voices()
        by_key = {voice_key(voice.info.name): voice for voice in voices}
        name = request.voice or default
        if name is None and voices:
            return self._first(voices, language_code(request.language))
        key, code = split_language(name or "", {*by_key, _NO_VOICE})
        voice = by_key.get(key)
        if voice is not None and (code is None or code in voice.spoken):
            return voice if code is None else replace(voice, language=code)
        if not voices or key == _NO_VOICE or name is None:
            raise RequestError(
                _NO_VOICE_TEXT if self._bundles else "There are no voices; install a model."
            )
        if is_lenient and request.voice:
            return await self._stand_in(request, default)
        raise RequestError(f"Unknown voice {name[:100]!r}; there are: {', '.join(sorted(by_key))}.")

    async def _stand_in(self, request: SpeechRequest, default: str | None) -> CatalogVoice:
        """Return the default voice for a name left over from another server."""
        name = request.voice or ""
        match = _FOREIGN_NAME.match(name)
        language = request.language or (match and match[1])
        voice = await self.find(SpeechRequest(language=language), default)
        if name not in self._warned:
            self._warned.add(name)
            _LOGGER.warning("There is no voice %r; %s speaks", name[:100], voice.info.name)
        code = language_code(language)
        return replace(voice, language=code) if code in voice.spoken else voice

    async def new_clips(self, done: set[Hashable]) -> AsyncIterator[CatalogVoice]:
        """Yield the voices whose clips no model has encoded yet; each once for ``done``."""
        for voice in await self.voices():
            source, manifest = voice.source, voice.bundle.manifest
            if not isinstance(source, LibraryVoice) or source.clip is None:
                continue
            key = (source.directory, source.files, manifest.encoder_id)
            # A bundle that is being installed is not there yet.
            if key not in done and voice.bundle.directory.exists():
                done.add(key)
                with suppress(VoiceError):
                    if not await asyncio.to_thread(self._library.is_encoded, source, manifest):
                        yield voice

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
            is_foreign = code is not None and voice.usual_language != code
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
        description = entry.settings.description or f"{entry.name} ({_KINDS[entry.model_type]})"
        # A clone speaks every language of its model.
        fixed = None if entry.model_type == "base" else entry.language
        return self._voice(entry.name, description, able[0], entry, entry.language, fixed)

    def _voice(
        self,
        name: str,
        description: str,
        bundle: InstalledBundle,
        source: PresetSpeaker | DesignedVoice | LibraryVoice,
        native: str | None = None,
        fixed: str | None = None,
    ) -> CatalogVoice:
        facts = bundle.manifest.facts
        codes = {language_code(language) for language in facts.spoken_languages}
        spoken = tuple(code for code in LANGUAGES if code in (codes if fixed is None else {fixed}))
        used = tuple(code for code in self._languages if code in spoken) or spoken
        info = VoiceInfo(
            name=name,
            description=description,
            languages=used,
            speakers=tuple(self._styles) if facts.follows_instructions else (),
        )
        # The voice's own language, else the first configured one, else English.
        order = (native, *(self._languages or ["en"]), *used)
        usual = next((code for code in order if code in used), None)
        return CatalogVoice(info, bundle, source, spoken, usual, fixed)


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
        name, (_, note) = speaker.replace("_", " ").title(), _SPEAKER_NOTES.get(speaker, ("", ""))
        presets[speaker] = f"{name}: {note}" if note else name
        if bundle.is_embedded:
            presets[speaker] = f"{name} ({_EMBEDDED_NOTE})"
    return presets
