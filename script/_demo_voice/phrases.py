"""Phrases by a grammar, and the ones that training never sees."""

import hashlib
import random
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import yaml

from wyoming_qwen3tts.text.normalize import normalize

GRAMMAR: Final = Path(__file__).with_name("phrases.yaml")
TEST_PHRASES: Final = Path(__file__).with_name("test_phrases.yaml")

_SLOT = re.compile(r"\{([^{}]+)\}")
_RANGE = re.compile(r"(\d+)\.\.(\d+)")
_MAX_CHARACTERS = 92


@dataclass(frozen=True)
class TestPhrases:
    """What is measured; no training text is one of these."""

    __test__ = False

    held_out: tuple[str, ...]
    """Written by the grammar, then taken away from training."""
    free: tuple[str, ...]
    """Written by hand, in other shapes than the grammar's."""

    @property
    def all(self) -> tuple[str, ...]:
        """Both kinds."""
        return self.held_out + self.free


def read_test_phrases(path: Path = TEST_PHRASES) -> TestPhrases:
    """Read the test phrases, as people would type them."""
    values = yaml.safe_load(path.read_text(encoding="utf-8"))
    return TestPhrases(tuple(values["held_out"]), tuple(values["free"]))


def spoken(text: str) -> str:
    """Return what the server's normaliser makes of a text: what the model reads."""
    return normalize(text, "en")


def fingerprint(text: str) -> str:
    """Return the words of a text as the model reads them, for comparing phrases."""
    return " ".join(re.findall(r"[a-z']+", spoken(text).lower()))


class Grammar:
    """Writes random phrases."""

    def __init__(self, path: Path = GRAMMAR) -> None:
        """Read the grammar.

        Raises:
            KeyError: A template names a slot that there is not.
        """
        values: dict[str, Any] = yaml.safe_load(path.read_text(encoding="utf-8"))
        self._weights: dict[str, float] = values["weights"]
        self._slots: dict[str, list[str]] = values["slots"]
        self._templates = {kind: list(values[kind]) for kind in self._weights}
        every = [*self._slots.values(), *self._templates.values()]
        for name in {name for texts in every for text in texts for name in _SLOT.findall(text)}:
            if name not in self._slots and not _RANGE.fullmatch(name):
                raise KeyError(f"{path}: there is no slot {name!r}")

    def phrase(self, chance: random.Random, kind: str | None = None) -> str:
        """Write one phrase."""
        kind = kind or chance.choices([*self._weights], [*self._weights.values()])[0]
        text = chance.choice(self._templates[kind])
        while slot := _SLOT.search(text):
            text = text[: slot.start()] + self._filled(slot[1], chance) + text[slot.end() :]
        return text[0].upper() + text[1:]

    def _filled(self, slot: str, chance: random.Random) -> str:
        if numbers := _RANGE.fullmatch(slot):
            return str(chance.randint(int(numbers[1]), int(numbers[2])))
        return chance.choice(self._slots[slot])


def training_texts(grammar: Grammar, num_texts: int, seed: int, num_held_out: int) -> list[str]:
    """Write texts as the model reads them, each once, without any of the test phrases.

    Args:
        grammar: Writes them.
        num_texts: How many.
        seed: Decides which.
        num_held_out: One in so many phrases is kept away, by its hash: what validation reads.
    """
    chance = random.Random(seed)  # noqa: S311 - nothing secret
    taken = {fingerprint(text) for text in read_test_phrases().all}
    texts: list[str] = []
    while len(texts) < num_texts:
        text = spoken(grammar.phrase(chance))
        mark = fingerprint(text)
        if mark in taken or len(text) > _MAX_CHARACTERS or is_held_out(mark, num_held_out):
            continue
        taken.add(mark)
        texts.append(text)
    return texts


def held_out_texts(grammar: Grammar, num_texts: int, seed: int, num_held_out: int) -> list[str]:
    """Write home phrases, each once, whose hash keeps them away from training."""
    chance = random.Random(seed)  # noqa: S311 - nothing secret
    texts: dict[str, str] = {}
    while len(texts) < num_texts:
        text = grammar.phrase(chance, "home")
        mark = fingerprint(text)
        if is_held_out(mark, num_held_out) and len(spoken(text)) <= _MAX_CHARACTERS:
            texts.setdefault(mark, text)
    return [*texts.values()]


def is_held_out(mark: str, num_held_out: int) -> bool:
    """Return whether training must not see a phrase, given its fingerprint."""
    digest = hashlib.sha256(mark.encode()).digest()
    return int.from_bytes(digest[:4], "big") % num_held_out == 0
