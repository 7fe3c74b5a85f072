"""Calendar dates, years and ordinals as they are spoken."""

import re
from collections.abc import Callable
from functools import cache
from typing import Final

from wyoming_qwen3tts.text.numbers import cardinal, ordinal, year
from wyoming_qwen3tts.text.quantities import LETTER, NEXT_WORD, NOT_AFTER, SPACE
from wyoming_qwen3tts.text.rules import LanguageRules, language_rules

_DAY: Final = "(?P<day>[0-3]?[0-9])"
_MONTH: Final = "(?P<month>[01]?[0-9])"
_YEAR: Final = "(?P<year>[12][0-9]{3})"
_SURE_MONTH: Final = "(?P<month>0?[1-9]|1[0-2])"
_SURE_DAY: Final = "(?P<day>0?[1-9]|[12][0-9]|3[01])"
_YEAR_FIRST = (
    # "2026-11-29T14:30" goes on with a time.
    rf"(?<![0-9A-Za-z-]){_YEAR}-{_SURE_MONTH}-{_SURE_DAY}"
    r"(?:T(?=[0-9]{2}:[0-9]{2})|(?![0-9A-Za-z-]))",
    rf"(?<![0-9./]){_YEAR}/{_SURE_MONTH}/{_SURE_DAY}(?![0-9/])",
)
_DOTTED: Final = rf"(?<![0-9.]){_DAY}\.{_MONTH}\.{_YEAR}(?![0-9])"
_DOTTED_SHORT: Final = rf"(?<![0-9.]){_DAY}\.{_MONTH}\.(?P<year>[0-9]{{2}})(?![0-9]|\.[0-9])"
_SLASHED_SHORT: Final = (
    r"(?<![0-9./])(?P<day>[0-3][0-9])/(?P<month>[01][0-9])/(?P<year>[23][0-9])(?![0-9/])"
)
_SLASHED: Final = rf"(?<![0-9./]){_DAY}/{_MONTH}/{_YEAR}(?![0-9/])"
_MONTH_FIRST: Final = rf"(?<![0-9./]){_SURE_MONTH}/{_DAY}/{_YEAR}(?![0-9/])"
_YEAR_MONTH = re.compile(
    r"(?<![0-9A-Za-z.,/-])((?:19|20)[0-9]{2})-(0[1-9]|1[0-2])(?![0-9A-Za-z/-])"
)
# What stands after the day, before the month and before the year of a date with a name: "3. Mai".
_NAMED_DATES: Final = {
    "en": ("(?:st|nd|rd|th)?(?: of)?", " ", ",? "),
    "de": (r"\.", f"{SPACE}?", SPACE),
    "es": ("[º°]?", " de ", " del? "),
    "pt": ("[º°]?", " de ", " del? "),
    "ru": ("", SPACE, SPACE),
    "fr": ("(?:er|º|°)?", SPACE, SPACE),
    "it": ("(?:er|º|°)?", SPACE, SPACE),
}


def speak_dates(text: str, rules: LanguageRules) -> str:
    """Replace dates, and years that stand with them, by words."""
    for pattern in _date_patterns(rules.code):
        text = pattern.sub(lambda match: _replace_date(match, rules), text)
    if form := rules.words.get("month_year"):
        text = _YEAR_MONTH.sub(lambda match: _spell_month(match, form, rules), text)
    if rules.code in _PARTS_OF_DATES:
        pattern, speak = _PARTS_OF_DATES[rules.code]
        text = pattern.sub(lambda match: speak(match, rules), text)
    return text


def _spell_month(match: re.Match[str], form: str, rules: LanguageRules) -> str:
    month, code = int(match[2]), rules.code
    number = _korean_month(month) if code == "ko" else cardinal(month, code)
    name = rules.months[month - 1] if rules.months else ""
    return form.format(month=name, m=number, y=year(int(match[1]), code))


@cache
def _date_patterns(code: str) -> tuple[re.Pattern[str], ...]:
    """Return the patterns of dates, each with the groups day, month and year."""
    numeric = [*_YEAR_FIRST, _DOTTED, *([_MONTH_FIRST] if code == "en" else []), _SLASHED]
    if code in {"de", "ru"}:
        numeric.append(_DOTTED_SHORT)
    elif code in {"fr", "es", "it", "pt"}:
        numeric.append(_SLASHED_SHORT)
    patterns = tuple(map(re.compile, numeric))
    if code not in _NAMED_DATES:
        return patterns
    names = sorted(language_rules(code).month_numbers, key=len, reverse=True)
    # "may 5" is not a date, "May 5" is.
    capital = "(?=(?-i:[A-Z]))" if code == "en" else ""
    # The stop of an abbreviated month belongs to it only when something follows.
    month = (
        rf"(?P<month>{capital}(?:{'|'.join(map(re.escape, names))})(?![{LETTER}])"
        r"(?:\.(?=\s[0-9a-zа-я]))?)"
    )
    after_day, before_month, before_year = _NAMED_DATES[code]
    year_word = rf"(?:{SPACE}?(?:года|г\.))?" if code == "ru" else ""
    year_part = rf"(?:{before_year}{_YEAR}(?![0-9]|[.,][0-9]){year_word})?"
    named = [
        rf"(?<![{LETTER}0-9.,:/-]){_DAY}{after_day}{before_month}{month}{year_part}(?![{LETTER}0-9])"
    ]
    if code == "en":
        day = rf"{_DAY}(?:st|nd|rd|th)?(?![0-9:]|\.[0-9]|[{LETTER}])"
        named.insert(0, rf"(?<![{LETTER}0-9]){month} {day}{year_part}")
    return patterns + tuple(re.compile(pattern, re.IGNORECASE) for pattern in named)


def _replace_date(match: re.Match[str], rules: LanguageRules) -> str:
    day, name = int(match["day"]), match["month"].rstrip(".").casefold()
    month = int(name) if name.isdigit() else rules.month_numbers[name]
    if not (1 <= day <= 31 and 1 <= month <= 12):
        return match[0]
    year_of = int(match["year"]) if match["year"] else None
    if year_of is not None and year_of < 100:
        year_of += 2000
    before, after = match.string[: match.start()], match.string[match.end() :]
    words = _spell_date(day, month, year_of, before, after, rules)
    return match[0] if words is None else words + " " * match[0].endswith("T")


def _spell_date(
    day: int, month: int, year_of: int | None, before: str, after: str, rules: LanguageRules
) -> str | None:
    code = rules.code
    if code == "ru":
        return _spell_russian_date(day, month, year_of, before, after, rules)
    name = rules.months[month - 1] if rules.months else ""
    if code in {"en", "de"}:
        words = f"{name} {ordinal(day, code)}"
        if code == "de":
            words = f"{german_ordinal(day, before) or ordinal(day, code) + 'r'} {name}"
        elif before.endswith(("the ", "The ")):
            words = f"{ordinal(day, code)} of {name}"
        comma = "," if code == "en" else ""
        return words if year_of is None else f"{words}{comma} {year(year_of, code)}"
    first = rules.dates.get("first_day")
    spoken_day = first if day == 1 and first else cardinal(day, code)
    month_number = _korean_month(month) if code == "ko" else cardinal(month, code)
    pattern = rules.dates["day_month" if year_of is None else "day_month_year"]
    spoken_year = "" if year_of is None else year(year_of, code)
    return pattern.format(d=spoken_day, m=month_number, month=name, y=spoken_year)


def _spell_russian_date(
    day: int, month: int, year_of: int | None, before: str, after: str, rules: LanguageRules
) -> str | None:
    last = re.search(r"(\w+)\W*$", before[-24:])
    word = last[1].lower() if last else ""
    if word in {"к", "ко", "перед", "между"}:
        return None
    # In a sentence a date mostly says when something happens, which is the genitive.
    alone = not word and not re.match(r"\s*\w", after)
    nominative = alone or word in {"сегодня", "завтра", "вчера", "это", "на", "дата"}
    spoken_day = ordinal(day, "ru", gender="n", case="n" if nominative else "g")
    words = f"{spoken_day} {rules.months_genitive[month - 1]}"
    return words if year_of is None else f"{words} {ordinal(year_of, 'ru', case='g')} года"


def _russian_year(match: re.Match[str], _rules: LanguageRules) -> str:
    found = re.search(r"(\w+)\W$", match.string[max(0, match.start() - 8) : match.start()])
    before = found[1].lower() if found else ""
    noun = match[2]
    if noun == "г.":
        if before not in {"в", "с", "до", "от", "после"}:
            return match[0]
        noun = "году" if before == "в" else "года"
    case = {"год": "n", "года": "g", "году": "p", "годом": "i"}[noun]
    if noun == "году" and before in {"к", "ко", "по"}:
        case = "d"
    return f"{ordinal(int(match[1]), 'ru', case=case)} {noun}"


def _english_decade(match: re.Match[str], _rules: LanguageRules) -> str:
    value = int(match[1])
    words = year(value, "en") if value >= 100 else cardinal(value, "en")
    return f"{words[:-1]}ies" if words.endswith("y") else f"{words}s"


def _korean_month(month: int) -> str:
    return {6: "유", 10: "시"}.get(month) or cardinal(month, "ko")


def _german_day_and_month(match: re.Match[str], rules: LanguageRules) -> str:
    day, month = int(match[2]), int(match[3])
    preposition, next_char = match[1] or "", match[5]
    before = match.string[: match.start()] + preposition
    # "21.5." alone may be a number that ends a sentence; "Termin: 21.10." may not.
    is_alone = not next_char and before.rstrip()[-1:] in {"", ":", ","}
    goes_on = next_char == "," or (match[4] and next_char.islower())
    is_date = preposition or goes_on or (is_alone and len(match[2]) == len(match[3]) == 2)
    if not (is_date and 1 <= day <= 31 and 1 <= month <= 12):
        return match[0]
    words = german_ordinal(day, before) or f"{ordinal(day, 'de')}r"
    # At the end of the sentence the date's stop is the sentence's too.
    stop = "" if next_char else "."
    return f"{preposition}{words} {rules.months[month - 1]}{stop}"


_PARTS_OF_DATES: Final[
    dict[str, tuple[re.Pattern[str], Callable[[re.Match[str], LanguageRules], str]]]
] = {
    "de": (
        re.compile(
            r"(?:\b((?:am|vom|zum|dem|den|der|bis|ab|seit|im|beim)[ \u00a0])|(?<![\w.,:/-]))"
            r"([0-3]?[0-9])\.([01]?[0-9])\.(?![0-9])(?=(\s*)(\S?))",
            re.IGNORECASE,
        ),
        _german_day_and_month,
    ),
    "en": (
        re.compile(
            rf"(?:(?<![\w.,$£€-])(?:['’]|(?<=[Tt]he )(?=[2-9]0)|(?=[12][0-9]{{3}}))|(?<=mid-))"
            rf"(1[7-9][0-9]0|20[0-9]0|[2-9]0)['’]?s(?![{LETTER}0-9])"
        ),
        _english_decade,
    ),
    "ru": (
        re.compile(rf"(?<![0-9.,])([12][0-9]{{3}}){SPACE}?(год|года|году|годом|г\.)(?!\w)"),
        _russian_year,
    ),
    "zh": (
        re.compile(r"(?<![0-9.])[12][0-9]{3}(?=年)"),
        lambda match, _: year(int(match[0]), "zh"),
    ),
    "ko": (
        re.compile(r"(?<![0-9.])(6|10)(?=월)"),
        lambda match, _: _korean_month(int(match[0])),
    ),
}


_ORDINALS: Final = {
    "en": re.compile(rf"{NOT_AFTER}([0-9]{{1,4}})(st|nd|rd|th)\b"),
    "de": re.compile(rf"{NOT_AFTER}([0-9]{{1,3}})(\.)(?={SPACE}[{LETTER}])"),
    "fr": re.compile(rf"{NOT_AFTER}([0-9]{{1,4}})(er|re|ère|nde?|e|ème|eme)(?![{LETTER}])"),
    "es": re.compile(rf"{NOT_AFTER}([0-9]{{1,3}})\.?(º|ª|er|ra|ro|da|do|ta|to)(?![{LETTER}])"),
    "pt": re.compile(rf"{NOT_AFTER}([0-9]{{1,3}})\.?([ºª])(?![{LETTER}])"),
    "it": re.compile(rf"{NOT_AFTER}([0-9]{{1,3}})\.?([ºª])(?![{LETTER}])"),
    "ru": re.compile(rf"{NOT_AFTER}([0-9]{{1,4}})-(й|я|е|го|му|м|ю)(?![{LETTER}])"),
    "ko": re.compile(r"(?<![0-9.,])([0-9]{1,2})( ?)(?=번째)"),
}
_GERMAN_DECADE = re.compile(rf"{NOT_AFTER}(1[0-9]{{2}}0|[1-9]0)er(?![{LETTER}0-9])")
# Gender and case of a Russian ordinal, by its ending.
_RUSSIAN_ENDINGS: Final = {
    "й": ("m", "n"), "я": ("f", "n"), "е": ("n", "n"), "го": ("m", "g"), "му": ("m", "d"),
    "м": ("m", "p"), "ю": ("f", "a"),
}  # fmt: skip


def speak_ordinals(text: str, rules: LanguageRules) -> str:
    """Replace ordinals by words where their form is certain."""
    if rules.code not in _ORDINALS:
        return text
    if rules.code == "de":
        text = _GERMAN_DECADE.sub(lambda match: f"{year(int(match[1]), 'de')}er", text)
    elif nouns := rules.lists["ordinal_before"]:
        # "al 2° piano" is not a temperature.
        text = re.sub(rf"(?<=[0-9])°(?= (?:{'|'.join(nouns)})(?![{LETTER}]))", "º", text)
    return _ORDINALS[rules.code].sub(lambda match: _spell_ordinal(match, rules) or match[0], text)


def _spell_ordinal(match: re.Match[str], rules: LanguageRules) -> str | None:
    code, value, ending = rules.code, int(match[1]), match[2]
    if code == "en":
        return ordinal(value, code)
    if code == "de":
        return german_ordinal(value, match.string[: match.start()])
    if code == "ko":
        return f"{'첫' if value == 1 else cardinal(value, code, gender='native')} "
    if code == "ru":
        gender, case = _RUSSIAN_ENDINGS[ending]
        return ordinal(value, code, gender=gender, case=case)
    if code == "fr":
        if ending.startswith("nd"):
            return "seconde" if ending == "nde" else "second"
        if (ending in {"er", "re", "ère"}) != (value == 1):
            return None
        return ordinal(value, code, gender="m" if ending == "er" else "f")
    words = ordinal(value, code, gender="f" if ending in {"ª", "ra", "da", "ta"} else "m")
    # "primer piso", "tercer piso": the short form before a noun.
    if code == "es" and (
        ending == "er" or (ending == "º" and NEXT_WORD.match(match.string, match.end()))
    ):
        return re.sub(r"\b(primer|tercer)o$", r"\1", words)
    return words


def german_ordinal(value: int, before: str) -> str | None:
    """Return a German ordinal, declined as the words before it ask, or None if they do not tell."""
    # "am 1. und 2. Mai": both are declined alike.
    if listed := re.search(r"(?:[0-9]{1,2}\.)?[0-9]{1,3}\.,? (?:und|oder|bis) $", before):
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
