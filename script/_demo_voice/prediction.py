"""What the code predictor would say in place of the true codes, for the codec to get used to.

Group 0 and the text decide most of what is heard; the later groups are guesses. A decoder that has
only ever seen true codes takes each guess at its word.
"""

from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from script._demo_voice.dataset import training_shards
from script._demo_voice.language_network import Talker
from script._demo_voice.language_training import BatchMaker, new_talker, read_utterances
from script._demo_voice.layout import PromptWriter, write_tokenizer
from script._demo_voice.recipe import Recipe

_BATCH_SIZE = 24


def predict_shards(recipe: Recipe, directory: Path, num_shards: int) -> None:
    """Write (F, G) int16 codes for the first shards: true group 0, guesses behind it.

    The talker keeps its dropout, because it knows these texts by heart and others less well.
    """
    talker = new_talker(recipe)
    weights = torch.load(directory / "language.pt", weights_only=True)["average"]
    talker.load_state_dict(weights)
    writer = PromptWriter(write_tokenizer(directory / "tokenizer"), recipe.codec.codebook_size)
    maker = BatchMaker(writer, recipe.language, recipe.codec.codebook_size)
    predicted = directory / "predicted"
    predicted.mkdir(exist_ok=True)
    for shard in [*training_shards(directory / "speech")][:num_shards]:
        utterances = read_utterances([shard], directory / "codes")
        order = sorted(range(len(utterances)), key=lambda index: len(utterances[index].codes))
        pieces: dict[int, Tensor] = {}
        for start in range(0, len(order), _BATCH_SIZE):
            indices = order[start : start + _BATCH_SIZE]
            batch = maker.lay_out([utterances[index] for index in indices], noisy=False)
            with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
                x = talker.embed(batch.text, batch.codec, batch.frames, batch.is_frame)
                hidden = talker.model.run(x, torch.arange(x.shape[1]))[batch.predicts]
                codes = _guess(talker, hidden, batch.next_codes[batch.predicts])
            lengths = [len(utterances[index].codes) for index in indices]
            pieces.update(zip(indices, codes.split(lengths), strict=True))
        whole = torch.cat([pieces[index] for index in range(len(utterances))])
        np.save(predicted / f"{shard.path.stem}.npy", whole.to(torch.int16).numpy())


def _guess(talker: Talker, hidden: Tensor, codes: Tensor) -> Tensor:
    """Return (N, G): group 0 of ``codes``, then always the most probable code."""
    guessed = codes.clone()
    for group in range(1, codes.shape[1]):
        guessed[:, group] = talker.predict_groups(hidden, guessed)[group - 1].argmax(-1)
    return guessed
