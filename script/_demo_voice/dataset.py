"""Speech on disk: shards of int16 samples, each with the texts and where their frames are."""

import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np

from script._demo_voice.phrases import Grammar, held_out_texts, spoken, training_texts
from script._demo_voice.recipe import SpeechRecipe
from script._demo_voice.source_voice import SourceVoice
from wyoming_qwen3tts.arrays import Float32Array

SAMPLES_PER_FRAME: Final = 1920
_TAIL_SAMPLES: Final = 960
VALIDATION: Final = "validation"


@dataclass(frozen=True)
class Shard:
    """One file of speech."""

    path: Path
    texts: tuple[str, ...]
    num_frames: tuple[int, ...]
    """Of each text, in the order in which they lie in the file."""

    @property
    def samples(self) -> np.ndarray:
        """(S,) int16, memory-mapped."""
        mapped: np.ndarray = np.load(self.path, mmap_mode="r")
        return mapped

    @classmethod
    def open(cls, path: Path) -> "Shard":
        """Open a shard that was written."""
        index = json.loads(path.with_suffix(".json").read_text(encoding="utf-8"))
        return cls(path, tuple(index["texts"]), tuple(index["num_frames"]))


def padded(speech: Float32Array, lead_frames: int) -> np.ndarray:
    """Return (S,) int16: silence, speech, and silence up to a whole frame."""
    num_frames = -(-(len(speech) + _TAIL_SAMPLES) // SAMPLES_PER_FRAME)
    samples = np.zeros((lead_frames + num_frames) * SAMPLES_PER_FRAME, np.int16)
    start = lead_frames * SAMPLES_PER_FRAME
    samples[start : start + len(speech)] = np.clip(speech * 32767, -32767, 32767)
    return samples


def write_shard(path: Path, texts: Sequence[str], voice: SourceVoice, lead_frames: int) -> None:
    """Speak texts into a shard; it appears complete or not at all."""
    pieces, kept = [], []
    for text in texts:
        try:
            pieces.append(padded(voice.speak(text), lead_frames))
        except ValueError as error:
            print(f"left out: {error}", file=sys.stderr, flush=True)
        else:
            kept.append(text)
    index = {
        "texts": kept,
        "num_frames": [len(piece) // SAMPLES_PER_FRAME for piece in pieces],
    }
    path.with_suffix(".json").write_text(json.dumps(index), encoding="utf-8")
    partial = path.with_suffix(".partial")
    with partial.open("wb") as file:
        np.save(file, np.concatenate(pieces))
    partial.rename(path)


def make_speech(directory: Path, recipe: SpeechRecipe, seed: int) -> None:
    """Speak everything that the recipe asks for and that is not there yet."""
    directory.mkdir(parents=True, exist_ok=True)
    voice = SourceVoice(recipe.voice)
    grammar = Grammar()
    path = directory / f"{VALIDATION}.npy"
    if not path.exists():
        unseen = held_out_texts(grammar, recipe.num_validation, seed, recipe.num_held_out)
        write_shard(path, [spoken(text) for text in unseen], voice, recipe.lead_frames)
    texts = training_texts(grammar, recipe.num_texts, seed, recipe.num_held_out)
    for number, start in enumerate(range(0, len(texts), recipe.texts_per_shard)):
        path = directory / f"{number:03d}.npy"
        if not path.exists():
            wanted = texts[start : start + recipe.texts_per_shard]
            write_shard(path, wanted, voice, recipe.lead_frames)
            print(f"{path.name}: {len(wanted)} texts", file=sys.stderr, flush=True)


def training_shards(directory: Path) -> Iterator[Shard]:
    """Open every training shard, in order."""
    for path in sorted(directory.glob("[0-9]*.npy")):
        yield Shard.open(path)
