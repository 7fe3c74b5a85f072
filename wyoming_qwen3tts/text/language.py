"""Names of languages, and which language and writing system a text is in."""

import logging
import math
import re
import unicodedata
from collections import Counter
from collections.abc import Collection
from functools import cache, lru_cache
from typing import Any, Final

from wyoming_qwen3tts.errors import RequestError
from wyoming_qwen3tts.text.rules import LANGUAGES, read_table

_LOGGER = logging.getLogger(__name__)

_NAMES: Final[dict[str, list[str]]] = read_table("languages.yaml")
_CODES: Final = {name: code for code, names in _NAMES.items() for name in (code, *names)}
_LATIN: Final = ("en", "de", "fr", "pt", "es", "it")
_WORD = re.compile(r"[^\W\d_]+")
_TEXT_ONLY = re.compile(r"https?://\S+|\S+@\S+|[\d_*`#|<>\[\]{}]+")
_SUPPORTED_SCRIPTS: Final = frozenset({"latin", "cyrillic", "han", "kana", "bopomofo", "hangul"})
_OTHER_SCRIPTS: Final = frozenset(
    ["greek", "armenian", "hebrew", "arabic", "syriac", "thaana", "devanagari", "bengali",
     "gurmukhi", "gujarati", "oriya", "tamil", "telugu", "kannada", "malayalam", "sinhala", "thai",
     "lao", "tibetan", "myanmar", "georgian", "ethiopic", "cherokee", "khmer", "mongolian"]
)  # fmt: skip
_SCRIPT_NAMES: Final = {"cjk": "han", "ideographic": "han", "hiragana": "kana", "katakana": "kana"}
_GREEK_RUN = re.compile(r"[\u0370-\u03ff\u1f00-\u1fff]{2,}")
# Logarithms of how much likelier a language becomes by a word and by a letter that it has.
_WORD_WEIGHT: Final = 3.0
_LETTER_WEIGHT: Final = 2.0
_MIN_SHARE: Final = 1e-4  # n-grams are too sure of short texts
_MIN_LEAD: Final = 1.0


def language_code(name: str | None) -> str | None:
    """Return the plain code for any form of a language, or None if it is none of the ten.

    "de", "DE", "de-DE", "de_DE", "deu", "German" and "Deutsch" are all "de".
    """
    if name is None:
        return None
    folded = name.strip().casefold()
    return _CODES.get(folded) or _CODES.get(re.split(r"[-_. ]", folded)[0])


def known_language(name: str) -> str:
    """Return the plain code for any form of a language; a RequestError if it is none of ten."""
    code = language_code(name)
    if code is None:
        raise RequestError(f"Unknown language {name!r}; use one of {', '.join(LANGUAGES)}.")
    return code


def model_language(name: str) -> str:
    """Return the checkpoint's spelling of a language, "german" for any form of it."""
    return _NAMES[known_language(name)][0]


def detect_language(text: str, candidates: Collection[str] = LANGUAGES) -> str | None:
    """Return the language of a text, one of the candidates, or None when it is not sure.

    The script decides for Chinese, Japanese, Korean and Russian; only text in Latin letters that
    more than one candidate is written in needs the language model, which is loaded then.

    Args:
        text: A sentence or more; the more the surer.
        candidates: Plain codes of the languages in use.
    """
    text = _TEXT_ONLY.sub(" ", text)
    named = [code for code in _possible_languages(text) if code in candidates]
    if len(named) < 2:
        return named[0] if named else None
    return _classify(text, named)


def _possible_languages(text: str) -> tuple[str, ...]:
    """Languages that a text may be in, by the script of most of its words."""
    counts = Counter(script_of(word[0]) for word in _WORD.findall(text))
    latin, cyrillic = counts["latin"], counts["cyrillic"]
    # One sign of these scripts says about as much as a word in letters.
    counts = Counter(map(script_of, text))
    han, kana, hangul = counts["han"], counts["kana"], counts["hangul"]
    most = max(han + kana + hangul, latin, cyrillic)
    if most == 0:
        return ()
    if most == han + kana + hangul:
        if hangul >= max(han, kana):
            return ("ko",)
        return ("ja",) if kana else ("zh", "ja")
    # Names of devices and products are often in Latin letters.
    return ("ru",) if most == cyrillic else _LATIN


def _classify(text: str, named: list[str]) -> str | None:
    """Return the likeliest of some languages in Latin letters, by its words and by n-grams."""
    known, letters = _words()
    words = [known[word] for word in _WORD.findall(text.casefold()) if word in known]
    signs = [letters[sign] for sign in set(text.casefold()) if sign in letters]
    scores = {
        code: _WORD_WEIGHT * sum(code in each for each in words)
        + _LETTER_WEIGHT * sum(code in each for each in signs)
        for code in named
    }
    if (identifier := _identifier()) is not None:
        for code, share in identifier.rank(" ".join(text.split())):
            if code in scores:
                scores[code] += math.log(max(share, _MIN_SHARE))
    best, second = sorted(named, key=lambda code: -scores[code])[:2]
    return best if scores[best] - scores[second] >= _MIN_LEAD else None


@cache
def _words() -> tuple[dict[str, set[str]], dict[str, set[str]]]:
    """Return known words and telling letters, each with the languages that have it."""
    table = read_table("words.yaml")
    letters: dict[str, set[str]] = {}
    for code, signs in table.pop("letters").items():
        for sign in signs:
            letters.setdefault(sign, set()).add(code)
    words: dict[str, set[str]] = {}
    for code, listed in table.items():
        for word in listed.split():
            words.setdefault(word, set()).add(code)
    return words, letters


@cache
def _identifier() -> Any:
    # Imported on first use: 80 MB while all of its languages are in memory, 57 MB with ours only.
    import numpy as np
    from py3langid.langid import MODEL_FILE, LanguageIdentifier

    try:
        everything = LanguageIdentifier.from_model_file(MODEL_FILE)
    except OSError as error:  # the package unpacks its model in the temporary directory
        _LOGGER.warning("Languages written in Latin letters are not detected: %s", error)
        return None
    everything.set_languages([*_LATIN, "zh", "ja"])
    return LanguageIdentifier(
        np.ascontiguousarray(everything.nb_ptc),
        everything.nb_pc,
        everything.nb_classes,
        everything.tk_nextmove,
        everything.tk_output,
        norm_probs=True,
        tk_row=everything.tk_row,
    )


@lru_cache(maxsize=8_192)
def script_of(char: str) -> str | None:
    """Return the script of a letter; None for signs, mathematical letters and rare scripts."""
    if not char.isalpha():
        return None
    words = unicodedata.name(char, "").lower().replace("-", " ").split()
    name = next((word for word in words if word not in {"fullwidth", "halfwidth"}), "")
    script = _SCRIPT_NAMES.get(name, name)
    return script if script in _SUPPORTED_SCRIPTS | _OTHER_SCRIPTS else None


def unsupported_scripts(text: str) -> set[str]:
    """Return the scripts in the text that none of the ten languages is written in.

    A lone Greek letter is a sign (µ, π, Ω), not Greek text.
    """
    found = {script for char in text if (script := script_of(char)) in _OTHER_SCRIPTS}
    return found if _GREEK_RUN.search(text) else found - {"greek"}


def has_words(text: str) -> bool:
    """Return whether the text has any letter or digit, of whatever script."""
    return any(char.isalnum() for char in text)
