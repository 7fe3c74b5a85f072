"""Numbers as people write them: finding and reading them in each language's notation."""

import re
from dataclasses import dataclass
from functools import cache
from typing import Final

from wyoming_qwen3tts.text.language_data import LanguageData, Term, language_data
from wyoming_qwen3tts.text.spoken.number_words import cardinal, decimal, form_index, spell_digits

LETTER: Final = "A-Za-z\u00b5\u00c0-\u00d6\u00d8-\u00f6\u00f8-\u024f\u0370-\u03ff\u0400-\u052f"
"""Character class of the letters that may not touch a number; Chinese and the like may."""
NOT_AFTER: Final = rf"(?<![{LETTER}0-9_])(?<![0-9][.,:/'’])"
NOT_BEFORE: Final = rf"(?![{LETTER}0-9_])"
SPACE: Final = "[ \u00a0\u202f\u2009]"
_SIGN: Final = rf"(?:(?<![{LETTER}0-9_)\]%°])[-−–+])?"


@dataclass(frozen=True)
class Numeral:
    """A number as it was written."""

    sign: str
    """"-", "+" or nothing."""
    digits: str
    """The whole part, without separators, with leading zeros."""
    fraction: str = ""
    """Digits after the decimal mark."""

    @property
    def value(self) -> int:
        """The whole part."""
        return int(self.digits)


@cache
def number_pattern(code: str) -> str:
    """Return the pattern of an unsigned number in a language's notation, without groups."""
    data = language_data(code)
    decimal_mark = re.escape(data.decimal)
    grouped = "|".join(
        rf"[1-9][0-9]{{0,2}}(?:{re.escape(mark)}[0-9]{{3}})+(?:{decimal_mark}[0-9]+)?"
        for mark in data.grouping
    )
    # Groups with spaces are a number anywhere when there are two of them.
    grouped += rf"|[1-9][0-9]{{0,2}}(?: [0-9]{{3}}){{2,}}(?:{decimal_mark}[0-9]+)?"
    return rf"(?:(?:{grouped}|[0-9]+(?:[.,][0-9]+)?)(?![0-9]|[.,:/'’][0-9]))"


@cache
def signed_number_pattern(code: str) -> str:
    """Return the pattern of a number that may have a sign, with no letter before it."""
    return rf"{NOT_AFTER}{_SIGN}{number_pattern(code)}"


def parse_numeral(text: str, data: LanguageData) -> Numeral:
    """Read a number that :func:`signed_number_pattern` matched."""
    sign = ""
    if text[0] in "-−–+":
        sign = "+" if text[0] == "+" else "-"
        text = text[1:]
    for mark in (*data.grouping, " "):
        pattern = rf"[1-9][0-9]{{0,2}}(?:{re.escape(mark)}[0-9]{{3}})+"
        if grouped := re.match(pattern + rf"(?=$|{re.escape(data.decimal)})", text):
            whole = grouped[0].replace(mark, "")
            return Numeral(sign, whole, text[grouped.end() + 1 :])
    whole, _, fraction = text.replace(",", ".").partition(".")
    return Numeral(sign, whole, fraction)


def say_number(
    numeral: Numeral, data: LanguageData, *, gender: str = "n", case: str = "n"
) -> str | None:
    """Return a number as words, or None where it is better left as it is."""
    words = _say_unsigned(numeral, data, gender, case)
    return None if words is None else with_sign(words, numeral.sign, data)


def with_sign(words: str, sign: str, data: LanguageData, *, temperature: bool = False) -> str:
    """Put the word for a sign before a number's words."""
    if not sign:
        return words
    name = "minus" if sign == "-" else "plus"
    if temperature:
        name = f"{name}_temperature" if f"{name}_temperature" in data.words else name
    glue = "" if data.code in {"zh", "ja"} else " "
    return f"{data.words[name]}{glue}{words}"


def say_measure(
    numeral: Numeral, term: Term, data: LanguageData, *, case: str = "n", temperature: bool = False
) -> str:
    """Return a number and its noun as words: "21.5" and degree -> "twenty-one point five degrees".

    Where the number's form is not certain (German "1" before a noun) its digits stay.
    """
    words = _say_unsigned(numeral, data, term.gender, case)
    if words is None or (data.code == "de" and numeral.digits == "1" and not numeral.fraction):
        mark = data.decimal if numeral.fraction else ""
        words = f"{numeral.digits}{mark}{numeral.fraction}"
    index = form_index(numeral.value, numeral.fraction, data.code, len(term.forms), case=case)
    form = term.forms[index]
    if "{}" in form:
        if term.gender == "n":
            # A fraction is negative as a whole: 负百分之五.
            return with_sign(form.format(words), numeral.sign, data)
        return form.format(with_sign(words, numeral.sign, data, temperature=temperature))
    words = with_sign(words, numeral.sign, data)
    if data.code == "it" and words == "una" and form[0] in "aeiou":
        return f"un'{form}"
    if numeral.value >= 10**6 and numeral.value % 10**6 == 0 and not numeral.fraction:
        return f"{words} {linked(form, data)}"
    return f"{words} {form}"


def linked(noun: str, data: LanguageData) -> str:
    """Return a noun as it stands after "million": with "de" in the Romance languages."""
    link = data.currencies.scale_link
    if data.code == "fr" and noun[0] in "aeiouyéèh":
        link = "d'"
    return f"{link}{noun}"


def _say_unsigned(numeral: Numeral, data: LanguageData, gender: str, case: str) -> str | None:
    digits = numeral.digits
    if numeral.fraction:
        point = data.words["point"]
        return decimal(numeral.value, numeral.fraction, data.code, point, case=case)
    if len(digits) > 1 and digits[0] == "0":
        return spell_digits(digits, data.code)
    return cardinal(numeral.value, data.code, gender=gender, case=case)


_WORD_BEFORE = re.compile(r"(\w+)\W{1,2}$")


def case_before(text: str, start: int, data: LanguageData) -> str | None:
    """Return the case that the words before an index ask for; None: another than we can form.

    Only Russian numbers are declined; elsewhere it is always the nominative.
    """
    if data.code != "ru":
        return "n"
    word = _WORD_BEFORE.search(text, max(0, start - 24), start)
    if word is None:
        return "n"
    if word[1].lower() in data.lists["genitive_after"]:
        return "g"
    return None if word[1].lower() in data.lists["other_case_after"] else "n"
