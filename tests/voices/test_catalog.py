"""Which voice a request means, among presets of several models and the user's own voices."""

import asyncio
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.support.voice_fixtures import (
    FACTS,
    TRANSCRIPT,
    CountingEncoders,
    clip_bytes,
    encoding_model,
    write_voice,
)
from wyoming_qwen3tts.errors import ConfigError, RequestError
from wyoming_qwen3tts.protocol.backend import SpeechRequest
from wyoming_qwen3tts.synthesis.request import IclVoice, default_options
from wyoming_qwen3tts.voices.catalog import Catalog, CatalogVoice
from wyoming_qwen3tts.voices.library import VoiceLibrary

LANGUAGES = {"english": 1, "german": 2, "italian": 3}


def bundle(model_type: str, *speakers: str, size: str = "1.7B") -> Any:
    facts = replace(
        FACTS,
        model_type=model_type,
        model_size=size,
        languages=LANGUAGES,
        speakers={name: row for row, name in enumerate(speakers)},
    )
    name = f"{size}-{model_type}"
    manifest = SimpleNamespace(name=name, facts=facts, recipe="int8")
    return SimpleNamespace(directory=Path(name), manifest=manifest, is_embedded=False)


PRESETS = bundle("custom_voice", "ryan", "uncle_fu", "aiden")
BASE = bundle("base")


def find(
    name: str | None = None,
    language: str | None = None,
    *,
    bundles: tuple[Any, ...] = (PRESETS,),
    data_dir: Path = Path("nothing"),
) -> CatalogVoice:
    catalog = Catalog(bundles, VoiceLibrary([data_dir]), {})
    return asyncio.run(catalog.find(SpeechRequest(name, language), None))


class TestNames:
    @pytest.mark.parametrize("name", ["uncle_fu", "Uncle Fu", " UNCLE_FU ", "uncle fu"])
    def test_names_are_compared_in_one_way(self, name: str) -> None:
        assert find(name).info.name == "uncle_fu"

    def test_folders_with_the_same_name_are_reported_not_both_listed(self, tmp_path: Path) -> None:
        write_voice(tmp_path, "en/my voice", ref_wav=clip_bytes(), ref_txt=TRANSCRIPT)
        write_voice(tmp_path, "en/my_voice", ref_wav=clip_bytes(), ref_txt=TRANSCRIPT)
        library = VoiceLibrary([tmp_path])
        first, second = library.scan()
        assert first.problem is None
        assert "rename one of the two" in str(second.problem)
        voices = Catalog([BASE], library, {}).combine(library.scan())
        assert [voice.info.name for voice in voices] == ["my voice"]
        assert find("MY_VOICE", bundles=(BASE,), data_dir=tmp_path).source == first

    def test_an_own_voice_takes_the_place_of_a_preset(self, tmp_path: Path) -> None:
        write_voice(tmp_path, "en/Uncle Fu", ref_wav=clip_bytes(), ref_txt=TRANSCRIPT)
        found = find("uncle_fu", bundles=(PRESETS, BASE), data_dir=tmp_path)
        assert found.bundle is BASE


class TestLanguages:
    @pytest.mark.parametrize(
        ("suffix", "code"),
        [("de", "de"), ("de-DE", "de"), ("de_DE", "de"), ("German", "de"), ("it", "it")],
    )
    def test_a_name_may_carry_a_language(self, suffix: str, code: str) -> None:
        assert find(f"ryan-{suffix}").language == code

    @pytest.mark.parametrize(
        "name", ["ryan-it-support", "ryan-de-luxe", "ryan-klingon", "ryan-", "ryan-zh", "ryan-de-"]
    )
    def test_other_suffixes_are_unknown_voices(self, name: str) -> None:
        with pytest.raises(RequestError, match="Unknown voice"):
            find(name)

    def test_a_clone_speaks_every_language_of_its_model(self, tmp_path: Path) -> None:
        write_voice(tmp_path, "de/grandpa", ref_wav=clip_bytes(), ref_txt=TRANSCRIPT)
        found = find("grandpa", bundles=(BASE,), data_dir=tmp_path)
        assert found.info.languages == ("en", "de", "it")
        assert (found.language, found.usual_language) == (None, "de")
        assert find("grandpa-it", bundles=(BASE,), data_dir=tmp_path).language == "it"
        with pytest.raises(RequestError, match="Unknown voice"):
            find("grandpa-ja", bundles=(BASE,), data_dir=tmp_path)

    def test_the_configured_languages_are_those_that_are_listed(self) -> None:
        catalog = Catalog([PRESETS], VoiceLibrary([]), {}, ["German", "en"])
        voices = {voice.info.name: voice for voice in catalog.combine([])}
        assert voices["ryan"].info.languages == ("de", "en")
        assert voices["ryan"].usual_language == "en"
        assert voices["uncle_fu"].usual_language == "de"
        assert asyncio.run(catalog.find(SpeechRequest("ryan-it"), None)).language == "it"

    def test_a_voice_without_a_configured_language_keeps_its_own(self) -> None:
        catalog = Catalog([PRESETS], VoiceLibrary([]), {}, ["ja"])
        assert catalog.combine([])[0].info.languages == ("en", "de", "it")

    def test_unknown_languages_are_refused(self) -> None:
        with pytest.raises(ConfigError, match="languages: unknown klingon"):
            Catalog([PRESETS], VoiceLibrary([]), {}, ["de", "klingon"])


class TestDefault:
    def test_the_first_voice_of_the_most_wanted_model_speaks(self) -> None:
        other = bundle("custom_voice", "zoe", size="0.6B")
        assert find(bundles=(other, PRESETS)).info.name == "zoe"
        assert find(bundles=(PRESETS, other)).info.name == "aiden"

    def test_a_native_voice_of_the_language_comes_first(self, tmp_path: Path) -> None:
        write_voice(tmp_path, "en/anna", ref_wav=clip_bytes(), ref_txt=TRANSCRIPT)
        write_voice(tmp_path, "de/bernd", ref_wav=clip_bytes(), ref_txt=TRANSCRIPT)
        names = [
            find(None, language, bundles=(BASE, PRESETS), data_dir=tmp_path).info.name
            for language in ("en", "de-DE", "it", None)
        ]
        assert names == ["anna", "bernd", "anna", "anna"]


async def test_the_encoders_of_the_opened_model_decide_which_encoding_is_used(
    tmp_path: Path,
) -> None:
    """The files of a bundle may have been replaced since its manifest was read."""
    write_voice(tmp_path, "en/anna", ref_wav=clip_bytes(), ref_txt=TRANSCRIPT)
    library, encoders = VoiceLibrary([tmp_path]), CountingEncoders()
    catalog = Catalog([BASE], library, {})
    chosen = await catalog.find(SpeechRequest("anna"), None)
    options = default_options(FACTS.generation, 1)
    for encoder_id, num_embedded in (("old", 1), ("old", 1), ("new", 2)):
        model = replace(encoding_model(encoders), encoder_id=encoder_id)
        voice, _ = await catalog.prepare(chosen, model, options, None)
        assert isinstance(voice, IclVoice)
        assert encoders.num_embedded == num_embedded
