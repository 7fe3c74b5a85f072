"""Times of day and durations as they are spoken."""

import re
from collections.abc import Iterable
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


def speak_times(text: str, rules: LanguageRules) -> str:
    """Replace times of day by words: "14:30", "2:30 pm", "14.30 Uhr", "14h30", "8 Uhr"."""
    for pattern in (_DURATION, _timer_pattern(rules.code)):
        text = pattern.sub(lambda match: _spell_duration(match, rules), text)
    for pattern in _patterns(rules.code):
        text = pattern.sub(lambda match: _replace_time(match, rules), text)
    return text


def _spell_duration(match: re.Match[str], rules: LanguageRules) -> str:
    parts = [
        spell_quantity(Numeral("", str(int(digits))), rules.units[unit], rules)
        for unit, digits in zip(("hour", "minute", "second"), match.groups(), strict=True)
        if digits and int(digits)
    ]
    return rules.space.join(parts) or match[0]


def _replace_time(match: re.Match[str], rules: LanguageRules) -> str:
    hour, minute, half = int(match["hour"]), int(match["minute"] or 0), match["half"] or ""
    if (
        (rules.code == "en" and match["hour"] == "0" and not half)
        or hour > 24
        or minute > 59
        or (half and not 1 <= hour <= 12)
    ):
        return match[0]
    if rules.code == "ru" and case_before(match.string, match.start(), rules) != "n":
        return match[0]
    words = _spell_time(hour, minute, half.strip().lower()[:1], rules)
    if match["second"] and int(match["second"]):
        second = Numeral("", str(int(match["second"])))
        words = f"{words}, {spell_quantity(second, rules.units['second'], rules)}"
    ends_text = half.endswith(".") and not match.string[match.end() :].strip()
    return words + "." * ends_text


def _spell_time(hour: int, minute: int, half: str, rules: LanguageRules) -> str:
    """Return a time as words; ``half`` is "a" before noon, "p" after it, or nothing."""
    code, times = rules.code, rules.times
    if code == "en":
        return _spell_english(hour, minute, half)
    if half:
        hour = hour % 12 + (12 if half == "p" else 0)
    below_ten = times.minutes_below_ten if minute < 10 else ()
    patterns = (below_ten or times.minutes) if minute else times.hour
    index = form_index(hour, "", code, 3 if code == "ru" else 2)
    gender = times.hour_gender
    if code == "ko" and 1 <= hour <= 12:
        gender = "native"
    spoken_hour = "ein" if code == "de" and hour == 1 else cardinal(hour, code, gender=gender)
    spoken_minute = cardinal(minute, code, gender=times.minute_gender)
    return patterns[min(index, len(patterns) - 1)].format(h=spoken_hour, m=spoken_minute)


def _spell_english(hour: int, minute: int, half: str) -> str:
    """Twelve-hour clock: "14:30" is "two thirty PM", "7:05" is "seven oh five"."""
    if not half and (hour > 12 or hour == 0):
        half = "p" if 12 < hour < 24 else "a"
    words = cardinal((hour - 1) % 12 + 1, "en")
    if minute:
        words += f"{' oh ' if minute < 10 else ' '}{cardinal(minute, 'en')}"
    elif not half:
        return f"{words} o'clock"
    return f"{words} {half.upper()}M" if half else words


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
    letter_h = rf"{SPACE}?h{NOT_BEFORE}"
    no_minute = r"(?P<minute>(?!))?"
    patterns = [
        rf"{start}{hour}:{minute}(?::{second}{zone})?(?![0-9:]|\.[0-9])(?:{_HALF_DAY}|{suffix}|{letter_h})?",
        rf"{start}{hour}{no_minute}(?P<second>(?!))?{_HALF_DAY}",
    ]
    if times.dot:
        patterns.append(rf"{start}{hour}\.{minute}{suffix}{nothing}")
    if times.dot_after:
        end = rf"(?![{LETTER}0-9]|[.,:][0-9]|{SPACE}?[°%€$])"
        patterns.append(rf"{_after_any(times.dot_after)}{hour}\.{minute}{end}{nothing}")
    if times.letter:
        letter = f"{SPACE}?{times.letter}"
        patterns.append(rf"{start}{hour}{letter}{SPACE}?{minute}{NOT_BEFORE}{nothing}")
        patterns.append(rf"{start}{hour}{letter}{NOT_BEFORE}{no_minute}{nothing}")
    if code in {"de", "fr", "en"}:
        patterns.append(rf"{start}{hour}{suffix}{no_minute}{nothing}")
    return tuple(map(re.compile, patterns))


@cache
def _timer_pattern(code: str) -> re.Pattern[str]:
    """Return the pattern of hours, minutes and seconds after a word like "timer"."""
    timers = _after_any(
        [word + mark for word in language_rules(code).times.timers for mark in ("", ":")]
    )
    left = "|".join(language_rules(code).times.left) or "(?!)"
    duration = r"([0-9]{1,2}):([0-5][0-9]):([0-5][0-9])(?![0-9:]|\.[0-9])"
    return re.compile(
        # A clock shows "00:05:30"; "0:05:30" is a duration by itself.
        rf"(?:{timers}|(?<![0-9:.,])(?=0:)|(?<![0-9:.,])(?=[0-9:]+ ?(?:{left})(?!\w))){duration}"
    )


def _after_any(words: Iterable[str]) -> str:
    # Python's look-behind needs a fixed length, so each word gets its own.
    each = [rf"(?<={word})" if word[0] > "\u2e80" else rf"(?<=\b(?i:{word}) )" for word in words]
    return f"(?:{'|'.join(each or ['(?!)'])})"
