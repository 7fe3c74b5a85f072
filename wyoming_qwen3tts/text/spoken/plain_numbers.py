"""Numbers that stand alone or before a noun, as they are spoken."""

import re
from functools import cache
from typing import Final

from wyoming_qwen3tts.text.language_data import LanguageData, language_data
from wyoming_qwen3tts.text.spoken.agreement import NEXT_WORD, gender_of_number
from wyoming_qwen3tts.text.spoken.number_words import cardinal, spell_digits, year
from wyoming_qwen3tts.text.spoken.numerals import (
    LETTER,
    NOT_AFTER,
    NOT_BEFORE,
    SPACE,
    Numeral,
    case_before,
    parse_numeral,
    say_number,
    signed_number_pattern,
)

_PREVIOUS_WORD = re.compile(r"(\w+)\W{1,2}$")
_LONGEST_PLAIN: Final = 9
_DOTTED = re.compile(rf"(?<![{LETTER}0-9.])[0-9]+(?:\.[0-9]+){{2,}}(?![{LETTER}0-9]|\.[0-9])")
_HALVES: Final = {"½": "5", "¼": "25", "¾": "75"}
_HALF = re.compile(rf"(?<![{LETTER}0-9.,])([0-9]+)([½¼¾])(?![0-9])")
_VERSION_WORDS: Final = {
    "version",
    "versión",
    "versão",
    "versione",
    "версия",
    "firmware",
    "release",
    "android",
    "ios",
    "python",
    "kapitel",
    "abschnitt",
    "chapitre",
    "capítulo",
    "capitolo",
    "глава",
}
_ORDINAL_STOP = re.compile(rf"\.{SPACE}[{LETTER}]")


def speak_numbers(text: str, data: LanguageData) -> str:
    """Replace numbers that are left by words, unless agreement with a noun is uncertain."""
    text = _HALF.sub(
        lambda match: f"{match[1]}{data.decimal}{_HALVES[match[2]]}",
        text,
    )
    if "dot" in data.words:
        text = _speak_dotted(text, data)
    if data.code == "en":
        text = _speak_english_years(text, data)

    def spoken(match: re.Match[str]) -> str:
        return _say_plain(match, text, data) or match[0]

    return _plain_pattern(data.code).sub(spoken, text)


def _say_plain(match: re.Match[str], text: str, data: LanguageData) -> str | None:
    """Return a plain number as words, or None where it is better left as it is."""
    code = data.code
    numeral = parse_numeral(match[0], data)
    following = text[match.end() : match.end() + 40]
    before = text[max(0, match.start() - 24) : match.start()]
    if len(numeral.digits) > _LONGEST_PLAIN and match[0].isdigit():
        return spell_digits(numeral.digits, code)
    if _is_version(match[0], before, data):
        return _speak_parts(match[0], data)
    if code == "de" and _ORDINAL_STOP.match(following):
        return None
    if code == "de" and _is_german_year(match[0], before, following):
        return year(numeral.value, code)
    case = case_before(text, match.start(), data)
    if case is None:
        return None
    gender = "n"
    if not numeral.fraction:
        agreed = gender_of_number(numeral.value, before, following, data, case)
        if agreed is None:
            return None
        gender = agreed
    words = say_number(numeral, data, gender=gender, case=case)
    # 세 개: Korean counts with a space.
    return f"{words} " if words and gender == "native" and following[:1] != " " else words


@cache
def _plain_pattern(code: str) -> re.Pattern[str]:
    return re.compile(signed_number_pattern(code) + NOT_BEFORE)


def _is_version(number: str, before: str, data: LanguageData) -> bool:
    """Whether a point is no decimal mark: "Version 2.0" where decimals have a comma."""
    word = _PREVIOUS_WORD.search(before)
    if data.decimal != "," or "." not in number or "," in number or word is None:
        return False
    return word[1].lower() in _VERSION_WORDS


def _is_german_year(number: str, before: str, following: str) -> bool:
    if not (len(number) == 4 and number.isdigit() and 1100 <= int(number) < 2000):
        return False
    word = _PREVIOUS_WORD.search(before)
    if word and word[1].lower() in language_data("de").lists["year_after"]:
        return True
    next_word = NEXT_WORD.match(following)
    return int(number) >= 1900 and (next_word is None or next_word[1][0].islower())


def _speak_english_years(text: str, data: LanguageData) -> str:
    def spoken(match: re.Match[str]) -> str:
        value = int(match[1])
        word = _PREVIOUS_WORD.search(text, max(0, match.start() - 16), match.start())
        previous = word[1].lower() if word else ""
        in_time = previous in data.lists["year_after"] or previous in data.month_numbers
        next_word = NEXT_WORD.match(text, match.end())
        counts = next_word is not None and next_word[1].endswith("s") and next_word[1].islower()
        if counts or not (in_time or value >= 1900):
            return match[0]
        return year(value, "en")

    pattern = rf"{NOT_AFTER}(?<![-−–+])(1[1-9][0-9]{{2}}|20[0-9]{{2}})(?![{LETTER}0-9]|[.,:][0-9])"
    return re.sub(pattern, spoken, text)


def _speak_dotted(text: str, data: LanguageData) -> str:
    """Speak versions and addresses of networks: "1.2.3", "192.168.1.10"."""

    def spoken(match: re.Match[str]) -> str:
        parts = match[0].split(".")
        thousands = all(len(part) == 3 for part in parts[1:]) and 0 < len(parts[0]) <= 3
        is_address = len(parts) == 4 and all(int(part) < 256 for part in parts)
        if thousands and parts[0] != "0" and not is_address:
            return cardinal(int("".join(parts)), data.code)
        return _speak_parts(match[0], data)

    return _DOTTED.sub(spoken, text)


def _speak_parts(dotted: str, data: LanguageData) -> str:
    glue = "" if data.code in {"zh", "ja"} else " "
    numbers = [say_number(Numeral("", part), data) or part for part in dotted.split(".")]
    return f"{glue}{data.words['dot']}{glue}".join(numbers)
