"""The constants of the speaker encoder's log-mel front end.

Ported from: librosa.filters.mel with its defaults (Slaney's scale and area normalisation), as
QwenLM/Qwen3-TTS modeling_qwen3_tts.py mel_spectrogram uses it.
"""

import math
from typing import Final

import numpy as np
from numpy.typing import NDArray

WINDOW_SAMPLES: Final = 1024
HOP_SAMPLES: Final = 256
PADDING_SAMPLES: Final = (WINDOW_SAMPLES - HOP_SAMPLES) // 2
"""Reflected samples on either side, so that S samples give S // 256 mel frames."""
NUM_BINS: Final = WINDOW_SAMPLES // 2 + 1
MAGNITUDE_FLOOR: Final = 1e-9
"""Added under the root of the magnitude."""
MEL_FLOOR: Final = 1e-5

# Slaney's scale is linear up to 1 kHz and has 27 steps per factor of 6.4 above it.
_HZ_PER_MEL = 200.0 / 3
_BREAK_HZ = 1000.0
_BREAK_MEL = _BREAK_HZ / _HZ_PER_MEL
_LOG_STEP = math.log(6.4) / 27


def windowed_dft() -> NDArray[np.float64]:
    """Return (1024, 1026): a frame times this is its spectrum's real parts, then imaginary parts.

    The periodic Hann window is folded in.
    """
    time = np.arange(WINDOW_SAMPLES)
    window = 0.5 - 0.5 * np.cos(2 * np.pi * time / WINDOW_SAMPLES)
    # Products are reduced to one turn before the cosine: exact, where large angles would not be.
    turns = np.outer(time, np.arange(NUM_BINS)) % WINDOW_SAMPLES
    angles = 2 * np.pi * turns / WINDOW_SAMPLES
    transform: NDArray[np.float64] = np.concatenate([np.cos(angles), -np.sin(angles)], axis=1)
    return window[:, None] * transform


def mel_filters(num_mels: int, sample_rate_hz: int) -> NDArray[np.float64]:
    """Return triangular filters (513, num_mels) of equal area from 0 Hz to half the sample rate."""
    top_hz = sample_rate_hz / 2
    edges = _mel_to_hz(np.linspace(0.0, _hz_to_mel(top_hz), num_mels + 2))
    bins = np.linspace(0.0, top_hz, NUM_BINS)[:, None]
    rising = (bins - edges[:-2]) / (edges[1:-1] - edges[:-2])
    falling = (edges[2:] - bins) / (edges[2:] - edges[1:-1])
    triangles: NDArray[np.float64] = np.maximum(0.0, np.minimum(rising, falling))
    return triangles * 2.0 / (edges[2:] - edges[:-2])


def _hz_to_mel(frequency_hz: float) -> float:
    if frequency_hz < _BREAK_HZ:
        return frequency_hz / _HZ_PER_MEL
    return _BREAK_MEL + math.log(frequency_hz / _BREAK_HZ) / _LOG_STEP


def _mel_to_hz(mels: NDArray[np.float64]) -> NDArray[np.float64]:
    logarithmic = _BREAK_HZ * np.exp(_LOG_STEP * (mels - _BREAK_MEL))
    return np.where(mels < _BREAK_MEL, _HZ_PER_MEL * mels, logarithmic)
