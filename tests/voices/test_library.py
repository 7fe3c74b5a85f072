"""Voice folders come, change, break and go; the good ones always stay."""

import logging
import multiprocessing
import os
import shutil
import threading
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.voice_fixtures import (
    FACTS,
    TRANSCRIPT,
    clip_bytes,
    write_voice,
)
from wyoming_qwen3tts.errors import VoiceError
from wyoming_qwen3tts.synthesis.request import default_options
from wyoming_qwen3tts.voices import voice_folder
from wyoming_qwen3tts.voices.library import VoiceLibrary
from wyoming_qwen3tts.voices.voice_folder import check_voice_name

CLIP = clip_bytes()
IS_ROOT = os.geteuid() == 0


def problems(library: VoiceLibrary) -> dict[str, str | None]:
    return {voice.name: voice.problem for voice in library.scan()}


def problem_of(data_dir: Path, name: str) -> str:
    problem = problems(VoiceLibrary([data_dir]))[name]
    assert problem is not None
    return problem


class TestKinds:
    def test_each_kind_of_folder(self, tmp_path: Path) -> None:
        write_voice(tmp_path, "en/anna", ref_wav=CLIP, ref_txt=f"\ufeff{TRANSCRIPT}\r\n")
        write_voice(tmp_path, "de_DE/bernd", ref_flac=clip_bytes(container="FLAC"))
        write_voice(tmp_path, "German/clara", ref_ogg=clip_bytes(container="OGG"))
        write_voice(tmp_path, "fr/denis", instruct_txt="une voix\ngrave\n")
        voices = {voice.name: voice for voice in VoiceLibrary([tmp_path]).scan()}
        assert [voice.problem for voice in voices.values()] == [None] * 4
        assert [
            (name, voice.clip is not None, voice.language, voice.text)
            for name, voice in voices.items()
        ] == [
            ("anna", True, "en", TRANSCRIPT),
            ("bernd", True, "de", None),
            ("clara", True, "de", None),
            ("denis", False, "fr", "une voix grave"),
        ]
        assert [voice.model_type for voice in voices.values()] == ["base"] * 3 + ["voice_design"]

    def test_a_clip_beats_a_description(self, tmp_path: Path) -> None:
        write_voice(tmp_path, "en/anna", ref_wav=CLIP, instruct_txt="warm")
        (voice,) = VoiceLibrary([tmp_path]).scan()
        assert (voice.model_type, voice.text) == ("base", None)

    def test_several_data_dirs_and_other_folders(self, tmp_path: Path) -> None:
        write_voice(tmp_path / "a", "en/anna", ref_wav=CLIP)
        write_voice(tmp_path / "b", "en/bernd", ref_wav=CLIP)
        write_voice(tmp_path / "a", "en/.anna.12.part", ref_wav=CLIP)
        write_voice(tmp_path / "a", ".designs/clara", ref_wav=CLIP)
        (tmp_path / "a" / "voices" / "README.md").write_text("hello")
        (tmp_path / "a" / "voices" / "en" / "README.md").write_text("hello")
        library = VoiceLibrary([tmp_path / "a", tmp_path / "b", tmp_path / "none"])
        assert problems(library) == {"anna": None, "bernd": None}

    def test_settings(self, tmp_path: Path) -> None:
        text = """
            description: Grandfather
            seed: 7
            style: calm
            model_size: 1.7B
            sampling: {temperature: 0.5, top_k: 20, top_p: 0.8}
        """
        write_voice(tmp_path, "en/anna", ref_wav=CLIP, voice_yaml=text)
        (voice,) = VoiceLibrary([tmp_path]).scan()
        assert voice.problem is None
        wished = voice.settings
        assert (wished.description, wished.style, wished.model_size) == (
            "Grandfather",
            "calm",
            "1.7B",
        )
        options = wished.apply(default_options(FACTS.generation, 1))
        assert options.seed == 7
        sampling = options.talker
        assert (sampling.temperature, sampling.top_k, sampling.top_p) == (0.5, 20, 0.8)
        assert options.predictor == default_options(FACTS.generation, 1).predictor

    def test_no_settings_change_nothing(self, tmp_path: Path) -> None:
        write_voice(tmp_path, "en/anna", ref_wav=CLIP, voice_yaml="")
        (voice,) = VoiceLibrary([tmp_path]).scan()
        options = default_options(FACTS.generation, 1)
        assert voice.settings.apply(options) == options


class TestProblems:
    def test_one_bad_voice_hides_no_other(
        self, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        write_voice(tmp_path, "en/anna", ref_wav=CLIP)
        write_voice(tmp_path, "en/bad", ref_wav=b"noise")
        write_voice(tmp_path, "en/worse", ref_wav=CLIP, voice_yaml="{")
        write_voice(tmp_path, "de/bernd", ref_wav=CLIP)
        library = VoiceLibrary([tmp_path])
        for _ in range(3):
            found = problems(library)
            assert {name for name, problem in found.items() if problem is None} == {"anna", "bernd"}
        warnings = [record for record in caplog.records if record.levelno == logging.WARNING]
        assert len(warnings) == 2
        assert "en/bad" in warnings[0].getMessage()
        assert "ffmpeg" in warnings[0].getMessage()

    @pytest.mark.parametrize(
        ("files", "words"),
        [
            ({}, "neither a clip"),
            ({"ref_wav": CLIP, "ref_mp3": CLIP}, "several clips"),
            ({"ref_wav": b""}, "not a recording"),
            ({"ref_wav": CLIP, "ref_txt": " \n"}, "transcript is empty"),
            ({"ref_wav": CLIP, "ref_txt": "Good."}, "does not fit the clip"),
            ({"ref_wav": CLIP, "ref_txt": 5 * TRANSCRIPT}, "does not fit the clip"),
            ({"ref_wav": CLIP, "ref_txt": b"\xff\xfe\x00"}, "not UTF-8"),
            ({"ref_wav": CLIP, "ref_txt": "word " * 9_000}, "longer than 16 KB"),
            ({"instruct_txt": ""}, "empty; describe"),
            ({"ref_wav": CLIP, "voice_yaml": "sede: 3"}, "did you mean seed?"),
            (
                {"ref_wav": CLIP, "voice_yaml": "sampling: {topk: 3}"},
                "did you mean top_k?",
            ),
            ({"ref_wav": CLIP, "voice_yaml": "sampling: {top_p: 2}"}, "at most 1"),
            ({"ref_wav": CLIP, "voice_yaml": "seed: [1]"}, "voice.yaml: seed"),
            ({"ref_wav": CLIP, "voice_yaml": "- a"}, "keys and values"),
            ({"ref_wav": CLIP, "voice_yaml": "[" * 2_000}, "not valid YAML"),
            ({"ref_wav": CLIP, "voice_yaml": "a: !!python/name:os.system"}, "not valid YAML"),
        ],
    )
    def test_each_says_what_to_do(
        self, tmp_path: Path, files: dict[str, str | bytes], words: str
    ) -> None:
        write_voice(tmp_path, "en/anna", **files)
        assert words in problem_of(tmp_path, "anna")

    def test_the_check_of_transcripts_can_be_switched_off(self, tmp_path: Path) -> None:
        directory = write_voice(tmp_path, "en/anna", ref_wav=CLIP, ref_txt="Good.")
        assert "check_transcript: false" in problem_of(tmp_path, "anna")
        (directory / "voice.yaml").write_text("check_transcript: false")
        assert problems(VoiceLibrary([tmp_path])) == {"anna": None}

    def test_a_folder_that_is_no_language(self, tmp_path: Path) -> None:
        write_voice(tmp_path, "misc/anna", ref_wav=CLIP)
        assert "'misc' is not a language" in problem_of(tmp_path, "anna")

    def test_names_are_unique_case_blind_and_bad_voices_take_none(self, tmp_path: Path) -> None:
        write_voice(tmp_path, "de/anna", ref_wav=b"noise")
        write_voice(tmp_path, "en/Anna", ref_wav=CLIP)
        write_voice(tmp_path, "fr/anna", ref_wav=CLIP)
        library = VoiceLibrary([tmp_path])
        usable = [voice for voice in library.scan() if voice.problem is None]
        assert [voice.directory.parent.name for voice in usable] == ["en"]
        assert usable[0] in library.named("ANNA")
        taken = [voice.problem for voice in library.scan() if voice.language == "fr"]
        assert "rename one" in str(taken[0])

    @pytest.mark.parametrize("name", ["-rf", "a\nb", "a:b", "a\u202eb", "x" * 65, "tail."])
    def test_names_that_are_no_names(self, tmp_path: Path, name: str) -> None:
        write_voice(tmp_path, f"en/{name}", ref_wav=CLIP)
        (voice,) = VoiceLibrary([tmp_path]).scan()
        assert "not a name for a voice" in str(voice.problem)
        assert voice.name.isprintable()

    def test_a_name_that_is_no_text_at_all(
        self, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        (tmp_path / "voices" / "en").mkdir(parents=True)
        os.mkdir(os.fsencode(tmp_path / "voices" / "en") + b"/a\xff")  # noqa: PTH102
        write_voice(tmp_path, "en/anna", ref_wav=CLIP)
        found = problems(VoiceLibrary([tmp_path]))
        assert found["anna"] is None
        assert all(name.encode() for name in found)
        assert all(record.getMessage().encode() for record in caplog.records)

    @given(st.text(max_size=70))
    @settings(max_examples=100)
    def test_a_good_name_stays_in_its_folder(self, name: str) -> None:
        try:
            check_voice_name(name)
        except VoiceError:
            return
        path = Path("/library/en") / name
        assert Path(os.path.normpath(path)) == path
        assert path.parent == Path("/library/en")
        assert name.isprintable()

    @pytest.mark.skipif(IS_ROOT, reason="root may read everything")
    def test_a_folder_that_may_not_be_read(self, tmp_path: Path) -> None:
        directory = write_voice(tmp_path, "en/locked", ref_wav=CLIP)
        write_voice(tmp_path, "en/anna", ref_wav=CLIP)
        directory.chmod(0)
        try:
            found = problems(VoiceLibrary([tmp_path]))
        finally:
            directory.chmod(0o755)
        assert found["anna"] is None
        assert "cannot be read" in str(found["locked"])


class TestLinks:
    @pytest.fixture
    def outside(self, tmp_path: Path) -> Path:
        return write_voice(tmp_path / "elsewhere", "en/secret", ref_wav=CLIP, ref_txt=TRANSCRIPT)

    def test_a_linked_clip(self, tmp_path: Path, outside: Path) -> None:
        directory = write_voice(tmp_path, "en/anna")
        (directory / "ref.wav").symlink_to(outside / "ref.wav")
        assert "leads out of the voice library" in problem_of(tmp_path, "anna")

    def test_a_linked_transcript_is_not_read(self, tmp_path: Path, outside: Path) -> None:
        directory = write_voice(tmp_path, "en/anna", ref_wav=CLIP)
        (directory / "ref.txt").symlink_to(outside / "ref.txt")
        (voice,) = VoiceLibrary([tmp_path]).scan()
        assert "leads out of the voice library" in str(voice.problem)
        assert voice.text is None

    def test_a_linked_voice_and_a_linked_language(
        self, tmp_path: Path, outside: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        write_voice(tmp_path, "en/anna", ref_wav=CLIP)
        (tmp_path / "voices" / "en" / "linked").symlink_to(outside)
        (tmp_path / "voices" / "de").symlink_to(outside.parent)
        library = VoiceLibrary([tmp_path])
        found = problems(library)
        assert set(found) == {"anna", "linked", "secret"}
        assert "leads out" in str(found["linked"])
        assert "leads out" in str(found["secret"])
        assert sum("leads out" in record.getMessage() for record in caplog.records) == 2

    def test_links_inside_the_library_are_fine(self, tmp_path: Path) -> None:
        directory = write_voice(tmp_path, "en/anna", ref_wav=CLIP)
        (write_voice(tmp_path, "de/bernd") / "ref.wav").symlink_to(directory / "ref.wav")
        assert problems(VoiceLibrary([tmp_path])) == {"anna": None, "bernd": None}

    def test_the_library_itself_may_be_a_link(self, tmp_path: Path) -> None:
        write_voice(tmp_path / "real", "en/anna", ref_wav=CLIP)
        (tmp_path / "voices").symlink_to(tmp_path / "real" / "voices")
        assert problems(VoiceLibrary([tmp_path])) == {"anna": None}

    def test_a_link_that_is_turned_outside_is_noticed(self, tmp_path: Path, outside: Path) -> None:
        directory = write_voice(tmp_path, "en/anna", ref_wav=CLIP)
        linked = write_voice(tmp_path, "en/bernd") / "ref.wav"
        linked.symlink_to(directory / "ref.wav")
        library = VoiceLibrary([tmp_path])
        assert problems(library)["bernd"] is None
        linked.unlink()
        linked.symlink_to(outside / "ref.wav")
        assert "leads out" in str(problems(library)["bernd"])

    def test_links_to_nothing_and_pipes(self, tmp_path: Path) -> None:
        (write_voice(tmp_path, "en/anna") / "ref.wav").symlink_to("ref.wav")
        (write_voice(tmp_path, "en/bernd") / "ref.wav").symlink_to("nothing")
        os.mkfifo(write_voice(tmp_path, "en/clara") / "ref.wav")
        (write_voice(tmp_path, "en/denis") / "ref.wav").mkdir()
        found = problems(VoiceLibrary([tmp_path]))
        assert "link to nothing" in str(found["anna"])
        assert "link to nothing" in str(found["bernd"])
        assert "not an ordinary file" in str(found["clara"])
        assert "not an ordinary file" in str(found["denis"])


class TestHotReload:
    def test_voices_come_change_and_go(self, tmp_path: Path) -> None:
        library = VoiceLibrary([tmp_path])
        assert library.scan() == ()
        directory = write_voice(tmp_path, "en/anna", ref_wav=CLIP)
        assert problems(library) == {"anna": None}
        (directory / "ref.txt").write_text("Good.")
        assert "does not fit" in str(problems(library)["anna"])
        (directory / "ref.txt").write_text(TRANSCRIPT)
        assert problems(library) == {"anna": None}
        assert library.named("anna")[0].text == TRANSCRIPT
        (directory / "ref.wav").write_bytes(b"noise")
        assert problems(library)["anna"] is not None
        shutil.rmtree(directory)
        assert library.scan() == ()

    def test_a_changed_file_of_the_same_size_is_noticed(self, tmp_path: Path) -> None:
        directory = write_voice(tmp_path, "en/anna", instruct_txt="warm")
        library = VoiceLibrary([tmp_path])
        assert library.named("anna")[0].text == "warm"
        (directory / "instruct.txt").write_text("cold")
        os.utime(directory / "instruct.txt", (1, 1))
        assert library.named("anna")[0].text == "cold"

    def test_unchanged_voices_are_not_read_again(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        for index in range(20):
            write_voice(tmp_path, f"en/voice{index}", ref_wav=CLIP)
        write_voice(tmp_path, "en/bad", ref_wav=b"noise")
        library = VoiceLibrary([tmp_path])
        before = library.scan()
        for name in ("read_clip_file", "read_text", "read_settings"):
            monkeypatch.delattr(voice_folder, name)
        assert library.scan() == before

    def test_find_knows_a_voice_that_was_just_added(self, tmp_path: Path) -> None:
        library = VoiceLibrary([tmp_path])
        with pytest.raises(VoiceError, match="no voice 'anna'"):
            library.named("anna")[0]
        write_voice(tmp_path, "en/anna", ref_wav=CLIP)
        assert library.named("anna")[0].name == "anna"
        with pytest.raises(VoiceError, match="did you mean anna"):
            library.named("ana")[0]

    def test_scanning_in_many_threads(self, tmp_path: Path) -> None:
        library = VoiceLibrary([tmp_path])
        write_voice(tmp_path, "en/anna", ref_wav=CLIP)
        found: list[int] = []
        threads = [
            threading.Thread(target=lambda: found.append(len(library.scan()))) for _ in range(4)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert found == [1, 1, 1, 1]


def test_closing_leaves_the_processes_of_a_program_that_uses_the_library(tmp_path):
    child = multiprocessing.get_context("spawn").Process(target=time.sleep, args=(60,))
    child.start()
    VoiceLibrary([tmp_path]).close()
    child.join(0.5)
    assert child.exitcode is None
    child.terminate()
    child.join()
