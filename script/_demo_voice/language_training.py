"""Trains talker and code predictor on texts and the codes of their speech."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from script._demo_voice.dataset import VALIDATION, Shard, training_shards
from script._demo_voice.language_network import Talker
from script._demo_voice.layout import (
    NO_CODEC,
    PromptWriter,
    num_codec_rows,
    num_text_rows,
    write_tokenizer,
)
from script._demo_voice.recipe import LanguageRecipe, Recipe
from script._demo_voice.training import Training, steady_then_down

_NOTHING: Final = -100
"""cross_entropy leaves such targets out."""
_NAMES_LANGUAGE: Final = 0.5
# As a growing text comes: sentences one after the other, each with a space behind it.
_PAIRED: Final = 0.25
_SPACE_BEHIND: Final = 0.2
_CODE_NOISE: Final = 0.1
_LENGTH_JITTER: Final = 6.0
_LENGTH_STEP: Final = 8
_SHARE_DOWN: Final = 0.25
_LINE_STEPS: Final = 100
_SAVE_STEPS: Final = 200


@dataclass(frozen=True)
class Utterance:
    """A text and the codes of its speech."""

    text: str
    codes: Tensor
    """(F, G) int64."""


def joined(first: Utterance, second: Utterance, lead_frames: int) -> Utterance:
    """Speak one utterance behind the other, each letter when it is due."""
    text = f"{first.text} "
    silence = first.codes[:1].expand(lead_frames, -1)
    before = torch.cat([first.codes, silence])[: lead_frames + len(text)]
    return Utterance(text + second.text, torch.cat([before, second.codes[lead_frames:]]))


def varied(utterances: Sequence[Utterance], lead_frames: int) -> list[Utterance]:
    """Sometimes join the utterances two by two, and sometimes put a space behind the texts."""
    if len(utterances) > 1 and torch.rand(()) < _PAIRED:
        half = len(utterances) // 2
        pairs = zip(utterances[:half], utterances[half:], strict=False)
        utterances = [joined(first, second, lead_frames) for first, second in pairs]
    spaces = torch.rand(len(utterances)) < _SPACE_BEHIND
    return [
        Utterance(utterance.text + " ", utterance.codes) if space else utterance
        for utterance, space in zip(utterances, spaces, strict=True)
    ]


@dataclass(frozen=True)
class Batch:
    """Utterances side by side; shapes (B, T), with (B, T, G) for codes."""

    text: Tensor
    codec: Tensor
    frames: Tensor
    is_frame: Tensor
    next_codes: Tensor
    """What a position shall predict, where ``predicts`` is set."""
    predicts: Tensor
    targets: Tensor
    """Group 0, or the size of the codebook for end of speech; _NOTHING elsewhere."""


def read_utterances(shards: Sequence[Shard], codes: Path) -> list[Utterance]:
    """Read texts and codes; shards without codes are left out."""
    utterances = []
    for shard in shards:
        path = codes / f"{shard.path.stem}.npy"
        if path.exists():
            pieces = np.load(path).astype(np.int64)
            cuts = np.cumsum(shard.num_frames)[:-1]
            for text, piece in zip(shard.texts, np.split(pieces, cuts), strict=True):
                utterances.append(Utterance(text, torch.from_numpy(piece)))
    return utterances


class BatchMaker:
    """Lays utterances out as the talker sees them."""

    def __init__(self, writer: PromptWriter, recipe: LanguageRecipe, codebook_size: int) -> None:
        self._writer = writer
        self._recipe = recipe
        self._codebook_size = codebook_size
        self.rows = torch.tensor([*range(codebook_size), writer.end_of_speech])

    def lay_out(self, utterances: Sequence[Utterance], *, noisy: bool) -> Batch:
        """Lay out a batch, with wrong frames here and there in what the talker reads back."""
        choices = torch.rand(len(utterances)) < _NAMES_LANGUAGE
        prompts = [
            self._writer.write(utterance.text, names_language=bool(choice) or not noisy)
            for utterance, choice in zip(utterances, choices, strict=True)
        ]
        sizes = [
            len(prompt.text) + len(utterance.codes)
            for prompt, utterance in zip(prompts, utterances, strict=True)
        ]
        # Few different lengths: each is planned for once and kept in memory.
        shape = (len(utterances), -(-max(sizes) // _LENGTH_STEP) * _LENGTH_STEP)
        num_groups = utterances[0].codes.shape[1]
        text = torch.full(shape, self._writer.pad)
        codec = torch.full(shape, NO_CODEC)
        frames = torch.zeros(*shape, num_groups, dtype=torch.long)
        next_codes = torch.zeros_like(frames)
        is_frame = torch.zeros(shape, dtype=torch.bool)
        predicts = torch.zeros(shape, dtype=torch.bool)
        targets = torch.full(shape, _NOTHING)
        for row, (prompt, utterance) in enumerate(zip(prompts, utterances, strict=True)):
            start, end = len(prompt.text), sizes[row]
            text[row, :start] = torch.tensor(prompt.text)
            codec[row, :start] = torch.tensor(prompt.codec)
            trailing = prompt.trailing[: end - start]
            text[row, start : start + len(trailing)] = torch.tensor(trailing)
            frames[row, start:end] = utterance.codes
            is_frame[row, start:end] = True
            next_codes[row, start - 1 : end - 1] = utterance.codes
            predicts[row, start - 1 : end - 1] = True
            targets[row, start - 1 : end - 1] = utterance.codes[:, 0]
            targets[row, end - 1] = self._codebook_size
        if noisy:
            frames = self._disturbed(frames, is_frame)
        return Batch(text, codec, frames, is_frame, next_codes, predicts, targets)

    def _disturbed(self, frames: Tensor, is_frame: Tensor) -> Tensor:
        """Replace whole frames by others of the batch, and single codes by any."""
        shape = is_frame.shape
        pool = frames[is_frame]
        others = pool[torch.randint(len(pool), shape)]
        share = self._recipe.history_noise * torch.rand(shape[0], 1)
        frames = torch.where((torch.rand(shape) < share)[..., None], others, frames)
        wrong = torch.rand(frames.shape) < _CODE_NOISE * torch.rand(shape[0], 1, 1)
        return torch.where(wrong, torch.randint(self._codebook_size, frames.shape), frames)


def losses(talker: Talker, batch: Batch, rows: Tensor, share: float) -> list[Tensor]:
    """Return the mean loss of each group; groups 1 .. G-1 on a share of the frames.

    Args:
        talker: What is trained.
        batch: Utterances.
        rows: The rows of the head that can be drawn: codes and end of speech.
        share: Of the frames.
    """
    with torch.autocast("cpu", torch.bfloat16):
        embedded = talker.embed(batch.text, batch.codec, batch.frames, batch.is_frame)
        hidden = talker.model.run(embedded, torch.arange(embedded.shape[1]))
        asked = batch.targets != _NOTHING
        logits = functional.linear(hidden[asked], talker.codec_head.weight[rows])
        first = functional.cross_entropy(logits.float(), batch.targets[asked])
        hidden, codes = hidden[batch.predicts], batch.next_codes[batch.predicts]
        chosen = torch.randperm(len(codes))[: max(1, int(share * len(codes)))]
        groups = talker.predict_groups(hidden[chosen], codes[chosen])
    rest = [
        functional.cross_entropy(logits.float(), codes[chosen, group])
        for group, logits in enumerate(groups, 1)
    ]
    return [first, *rest]


def by_length(utterances: Sequence[Utterance], size: int) -> list[list[int]]:
    """Return batches of similar lengths in random order."""
    lengths = torch.tensor([float(len(utterance.codes)) for utterance in utterances])
    order = torch.argsort(lengths + _LENGTH_JITTER * torch.rand(len(lengths))).tolist()
    batches = [order[start : start + size] for start in range(0, len(order), size)]
    return [batches[index] for index in torch.randperm(len(batches)).tolist()]


def new_talker(recipe: Recipe) -> Talker:
    """Make an untrained talker."""
    rows = num_codec_rows(recipe.codec), num_text_rows()
    return Talker(recipe.language, recipe.codec, *rows)


def validation_losses(
    recipe: Recipe, weights: dict[str, Tensor], maker: BatchMaker, unseen: Sequence[Utterance]
) -> list[float]:
    """Return the loss of each group on unseen utterances, without noise."""
    talker = new_talker(recipe).eval()
    talker.load_state_dict(weights)
    order = sorted(unseen, key=lambda utterance: len(utterance.codes))
    size = recipe.language.batch_size
    with torch.no_grad():
        parts = [
            losses(talker, maker.lay_out(order[start : start + size], noisy=False), maker.rows, 1.0)
            for start in range(0, len(order), size)
        ]
    return [round(float(torch.stack(values).mean()), 3) for values in zip(*parts, strict=True)]


def train_language(recipe: Recipe, directory: Path) -> None:
    """Train, or go on training, until the recipe's number of steps."""
    torch.manual_seed(recipe.seed)
    language = recipe.language
    talker = new_talker(recipe)
    print(f"{sum(p.numel() for p in talker.parameters()) / 1e6:.2f} M parameters", flush=True)
    optimizer = torch.optim.AdamW(talker.parameters(), betas=(0.9, 0.98), weight_decay=0.02)
    rate = steady_then_down(
        language.learning_rate, language.warm_up_steps, language.steps, _SHARE_DOWN
    )
    training = Training(directory / "language.pt", talker, optimizer, rate)
    writer = PromptWriter(write_tokenizer(directory / "tokenizer"), recipe.codec.codebook_size)
    maker = BatchMaker(writer, language, recipe.codec.codebook_size)
    speech, codes = directory / "speech", directory / "codes"
    unseen = read_utterances([Shard.open(speech / f"{VALIDATION}.npy")], codes)
    recent: list[list[float]] = []
    while training.step < language.steps:
        # Read anew for each round: more speech may have come.
        utterances = read_utterances([*training_shards(speech)], codes)
        for indices in by_length(utterances, language.batch_size):
            chosen = varied([utterances[index] for index in indices], recipe.speech.lead_frames)
            batch = maker.lay_out(chosen, noisy=True)
            parts = losses(talker, batch, maker.rows, language.predictor_share)
            training.update(parts[0] + torch.stack(parts[1:]).mean())
            recent.append([float(part.detach()) for part in parts])
            if training.step % _SAVE_STEPS == 0:
                validation = validation_losses(recipe, training.averaged(), maker, unseen)
                training.note(train=np.mean(recent, 0).round(3).tolist(), unseen=validation)
                training.save()
                recent = []
            if training.step >= language.steps:
                break
    training.save()
