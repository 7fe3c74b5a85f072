"""Numbers with what follows them: finding them, units, money, and agreement with a noun."""

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cache
from typing import Final

from wyoming_qwen3tts.text.numbers import cardinal, decimal, ends_in_one, form_index, spell_digits
from wyoming_qwen3tts.text.rules import LanguageRules, Term, language_rules

LETTER: Final = "A-Za-z\u00b5\u00c0-\u00d6\u00d8-\u00f6\u00f8-\u024f\u0370-\u03ff\u0400-\u052f"
"""Character class of the letters that may not touch a number; Chinese and the like may."""
NOT_AFTER: Final = rf"(?<![{LETTER}0-9_])(?<![0-9][.,:/'’])"
NOT_BEFORE: Final = rf"(?![{LETTER}0-9_])"
SPACE: Final = "[ \u00a0\u202f\u2009]"
_SIGN: Final = rf"(?:(?<![{LETTER}0-9_)\]%°])[-−–+])?"


@dataclass(frozen=True)
class Numeral:
    """A number as it was written, without the marks between groups of digits."""

    sign: str
    """"-", "+" or nothing."""
    digits: str
    """The whole part, with leading zeros."""
    fraction: str = ""

    @property
    def value(self) -> int:
        """The whole part."""
        return int(self.digits)


@cache
def number_pattern(code: str) -> str:
    """Return the pattern of an unsigned number in a language's notation, without groups."""
    rules = language_rules(code)
    # Groups with spaces are a number anywhere when there are two of them.
    groups = [f"(?:{re.escape(mark)}[0-9]{{3}})+" for mark in rules.grouping]
    groups.append("(?: [0-9]{3}){2,}")
    fraction = rf"(?:{re.escape(rules.decimal)}[0-9]+)?"
    grouped = "|".join(rf"[1-9][0-9]{{0,2}}{group}{fraction}" for group in groups)
    return rf"(?:(?:{grouped}|[0-9]+(?:[.,][0-9]+)?)(?![0-9]|[.,:/'’][0-9]))"


@cache
def signed_number_pattern(code: str) -> str:
    """Return the pattern of a number that may have a sign, with no letter before it."""
    return rf"{NOT_AFTER}{_SIGN}{number_pattern(code)}"


def parse_numeral(text: str, rules: LanguageRules) -> Numeral:
    """Read a number that :func:`signed_number_pattern` matched."""
    sign = ""
    if text[0] in "-−–+":
        sign = "+" if text[0] == "+" else "-"
        text = text[1:]
    for mark in (*rules.grouping, " "):
        pattern = rf"[1-9][0-9]{{0,2}}(?:{re.escape(mark)}[0-9]{{3}})+"
        if grouped := re.match(pattern + rf"(?=$|{re.escape(rules.decimal)})", text):
            whole = grouped[0].replace(mark, "")
            return Numeral(sign, whole, text[grouped.end() + 1 :])
    whole, _, fraction = text.replace(",", ".").partition(".")
    return Numeral(sign, whole, fraction)


def spell_number(
    numeral: Numeral, rules: LanguageRules, *, gender: str = "n", case: str = "n"
) -> str | None:
    """Return a number as words, or None where it is better left as it is."""
    code, digits = rules.code, numeral.digits
    words: str | None
    if numeral.fraction:
        words = decimal(numeral.value, numeral.fraction, code, rules.words["point"], case=case)
    elif len(digits) > 1 and digits[0] == "0":
        words = spell_digits(digits, code)
    else:
        words = cardinal(numeral.value, code, gender=gender, case=case)
    return words and with_sign(words, numeral.sign, rules)


def with_sign(words: str, sign: str, rules: LanguageRules, *, temperature: bool = False) -> str:
    """Put the word for a sign before a number's words."""
    if not sign:
        return words
    name = "minus" if sign == "-" else "plus"
    if temperature and f"{name}_temperature" in rules.words:
        name += "_temperature"
    return f"{rules.words[name]}{rules.space}{words}"


def spell_quantity(
    numeral: Numeral,
    term: Term,
    rules: LanguageRules,
    *,
    case: str = "n",
    temperature: bool = False,
) -> str:
    """Return a number and its noun as words: "21.5" and degree -> "twenty-one point five degrees".

    Where the number's form is not certain (German "1" before a noun) its digits stay.
    """
    words = spell_number(replace(numeral, sign=""), rules, gender=term.gender, case=case)
    if words is None or (rules.code == "de" and numeral.digits == "1" and not numeral.fraction):
        mark = rules.decimal if numeral.fraction else ""
        words = f"{numeral.digits}{mark}{numeral.fraction}"
    index = form_index(numeral.value, numeral.fraction, rules.code, len(term.forms), case=case)
    form = term.forms[index]
    if "{}" in form:
        if term.gender == "n":
            # A fraction is negative as a whole: 负百分之五.
            return with_sign(form.format(words), numeral.sign, rules)
        return form.format(with_sign(words, numeral.sign, rules, temperature=temperature))
    words = with_sign(words, numeral.sign, rules)
    if rules.code == "it" and words == "una" and form[0] in "aeiou":
        return f"un'{form}"
    if numeral.value >= 10**6 and numeral.value % 10**6 == 0 and not numeral.fraction:
        return f"{words} {with_preposition(form, rules)}"
    return f"{words} {form}"


def with_preposition(noun: str, rules: LanguageRules) -> str:
    """Return a noun as it stands after "million": with "de" in the Romance languages."""
    link = rules.scale_link
    if rules.code == "fr" and noun[0] in "aeiouyéèh":
        link = "d'"
    return f"{link}{noun}"


def case_before(text: str, start: int, rules: LanguageRules) -> str | None:
    """Return the case that the words before an index ask for; None: another than we can form.

    Only Russian numbers are declined; elsewhere it is always the nominative.
    """
    if rules.code != "ru":
        return "n"
    word = previous_word(text[max(0, start - 24) : start])
    if word in rules.lists["genitive_after"]:
        return "g"
    return None if word in rules.lists["other_case_after"] else "n"


def previous_word(before: str) -> str:
    """Return the last word of a text in small letters, or nothing."""
    word = re.search(r"(\w+)\W{1,2}$", before)
    return word[1].lower() if word else ""


_PER_KWH = rf"(?P<kwh>{SPACE}?/{SPACE}?(?:kWh|кВт[·⋅]?ч))?"


def speak_units(text: str, rules: LanguageRules) -> str:
    """Replace numbers with a unit, a percent sign or a scale ("5 Mio.") by words."""

    def spoken(match: re.Match[str]) -> str:
        case = case_before(text, match.start(), rules)
        # Russian: "2026 г." is a year, "5 и т. д." an abbreviation.
        is_abbreviation = text.startswith(".", match.end()) and (
            match["unit"] == "т" or (match["unit"] == "г" and len(match["number"]) == 4)
        )
        if case is None or is_abbreviation:
            return match[0]
        if match["unit"] in ("A", "А") and match[0] == match["number"] + match["unit"]:
            # "Exit 12A" is a name; "10 A" is a current. "2L" is always a volume.
            words = match["number"].isdigit() and spell_number(
                parse_numeral(match["number"], rules), rules
            )
            if words:
                return f"{words}{rules.space}{match['unit']}"
        unit = rules.unit_symbols.get(match["unit"])
        term = rules.scales[match["unit"]] if unit is None else rules.units[unit]
        numeral = parse_numeral(match["number"], rules)
        is_temperature = unit in {"celsius", "fahrenheit", "degree"}
        words = spell_quantity(numeral, term, rules, case=case, temperature=is_temperature)
        return _per_kwh(words, match, rules)

    return _unit_pattern(rules.code).sub(spoken, text)


def speak_currencies(text: str, rules: LanguageRules) -> str:
    """Replace amounts of money by words."""

    def spoken(match: re.Match[str]) -> str:
        case = case_before(text, match.start(), rules)
        if case is None:
            return match[0]
        currency = rules.currency_symbols[match["before"] or match["after"]]
        numeral = parse_numeral(match["number_after"] or match["number_before"], rules)
        if match["sign"]:
            numeral = replace(numeral, sign="-")
        if scale := match["scale_after"] or match["scale_before"]:
            words = spell_quantity(numeral, rules.scales[scale], rules, case=case)
            words += f" {with_preposition(rules.currencies[currency].forms[-1], rules)}"
        else:
            words = _spell_amount(numeral, currency, rules, case)
        return _per_kwh(words, match, rules)

    return _currency_pattern(rules.code).sub(spoken, text)


def _spell_amount(numeral: Numeral, currency: str, rules: LanguageRules, case: str) -> str:
    name, minor = rules.currencies[currency], rules.minor_currencies.get(currency)
    if not rules.amount:
        numeral = replace(numeral, fraction=numeral.fraction.rstrip("0"))
    if len(numeral.fraction) != 2 or not rules.amount or minor is None:
        return spell_quantity(numeral, name, rules, case=case)
    cents = int(numeral.fraction)
    if cents and not numeral.value:
        return spell_quantity(Numeral(numeral.sign, str(cents)), minor, rules, case=case)
    major = spell_quantity(replace(numeral, fraction=""), name, rules, case=case)
    if not cents:
        return major
    return rules.amount.format(
        major=major,
        minor=spell_quantity(Numeral("", str(cents)), minor, rules, case=case),
        minor_number=cardinal(cents, rules.code, case=case),
    )


def _per_kwh(words: str, match: re.Match[str], rules: LanguageRules) -> str:
    return rules.words["per_kwh"].format(words) if match["kwh"] else words


@cache
def _unit_pattern(code: str) -> re.Pattern[str]:
    rules = language_rules(code)
    # Single letters are scales only of money ("$5M"); "5 m" is a length.
    scales = [scale for scale in rules.scales if len(scale.rstrip(".")) > 1]
    return re.compile(
        rf"(?P<number>{signed_number_pattern(code)}){SPACE}?"
        rf"(?P<unit>{_any_of([*rules.unit_symbols, *scales])}){_PER_KWH}(?![{LETTER}0-9_²³^/·⋅])"
    )


@cache
def _currency_pattern(code: str) -> re.Pattern[str]:
    rules = language_rules(code)
    money, scales = _any_of(rules.currency_symbols), _any_of(rules.scales)
    scale = rf"(?:{SPACE}?(?P<{{}}>{scales}){NOT_BEFORE})?" if scales else r"(?P<{}>(?!))?"
    prefix = (
        rf"(?<![{LETTER}0-9_$])(?P<sign>(?<![\w)\]])[-−–])?(?P<before>{money}){SPACE}?"
        rf"(?P<number_after>-?{number_pattern(code)}){scale.format('scale_after')}"
    )
    suffix = (
        rf"(?P<number_before>{signed_number_pattern(code)}){scale.format('scale_before')}"
        rf"{SPACE}?(?P<after>{money})"
    )
    return re.compile(rf"(?:{prefix}|{suffix}){_PER_KWH}{NOT_BEFORE}")


def _any_of(symbols: Iterable[str]) -> str:
    return "|".join(re.escape(symbol) for symbol in sorted(symbols, key=len, reverse=True))


NEXT_WORD = re.compile(rf"{SPACE}([{LETTER}]+)")


def gender_of_number(
    value: int, before: str, following: str, rules: LanguageRules, case: str
) -> str | None:
    """Return the gender that a number must agree with; None: it must, but we cannot tell which.

    ``before`` and ``following`` are the text around the number.
    """
    code = rules.code
    if code in {"zh", "ko"}:
        return _counted(value, before, following.lstrip(" "), rules)
    next_word = NEXT_WORD.match(following)
    if next_word is None or code in {"en", "ja"}:
        return "n"
    word = next_word[1].lower()
    if word in rules.lists["not_nouns"]:
        return "n"
    if code == "de":
        return None if value == 1 else "n"
    if code == "ru":
        if re.match(rf"{SPACE}гг?\.", following):
            return None
        return _noun_gender(word, rules) or _russian_gender(value, word, case)
    if code == "it":
        agrees = value == 1
        if agrees and word[0] in "aeiou":
            return None
    elif code == "fr":
        agrees = ends_in_one(value) and value % 100 not in {71, 91}
    else:
        agrees = ends_in_one(value) or value // 100 % 10 > 1 or value // 100_000 % 10 > 1
        agrees = agrees or (code == "pt" and value % 10 == 2 and value % 100 != 12)
    is_noun = value == 1 or word[-1] == "s" or (code == "fr" and word[-1] == "x")
    return _noun_gender(word, rules) if agrees and is_noun else "n"


def _noun_gender(word: str, rules: LanguageRules) -> str | None:
    if word in rules.lists["masculine_words"]:
        return "m"
    if word in rules.lists["feminine_words"]:
        return "f"
    if word.endswith(rules.lists["masculine_endings"]):
        return "m"
    return "f" if word.endswith(rules.lists["feminine_endings"]) and len(word) > 3 else None


def _russian_gender(value: int, word: str, case: str) -> str | None:
    last = value % 10
    if value % 100 in {11, 12} or last not in {1, 2} or not re.match("[а-яё]", word):
        return "n"
    if last == 2:
        # два стола, два окна; две минуты
        return "n" if case == "g" else {"а": "m", "я": "m", "ы": "f", "и": "f"}.get(word[-1])
    if case == "n" and word[-1] not in "аяоеёиыуюэйь":
        return "m"
    return "f" if case == "n" and word[-1] in "ая" and len(word) > 3 else None


def _counted(value: int, before: str, following: str, rules: LanguageRules) -> str:
    """Return "m" where Chinese says 两, "native" where Korean counts in its own numerals."""
    if rules.code == "zh":
        counted = value == 2 and following.startswith(rules.lists["two_before"])
        return "m" if counted and not before.endswith(("第", "月", "初")) else "n"
    if following.startswith(rules.lists["sino_before"]) or before.endswith("제"):
        return "n"
    limit = 12 if re.match("시(?!간)", following) else 99
    native = value <= limit and following.startswith(rules.lists["native_before"])
    return "native" if native else "n"
