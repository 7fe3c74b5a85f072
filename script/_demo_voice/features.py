"""What is heard of a waveform: log-mel bands for the sound, low bins for the pitch."""

from typing import Final

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

SAMPLE_RATE_HZ: Final = 24000
HOP_SAMPLES: Final = 240
NUM_BANDS: Final = 80
NUM_LOW_BINS: Final = 64
NUM_FEATURES: Final = NUM_BANDS + NUM_LOW_BINS
HOPS_PER_FRAME: Final = 8
_BAND_WINDOW: Final = 1024
_LOW_WINDOW: Final = 2048
# The source voice has nothing above.
_HIGHEST_HZ: Final = 8000.0


def mel_bank(num_fft: int, num_bands: int, highest_hz: float = _HIGHEST_HZ) -> Tensor:
    """Return (num_bands, num_fft / 2 + 1): triangles of unit sum, HTK scale."""
    top = 2595 * np.log10(1 + highest_hz / 700)
    edges_hz = 700 * (10 ** (np.linspace(0, top, num_bands + 2) / 2595) - 1)
    bins_hz = np.linspace(0, SAMPLE_RATE_HZ / 2, num_fft // 2 + 1)
    low, middle, high = (edges_hz[i : i + num_bands, None] for i in range(3))
    bank = np.minimum((bins_hz - low) / (middle - low), (high - bins_hz) / (high - middle))
    bank = np.maximum(0, bank)
    bank /= np.maximum(bank.sum(axis=1, keepdims=True), 1e-8)
    return torch.tensor(bank, dtype=torch.float32)


class FeatureExtractor:
    """Computes features."""

    def __init__(self) -> None:
        self._bank = mel_bank(_BAND_WINDOW, NUM_BANDS)
        self._windows = {n: torch.hann_window(n) for n in (_BAND_WINDOW, _LOW_WINDOW)}

    def __call__(self, samples: Tensor) -> Tensor:
        """Turn (S,) of whole frames into (F, HOPS_PER_FRAME * NUM_FEATURES), about -2 to 2."""
        bands = torch.log(self._bank @ self._magnitudes(samples, _BAND_WINDOW) + 1e-3)
        low = self._magnitudes(samples, _LOW_WINDOW)[1 : NUM_LOW_BINS + 1]
        low = torch.log(low + 5e-2)
        features = torch.cat([(bands + 3) / 2, (low - 1) / 2])  # (NUM_FEATURES, hops)
        return features.T.reshape(-1, HOPS_PER_FRAME * NUM_FEATURES)

    def _magnitudes(self, samples: Tensor, size: int) -> Tensor:
        around = (size - HOP_SAMPLES) // 2
        spectrum = torch.stft(
            functional.pad(samples, (around, around)),
            size,
            HOP_SAMPLES,
            window=self._windows[size],
            center=False,
            return_complex=True,
        )
        return spectrum.abs()
