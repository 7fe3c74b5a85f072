"""Trains the codec's decoder to speak the quantizer's codes."""

from pathlib import Path
from typing import Final

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from script._demo_voice.codec_network import CodecDecoder
from script._demo_voice.dataset import SAMPLES_PER_FRAME, training_shards
from script._demo_voice.features import mel_bank
from script._demo_voice.layout import voice_codec_config
from script._demo_voice.quantizer import Quantizer
from script._demo_voice.recipe import Recipe
from script._demo_voice.training import Training, steady_then_down

_CONTEXT_FRAMES: Final = 8
# The waveform's own convolutions look back less than this.
_UNHEARD_SAMPLES: Final = 2 * SAMPLES_PER_FRAME
_BEGINNINGS: Final = 0.3
_BANDS: Final = {2048: 128, 1024: 80, 512: 48, 256: 24}
_WITH_BINS: Final = (2048, 512)
_WARM_UP_STEPS: Final = 50
_SHARE_DOWN: Final = 0.4
_SAVE_STEPS: Final = 250


class SpectralLoss:
    """How different two waveforms sound, at several resolutions."""

    def __init__(self) -> None:
        self._banks = {size: mel_bank(size, bands, 12000.0) for size, bands in _BANDS.items()}
        self._windows = {size: torch.hann_window(size) for size in _BANDS}

    def __call__(self, made: Tensor, wanted: Tensor) -> Tensor:
        """Compare (B, S) with (B, S)."""
        loss = made.new_zeros(())
        for size, bank in self._banks.items():
            a, b = self._magnitudes(made, size), self._magnitudes(wanted, size)
            loss = loss + functional.l1_loss(torch.log(bank @ a + 1e-3), torch.log(bank @ b + 1e-3))
            if size in _WITH_BINS:
                logs = functional.l1_loss(torch.log(a + 2e-2), torch.log(b + 2e-2))
                loss = loss + 0.5 * logs + 0.5 * (a - b).norm() / (b.norm() + 1e-1)
        return loss

    def _magnitudes(self, samples: Tensor, size: int) -> Tensor:
        spectrum = torch.stft(
            functional.pad(samples, (size // 2, size // 2)),
            size,
            size // 4,
            window=self._windows[size],
            center=False,
            return_complex=True,
        )
        return torch.sqrt(spectrum.real**2 + spectrum.imag**2 + 1e-9)


class SegmentReader:
    """Draws codes, true or predicted ones, and the speech they stand for."""

    def __init__(self, directory: Path, predicted_share: float) -> None:
        parts: dict[str, list[tuple[Tensor, np.ndarray]]] = {"codes": [], "predicted": []}
        starts: dict[str, list[list[int]]] = {"codes": [], "predicted": []}
        for shard in training_shards(directory / "speech"):
            for kind, found in parts.items():
                path = directory / kind / f"{shard.path.stem}.npy"
                if path.exists():
                    codes = torch.from_numpy(np.load(path).astype(np.int64))
                    found.append((codes, shard.samples))
                    starts[kind].append([0, *np.cumsum(shard.num_frames[:-1]).tolist()])
        true, predicted = parts["codes"], parts["predicted"]
        self._parts = [*true, *predicted]
        # The last utterance of a shard may be shorter than a segment.
        self._beginnings = [
            (part, start)
            for part, found in enumerate([*starts["codes"], *starts["predicted"]])
            for start in found[:-1]
        ]
        share = predicted_share if predicted else 0.0
        weights = [(1 - share) / len(true)] * len(true) + [share / max(1, len(predicted))] * len(
            predicted
        )
        self._weights = torch.tensor(weights)

    def draw_beginnings(self, batch_size: int, num_frames: int) -> tuple[Tensor, Tensor]:
        """Return codes (B, G, F) and samples (B, F * 1920) of utterances from their first frame.

        The decoder starts from nothing there, and must not click.
        """
        codes, samples = [], []
        for index in torch.randint(len(self._beginnings), (batch_size,)).tolist():
            part, start = self._beginnings[index]
            from_codes, from_samples = self._parts[part]
            end = start + num_frames
            codes.append(from_codes[start:end].T)
            piece = from_samples[start * SAMPLES_PER_FRAME : end * SAMPLES_PER_FRAME]
            samples.append(torch.from_numpy(piece.astype(np.float32) / 32768))
        return torch.stack(codes), torch.stack(samples)

    def draw(self, batch_size: int, num_frames: int) -> tuple[Tensor, Tensor]:
        """Return codes (B, G, context + F) and samples (B, F * 1920)."""
        codes, samples = [], []
        for part in torch.multinomial(self._weights, batch_size, replacement=True).tolist():
            from_codes, from_samples = self._parts[part]
            start = int(torch.randint(len(from_codes) - _CONTEXT_FRAMES - num_frames, ()))
            middle, end = start + _CONTEXT_FRAMES, start + _CONTEXT_FRAMES + num_frames
            codes.append(from_codes[start:end].T)
            piece = from_samples[middle * SAMPLES_PER_FRAME : end * SAMPLES_PER_FRAME]
            samples.append(torch.from_numpy(piece.astype(np.float32) / 32768))
        return torch.stack(codes), torch.stack(samples)


def load_quantizer(recipe: Recipe, directory: Path) -> Quantizer:
    """Load the trained quantizer."""
    quantizer = Quantizer(recipe.codec)
    quantizer.load_state_dict(torch.load(directory / "quantizer.pt", weights_only=True))
    return quantizer


def load_decoder(recipe: Recipe, directory: Path) -> CodecDecoder:
    """Load the averaged weights of the decoder."""
    decoder = CodecDecoder(voice_codec_config(recipe.codec)["decoder_config"]).eval()
    weights = torch.load(directory / "codec.pt", weights_only=True)["average"]
    decoder.load_state_dict(weights)
    return decoder


def train_codec(recipe: Recipe, directory: Path) -> None:
    """Train, or go on training, until the recipe's number of steps."""
    torch.manual_seed(recipe.seed)
    codec = recipe.codec
    decoder = CodecDecoder(voice_codec_config(codec)["decoder_config"])
    decoder.adopt(load_quantizer(recipe, directory).codebooks)
    print(f"{sum(p.numel() for p in decoder.parameters()) / 1e6:.2f} M parameters", flush=True)
    trained = [parameter for parameter in decoder.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(trained, betas=(0.8, 0.99), weight_decay=1e-3)
    rate = steady_then_down(codec.learning_rate, _WARM_UP_STEPS, codec.steps, _SHARE_DOWN)
    training = Training(directory / "codec.pt", decoder, optimizer, rate)
    compare = SpectralLoss()
    reader = SegmentReader(directory, codec.predicted_share)
    waveform = torch.compile(decoder.waveform, dynamic=False)
    recent: list[float] = []
    while training.step < codec.steps:
        if torch.rand(()) < _BEGINNINGS:
            codes, wanted = reader.draw_beginnings(codec.batch_size, codec.segment_frames)
            made = waveform(decoder.latents(codes).contiguous())
            loss = compare(made, wanted)
        else:
            codes, wanted = reader.draw(codec.batch_size, codec.segment_frames)
            made = waveform(decoder.latents(codes)[..., _CONTEXT_FRAMES:].contiguous())
            loss = compare(made[:, _UNHEARD_SAMPLES:], wanted[:, _UNHEARD_SAMPLES:])
        beyond = (made.abs() - 1).clamp(min=0).mean()
        training.update(loss + 0.01 * beyond)
        recent.append(float(loss.detach()))
        if training.step % _SAVE_STEPS == 0:
            training.note(train=round(float(np.mean(recent)), 4))
            training.save()
            reader = SegmentReader(directory, codec.predicted_share)  # more speech may have come
            recent = []
    training.save()
