"""Speech of flite's voice rms, in step with its letters, in shards on disk.

The voice is statistical: it always says the same text in the same way. Every word is stretched to
as many frames as it has letters. The talker reads one letter per frame, so there is nothing to
align. Debian's package ``flite`` brings the voice.
"""

import ctypes
import json
import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Self

import numpy as np
import soxr

from script._demo_voice.texts import Grammar, held_out_texts, spoken, training_texts
from wyoming_qwen3tts.arrays import Float32Array

SAMPLE_RATE_HZ: Final = 24_000
SAMPLES_PER_FRAME: Final = 1_920
VALIDATION: Final = "validation"
_LETTER_S: Final = 0.08
_STRETCHES: Final = (0.62, 1.9)
_MIN_SAMPLES: Final = 2_400
_TAIL_SAMPLES: Final = 960
_TOKEN_OF_SEGMENT: Final = b"R:SylStructure.parent.parent.R:Token.parent"
_UNSPOKEN: Final = re.compile(r"\bAM\b|\ba\.m\.(?=\W|$)")  # flite skips these letters

Pointer = ctypes.c_void_p


class _Wave(ctypes.Structure):
    _fields_ = (
        ("type", ctypes.c_char_p),
        ("sample_rate", ctypes.c_int),
        ("num_samples", ctypes.c_int),
        ("num_channels", ctypes.c_int),
        ("samples", ctypes.POINTER(ctypes.c_short)),
    )


@dataclass
class _Span:
    """When a word is spoken, and the pause after it."""

    start_s: float
    end_s: float
    pause_s: float = 0.0


_SIGNATURES: Final[dict[str, tuple[Any, list[Any]]]] = {
    "new_utterance": (Pointer, []),
    "utt_set_input_text": (ctypes.c_int, [Pointer, ctypes.c_char_p]),
    "utt_init": (Pointer, [Pointer, Pointer]),
    "default_tokenization": (Pointer, [Pointer]),
    "utt_synth_tokens": (Pointer, [Pointer]),
    "utt_wave": (ctypes.POINTER(_Wave), [Pointer]),
    "utt_relation": (Pointer, [Pointer, ctypes.c_char_p]),
    "relation_head": (Pointer, [Pointer]),
    "item_next": (Pointer, [Pointer]),
    "item_feat_float": (ctypes.c_float, [Pointer, ctypes.c_char_p]),
    "item_set_float": (None, [Pointer, ctypes.c_char_p, ctypes.c_float]),
    "path_to_item": (Pointer, [Pointer, ctypes.c_char_p]),
    "delete_utterance": (None, [Pointer]),
}


class SourceVoice:
    """Speaks English texts, deterministically."""

    def __init__(self, name: str) -> None:
        """Load one of flite's CMU voices, such as "rms".

        Raises:
            OSError: flite is not installed; ``apt-get install flite``.
        """
        self._flite = ctypes.CDLL("libflite.so.1", mode=ctypes.RTLD_GLOBAL)
        for library in ("libflite_usenglish.so.1", "libflite_cmulex.so.1"):
            ctypes.CDLL(library, mode=ctypes.RTLD_GLOBAL)
        self._flite.flite_init()
        register = ctypes.CDLL(f"libflite_cmu_us_{name}.so.1")[f"register_cmu_us_{name}"]
        register.restype, register.argtypes = Pointer, [ctypes.c_char_p]
        self._voice = register(None)
        for function, (result, arguments) in _SIGNATURES.items():
            found = getattr(self._flite, function)
            found.restype, found.argtypes = result, arguments

    def speak(self, text: str) -> Float32Array:
        """Return the speech (S,) at 24 kHz; letter n is spoken about n frames after the start.

        Raises:
            ValueError: flite reads other words, or makes no sound.
        """
        said = _UNSPOKEN.sub("ay-em", text)
        _, _, spans = self._synthesize(said, [])
        stretches = _stretches(text.split(" "), spans)
        samples, rate_hz, spans = self._synthesize(said, stretches)
        start_s, end_s = max(0.0, spans[0].start_s), spans[-1].end_s + _LETTER_S / 2
        speech = samples[round(start_s * rate_hz) : round(end_s * rate_hz)]
        if len(speech) < _MIN_SAMPLES:
            raise ValueError(f"{text!r} makes next to no sound")
        resampled: Float32Array = soxr.resample(speech, rate_hz, SAMPLE_RATE_HZ, "HQ")
        return resampled

    def _synthesize(
        self, text: str, stretches: Sequence[float]
    ) -> tuple[Float32Array, int, list[_Span]]:
        """Return samples (S,), their rate, and when each word is spoken."""
        call = self._flite
        utterance = call.new_utterance()
        try:
            call.utt_set_input_text(utterance, text.encode("utf-8"))
            call.utt_init(utterance, self._voice)
            call.default_tokenization(utterance)
            tokens = self._items(utterance, b"Token")
            if len(tokens) != len(text.split(" ")):
                raise ValueError(f"flite reads {len(tokens)} words in {text!r}")
            for token, stretch in zip(tokens, stretches, strict=False):
                call.item_set_float(token, b"local_duration_stretch", stretch)
            call.utt_synth_tokens(utterance)
            wave = call.utt_wave(utterance).contents
            samples = np.ctypeslib.as_array(wave.samples, (wave.num_samples,))
            speech = samples.astype(np.float32) / np.float32(32_768)
            return speech, wave.sample_rate, self._spans(utterance, tokens, text)
        finally:
            call.delete_utterance(utterance)

    def _spans(self, utterance: Pointer, tokens: list[Pointer], text: str) -> list[_Span]:
        numbers = {token: number for number, token in enumerate(tokens)}
        spans: dict[int, _Span] = {}
        last, before_s = -1, 0.0
        for segment in self._items(utterance, b"Segment"):
            end_s = self._flite.item_feat_float(segment, b"end")
            token = self._flite.path_to_item(segment, _TOKEN_OF_SEGMENT)
            if token in numbers:
                last = numbers[token]
                spans.setdefault(last, _Span(before_s, end_s)).end_s = end_s
            elif last >= 0:
                spans[last].pause_s += end_s - before_s
            before_s = end_s
        if sorted(spans) != [*range(len(tokens))]:
            raise ValueError(f"flite leaves out a word of {text!r}")
        return [spans[number] for number in range(len(tokens))]

    def _items(self, utterance: Pointer, relation: bytes) -> list[Pointer]:
        item = self._flite.relation_head(self._flite.utt_relation(utterance, relation))
        items = []
        while item:
            items.append(item)
            item = self._flite.item_next(item)
        return items


def _stretches(words: Sequence[str], spans: Sequence[_Span]) -> list[float]:
    """Return the stretch of each word that starts the next one when its first letter is due."""
    now_s, letters, stretches = 0.0, 0, []
    for word, span in zip(words, spans, strict=True):
        letters += len(word) + 1
        natural_s = span.end_s - span.start_s
        wanted_s = letters * _LETTER_S - now_s - span.pause_s
        stretch = min(_STRETCHES[1], max(_STRETCHES[0], wanted_s / natural_s))
        now_s += stretch * natural_s + span.pause_s
        stretches.append(stretch)
    return stretches


@dataclass(frozen=True)
class Shard:
    """One file of int16 speech, its texts, and the frames of each text."""

    path: Path
    texts: tuple[str, ...]
    num_frames: tuple[int, ...]

    @classmethod
    def open(cls, path: Path) -> Self:
        index = json.loads(path.with_suffix(".json").read_text(encoding="utf-8"))
        return cls(path, tuple(index["texts"]), tuple(index["num_frames"]))

    @property
    def samples(self) -> np.ndarray:
        """(S,) int16, memory-mapped."""
        mapped: np.ndarray = np.load(self.path, mmap_mode="r")
        return mapped


def training_shards(directory: Path) -> Iterator[Shard]:
    for path in sorted(directory.glob("[0-9]*.npy")):
        yield Shard.open(path)


def padded(speech: Float32Array, lead_frames: int) -> np.ndarray:
    """Return (S,) int16: silence, speech, and silence up to a whole frame."""
    num_frames = -(-(len(speech) + _TAIL_SAMPLES) // SAMPLES_PER_FRAME)
    samples = np.zeros((lead_frames + num_frames) * SAMPLES_PER_FRAME, np.int16)
    start = lead_frames * SAMPLES_PER_FRAME
    samples[start : start + len(speech)] = np.clip(speech * 32_767, -32_767, 32_767)
    return samples


def make_speech(directory: Path, recipe: Any, seed: int) -> None:
    """Speak everything that the recipe asks for and that is not there yet."""
    directory.mkdir(parents=True, exist_ok=True)
    voice, grammar = SourceVoice(recipe.voice), Grammar()
    unseen = held_out_texts(grammar, recipe.num_validation, seed, recipe.num_held_out)
    _write_shard(directory / f"{VALIDATION}.npy", map(spoken, unseen), voice, recipe.lead_frames)
    texts = training_texts(grammar, recipe.num_texts, seed, recipe.num_held_out)
    for number, start in enumerate(range(0, len(texts), recipe.texts_per_shard)):
        chosen = texts[start : start + recipe.texts_per_shard]
        _write_shard(directory / f"{number:03d}.npy", chosen, voice, recipe.lead_frames)


def _write_shard(path: Path, texts: Any, voice: SourceVoice, lead_frames: int) -> None:
    if path.exists():
        return
    pieces, kept = [], []
    for text in texts:
        try:
            pieces.append(padded(voice.speak(text), lead_frames))
        except ValueError as error:
            print(f"skipped: {error}", file=sys.stderr, flush=True)
        else:
            kept.append(text)
    num_frames = [len(piece) // SAMPLES_PER_FRAME for piece in pieces]
    index = json.dumps({"texts": kept, "num_frames": num_frames})
    path.with_suffix(".json").write_text(index, encoding="utf-8")
    partial = path.with_suffix(".partial")
    with partial.open("wb") as file:
        np.save(file, np.concatenate(pieces))
    partial.rename(path)
    print(f"{path.name}: {len(kept)} texts", file=sys.stderr, flush=True)
