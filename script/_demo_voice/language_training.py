"""Trains talker and code predictor on texts and the codes of their speech."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from script._demo_voice.export import NO_CODEC, PromptWriter, talker_shapes, write_tokenizer
from script._demo_voice.networks import Weights, new_talker, predict_groups, talker_hidden
from script._demo_voice.speech import VALIDATION, Shard, training_shards
from script._demo_voice.training import Training, learning_rate

_IGNORED: Final = -100
"""Target that cross_entropy leaves out."""
_NAMES_LANGUAGE: Final = 0.5
# Growing text arrives as sentences, each with a space after it.
_PAIRED: Final = 0.25
_SPACE_AFTER: Final = 0.2
_CODE_NOISE: Final = 0.1
_LENGTH_JITTER: Final = 6.0
_LENGTH_STEP: Final = 8
_SAVE_STEPS: Final = 200


class Utterance(NamedTuple):
    """A text and the codes (F, G) of its speech."""

    text: str
    codes: Tensor


class Batch(NamedTuple):
    """Utterances side by side; shapes (B, T), and (B, T, G) for codes."""

    text: Tensor
    codec: Tensor
    frames: Tensor
    is_frame: Tensor
    next_codes: Tensor
    """What a position predicts, where ``predicts`` is set."""
    predicts: Tensor
    targets: Tensor
    """Group 0, or the codebook size for end of speech."""


def read_utterances(shards: Sequence[Shard], codes: Path) -> list[Utterance]:
    """Return texts and codes of the shards that have codes."""
    utterances = []
    for shard in shards:
        path = codes / f"{shard.path.stem}.npy"
        if path.exists():
            pieces = np.split(np.load(path).astype(np.int64), np.cumsum(shard.num_frames)[:-1])
            pairs = zip(shard.texts, pieces, strict=True)
            utterances += [Utterance(text, torch.from_numpy(piece)) for text, piece in pairs]
    return utterances


def varied(utterances: Sequence[Utterance], lead_frames: int) -> list[Utterance]:
    """Sometimes join utterances in pairs, and sometimes add a space after the text."""
    if len(utterances) > 1 and torch.rand(()) < _PAIRED:
        half = len(utterances) // 2
        pairs = zip(utterances[:half], utterances[half:], strict=False)
        utterances = [_joined(first, second, lead_frames) for first, second in pairs]
    spaces = torch.rand(len(utterances)) < _SPACE_AFTER
    return [
        Utterance(each.text + " ", each.codes) if space else each
        for each, space in zip(utterances, spaces, strict=True)
    ]


def _joined(first: Utterance, second: Utterance, lead_frames: int) -> Utterance:
    """Speak one utterance after the other, each letter when it is due."""
    text = f"{first.text} "
    silence = first.codes[:1].expand(lead_frames, -1)
    before = torch.cat([first.codes, silence])[: lead_frames + len(text)]
    return Utterance(text + second.text, torch.cat([before, second.codes[lead_frames:]]))


class BatchMaker:
    """Lays utterances out as the talker sees them."""

    def __init__(self, recipe: Any, directory: Path) -> None:
        self._size = recipe.codec.codebook_size
        self._noise = recipe.language.history_noise
        self._writer = PromptWriter(write_tokenizer(directory / "tokenizer"), self._size)
        self.rows = torch.tensor([*range(self._size), self._writer.end_of_speech])
        """Rows of the head that can be drawn: codes and end of speech."""

    def lay_out(self, utterances: Sequence[Utterance], *, noisy: bool) -> Batch:
        """Return a batch; with noise, some of the frames that the talker reads back are wrong."""
        choices = torch.rand(len(utterances)) < _NAMES_LANGUAGE
        prompts = [
            self._writer.write(each.text, names_language=bool(choice) or not noisy)
            for each, choice in zip(utterances, choices, strict=True)
        ]
        sizes = [
            len(prompt.text) + len(each.codes)
            for prompt, each in zip(prompts, utterances, strict=True)
        ]
        # Few different lengths, because torch plans each of them once.
        shape = (len(utterances), -(-max(sizes) // _LENGTH_STEP) * _LENGTH_STEP)
        text, codec = torch.full(shape, self._writer.pad), torch.full(shape, NO_CODEC)
        frames = torch.zeros(*shape, utterances[0].codes.shape[1], dtype=torch.long)
        next_codes, targets = torch.zeros_like(frames), torch.full(shape, _IGNORED)
        is_frame, predicts = (torch.zeros(shape, dtype=torch.bool) for _ in range(2))
        for row, (prompt, each) in enumerate(zip(prompts, utterances, strict=True)):
            start, end = len(prompt.text), sizes[row]
            trailing = prompt.trailing[: end - start]
            text[row, :start] = torch.tensor(prompt.text)
            codec[row, :start] = torch.tensor(prompt.codec)
            text[row, start : start + len(trailing)] = torch.tensor(trailing)
            frames[row, start:end] = each.codes
            is_frame[row, start:end] = True
            next_codes[row, start - 1 : end - 1] = each.codes
            predicts[row, start - 1 : end - 1] = True
            targets[row, start - 1 : end - 1] = each.codes[:, 0]
            targets[row, end - 1] = self._size
        if noisy:
            frames = self._disturbed(frames, is_frame)
        return Batch(text, codec, frames, is_frame, next_codes, predicts, targets)

    def _disturbed(self, frames: Tensor, is_frame: Tensor) -> Tensor:
        """Replace whole frames by others of the batch, and single codes by random ones."""
        shape = is_frame.shape
        pool = frames[is_frame]
        others = pool[torch.randint(len(pool), shape)]
        share = self._noise * torch.rand(shape[0], 1)
        frames = torch.where((torch.rand(shape) < share)[..., None], others, frames)
        wrong = torch.rand(frames.shape) < _CODE_NOISE * torch.rand(shape[0], 1, 1)
        return torch.where(wrong, torch.randint(self._size, frames.shape), frames)


def losses(
    weights: Weights, recipe: Any, batch: Batch, rows: Tensor, *, training: bool
) -> list[Tensor]:
    """Return the mean loss of each group; in training, groups 1 .. G-1 on a share of the frames."""
    share = recipe.predictor_share if training else 1.0
    with torch.autocast("cpu", torch.bfloat16):
        hidden = talker_hidden(weights, recipe, batch, training=training)
        asked = batch.targets != _IGNORED
        logits = functional.linear(hidden[asked], weights["talker.codec_head.weight"][rows])
        first = functional.cross_entropy(logits.float(), batch.targets[asked])
        hidden, codes = hidden[batch.predicts], batch.next_codes[batch.predicts]
        chosen = torch.randperm(len(codes))[: max(1, int(share * len(codes)))]
        hidden, codes = hidden[chosen], codes[chosen]
        groups = predict_groups(weights, recipe, hidden, codes, training=training)
    rest = [
        functional.cross_entropy(logits.float(), codes[:, group])
        for group, logits in enumerate(groups, 1)
    ]
    return [first, *rest]


def train_language(recipe: Any, directory: Path) -> None:
    """Train, or resume training, up to the recipe's number of steps."""
    torch.manual_seed(recipe.seed)
    language, codes = recipe.language, directory / "codes"
    weights = new_talker(talker_shapes(recipe))
    rate = learning_rate(language.learning_rate, language.warm_up_steps, language.steps, 0.25)
    options: dict[str, Any] = {"betas": (0.9, 0.98), "weight_decay": 0.02}
    training = Training(directory / "language.pt", weights, bool, rate, **options)
    maker = BatchMaker(recipe, directory)
    unseen = read_utterances([Shard.open(directory / "speech" / f"{VALIDATION}.npy")], codes)
    recent: list[list[float]] = []
    while training.step < language.steps:
        # Read again for each round: there may be more speech.
        utterances = read_utterances([*training_shards(directory / "speech")], codes)
        for indices in _by_length(utterances, language.batch_size):
            chosen = varied([utterances[index] for index in indices], recipe.speech.lead_frames)
            batch = maker.lay_out(chosen, noisy=True)
            parts = losses(weights, language, batch, maker.rows, training=True)
            training.update(parts[0] + torch.stack(parts[1:]).mean())
            recent.append([float(part.detach()) for part in parts])
            is_last = training.step >= language.steps
            if training.step % _SAVE_STEPS == 0 or is_last:
                validation = _validation_losses(language, training.average, maker, unseen)
                training.save(train=np.mean(recent, 0).round(3).tolist(), unseen=validation)
                recent = []
            if is_last:
                break


def _by_length(utterances: Sequence[Utterance], size: int) -> list[list[int]]:
    """Return batches of similar lengths in random order."""
    lengths = torch.tensor([float(len(each.codes)) for each in utterances])
    order = torch.argsort(lengths + _LENGTH_JITTER * torch.rand(len(lengths))).tolist()
    batches = [order[start : start + size] for start in range(0, len(order), size)]
    return [batches[index] for index in torch.randperm(len(batches)).tolist()]


def _validation_losses(
    recipe: Any, weights: Weights, maker: BatchMaker, unseen: Sequence[Utterance]
) -> list[float]:
    order = sorted(unseen, key=lambda each: len(each.codes))
    batches = [order[k : k + recipe.batch_size] for k in range(0, len(order), recipe.batch_size)]
    with torch.no_grad():
        parts = [
            losses(weights, recipe, maker.lay_out(each, noisy=False), maker.rows, training=False)
            for each in batches
        ]
    return [round(float(torch.stack(values).mean()), 3) for values in zip(*parts, strict=True)]


def predict_shards(recipe: Any, directory: Path) -> None:
    """Write the code predictor's codes (F, G) for the first shards, with the true group 0.

    The codec's decoder gets used to them. Dropout stays on, because the talker knows these texts.
    """
    language = recipe.language
    weights = torch.load(directory / "language.pt", weights_only=True)["average"]
    maker = BatchMaker(recipe, directory)
    (directory / "predicted").mkdir(exist_ok=True)
    for shard in [*training_shards(directory / "speech")][: recipe.codec.predicted_shards]:
        pieces = []
        for utterance in read_utterances([shard], directory / "codes"):
            batch = maker.lay_out([utterance], noisy=False)
            with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
                hidden = talker_hidden(weights, language, batch, training=True)[batch.predicts]
                codes = batch.next_codes[batch.predicts].clone()
                for group in range(1, codes.shape[1]):
                    groups = predict_groups(weights, language, hidden, codes, training=True)
                    codes[:, group] = groups[group - 1].argmax(-1)
            pieces.append(codes)
        predicted = torch.cat(pieces).to(torch.int16).numpy()
        np.save(directory / "predicted" / f"{shard.path.stem}.npy", predicted)
