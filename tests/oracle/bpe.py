"""Qwen2's byte-level BPE in plain Python, slow and without any library.

Ported from: huggingface/transformers tokenization_qwen2.py Qwen2Tokenizer.
"""

import itertools
import re
import unicodedata
from collections.abc import Callable, Iterator
from pathlib import Path

from tests.oracle.checkpoint import read_json
from tests.support.random_checkpoint.vocabulary import byte_characters

_CONTRACTIONS = ("s", "t", "re", "ve", "m", "ll", "d")
# Unicode's White_Space, which differs from str.isspace in the control characters 28 .. 31.
_SPACES = frozenset(
    "\t\n\v\f\r \x85\xa0\u1680\u2000\u2001\u2002\u2003\u2004\u2005\u2006\u2007\u2008\u2009\u200a"
    "\u2028\u2029\u202f\u205f\u3000"
)
_NEWLINES = frozenset("\r\n")


def split_words(text: str) -> Iterator[str]:
    """Split as the Qwen2 pattern does; the pieces together are the text."""
    start = 0
    while start < len(text):
        end = _word_end(text, start)
        yield text[start:end]
        start = end


def _word_end(text: str, start: int) -> int:
    """Try the pattern's alternatives in their order."""
    first = text[start]
    if first == "'":
        for contraction in _CONTRACTIONS:
            following = text[start + 1 : start + 1 + len(contraction)]
            if len(following) == len(contraction) and following.casefold() == contraction:
                return start + 1 + len(contraction)
    letters_start = start + (not _is_letter(first) and first not in _NEWLINES)
    if not _is_number(first) and _is_letter(text[letters_start : letters_start + 1]):
        return _run_end(text, letters_start, _is_letter)
    if _is_number(first):
        return start + 1
    marks_start = start + (first == " ")
    if _is_mark(text[marks_start : marks_start + 1]):
        return _run_end(text, _run_end(text, marks_start, _is_mark), _NEWLINES.__contains__)
    spaces_end = _run_end(text, start, _SPACES.__contains__)
    for end in range(spaces_end, start, -1):
        if text[end - 1] in _NEWLINES:
            return end
    # The last of several spaces belongs to the word behind it.
    return spaces_end if spaces_end in {len(text), start + 1} else spaces_end - 1


def _run_end(text: str, start: int, belongs: Callable[[str], bool]) -> int:
    end = start
    while end < len(text) and belongs(text[end]):
        end += 1
    return end


def _is_letter(char: str) -> bool:
    return char != "" and unicodedata.category(char).startswith("L")


def _is_number(char: str) -> bool:
    return char != "" and unicodedata.category(char).startswith("N")


def _is_mark(char: str) -> bool:
    """Tell whether a character is neither space nor letter nor number."""
    return char != "" and not (char in _SPACES or _is_letter(char) or _is_number(char))


class OracleTokenizer:
    """Text to token ids."""

    def __init__(self, directory: Path) -> None:
        """Read a checkpoint's tokenizer."""
        self._ids: dict[str, int] = read_json(directory / "vocab.json")
        lines = (directory / "merges.txt").read_text(encoding="utf-8").splitlines()
        pairs = [tuple(line.split()) for line in lines if not line.startswith("#version:")]
        self._ranks = {pair: rank for rank, pair in enumerate(pairs)}
        entries = read_json(directory / "tokenizer_config.json")["added_tokens_decoder"]
        self._added = {entry["content"]: int(token_id) for token_id, entry in entries.items()}
        self._byte_characters = byte_characters()

    def encode_template(self, text: str) -> list[int]:
        """Encode text in which added tokens have their meaning."""
        # Longest first, as the library looks for the leftmost longest one.
        by_length = sorted(self._added, key=len, reverse=True)
        pieces = re.split("(" + "|".join(map(re.escape, by_length)) + ")", text)
        ids: list[int] = []
        for piece in pieces:
            ids.extend([self._added[piece]] if piece in self._added else self.encode(piece))
        return ids

    def encode(self, text: str) -> list[int]:
        """Encode text in which nothing has a meaning."""
        return [
            self._ids[symbol]
            for word in split_words(unicodedata.normalize("NFC", text))
            for symbol in self._merge([self._byte_characters[byte] for byte in word.encode()])
        ]

    def _merge(self, symbols: list[str]) -> list[str]:
        while len(symbols) > 1:
            pairs = list(itertools.pairwise(symbols))
            best = min(pairs, key=lambda pair: self._ranks.get(pair, len(self._ranks)))
            if best not in self._ranks:
                break
            index = pairs.index(best)
            symbols = [*symbols[:index], "".join(best), *symbols[index + 2 :]]
        return symbols
