"""Numbers as words in the ten languages.

``num2words`` carries nine of them; what it lacks (Chinese, native Korean numerals, agreement with
the noun that follows, how fractions are read) is here. Portuguese is Brazil's, the plain code's
default in CLDR.
"""

import re
from collections.abc import Callable
from typing import Any, Final

from num2words import num2words

LONGEST_NUMBER: Final = 15
"""Integers with more digits are spoken digit by digit."""

_LIBRARY_CODES: Final = {"pt": "pt_BR"}
_UNSPACED: Final = frozenset({"zh", "ja"})
_CHINESE_DIGITS: Final = "零一二三四五六七八九"
_KOREAN_ONES: Final = ("", "한", "두", "세", "네", "다섯", "여섯", "일곱", "여덟", "아홉")
_KOREAN_TENS: Final = ("", "열", "스물", "서른", "마흔", "쉰", "예순", "일흔", "여든", "아흔")
_KOREAN_DIGITS: Final = "영일이삼사오육칠팔구"
_RUSSIAN_PARTS: Final = {1: "десят", 2: "сот", 3: "тысячн"}


def cardinal(value: int, code: str, *, gender: str = "n", case: str = "n") -> str:
    """Return a whole number of zero or more as words.

    Args:
        value: The number.
        code: Plain code of the language.
        gender: Of the noun that follows: "m", "f"; "n": none follows, or it does not matter;
            "native": Korean native numerals.
        case: Russian only: "n" nominative, "g" genitive.
    """
    if len(str(value)) > LONGEST_NUMBER:
        return spell_digits(str(value), code)
    if code == "zh":
        return _chinese(value, measured=gender == "m")
    if code == "ko" and gender == "native" and 0 < value < 100:
        return _korean_native(value)
    if code == "ru":
        grammar = {"case": case, "gender": "m" if gender == "n" else gender}
        # "одна тысяча" is a bank's way to say it.
        return re.sub(r"^(одна|одной) (?=тысяч)", "", _words(value, code, **grammar))
    words = _words(value, code).replace(",", "")
    if code == "es":
        words = re.sub(r"veintiuno (?=mil\b)", "veintiún ", words)
        words = re.sub(r"\buno (?=mil\b)", "un ", words)
    agree = _AGREEMENTS.get(code)
    return agree(words, value, gender) if agree else words


def decimal(whole: int, fraction: str, code: str, point: str, *, case: str = "n") -> str | None:
    """Return a number with decimals as words, or None where the language has no plain way.

    Args:
        whole: The part before the decimal mark.
        fraction: The digits after it.
        code: Plain code of the language.
        point: The word for the decimal mark.
        case: Russian only.
    """
    if code == "ru":
        return _russian_decimal(whole, fraction, case)
    head = cardinal(whole, code)
    if code in {"fr", "es", "it", "pt"} and len(fraction) <= 3:
        tail = _fraction_as_number(fraction, code)
    else:
        tail = spell_digits(fraction, code)
    if code == "ko":
        tail = "".join(_KOREAN_DIGITS[int(digit)] for digit in fraction)
    return f"{head}{point}{tail}" if code in _UNSPACED else f"{head} {point} {tail}"


def spell_digits(digits: str, code: str) -> str:
    """Return digits one by one, as in a telephone number."""
    if code == "zh":
        return "".join(_CHINESE_DIGITS[int(digit)] for digit in digits)
    if code == "ko":
        return "".join(_KOREAN_DIGITS[int(digit)] for digit in digits).replace("영", "공")
    glue = "" if code == "ja" else " "
    return glue.join(_words(int(digit), code) for digit in digits).replace("零", "ゼロ")


def year(value: int, code: str) -> str:
    """Return a year of our time as words."""
    if code == "zh":
        return spell_digits(str(value), code)
    if code == "en" or (code == "de" and 1100 <= value < 2000):
        return _words(value, code, to="year").replace(",", "")
    return cardinal(value, code)


def ordinal(value: int, code: str, *, gender: str = "m", case: str = "n") -> str:
    """Return an ordinal as words; for German without its last letter of declension.

    Args:
        value: The number, from one.
        code: en, de, fr, es, it, pt or ru.
        gender: "m", "f", and in Russian "n" for neuter.
        case: Russian only, as in num2words: n g d a i p.
    """
    if code == "ru":
        return _words(value, code, to="ordinal", case=case, gender=gender)
    words = _words(value, code, to="ordinal").replace(",", "")
    if gender == "f" and code == "fr":
        return "première" if value == 1 else words
    if gender == "f" and code in {"es", "it", "pt"}:
        # "décimo sexto" -> "décima sexta"
        return re.sub(r"o\b", "a", words)
    return words


def form_index(value: int, fraction: str, code: str, num_forms: int, *, case: str = "n") -> int:
    """Return which form of a noun stands after a number, as an index into its forms."""
    if num_forms == 1:
        return 0
    if code == "ru":
        return _russian_form(value, fraction, case)
    if code in {"fr", "pt"}:
        return 0 if value < 2 else 1
    return 0 if value == 1 and not fraction else 1


def _words(value: int, code: str, **options: Any) -> str:
    return str(num2words(value, lang=_LIBRARY_CODES.get(code, code), **options))


def _chinese(value: int, *, measured: bool) -> str:
    if value == 2 and measured:
        return "两"
    if value == 0:
        return "零"
    groups: list[str] = []
    zero_pending = False
    for power, unit in ((12, "万亿"), (8, "亿"), (4, "万"), (0, "")):
        group = value // 10**power % 10_000
        if group == 0:
            zero_pending = zero_pending or bool(groups)
            continue
        if groups and (zero_pending or group < 1000):
            groups.append("零")
        groups.append(_chinese_group(group, after_unit=bool(unit)) + unit)
        zero_pending = False
    words = "".join(groups)
    return words.removeprefix("一") if words.startswith("一十") else words


def _chinese_group(group: int, *, after_unit: bool) -> str:
    if group == 2 and after_unit:
        return "两"
    words = ""
    for power, unit in ((3, "千"), (2, "百"), (1, "十"), (0, "")):
        digit = group // 10**power % 10
        if digit:
            words += "两" if digit == 2 and unit == "千" else _CHINESE_DIGITS[digit]
            words += unit
        elif words and group % 10**power and not words.endswith("零"):
            words += "零"
    return words


def _korean_native(value: int) -> str:
    if value == 20:
        return "스무"
    return _KOREAN_TENS[value // 10] + _KOREAN_ONES[value % 10]


def _fraction_as_number(fraction: str, code: str) -> str:
    """Read decimals as these languages do: "05" is "zero five", "14" is "fourteen"."""
    zeros = len(fraction) - len(fraction.lstrip("0"))
    words = [_words(0, code)] * zeros
    if rest := fraction[zeros:]:
        words.append(cardinal(int(rest), code))
    return " ".join(words)


def _russian_decimal(whole: int, fraction: str, case: str) -> str | None:
    if len(fraction) not in _RUSSIAN_PARTS or len(str(whole)) > LONGEST_NUMBER:
        return None
    part = int(fraction)
    ending = "ая" if case == "n" else "ой"
    whole_noun = f"цел{ending}" if _ends_in_one(whole) else "целых"
    part_stem = _RUSSIAN_PARTS[len(fraction)]
    part_noun = part_stem + (ending if _ends_in_one(part) else "ых")
    whole_words = cardinal(whole, "ru", gender="f", case=case)
    part_words = cardinal(part, "ru", gender="f", case=case)
    return f"{whole_words} {whole_noun} {part_words} {part_noun}"


def _ends_in_one(value: int) -> bool:
    return value % 10 == 1 and value % 100 != 11


def _russian_form(value: int, fraction: str, case: str) -> int:
    if fraction:
        return 1
    if _ends_in_one(value):
        return 1 if case == "g" else 0
    if case == "n" and value % 10 in {2, 3, 4} and value % 100 not in {12, 13, 14}:
        return 1
    return 2


def _agree_spanish(words: str, _value: int, gender: str) -> str:
    if gender == "m":
        return re.sub(r"(veintiuno|\buno)$", _shorten_uno, words)
    if gender == "f":
        words = re.sub(r"uno$", "una", words)
        return re.sub(r"(cient|quinient)os\b", r"\1as", words)
    return words


def _shorten_uno(match: re.Match[str]) -> str:
    return "veintiún" if match[0] == "veintiuno" else "un"


def _agree_portuguese(words: str, _value: int, gender: str) -> str:
    if gender == "f":
        words = re.sub(r"\bum$", "uma", words)
        words = re.sub(r"\bdois$", "duas", words)
        return re.sub(r"(zent|cent|hent)os\b", r"\1as", words)
    return words


def _agree_french(words: str, _value: int, gender: str) -> str:
    return re.sub(r"\bun$", "une", words) if gender == "f" else words


def _agree_italian(words: str, value: int, gender: str) -> str:
    if value == 1 and gender in {"m", "f"}:
        return "un" if gender == "m" else "una"
    return words


_AGREEMENTS: Final[dict[str, Callable[[str, int, str], str]]] = {
    "es": _agree_spanish,
    "pt": _agree_portuguese,
    "fr": _agree_french,
    "it": _agree_italian,
}
