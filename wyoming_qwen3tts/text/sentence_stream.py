"""Text that arrives in pieces in, whole sentences out."""

from wyoming_qwen3tts.text.abbreviations import stop_tables
from wyoming_qwen3tts.text.boundaries import Limits, find_end, is_finished

DEFAULT_MAX_CHARS = 300


class SentenceStream:
    """Collects chunks of text, cut anywhere, and gives out sentences as soon as they are sure.

    The sentences depend on the text alone, not on how it was cut, as long as :meth:`flush` does not
    come between. No letter is lost; white space around sentences is. Blocks of code and of thoughts
    (``<think>``) come out in one piece, whatever their length, so that they can be left out whole.

    Args:
        language: Plain code, for its abbreviations and dates; None: those that are safe in any.
        max_chars: Longer sentences are cut at clauses, then at words, then anywhere. In Latin
            letters: a Chinese character counts as three, kana and hangul as two.
        min_chars: Shorter sentences are joined to the next one.
        whole_blocks: Whether blocks come out in one piece; for a speaker who reads them out they
            are cut like other text.
    """

    def __init__(
        self,
        language: str | None = None,
        *,
        max_chars: int = DEFAULT_MAX_CHARS,
        min_chars: int = 0,
        whole_blocks: bool = True,
    ) -> None:
        if max_chars < 1:
            raise ValueError(f"max_chars must be positive, not {max_chars}.")
        self.language = language
        self._limits = Limits(min_chars=min(min_chars, max_chars), max_chars=max_chars)
        self._whole_blocks = whole_blocks
        self._buffer = ""
        self._line_start = True

    @property
    def pending(self) -> str:
        """Text that has not been given out."""
        return self._buffer.strip()

    @property
    def can_flush(self) -> bool:
        """Whether :meth:`flush` would give out something now; a reason to start the timer."""
        return is_finished(self._buffer, stop_tables(self.language))

    def push(self, chunk: str) -> list[str]:
        """Add a chunk and return the sentences that are complete now."""
        self._buffer += chunk
        return self._take(final=False)

    def flush(self) -> list[str]:
        """Give out what ends like a sentence although the next chunk has not come.

        For a timer: a speaker should not be kept waiting while a language model thinks. Text that
        may go on ("Dr.", "3.", an open block of code) stays.
        """
        if not self.can_flush:
            return []
        return self._take(final=True)

    def finish(self) -> list[str]:
        """Return the rest; the stream can then be used for another text."""
        sentences = self._take(final=True)
        self._line_start = True
        return sentences

    def _take(self, *, final: bool) -> list[str]:
        text = self._buffer
        tables = stop_tables(self.language)
        sentences: list[str] = []
        position = 0
        while True:
            start = position
            while start < len(text) and text[start].isspace():
                start += 1
            line_start = self._line_start or "\n" in text[position:start]
            if start == len(text):
                # White space that ends the buffer says whether the next sentence starts a line.
                self._line_start = line_start
                position = start
                break
            may_be_block = line_start and self._whole_blocks
            end = find_end(text, start, tables, self._limits, line_start=may_be_block, final=final)
            if end is None:
                break
            sentences.append(text[start:end].strip())
            position = end
            self._line_start = False
        self._buffer = text[position:]
        return sentences


def split_sentences(
    text: str,
    language: str | None = None,
    *,
    max_chars: int = DEFAULT_MAX_CHARS,
    min_chars: int = 0,
) -> list[str]:
    """Return the sentences of a text that is complete; arguments as for :class:`SentenceStream`."""
    stream = SentenceStream(language, max_chars=max_chars, min_chars=min_chars)
    return stream.push(text) + stream.finish()
