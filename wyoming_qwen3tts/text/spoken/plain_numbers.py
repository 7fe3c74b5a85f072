"""Numbers that stand alone or before a noun, as they are spoken."""

import re
from functools import cache
from typing import Final

from wyoming_qwen3tts.text.language_data import LanguageData, language_data
from wyoming_qwen3tts.text.spoken.number_words import spell_digits, year
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

_NEXT_WORD = re.compile(rf"{SPACE}([{LETTER}]+)")
_PREVIOUS_WORD = re.compile(r"(\w+)\W{1,2}$")
_LONGEST_PLAIN: Final = 9
_DOTTED = re.compile(rf"(?<![{LETTER}0-9.])[0-9]+(?:\.[0-9]+){{2,}}(?![{LETTER}0-9]|\.[0-9])")
_HALVES: Final = {"½": "5", "¼": "25", "¾": "75"}
_HALF = re.compile(rf"(?<![{LETTER}0-9.,])([0-9]+)([½¼¾])(?![0-9])")
_RUSSIAN_YEAR = re.compile(rf"{SPACE}гг?\.")
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
        numeral = parse_numeral(match[0], data)
        following = text[match.end() : match.end() + 40]
        before = text[max(0, match.start() - 24) : match.start()]
        if len(numeral.digits) > _LONGEST_PLAIN and match[0].isdigit():
            return spell_digits(numeral.digits, data.code)
        case = case_before(text, match.start(), data)
        if case is None:
            return match[0]
        if data.code == "de" and _ORDINAL_STOP.match(following):
            return match[0]
        if data.code == "de" and _is_german_year(match[0], before, following):
            return year(numeral.value, "de")
        gender = "n" if numeral.fraction else _gender(numeral.value, before, following, data, case)
        if gender is None:
            return match[0]
        words = say_number(numeral, data, gender=gender, case=case) or match[0]
        # 세 개: Korean counts with a space.
        return f"{words} " if gender == "native" and following[:1] != " " else words

    return _plain_pattern(data.code).sub(spoken, text)


@cache
def _plain_pattern(code: str) -> re.Pattern[str]:
    return re.compile(signed_number_pattern(code) + NOT_BEFORE)


def _gender(value: int, before: str, following: str, data: LanguageData, case: str) -> str | None:
    """Return the gender that a number must agree with; None: it must, but we cannot tell which."""
    code = data.code
    if code in {"zh", "ko"}:
        return _counted(value, before, following, data)
    next_word = _NEXT_WORD.match(following)
    if next_word is None or code in {"en", "ja"}:
        return "n"
    word = next_word[1].lower()
    if code == "de":
        return None if value == 1 else "n"
    ends_in_one = value % 10 == 1 and value % 100 != 11
    if code == "it":
        return "n" if value != 1 else None if word[0] in "aeiou" else _noun_gender(word, data)
    if code == "fr":
        agrees = ends_in_one and value % 100 not in {71, 91} and (value == 1 or word[-1] in "sx")
        return _noun_gender(word, data) if agrees else "n"
    if code == "ru":
        if _RUSSIAN_YEAR.match(following):
            return None
        return _noun_gender(word, data) or _russian_gender(value, word, case)
    inflects = ends_in_one or value // 100 % 10 > 1 or value // 100_000 % 10 > 1
    if code == "pt":
        inflects = inflects or (value % 10 == 2 and value % 100 != 12)
    if not inflects or (value != 1 and word[-1] != "s"):
        return "n"
    return _noun_gender(word, data)


def _noun_gender(word: str, data: LanguageData) -> str | None:
    if word in data.lists["masculine_words"]:
        return "m"
    if word in data.lists["feminine_words"]:
        return "f"
    if word.endswith(data.lists["masculine_endings"]):
        return "m"
    return "f" if word.endswith(data.lists["feminine_endings"]) and len(word) > 3 else None


def _russian_gender(value: int, word: str, case: str) -> str | None:
    last = value % 10
    if value % 100 in {11, 12} or last not in {1, 2} or not re.match("[а-яё]", word):
        return "n"
    if case == "g" and last == 2:
        return "n"
    if case == "n" and last == 2:
        # два стола, два окна; две минуты
        return {"а": "m", "я": "m", "ы": "f", "и": "f"}.get(word[-1])
    if case == "n" and word[-1] not in "аяоеёиыуюэйь":
        return "m"
    return "f" if case == "n" and word[-1] in "ая" and len(word) > 3 else None


def _counted(value: int, before: str, following: str, data: LanguageData) -> str:
    follows = following.lstrip(" ")
    if data.code == "zh":
        counted = value == 2 and follows.startswith(data.lists["two_before"])
        return "m" if counted and not before.endswith(("第", "月", "初")) else "n"
    if follows.startswith(data.lists["sino_before"]) or before.endswith("제"):
        return "n"
    limit = 12 if re.match("시(?!간)", follows) else 99
    return "native" if follows.startswith(data.lists["native_before"]) and value <= limit else "n"


def _is_german_year(number: str, before: str, following: str) -> bool:
    if not (len(number) == 4 and number.isdigit() and 1100 <= int(number) < 2000):
        return False
    word = _PREVIOUS_WORD.search(before)
    if word and word[1].lower() in language_data("de").lists["year_after"]:
        return True
    next_word = _NEXT_WORD.match(following)
    return int(number) >= 1900 and (next_word is None or next_word[1][0].islower())


def _speak_english_years(text: str, data: LanguageData) -> str:
    def spoken(match: re.Match[str]) -> str:
        value = int(match[1])
        word = _PREVIOUS_WORD.search(text, max(0, match.start() - 16), match.start())
        previous = word[1].lower() if word else ""
        in_time = previous in data.lists["year_after"] or previous in data.month_numbers
        next_word = _NEXT_WORD.match(text, match.end())
        counts = next_word is not None and next_word[1].endswith("s") and next_word[1].islower()
        if counts or not (in_time or value >= 1900):
            return match[0]
        return year(value, "en")

    pattern = rf"{NOT_AFTER}(?<![-−–+])(1[1-9][0-9]{{2}}|20[0-9]{{2}})(?![{LETTER}0-9]|[.,:][0-9])"
    return re.sub(pattern, spoken, text)


def _speak_dotted(text: str, data: LanguageData) -> str:
    """Speak versions and addresses of networks: "1.2.3", "192.168.1.10"."""
    glue = "" if data.code in {"zh", "ja"} else " "
    dot = f"{glue}{data.words['dot']}{glue}"

    def spoken(match: re.Match[str]) -> str:
        parts = match[0].split(".")
        thousands = "." in data.grouping and all(len(part) == 3 for part in parts[1:])
        if thousands and len(parts[0]) <= 3 and parts[0] != "0":
            return match[0]
        numbers = [say_number(Numeral("", part), data) or part for part in parts]
        return dot.join(numbers)

    return _DOTTED.sub(spoken, text)
