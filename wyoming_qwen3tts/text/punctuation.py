"""Characters, white space and punctuation of text that is to be spoken."""

import re
import unicodedata
from typing import Final

from wyoming_qwen3tts.text.scripts import script_of

# One sign for several letters, as units are written in East Asian text.
_COMPATIBLE: Final = {
    "℃": "°C",
    "℉": "°F",
    "㎡": "m²",
    "㎥": "m³",
    "㎏": "kg",
    "㎎": "mg",
    "㎞": "km",
    "㎝": "cm",
    "㎜": "mm",
    "％": "%",
    "＋": "+",
    "－": "-",
    "‼": "!!",
    "⁇": "??",
    "⁈": "?!",
    "⁉": "!?",
    "\u3000": " ",
}
_FULL_WIDTH = {
    full: chr(full - 0xFEE0)
    for first, last in ((0xFF10, 0xFF19), (0xFF21, 0xFF3A), (0xFF41, 0xFF5A))
    for full in range(first, last + 1)
}
_SUBSCRIPTS = {0x2080 + digit: str(digit) for digit in range(10)}
_TRANSLATION: Final = (
    _FULL_WIDTH | _SUBSCRIPTS | {ord(sign): text for sign, text in _COMPATIBLE.items()}
)
_FULL_WIDTH_MARK = re.compile(r"(?<=[0-9])[．：](?=[0-9])")
_DROPPED_CATEGORIES: Final = frozenset({"Cc", "Cf", "Co", "Cs", "Cn"})

_MARKS = re.compile(r"[!?]{2,}|[！？]{2,}")
_REPEATED = re.compile(r"(\.{3})\.+|(…)…+|([。、，,;；:：·])(?:\s*\3)+|([-–—])[-–—]+")
_EMPTY = re.compile(r"[(（【]\s*[)）】]|\[\s*\]|[\"“„«「『]\s*[\"”“»」』](?=\s|$)")
_LEADING = re.compile(r"^[\s,;:.…·、，。；：|]+(?=[^\s0-9])")
_SPACE_BEFORE = re.compile(r"\s+([,.;](?=\s|$)|[，。、；！？])")
_SPACE_AFTER = re.compile(r"(?<=[。，、！？；：])[ \t]+(?=\S)")
_PAUSE_BEFORE_END = re.compile(r"[,;:、，](?=\s*[.!?。！？])")
_PIPES = re.compile(r"[ \t]*\|[ \t]*")
_CLOSERS: Final = "\"'”’»)]}」』）】》*_`"
_CJK_SCRIPTS: Final = frozenset({"han", "kana", "bopomofo"})


def clean_characters(text: str) -> str:
    """Leave out control and invisible characters, and write compatible signs in the plain way."""
    text = unicodedata.normalize("NFC", text.translate(_TRANSLATION).replace("\r", "\n"))
    text = _FULL_WIDTH_MARK.sub(lambda match: "." if match[0] == "．" else ":", text)
    return "".join(
        char
        for char in text
        if char in "\n\t\u200d" or unicodedata.category(char) not in _DROPPED_CATEGORIES
    ).replace("\ufffd", "")


def tidy_punctuation(text: str) -> str:
    """Reduce repeated marks and leave out those that have lost their words."""
    text = _MARKS.sub(lambda match: "".join(dict.fromkeys(match[0])), text)
    text = _REPEATED.sub(_reduced, _EMPTY.sub("", text))
    text = _PIPES.sub(", ", text)
    text = _SPACE_AFTER.sub("", _SPACE_BEFORE.sub(r"\1", text))
    return _LEADING.sub("", _PAUSE_BEFORE_END.sub("", text))


def _reduced(match: re.Match[str]) -> str:
    if dash := match[4]:
        return " – " if dash == "-" else dash
    return match[1] or match[2] or match[3]


def close_line(line: str) -> str:
    """Put a full stop after text that ends in a word without one."""
    line = line.rstrip()
    bare = line.rstrip(_CLOSERS)
    if not bare or not (bare[-1].isalnum() or bare[-1] in "%°€$£¥²³"):
        return line
    return line + ("。" if script_of(bare[-1]) in _CJK_SCRIPTS else ".")


def join_lines(text: str, *, close: bool) -> str:
    """Make one line of several; lines that are sentences of their own get their full stop."""
    lines = [" ".join(line.split()) for line in text.split("\n")]
    lines = [line for line in lines if line]
    joined = ""
    for line in lines:
        if not joined:
            joined = line
            continue
        if close and not line[0].islower():
            joined = close_line(joined)
        spaced = joined[-1] not in "。，、！？；：" and script_of(line[0]) not in _CJK_SCRIPTS
        joined += f" {line}" if spaced or line[0].isascii() else line
    return close_line(joined) if close else joined
