"""Phrases from a grammar, the ones that training never sees, and the alphabet."""

import hashlib
import random
import re
from pathlib import Path
from string import ascii_uppercase
from typing import Any, Final

import yaml

from tests.support.random_checkpoint.vocabulary import SPECIAL_TOKENS, Vocabulary, byte_characters
from wyoming_qwen3tts.text.normalize import normalize

GRAMMAR: Final = Path(__file__).with_name("phrases.yaml")
_TEST_PHRASES: Final = Path(__file__).with_name("test_phrases.yaml")
_SLOT = re.compile(r"\{([^{}]+)\}")
_RANGE = re.compile(r"(\d+)\.\.(\d+)")
_MAX_CHARACTERS = 92

# The prompt's template needs "assistant" to be one token. The merges begin with the rarest pair, so
# that hardly any other word changes: a token is a letter, about one per frame.
_MERGES: Final = (
    ("s", "s"), ("a", "ss"), ("ass", "i"), ("assi", "s"), ("assis", "t"), ("assist", "a"),
    ("assista", "n"), ("assistan", "t"),
)  # fmt: skip
_ROW_MULTIPLE: Final = 32


def read_test_phrases() -> dict[str, list[str]]:
    """Return the test phrases: ``held_out`` by the grammar, ``free`` in other shapes."""
    values: dict[str, list[str]] = yaml.safe_load(_TEST_PHRASES.read_text(encoding="utf-8"))
    return values


def all_test_phrases() -> list[str]:
    return [text for texts in read_test_phrases().values() for text in texts]


def spoken(text: str) -> str:
    """Return what the model reads: the text after the server's normaliser."""
    return normalize(text, "en")


def fingerprint(text: str) -> str:
    """Return the words of a text as the model reads them, to compare phrases."""
    return " ".join(re.findall(r"[a-z']+", spoken(text).lower()))


class Grammar:
    """Writes random phrases."""

    def __init__(self, path: Path = GRAMMAR) -> None:
        """Read the grammar.

        Raises:
            KeyError: A template names an unknown slot.
        """
        values: dict[str, Any] = yaml.safe_load(path.read_text(encoding="utf-8"))
        self._weights: dict[str, float] = values["weights"]
        self._slots: dict[str, list[str]] = values["slots"]
        self._templates = {kind: list(values[kind]) for kind in self._weights}
        every = [*self._slots.values(), *self._templates.values()]
        for name in {name for texts in every for text in texts for name in _SLOT.findall(text)}:
            if name not in self._slots and not _RANGE.fullmatch(name):
                raise KeyError(f"{path}: unknown slot {name!r}")

    def phrase(self, rng: random.Random, kind: str | None = None) -> str:
        kind = kind or rng.choices([*self._weights], [*self._weights.values()])[0]
        text = rng.choice(self._templates[kind])
        while slot := _SLOT.search(text):
            if numbers := _RANGE.fullmatch(slot[1]):
                filled = str(rng.randint(int(numbers[1]), int(numbers[2])))
            else:
                filled = rng.choice(self._slots[slot[1]])
            text = text[: slot.start()] + filled + text[slot.end() :]
        return text[0].upper() + text[1:]


def training_texts(grammar: Grammar, num_texts: int, seed: int, one_in: int) -> list[str]:
    """Return different texts as the model reads them, none of them held out or a test phrase."""
    rng = random.Random(seed)  # noqa: S311 - not secret
    taken = {fingerprint(text) for text in all_test_phrases()}
    texts: list[str] = []
    while len(texts) < num_texts:
        text = spoken(grammar.phrase(rng))
        mark = fingerprint(text)
        if mark in taken or len(text) > _MAX_CHARACTERS or is_held_out(mark, one_in):
            continue
        taken.add(mark)
        texts.append(text)
    return texts


def held_out_texts(grammar: Grammar, num_texts: int, seed: int, one_in: int) -> list[str]:
    """Return different home phrases that training never sees."""
    rng = random.Random(seed)  # noqa: S311 - not secret
    texts: dict[str, str] = {}
    while len(texts) < num_texts:
        text = grammar.phrase(rng, "home")
        mark = fingerprint(text)
        if is_held_out(mark, one_in) and len(spoken(text)) <= _MAX_CHARACTERS:
            texts.setdefault(mark, text)
    return [*texts.values()]


def is_held_out(mark: str, one_in: int) -> bool:
    digest = hashlib.sha256(mark.encode()).digest()
    return int.from_bytes(digest[:4], "big") % one_in == 0


def letter_vocabulary() -> Vocabulary:
    """Return the vocabulary: bytes and the template's word."""
    tokens = [*sorted(byte_characters()), *(left + right for left, right in _MERGES)]
    ids = {token: index for index, token in enumerate(tokens)}
    rows = -(-(len(ids) + len(SPECIAL_TOKENS)) // _ROW_MULTIPLE) * _ROW_MULTIPLE
    return Vocabulary(ids, _MERGES, rows)


def small_letters() -> list[int]:
    """Return the row to read for each row of the text table: capitals share the small letter's."""
    vocabulary = letter_vocabulary()
    rows = [*range(vocabulary.padded_size)]
    for letter in ascii_uppercase:
        rows[vocabulary.ids[letter]] = vocabulary.ids[letter.lower()]
    return rows
