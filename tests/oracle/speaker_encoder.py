"""Audio to an x-vector: log-mel front end and ECAPA-TDNN.

Ported from: QwenLM/Qwen3-TTS modeling_qwen3_tts.py mel_spectrogram and Qwen3TTSSpeakerEncoder;
mel bands as librosa.filters.mel computes them (Slaney scale and norm).
"""

from pathlib import Path
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from tests.oracle.checkpoint import OracleCheckpoint
from tests.oracle.layers import conv1d, pad_last, relu, sigmoid, softmax
from wyoming_qwen3tts.arrays import Float32Array

SAMPLE_RATE_HZ = 24000
NUM_BANDS = 128
_WINDOW_SAMPLES = 1024
_HOP_SAMPLES = 256
_MIN_MEL = 1e-5
_MIN_VARIANCE = 1e-12
# The Slaney scale: linear below 1 kHz, 27 steps to each factor of 6.4 above.
_LINEAR_HZ_PER_MEL = 200 / 3
_BREAK_HZ = 1000.0
_LOG_STEP = np.log(6.4) / 27
# What the published configurations leave out.
_DEFAULTS: dict[str, Any] = {
    "enc_channels": [512, 512, 512, 512, 1536],
    "enc_dilations": [1, 2, 3, 4, 1],
    "enc_res2net_scale": 8,
}


def log_mel(samples: Float32Array) -> Float32Array:
    """Return the log-mel spectrogram (F, 128) of samples (S,); F = S // 256."""
    padding = (_WINDOW_SAMPLES - _HOP_SAMPLES) // 2
    padded = np.pad(samples, padding, mode="reflect")
    window = 0.5 - 0.5 * np.cos(2 * np.pi * np.arange(_WINDOW_SAMPLES) / _WINDOW_SAMPLES)
    frames = sliding_window_view(padded, _WINDOW_SAMPLES)[::_HOP_SAMPLES] * window
    spectrum = np.fft.rfft(frames.astype(np.float32), axis=-1)
    magnitude = np.sqrt(spectrum.real**2 + spectrum.imag**2 + 1e-9)
    return np.log(np.maximum(magnitude @ mel_filters().T, _MIN_MEL)).astype(np.float32)


def mel_filters() -> Float32Array:
    """Return triangular filters (128, 513) of equal area over 0 .. 12 kHz."""
    top_mel = _hz_to_mel(SAMPLE_RATE_HZ / 2)
    edges = _mel_to_hz(np.linspace(0.0, top_mel, NUM_BANDS + 2))
    bins = np.linspace(0.0, SAMPLE_RATE_HZ / 2, _WINDOW_SAMPLES // 2 + 1)
    distances = edges[:, None] - bins[None]
    widths = np.diff(edges)[:, None]
    rising = -distances[:-2] / widths[:-1]
    falling = distances[2:] / widths[1:]
    filters = np.maximum(0, np.minimum(rising, falling))
    return (filters * (2 / (edges[2:] - edges[:-2]))[:, None]).astype(np.float32)


def _hz_to_mel(frequency: float) -> float:
    if frequency < _BREAK_HZ:
        return frequency / _LINEAR_HZ_PER_MEL
    return float(_BREAK_HZ / _LINEAR_HZ_PER_MEL + np.log(frequency / _BREAK_HZ) / _LOG_STEP)


def _mel_to_hz(
    mels: np.ndarray[Any, np.dtype[np.float64]],
) -> np.ndarray[Any, np.dtype[np.float64]]:
    break_mel = _BREAK_HZ / _LINEAR_HZ_PER_MEL
    above = _BREAK_HZ * np.exp(_LOG_STEP * (mels - break_mel))
    return np.where(mels < break_mel, mels * _LINEAR_HZ_PER_MEL, above)


class OracleSpeakerEncoder:
    """ECAPA-TDNN with attentive statistics pooling."""

    def __init__(self, directory: Path) -> None:
        """Read a Base checkpoint."""
        checkpoint = OracleCheckpoint(directory)
        self._config = _DEFAULTS | checkpoint.config["speaker_encoder_config"]
        self._weights = checkpoint.weights

    def embed(self, samples: Float32Array) -> Float32Array:
        """Return the x-vector (D,) of samples (S,); S >= 1,280."""
        dilations = self._config["enc_dilations"]
        values = self._tdnn("blocks.0", log_mel(samples).T, dilations[0])
        outputs = []
        for block in range(1, len(dilations) - 1):
            values = self._block(f"blocks.{block}", values, dilations[block])
            outputs.append(values)
        values = self._tdnn("mfa", np.concatenate(outputs), dilations[-1])
        return self._conv("fc", self._pool(values)[:, None])[:, 0]

    def _block(self, name: str, inputs: Float32Array, dilation: int) -> Float32Array:
        parts = np.split(self._tdnn(f"{name}.tdnn1", inputs), self._config["enc_res2net_scale"])
        outputs = [parts[0]]
        for index, part in enumerate(parts[1:]):
            carried = part if index == 0 else part + outputs[-1]
            outputs.append(self._tdnn(f"{name}.res2net_block.blocks.{index}", carried, dilation))
        values = self._tdnn(f"{name}.tdnn2", np.concatenate(outputs))
        squeezed = relu(self._conv(f"{name}.se_block.conv1", values.mean(1, keepdims=True)))
        return values * sigmoid(self._conv(f"{name}.se_block.conv2", squeezed)) + inputs

    def _pool(self, values: Float32Array) -> Float32Array:
        """(channels, F) to (2 * channels,): attended means and deviations."""
        length = values.shape[1]
        equal = np.full((1, length), 1 / length, np.float32)
        repeated = [np.repeat(part[:, None], length, axis=1) for part in _moments(values, equal)]
        hidden = np.tanh(self._tdnn("asp.tdnn", np.concatenate([values, *repeated])))
        return np.concatenate(_moments(values, softmax(self._conv("asp.conv", hidden))))

    def _tdnn(self, name: str, values: Float32Array, dilation: int = 1) -> Float32Array:
        return relu(self._conv(f"{name}.conv", values, dilation))

    def _conv(self, name: str, values: Float32Array, dilation: int = 1) -> Float32Array:
        weight = self._weights[f"speaker_encoder.{name}.weight"]
        padding = (weight.shape[2] - 1) * dilation
        if padding:
            values = pad_last(values, padding // 2, padding - padding // 2, "reflect")
        bias = self._weights[f"speaker_encoder.{name}.bias"]
        return conv1d(values, weight, bias, dilation=dilation)


def _moments(values: Float32Array, weights: Float32Array) -> tuple[Float32Array, Float32Array]:
    """Weighted mean and deviation over the last axis."""
    mean = (weights * values).sum(1)
    variance = (weights * (values - mean[:, None]) ** 2).sum(1)
    return mean, np.sqrt(np.maximum(variance, _MIN_VARIANCE))
