"""Calendar dates, years and ordinals as they are spoken."""

import re
from collections.abc import Callable
from functools import cache
from typing import Final

from wyoming_qwen3tts.text.numbers import cardinal, ordinal, year
from wyoming_qwen3tts.text.quantities import LETTER, NEXT_WORD, NOT_AFTER, SPACE
from wyoming_qwen3tts.text.rules import LanguageRules, language_rules

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
_ORDINAL_SUFFIX: Final = r"(?:st|nd|rd|th)?"
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


def speak_dates(text: str, rules: LanguageRules) -> str:
    """Replace dates, and years that stand with them, by words."""
    text = _replace_dates(_ISO, text, rules, order=(2, 1, 0))
    text = _replace_dates(_YEAR_FIRST, text, rules, order=(2, 1, 0))
    text = _replace_dates(_DOTTED, text, rules, order=(0, 1, 2))
    text = _replace_slashed(text, rules)
    if rules.code in {"de", "ru"}:
        text = _replace_dates(_DOTTED_SHORT, text, rules, order=(0, 1, 2))
    if rules.month_numbers:
        text = _replace_named(text, rules)
    special = _SPECIAL.get(rules.code)
    return special(text, rules) if special else text


def _replace_dates(
    pattern: re.Pattern[str], text: str, rules: LanguageRules, order: tuple[int, int, int]
) -> str:
    def spoken(match: re.Match[str]) -> str:
        groups = match.groups()
        day, month, year_of = (int(groups[index]) for index in order)
        if year_of < 100:
            year_of += 2000
        if not (1 <= day <= 31 and 1 <= month <= 12):
            return match[0]
        words = _spell_date(
            day, month, year_of, (text[: match.start()], text[match.end() :]), rules
        )
        if words is None:
            return match[0]
        # "2026-11-29T14:30" goes on with a time.
        return f"{words} " if match[0].endswith("T") else words

    return pattern.sub(spoken, text)


def _replace_slashed(text: str, rules: LanguageRules) -> str:
    def spoken(match: re.Match[str]) -> str:
        first, second, year_of = (int(group) for group in match.groups())
        month_first = rules.code == "en" and first <= 12
        day, month = (second, first) if month_first else (first, second)
        if not (1 <= day <= 31 and 1 <= month <= 12):
            return match[0]
        return (
            _spell_date(day, month, year_of, (text[: match.start()], text[match.end() :]), rules)
            or match[0]
        )

    return _SLASHED.sub(spoken, text)


def _replace_named(text: str, rules: LanguageRules) -> str:
    def spoken(match: re.Match[str]) -> str:
        month = rules.month_numbers[match["month"].rstrip(".").casefold()]
        day = int(match["day"])
        if not 1 <= day <= 31:
            return match[0]
        year_of = int(match["year"]) if match["year"] else None
        return (
            _spell_date(day, month, year_of, (text[: match.start()], text[match.end() :]), rules)
            or match[0]
        )

    for pattern in _named_patterns(rules.code):
        text = pattern.sub(spoken, text)
    return text


@cache
def _named_patterns(code: str) -> tuple[re.Pattern[str], ...]:
    """Patterns of a date with the month's name, each with groups day, month, year."""
    rules = language_rules(code)
    names = sorted(rules.month_numbers, key=len, reverse=True)
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
                rf"(?<![{LETTER}0-9]){month} {day}{_ORDINAL_SUFFIX}(?![0-9:]|\.[0-9]|[{LETTER}])"
                rf"(?:,? {year_of})?",
                flags,
            ),
            re.compile(
                rf"{start}{day}{_ORDINAL_SUFFIX}(?: of)? {month}(?:,? {year_of})?{end}", flags
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


def _spell_date(
    day: int, month: int, year_of: int | None, around: tuple[str, str], rules: LanguageRules
) -> str | None:
    code = rules.code
    before, _ = around
    if code == "en":
        words = f"{rules.months[month - 1]} {ordinal(day, code)}"
        if before.endswith(("the ", "The ")):
            words = f"{ordinal(day, code)} of {rules.months[month - 1]}"
        return words if year_of is None else f"{words}, {year(year_of, code)}"
    if code == "de":
        words = (
            f"{german_ordinal(day, before) or ordinal(day, code) + 'r'} {rules.months[month - 1]}"
        )
        return words if year_of is None else f"{words} {year(year_of, code)}"
    if code == "ru":
        return _spell_russian(day, month, year_of, around, rules)
    if code in {"zh", "ja", "ko"}:
        numbers = {
            "d": cardinal(day, code),
            "m": _korean_month(month) if code == "ko" else cardinal(month, code),
        }
    else:
        first = rules.dates.get("first_day")
        numbers = {
            "d": first if day == 1 and first else cardinal(day, code),
            "month": rules.months[month - 1],
        }
    if year_of is None:
        return rules.dates["day_month"].format(**numbers)
    return rules.dates["day_month_year"].format(**numbers, y=year(year_of, code))


def _spell_russian(
    day: int, month: int, year_of: int | None, around: tuple[str, str], rules: LanguageRules
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
    words = f"{day_words} {rules.months_genitive[month - 1]}"
    if year_of is None:
        return words
    return f"{words} {_russian_year(year_of, 'g')} года"


def _russian_year(value: int, case: str) -> str:
    return re.sub(r"^(одна|одной) (?=тысяч)", "", ordinal(value, "ru", case=case))


def _speak_russian_years(text: str, _data: LanguageRules) -> str:
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


def _speak_english_decades(text: str, _data: LanguageRules) -> str:
    def spoken(match: re.Match[str]) -> str:
        words = year(int(match[1]), "en") if len(match[1]) > 2 else cardinal(int(match[1]), "en")
        return f"{words[:-1]}ies" if words.endswith("y") else f"{words}s"

    return _ENGLISH_DECADE.sub(spoken, text)


def _speak_chinese_years(text: str, rules: LanguageRules) -> str:
    return _CJK_YEAR.sub(lambda match: year(int(match[1]), rules.code), text)


def _korean_month(month: int) -> str:
    return {6: "유", 10: "시"}.get(month) or cardinal(month, "ko")


def _speak_korean_months(text: str, _data: LanguageRules) -> str:
    return _KOREAN_MONTH.sub(lambda match: f"{_korean_month(int(match[1]))}월", text)


def _speak_german_short_dates(text: str, rules: LanguageRules) -> str:
    def spoken(match: re.Match[str]) -> str:
        day, month = int(match[2]), int(match[3])
        if not (1 <= day <= 31 and 1 <= month <= 12):
            return match[0]
        before = text[: match.start()] + match[1]
        words = german_ordinal(day, before) or f"{ordinal(day, 'de')}r"
        # At the end of the sentence the date's stop is the sentence's too.
        stop = "" if match[5] else "."
        return f"{match[1]}{words} {rules.months[month - 1]}{stop}"

    return _GERMAN_DAY_MONTH.sub(spoken, text)


_SPECIAL: Final[dict[str, Callable[[str, LanguageRules], str]]] = {
    "de": _speak_german_short_dates,
    "en": _speak_english_decades,
    "ru": _speak_russian_years,
    "zh": _speak_chinese_years,
    "ko": _speak_korean_months,
}


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


def speak_ordinals(text: str, rules: LanguageRules) -> str:
    """Replace ordinals by words where their form is certain."""
    speaker = _ORDINALS.get(rules.code)
    return speaker(text, rules) if speaker else text


def german_ordinal(value: int, before: str) -> str | None:
    """Return a German ordinal, declined as the words before it ask, or None if they do not tell."""
    if listed := _GERMAN_LISTED.search(before):
        return german_ordinal(value, before[: listed.start()])
    words = re.findall(r"\w+", before[-40:].lower())
    if not words or not before[-1:].isspace():
        return None
    last = words[-1]
    lists = language_rules("de").lists
    stem = ordinal(value, "de")
    if last == "der":
        dative = len(words) > 1 and words[-2] in lists["dative_prepositions"]
        return f"{stem}n" if dative else stem
    if last in lists["ordinal_e_after"]:
        return stem
    return f"{stem}n" if last in lists["ordinal_en_after"] else None


def _english_ordinals(text: str, _data: LanguageRules) -> str:
    return _ENGLISH_ORDINAL.sub(lambda match: ordinal(int(match[1]), "en"), text)


def _german_ordinals(text: str, _data: LanguageRules) -> str:
    def spoken(match: re.Match[str]) -> str:
        return german_ordinal(int(match[1]), text[: match.start()]) or match[0]

    text = _GERMAN_DECADE.sub(lambda match: f"{year(int(match[1]), 'de')}er", text)
    return _GERMAN_ORDINAL.sub(spoken, text)


def _french_ordinals(text: str, rules: LanguageRules) -> str:
    def spoken(match: re.Match[str]) -> str:
        value, ending = int(match[1]), match[2]
        if ending.startswith("nd"):
            return "seconde" if ending == "nde" else "second"
        if (ending in {"er", "re", "ère"}) != (value == 1):
            return match[0]
        return ordinal(value, rules.code, gender="m" if ending == "er" else "f")

    return _FRENCH_ORDINAL.sub(spoken, text)


def _romance_ordinals(text: str, rules: LanguageRules) -> str:
    if nouns := rules.lists["ordinal_before"]:
        # "al 2° piano" is no temperature.
        text = re.sub(rf"(?<=[0-9])°(?= (?:{'|'.join(nouns)})(?![{LETTER}]))", "º", text)

    def spoken(match: re.Match[str]) -> str:
        value, ending = int(match[1]), match[2]
        if ending not in "ºª" and rules.code != "es":
            return match[0]
        words = ordinal(value, rules.code, gender="f" if ending in {"ª", "ra", "da", "ta"} else "m")
        # "primer piso", "tercer piso": the short form before a noun.
        shortened = ending == "er" or (ending == "º" and NEXT_WORD.match(text, match.end()))
        if rules.code == "es" and shortened:
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


def _russian_ordinals(text: str, rules: LanguageRules) -> str:
    def spoken(match: re.Match[str]) -> str:
        gender, case = _RUSSIAN_ENDINGS[match[2]]
        return ordinal(int(match[1]), rules.code, gender=gender, case=case)

    return _RUSSIAN_ORDINAL.sub(spoken, text)


def _korean_ordinals(text: str, rules: LanguageRules) -> str:
    def spoken(match: re.Match[str]) -> str:
        value = int(match[1])
        words = "첫" if value == 1 else cardinal(value, rules.code, gender="native")
        return f"{words} 번째"

    return _KOREAN_ORDINAL.sub(spoken, text)


_ORDINALS: Final[dict[str, Callable[[str, LanguageRules], str]]] = {
    "en": _english_ordinals,
    "de": _german_ordinals,
    "fr": _french_ordinals,
    "es": _romance_ordinals,
    "pt": _romance_ordinals,
    "it": _romance_ordinals,
    "ru": _russian_ordinals,
    "ko": _korean_ordinals,
}
