"""Where a sentence ends, in text that may still be growing.

Every decision depends only on text that is there already: a candidate whose verdict more text could
change is ``WAIT``. So text gives the same sentences however it was cut into chunks.

The sentence-stream package (1.3.0) was measured first: it knows no abbreviations in small letters,
ordinals or code blocks and gave the expected sentences in 5 of the 19 texts of the tests.
"""

import re
import unicodedata
from dataclasses import dataclass
from enum import Enum

from wyoming_qwen3tts.text.abbreviations import Stop, StopTables, kind_of_stop
from wyoming_qwen3tts.text.scripts import script_of


class Verdict(Enum):
    """Whether a sentence ends at a candidate."""

    YES = "yes"
    NO = "no"
    WAIT = "wait"
    """More text is needed."""
    FORCED = "forced"
    """Yes, even if the sentence is shorter than wanted."""


@dataclass(frozen=True)
class Limits:
    """Lengths in Latin letters; one Chinese character counts as three, kana and hangul as two."""

    min_chars: int
    max_chars: int


_CJK_ENDERS = "。！？｡"
_CANDIDATE = re.compile(rf"[.!?…{_CJK_ENDERS}؟।॥]+|\n\s*")
_FINISHED = re.compile(rf"([.!?…{_CJK_ENDERS}؟।॥]+)\W*$|\n\s*$")
_CLOSERS = re.compile(r"[\"'”’»)\]}」』）】》〉*_~`]*")
_OPENERS = re.compile(r"[\"'“‘«„‚(\[{「『（【《〈*_~`¿¡]*")
_SPACE = re.compile(r"\s*")
_WORD = re.compile(r"\w+")
_LIST_OR_HEAD = re.compile(r"[-*+•#>|]|[0-9]+[.)]\s|\w\)\s")
_HEAD_LINE = re.compile(r"[ \t]*[#|]")
_ALNUM = re.compile(r"[^\W_]")
_MAX_WORD = 24
_MOST_MARKS = 2
# Places to cut a sentence that is too long, best first; a comma of "1,000" is none.
_CUTS = (
    re.compile(r"[.!?…][\"'”’»)\]]*(?=\s)|[;；]|[:：](?=\s)|\s[–—-](?=\s)"),
    re.compile(r",(?=\s)|[，、]"),
    re.compile(r"\s"),
)
_SHORTEST_CUT = 0.3
_FENCE = re.compile(r"(`{3,}|~{3,})([^`\n]*)(\n)?")
_THOUGHT = re.compile(r"<(think|thinking|reasoning)>", re.IGNORECASE)
_HEAD_CHARS = 12
_BLOCK_HEADS = ("```", "~~~", "<think>", "<thinking>", "<reasoning>")


def find_end(
    text: str, start: int, tables: StopTables, limits: Limits, *, line_start: bool, final: bool
) -> int | None:
    """Return the end of the sentence that starts at ``start``, or None while it is not sure.

    Args:
        text: All text so far.
        start: Index of the sentence's first character, not white space.
        tables: Abbreviations.
        limits: Lengths.
        line_start: Whether the sentence starts a line, so that it may be a block of code.
        final: Whether no more text will come.
    """
    if line_start and (block := _block_end(text, start, final=final)) != start:
        return block
    limit = _limit(text, start, limits.max_chars)
    for found in _CANDIDATE.finditer(text, start, limit):
        # Found within the limit, but read to its end.
        match = _CANDIDATE.match(text, found.start()) or found
        end, verdict = _judge(text, start, match, tables, final=final)
        if end - start > _MOST_MARKS * limits.max_chars:
            # A row of marks without end; whoever cleans sentences must not get it in one piece.
            return start + _MOST_MARKS * limits.max_chars
        if verdict is Verdict.WAIT:
            return None
        if verdict is Verdict.NO or not _ALNUM.search(text, start, end):
            continue
        if verdict is Verdict.FORCED or weight(text[start:end]) >= limits.min_chars:
            return end
    if limit < len(text):
        return _cut(text, start, limit)
    return len(text) if final else None


def is_finished(text: str, tables: StopTables) -> bool:
    """Return whether text looks like a whole sentence although nothing follows yet."""
    if not _ALNUM.search(text) or _in_block(text):
        return False
    last_line = text.rpartition("\n")[2].strip().lower()
    tail = _FINISHED.search(text)
    if tail is None or (last_line and any(block.startswith(last_line) for block in _BLOCK_HEADS)):
        return False
    if tail[1] != ".":
        return True
    if re.search(r"[0-9]$", text[: tail.start()]):
        return False
    return kind_of_stop(text, 0, tail.start(), tables) is Stop.SENTENCE


def weight(text: str) -> int:
    """Return the length of text in Latin letters."""
    return sum(_char_weight(char) for char in text)


def _char_weight(char: str) -> int:
    if char < "\u1100":
        return 1
    script = script_of(char)
    if script in {"han", "bopomofo"}:
        return 3
    return 2 if script in {"kana", "hangul"} else 1


def _limit(text: str, start: int, max_chars: int) -> int:
    """Index of the first character that makes the sentence too long; len(text) if none does."""
    total = 0
    for index in range(start, min(len(text), start + max_chars + 1)):
        total += _char_weight(text[index])
        if total > max_chars:
            return index
    return len(text)


def _judge(
    text: str, start: int, match: re.Match[str], tables: StopTables, *, final: bool
) -> tuple[int, Verdict]:
    if "\n" in match[0]:
        return match.start(), _judge_newline(text, start, match, final=final)
    closers = _CLOSERS.match(text, match.end())
    end = closers.end() if closers else match.end()
    if end == len(text):
        return end, Verdict.YES if final else Verdict.WAIT
    if any(char in _CJK_ENDERS for char in match[0]):
        return end, _judge_cjk(text, match.end(), end)
    if not text[end].isspace():
        return end, _judge_unspaced(text, match, end)
    if match[0] != ".":
        return end, _judge_next(text, end, Stop.SENTENCE, tables, final=final)
    kind = kind_of_stop(text, start, match.start(), tables)
    if kind is Stop.ABBREVIATION:
        return end, Verdict.NO
    return end, _judge_next(text, end, kind, tables, final=final)


def _judge_newline(text: str, start: int, match: re.Match[str], *, final: bool) -> Verdict:
    head = text[match.end() : match.end() + _HEAD_CHARS].lower()
    if head.startswith(_BLOCK_HEADS):
        return Verdict.FORCED
    if not final and any(block.startswith(head) for block in _BLOCK_HEADS):
        return Verdict.WAIT
    line_start = max(start, text.rfind("\n", start, match.start()) + 1)
    if match[0].count("\n") > 1 or not head or _HEAD_LINE.match(text, line_start):
        return Verdict.YES
    if not text[match.end()].islower():
        return Verdict.YES
    # A small letter goes on with the sentence of the line before, unless it marks a list item.
    if len(head) < 3 and not final:
        return Verdict.WAIT
    return Verdict.YES if _LIST_OR_HEAD.match(head) else Verdict.NO


def _judge_cjk(text: str, run_end: int, end: int) -> Verdict:
    quoted = end > run_end
    # 「はい。」と言う: the quotation goes on in the sentence around it.
    if quoted and text[end] in "とっ":
        return Verdict.NO
    return Verdict.NO if text[end] in "，、,；;：:" else Verdict.YES


def _judge_unspaced(text: str, match: re.Match[str], end: int) -> Verdict:
    """Judge a Western full stop with no space after it: "3.14", "a.b", or CJK text."""
    following = text[end]
    if ord(following) > 0x2190 and unicodedata.category(following) == "So":
        return Verdict.YES
    if script_of(following) not in {"han", "kana", "hangul"} or "…" in match[0]:
        return Verdict.NO
    if match[0] != ".":
        return Verdict.YES
    return (
        Verdict.YES
        if script_of(text[match.start() - 1]) in {"han", "kana", "hangul"}
        else Verdict.NO
    )


def _judge_next(text: str, end: int, kind: Stop, tables: StopTables, *, final: bool) -> Verdict:
    """Judge by the white space at ``end`` and the word after it."""
    spaces = _SPACE.match(text, end)
    after = spaces.end() if spaces else end
    if "\n" in text[end:after]:
        return Verdict.YES
    openers = _OPENERS.match(text, after)
    word_start = openers.end() if openers else after
    if word_start == len(text):
        return Verdict.YES if final else Verdict.WAIT
    if any(char in "¿¡" for char in text[after:word_start]):
        return Verdict.YES
    first = text[word_start]
    if kind is Stop.BEFORE_NUMBER and first.isdigit():
        return Verdict.NO
    if not first.isalpha():
        return Verdict.YES
    if first.islower():
        return Verdict.NO
    if kind is Stop.ORDINAL:
        return _judge_ordinal(text, word_start, tables, final=final)
    return Verdict.YES


def _judge_ordinal(text: str, word_start: int, tables: StopTables, *, final: bool) -> Verdict:
    word = _WORD.match(text, word_start)
    if word is None:
        return Verdict.YES
    if word.end() == len(text) and not final and len(word[0]) < _MAX_WORD:
        return Verdict.WAIT
    return Verdict.NO if word[0].casefold() in tables.ordinal_before else Verdict.YES


def _cut(text: str, start: int, limit: int) -> int:
    """Return where to cut a sentence without an end: a clause, a comma, a space, or anywhere."""
    earliest = start + int((limit - start) * _SHORTEST_CUT)
    for level, pattern in enumerate(_CUTS):
        floor = start + 1 if level == len(_CUTS) - 1 else earliest
        ends = [match.end() for match in pattern.finditer(text, start, limit + 1)]
        if usable := [end for end in ends if floor <= end <= limit]:
            return usable[-1]
    cut = limit
    while cut > start + 1 and _joined(text, cut):
        cut -= 1
    return cut if cut > start + 1 else limit


def _joined(text: str, index: int) -> bool:
    """Whether the characters on both sides of an index make one sign."""
    before, after = text[index - 1], text[index]
    return unicodedata.category(after)[0] == "M" or "\u200d" in {before, after}


def _block_end(text: str, start: int, *, final: bool) -> int | None:
    """Return the end of a code or thought block, ``start`` if there is none, None: not sure yet."""
    open_end = len(text) if final else None
    if fence := _FENCE.match(text, start):
        if fence[3] is None:
            if fence.end() == len(text):
                return open_end
            return start
        line_end = r"(?=\n|$)" if final else r"(?=\n)"
        close = re.compile(rf"\n[ \t]*{re.escape(fence[1])}[`~]*[ \t]*{line_end}")
        closed = close.search(text, fence.end() - 1)
        return closed.end() if closed else open_end
    if thought := _THOUGHT.match(text, start):
        end_tag = re.compile(rf"</{thought[1]}>", re.IGNORECASE).search(text, thought.end())
        return end_tag.end() if end_tag else open_end
    head = text[start : start + _HEAD_CHARS].lower()
    if not final and any(block.startswith(head) for block in _BLOCK_HEADS):
        return None
    return start


def _in_block(text: str) -> bool:
    return _block_end(text.lstrip(), 0, final=False) != 0
