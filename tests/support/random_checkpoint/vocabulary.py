"""A toy vocabulary of the byte-level BPE, trained on a few sentences, in the official form."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final

from tests.support.random_checkpoint.architecture import TEMPLATES, Preset

# In the order of their ids, which follow the vocabulary's last one.
SPECIAL_TOKENS: Final[tuple[str, ...]] = tuple(TEMPLATES["special_tokens"])
# The added tokens that the published file does not flag as special.
_UNFLAGGED_TOKENS: Final = frozenset(SPECIAL_TOKENS[14:26])
# The prompt's slices count on each of these being one token.
_WHOLE_WORDS: Final = ("assistant", "user")
_NUM_TRAINED_MERGES: Final = 160
_CORPUS: Final = """\
the quick brown fox jumps over the lazy dog. Hello world, this is a test of the speech server. \
Turn on the kitchen light. The temperature outside is twenty three degrees. It's ten o'clock; \
I'll be there, won't you? we're they've Guten Morgen, wie geht es dir? Das Licht im Wohnzimmer ist \
an. Bonjour, comment allez-vous? L'ete est chaud. Hola, que tal? user instruct voice speak slowly \
and softly with a warm voice language english chinese"""

# The published vocabulary: its size without added tokens, its rows, and where the whole words are.
_REAL_SIZE: Final = 151643
_REAL_ROWS: Final = 151936
_REAL_IDS: Final = {"user": 872, "assistant": 77091}
_ROW_MULTIPLE: Final = 32

Merge = tuple[str, str]


@dataclass(frozen=True)
class Vocabulary:
    """Tokens, merges and added tokens."""

    ids: dict[str, int]
    """Token -> id, without added tokens."""
    merges: tuple[Merge, ...]
    padded_size: int
    """Rows of the text embedding table; the last ones belong to no token."""

    @property
    def special_ids(self) -> dict[str, int]:
        """Added token -> id."""
        return {token: len(self.ids) + index for index, token in enumerate(SPECIAL_TOKENS)}

    def merges_text(self) -> str:
        """Return ``merges.txt``."""
        return "#version: 0.2\n" + "".join(f"{left} {right}\n" for left, right in self.merges)

    def tokenizer_config(self) -> dict[str, Any]:
        """Return ``tokenizer_config.json``."""
        flags = dict.fromkeys(("lstrip", "normalized", "rstrip", "single_word"), False)
        special = [token for token in SPECIAL_TOKENS if token not in _UNFLAGGED_TOKENS]
        added = {
            str(token_id): {"content": token, **flags, "special": token in special}
            for token, token_id in self.special_ids.items()
        }
        return {
            **TEMPLATES["tokenizer_config"],
            "added_tokens_decoder": added,
            "additional_special_tokens": special[1:],
        }


def build_vocabulary(preset: Preset) -> Vocabulary:
    """Train the toy vocabulary; for "real" add tokens that nothing merges into, up to its size."""
    merges = _train_merges()
    tokens = [*sorted(byte_characters()), *dict.fromkeys(left + right for left, right in merges)]
    if preset == "tiny":
        ids = {token: index for index, token in enumerate(tokens)}
        rows = -(-(len(ids) + len(SPECIAL_TOKENS)) // _ROW_MULTIPLE) * _ROW_MULTIPLE
        return Vocabulary(ids, tuple(merges), rows)
    return Vocabulary(_spread_ids(tokens), tuple(merges), _REAL_ROWS)


def byte_characters() -> list[str]:
    """Return the printable character that stands for each byte 0 .. 255.

    Ported from: openai/gpt-2 src/encoder.py bytes_to_unicode.
    """
    printable = {*range(33, 127), *range(161, 173), *range(174, 256)}
    others = [byte for byte in range(256) if byte not in printable]
    substitutes = {byte: chr(256 + index) for index, byte in enumerate(others)}
    return [substitutes.get(byte, chr(byte)) for byte in range(256)]


def _spread_ids(tokens: list[str]) -> dict[str, int]:
    taken = set(_REAL_IDS.values())
    free = (index for index in range(_REAL_SIZE) if index not in taken)
    ids = {token: _REAL_IDS.get(token) or next(free) for token in tokens}
    ids.update({f"<filler_{index}>": index for index in free})
    return dict(sorted(ids.items(), key=lambda item: item[1]))


def _train_merges() -> list[Merge]:
    merges = list(_merges_of_whole_words())
    words = Counter(_corpus_words())
    symbols = {word: list(word) for word in words}
    for merge in merges:
        symbols = {word: _apply(merge, parts) for word, parts in symbols.items()}
    for _ in range(_NUM_TRAINED_MERGES):
        pairs: Counter[Merge] = Counter()
        for word, count in words.items():
            parts = symbols[word]
            for pair in pairwise(parts):
                pairs[pair] += count
        best = min(pairs, key=lambda pair: (-pairs[pair], pair))
        merges.append(best)
        symbols = {word: _apply(best, parts) for word, parts in symbols.items()}
    return merges


def _merges_of_whole_words() -> Iterable[Merge]:
    for word in _WHOLE_WORDS:
        for end in range(1, len(word)):
            yield word[:end], word[end]


def _corpus_words() -> Iterable[str]:
    characters = byte_characters()
    for index, word in enumerate(_CORPUS.split()):
        spaced = f" {word}" if index else word
        yield "".join(characters[byte] for byte in spaced.encode())


def _apply(merge: Merge, parts: list[str]) -> list[str]:
    merged: list[str] = []
    index = 0
    while index < len(parts):
        if tuple(parts[index : index + 2]) == merge:
            merged.append(merge[0] + merge[1])
            index += 2
        else:
            merged.append(parts[index])
            index += 1
    return merged
