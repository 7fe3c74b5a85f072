"""Numbers as words in the ten languages, by CLDR's spell-out rules (package unicode-rbnf).

What those rules leave open is here: native Korean numerals, 两, how decimals are read, which form
of a noun follows. Portuguese is Brazil's, the default of the plain code in CLDR.
"""

import re
from functools import cache
from typing import Final

from unicode_rbnf import RbnfEngine

LONGEST_NUMBER: Final = 15
"""Integers with more digits are spoken digit by digit."""

_UNSPACED: Final = frozenset({"zh", "ja"})
_KOREAN_DIGITS: Final = "영일이삼사오육칠팔구"
_RUSSIAN_PARTS: Final = {1: "десят", 2: "сот", 3: "тысячн"}
_RUSSIAN_CASES: Final = {
    "n": "", "g": "-genitive", "d": "-dative", "a": "-accusative", "i": "-ablative",
    "p": "-locative",
}  # fmt: skip
_RUSSIAN_HUNDREDS: Final = ("двух", "трёх", "четырёх", "пяти", "шести", "семи", "восьми", "девяти")
_GENDERS: Final = {"m": "masculine", "f": "feminine", "n": "neuter"}


def cardinal(value: int, code: str, *, gender: str = "n", case: str = "n") -> str:
    """Return a whole number of zero or more as words.

    Args:
        value: The number.
        code: Plain code of the language.
        gender: Of the noun that follows: "m", "f"; "n": none; "native": Korean native numerals.
        case: Russian only: "n" nominative, "g" genitive, "d", "a", "i", "p" (locative).
    """
    if len(str(value)) > LONGEST_NUMBER:
        return spell_digits(str(value), code)
    if code == "zh":
        return _chinese(value, measured=gender == "m")
    if code == "ko":
        if gender == "native" and 0 < value < 100:
            return _spell(value, code, "cardinal-native-attributive")
        return _spell(value, code, "cardinal-sinokorean").replace("공", "영")
    if code == "en":
        return _spell(value, code, "cardinal-verbose").replace(",", "")
    if code == "ru":
        grammar = f"{_GENDERS['m' if gender == 'n' else gender]}{_RUSSIAN_CASES[case]}"
        return _russian(_spell(value, code, f"cardinal-{grammar}"))
    if gender == "n" or code in {"de", "ja"} or (code == "it" and value != 1):
        words = _spell(value, code, "numbering")
    else:
        words = _spell(value, code, f"cardinal-{_GENDERS[gender]}")
    if code == "es" and gender == "f":
        # Hundreds of thousands agree too: doscientas mil personas.
        head, millions, tail = words.rpartition("millones")
        words = head + millions + re.sub(r"(cient|quinient)os\b", r"\1as", tail)
    return _corrected(words, code)


def decimal(whole: int, fraction: str, code: str, point: str, *, case: str = "n") -> str | None:
    """Return a number with decimals as words, or None where the language has no plain way.

    ``point`` is the word for the decimal mark.
    """
    if code == "ru":
        return _russian_decimal(whole, fraction, case)
    if code == "ko":
        tail = "".join(_KOREAN_DIGITS[int(digit)] for digit in fraction)
    elif code in {"fr", "es", "it", "pt"} and len(fraction) <= 3:
        # "05" is "zero five", "14" is "fourteen".
        rest = fraction.lstrip("0")
        words = [cardinal(0, code)] * (len(fraction) - len(rest))
        tail = " ".join([*words, cardinal(int(rest), code)] if rest else words)
    else:
        tail = spell_digits(fraction, code)
    glue = "" if code in _UNSPACED else " "
    return glue.join([cardinal(whole, code), point, tail])


def spell_digits(digits: str, code: str) -> str:
    """Return digits one by one, as in a telephone number."""
    if code == "ko":
        return "".join(_KOREAN_DIGITS[int(digit)] for digit in digits).replace("영", "공")
    glue = "" if code in _UNSPACED else " "
    words = glue.join(cardinal(int(digit), code) for digit in digits)
    return words.replace("零", "ゼロ") if code == "ja" else words


def year(value: int, code: str) -> str:
    """Return a year of our time as words."""
    if code == "zh":
        return spell_digits(str(value), code)
    if code == "en" or (code == "de" and 1100 <= value < 2000):
        return _spell(value, code, "numbering-year").replace("‑", "-")
    return cardinal(value, code)


def ordinal(value: int, code: str, *, gender: str = "m", case: str = "n") -> str:
    """Return an ordinal as words, not in zh, ja and ko; German without its case ("dritte").

    Russian has a neuter gender, "n", and cases as for :func:`cardinal`.
    """
    if code == "en":
        return _spell(value, code, "ordinal-verbose").replace(",", "")
    if code == "de":
        return _spell(value, code, "ordinal")
    grammar = _GENDERS[gender] if gender != "n" or code == "ru" else _GENDERS["m"]
    words = _spell(value, code, f"ordinal-{grammar}{_RUSSIAN_CASES[case]}")
    if code != "ru":
        return _corrected(words, code)
    if value % 100 == 0 and value % 1_000 >= 200:
        # CLDR's rules end in the cardinal here.
        first = ordinal(100, code, gender=gender, case=case)
        head = f"{cardinal(value // 1_000 * 1_000, code)} " if value >= 1_000 else ""
        return head + _RUSSIAN_HUNDREDS[value % 1_000 // 100 - 2] + first
    if case == "p" and gender != "f":
        words = re.sub("сороковой$", "сороковом", words)
    return _russian(words)


def form_index(value: int, fraction: str, code: str, num_forms: int, *, case: str = "n") -> int:
    """Return which form of a noun follows a number, as an index into its forms."""
    if num_forms == 1:
        return 0
    if code in {"fr", "pt"}:
        return 0 if value < 2 else 1
    if code != "ru":
        return 0 if value == 1 and not fraction else 1
    if fraction:
        return 1
    if ends_in_one(value):
        return 1 if case == "g" else 0
    is_few = value % 10 in {2, 3, 4} and value % 100 not in {12, 13, 14}
    return 1 if case == "n" and is_few else 2


def ends_in_one(value: int) -> bool:
    """Return whether a number ends in "one": 1, 21, 101, but not 11."""
    return value % 10 == 1 and value % 100 != 11


@cache
def _engine(code: str) -> RbnfEngine:
    return RbnfEngine.for_language(code)


def _spell(value: int, code: str, ruleset: str) -> str:
    result = _engine(code).format_number(value, ruleset_names=[f"spellout-{ruleset}"])
    return result.text.replace("\u00ad", "")


def _corrected(words: str, code: str) -> str:
    """Write a word as it is usually written where CLDR's rules do not."""
    if code == "fr":
        return words.replace("-et-", " et ")
    if code == "ja":
        return words.replace("〇", "零")
    return re.sub(r"(?<=[nt])unmila", "unomila", words) if code == "it" else words


def _russian(words: str) -> str:
    """Restore ё, correct two ordinals, and drop the one of "one thousand", which only banks say."""
    words = words.replace("четверт", "четвёрт").replace("третьому", "третьему")
    words = re.sub(r"(тр|четыр)е(?=[хм](?!я))", r"\1ё", words)
    words = re.sub(r"восемьдесят(?=[а-я]+$)", "восьмидесят", words)
    return re.sub(r"^(одна|одной|одну|одною) (?=тысяч)", "", words)


def _chinese(value: int, *, measured: bool) -> str:
    if value < 1_000 and not (measured and value == 2):
        words = _spell(value, "zh", "cardinal")
    else:
        words = _spell(value, "zh", "cardinal-alternate2").replace("两百", "二百")
    return words.replace("〇", "零").replace("兆", "万亿")


def _russian_decimal(whole: int, fraction: str, case: str) -> str | None:
    if len(fraction) not in _RUSSIAN_PARTS or len(str(whole)) > LONGEST_NUMBER:
        return None
    part = int(fraction)
    ending = "ая" if case == "n" else "ой"
    whole_noun = f"цел{ending}" if ends_in_one(whole) else "целых"
    part_noun = _RUSSIAN_PARTS[len(fraction)] + (ending if ends_in_one(part) else "ых")
    whole_words = cardinal(whole, "ru", gender="f", case=case)
    part_words = cardinal(part, "ru", gender="f", case=case)
    return f"{whole_words} {whole_noun} {part_words} {part_noun}"
