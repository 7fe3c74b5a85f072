"""The speaker encoder graph against the numpy oracle, and its mel front end."""

from functools import partial

import numpy as np
import pytest

from tests.oracle.speaker_encoder import OracleSpeakerEncoder
from tests.oracle.speaker_encoder import mel_filters as oracle_mel_filters
from wyoming_qwen3tts.builder.checkpoint import Checkpoint
from wyoming_qwen3tts.builder.graphs.encoders import (
    WINDOW_SAMPLES,
    build_speaker_encoder,
    mel_filters,
    windowed_dft,
)
from wyoming_qwen3tts.errors import VoiceError
from wyoming_qwen3tts.runtime.graphs import MIN_SPEAKER_SAMPLES, encode_clip

LENGTHS = [MIN_SPEAKER_SAMPLES, 1281, 1535, 1536, 1920, 5000, 24000, 24001, 50177]


@pytest.fixture(scope="session", params=["0.6B-base", "1.7B-base"])
def encoders(request, tiny_checkpoint, tmp_path_factory):
    """Graph and oracle of one size."""
    source = tiny_checkpoint(request.param)
    directory = tmp_path_factory.mktemp("speaker_encoder")
    checkpoint = Checkpoint.open(source)
    build_speaker_encoder(checkpoint.main, checkpoint.speaker_encoder, directory)
    path = directory / "speaker_encoder.onnx"
    encoder = partial(encode_clip, path, 2, "x_vector", MIN_SPEAKER_SAMPLES)
    return encoder, OracleSpeakerEncoder(source), checkpoint


def clip(length):
    """A loud tone over faint noise: the quiet bands must not drown in the loud one."""
    rng = np.random.default_rng(length)
    tone = 0.5 * np.sin(2 * np.pi * 220 * np.arange(length) / 24000)
    return (tone + 0.002 * rng.standard_normal(length)).astype(np.float32)


@pytest.mark.parametrize("length", LENGTHS)
def test_x_vector_equals_the_oracle(length, encoders):
    encoder, oracle, _ = encoders
    x_vector = encoder(clip(length))
    assert x_vector.dtype == np.float32
    np.testing.assert_allclose(x_vector, oracle.embed(clip(length)), atol=1e-4)


def test_silence_has_an_x_vector(encoders):
    encoder, oracle, _ = encoders
    silence = np.zeros(4800, np.float32)
    x_vector = encoder(silence)
    assert np.isfinite(x_vector).all()
    np.testing.assert_allclose(x_vector, oracle.embed(silence), atol=1e-4)


def test_width_is_the_talker_width(encoders):
    encoder, _, checkpoint = encoders
    assert encoder(clip(4800)).shape == (checkpoint.facts.hidden_size,)


def test_too_short_a_clip_is_refused(encoders):
    encoder, _, _ = encoders
    with pytest.raises(VoiceError, match=f"at least {MIN_SPEAKER_SAMPLES}"):
        encoder(clip(MIN_SPEAKER_SAMPLES - 1))


def test_mel_filters_equal_the_oracle():
    filters = mel_filters(128, 24000)
    np.testing.assert_allclose(filters.T, oracle_mel_filters(), atol=1e-8)


def test_windowed_dft_is_the_spectrum_of_a_periodic_hann_window():
    frame = np.random.default_rng(0).standard_normal(WINDOW_SAMPLES)
    window = np.hanning(WINDOW_SAMPLES + 1)[:-1]
    spectrum = np.fft.rfft(frame * window)
    got = frame @ windowed_dft()
    np.testing.assert_allclose(got, np.concatenate([spectrum.real, spectrum.imag]), atol=1e-10)
