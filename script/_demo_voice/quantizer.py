"""Turns speech into codes: an auto-encoder of features with residual codebooks between.

Only the encoder and the codebooks are kept; the official decoder then learns to speak the codes.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Final

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from script._demo_voice.dataset import SAMPLES_PER_FRAME, Shard
from script._demo_voice.features import HOPS_PER_FRAME, NUM_FEATURES, FeatureExtractor
from script._demo_voice.recipe import CodecRecipe

_FRAME_WIDTH: Final = HOPS_PER_FRAME * NUM_FEATURES
_SEGMENT_FRAMES: Final = 24
_BATCH_SIZE: Final = 32
_KMEANS_ROUNDS: Final = 25
_COMMITMENT: Final = 0.25
_DECAY: Final = 0.99
_LEARNING_RATE: Final = 1.5e-3


class FeatureEncoder(nn.Module):
    """Features of one frame -> latent; it sees no other frame."""

    def __init__(self, width: int, latent_width: int) -> None:
        super().__init__()
        self.first = nn.Linear(_FRAME_WIDTH, width)
        self.second = nn.Linear(width, width)
        self.last = nn.Linear(width, latent_width)

    def forward(self, features: Tensor) -> Tensor:
        """(..., frame width) -> (..., latent width)."""
        hidden = functional.gelu(self.first(features))
        hidden = hidden + functional.gelu(self.second(hidden))
        return self.last(hidden)


class FeatureDecoder(nn.Module):
    """Latents -> features; it sees three earlier frames, as the codec's decoder may."""

    def __init__(self, width: int, latent_width: int) -> None:
        super().__init__()
        self.first = nn.Conv1d(latent_width, width, 4)
        self.second = nn.Conv1d(width, width, 1)
        self.last = nn.Conv1d(width, _FRAME_WIDTH, 1)

    def forward(self, latents: Tensor) -> Tensor:
        """(B, F, latent width) -> (B, F, frame width)."""
        hidden = functional.gelu(self.first(functional.pad(latents.mT, (3, 0))))
        hidden = hidden + functional.gelu(self.second(hidden))
        return self.last(hidden).mT


class ResidualCodebooks(nn.Module):
    """Codebooks, each for what the ones before left over."""

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
        """Return (N, latent width) straight-through latents, and the commitment loss.

        The codebooks follow the latents by moving averages; codes out of use start anew.
        """
        rest, total, loss = latents, torch.zeros_like(latents), latents.new_zeros(())
        for group in range(num_groups):
            with torch.no_grad():
                codes = self.nearest(rest, group)
                self._follow(group, rest, codes)
            chosen = self.books[group][codes]
            loss = loss + functional.mse_loss(rest, chosen)
            total, rest = total + chosen, rest - chosen
        return latents + (total - latents).detach(), loss

    def _follow(self, group: int, latents: Tensor, codes: Tensor) -> None:
        counts = torch.bincount(codes, minlength=self.books.shape[1]).float()
        self.counts[group].lerp_(counts, 1 - _DECAY)
        self.sums[group].lerp_(
            torch.zeros_like(self.sums[group]).index_add_(0, codes, latents), 1 - _DECAY
        )
        unused = self.counts[group] < 0.05
        if unused.any():
            chosen = torch.randint(len(latents), (int(unused.sum()),))
            self.sums[group][unused] = latents[chosen]
            self.counts[group][unused] = 1.0
        self.books[group] = self.sums[group] / self.counts[group][:, None]

    def settle(self, latents: Tensor) -> list[float]:
        """Fit the codebooks to (N, latent width) by k-means; return the error left after each."""
        rest, errors = latents.clone(), []
        whole = (latents - latents.mean(0)).square().sum()
        for group, book in enumerate(self.books):
            for step in range(_KMEANS_ROUNDS):
                codes = self.nearest(rest, group)
                counts = torch.bincount(codes, minlength=len(book)).float()
                sums = torch.zeros_like(book).index_add_(0, codes, rest)
                used = counts > 0
                book[used] = sums[used] / counts[used, None]
                rare = counts < 8
                if step < _KMEANS_ROUNDS - 7 and rare.any():
                    book[rare] = rest[torch.randint(len(rest), (int(rare.sum()),))]
            rest = rest - book[self.nearest(rest, group)]
            errors.append(float(rest.square().sum() / whole))
        return errors


class Quantizer(nn.Module):
    """Encoder and codebooks."""

    def __init__(self, recipe: CodecRecipe) -> None:
        super().__init__()
        self.encoder = FeatureEncoder(recipe.encoder_width, recipe.latent_width)
        self.codebooks = ResidualCodebooks(
            recipe.num_groups, recipe.codebook_size, recipe.latent_width
        )

    def encode(self, features: Tensor) -> Tensor:
        """(F, frame width) -> (F, G) codes."""
        with torch.no_grad():
            return self.codebooks.encode(self.encoder(features))


def features_of(shard: Shard, extractor: FeatureExtractor) -> Tensor:
    """Return (F, frame width) of a whole shard; no utterance sees its neighbours."""
    pieces, start = [], 0
    for num_frames in shard.num_frames:
        end = start + num_frames * SAMPLES_PER_FRAME
        samples = torch.from_numpy(shard.samples[start:end].astype(np.float32) / 32768)
        pieces.append(extractor(samples))
        start = end
    return torch.cat(pieces)


def train_quantizer(recipe: CodecRecipe, features: Tensor) -> tuple[Quantizer, list[str]]:
    """Train on (F, frame width); returns the quantizer and lines about it."""
    quantizer = Quantizer(recipe)
    decoder = FeatureDecoder(recipe.encoder_width, recipe.latent_width)
    parameters = [*quantizer.encoder.parameters(), *decoder.parameters()]
    optimizer = torch.optim.AdamW(parameters, betas=(0.9, 0.99))
    lines: list[str] = []
    losses: list[float] = []
    for step in range(recipe.encoder_steps):
        rate = _LEARNING_RATE * min(1, (step + 1) / 50) * (1 - step / recipe.encoder_steps) ** 0.7
        optimizer.param_groups[0]["lr"] = rate + 1e-5
        starts = torch.randint(len(features) - _SEGMENT_FRAMES, (_BATCH_SIZE,))
        wanted = torch.stack([features[i : i + _SEGMENT_FRAMES] for i in starts]).float()
        latents = quantizer.encoder(wanted)
        # Sometimes fewer groups, so that the first ones carry what matters most.
        everything = bool(torch.rand(()) < 0.7)
        num_groups = recipe.num_groups
        if not everything:
            num_groups = int(torch.randint(1, recipe.num_groups + 1, ()))
        quantized, commitment = quantizer.codebooks.quantize(latents.flatten(0, 1), num_groups)
        loss = functional.l1_loss(decoder(quantized.view_as(latents)), wanted)
        optimizer.zero_grad()
        (loss + _COMMITMENT * commitment).backward()
        nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        if everything:
            losses.append(float(loss.detach()))
        if (step + 1) % 500 == 0:
            lines.append(f"step {step + 1}: L1 {np.mean(losses[-200:]):.4f}")
            print(lines[-1], flush=True)
    with torch.no_grad():
        latents = torch.cat([quantizer.encoder(part.float()) for part in features.split(8192)])
        errors = quantizer.codebooks.settle(latents)
    lines.append("error left after each group: " + ", ".join(f"{error:.3f}" for error in errors))
    return quantizer, lines


def encode_shards(quantizer: Quantizer, shards: Sequence[Shard], directory: Path) -> None:
    """Write (F, G) int16 codes beside the shards that have none yet."""
    extractor = FeatureExtractor()
    for shard in shards:
        path = directory / f"{shard.path.stem}.npy"
        if not path.exists():
            codes = quantizer.encode(features_of(shard, extractor)).to(torch.int16)
            np.save(path, codes.numpy())
