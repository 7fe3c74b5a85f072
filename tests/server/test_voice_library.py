"""Voice folders come, change, break and go; the good ones always stay, and speak at once."""

import logging
import os
import shutil
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.server.voice_fixtures import (
    CODEBOOK_SIZE,
    FACTS,
    NUM_GROUPS,
    TRANSCRIPT,
    CountingEncoders,
    clip_bytes,
    encoding_model,
    write_voice,
)
from wyoming_qwen3tts.errors import VoiceError
from wyoming_qwen3tts.model.manifest import read_manifest
from wyoming_qwen3tts.model.speech_model import SpeechModel
from wyoming_qwen3tts.reference_audio import add_continuation_silence, load_reference_clip
from wyoming_qwen3tts.server import voice_cache, voice_folder
from wyoming_qwen3tts.server.voice_folder import LibraryVoice, VoiceKind, check_voice_name
from wyoming_qwen3tts.server.voice_library import VoiceLibrary
from wyoming_qwen3tts.synthesis.options import SynthesisRequest, default_options
from wyoming_qwen3tts.synthesis.synthesizer import Synthesizer
from wyoming_qwen3tts.synthesis.voice import DesignedVoice, IclVoice, XVectorVoice

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
            (name, voice.kind, voice.language, voice.text) for name, voice in voices.items()
        ] == [
            ("anna", VoiceKind.ICL, "en", TRANSCRIPT),
            ("bernd", VoiceKind.X_VECTOR, "de", ""),
            ("clara", VoiceKind.X_VECTOR, "de", ""),
            ("denis", VoiceKind.DESIGNED, "fr", "une voix grave"),
        ]
        assert [voice.model_type for voice in voices.values()] == ["base"] * 3 + ["voice_design"]

    def test_a_clip_beats_a_description(self, tmp_path: Path) -> None:
        write_voice(tmp_path, "en/anna", ref_wav=CLIP, instruct_txt="warm")
        (voice,) = VoiceLibrary([tmp_path]).scan()
        assert voice.kind is VoiceKind.X_VECTOR

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
        for sampling in (options.talker, options.predictor):
            assert (sampling.temperature, sampling.top_k, sampling.top_p) == (0.5, 20, 0.8)

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
            ({"ref_wav": b""}, "empty file"),
            ({"ref_wav": CLIP, "ref_txt": " \n"}, "transcript is empty"),
            ({"ref_wav": CLIP, "ref_txt": "Good."}, "does not cover the clip"),
            ({"ref_wav": CLIP, "ref_txt": 5 * TRANSCRIPT}, "too long for the clip"),
            ({"ref_wav": CLIP, "ref_txt": b"\xff\xfe\x00"}, "no UTF-8"),
            ({"ref_wav": CLIP, "ref_txt": "word " * 9_000}, "longer than 16 KB"),
            ({"instruct_txt": ""}, "empty; describe"),
            ({"ref_wav": CLIP, "voice_yaml": "sede: 3"}, "did you mean seed?"),
            (
                {"ref_wav": CLIP, "voice_yaml": "sampling: {topk: 3}"},
                "did you mean sampling.top_k?",
            ),
            ({"ref_wav": CLIP, "voice_yaml": "sampling: {top_p: 2}"}, "at most 1"),
            ({"ref_wav": CLIP, "voice_yaml": "seed: [1]"}, "voice.yaml: seed"),
            ({"ref_wav": CLIP, "voice_yaml": "- a"}, "keys and values"),
            ({"ref_wav": CLIP, "voice_yaml": "[" * 2_000}, "no YAML"),
            ({"ref_wav": CLIP, "voice_yaml": "a: !!python/name:os.system"}, "no YAML"),
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
        assert "'misc' is no language" in problem_of(tmp_path, "anna")

    def test_names_are_unique_case_blind_and_bad_voices_take_none(self, tmp_path: Path) -> None:
        write_voice(tmp_path, "de/anna", ref_wav=b"noise")
        write_voice(tmp_path, "en/Anna", ref_wav=CLIP)
        write_voice(tmp_path, "fr/anna", ref_wav=CLIP)
        library = VoiceLibrary([tmp_path])
        usable = [voice for voice in library.scan() if voice.problem is None]
        assert [voice.directory.parent.name for voice in usable] == ["en"]
        assert library.find("ANNA") == usable[0]
        taken = [voice.problem for voice in library.scan() if voice.language == "fr"]
        assert "rename one" in str(taken[0])

    @pytest.mark.parametrize("name", ["-rf", "a\nb", "a:b", "a\u202eb", "x" * 65, "tail."])
    def test_names_that_are_no_names(self, tmp_path: Path, name: str) -> None:
        write_voice(tmp_path, f"en/{name}", ref_wav=CLIP)
        (voice,) = VoiceLibrary([tmp_path]).scan()
        assert "no name for a voice" in str(voice.problem)
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
        assert voice.text == ""

    def test_a_linked_voice_and_a_linked_language(
        self, tmp_path: Path, outside: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        write_voice(tmp_path, "en/anna", ref_wav=CLIP)
        (tmp_path / "voices" / "en" / "linked").symlink_to(outside)
        (tmp_path / "voices" / "de").symlink_to(outside.parent)
        library = VoiceLibrary([tmp_path])
        found = problems(library)
        assert set(found) == {"anna", "linked"}
        assert "leads out" in str(found["linked"])
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
        assert "no ordinary file" in str(found["clara"])
        assert "no ordinary file" in str(found["denis"])


class TestHotReload:
    def test_voices_come_change_and_go(self, tmp_path: Path) -> None:
        library = VoiceLibrary([tmp_path])
        assert library.scan() == ()
        directory = write_voice(tmp_path, "en/anna", ref_wav=CLIP)
        assert problems(library) == {"anna": None}
        (directory / "ref.txt").write_text("Good.")
        assert "does not cover" in str(problems(library)["anna"])
        (directory / "ref.txt").write_text(TRANSCRIPT)
        assert problems(library) == {"anna": None}
        assert library.find("anna").kind is VoiceKind.ICL
        (directory / "ref.wav").write_bytes(b"noise")
        assert problems(library)["anna"] is not None
        shutil.rmtree(directory)
        assert library.scan() == ()

    def test_a_changed_file_of_the_same_size_is_noticed(self, tmp_path: Path) -> None:
        directory = write_voice(tmp_path, "en/anna", instruct_txt="warm")
        library = VoiceLibrary([tmp_path])
        assert library.find("anna").text == "warm"
        (directory / "instruct.txt").write_text("cold")
        assert library.find("anna").text == "cold"

    def test_unchanged_voices_are_not_read_again(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        for index in range(20):
            write_voice(tmp_path, f"en/voice{index}", ref_wav=CLIP)
        write_voice(tmp_path, "en/bad", ref_wav=b"noise")
        library = VoiceLibrary([tmp_path])
        before = library.scan()
        for name in ("load_reference_clip", "read_text", "read_settings"):
            monkeypatch.delattr(voice_folder, name)
        assert library.scan() == before

    def test_find_knows_a_voice_that_was_just_added(self, tmp_path: Path) -> None:
        library = VoiceLibrary([tmp_path])
        with pytest.raises(VoiceError, match="no voice 'anna'"):
            library.find("anna")
        write_voice(tmp_path, "en/anna", ref_wav=CLIP)
        assert library.find("anna").name == "anna"
        with pytest.raises(VoiceError, match="did you mean anna"):
            library.find("ana")

    def test_find_says_why_a_voice_cannot_be_used(self, tmp_path: Path) -> None:
        write_voice(tmp_path, "en/anna", ref_wav=b"noise")
        with pytest.raises(VoiceError, match="cannot be used: The clip is no recording"):
            VoiceLibrary([tmp_path]).find("anna")

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


@pytest.fixture
def encoders() -> CountingEncoders:
    return CountingEncoders()


@pytest.fixture
def anna(tmp_path: Path) -> Path:
    return write_voice(tmp_path, "en/anna", ref_wav=CLIP, ref_txt=TRANSCRIPT)


def prepare(
    data_dir: Path, encoders: CountingEncoders, encoder_id: str = "", model: str = "base"
) -> IclVoice | XVectorVoice:
    """Prepare the one voice with a library that has nothing in memory yet."""
    library = VoiceLibrary([data_dir])
    voice = library.prepare(library.find("anna"), encoding_model(encoders, model), encoder_id)
    assert isinstance(voice, IclVoice | XVectorVoice)
    return voice


def cache_files(directory: Path) -> list[Path]:
    return sorted((directory / ".cache").iterdir())


class TestPrepare:
    def test_an_icl_voice(self, tmp_path: Path, anna: Path, encoders: CountingEncoders) -> None:
        voice = prepare(tmp_path, encoders)
        assert isinstance(voice, IclVoice)
        assert voice.reference_text == TRANSCRIPT
        # Two seconds, ending in half a second of silence for the codes.
        assert encoders.last_num_samples > 2.4 * FACTS.sample_rate_hz
        num_frames = -(-encoders.last_num_samples // FACTS.samples_per_frame)
        assert voice.reference_codes.shape == (num_frames, NUM_GROUPS)

    def test_an_x_vector_voice_needs_no_codes(
        self, tmp_path: Path, anna: Path, encoders: CountingEncoders
    ) -> None:
        (anna / "ref.txt").unlink()
        assert isinstance(prepare(tmp_path, encoders), XVectorVoice)
        assert (encoders.num_embedded, encoders.num_encoded) == (1, 0)

    def test_a_designed_voice_needs_no_encoder(self, tmp_path: Path) -> None:
        write_voice(tmp_path, "en/anna", instruct_txt="warm")
        library = VoiceLibrary([tmp_path])
        voice = library.prepare(library.find("anna"), encoding_model(None))
        assert voice == DesignedVoice("warm")

    def test_the_second_time_is_from_memory(
        self, tmp_path: Path, anna: Path, encoders: CountingEncoders
    ) -> None:
        library, model = VoiceLibrary([tmp_path]), encoding_model(encoders)
        first = library.prepare(library.find("anna"), model)
        shutil.rmtree(anna / ".cache")
        assert library.prepare(library.find("anna"), model) is first
        assert encoders.num_embedded == 1

    def test_after_a_restart_it_is_from_disk(
        self, tmp_path: Path, anna: Path, encoders: CountingEncoders
    ) -> None:
        first, second = prepare(tmp_path, encoders), prepare(tmp_path, encoders)
        assert encoders.num_embedded == 1
        assert np.array_equal(first.x_vector, second.x_vector)
        assert isinstance(first, IclVoice)
        assert isinstance(second, IclVoice)
        assert np.array_equal(first.reference_codes, second.reference_codes)

    def test_writing_the_cache_is_no_change_of_the_voice(
        self, tmp_path: Path, anna: Path, encoders: CountingEncoders
    ) -> None:
        library = VoiceLibrary([tmp_path])
        before = library.find("anna")
        library.prepare(before, encoding_model(encoders))
        assert library.find("anna") is before

    @pytest.mark.parametrize(
        "change",
        [
            lambda directory: (directory / "ref.wav").write_bytes(clip_bytes(seed=2)),
            lambda directory: (directory / "ref.txt").write_text(f"Oh! {TRANSCRIPT}"),
            lambda directory: (directory / "ref.txt").unlink(),
        ],
    )
    def test_another_clip_or_transcript_is_encoded_anew(
        self,
        tmp_path: Path,
        anna: Path,
        encoders: CountingEncoders,
        change: Callable[[Path], object],
    ) -> None:
        library, model = VoiceLibrary([tmp_path]), encoding_model(encoders)
        first = library.prepare(library.find("anna"), model)
        change(anna)
        assert library.prepare(library.find("anna"), model) is not first
        assert encoders.num_embedded == 2

    @pytest.mark.parametrize(("encoder_id", "model"), [("other", "base"), ("", "other")])
    def test_another_model_has_its_own_encoding(
        self, tmp_path: Path, anna: Path, encoders: CountingEncoders, encoder_id: str, model: str
    ) -> None:
        prepare(tmp_path, encoders)
        prepare(tmp_path, encoders, encoder_id, model)
        prepare(tmp_path, encoders)
        assert encoders.num_embedded == 2
        assert len(cache_files(anna)) == 2

    def test_a_model_without_encoders(self, tmp_path: Path, anna: Path) -> None:
        library = VoiceLibrary([tmp_path])
        with pytest.raises(VoiceError, match="use a Base model"):
            library.prepare(library.find("anna"), encoding_model(None))

    def test_encoders_that_fail_or_give_nonsense(
        self, tmp_path: Path, anna: Path, encoders: CountingEncoders
    ) -> None:
        encoders.error = RuntimeError("no memory")
        with pytest.raises(
            VoiceError, match="anna cannot be used: The model base failed at the clip: no memory"
        ):
            prepare(tmp_path, encoders)
        encoders.error, encoders.is_broken = None, True
        with pytest.raises(VoiceError, match="no usable numbers"):
            prepare(tmp_path, encoders)
        assert not (anna / ".cache").exists()

    def test_an_unusable_voice(self, tmp_path: Path, encoders: CountingEncoders) -> None:
        write_voice(tmp_path, "en/anna", ref_wav=b"noise")
        library = VoiceLibrary([tmp_path])
        with pytest.raises(VoiceError, match="cannot be used"):
            library.prepare(library.scan()[0], encoding_model(encoders))

    def test_a_clip_that_broke_since_the_scan(
        self, tmp_path: Path, anna: Path, encoders: CountingEncoders
    ) -> None:
        library = VoiceLibrary([tmp_path])
        entry = library.find("anna")
        (anna / "ref.wav").write_bytes(b"noise")
        with pytest.raises(VoiceError, match="no recording"):
            library.prepare(entry, encoding_model(encoders))


class TestDamagedCache:
    def test_any_changed_byte_is_noticed_and_mended(
        self, tmp_path: Path, anna: Path, encoders: CountingEncoders
    ) -> None:
        first = prepare(tmp_path, encoders)
        (file,) = cache_files(anna)
        good = file.read_bytes()
        positions = [*range(0, len(good), 37), 64, 65, len(good) - 1]
        for count, position in enumerate(positions, 2):
            damaged = bytearray(good)
            damaged[position] ^= 0x04
            file.write_bytes(damaged)
            again = prepare(tmp_path, encoders)
            assert encoders.num_embedded == count, position
            assert np.array_equal(first.x_vector, again.x_vector)
            assert file.read_bytes() == good

    @pytest.mark.parametrize("kept", [0, 1, 64, 65, 100, 200, -1])
    def test_a_file_cut_short(
        self, tmp_path: Path, anna: Path, encoders: CountingEncoders, kept: int
    ) -> None:
        prepare(tmp_path, encoders)
        (file,) = cache_files(anna)
        file.write_bytes(file.read_bytes()[:kept])
        prepare(tmp_path, encoders)
        assert encoders.num_embedded == 2

    def test_a_huge_file_and_a_folder_in_its_place(
        self, tmp_path: Path, anna: Path, encoders: CountingEncoders
    ) -> None:
        prepare(tmp_path, encoders)
        (file,) = cache_files(anna)
        with file.open("r+b") as opened:
            opened.truncate(2**33)
        prepare(tmp_path, encoders)
        assert file.stat().st_size < 10_000
        file.unlink()
        file.mkdir()
        prepare(tmp_path, encoders)
        assert encoders.num_embedded == 3

    @pytest.mark.parametrize("what", ["x_vector", "codes", "range", "infinite"])
    def test_a_well_formed_file_that_does_not_fit_the_model(
        self, tmp_path: Path, anna: Path, encoders: CountingEncoders, what: str
    ) -> None:
        voice = prepare(tmp_path, encoders)
        assert isinstance(voice, IclVoice)
        (file,) = cache_files(anna)
        x_vector, codes = voice.x_vector.copy(), voice.reference_codes.copy()
        match what:
            case "x_vector":
                x_vector = x_vector[:-1]
            case "codes":
                codes = codes[:, :-1]
            case "range":
                codes[0, 0] = CODEBOOK_SIZE
            case _:
                x_vector[0] = np.inf
        wrong = voice_cache.EncodedClip(x_vector, codes)
        assert voice_cache.store(anna, file.stem, wrong)
        prepare(tmp_path, encoders)
        assert encoders.num_embedded == 2

    @given(content=st.binary(max_size=300))
    @settings(
        max_examples=50, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None
    )
    def test_any_bytes_are_as_good_as_no_file(self, tmp_path: Path, content: bytes) -> None:
        folder = tmp_path / ".cache"
        folder.mkdir(exist_ok=True)
        (folder / "key.clip").write_bytes(content)
        assert voice_cache.load(tmp_path, "key", FACTS, has_codes=True) is None

    @given(st.integers(1, 30), st.booleans(), st.integers(0, 2**32 - 1))
    @settings(
        max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None
    )
    def test_what_is_stored_is_loaded(
        self, tmp_path: Path, num_frames: int, has_codes: bool, seed: int
    ) -> None:
        rng = np.random.default_rng(seed)
        x_vector = rng.standard_normal(FACTS.hidden_size).astype(np.float32)
        codes = rng.integers(0, CODEBOOK_SIZE, (num_frames, NUM_GROUPS)) if has_codes else None
        assert voice_cache.store(tmp_path, "key", voice_cache.EncodedClip(x_vector, codes))
        loaded = voice_cache.load(tmp_path, "key", FACTS, has_codes=has_codes)
        assert loaded is not None
        assert np.array_equal(loaded.x_vector, x_vector)
        assert (loaded.codes is None) == (codes is None)
        assert codes is None or np.array_equal(loaded.codes, codes)

    def test_a_linked_cache_is_not_followed(
        self, tmp_path: Path, anna: Path, encoders: CountingEncoders
    ) -> None:
        outside = tmp_path / "outside"
        outside.mkdir()
        (anna / ".cache").symlink_to(outside)
        prepare(tmp_path, encoders)
        prepare(tmp_path, encoders)
        assert encoders.num_embedded == 2
        assert list(outside.iterdir()) == []

    def test_where_nothing_can_be_written_memory_serves(
        self, tmp_path: Path, anna: Path, encoders: CountingEncoders
    ) -> None:
        (anna / ".cache").write_text("in the way")
        library, model = VoiceLibrary([tmp_path]), encoding_model(encoders)
        first = library.prepare(library.find("anna"), model)
        assert library.prepare(library.find("anna"), model) is first
        assert encoders.num_embedded == 1

    def test_a_killed_write_leaves_the_old_state_and_is_swept(
        self,
        tmp_path: Path,
        anna: Path,
        encoders: CountingEncoders,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        def killed(*_: object) -> None:
            raise KeyboardInterrupt

        with monkeypatch.context() as patch:
            patch.setattr(Path, "replace", killed)
            patch.setattr(Path, "unlink", lambda *_, **__: None)
            with pytest.raises(KeyboardInterrupt):
                prepare(tmp_path, encoders)
        (part,) = cache_files(anna)
        os.utime(part, (0, 0))
        prepare(tmp_path, encoders)
        assert encoders.num_embedded == 2
        assert [file.suffix for file in cache_files(anna)] == [".clip"]

    def test_old_encodings_do_not_pile_up(
        self, tmp_path: Path, anna: Path, encoders: CountingEncoders
    ) -> None:
        for index in range(12):
            prepare(tmp_path, encoders, encoder_id=str(index))
        assert len(cache_files(anna)) == 8


class TestRealModel:
    def test_a_library_voice_speaks(
        self, tmp_path: Path, anna: Path, tiny_model: Callable[..., SpeechModel]
    ) -> None:
        model = tiny_model("0.6B-base")
        assert model.speaker_encoder is not None
        assert model.codec_encoder is not None
        library = VoiceLibrary([tmp_path])
        voice = library.prepare(library.find("anna"), model)
        assert isinstance(voice, IclVoice)
        clip = load_reference_clip(anna / "ref.wav", model.facts.sample_rate_hz)
        padded = add_continuation_silence(clip, model.facts.sample_rate_hz)
        assert np.array_equal(voice.x_vector, model.speaker_encoder.embed(clip))
        assert np.array_equal(voice.reference_codes, model.codec_encoder.encode(padded))

        options = replace(default_options(model.facts.generation, seed=1), max_frames=4)
        # From disk it is the same voice: the same codes are spoken.
        again = VoiceLibrary([tmp_path]).prepare(library.find("anna"), model)
        spoken = [
            np.concatenate(
                [
                    chunk.samples
                    for chunk in Synthesizer(model).stream(
                        SynthesisRequest("Hello.", each, options)
                    )
                ]
            )
            for each in (voice, again)
        ]
        assert len(spoken[0]) > 0
        assert np.array_equal(*spoken)

    def test_bundles_with_the_same_encoders_share_an_encoding(
        self, tiny_bundle: Callable[..., Path]
    ) -> None:
        base = read_manifest(tiny_bundle("0.6B-base"))
        other = read_manifest(tiny_bundle("1.7B-base"))
        assert voice_cache.encoder_id(base) == voice_cache.encoder_id(replace(base, recipe="int8"))
        assert voice_cache.encoder_id(base) != voice_cache.encoder_id(other)


def test_a_voice_can_be_made_by_hand(tmp_path: Path) -> None:
    voice = LibraryVoice("anna", "en", VoiceKind.DESIGNED, tmp_path, text="warm")
    assert VoiceLibrary([]).prepare(voice, encoding_model(None)) == DesignedVoice("warm")
