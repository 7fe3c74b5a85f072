"""Text that arrives in pieces -> the token ids that more text can no longer change.

The tokenizer first splits text into words and runs of punctuation, and merges only within those. A
run of letters ends where something else follows, so everything up to the last such place is sure:
its ids are the beginning of the ids of any longer text.
"""

import unicodedata

from wyoming_qwen3tts.model.speech_model import TextTokenizer


class TextFeed:
    """Tokenises one text piece by piece; the ids together are those of the whole text."""

    def __init__(self, tokenizer: TextTokenizer) -> None:
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
        if _is_word(text[index - 1]) and not _is_word(text[index]):
            return index
    return 0


def _is_word(character: str) -> bool:
    # Marks count as part of a word: composing may join them with the letter before.
    return unicodedata.category(character)[0] in "LNM"
