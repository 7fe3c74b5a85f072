"""The command line's whole life of a voice: added, listed, checked, removed; designed and kept."""

import argparse
import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import soundfile

from tests.support.speech_clip import SAMPLE_RATE_HZ, speech_clip
from tests.support.voice_fixtures import TRANSCRIPT, clip_bytes, write_voice
from wyoming_qwen3tts.audio import AudioChunk
from wyoming_qwen3tts.commands import voice as voice_command
from wyoming_qwen3tts.config import load_config
from wyoming_qwen3tts.errors import ConfigError, Qwen3TTSError, RequestError, VoiceError
from wyoming_qwen3tts.runtime.speech_model import SpeechModel
from wyoming_qwen3tts.text.language import LANGUAGES
from wyoming_qwen3tts.voices import editing
from wyoming_qwen3tts.voices.clips import reading_time_s
from wyoming_qwen3tts.voices.editing import DesignBrief, design_texts, speak_brief
from wyoming_qwen3tts.voices.library import VoiceLibrary


class ScriptedDesigner:
    """Speaks every brief at the right length; some seeds fail in a way of their own."""

    def __init__(
        self,
        silent: tuple[int, ...] = (),
        endless: tuple[int, ...] = (),
        slow: tuple[int, ...] = (),
    ) -> None:
        self.silent = silent
        self.endless = endless
        self.slow = slow
        self.spoken: list[tuple[DesignBrief, int]] = []

    def __call__(self, brief: DesignBrief, seed: int) -> AudioChunk:
        self.spoken.append((brief, seed))
        if seed in self.endless:
            raise VoiceError("It did not come to an end.")
        duration_s = reading_time_s(brief.text) * (3 if seed in self.slow else 1)
        samples = speech_clip(round(duration_s, 1), seed=seed)
        return AudioChunk(samples * (seed not in self.silent), SAMPLE_RATE_HZ)


@pytest.fixture
def recording(tmp_path: Path) -> Path:
    path = tmp_path / "recording.WAV"
    path.write_bytes(clip_bytes())
    return path


@pytest.fixture
def voice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., int]:
    """Return a function that runs ``voice ARGUMENTS`` on a data directory."""

    def run(*arguments: object, designer: ScriptedDesigner | None = None) -> int:
        parser = argparse.ArgumentParser()
        voice_command.add_arguments(parser)
        strings = [str(argument) for argument in arguments]
        args = parser.parse_args([*strings, "--data-dir", str(tmp_path / "data")])
        if designer is not None:
            monkeypatch.setattr(voice_command, "_open_designer", lambda _: designer)
        return voice_command.run(args, load_config(args, {}))

    return run


def folders(data_dir: Path) -> list[str]:
    """Every file and folder in the library, hidden ones too."""
    root = data_dir / "data" / "voices"
    return sorted(str(path.relative_to(root)) for path in root.rglob("*") if path.is_file())


class TestAdd:
    def test_with_a_transcript(
        self,
        tmp_path: Path,
        voice: Callable[..., int],
        recording: Path,
        capsys: pytest.CaptureFixture[str],
    ) -> None:
        added = voice(
            "add", "grandpa", "--audio", recording, "--text", TRANSCRIPT,
            "--language", "German", "--description", "Großvater: warm",
        )  # fmt: skip
        assert added == 0
        assert "Added the voice grandpa" in capsys.readouterr().out
        (entry,) = VoiceLibrary([tmp_path / "data"]).scan()
        assert (entry.problem, entry.model_type, entry.language) == (None, "base", "de")
        assert (entry.text, entry.settings.description) == (TRANSCRIPT, "Großvater: warm")
        assert entry.clip is not None
        assert entry.clip.read_bytes() == recording.read_bytes()

    def test_without_a_transcript(
        self, tmp_path: Path, voice: Callable[..., int], recording: Path
    ) -> None:
        voice("add", "grandpa", "--audio", recording)
        assert folders(tmp_path) == ["en/grandpa/ref.wav"]
        assert VoiceLibrary([tmp_path / "data"]).named("grandpa")[0].text is None

    def test_with_a_transcript_in_a_file(
        self, tmp_path: Path, voice: Callable[..., int], recording: Path
    ) -> None:
        text = tmp_path / "text.txt"
        text.write_text(f"\ufeff{TRANSCRIPT}\n", encoding="utf-8")
        voice("add", "grandpa", "--audio", recording, "--text-file", text)
        assert VoiceLibrary([tmp_path / "data"]).named("grandpa")[0].text == TRANSCRIPT

    def test_another_format_becomes_a_wav(self, tmp_path: Path, voice: Callable[..., int]) -> None:
        path = tmp_path / "recording.aiff"
        soundfile.write(path, speech_clip(), SAMPLE_RATE_HZ)
        voice("add", "grandpa", "--audio", path)
        assert folders(tmp_path) == ["en/grandpa/ref.wav"]
        assert VoiceLibrary([tmp_path / "data"]).named("grandpa")[0].problem is None

    @pytest.mark.parametrize(
        "name", ["../evil", "..", ".hidden", "a/b", "/etc", "a\\b", "", "-x", "a\0b", "x" * 65]
    )
    def test_a_name_that_leads_elsewhere(self, tmp_path: Path, recording: Path, name: str) -> None:
        with pytest.raises(VoiceError, match="not a name for a voice"):
            editing.add_voice(tmp_path / "data" / "voices", name, "en", recording)
        assert sorted(tmp_path.iterdir()) == [recording]

    @pytest.mark.parametrize("language", ["..", "../x", "klingon", ""])
    def test_a_language_that_leads_elsewhere(
        self, tmp_path: Path, recording: Path, language: str
    ) -> None:
        with pytest.raises(RequestError, match="Unknown language"):
            editing.add_voice(tmp_path / "data" / "voices", "anna", language, recording)
        assert sorted(tmp_path.iterdir()) == [recording]

    def test_nothing_is_written_for_a_bad_clip_text_or_language(
        self, tmp_path: Path, voice: Callable[..., int], recording: Path
    ) -> None:
        noise = tmp_path / "noise.wav"
        noise.write_bytes(b"noise")
        with pytest.raises(VoiceError, match="not a recording"):
            voice("add", "grandpa", "--audio", noise)
        with pytest.raises(VoiceError, match="does not fit"):
            voice("add", "grandpa", "--audio", recording, "--text", "Hi.")
        with pytest.raises(VoiceError, match="transcript is empty"):
            voice("add", "grandpa", "--audio", recording, "--text", "")
        with pytest.raises(VoiceError, match="not there"):
            voice("add", "grandpa", "--audio", tmp_path / "nothing.wav")
        with pytest.raises(RequestError, match="Unknown language 'xx'"):
            voice("add", "grandpa", "--audio", recording, "--language", "xx")
        assert not (tmp_path / "data").exists()

    def test_a_taken_name(self, voice: Callable[..., int], recording: Path) -> None:
        voice("add", "grandpa", "--audio", recording)
        with pytest.raises(VoiceError, match="name Grandpa is that of"):
            voice("add", "Grandpa", "--audio", recording, "--language", "de")

    def test_a_failed_write_leaves_no_voice(
        self,
        tmp_path: Path,
        voice: Callable[..., int],
        recording: Path,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        def full(*_: object, **__: object) -> None:
            raise OSError(28, "No space left on device")

        with monkeypatch.context() as patch:
            patch.setattr(editing.Path, "write_text", full)
            with pytest.raises(VoiceError, match="cannot be written: No space left"):
                voice("add", "grandpa", "--audio", recording, "--text", TRANSCRIPT)
        assert folders(tmp_path) == []
        assert voice("add", "grandpa", "--audio", recording, "--text", TRANSCRIPT) == 0
        assert folders(tmp_path) == ["en/grandpa/ref.txt", "en/grandpa/ref.wav"]

    def test_a_library_that_cannot_be_written(
        self, tmp_path: Path, voice: Callable[..., int], recording: Path
    ) -> None:
        (tmp_path / "data").write_text("in the way")
        with pytest.raises(VoiceError, match="cannot be written"):
            voice("add", "grandpa", "--audio", recording)


class TestListCheckRemove:
    @pytest.fixture
    def library(self, tmp_path: Path) -> Path:
        data = tmp_path / "data"
        write_voice(data, "en/anna", ref_wav=clip_bytes(), ref_txt=TRANSCRIPT)
        write_voice(data, "de/bernd", ref_wav=clip_bytes(), voice_yaml="description: Uncle")
        write_voice(data, "fr/denis", instruct_txt="une voix grave")
        return data

    def test_list_without_own_voices_says_how_to_begin(
        self, tmp_path: Path, voice: Callable[..., int], capsys: pytest.CaptureFixture[str]
    ) -> None:
        for action in ("list", "check"):
            with pytest.raises(ConfigError, match="data does not exist"):
                voice(action)
        (tmp_path / "data").mkdir()
        assert voice("list") == 0
        assert "voice add NAME" in capsys.readouterr().out

    def test_check_a_preset_with_settings(
        self, library: Path, voice: Callable[..., int], capsys: pytest.CaptureFixture[str]
    ) -> None:
        write_voice(library, "en/emil", voice_yaml="preset: ryan")
        assert voice("check", "emil") == 0
        assert "the preset ryan" in capsys.readouterr().out

    def test_list(
        self, library: Path, voice: Callable[..., int], capsys: pytest.CaptureFixture[str]
    ) -> None:
        write_voice(library, "en/bad", ref_wav=b"noise")
        assert voice("list") == 0
        lines = {line.split()[0]: line for line in capsys.readouterr().out.splitlines()}
        assert lines["VOICE"].split() == ["VOICE", "LANGUAGES", "MODEL", "DESCRIPTION"]
        assert lines["anna"].split()[1:3] == ["en", "-"]
        assert "needs a model of the type base" in lines["anna"]
        assert "UNUSABLE: The clip is not a recording" in lines["bad"]
        assert "needs a model of the type voice_design" in lines["denis"]
        assert any("embedded-demo" in line for line in lines.values())
        assert voice("list", "--json") == 0
        rows = {row["voice"]: row for row in json.loads(capsys.readouterr().out)}
        assert rows["bernd"]["languages"] == "de"

    def test_check(
        self, library: Path, voice: Callable[..., int], capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert voice("check") == 0
        out = capsys.readouterr().out
        assert "ok       anna (en): clip and transcript, 2.0 s of speech" in out
        assert "voices checked: 3, cannot be used: 0" in out

    def test_check_finds_a_problem(
        self, library: Path, voice: Callable[..., int], capsys: pytest.CaptureFixture[str]
    ) -> None:
        write_voice(library, "en/anna", ref_txt="Hi.")
        assert voice("check", "anna") == 1
        assert "PROBLEM  anna (en): The transcript does not fit" in capsys.readouterr().out
        assert voice("check", "bernd") == 0
        with pytest.raises(VoiceError, match="did you mean anna"):
            voice("check", "ana")

    def test_remove(self, library: Path, voice: Callable[..., int]) -> None:
        assert voice("remove", "ANNA") == 0
        assert [path.name for path in (library / "voices" / "en").iterdir()] == []
        with pytest.raises(VoiceError, match="no voice"):
            voice("remove", "anna")

    def test_remove_takes_no_path(self, library: Path, voice: Callable[..., int]) -> None:
        for name in ("../en/anna", "en/anna", "..", "."):
            with pytest.raises(VoiceError, match="no voice"):
                voice("remove", name)
        assert len(VoiceLibrary([library]).scan()) == 3

    def test_remove_a_bad_voice(self, library: Path, voice: Callable[..., int]) -> None:
        write_voice(library, "en/bad", ref_wav=b"noise")
        assert voice("remove", "bad") == 0
        assert not (library / "voices" / "en" / "bad").exists()

    def test_remove_one_of_two(self, library: Path, voice: Callable[..., int]) -> None:
        write_voice(library, "de/anna", ref_wav=clip_bytes())
        with pytest.raises(VoiceError, match="Several folders"):
            voice("remove", "anna")

    def test_remove_of_a_link_leaves_what_it_points_to(
        self, tmp_path: Path, library: Path, voice: Callable[..., int]
    ) -> None:
        outside = write_voice(tmp_path / "elsewhere", "en/other", ref_wav=clip_bytes())
        (library / "voices" / "en" / "linked").symlink_to(outside)
        assert voice("remove", "linked") == 0
        assert not (library / "voices" / "en" / "linked").is_symlink()
        assert (outside / "ref.wav").exists()


class TestDesign:
    def test_candidates_and_the_one_that_is_kept(
        self, tmp_path: Path, voice: Callable[..., int], capsys: pytest.CaptureFixture[str]
    ) -> None:
        designer = ScriptedDesigner()
        designed = voice(
            "design", "warm low male voice", "--name", "grandpa", "--language", "de_DE",
            "--candidates", 2, "--seed", 40, designer=designer,
        )  # fmt: skip
        assert designed == 0
        assert [seed for _, seed in designer.spoken] == [40, 41]
        assert designer.spoken[0][0] == DesignBrief(
            "warm low male voice", "de", design_texts()["de"]
        )
        out = capsys.readouterr().out
        assert "candidate-2.wav" in out
        assert "keep grandpa NUMBER" in out
        assert VoiceLibrary([tmp_path / "data"]).scan() == ()
        second = (tmp_path / "data/voices/.designs/grandpa/candidate-2.wav").read_bytes()

        assert voice("keep", "grandpa", 2) == 0
        (entry,) = VoiceLibrary([tmp_path / "data"]).scan()
        assert (entry.problem, entry.model_type, entry.language) == (None, "base", "de")
        assert (entry.text, entry.settings.description) == (
            design_texts()["de"],
            "warm low male voice",
        )
        assert entry.clip is not None
        assert entry.clip.read_bytes() == second
        assert all(name.startswith("de/grandpa/") for name in folders(tmp_path))

    def test_own_text_and_a_second_design_in_place_of_the_first(
        self, tmp_path: Path, voice: Callable[..., int]
    ) -> None:
        for text in ("One, two, three, four, five, six.", TRANSCRIPT):
            voice(
                "design", "warm", "--name", "anna", "--text", text, "--candidates", 1,
                designer=ScriptedDesigner(),
            )  # fmt: skip
        assert voice("keep", "anna", 1) == 0
        assert VoiceLibrary([tmp_path / "data"]).named("anna")[0].text == TRANSCRIPT

    def test_candidates_that_are_no_use(
        self, voice: Callable[..., int], capsys: pytest.CaptureFixture[str]
    ) -> None:
        designer = ScriptedDesigner(silent=(1,), endless=(2,), slow=(3,))
        design = ("design", "warm", "--name", "anna", "--seed", 1, "--text", TRANSCRIPT)
        design = (*design, "--candidates", 4)
        assert voice(*design, designer=designer) == 0
        out = capsys.readouterr().out
        assert "UNUSABLE: The clip is silent" in out
        assert "UNUSABLE: It did not come to an end" in out
        assert "UNUSABLE: The transcript does not fit the clip" in out
        for number in (1, 2, 3):
            with pytest.raises(
                VoiceError, match=f"no candidate {number} that can be kept; there are: 4"
            ):
                voice("keep", "anna", number)
        assert voice("keep", "anna", 4) == 0

    def test_when_none_is_any_use_the_exit_code_says_so(self, voice: Callable[..., int]) -> None:
        designer = ScriptedDesigner(endless=(5,))
        design = ("design", "warm", "--name", "anna", "--seed", 5, "--candidates", 1)
        assert voice(*design, designer=designer) == 1

    @pytest.mark.parametrize("number", [0, 4, -1])
    def test_a_candidate_that_is_not_there(self, voice: Callable[..., int], number: int) -> None:
        design = ("design", "warm", "--name", "anna", "--text", TRANSCRIPT)
        voice(*design, designer=ScriptedDesigner())
        with pytest.raises(VoiceError, match="there are: 1, 2, 3"):
            voice("keep", "anna", number)

    def test_keep_without_a_design(self, voice: Callable[..., int]) -> None:
        with pytest.raises(VoiceError, match="make candidates with: voice design"):
            voice("keep", "anna", 1)

    @pytest.mark.parametrize("name", ["../anna", "..", "a/b"])
    def test_names_that_lead_elsewhere(
        self, tmp_path: Path, voice: Callable[..., int], name: str
    ) -> None:
        designer = ScriptedDesigner()
        with pytest.raises(VoiceError, match="not a name for a voice"):
            voice("design", "warm", "--name", name, designer=designer)
        with pytest.raises(VoiceError, match="not a name for a voice"):
            voice("keep", name, 1)
        assert designer.spoken == []
        assert list(tmp_path.iterdir()) == []

    @pytest.mark.parametrize(
        "damage",
        [
            "",
            "[]",
            "{}",
            '{"candidates": [], "description": "warm"}',
        ],
    )
    def test_a_damaged_design(self, tmp_path: Path, voice: Callable[..., int], damage: str) -> None:
        design = ("design", "warm", "--name", "anna", "--text", TRANSCRIPT)
        voice(*design, designer=ScriptedDesigner())
        (tmp_path / "data/voices/.designs/anna/design.json").write_text(damage)
        with pytest.raises(VoiceError, match="damaged"):
            voice("keep", "anna", 1)

    def test_a_design_with_a_language_that_leads_elsewhere(
        self, tmp_path: Path, voice: Callable[..., int]
    ) -> None:
        design = ("design", "warm", "--name", "anna", "--text", TRANSCRIPT)
        voice(*design, designer=ScriptedDesigner())
        path = tmp_path / "data/voices/.designs/anna/design.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | {"language": "../../../evil"}))
        with pytest.raises(RequestError, match="Unknown language"):
            voice("keep", "anna", 1)
        assert not (tmp_path / "evil").exists()

    def test_refusals_come_before_the_model_is_opened(
        self, voice: Callable[..., int], recording: Path
    ) -> None:
        voice("add", "taken", "--audio", recording)
        designer = ScriptedDesigner()
        for arguments in (
            ("warm", "--name", "taken"),
            (" ", "--name", "anna"),
            ("warm", "--name", "anna", "--language", "xx"),
        ):
            with pytest.raises(Qwen3TTSError):
                voice("design", *arguments, designer=designer)
        assert designer.spoken == []

    def test_without_a_model_it_says_what_to_install(self, voice: Callable[..., int]) -> None:
        with pytest.raises(ConfigError, match="No VoiceDesign model is installed"):
            voice("design", "warm", "--name", "anna")

    def test_every_language_has_a_text_that_makes_a_good_clip(self) -> None:
        assert set(design_texts()) == set(LANGUAGES)
        assert all(6 < reading_time_s(text) < 15 for text in design_texts().values())


class TestDesigner:
    def test_speaks_the_same_with_the_same_seed(
        self, tiny_model: Callable[..., SpeechModel]
    ) -> None:
        model, spoken = tiny_model("1.7B-voice_design"), list[AudioChunk]()
        brief = DesignBrief("warm low male voice", "de", "Hallo.")
        for seed in (3, 3, 4):
            spoken.append(speak_brief(model, brief, seed))
        first, second, third = (audio.samples for audio in spoken)
        assert np.array_equal(first, second)
        assert not np.array_equal(first, third)
        assert spoken[0].sample_rate_hz == model.facts.sample_rate_hz
