"""Calendar dates and years as they are spoken."""

import re
from collections.abc import Callable
from functools import cache
from typing import Final

from wyoming_qwen3tts.text.language_data import LanguageData, language_data
from wyoming_qwen3tts.text.spoken.number_words import cardinal, ordinal, year
from wyoming_qwen3tts.text.spoken.numerals import LETTER, SPACE
from wyoming_qwen3tts.text.spoken.ordinals import german_ordinal

_ISO = re.compile(
    r"(?<![0-9A-Za-z-])([12][0-9]{3})-(0?[1-9]|1[0-2])-(0?[1-9]|[12][0-9]|3[01])"
    r"(?:T(?=[0-9]{2}:[0-9]{2})|(?![0-9A-Za-z-]))"
)
_YEAR_FIRST = re.compile(
    r"(?<![0-9./])([12][0-9]{3})/(0?[1-9]|1[0-2])/(0?[1-9]|[12][0-9]|3[01])(?![0-9/])"
)
_DOTTED = re.compile(r"(?<![0-9.])([0-3]?[0-9])\.([01]?[0-9])\.([12][0-9]{3})(?![0-9])")
_DOTTED_SHORT = re.compile(r"(?<![0-9.])([0-3]?[0-9])\.([01]?[0-9])\.([0-9]{2})(?![0-9.])")
_SLASHED = re.compile(r"(?<![0-9./])([0-3]?[0-9])/([0-3]?[0-9])/([12][0-9]{3})(?![0-9/])")
_GERMAN_DAY_MONTH = re.compile(
    r"\b((?:am|vom|zum|dem|den|der|bis|ab|seit|im|beim)[ \u00a0])"
    r"([0-3]?[0-9])\.([01]?[0-9])\.(?![0-9])(?=(\s*)(\S?))",
    re.IGNORECASE,
)
_ENGLISH_ORDINAL: Final = r"(?:st|nd|rd|th)?"
_YEAR: Final = r"[12][0-9]{3}"
_ENGLISH_DECADE = re.compile(
    rf"(?<![{LETTER}0-9.,$£€-])(1[7-9][0-9]0|20[0-9]0|(?<=[Tt]he )[2-9]0)s(?![{LETTER}0-9])"
)
_CJK_YEAR = re.compile(r"(?<![0-9.])([12][0-9]{3})(?=年)")
_KOREAN_MONTH = re.compile(r"(?<![0-9.])(6|10)월")
_RUSSIAN_YEAR = re.compile(
    rf"(?<![0-9.,])([12][0-9]{{3}})({SPACE}?)(год|года|году|годом|г\.)(?!\w)"
)
_RUSSIAN_YEAR_CASES: Final = {"год": "n", "года": "g", "году": "p", "годом": "i"}
# What "2026 г." stands for after these words; elsewhere it is left as it is.
_RUSSIAN_YEAR_AFTER: Final = {
    "в": "году",
    "с": "года",
    "до": "года",
    "от": "года",
    "после": "года",
}
_NOMINATIVE_DATE_AFTER: Final = frozenset({"сегодня", "завтра", "вчера", "это", "на", "дата"})


def speak_dates(text: str, data: LanguageData) -> str:
    """Replace dates, and years that stand with them, by words."""
    text = _replace_dates(_ISO, text, data, order=(2, 1, 0))
    text = _replace_dates(_YEAR_FIRST, text, data, order=(2, 1, 0))
    text = _replace_dates(_DOTTED, text, data, order=(0, 1, 2))
    text = _replace_slashed(text, data)
    if data.code in {"de", "ru"}:
        text = _replace_dates(_DOTTED_SHORT, text, data, order=(0, 1, 2))
    if data.month_numbers:
        text = _replace_named(text, data)
    special = _SPECIAL.get(data.code)
    return special(text, data) if special else text


def _replace_dates(
    pattern: re.Pattern[str], text: str, data: LanguageData, order: tuple[int, int, int]
) -> str:
    def spoken(match: re.Match[str]) -> str:
        groups = match.groups()
        day, month, year_of = (int(groups[index]) for index in order)
        if year_of < 100:
            year_of += 2000
        if not (1 <= day <= 31 and 1 <= month <= 12):
            return match[0]
        words = _say_date(day, month, year_of, (text[: match.start()], text[match.end() :]), data)
        if words is None:
            return match[0]
        # "2026-11-29T14:30" goes on with a time.
        return f"{words} " if match[0].endswith("T") else words

    return pattern.sub(spoken, text)


def _replace_slashed(text: str, data: LanguageData) -> str:
    def spoken(match: re.Match[str]) -> str:
        first, second, year_of = (int(group) for group in match.groups())
        month_first = data.code == "en" and first <= 12
        day, month = (second, first) if month_first else (first, second)
        if not (1 <= day <= 31 and 1 <= month <= 12):
            return match[0]
        return (
            _say_date(day, month, year_of, (text[: match.start()], text[match.end() :]), data)
            or match[0]
        )

    return _SLASHED.sub(spoken, text)


def _replace_named(text: str, data: LanguageData) -> str:
    def spoken(match: re.Match[str]) -> str:
        month = data.month_numbers[match["month"].rstrip(".").casefold()]
        day = int(match["day"])
        if not 1 <= day <= 31:
            return match[0]
        year_of = int(match["year"]) if match["year"] else None
        return (
            _say_date(day, month, year_of, (text[: match.start()], text[match.end() :]), data)
            or match[0]
        )

    for pattern in _named_patterns(data.code):
        text = pattern.sub(spoken, text)
    return text


@cache
def _named_patterns(code: str) -> tuple[re.Pattern[str], ...]:
    """Patterns of a date with the month's name, each with groups day, month, year."""
    data = language_data(code)
    names = sorted(data.month_numbers, key=len, reverse=True)
    start = rf"(?<![{LETTER}0-9.,:/-])"
    end = rf"(?![{LETTER}0-9])"
    month = rf"(?P<month>(?:{'|'.join(map(re.escape, names))})(?![{LETTER}])\.?)"
    # The stop of an abbreviated month belongs to it only when something follows.
    month = month.replace(r"\.?)", r"(?:\.(?=\s[0-9a-zа-я]))?)")
    day = r"(?P<day>[0-3]?[0-9])"
    year_of = rf"(?P<year>{_YEAR})(?![0-9]|[.,][0-9])"
    flags = re.IGNORECASE
    if code == "en":
        # "may 5" is not a date, "May 5" is.
        month = month.replace("(?P<month>", "(?P<month>(?=(?-i:[A-Z]))")
        return (
            re.compile(
                rf"(?<![{LETTER}0-9]){month} {day}{_ENGLISH_ORDINAL}(?![0-9:]|\.[0-9]|[{LETTER}])"
                rf"(?:,? {year_of})?",
                flags,
            ),
            re.compile(
                rf"{start}{day}{_ENGLISH_ORDINAL}(?: of)? {month}(?:,? {year_of})?{end}", flags
            ),
        )
    if code == "de":
        return (re.compile(rf"{start}{day}\.{SPACE}?{month}(?:{SPACE}{year_of})?{end}", flags),)
    if code in {"es", "pt"}:
        of = "(?: de| del)"
        day = r"(?P<day>[0-3]?[0-9])[º°]?"
        return (re.compile(rf"{start}{day} de {month}(?:{of} {year_of})?{end}", flags),)
    if code == "ru":
        year_word = rf"(?:{SPACE}?(?:года|г\.))?"
        return (
            re.compile(rf"{start}{day}{SPACE}{month}(?:{SPACE}{year_of}{year_word})?{end}", flags),
        )
    day = r"(?P<day>[0-3]?[0-9])(?:er|º|°)?"
    return (re.compile(rf"{start}{day}{SPACE}{month}(?:{SPACE}{year_of})?{end}", flags),)


def _say_date(
    day: int, month: int, year_of: int | None, around: tuple[str, str], data: LanguageData
) -> str | None:
    code = data.code
    before, _ = around
    if code == "en":
        words = f"{data.months[month - 1]} {ordinal(day, code)}"
        if before.endswith(("the ", "The ")):
            words = f"{ordinal(day, code)} of {data.months[month - 1]}"
        return words if year_of is None else f"{words}, {year(year_of, code)}"
    if code == "de":
        words = (
            f"{german_ordinal(day, before) or ordinal(day, code) + 'r'} {data.months[month - 1]}"
        )
        return words if year_of is None else f"{words} {year(year_of, code)}"
    if code == "ru":
        return _say_russian(day, month, year_of, around, data)
    if code in {"zh", "ja", "ko"}:
        numbers = {
            "d": cardinal(day, code),
            "m": _korean_month(month) if code == "ko" else cardinal(month, code),
        }
    else:
        first = data.dates.first_day
        numbers = {
            "d": first if day == 1 and first else cardinal(day, code),
            "month": data.months[month - 1],
        }
    if year_of is None:
        return data.dates.day_month.format(**numbers)
    return data.dates.day_month_year.format(**numbers, y=year(year_of, code))


def _say_russian(
    day: int, month: int, year_of: int | None, around: tuple[str, str], data: LanguageData
) -> str | None:
    before, after = around
    last = re.search(r"(\w+)\W*$", before[-24:])
    word = last[1].lower() if last else ""
    if word in {"к", "ко", "перед", "между"}:
        return None
    # In a sentence a date mostly says when something happens, which is the genitive.
    alone = not word and not re.match(r"\s*\w", after)
    nominative = alone or word in _NOMINATIVE_DATE_AFTER
    day_words = ordinal(day, "ru", gender="n", case="n" if nominative else "g")
    words = f"{day_words} {data.months_genitive[month - 1]}"
    if year_of is None:
        return words
    return f"{words} {_russian_year(year_of, 'g')} года"


def _russian_year(value: int, case: str) -> str:
    return re.sub(r"^(одна|одной) (?=тысяч)", "", ordinal(value, "ru", case=case))


def _speak_russian_years(text: str, _data: LanguageData) -> str:
    def spoken(match: re.Match[str]) -> str:
        found = re.search(r"(\w+)\W$", text[max(0, match.start() - 8) : match.start()])
        before = found[1].lower() if found else ""
        noun = match[3]
        if noun == "г.":
            noun = _RUSSIAN_YEAR_AFTER.get(before, "")
        if not noun:
            return match[0]
        dative = noun == "году" and before in {"к", "ко", "по"}
        case = "d" if dative else _RUSSIAN_YEAR_CASES[noun]
        return f"{_russian_year(int(match[1]), case)} {noun}"

    return _RUSSIAN_YEAR.sub(spoken, text)


def _speak_english_decades(text: str, _data: LanguageData) -> str:
    def spoken(match: re.Match[str]) -> str:
        words = year(int(match[1]), "en") if len(match[1]) > 2 else cardinal(int(match[1]), "en")
        return f"{words[:-1]}ies" if words.endswith("y") else f"{words}s"

    return _ENGLISH_DECADE.sub(spoken, text)


def _speak_chinese_years(text: str, data: LanguageData) -> str:
    return _CJK_YEAR.sub(lambda match: year(int(match[1]), data.code), text)


def _korean_month(month: int) -> str:
    return {6: "유", 10: "시"}.get(month) or cardinal(month, "ko")


def _speak_korean_months(text: str, _data: LanguageData) -> str:
    return _KOREAN_MONTH.sub(lambda match: f"{_korean_month(int(match[1]))}월", text)


def _speak_german_short_dates(text: str, data: LanguageData) -> str:
    def spoken(match: re.Match[str]) -> str:
        day, month = int(match[2]), int(match[3])
        if not (1 <= day <= 31 and 1 <= month <= 12):
            return match[0]
        before = text[: match.start()] + match[1]
        words = german_ordinal(day, before) or f"{ordinal(day, 'de')}r"
        # At the end of the sentence the date's stop is the sentence's too.
        stop = "" if match[5] else "."
        return f"{match[1]}{words} {data.months[month - 1]}{stop}"

    return _GERMAN_DAY_MONTH.sub(spoken, text)


_SPECIAL: Final[dict[str, Callable[[str, LanguageData], str]]] = {
    "de": _speak_german_short_dates,
    "en": _speak_english_decades,
    "ru": _speak_russian_years,
    "zh": _speak_chinese_years,
    "ko": _speak_korean_months,
}
