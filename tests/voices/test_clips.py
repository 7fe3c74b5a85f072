"""Any recording gives the same voice; a useless one is refused with its own words."""

import contextlib
import io
import re
import struct
import unicodedata
from pathlib import Path

import numpy as np
import pytest
import soundfile
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.oracle.speaker_encoder import OracleSpeakerEncoder
from tests.support.speech_clip import SAMPLE_RATE_HZ, encode_clip, speech_clip
from tests.support.tiny_checkpoint import write_tiny_checkpoint
from wyoming_qwen3tts.arrays import Float32Array
from wyoming_qwen3tts.errors import VoiceError
from wyoming_qwen3tts.voices.clips import (
    MAX_CLIP_S,
    add_continuation_silence,
    check_transcript,
    decode_reference_clip,
    read_clip_file,
    reading_time_s,
    speech_duration_s,
)

RATES_HZ = (8_000, 11_025, 16_000, 22_050, 24_000, 32_000, 44_100, 48_000)
KINDS = (
    ("WAV", "PCM_U8"),
    ("WAV", "PCM_16"),
    ("WAV", "PCM_24"),
    ("WAV", "FLOAT"),
    ("FLAC", "PCM_16"),
    ("FLAC", "PCM_24"),
    ("OGG", "VORBIS"),
    ("MP3", "MPEG_LAYER_III"),
)


@pytest.fixture(scope="module")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> OracleSpeakerEncoder:
    directory = tmp_path_factory.mktemp("checkpoint") / "base"
    return OracleSpeakerEncoder(write_tiny_checkpoint(directory, "base"))


def cosine(left: Float32Array, right: Float32Array) -> float:
    return float(left @ right / (np.linalg.norm(left) * np.linalg.norm(right)))


def wav(samples: np.ndarray, rate_hz: int = SAMPLE_RATE_HZ, subtype: str = "FLOAT") -> bytes:
    file = io.BytesIO()
    soundfile.write(file, samples, rate_hz, format="WAV", subtype=subtype)
    return file.getvalue()


def refusal(content: bytes) -> str:
    with pytest.raises(VoiceError) as caught:
        decode_reference_clip(content, SAMPLE_RATE_HZ)
    return str(caught.value)


class TestSameVoice:
    @pytest.mark.parametrize("rate_hz", RATES_HZ)
    def test_every_kind_of_file_gives_the_same_x_vector(
        self, rate_hz: int, encoder: OracleSpeakerEncoder
    ) -> None:
        # The original is what the rate can carry: what it cannot is no matter of loading.
        original = speech_clip(1.2, max_hz=min(0.45 * rate_hz, 11_500))
        expected = encoder.embed(original)
        for container, subtype in KINDS:
            for num_channels in (1, 2):
                content = encode_clip(
                    original,
                    rate_hz,
                    container=container,
                    subtype=subtype,
                    num_channels=num_channels,
                )
                samples = decode_reference_clip(content, SAMPLE_RATE_HZ)
                similarity = cosine(expected, encoder.embed(samples))
                assert similarity > 0.99, (container, subtype, num_channels, similarity)
                assert abs(len(samples) - len(original)) < 0.06 * SAMPLE_RATE_HZ

    def test_the_measure_notices_a_clip_that_was_not_resampled(
        self, encoder: OracleSpeakerEncoder
    ) -> None:
        original = speech_clip(max_hz=7_200)
        samples = decode_reference_clip(encode_clip(original, 16_000), 16_000)
        assert cosine(encoder.embed(original), encoder.embed(samples)) < 0.99

    def test_a_narrow_clip_is_the_same_at_every_rate(self, encoder: OracleSpeakerEncoder) -> None:
        original = speech_clip(max_hz=3_400)
        expected = encoder.embed(original)
        for rate_hz in RATES_HZ:
            samples = decode_reference_clip(encode_clip(original, rate_hz), SAMPLE_RATE_HZ)
            assert cosine(expected, encoder.embed(samples)) > 0.999, rate_hz

    def test_a_clip_as_the_model_wants_it_stays_as_it_is(self) -> None:
        original = speech_clip()
        assert np.array_equal(decode_reference_clip(wav(original), SAMPLE_RATE_HZ), original)

    def test_channels_are_averaged(self) -> None:
        left, right = speech_clip(seed=1), speech_clip(pitch_hz=200, seed=2)
        samples = decode_reference_clip(wav(np.stack([left, right], axis=1)), SAMPLE_RATE_HZ)
        np.testing.assert_allclose(samples, (left + right) / 2, atol=1e-6)

    def test_floats_beyond_full_scale_are_scaled_not_refused(self) -> None:
        original = speech_clip()
        samples = decode_reference_clip(wav(original * 20_000), SAMPLE_RATE_HZ)
        np.testing.assert_allclose(samples, original / np.abs(original).max(), atol=1e-5)

    def test_loads_from_a_file_whatever_its_name(self, tmp_path: Path) -> None:
        path = tmp_path / "clip.raw"
        path.write_bytes(wav(speech_clip()))
        assert (
            len(decode_reference_clip(read_clip_file(path), SAMPLE_RATE_HZ)) == 2 * SAMPLE_RATE_HZ
        )


class TestRefusals:
    def test_no_samples(self) -> None:
        assert "no samples" in refusal(wav(np.zeros(0)))

    def test_too_short(self) -> None:
        assert "it needs 1 s at least" in refusal(wav(speech_clip(0.9)))

    def test_a_rate_that_no_speech_has(self) -> None:
        assert "2000 samples a second" in refusal(wav(speech_clip(), 2_000))

    def test_unreadable_names_a_way_out(self) -> None:
        assert "ffmpeg -i CLIP" in refusal(b"RIFFxxxxWAVE" + bytes(100))

    @pytest.mark.parametrize("subtype", ["PCM_U8", "PCM_16"])
    def test_too_long_says_the_limit(self, subtype: str) -> None:
        long_clip = np.tile(speech_clip(1.0), 31)
        assert "longer than 30 s" in refusal(wav(long_clip, subtype=subtype))

    def test_the_longest_and_the_shortest_clip_are_welcome(self) -> None:
        longest = np.tile(speech_clip(1.0), 30)
        assert len(decode_reference_clip(wav(longest), SAMPLE_RATE_HZ)) == 30 * SAMPLE_RATE_HZ
        shortest = speech_clip(1.02)
        assert len(decode_reference_clip(wav(shortest), SAMPLE_RATE_HZ)) == len(shortest)

    def test_silence_around_a_word_does_not_make_it_long_enough(self) -> None:
        word = speech_clip(0.5)
        padded = np.pad(word, 2 * SAMPLE_RATE_HZ)
        assert "only 0.5" in refusal(wav(padded))

    @pytest.mark.parametrize("level", [0.0, 1 / 256, 1e-4])
    def test_silent(self, level: float) -> None:
        noise = np.random.default_rng(0).uniform(-level, level, 3 * SAMPLE_RATE_HZ)
        assert "silent" in refusal(wav(noise, subtype="PCM_16"))

    def test_a_constant_offset_is_silent(self) -> None:
        assert "silent" in refusal(wav(np.full(3 * SAMPLE_RATE_HZ, 0.5)))

    def test_opposite_channels(self) -> None:
        clip = speech_clip()
        assert "cancel each other" in refusal(wav(np.stack([clip, -clip], axis=1)))

    @pytest.mark.parametrize("gain", [0.3, 1.0])
    def test_clipped_at_any_level(self, gain: float) -> None:
        clipped = gain * np.clip(3 * speech_clip(), -1, 1)
        assert "clipped" in refusal(wav(clipped, subtype="PCM_16"))

    @pytest.mark.parametrize("subtype", ["PCM_U8", "PCM_16"])
    def test_loud_is_not_clipped(self, subtype: str) -> None:
        clip = speech_clip()
        loud = 0.999 * clip / np.abs(clip).max()
        assert len(decode_reference_clip(wav(loud, subtype=subtype), SAMPLE_RATE_HZ))

    @pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
    def test_not_finite(self, value: float) -> None:
        clip = speech_clip()
        clip[-1] = value
        assert "not numbers" in refusal(wav(clip))

    @pytest.mark.parametrize("name", ["none.wav", ""])
    def test_missing_file_and_folder(self, tmp_path: Path, name: str) -> None:
        with pytest.raises(VoiceError, match="not there"):
            read_clip_file(tmp_path / name)

    def test_a_header_that_promises_too_much_costs_nothing(self) -> None:
        content = bytearray(wav(speech_clip(), subtype="PCM_16"))
        data_at = content.index(b"data")
        struct.pack_into("<I", content, data_at + 4, 0xFFFFFFF0)
        struct.pack_into("<I", content, 4, 0xFFFFFFF0)
        assert len(decode_reference_clip(bytes(content), SAMPLE_RATE_HZ)) == 2 * SAMPLE_RATE_HZ


BASES = tuple(
    encode_clip(speech_clip(1.1), container=container) for container in ("WAV", "FLAC", "OGG")
)


class TestAnyBytes:
    @given(st.binary(max_size=400))
    @example(b"RIFF")
    @example(b"fLaC")
    @example(b"OggS")
    @settings(max_examples=60, deadline=None)
    def test_noise_is_refused(self, content: bytes) -> None:
        assert refusal(content)

    @given(
        st.sampled_from(BASES),
        st.lists(st.tuples(st.integers(0, 200), st.integers(0, 255)), max_size=4),
        st.integers(0, 100),
    )
    @settings(max_examples=60, deadline=None)
    def test_damage_gives_a_clip_or_a_refusal(
        self, base: bytes, changes: list[tuple[int, int]], kept_percent: int
    ) -> None:
        content = bytearray(base[: max(1, len(base) * kept_percent // 100)])
        for position, value in changes:
            if position < len(content):
                content[position] = value
        with contextlib.suppress(VoiceError):
            samples = decode_reference_clip(bytes(content), SAMPLE_RATE_HZ)
            assert samples.dtype == np.float32
            assert np.abs(samples).max() <= 1
            assert len(samples) <= MAX_CLIP_S * SAMPLE_RATE_HZ + 1


class TestSilenceAtTheEnds:
    @pytest.mark.parametrize("rate_hz", [8_000, 24_000, 44_100])
    def test_long_silence_is_cut(self, rate_hz: int) -> None:
        padded = np.pad(speech_clip(), (3 * SAMPLE_RATE_HZ, 4 * SAMPLE_RATE_HZ))
        samples = decode_reference_clip(encode_clip(padded, rate_hz), SAMPLE_RATE_HZ)
        assert len(samples) / SAMPLE_RATE_HZ == pytest.approx(2.7, abs=0.05)

    def test_silence_around_a_recording_with_an_offset_is_cut(self) -> None:
        padded = np.pad(speech_clip() + 0.01, (3 * SAMPLE_RATE_HZ, 4 * SAMPLE_RATE_HZ))
        samples = decode_reference_clip(wav(padded), SAMPLE_RATE_HZ)
        assert len(samples) / SAMPLE_RATE_HZ == pytest.approx(2.7, abs=0.05)

    def test_short_silence_stays(self) -> None:
        padded = np.pad(speech_clip(), (2_400, 9_600))
        samples = decode_reference_clip(wav(padded), SAMPLE_RATE_HZ)
        assert np.array_equal(samples, padded)

    def test_pauses_stay(self) -> None:
        word = speech_clip(1.0)
        clip = np.concatenate([word, np.zeros(5 * SAMPLE_RATE_HZ, np.float32), word])
        assert np.array_equal(decode_reference_clip(wav(clip), SAMPLE_RATE_HZ), clip)

    def test_a_clip_cut_in_a_word_ends_in_half_a_second_of_silence(self) -> None:
        clip = speech_clip()
        prepared = add_continuation_silence(clip, SAMPLE_RATE_HZ)
        fade = SAMPLE_RATE_HZ // 100
        assert len(prepared) == len(clip) + SAMPLE_RATE_HZ // 2
        assert np.array_equal(prepared[: len(clip) - fade], clip[:-fade])
        assert not prepared[len(clip) - 1 :].any()
        assert np.abs(np.diff(prepared[len(clip) - fade :])).max() <= np.abs(np.diff(clip)).max()

    @given(st.integers(0, 20_000))
    @settings(max_examples=25, deadline=None)
    def test_any_clip_ends_in_as_much_silence_as_it_needs(self, num_silent: int) -> None:
        clip = np.pad(speech_clip(1.0), (0, num_silent))
        prepared = add_continuation_silence(clip, SAMPLE_RATE_HZ)
        # The speech's own end falls into the silence by less than a syllable's gap.
        assert len(prepared) >= len(clip)
        assert not prepared[-SAMPLE_RATE_HZ // 2 + 2 * 480 :].any()
        assert len(prepared) <= max(len(clip), SAMPLE_RATE_HZ + SAMPLE_RATE_HZ // 2)

    def test_the_clip_itself_is_left_alone(self) -> None:
        clip = speech_clip(1.0)
        before = clip.copy()
        add_continuation_silence(clip, SAMPLE_RATE_HZ)
        assert np.array_equal(clip, before)


class TestSpeechDuration:
    def test_pauses_do_not_count(self) -> None:
        word = speech_clip(1.0)
        clip = np.concatenate([word, np.zeros(5 * SAMPLE_RATE_HZ, np.float32), word])
        assert speech_duration_s(clip, SAMPLE_RATE_HZ) == pytest.approx(2.0, abs=0.15)

    def test_silence_has_none(self) -> None:
        assert speech_duration_s(np.zeros(SAMPLE_RATE_HZ, np.float32), SAMPLE_RATE_HZ) == 0


# Sentences with the seconds that a calm speaker of the language takes for them without pauses.
SENTENCES = {
    "en": ("The quick brown fox jumps over the lazy dog, and then it sleeps in the sun.", 4.4),
    "de": ("Morgens um halb acht gehe ich mit dem Hund durch den Park und hole Brötchen.", 4.6),
    "fr": ("Demain matin, nous irons au marché pour acheter des pommes et du fromage.", 4.0),
    "es": ("Mañana por la mañana iremos al mercado a comprar manzanas y queso fresco.", 4.0),
    "ru": ("Завтра утром мы пойдём на рынок и купим яблоки, сыр и свежий хлеб.", 4.2),
    "zh": ("明天早上我们去市场买苹果和新鲜的面包，然后回家做饭。", 4.6),
    "ja": ("明日の朝、市場へ行って、りんごと新しいパンを買ってきます。", 4.2),
    "ko": ("내일 아침에 시장에 가서 사과와 신선한 빵을 사 오겠습니다.", 4.0),
}


class TestTranscript:
    @pytest.mark.parametrize("language", SENTENCES)
    @pytest.mark.parametrize("pace", [0.65, 1.0, 1.6])
    def test_slow_and_fast_speakers_are_welcome(self, language: str, pace: float) -> None:
        text, duration_s = SENTENCES[language]
        check_transcript(text, duration_s / pace)

    @pytest.mark.parametrize("language", SENTENCES)
    def test_a_transcript_of_a_third_does_not_cover_the_clip(self, language: str) -> None:
        text, duration_s = SENTENCES[language]
        with pytest.raises(VoiceError, match="does not fit"):
            check_transcript(text, 3 * duration_s)

    @pytest.mark.parametrize("language", SENTENCES)
    def test_a_transcript_of_three_times_as_much_is_too_long(self, language: str) -> None:
        text, duration_s = SENTENCES[language]
        with pytest.raises(VoiceError, match="does not fit"):
            check_transcript(text, duration_s / 3)

    def test_half_of_a_ten_second_clip(self) -> None:
        whole = "We left the harbour before sunrise. " * 4
        assert reading_time_s(whole) == pytest.approx(8.3, abs=0.3)
        check_transcript(whole, 9.0)
        with pytest.raises(VoiceError, match="does not fit"):
            check_transcript(whole[: len(whole) // 2], 9.0)

    @pytest.mark.parametrize("text", ["", "  \n", "...", "— ?!", "\u200b\ufeff"])
    def test_nothing_to_say_is_missing(self, text: str) -> None:
        with pytest.raises(VoiceError, match="empty"):
            check_transcript(text, 5.0)

    def test_both_numbers_are_told(self) -> None:
        with pytest.raises(VoiceError) as caught:
            check_transcript("Hello there.", 9.8)
        assert re.search(r"0\.7 s to say.* 9\.8 s of speech", str(caught.value))

    def test_decomposed_letters_count_once(self) -> None:
        composed = "한글과 é"
        decomposed = unicodedata.normalize("NFD", composed)
        assert len(decomposed) > len(composed)
        assert reading_time_s(composed) == reading_time_s(decomposed)

    @given(st.text(max_size=80), st.text(max_size=80))
    @settings(max_examples=40, deadline=None)
    def test_more_text_never_takes_less_time(self, left: str, right: str) -> None:
        longer = reading_time_s(f"{left} {right}")
        assert longer >= max(reading_time_s(left), reading_time_s(right)) - 1e-9
