"""Audio values: float32 samples in [-1, 1], and their way to 16-bit PCM."""

from dataclasses import dataclass

import numpy as np

from wyoming_qwen3tts.arrays import Float32Array

SAMPLE_WIDTH_BYTES = 2
NUM_CHANNELS = 1


@dataclass(frozen=True)
class AudioChunk:
    """A piece of mono audio."""

    samples: Float32Array  # (S,), in [-1, 1]
    sample_rate_hz: int

    @property
    def duration_s(self) -> float:
        """Length in seconds."""
        return len(self.samples) / self.sample_rate_hz

    def pcm16(self) -> bytes:
        """Return little-endian 16-bit PCM; samples beyond full scale are clipped, never wrapped."""
        scaled = np.rint(np.clip(self.samples, -1.0, 1.0) * 32767.0)
        pcm: bytes = scaled.astype("<i2").tobytes()
        return pcm


def silence(duration_s: float, sample_rate_hz: int) -> AudioChunk:
    """Return a chunk of silence."""
    return AudioChunk(np.zeros(round(duration_s * sample_rate_hz), np.float32), sample_rate_hz)
