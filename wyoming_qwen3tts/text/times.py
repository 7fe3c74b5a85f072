"""Times of day and durations as they are spoken."""

import re
from functools import cache

from wyoming_qwen3tts.text.numbers import cardinal, form_index
from wyoming_qwen3tts.text.quantities import (
    LETTER,
    NOT_BEFORE,
    SPACE,
    Numeral,
    case_before,
    spell_quantity,
)
from wyoming_qwen3tts.text.rules import LanguageRules, language_rules

_HALF_DAY = rf"(?P<half>{SPACE}?(?:[ap]\.{SPACE}?m\.|[ap]m|[AP]\.{SPACE}?M\.|[AP]M)(?![{LETTER}]))"
# "2h 15m", where the minutes are no meters.
_DURATION = re.compile(
    rf"(?<![{LETTER}0-9.,:])([0-9]+){SPACE}?h{SPACE}?([0-9]+){SPACE}?m(?:in)?"
    rf"(?:{SPACE}?([0-9]+){SPACE}?s)?(?![{LETTER}0-9²³/])"
)
_NATIVE_HOURS = 12


def speak_times(text: str, rules: LanguageRules) -> str:
    """Replace times of day by words: "14:30", "2:30 pm", "14.30 Uhr", "14h30", "8 Uhr"."""

    def spoken(match: re.Match[str]) -> str:
        hour = int(match["hour"])
        minute = int(match["minute"] or 0)
        half = match["half"]
        if hour > 24 or minute > 59 or (half and not 1 <= hour <= 12):
            return match[0]
        if rules.code == "ru" and case_before(text, match.start(), rules) != "n":
            return match[0]
        words = _spell_time(hour, minute, half[:-1].strip().lower()[0] if half else None, rules)
        if match["second"] and int(match["second"]):
            second = Numeral("", str(int(match["second"])))
            words = f"{words}, {spell_quantity(second, rules.units['second'], rules)}"
        stop = "." if half and half.endswith(".") and not text[match.end() :].strip() else ""
        return words + stop

    text = _DURATION.sub(lambda match: _spell_duration(match, rules), text)
    for pattern in _patterns(rules.code):
        text = pattern.sub(spoken, text)
    return text


def _spell_duration(match: re.Match[str], rules: LanguageRules) -> str:
    parts = [
        spell_quantity(Numeral("", digits), rules.units[unit], rules)
        for unit, digits in zip(("hour", "minute", "second"), match.groups(), strict=True)
        if digits
    ]
    return ("" if rules.code in {"zh", "ja"} else " ").join(parts)


def _spell_time(hour: int, minute: int, half: str | None, rules: LanguageRules) -> str:
    if rules.code == "en":
        return _spell_english(hour, minute, half)
    if half is not None:
        hour = hour % 12 + (12 if half == "p" else 0)
    times = rules.times
    index = form_index(hour, "", rules.code, 3 if rules.code == "ru" else 2)
    if minute == 0:
        patterns = times.hour
    elif minute < 10 and times.minutes_below_ten:
        patterns = times.minutes_below_ten
    else:
        patterns = times.minutes
    pattern = patterns[min(index, len(patterns) - 1)]
    return pattern.format(
        h=_spell_hour(hour, rules),
        m=cardinal(minute, rules.code, gender=times.minute_gender),
    )


def _spell_hour(hour: int, rules: LanguageRules) -> str:
    if rules.code == "de" and hour == 1:
        return "ein"
    gender = rules.times.hour_gender
    if rules.code == "ko" and 1 <= hour <= _NATIVE_HOURS:
        gender = "native"
    if rules.code == "zh":
        gender = "m"
    return cardinal(hour, rules.code, gender=gender)


def _spell_english(hour: int, minute: int, half: str | None) -> str:
    """Twelve-hour clock: "14:30" is "two thirty PM", "7:05" is "seven oh five"."""
    suffix = ""
    if half is not None:
        suffix = f" {half.upper()}M"
    elif hour > 12 or hour == 0:
        suffix = " PM" if 12 < hour < 24 else " AM"
    spoken_hour = cardinal((hour - 1) % 12 + 1, "en")
    if minute == 0:
        return f"{spoken_hour}{suffix}" if suffix else f"{spoken_hour} o'clock"
    between = " oh " if minute < 10 else " "
    return f"{spoken_hour}{between}{cardinal(minute, 'en')}{suffix}"


@cache
def _patterns(code: str) -> tuple[re.Pattern[str], ...]:
    times = language_rules(code).times
    start = rf"(?<![{LETTER}0-9:.,/])"
    hour = r"(?P<hour>[01]?[0-9]|2[0-4])"
    minute = r"(?P<minute>[0-5][0-9])"
    second = r"(?P<second>[0-5][0-9])"
    # "14:30:00.125+01:00", as machines write it.
    zone = r"(?:\.[0-9]+)?(?:Z|[+-][0-9]{2}:[0-9]{2})?"
    suffixes = "|".join(re.escape(word) for word in times.suffixes)
    suffix = rf"(?:{SPACE}?(?:{suffixes}){NOT_BEFORE})" if suffixes else r"(?:(?!))"
    nothing = r"(?P<second>(?!))?(?P<half>(?!))?"
    patterns = [
        rf"{start}{hour}:{minute}(?::{second}{zone})?(?![0-9:]|\.[0-9])(?:{_HALF_DAY}|{suffix})?",
        rf"{start}{hour}(?P<minute>(?!))?(?P<second>(?!))?{_HALF_DAY}",
    ]
    if times.dot:
        patterns.append(rf"{start}{hour}\.{minute}{suffix}{nothing}")
    if times.letter:
        patterns.append(
            rf"{start}{hour}{SPACE}?{times.letter}{SPACE}?{minute}{NOT_BEFORE}{nothing}"
        )
        patterns.append(
            rf"{start}{hour}{SPACE}?{times.letter}{NOT_BEFORE}(?P<minute>(?!))?{nothing}"
        )
    if code in {"de", "fr", "en"}:
        patterns.append(rf"{start}{hour}{suffix}(?P<minute>(?!))?{nothing}")
    return tuple(re.compile(pattern) for pattern in patterns)
