"""Which form of a number a noun asks for: gender, Korean and Chinese counting."""

import re
from collections.abc import Callable
from typing import Final

from wyoming_qwen3tts.text.language_data import LanguageData
from wyoming_qwen3tts.text.spoken.numerals import LETTER, SPACE

NEXT_WORD = re.compile(rf"{SPACE}([{LETTER}]+)")
_RUSSIAN_YEAR = re.compile(rf"{SPACE}гг?\.")


def gender_of_number(
    value: int, before: str, following: str, data: LanguageData, case: str
) -> str | None:
    """Return the gender that a number must agree with; None: it must, but we cannot tell which.

    Args:
        value: The number.
        before: Text before it.
        following: Text after it.
        data: Tables of the language.
        case: Russian only: "n" nominative, "g" genitive.
    """
    if data.code in {"zh", "ko"}:
        return _counted(value, before, following, data)
    next_word = NEXT_WORD.match(following)
    agree = _AGREEMENTS.get(data.code)
    if next_word is None or agree is None:
        return "n"
    word = next_word[1].lower()
    if word in data.lists["not_nouns"]:
        return "n"
    if data.code == "ru" and _RUSSIAN_YEAR.match(following):
        return None
    return agree(value, word, data, case)


def _agree_german(value: int, _word: str, _data: LanguageData, _case: str) -> str | None:
    return None if value == 1 else "n"


def _agree_italian(value: int, word: str, data: LanguageData, _case: str) -> str | None:
    if value != 1:
        return "n"
    return None if word[0] in "aeiou" else _noun_gender(word, data)


def _agree_french(value: int, word: str, data: LanguageData, _case: str) -> str | None:
    agrees = _ends_in_one(value) and value % 100 not in {71, 91}
    return _noun_gender(word, data) if agrees and (value == 1 or word[-1] in "sx") else "n"


def _agree_iberian(value: int, word: str, data: LanguageData, _case: str) -> str | None:
    inflects = _ends_in_one(value) or value // 100 % 10 > 1 or value // 100_000 % 10 > 1
    if data.code == "pt":
        inflects = inflects or (value % 10 == 2 and value % 100 != 12)
    return _noun_gender(word, data) if inflects and (value == 1 or word[-1] == "s") else "n"


def _agree_russian(value: int, word: str, data: LanguageData, case: str) -> str | None:
    return _noun_gender(word, data) or _russian_gender(value, word, case)


def _ends_in_one(value: int) -> bool:
    return value % 10 == 1 and value % 100 != 11


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


_AGREEMENTS: Final[dict[str, Callable[[int, str, LanguageData, str], str | None]]] = {
    "de": _agree_german,
    "it": _agree_italian,
    "fr": _agree_french,
    "es": _agree_iberian,
    "pt": _agree_iberian,
    "ru": _agree_russian,
}
