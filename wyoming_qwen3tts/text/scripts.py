"""Which writing system a letter belongs to."""

import re
import unicodedata
from functools import lru_cache
from typing import Final

SUPPORTED_SCRIPTS: Final = frozenset({"latin", "cyrillic", "han", "kana", "bopomofo", "hangul"})
_OTHER_SCRIPTS: Final = frozenset(
    ["greek", "armenian", "hebrew", "arabic", "syriac", "thaana", "devanagari", "bengali",
     "gurmukhi", "gujarati", "oriya", "tamil", "telugu", "kannada", "malayalam", "sinhala", "thai",
     "lao", "tibetan", "myanmar", "georgian", "ethiopic", "cherokee", "khmer", "mongolian"]
)  # fmt: skip
_NAMES: Final = {"cjk": "han", "ideographic": "han", "hiragana": "kana", "katakana": "kana"}
_GREEK_RUN = re.compile(r"[\u0370-\u03ff\u1f00-\u1fff]{2,}")


@lru_cache(maxsize=8_192)
def script_of(char: str) -> str | None:
    """Return the script of a letter; None for signs, mathematical letters and rare scripts."""
    if not char.isalpha():
        return None
    words = unicodedata.name(char, "").lower().replace("-", " ").split()
    name = next((word for word in words if word not in {"fullwidth", "halfwidth"}), "")
    script = _NAMES.get(name, name)
    return script if script in SUPPORTED_SCRIPTS | _OTHER_SCRIPTS else None


def unsupported_scripts(text: str) -> set[str]:
    """Return the scripts in the text that none of the ten languages is written in.

    A lone Greek letter is a sign (µ, π, Ω), not Greek text.
    """
    found = {script for char in text if (script := script_of(char)) is not None}
    found -= SUPPORTED_SCRIPTS
    if "greek" in found and not _GREEK_RUN.search(text):
        found.discard("greek")
    return found


def has_words(text: str) -> bool:
    """Return whether the text has any letter or digit, of whatever script."""
    return any(char.isalnum() for char in text)
