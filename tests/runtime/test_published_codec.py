"""Codec graphs of fixed length: where frames lie, what a seam costs, what codes are worth."""

import logging

import numpy as np
import pytest

from tests.oracle.codec_decoder import OracleCodecDecoder
from tests.oracle.codec_encoder import OracleCodecEncoder
from tests.support.speech_clip import speech_clip
from wyoming_qwen3tts.errors import VoiceError

BASE = "0.6B-base"
NUM_FRAMES = 62
FRAME = 1920


@pytest.fixture(scope="module")
def codes():
    return np.random.default_rng(0).integers(0, 64, (NUM_FRAMES, 16))


@pytest.fixture(scope="module")
def exact(codes, tiny_checkpoint):
    return OracleCodecDecoder(tiny_checkpoint(BASE)).decode(codes)


@pytest.fixture(scope="module")
def decoder(published_model):
    return published_model(BASE).codec_decoder


@pytest.fixture(scope="module")
def windowed(decoder, codes):
    return decoder.decode(codes, decoder.initial_state())[0]


def decode_in_calls(decoder, codes, sizes):
    state, pieces, start = decoder.initial_state(), [], 0
    for size in sizes:
        samples, state = decoder.decode(codes[start : start + size], state)
        pieces.append(samples)
        start += size
    return np.concatenate(pieces)


def snr_db(signal, got):
    return 10 * np.log10(np.sum(signal**2) / np.sum((signal - got) ** 2))


def count_runs(decoder, monkeypatch):
    runs = []
    run = decoder._run
    monkeypatch.setattr(decoder, "_run", lambda window: runs.append(len(window)) or run(window))
    return runs


def test_first_window_is_exact(exact, windowed):
    np.testing.assert_allclose(windowed[: 25 * FRAME], exact[: 25 * FRAME], atol=1e-4)


def test_seams_are_as_good_as_stated(exact, windowed):
    assert windowed.shape == exact.shape
    later = slice(25 * FRAME, None)
    assert snr_db(exact[later], windowed[later]) > 45
    first_frames = [
        snr_db(exact[frame * FRAME :][:FRAME], windowed[frame * FRAME :][:FRAME])
        for frame in (25, 37, 49, 61)
    ]
    assert np.mean(first_frames) > 36


@pytest.mark.parametrize("sizes", [[1] * 30 + [7, 25], [62], [1, 2, 4, 4, 4, 24, 1, 22], [13, 49]])
def test_any_cut_gives_the_same_samples(sizes, decoder, codes, windowed):
    np.testing.assert_array_equal(decode_in_calls(decoder, codes, sizes), windowed)


def test_ramp_needs_one_run_per_call(decoder, codes, monkeypatch):
    runs = count_runs(decoder, monkeypatch)
    assert decoder.chunk_ramp == (1, 4, 8, 12)
    decode_in_calls(decoder, codes, [1, 4, 8, 12, 12, 12, 12])
    assert len(runs) == 7


def test_advance_decodes_nothing_and_keeps_the_context(decoder, codes, exact, monkeypatch):
    runs = count_runs(decoder, monkeypatch)
    state = decoder.advance(codes[:30], decoder.initial_state())
    assert runs == []
    samples, state = decoder.decode(codes[30:31], state)
    assert snr_db(exact[30 * FRAME : 31 * FRAME], samples) > 30
    for size in (4, 8, 12):
        _, state = decoder.decode(codes[31 : 31 + size], state)
    assert len(runs) == 4


def test_states_fork(decoder, codes):
    _, fork = decoder.decode(codes[:30], decoder.initial_state())
    first, _ = decoder.decode(codes[30:40], fork)
    decoder.decode(codes[:10], fork)
    again, _ = decoder.decode(codes[30:40], fork)
    np.testing.assert_array_equal(first, again)


@pytest.mark.parametrize("num_samples", [5 * 24_000, 3 * 24_000 + 777, 24_000, 23_040, 1000])
def test_encoded_frames_lie_where_those_of_the_whole_clip_do(
    num_samples, published_model, tiny_checkpoint
):
    clip = speech_clip(6.0)[:num_samples]
    wanted = OracleCodecEncoder(tiny_checkpoint(BASE)).encode(clip)
    got = published_model(BASE).codec_encoder(clip)
    assert got.shape == wanted.shape
    whole = min(12, num_samples // FRAME)
    np.testing.assert_array_equal(got[:whole], wanted[:whole])
    same = np.count_nonzero(got[whole:, 0] == wanted[whole:, 0])
    assert same >= 0.8 * (len(got) - whole) - 1  # a part of a frame, at the end, is padded apart


def test_encoding_tells_of_its_limit(published_model, caplog):
    with caplog.at_level(logging.WARNING):
        published_model(BASE).codec_encoder(speech_clip(1.0))
    assert "approximate" in caplog.text


@pytest.mark.parametrize("num_samples", [4000, 24_000, 50_001])
def test_x_vector_equals_our_own(num_samples, published_model, tiny_model):
    clip = speech_clip(3.0)[:num_samples]
    got = published_model(BASE).speaker_encoder(clip)
    np.testing.assert_allclose(got, tiny_model(BASE).speaker_encoder(clip), atol=1e-5)


def test_clips_that_are_too_short_are_refused(published_model):
    model = published_model(BASE)
    with pytest.raises(VoiceError, match="has 0 samples"):
        model.codec_encoder(np.zeros(0, np.float32))
    with pytest.raises(VoiceError, match="1279 samples"):
        model.speaker_encoder(np.zeros(1279, np.float32))
