"""Text that arrives in pieces -> the token ids that more text can no longer change.

The tokenizer first splits text into words and runs of punctuation, and merges only within those. A
run of letters ends where something else follows, so everything up to the last such place is sure:
its ids are the beginning of the ids of any longer text.
"""

import unicodedata

from wyoming_qwen3tts.runtime.tokenizer import BpeTokenizer


class TextFeed:
    """Tokenises one text piece by piece; the ids together are those of the whole text."""

    def __init__(self, tokenizer: BpeTokenizer) -> None:
        """Start with no text."""
        self._tokenizer = tokenizer
        self._pending = ""

    def push(self, text: str) -> list[int]:
        """Take the next piece and return the ids that have become sure."""
        pending = self._pending + text
        cut = _last_sure_end(pending)
        self._pending = pending[cut:]
        return self._tokenizer.encode(pending[:cut])

    def finish(self) -> list[int]:
        """Return the ids of the rest: no more text will come."""
        rest, self._pending = self._pending, ""
        return self._tokenizer.encode(rest)


def _last_sure_end(text: str) -> int:
    """Return the end of the last run of letters, or last digit, that something else follows."""
    for index in range(len(text) - 1, 0, -1):
        # A mark is no place to cut: composing may join it with the letter before, and where it does
        # not, the tokenizer counts it among the punctuation that follows.
        if _kind(text[index - 1]) in "LN" and _kind(text[index]) not in "LNM":
            return index
    return 0


def _kind(character: str) -> str:
    return unicodedata.category(character)[0]
