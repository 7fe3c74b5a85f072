"""What is spoken and measured on both sides; plain numpy, because two environments import it."""

import itertools
import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

VoiceKind = Literal["preset", "designed", "x_vector", "icl"]
Layout = Literal["non_streaming", "streaming"]

SEED = 0
SAMPLE_RATE_HZ = 24000
CODEBOOK_SIZE = 64
NUM_CODE_GROUPS = 16
MAX_NEW_TOKENS = 40

LAYOUTS: tuple[Layout, ...] = ("non_streaming", "streaming")
TEXTS = (
    "Hello world, turn on the light",
    "a",
    "",
    "It's ten o'clock; 23 degrees 中文。",
    "Guten Morgen! Wie geht es dir heute, und was machst du?",
)
# Speaker, language, instruction. Eric and Dylan speak dialects when the language leaves it open.
_PRESETS = (
    ("Ryan", "English", None),
    ("Dylan", "Auto", "speak slowly"),
    ("eric", "Chinese", None),
    ("Vivian", "Auto", None),
    ("Eric", "English", "softly, with a warm voice"),
    (None, "German", None),
)
# Language, description.
_DESIGNS = (("English", "a warm voice"), ("Auto", ""), ("French", "an old man; he's tired."))
# Reference samples, reference text: fewer and more text tokens than reference frames.
_REFERENCES = (
    (31200, "this is a test"),
    (4000, "a long reference text which has many more tokens than frames"),
)

DECODER_FRAMES = 40
DECODER_CHUNKS = (1, 3, 7)
ENCODER_SAMPLES = (1, 100, 1919, 1920, 1921, 5000, 24000, 24001, 31333)
SPEAKER_SAMPLES = (1536, 2000, 3333, 5000, 9999, 16000, 24000, 31200)
NUM_TOKEN_TEXTS = 300

_TOKEN_PIECES = (
    *("the ", "It's", "DON'T", "'Tis ", "helloWorld", " 123,4", "\n", "\r\n", "\t", "  ", "\n\n"),
    *(
        "e\u0301",
        "\u0301",
        "Ǆ",
        "ñ",
        "中文，你好。",
        "こんにちは",
        "안녕",
        "Привет",
        "ก็",
        "هَ",
        "🙂",
    ),
    *("👩\u200d👩", "<|im_end|>", "<think>", "<tts_pad>", "/", "...", "—", "\u00a0", "\u3000", "½"),
    *("Ⅷ", "x²", "\x00", "ﬁ", "user", "assistant\n", "_", "a", "I'LL", "\u2028"),
)


@dataclass(frozen=True)
class Case:
    """One greedy utterance."""

    checkpoint: str
    voice: VoiceKind
    layout: Layout
    text: str
    language: str
    speaker: str | None = None
    instruction: str | None = None
    """For a designed voice: its description."""
    reference_samples: int = 0
    reference_text: str | None = None


def all_cases() -> list[Case]:
    """Return every case, those of one checkpoint together."""
    return [
        *_preset_cases("0.6B-custom_voice"),
        *_base_cases("0.6B-base"),
        *_preset_cases("1.7B-custom_voice"),
        *_base_cases("1.7B-base"),
        *_design_cases("1.7B-voice_design"),
    ]


def _preset_cases(checkpoint: str) -> Iterator[Case]:
    for layout, text, preset in itertools.product(LAYOUTS, TEXTS, _PRESETS):
        speaker, language, instruction = preset
        yield Case(checkpoint, "preset", layout, text, language, speaker, instruction)


def _design_cases(checkpoint: str) -> Iterator[Case]:
    for layout, text, (language, description) in itertools.product(LAYOUTS, TEXTS, _DESIGNS):
        yield Case(checkpoint, "designed", layout, text, language, instruction=description)


def _base_cases(checkpoint: str) -> Iterator[Case]:
    for layout, text, (samples, reference_text) in itertools.product(LAYOUTS, TEXTS, _REFERENCES):
        yield Case(
            checkpoint,
            "icl",
            layout,
            text,
            "English",
            reference_samples=samples,
            reference_text=reference_text,
        )
        yield Case(checkpoint, "x_vector", layout, text, "Auto", reference_samples=samples)


def clip(num_samples: int) -> NDArray[np.float32]:
    """Return a seeded clip (S,): noise over a few tones, so that neither front end sees silence."""
    generator = np.random.default_rng([SEED, num_samples])
    times_s = np.arange(num_samples) / SAMPLE_RATE_HZ
    tones = sum(np.sin(2 * np.pi * frequency * times_s) for frequency in (110.0, 440.0, 1700.0))
    noise = generator.standard_normal(num_samples)
    return (0.1 * tones + 0.1 * noise).astype(np.float32)


def decoder_codes() -> NDArray[np.int64]:
    """Return codes (F, G) for the codec decoder; among them a code that was never used."""
    generator = np.random.default_rng(SEED)
    codes = generator.integers(0, CODEBOOK_SIZE, (DECODER_FRAMES, NUM_CODE_GROUPS))
    codes[3, 2] = CODEBOOK_SIZE - 1
    return codes


def token_texts() -> list[str]:
    """Return seeded texts for the tokenizer, special tokens among them."""
    chance = random.Random(SEED)
    return [
        "".join(_token_piece(chance) for _ in range(chance.randrange(1, 14)))
        for _ in range(NUM_TOKEN_TEXTS)
    ]


def _token_piece(chance: random.Random) -> str:
    if chance.random() < 0.85:
        return chance.choice(_TOKEN_PIECES)
    first, last = chance.choice(((0x20, 0x2FF), (0x300, 0x377), (0x1F300, 0x1F5FF)))
    return chr(chance.randint(first, last))
