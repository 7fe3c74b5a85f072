"""What both trainings share, and the training of the codec's decoder."""

import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from script._demo_voice.export import codec_shapes, voice_codec_config
from script._demo_voice.networks import (
    Weights,
    codec_latents,
    codec_waveform,
    is_trained,
    new_decoder,
)
from script._demo_voice.quantizer import Quantizer, mel_bank, spectrum
from script._demo_voice.speech import SAMPLES_PER_FRAME, training_shards

_AVERAGE: Final = 0.999
_MIN_RATE: Final = 0.02
_CONTEXT_FRAMES: Final = 8
_UNHEARD_SAMPLES: Final = 2 * SAMPLES_PER_FRAME  # the convolutions look back less than this
_BEGINNINGS: Final = 0.3
_BANDS: Final = {2048: 128, 1024: 80, 512: 48, 256: 24}
_WITH_BINS: Final = (2048, 512)
_SAVE_STEPS: Final = 250


class Training:
    """Weights in training; it can be stopped at any time and resumes from its file."""

    def __init__(
        self,
        path: Path,
        weights: Weights,
        trained: Callable[[str], bool],
        rate: Callable[[int], float],
        **options: Any,
    ) -> None:
        """Start, or resume from ``path``; ``options`` go to AdamW."""
        self._path, self.weights, self._rate = path, weights, rate
        self._trained = {name: x.requires_grad_() for name, x in weights.items() if trained(name)}
        self._optimizer = torch.optim.AdamW(self._trained.values(), **options)
        self.step, self.cpu_s = 0, 0.0
        self.average = {name: x.detach().clone() for name, x in weights.items()}
        """Averaged weights: what is measured and exported."""
        if path.exists():
            values = torch.load(path, weights_only=True)
            with torch.no_grad():
                for name, value in values["weights"].items():
                    weights[name].copy_(value)
            self._optimizer.load_state_dict(values["optimizer"])
            self.average, self.step, self.cpu_s = (
                values[name] for name in ("average", "step", "cpu_s")
            )
            torch.set_rng_state(values["rng"])
        self._started_s = time.process_time() - self.cpu_s
        size = sum(weight.numel() for weight in weights.values())
        print(f"{size / 1e6:.2f} M parameters, step {self.step}", flush=True)

    def update(self, loss: Tensor) -> None:
        """Do one step."""
        for group in self._optimizer.param_groups:
            group["lr"] = self._rate(self.step)
        self._optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(self._trained.values(), 1.0)
        self._optimizer.step()
        self.step += 1
        keep = min(_AVERAGE, self.step / (self.step + 10))
        with torch.no_grad():
            for name, value in self._trained.items():
                self.average[name].lerp_(value, 1 - keep)

    def save(self, **losses: Any) -> None:
        """Write everything that resuming needs, atomically."""
        self.cpu_s = time.process_time() - self._started_s
        print(f"step {self.step}, {self.cpu_s / 60:.1f} processor minutes: {losses}", flush=True)
        values = {
            "weights": {name: x.detach() for name, x in self.weights.items()},
            "average": self.average,
            "optimizer": self._optimizer.state_dict(),
            "step": self.step,
            "cpu_s": self.cpu_s,
            "rng": torch.get_rng_state(),
        }
        unfinished = self._path.with_suffix(".partial")
        torch.save(values, unfinished)
        unfinished.rename(self._path)


def learning_rate(
    peak: float, warm_up_steps: int, num_steps: int, decay_share: float
) -> Callable[[int], float]:
    """Return a schedule: up, constant, and down in the last share of the steps."""

    def rate(step: int) -> float:
        left = (num_steps - step) / (decay_share * num_steps)
        return peak * min(1.0, (step + 1) / warm_up_steps, max(_MIN_RATE, left))

    return rate


class SpectralLoss:
    """Difference of two waveforms (B, S) in log-mel bands at several resolutions."""

    def __init__(self) -> None:
        self._banks = {size: mel_bank(size, bands, 12_000.0) for size, bands in _BANDS.items()}

    def __call__(self, made: Tensor, wanted: Tensor) -> Tensor:
        loss = made.new_zeros(())
        for size, bank in self._banks.items():
            a, b = self._magnitudes(made, size), self._magnitudes(wanted, size)
            loss = loss + functional.l1_loss(torch.log(bank @ a + 1e-3), torch.log(bank @ b + 1e-3))
            if size in _WITH_BINS:
                logs = functional.l1_loss(torch.log(a + 2e-2), torch.log(b + 2e-2))
                loss = loss + 0.5 * logs + 0.5 * (a - b).norm() / (b.norm() + 1e-1)
        return loss

    def _magnitudes(self, samples: Tensor, size: int) -> Tensor:
        found = spectrum(samples, torch.hann_window(size), size // 4, size // 2)
        return torch.sqrt(found.real**2 + found.imag**2 + 1e-9)


class SegmentReader:
    """Draws codes, true or predicted ones, and their speech."""

    def __init__(self, directory: Path, predicted_share: float) -> None:
        self._parts: list[tuple[Tensor, np.ndarray]] = []
        self._beginnings: list[tuple[int, int]] = []
        weights = []
        shares = {"codes": 1 - predicted_share, "predicted": predicted_share}
        if not any((directory / "predicted").glob("*.npy")):
            shares = {"codes": 1.0}
        for kind, share in shares.items():
            paths = {path.stem: path for path in (directory / kind).glob("[0-9]*.npy")}
            shards = [s for s in training_shards(directory / "speech") if s.path.stem in paths]
            for shard in shards:
                codes = torch.from_numpy(np.load(paths[shard.path.stem]).astype(np.int64))
                # The last utterance of a shard may be shorter than a segment.
                starts = [0, *np.cumsum(shard.num_frames[:-1]).tolist()][:-1]
                self._beginnings += [(len(self._parts), start) for start in starts]
                self._parts.append((codes, shard.samples))
                weights.append(share / len(shards))
        self._weights = torch.tensor(weights)

    def draw(self, batch_size: int, num_frames: int, *, beginnings: bool) -> tuple[Tensor, Tensor]:
        """Return codes (B, G, context + F) and samples (B, F * 1920).

        Args:
            batch_size: B.
            num_frames: F.
            beginnings: Segments from the first frame of utterances, without context: the decoder
                starts from nothing there and must not click.
        """
        codes, samples = [], []
        context = 0 if beginnings else _CONTEXT_FRAMES
        if beginnings:
            indices = torch.randint(len(self._beginnings), (batch_size,)).tolist()
            places = [self._beginnings[index] for index in indices]
        else:
            parts = torch.multinomial(self._weights, batch_size, replacement=True).tolist()
            rooms = [len(self._parts[part][0]) - context - num_frames for part in parts]
            starts = (int(torch.randint(room, ())) for room in rooms)
            places = [*zip(parts, starts, strict=True)]
        for part, start in places:
            from_codes, from_samples = self._parts[part]
            middle, end = start + context, start + context + num_frames
            codes.append(from_codes[start:end].T)
            piece = from_samples[middle * SAMPLES_PER_FRAME : end * SAMPLES_PER_FRAME]
            samples.append(torch.from_numpy(piece.astype(np.float32) / 32_768))
        return torch.stack(codes), torch.stack(samples)


def decode(recipe: Any, directory: Path, codes: Tensor) -> Tensor:
    """Return samples (S,) of codes (F, G), by the averaged weights."""
    config = voice_codec_config(recipe.codec)["decoder_config"]
    weights = torch.load(directory / "codec.pt", weights_only=True)["average"]
    with torch.no_grad():
        latents = codec_latents(weights, config, codes.T[None])
        return codec_waveform(weights, config, latents)[0].clamp(-1, 1)


def train_codec(recipe: Any, directory: Path) -> None:
    """Train, or resume training, up to the recipe's number of steps."""
    torch.manual_seed(recipe.seed)
    codec = recipe.codec
    config = voice_codec_config(codec)["decoder_config"]
    books = Quantizer.load(codec, directory / "quantizer.pt").codebooks.books
    weights = new_decoder(codec_shapes(codec), config["layer_scale_initial_scale"], books)
    rate = learning_rate(codec.learning_rate, 50, codec.steps, 0.4)
    options: dict[str, Any] = {"betas": (0.8, 0.99), "weight_decay": 1e-3}
    training = Training(directory / "codec.pt", weights, is_trained, rate, **options)
    compare = SpectralLoss()
    reader = SegmentReader(directory, codec.predicted_share)
    waveform = torch.compile(partial(codec_waveform, weights, config), dynamic=False)
    recent: list[float] = []
    while training.step < codec.steps:
        is_start = bool(torch.rand(()) < _BEGINNINGS)
        codes, wanted = reader.draw(codec.batch_size, codec.segment_frames, beginnings=is_start)
        skipped = 0 if is_start else _CONTEXT_FRAMES
        made = waveform(codec_latents(weights, config, codes)[..., skipped:].contiguous())
        heard = 0 if is_start else _UNHEARD_SAMPLES
        loss = compare(made[:, heard:], wanted[:, heard:])
        training.update(loss + 0.01 * (made.abs() - 1).clamp(min=0).mean())
        recent.append(float(loss.detach()))
        if training.step % _SAVE_STEPS == 0 or training.step == codec.steps:
            training.save(train=round(float(np.mean(recent)), 4))
            reader = SegmentReader(directory, codec.predicted_share)  # there may be more speech
            recent = []
