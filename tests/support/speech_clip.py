"""A synthetic recording that behaves like speech: gliding harmonics, formants, syllables, noise."""

import io
from functools import cache

import numpy as np
import soundfile
import soxr

from wyoming_qwen3tts.arrays import Float32Array

SAMPLE_RATE_HZ = 24_000
# A noise floor as a room has it, above that of 8-bit samples.
_NOISE = 10 ** (-45 / 20)
_SYLLABLES_HZ = 3.5


def speech_clip(
    duration_s: float = 2.0, *, max_hz: float = 11_500.0, pitch_hz: float = 120.0, seed: int = 1
) -> Float32Array:
    """Return mono samples (S,) at 24 kHz with a peak of about 0.6 and nothing above ``max_hz``."""
    return low_pass(_full_band_clip(duration_s, pitch_hz, seed), max_hz)


@cache
def _full_band_clip(duration_s: float, pitch_hz: float, seed: int) -> np.ndarray:
    times = np.arange(round(duration_s * SAMPLE_RATE_HZ)) / SAMPLE_RATE_HZ
    pitch = pitch_hz * (1 + 0.1 * np.sin(2 * np.pi * 0.7 * times))
    phase = 2 * np.pi * np.cumsum(pitch) / SAMPLE_RATE_HZ
    formants = (
        (500 + 200 * np.sin(2 * np.pi * 1.1 * times), 120),
        (1500 + 400 * np.sin(2 * np.pi * 0.8 * times + 1), 200),
        (2500 + 200 * np.sin(2 * np.pi * 0.5 * times), 250),
    )
    voiced = np.zeros_like(times)
    for harmonic in range(1, int(9_000 / pitch_hz)):
        frequency = harmonic * pitch
        gain = 0.02 + sum(
            np.exp(-(((frequency - centre) / width) ** 2) / 2) for centre, width in formants
        )
        voiced += gain / np.sqrt(harmonic) * np.sin(harmonic * phase)
    voiced *= np.clip(np.sin(2 * np.pi * _SYLLABLES_HZ * times) + 0.4, 0, 1)
    noise = np.random.default_rng(seed).standard_normal(len(times))
    return 0.6 * voiced / np.abs(voiced).max() + _NOISE * noise


def low_pass(samples: np.ndarray, max_hz: float) -> Float32Array:
    """Return samples (S,) at 24 kHz without anything above ``max_hz``."""
    spectrum = np.fft.rfft(samples)
    spectrum[np.fft.rfftfreq(len(samples), 1 / SAMPLE_RATE_HZ) > max_hz] = 0
    return np.fft.irfft(spectrum, len(samples)).astype(np.float32)


def encode_clip(
    samples: Float32Array,
    rate_hz: int = SAMPLE_RATE_HZ,
    *,
    container: str = "WAV",
    subtype: str | None = None,
    num_channels: int = 1,
) -> bytes:
    """Return the bytes of a sound file with samples (S,) of 24 kHz, resampled to ``rate_hz``."""
    resampled = soxr.resample(samples, SAMPLE_RATE_HZ, rate_hz, quality="VHQ")
    channels = np.repeat(resampled[:, None], num_channels, axis=1)
    file = io.BytesIO()
    soundfile.write(file, channels, rate_hz, format=container, subtype=subtype)
    return file.getvalue()
