"""Ordinals as they are spoken, where their form is certain."""

import re
from collections.abc import Callable
from typing import Final

from wyoming_qwen3tts.text.language_data import LanguageData, language_data
from wyoming_qwen3tts.text.spoken.number_words import cardinal, ordinal, year
from wyoming_qwen3tts.text.spoken.numerals import LETTER, NOT_AFTER, SPACE

_NEXT_WORD = re.compile(rf"{SPACE}([{LETTER}]+)")
# "am 1. und 2. Mai": both are declined alike.
_GERMAN_LISTED = re.compile(r"[0-9]{1,3}\.,? (?:und|oder|bis) $")
_GERMAN_DECADE = re.compile(rf"{NOT_AFTER}(1[0-9]{{2}}0|[1-9]0)er(?![{LETTER}0-9])")
_GERMAN_ORDINAL = re.compile(rf"{NOT_AFTER}([0-9]{{1,3}})\.(?={SPACE}[{LETTER}])")
_ENGLISH_ORDINAL = re.compile(rf"{NOT_AFTER}([0-9]{{1,4}})(?:st|nd|rd|th)\b")
_FRENCH_ORDINAL = re.compile(rf"{NOT_AFTER}([0-9]{{1,4}})(er|re|ère|nde?|e|ème|eme)(?![{LETTER}])")
_ROMANCE_ORDINAL = re.compile(
    rf"{NOT_AFTER}([0-9]{{1,3}})\.?(º|ª|er|ra|ro|da|do|ta|to)(?![{LETTER}])"
)
_RUSSIAN_ORDINAL = re.compile(rf"{NOT_AFTER}([0-9]{{1,4}})-(й|я|е|го|му|м|ю)(?![{LETTER}])")
_KOREAN_ORDINAL = re.compile(r"(?<![0-9.,])([0-9]{1,2}) ?번째")


def speak_ordinals(text: str, data: LanguageData) -> str:
    """Replace ordinals by words where their form is certain."""
    speaker = _ORDINALS.get(data.code)
    return speaker(text, data) if speaker else text


def german_ordinal(value: int, before: str) -> str | None:
    """Return a German ordinal, declined as the words before it ask, or None if they do not tell."""
    if listed := _GERMAN_LISTED.search(before):
        return german_ordinal(value, before[: listed.start()])
    words = re.findall(r"\w+", before[-40:].lower())
    if not words or not before[-1:].isspace():
        return None
    last = words[-1]
    lists = language_data("de").lists
    stem = ordinal(value, "de")
    if last == "der":
        dative = len(words) > 1 and words[-2] in lists["dative_prepositions"]
        return f"{stem}n" if dative else stem
    if last in lists["ordinal_e_after"]:
        return stem
    return f"{stem}n" if last in lists["ordinal_en_after"] else None


def _english_ordinals(text: str, _data: LanguageData) -> str:
    return _ENGLISH_ORDINAL.sub(lambda match: ordinal(int(match[1]), "en"), text)


def _german_ordinals(text: str, _data: LanguageData) -> str:
    def spoken(match: re.Match[str]) -> str:
        return german_ordinal(int(match[1]), text[: match.start()]) or match[0]

    text = _GERMAN_DECADE.sub(lambda match: f"{year(int(match[1]), 'de')}er", text)
    return _GERMAN_ORDINAL.sub(spoken, text)


def _french_ordinals(text: str, data: LanguageData) -> str:
    def spoken(match: re.Match[str]) -> str:
        value, ending = int(match[1]), match[2]
        if ending.startswith("nd"):
            return "seconde" if ending == "nde" else "second"
        if (ending in {"er", "re", "ère"}) != (value == 1):
            return match[0]
        return ordinal(value, data.code, gender="m" if ending == "er" else "f")

    return _FRENCH_ORDINAL.sub(spoken, text)


def _romance_ordinals(text: str, data: LanguageData) -> str:
    if nouns := data.lists["ordinal_before"]:
        # "al 2° piano" is no temperature.
        text = re.sub(rf"(?<=[0-9])°(?= (?:{'|'.join(nouns)})(?![{LETTER}]))", "º", text)

    def spoken(match: re.Match[str]) -> str:
        value, ending = int(match[1]), match[2]
        if ending not in "ºª" and data.code != "es":
            return match[0]
        words = ordinal(value, data.code, gender="f" if ending in {"ª", "ra", "da", "ta"} else "m")
        # "primer piso", "tercer piso": the short form before a noun.
        shortened = ending == "er" or (ending == "º" and _NEXT_WORD.match(text, match.end()))
        if data.code == "es" and shortened:
            return re.sub(r"\b(primer|tercer)o$", r"\1", words)
        return words

    return _ROMANCE_ORDINAL.sub(spoken, text)


_RUSSIAN_ENDINGS: Final = {
    "й": ("m", "n"),
    "я": ("f", "n"),
    "е": ("n", "n"),
    "го": ("m", "g"),
    "му": ("m", "d"),
    "м": ("m", "p"),
    "ю": ("f", "a"),
}


def _russian_ordinals(text: str, data: LanguageData) -> str:
    def spoken(match: re.Match[str]) -> str:
        gender, case = _RUSSIAN_ENDINGS[match[2]]
        return ordinal(int(match[1]), data.code, gender=gender, case=case)

    return _RUSSIAN_ORDINAL.sub(spoken, text)


def _korean_ordinals(text: str, data: LanguageData) -> str:
    def spoken(match: re.Match[str]) -> str:
        value = int(match[1])
        words = "첫" if value == 1 else cardinal(value, data.code, gender="native")
        return f"{words} 번째"

    return _KOREAN_ORDINAL.sub(spoken, text)


_ORDINALS: Final[dict[str, Callable[[str, LanguageData], str]]] = {
    "en": _english_ordinals,
    "de": _german_ordinals,
    "fr": _french_ordinals,
    "es": _romance_ordinals,
    "pt": _romance_ordinals,
    "it": _romance_ordinals,
    "ru": _russian_ordinals,
    "ko": _korean_ordinals,
}
