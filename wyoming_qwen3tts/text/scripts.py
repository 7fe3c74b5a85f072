"""Which writing system a letter belongs to."""

import re
from bisect import bisect_right

# First code point, last code point, script. Letters outside every range count as "other" and are
# neither supported nor reported: mathematical letters, phonetic signs, rare scripts.
_RANGES: tuple[tuple[int, int, str], ...] = (
    (0x0041, 0x024F, "latin"),
    (0x0370, 0x03FF, "greek"),
    (0x0400, 0x052F, "cyrillic"),
    (0x0530, 0x058F, "armenian"),
    (0x0590, 0x05FF, "hebrew"),
    (0x0600, 0x06FF, "arabic"),
    (0x0700, 0x074F, "syriac"),
    (0x0750, 0x077F, "arabic"),
    (0x0780, 0x07BF, "thaana"),
    (0x0900, 0x097F, "devanagari"),
    (0x0980, 0x09FF, "bengali"),
    (0x0A00, 0x0A7F, "gurmukhi"),
    (0x0A80, 0x0AFF, "gujarati"),
    (0x0B00, 0x0B7F, "oriya"),
    (0x0B80, 0x0BFF, "tamil"),
    (0x0C00, 0x0C7F, "telugu"),
    (0x0C80, 0x0CFF, "kannada"),
    (0x0D00, 0x0D7F, "malayalam"),
    (0x0D80, 0x0DFF, "sinhala"),
    (0x0E00, 0x0E7F, "thai"),
    (0x0E80, 0x0EFF, "lao"),
    (0x0F00, 0x0FFF, "tibetan"),
    (0x1000, 0x109F, "burmese"),
    (0x10A0, 0x10FF, "georgian"),
    (0x1100, 0x11FF, "hangul"),
    (0x1200, 0x139F, "ethiopic"),
    (0x13A0, 0x13FF, "cherokee"),
    (0x1780, 0x17FF, "khmer"),
    (0x1800, 0x18AF, "mongolian"),
    (0x1E00, 0x1EFF, "latin"),
    (0x1F00, 0x1FFF, "greek"),
    (0x3005, 0x3007, "han"),
    (0x3040, 0x30FF, "kana"),
    (0x3100, 0x312F, "bopomofo"),
    (0x3130, 0x318F, "hangul"),
    (0x31F0, 0x31FF, "kana"),
    (0x3400, 0x4DBF, "han"),
    (0x4E00, 0x9FFF, "han"),
    (0xA960, 0xA97F, "hangul"),
    (0xAC00, 0xD7FF, "hangul"),
    (0xF900, 0xFAFF, "han"),
    (0xFB1D, 0xFB4F, "hebrew"),
    (0xFB50, 0xFDFF, "arabic"),
    (0xFE70, 0xFEFC, "arabic"),
    (0xFF21, 0xFF5A, "latin"),
    (0xFF66, 0xFF9F, "kana"),
    (0x20000, 0x323AF, "han"),
)
_STARTS = [first for first, _, _ in _RANGES]
SUPPORTED_SCRIPTS = frozenset({"latin", "cyrillic", "han", "kana", "bopomofo", "hangul"})
_GREEK_RUN = re.compile(r"[\u0370-\u03ff\u1f00-\u1fff]{2,}")


def script_of(char: str) -> str | None:
    """Return the script of a letter; None for what is no letter of a known script."""
    if not char.isalpha():
        return None
    code_point = ord(char)
    row = bisect_right(_STARTS, code_point) - 1
    if row < 0 or code_point > _RANGES[row][1]:
        return None
    return _RANGES[row][2]


def unsupported_scripts(text: str) -> set[str]:
    """Return the scripts in the text that none of the ten languages is written in.

    A lone Greek letter is a sign (µ, π, Ω), not Greek text.
    """
    found = {script for char in text if (script := script_of(char)) is not None}
    found -= SUPPORTED_SCRIPTS
    if "greek" in found and not _GREEK_RUN.search(text):
        found.discard("greek")
    return found


def speakable(text: str) -> bool:
    """Return whether the text has any letter or digit, of whatever script."""
    return any(char.isalnum() for char in text)
