"""Measures, percentages and money as they are spoken."""

import re
from dataclasses import replace
from functools import cache

from wyoming_qwen3tts.text.language_data import LanguageData, Term, language_data
from wyoming_qwen3tts.text.spoken.number_words import cardinal
from wyoming_qwen3tts.text.spoken.numerals import (
    LETTER,
    NOT_BEFORE,
    SPACE,
    Numeral,
    case_before,
    linked,
    number_pattern,
    parse_numeral,
    say_measure,
    signed_number_pattern,
)

_TEMPERATURES = frozenset({"celsius", "fahrenheit", "degree"})
_CURRENCY_SYMBOLS = {
    "€": "EUR",
    "EUR": "EUR",
    "US$": "USD",
    "$": "USD",
    "USD": "USD",
    "£": "GBP",
    "GBP": "GBP",
    "¥": "JPY",
    "￥": "JPY",
    "JPY": "JPY",
    "CNY": "CNY",
    "RMB": "CNY",
    "₩": "KRW",
    "KRW": "KRW",
    "₽": "RUB",
    "RUB": "RUB",
    "руб.": "RUB",
    "руб": "RUB",
    "R$": "BRL",
    "BRL": "BRL",
    "CHF": "CHF",
    "₹": "INR",
    "INR": "INR",
}
_PER_KWH = rf"(?P<kwh>{SPACE}?/{SPACE}?(?:kWh|кВт[·⋅]?ч))?"


def speak_units(text: str, data: LanguageData) -> str:
    """Replace numbers with a unit, a percent sign or a scale ("5 Mio.") by words."""

    def spoken(match: re.Match[str]) -> str:
        case = case_before(text, match.start(), data)
        if case is None or (data.code == "ru" and _is_abbreviation(match, text)):
            return match[0]
        unit = data.unit_symbols.get(match["unit"])
        term = data.scales[match["unit"]] if unit is None else data.units[unit]
        numeral = parse_numeral(match["number"], data)
        temperature = unit in _TEMPERATURES
        words = say_measure(numeral, term, data, case=case, temperature=temperature)
        return _per_kwh(words, match, data)

    return _unit_pattern(data.code).sub(spoken, text)


def _is_abbreviation(match: re.Match[str], text: str) -> bool:
    """Whether a Russian letter with a stop is no unit: "2026 г." is a year, "5 и т. д."."""
    if text[match.end() : match.end() + 1] != ".":
        return False
    return match["unit"] == "т" or (match["unit"] == "г" and len(match["number"]) == 4)


def speak_currencies(text: str, data: LanguageData) -> str:
    """Replace amounts of money by words."""

    def spoken(match: re.Match[str]) -> str:
        case = case_before(text, match.start(), data)
        if case is None:
            return match[0]
        symbol = match["before"] or match["after"]
        currency = _CURRENCY_SYMBOLS[symbol]
        if data.code == "zh" and symbol in {"¥", "￥"}:
            currency = "CNY"
        number = match["number_after"] or match["number_before"]
        numeral = parse_numeral(number, data)
        if match["sign"]:
            numeral = replace(numeral, sign="-")
        scale = match["scale_after"] or match["scale_before"]
        if scale is not None:
            words = _scaled(numeral, data.scales[scale], currency, data, case)
        else:
            words = _amount(numeral, currency, data, case)
        return _per_kwh(words, match, data)

    return _currency_pattern(data.code).sub(spoken, text)


def _scaled(numeral: Numeral, scale: Term, currency: str, data: LanguageData, case: str) -> str:
    words = say_measure(numeral, scale, data, case=case)
    return f"{words} {linked(data.currencies.names[currency].forms[-1], data)}"


def _amount(numeral: Numeral, currency: str, data: LanguageData, case: str) -> str:
    name = data.currencies.names[currency]
    pattern = data.currencies.amount
    minor = data.currencies.minor.get(currency)
    if not pattern:
        numeral = replace(numeral, fraction=numeral.fraction.rstrip("0"))
    if len(numeral.fraction) != 2 or not pattern or minor is None:
        return say_measure(numeral, name, data, case=case)
    major_part = replace(numeral, fraction="")
    minor_value = int(numeral.fraction)
    minor_part = Numeral("", str(minor_value))
    if minor_value == 0:
        return say_measure(major_part, name, data, case=case)
    minor_words = say_measure(minor_part, minor, data, case=case)
    if numeral.value == 0:
        return say_measure(replace(minor_part, sign=numeral.sign), minor, data, case=case)
    return pattern.format(
        major=say_measure(major_part, name, data, case=case),
        minor=minor_words,
        minor_number=cardinal(minor_value, data.code, case=case),
    )


def _per_kwh(words: str, match: re.Match[str], data: LanguageData) -> str:
    return data.words["per_kwh"].format(words) if match["kwh"] else words


@cache
def _unit_pattern(code: str) -> re.Pattern[str]:
    data = language_data(code)
    # Single letters are scales only of money ("$5M"); "5 m" is a length.
    scales = [scale for scale in data.scales if len(scale.rstrip(".")) > 1]
    symbols = sorted({*data.unit_symbols, *scales}, key=len, reverse=True)
    units = "|".join(re.escape(symbol) for symbol in symbols)
    return re.compile(
        rf"(?P<number>{signed_number_pattern(code)}){SPACE}?"
        rf"(?P<unit>{units}){_PER_KWH}(?![{LETTER}0-9_²³^/·⋅])"
    )


@cache
def _currency_pattern(code: str) -> re.Pattern[str]:
    data = language_data(code)
    names = data.currencies.names
    symbols = [symbol for symbol, name in _CURRENCY_SYMBOLS.items() if name in names]
    money = "|".join(re.escape(symbol) for symbol in sorted(symbols, key=len, reverse=True))
    number = number_pattern(code)
    scales = "|".join(re.escape(scale) for scale in sorted(data.scales, key=len, reverse=True))
    scale = rf"(?:{SPACE}?(?P<{{}}>{scales}){NOT_BEFORE})?" if scales else r"(?P<{}>(?!))?"
    sign = r"(?P<sign>(?<![\w)\]])[-−–])?"
    prefix = (
        rf"(?<![{LETTER}0-9_$]){sign}(?P<before>{money}){SPACE}?(?P<number_after>-?{number})"
        + scale.format("scale_after")
    )
    suffix = (
        rf"(?P<number_before>{signed_number_pattern(code)})"
        + scale.format("scale_before")
        + rf"{SPACE}?(?P<after>{money})"
    )
    return re.compile(rf"(?:{prefix}|{suffix}){_PER_KWH}{NOT_BEFORE}")
