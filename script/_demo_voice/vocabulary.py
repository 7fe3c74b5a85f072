"""The voice's alphabet: the official tokenizer's files with next to no merges.

Letters and frames then come at about the same rate, so that the talker, which is fed one token a
frame, reads just ahead of what it says.
"""

from string import ascii_uppercase
from typing import Final

from tests.support.random_checkpoint.vocabulary import (
    SPECIAL_TOKENS,
    Vocabulary,
    byte_characters,
)

# The prompt's template counts on "assistant" being one token. The merges begin with the pair that
# is rarest in English, so that they change next to no other word.
_MERGES: Final = (
    ("s", "s"),
    ("a", "ss"),
    ("ass", "i"),
    ("assi", "s"),
    ("assis", "t"),
    ("assist", "a"),
    ("assista", "n"),
    ("assistan", "t"),
)
_ROW_MULTIPLE: Final = 32


def small_letters() -> list[int]:
    """Return for each row of the text table the row that is read for it.

    Capital letters sound like small ones: they share one row in training, and get copies of it in
    the checkpoint.
    """
    vocabulary = letter_vocabulary()
    rows = [*range(vocabulary.padded_size)]
    for letter in ascii_uppercase:
        rows[vocabulary.ids[letter]] = vocabulary.ids[letter.lower()]
    return rows


def letter_vocabulary() -> Vocabulary:
    """Return the bytes and the template's word."""
    tokens = [*sorted(byte_characters()), *(left + right for left, right in _MERGES)]
    ids = {token: index for index, token in enumerate(tokens)}
    rows = -(-(len(ids) + len(SPECIAL_TOKENS)) // _ROW_MULTIPLE) * _ROW_MULTIPLE
    return Vocabulary(ids, _MERGES, rows)
