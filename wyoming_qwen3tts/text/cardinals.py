"""Plain numbers, telephone numbers, ranges and the signs between numbers, as they are spoken."""

import re
from functools import cache
from typing import Final

from wyoming_qwen3tts.text.numbers import cardinal, spell_digits, year
from wyoming_qwen3tts.text.quantities import (
    LETTER,
    NEXT_WORD,
    NOT_AFTER,
    NOT_BEFORE,
    SPACE,
    Numeral,
    case_before,
    gender_of_number,
    parse_numeral,
    signed_number_pattern,
    spell_number,
)
from wyoming_qwen3tts.text.rules import LanguageRules, language_rules

_RANGE = re.compile(
    rf"(?<![0-9A-Za-z.,/:–-])([0-9]+(?:[.,:][0-9]+)?){SPACE}?([–—-]){SPACE}?"
    rf"([0-9]+(?:[.,:][0-9]+)?)(?![0-9.,:]*[–—/-]?[0-9])"
)
# "5pm-6pm", "18 °C–22 °C"
_MARKED_RANGE = re.compile(
    rf"(?<=[0-9])({SPACE}?(?:[ap]m|°[CF]?|%|€)){SPACE}?[–—-]{SPACE}?(?=[0-9])"
)
_TILDE_RANGE = re.compile(r"(?<=[0-9])\s?[~～〜]\s?(?=[0-9])")
_PHONE_FORMS = (
    r"\+[0-9][0-9 ()/.-]{6,20}[0-9]",
    r"\(?0[0-9]{1,5}\)?[ /-][0-9][0-9 /-]{3,14}[0-9]",
    r"0[0-9](?:[ .][0-9]{2}){4}",
    r"[0-9]{3}-[0-9]{3}-[0-9]{4}",
    r"\([0-9]{3}\) ?[0-9]{3}-[0-9]{4}",
    r"[0-9]{1,6}(?:-[0-9]{1,7}){3,}",
)
_PHONE = re.compile(rf"(?<![{LETTER}0-9.,])(?:{'|'.join(_PHONE_FORMS)})(?![{LETTER}0-9])")


def speak_phone_numbers(text: str, rules: LanguageRules) -> str:
    """Replace telephone numbers by their digits."""

    def spoken(match: re.Match[str]) -> str:
        groups = re.findall(r"[0-9]+", match[0])
        if sum(map(len, groups)) < 7:
            return match[0]
        comma = {"zh": "，", "ja": "、"}.get(rules.code, ", ")
        words = comma.join(spell_digits(group, rules.code) for group in groups)
        glue = "" if rules.code in {"zh", "ja"} else " "
        return f"{rules.words['plus']}{glue}{words}" if match[0][0] == "+" else words

    return _PHONE.sub(spoken, text)


def speak_ranges(text: str, rules: LanguageRules) -> str:
    """Put the word for "to" between two numbers with a dash: "3–5 kg", "8-10"."""
    word = rules.words["range"]
    if not word:
        return text
    joined = {"zh": word, "ja": word, "ko": f"{word} "}.get(rules.code, f" {word} ")

    def spoken(match: re.Match[str]) -> str:
        first, dash, last = match.groups()
        if dash == "-" and not _ascending(first, last):
            return match[0]
        return f"{first}{joined}{last}"

    if rules.code in {"zh", "ja", "ko"}:
        text = _TILDE_RANGE.sub(joined, text)
    text = _MARKED_RANGE.sub(rf"\1{joined}", text)
    return _RANGE.sub(spoken, text)


def _ascending(first: str, last: str) -> bool:
    """Whether "first-last" is a range and not a score, a code or a telephone number."""
    if first[0] == "0" != first or len(first) > 5 or len(last) > 5:
        return ":" in first and ":" in last
    low, high = (float(part.replace(",", ".").replace(":", ".")) for part in (first, last))
    return low < high


def speak_symbols(text: str, rules: LanguageRules) -> str:
    """Replace signs between and before numbers by words: "2 × 3", "#5", "≈ 20", "A & B"."""
    for symbol, word in rules.symbols.items():
        escaped = re.escape(symbol)
        if symbol in "&=+":
            text = re.sub(rf"(?<=\S){SPACE}{escaped}{SPACE}(?=\S)", f" {word} ", text)
            if symbol != "&":
                text = re.sub(rf"(?<=[0-9]){escaped}(?=[0-9])", f" {word} ", text)
        elif symbol in "×÷":
            text = re.sub(rf"(?<=[\w)%]){SPACE}?{escaped}{SPACE}?(?=[\w(])", f" {word} ", text)
        else:
            pattern = rf"(?<![\w{escaped}]){escaped}{SPACE}?(?=[0-9])"
            text = re.sub(pattern, f"{word} ", text)
    if times := rules.symbols.get("×"):
        text = re.sub(r"(?<=[0-9])( ?)[xX]\1(?=[0-9])", f" {times} ", text)
    if rules.code in {"zh", "ja"}:
        return re.sub(r"(?<=[\u3040-\u9fff]) (?=[0-9])|(?<=[0-9]) (?=[\u3040-\u9fff])", "", text)
    return text


_PREVIOUS_WORD = re.compile(r"(\w+)\W{1,2}$")
_LONGEST_PLAIN: Final = 9
_DOTTED = re.compile(rf"(?<![{LETTER}0-9.])[0-9]+(?:\.[0-9]+){{2,}}(?![{LETTER}0-9]|\.[0-9])")
_HALVES: Final = {"½": "5", "¼": "25", "¾": "75"}
_HALF = re.compile(rf"(?<![{LETTER}0-9.,])([0-9]+)([½¼¾])(?![0-9])")
_VERSION_WORDS: Final = frozenset(
    ["version", "versión", "versão", "versione", "версия", "firmware", "release", "android", "ios",
     "python", "kapitel", "abschnitt", "chapitre", "capítulo", "capitolo", "глава"]
)  # fmt: skip
_ORDINAL_STOP = re.compile(rf"\.{SPACE}[{LETTER}]")


def speak_numbers(text: str, rules: LanguageRules) -> str:
    """Replace numbers that are left by words, unless agreement with a noun is uncertain."""
    text = _HALF.sub(
        lambda match: f"{match[1]}{rules.decimal}{_HALVES[match[2]]}",
        text,
    )
    if "dot" in rules.words:
        text = _speak_dotted(text, rules)
    if rules.code == "en":
        text = _speak_english_years(text, rules)

    def spoken(match: re.Match[str]) -> str:
        return _spell_plain(match, text, rules) or match[0]

    return _plain_pattern(rules.code).sub(spoken, text)


def _spell_plain(match: re.Match[str], text: str, rules: LanguageRules) -> str | None:
    """Return a plain number as words, or None where it is better left as it is."""
    code = rules.code
    numeral = parse_numeral(match[0], rules)
    following = text[match.end() : match.end() + 40]
    before = text[max(0, match.start() - 24) : match.start()]
    if len(numeral.digits) > _LONGEST_PLAIN and match[0].isdigit():
        return spell_digits(numeral.digits, code)
    if _is_version(match[0], before, rules):
        return _speak_parts(match[0], rules)
    if code == "de" and _ORDINAL_STOP.match(following):
        return None
    if code == "de" and _is_german_year(match[0], before, following):
        return year(numeral.value, code)
    case = case_before(text, match.start(), rules)
    if case is None:
        return None
    gender = "n"
    if not numeral.fraction:
        agreed = gender_of_number(numeral.value, before, following, rules, case)
        if agreed is None:
            return None
        gender = agreed
    words = spell_number(numeral, rules, gender=gender, case=case)
    # 세 개: Korean counts with a space.
    return f"{words} " if words and gender == "native" and following[:1] != " " else words


@cache
def _plain_pattern(code: str) -> re.Pattern[str]:
    return re.compile(signed_number_pattern(code) + NOT_BEFORE)


def _is_version(number: str, before: str, rules: LanguageRules) -> bool:
    """Whether a point is no decimal mark: "Version 2.0" where decimals have a comma."""
    word = _PREVIOUS_WORD.search(before)
    if rules.decimal != "," or "." not in number or "," in number or word is None:
        return False
    return word[1].lower() in _VERSION_WORDS


def _is_german_year(number: str, before: str, following: str) -> bool:
    if not (len(number) == 4 and number.isdigit() and 1100 <= int(number) < 2000):
        return False
    word = _PREVIOUS_WORD.search(before)
    if word and word[1].lower() in language_rules("de").lists["year_after"]:
        return True
    next_word = NEXT_WORD.match(following)
    return int(number) >= 1900 and (next_word is None or next_word[1][0].islower())


def _speak_english_years(text: str, rules: LanguageRules) -> str:
    def spoken(match: re.Match[str]) -> str:
        value = int(match[1])
        word = _PREVIOUS_WORD.search(text, max(0, match.start() - 16), match.start())
        previous = word[1].lower() if word else ""
        in_time = previous in rules.lists["year_after"] or previous in rules.month_numbers
        next_word = NEXT_WORD.match(text, match.end())
        counts = next_word is not None and next_word[1].endswith("s") and next_word[1].islower()
        if counts or not (in_time or value >= 1900):
            return match[0]
        return year(value, "en")

    pattern = rf"{NOT_AFTER}(?<![-−–+])(1[1-9][0-9]{{2}}|20[0-9]{{2}})(?![{LETTER}0-9]|[.,:][0-9])"
    return re.sub(pattern, spoken, text)


def _speak_dotted(text: str, rules: LanguageRules) -> str:
    """Speak versions and addresses of networks: "1.2.3", "192.168.1.10"."""

    def spoken(match: re.Match[str]) -> str:
        parts = match[0].split(".")
        thousands = all(len(part) == 3 for part in parts[1:]) and 0 < len(parts[0]) <= 3
        is_address = len(parts) == 4 and all(int(part) < 256 for part in parts)
        if thousands and parts[0] != "0" and not is_address:
            return cardinal(int("".join(parts)), rules.code)
        return _speak_parts(match[0], rules)

    return _DOTTED.sub(spoken, text)


def _speak_parts(dotted: str, rules: LanguageRules) -> str:
    glue = "" if rules.code in {"zh", "ja"} else " "
    numbers = [spell_number(Numeral("", part), rules) or part for part in dotted.split(".")]
    return f"{glue}{rules.words['dot']}{glue}".join(numbers)
