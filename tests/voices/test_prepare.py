"""Voices are encoded once, kept, and encoded anew when a clip, a model or the kept file changes."""

import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.support.voice_fixtures import (
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
from wyoming_qwen3tts.runtime.manifest import read_manifest
from wyoming_qwen3tts.runtime.speech_model import SpeechModel
from wyoming_qwen3tts.synthesis.request import (
    DesignedVoice,
    IclVoice,
    SynthesisRequest,
    XVectorVoice,
    default_options,
)
from wyoming_qwen3tts.synthesis.synthesizer import Synthesizer
from wyoming_qwen3tts.voices.clips import (
    add_continuation_silence,
    decode_reference_clip,
    encode_apart,
    encode_clip,
    load_encoded,
)
from wyoming_qwen3tts.voices.library import VoiceLibrary

CLIP = clip_bytes()
IS_ROOT = os.geteuid() == 0


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
    opened = replace(encoding_model(encoders, model), encoder_id=encoder_id)
    voice = library.prepare(library.named("anna")[0], opened).result(10)
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
        assert VoiceLibrary([tmp_path]).named("anna")[0].spoken == DesignedVoice("warm")

    def test_the_second_time_is_from_memory(
        self, tmp_path: Path, anna: Path, encoders: CountingEncoders
    ) -> None:
        library, model = VoiceLibrary([tmp_path]), encoding_model(encoders)
        first = library.prepare(library.named("anna")[0], model).result(10)
        shutil.rmtree(anna / ".cache")
        assert library.prepare(library.named("anna")[0], model).result(10) is first
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
        before = library.named("anna")[0]
        library.prepare(before, encoding_model(encoders)).result(10)
        assert library.named("anna")[0] is before

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
        first = library.prepare(library.named("anna")[0], model).result(10)
        change(anna)
        assert library.prepare(library.named("anna")[0], model).result(10) is not first
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
            library.prepare(library.named("anna")[0], encoding_model(None)).result(10)

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

    def test_a_clip_that_broke_since_the_scan(
        self, tmp_path: Path, anna: Path, encoders: CountingEncoders
    ) -> None:
        library = VoiceLibrary([tmp_path])
        entry = library.named("anna")[0]
        (anna / "ref.wav").write_bytes(b"noise")
        with pytest.raises(VoiceError, match="not a recording"):
            library.prepare(entry, encoding_model(encoders)).result(10)


class TestDamagedCache:
    def test_any_changed_byte_leaves_the_voice_as_it_is(
        self, tmp_path: Path, anna: Path, encoders: CountingEncoders
    ) -> None:
        first = prepare(tmp_path, encoders)
        (file,) = cache_files(anna)
        good = file.read_bytes()
        for position in (*range(0, len(good), 37), len(good) - 1):
            damaged = bytearray(good)
            damaged[position] ^= 0x04
            file.write_bytes(damaged)
            again = prepare(tmp_path, encoders)
            assert np.array_equal(first.x_vector, again.x_vector), position
            assert isinstance(first, IclVoice)
            assert isinstance(again, IclVoice)
            assert np.array_equal(first.reference_codes, again.reference_codes), position
        assert encoders.num_embedded > 2

    @pytest.mark.parametrize("kept", [0, 1, 64, 200, -1])
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

    @pytest.mark.parametrize("what", ["x_vector", "codes", "range", "infinite", "type", "object"])
    def test_a_well_formed_file_that_does_not_fit_the_model(
        self, tmp_path: Path, anna: Path, encoders: CountingEncoders, what: str
    ) -> None:
        voice = prepare(tmp_path, encoders)
        assert isinstance(voice, IclVoice)
        (file,) = cache_files(anna)
        arrays: dict[str, Any] = {"x_vector": voice.x_vector, "codes": voice.reference_codes.copy()}
        match what:
            case "x_vector":
                arrays["x_vector"] = voice.x_vector[:-1]
            case "codes":
                arrays["codes"] = voice.reference_codes[:, :-1]
            case "range":
                arrays["codes"][0, 0] = CODEBOOK_SIZE
            case "type":
                arrays["codes"] = voice.reference_codes.astype(np.float64)
            case "object":
                arrays["codes"] = np.array([{}], dtype=object)
            case _:
                arrays["x_vector"] = voice.x_vector * np.inf
        np.savez(file, **arrays)
        prepare(tmp_path, encoders)
        assert encoders.num_embedded == 2

    @given(content=st.binary(max_size=300))
    @settings(
        max_examples=50, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None
    )
    def test_any_bytes_are_as_good_as_no_file(self, tmp_path: Path, content: bytes) -> None:
        path = tmp_path / "clip.npz"
        path.write_bytes(content)
        assert load_encoded(path, None, encoding_model(None)) is None

    def test_where_nothing_can_be_written_memory_serves(
        self, tmp_path: Path, anna: Path, encoders: CountingEncoders
    ) -> None:
        (anna / ".cache").write_text("in the way")
        library, model = VoiceLibrary([tmp_path]), encoding_model(encoders)
        first = library.prepare(library.named("anna")[0], model).result(10)
        assert library.prepare(library.named("anna")[0], model).result(10) is first
        assert encoders.num_embedded == 1

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
        voice = library.prepare(library.named("anna")[0], model).result(10)
        assert isinstance(voice, IclVoice)
        clip = decode_reference_clip(CLIP, model.facts.sample_rate_hz)
        padded = add_continuation_silence(clip, model.facts.sample_rate_hz)
        assert np.array_equal(voice.x_vector, model.speaker_encoder(clip))
        assert np.array_equal(voice.reference_codes, model.codec_encoder(padded))

        assert np.array_equal(voice.codec_state.position, len(voice.reference_codes))

        options = replace(default_options(model.facts.generation, seed=1), max_frames=4)
        # From disk it is the same voice: the same codes are spoken.
        again = VoiceLibrary([tmp_path]).prepare(library.named("anna")[0], model).result(10)
        spoken = []
        for each in (voice, again):
            synthesizer = Synthesizer(model)
            speech = synthesizer.submit(SynthesisRequest("Hello.", each, options))
            spoken.append(np.concatenate([it.samples for it in synthesizer.follow(speech)]))
        assert len(spoken[0]) > 0
        assert np.array_equal(*spoken)

    def test_a_process_of_its_own_encodes_the_same(
        self, tmp_path: Path, anna: Path, tiny_model: Callable[..., SpeechModel]
    ) -> None:
        model = tiny_model("0.6B-base")
        here, apart = (encode(CLIP, TRANSCRIPT, model) for encode in (encode_clip, encode_apart))
        assert set(here) == set(apart)
        for name, array in here.items():
            np.testing.assert_allclose(apart[name], array, atol=1e-5)
        with pytest.raises(VoiceError, match="not a recording"):
            encode_apart(b"noise", TRANSCRIPT, model)

    def test_the_kept_codec_state_is_that_of_decoding_the_clip(
        self, tmp_path: Path, anna: Path, tiny_model: Callable[..., SpeechModel]
    ) -> None:
        model = tiny_model("0.6B-base")
        for _ in range(2):  # encoded, then from disk
            library = VoiceLibrary([tmp_path])
            voice = library.prepare(library.named("anna")[0], model).result(10)
            assert isinstance(voice, IclVoice)
            decoder, codes = model.codec_decoder, voice.reference_codes
            decoded = decoder.advance(codes, decoder.initial_state())
            assert voice.codec_state.position == decoded.position
            for name, value in decoded.values.items():
                kept = voice.codec_state.values[name].numpy()
                np.testing.assert_allclose(kept, value.numpy(), atol=1e-5)

    def test_the_first_request_decodes_nothing_of_the_clip(
        self, tmp_path: Path, anna: Path, tiny_model: Callable[..., SpeechModel]
    ) -> None:
        model, advanced = tiny_model("0.6B-base"), []

        class Watched:
            def __getattr__(self, name: str) -> Any:
                if name == "advance":
                    advanced.append(name)
                return getattr(model.codec_decoder, name)

        library = VoiceLibrary([tmp_path])
        voice = library.prepare(library.named("anna")[0], model).result(10)
        watched: Any = Watched()
        options = replace(default_options(model.facts.generation, seed=1), max_frames=2)
        request = SynthesisRequest("Hello.", voice, options)
        synthesizer = Synthesizer(replace(model, codec_decoder=watched))
        assert list(synthesizer.follow(synthesizer.submit(request)))
        assert not advanced

    def test_bundles_with_the_same_encoders_share_an_encoding(
        self, tiny_bundle: Callable[..., Path], tiny_model: Callable[..., SpeechModel]
    ) -> None:
        base = read_manifest(tiny_bundle("0.6B-base"))
        other = read_manifest(tiny_bundle("1.7B-base"))
        assert base.encoder_id == replace(base, recipe="int8").encoder_id
        assert base.encoder_id != other.encoder_id
        assert tiny_model("0.6B-base").encoder_id == base.encoder_id
