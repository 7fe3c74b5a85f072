"""Turns speech into codes: an auto-encoder of spectral features with residual codebooks between.

Only the encoder and the codebooks are kept; the official decoder learns to speak the codes.
"""

from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from script._demo_voice.speech import SAMPLE_RATE_HZ, SAMPLES_PER_FRAME, Shard

_HOP_SAMPLES: Final = 240
_NUM_BANDS: Final = 80
_NUM_LOW_BINS: Final = 64
_FRAME_WIDTH: Final = SAMPLES_PER_FRAME // _HOP_SAMPLES * (_NUM_BANDS + _NUM_LOW_BINS)
_BAND_WINDOW: Final = 1_024
_LOW_WINDOW: Final = 2_048
_SEGMENT_FRAMES: Final = 24
_BATCH_SIZE: Final = 32
_KMEANS_ROUNDS: Final = 25
_COMMITMENT: Final = 0.25
_DECAY: Final = 0.99
_LEARNING_RATE: Final = 1.5e-3


def mel_bank(num_fft: int, num_bands: int, highest_hz: float) -> Tensor:
    """Return (num_bands, num_fft / 2 + 1): triangles of unit sum on the HTK scale."""
    top = 2595 * np.log10(1 + highest_hz / 700)
    edges_hz = 700 * (10 ** (np.linspace(0, top, num_bands + 2) / 2595) - 1)
    bins_hz = np.linspace(0, SAMPLE_RATE_HZ / 2, num_fft // 2 + 1)
    low, middle, high = (edges_hz[i : i + num_bands, None] for i in range(3))
    bank = np.minimum((bins_hz - low) / (middle - low), (high - bins_hz) / (high - middle))
    bank = np.maximum(0, bank)
    bank /= np.maximum(bank.sum(axis=1, keepdims=True), 1e-8)
    return torch.tensor(bank, dtype=torch.float32)


def spectrum(samples: Tensor, window: Tensor, hop: int, padding: int) -> Tensor:
    """Return the complex short-time spectrum of (..., S)."""
    return torch.stft(
        functional.pad(samples, (padding, padding)),
        len(window),
        hop,
        window=window,
        center=False,
        return_complex=True,
    )


class FeatureExtractor:
    """Log-mel bands for the sound, low bins for the pitch."""

    def __init__(self) -> None:
        # The source voice has nothing above 8 kHz.
        self._bank = mel_bank(_BAND_WINDOW, _NUM_BANDS, 8_000.0)

    def __call__(self, samples: np.ndarray) -> Tensor:
        """Turn (S,) int16 of whole frames into (F, frame width), about -2 to 2."""
        speech = torch.from_numpy(samples.astype(np.float32) / 32_768)
        bands = torch.log(self._bank @ self._magnitudes(speech, _BAND_WINDOW) + 1e-3)
        low = self._magnitudes(speech, _LOW_WINDOW)[1 : _NUM_LOW_BINS + 1]
        features = torch.cat([(bands + 3) / 2, (torch.log(low + 5e-2) - 1) / 2])
        return features.T.reshape(-1, _FRAME_WIDTH)

    def shard(self, shard: Shard) -> Tensor:
        """Return (F, frame width) of a shard; utterances do not see their neighbours."""
        ends = np.cumsum(shard.num_frames) * SAMPLES_PER_FRAME
        pieces = np.split(shard.samples, ends[:-1])
        return torch.cat([self(piece) for piece in pieces])

    def _magnitudes(self, samples: Tensor, size: int) -> Tensor:
        padding = (size - _HOP_SAMPLES) // 2
        return spectrum(samples, torch.hann_window(size), _HOP_SAMPLES, padding).abs()


class FeatureEncoder(nn.Module):
    """Features of one frame -> latent, without context."""

    def __init__(self, width: int, latent_width: int) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(_FRAME_WIDTH, width), nn.Linear(width, width)
        self.last = nn.Linear(width, latent_width)

    def forward(self, features: Tensor) -> Tensor:
        hidden = functional.gelu(self.first(features))
        return self.last(hidden + functional.gelu(self.second(hidden)))


class FeatureDecoder(nn.Module):
    """Latents -> features, with three earlier frames as context."""

    def __init__(self, width: int, latent_width: int) -> None:
        super().__init__()
        self.first, self.second = nn.Conv1d(latent_width, width, 4), nn.Conv1d(width, width, 1)
        self.last = nn.Conv1d(width, _FRAME_WIDTH, 1)

    def forward(self, latents: Tensor) -> Tensor:
        hidden = functional.gelu(self.first(functional.pad(latents.mT, (3, 0))))
        return self.last(hidden + functional.gelu(self.second(hidden))).mT


class ResidualCodebooks(nn.Module):
    """Codebooks, each for what the ones before leave over."""

    books: Tensor
    sums: Tensor
    counts: Tensor

    def __init__(self, num_groups: int, size: int, latent_width: int) -> None:
        super().__init__()
        self.register_buffer("books", torch.randn(num_groups, size, latent_width) * 0.3)
        self.register_buffer("sums", self.books.clone())
        self.register_buffer("counts", torch.ones(num_groups, size))

    def nearest(self, latents: Tensor, group: int) -> Tensor:
        """(N, latent width) -> (N,) codes of one group."""
        return torch.cat([torch.cdist(x, self.books[group]).argmin(1) for x in latents.split(8192)])

    def encode(self, latents: Tensor) -> Tensor:
        """(N, latent width) -> (N, G) codes."""
        rest, codes = latents, []
        for group in range(len(self.books)):
            codes.append(self.nearest(rest, group))
            rest = rest - self.books[group][codes[-1]]
        return torch.stack(codes, 1)

    def quantize(self, latents: Tensor, num_groups: int) -> tuple[Tensor, Tensor]:
        """Return straight-through latents (N, latent width) and the commitment loss."""
        rest, total, loss = latents, torch.zeros_like(latents), latents.new_zeros(())
        for group in range(num_groups):
            with torch.no_grad():
                codes = self.nearest(rest, group)
                self._update(group, rest, codes)
            chosen = self.books[group][codes]
            loss = loss + functional.mse_loss(rest, chosen)
            total, rest = total + chosen, rest - chosen
        return latents + (total - latents).detach(), loss

    def _update(self, group: int, latents: Tensor, codes: Tensor) -> None:
        """Move the codebook by moving averages; restart codes that are not used."""
        counts = torch.bincount(codes, minlength=self.books.shape[1]).float()
        sums = torch.zeros_like(self.sums[group]).index_add_(0, codes, latents)
        self.counts[group].lerp_(counts, 1 - _DECAY)
        self.sums[group].lerp_(sums, 1 - _DECAY)
        unused = self.counts[group] < 0.05
        if unused.any():
            self.sums[group][unused] = latents[torch.randint(len(latents), (int(unused.sum()),))]
            self.counts[group][unused] = 1.0
        self.books[group] = self.sums[group] / self.counts[group][:, None]

    def fit(self, latents: Tensor) -> list[float]:
        """Fit the codebooks to (N, latent width) by k-means; return the error left after each."""
        rest, errors = latents.clone(), []
        whole = (latents - latents.mean(0)).square().sum()
        for group, book in enumerate(self.books):
            for step in range(_KMEANS_ROUNDS):
                codes = self.nearest(rest, group)
                counts = torch.bincount(codes, minlength=len(book)).float()
                sums = torch.zeros_like(book).index_add_(0, codes, rest)
                used, rare = counts > 0, counts < 8
                book[used] = sums[used] / counts[used, None]
                if step < _KMEANS_ROUNDS - 7 and rare.any():
                    book[rare] = rest[torch.randint(len(rest), (int(rare.sum()),))]
            rest = rest - book[self.nearest(rest, group)]
            errors.append(float(rest.square().sum() / whole))
        return errors


class Quantizer(nn.Module):
    def __init__(self, recipe: Any) -> None:
        super().__init__()
        self.encoder = FeatureEncoder(recipe.encoder_width, recipe.latent_width)
        self.codebooks = ResidualCodebooks(
            recipe.num_groups, recipe.codebook_size, recipe.latent_width
        )

    @classmethod
    def load(cls, recipe: Any, path: Path) -> "Quantizer":
        quantizer = cls(recipe)
        quantizer.load_state_dict(torch.load(path, weights_only=True))
        return quantizer

    def encode(self, features: Tensor) -> Tensor:
        """(F, frame width) -> (F, G) codes."""
        with torch.no_grad():
            return self.codebooks.encode(self.encoder(features))


def train_quantizer(recipe: Any, features: Tensor) -> Quantizer:
    """Train on (F, frame width)."""
    quantizer = Quantizer(recipe)
    decoder = FeatureDecoder(recipe.encoder_width, recipe.latent_width)
    parameters = [*quantizer.encoder.parameters(), *decoder.parameters()]
    optimizer = torch.optim.AdamW(parameters, betas=(0.9, 0.99))
    for step in range(recipe.encoder_steps):
        rate = _LEARNING_RATE * min(1, (step + 1) / 50) * (1 - step / recipe.encoder_steps) ** 0.7
        optimizer.param_groups[0]["lr"] = rate + 1e-5
        starts = torch.randint(len(features) - _SEGMENT_FRAMES, (_BATCH_SIZE,))
        wanted = torch.stack([features[i : i + _SEGMENT_FRAMES] for i in starts]).float()
        latents = quantizer.encoder(wanted)
        # Sometimes fewer groups, so that the first ones carry what matters most.
        num_groups = recipe.num_groups
        if torch.rand(()) < 0.3:
            num_groups = int(torch.randint(1, recipe.num_groups + 1, ()))
        quantized, commitment = quantizer.codebooks.quantize(latents.flatten(0, 1), num_groups)
        loss = functional.l1_loss(decoder(quantized.view_as(latents)), wanted)
        optimizer.zero_grad()
        (loss + _COMMITMENT * commitment).backward()
        nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        if (step + 1) % 500 == 0:
            print(f"step {step + 1}: L1 {float(loss):.4f}", flush=True)
    with torch.no_grad():
        latents = torch.cat([quantizer.encoder(part.float()) for part in features.split(8192)])
        errors = quantizer.codebooks.fit(latents)
    print("error left after each group:", *(f"{error:.3f}" for error in errors), flush=True)
    return quantizer
