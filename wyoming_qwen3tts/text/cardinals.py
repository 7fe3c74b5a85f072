"""Plain numbers, telephone numbers, ranges and the signs between numbers, as they are spoken."""

import re
from functools import cache
from typing import Final

from wyoming_qwen3tts.text.numbers import cardinal, ordinal, spell_digits, year
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
    previous_word,
    signed_number_pattern,
    spell_number,
    with_sign,
)
from wyoming_qwen3tts.text.rules import LanguageRules, language_rules, read_table

_RANGE = re.compile(
    rf"(?<![0-9A-Za-z.,/:–-])([0-9]+(?:[.,:][0-9]+)?){SPACE}?([–—-]){SPACE}?"
    rf"([0-9]+(?:[.,:][0-9]+)?)(?![0-9.,:]*[–—/-]?[0-9])"
)
# "5pm-6pm", "18 °C–22 °C"
_MARKED_RANGE = re.compile(
    rf"(?<=[0-9])({SPACE}?(?:[ap]m|°[CF]?|%|€|h(?:[0-5][0-9])?)){SPACE}?[–—-]{SPACE}?(?=[0-9])"
)
_TILDE_RANGE = re.compile(r"(?<=[0-9%C])\s?[~～〜]\s?(?=[-−]?[0-9])")
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
        return with_sign(words, "+" if match[0][0] == "+" else "", rules)

    return _PHONE.sub(spoken, text)


def speak_ranges(text: str, rules: LanguageRules) -> str:
    """Put the word for "to" between two numbers with a dash: "3–5 kg", "8-10"."""
    word = rules.words["range"]
    if not word:
        return text
    joined = f"{word} " if rules.code == "ko" else f"{rules.space}{word}{rules.space}"

    def spoken(match: re.Match[str]) -> str:
        first, dash, last = match.groups()
        return match[0] if dash == "-" and not _ascending(first, last) else first + joined + last

    if rules.code in {"zh", "ja", "ko"}:
        text = _TILDE_RANGE.sub(joined, text)
    return _RANGE.sub(spoken, _MARKED_RANGE.sub(rf"\1{joined}", text))


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
        elif symbol in "<>≤≥":
            # "温度<3": after a letter too.
            spoken = f"{rules.space}{word}{rules.space}"
            text = re.sub(rf"(?<![<>]){SPACE}?{escaped}{SPACE}?(?=[-−]?[0-9])", spoken, text)
        else:
            pattern = rf"(?<![\w{escaped}]){escaped}{SPACE}?(?=[0-9])"
            text = re.sub(pattern, f"{word} ", text)
    if not rules.space:
        return re.sub(
            r"(?<=[\u3040-\u9fff]) (?=[0-9])|(?<=[0-9]) (?=[\u3040-\u9fff])",
            "",
            text,
        )
    return text


_LONGEST_PLAIN: Final = 9
_DOTTED = re.compile(rf"(?<![{LETTER}0-9.])[0-9]+(?:\.[0-9]+){{2,}}(?![{LETTER}0-9]|\.[0-9])")
_ENGLISH_YEAR = re.compile(
    rf"{NOT_AFTER}(?<![-−–+])(?:1[1-9][0-9]{{2}}|20[0-9]{{2}})(?![{LETTER}0-9]|[.,:][0-9])"
)


def speak_numbers(text: str, rules: LanguageRules) -> str:
    """Replace numbers that are left by words, unless agreement with a noun is uncertain."""
    if "dot" in rules.words:
        text = _DOTTED.sub(lambda match: _spell_dotted(match, rules), text)
    if rules.code == "en":
        text = _ENGLISH_YEAR.sub(lambda match: _spell_english_year(match, rules), text)
    pattern = _plain_pattern(rules.code)
    return pattern.sub(lambda match: _spell_plain(match, rules) or match[0], text)


def _spell_plain(match: re.Match[str], rules: LanguageRules) -> str | None:
    """Return a plain number as words, or None where it is better left as it is."""
    code, text = rules.code, match.string
    numeral = parse_numeral(match[0], rules)
    following = text[match.end() : match.end() + 40]
    before = text[max(0, match.start() - 24) : match.start()]
    if len(numeral.digits) > _LONGEST_PLAIN and match[0].isdigit():
        return spell_digits(numeral.digits, code)
    # "Version 2.0" where decimals have a comma: the point is not a decimal mark.
    is_dotted = "." in match[0] and "," not in match[0]
    if is_dotted and previous_word(before) in rules.lists["version_after"]:
        return _spell_parts(match[0], rules)
    if code == "de" and re.match(rf"\.{SPACE}[{LETTER}]", following):
        return None
    if code == "de" and _is_german_year(match[0], before, following, rules):
        return year(numeral.value, code)
    case = case_before(text, match.start(), rules)
    gender: str | None = "n"
    if case is not None and not numeral.fraction:
        gender = gender_of_number(numeral.value, before, following, rules, case)
    if case is None or gender is None:
        return None
    words = spell_number(numeral, rules, gender=gender, case=case)
    # 세 개: Korean counts with a space.
    return f"{words} " if words and gender == "native" and following[:1] != " " else words


@cache
def _plain_pattern(code: str) -> re.Pattern[str]:
    return re.compile(signed_number_pattern(code) + NOT_BEFORE)


def _is_german_year(number: str, before: str, following: str, rules: LanguageRules) -> bool:
    if not (len(number) == 4 and number.isdigit() and 1100 <= int(number) < 2000):
        return False
    next_word = NEXT_WORD.match(following)
    return previous_word(before) in rules.lists["year_after"] or (
        int(number) >= 1900 and (next_word is None or next_word[1][0].islower())
    )


def _spell_english_year(match: re.Match[str], rules: LanguageRules) -> str:
    text, value = match.string, int(match[0])
    previous = previous_word(text[max(0, match.start() - 16) : match.start()])
    in_time = previous in rules.lists["year_after"] or previous in rules.month_numbers
    next_word = NEXT_WORD.match(text, match.end())
    counts = next_word is not None and next_word[1].endswith("s") and next_word[1].islower()
    return match[0] if counts or not (in_time or value >= 1900) else year(value, "en")


def _spell_dotted(match: re.Match[str], rules: LanguageRules) -> str:
    """Return a version or an address of a network as words: "1.2.3", "192.168.1.10"."""
    parts = match[0].split(".")
    thousands = all(len(part) == 3 for part in parts[1:]) and 0 < len(parts[0]) <= 3
    is_address = len(parts) == 4 and all(
        str(int(part)) == part and int(part) < 256 for part in parts
    )
    if thousands and parts[0] != "0" and not is_address:
        return cardinal(int("".join(parts)), rules.code)
    return _spell_parts(match[0], rules)


def _spell_parts(dotted: str, rules: LanguageRules) -> str:
    numbers = [spell_number(Numeral("", part), rules) or part for part in dotted.split(".")]
    return f"{rules.space}{rules.words['dot']}{rules.space}".join(numbers)


_TEMPLATE = re.compile(r"\\([cdmo]?)([1-9])")


def apply_rewrites(text: str, rules: LanguageRules) -> str:
    """Write out codes, numbers to call, fractions, abbreviations and the like."""
    patterns, names = _rewrites(rules.code)

    def fill(match: re.Match[str], template: str) -> str:
        def part(field: re.Match[str]) -> str:
            group = match[int(field[2])] or ""
            if field[1] == "c":
                return cardinal(int(group), rules.code)
            if field[1] == "o":
                return ordinal(int(group), rules.code)
            if field[1] == "d":
                comma = {"zh": "，", "ja": "、"}.get(rules.code, ", ")
                return comma.join(
                    spell_digits(run, rules.code) for run in re.findall("[0-9]+", group)
                )
            return names.get(group, group) if field[1] else group

        return _TEMPLATE.sub(part, template)

    for pattern, template in patterns:
        text = pattern.sub(lambda match, template=template: fill(match, template), text)  # type: ignore[misc]
    return text


@cache
def _rewrites(code: str) -> tuple[list[tuple[re.Pattern[str], str]], dict[str, str]]:
    r"""Return the patterns of all languages and of one, with their templates, and its names.

    In a template ``\1`` is a group, ``\d1`` its digits, ``\c1`` and ``\o1`` the number, and
    ``\m1`` its name; ``{minus}`` is a word of the language.
    """
    table, rules = read_table("rewrites.yaml"), language_rules(code)
    words = {"and": rules.symbols["&"], "times": rules.symbols["×"], "decimal": rules.decimal}
    words |= {"subtract": rules.words["minus"], **rules.words}
    own = table["languages"][code]
    names = {str(short): name for short, name in own.get("names", {}).items()}
    listed = "|".join(sorted(map(re.escape, names), key=len, reverse=True)) or "(?!)"
    rows = [*table["any"], *own["rows"]]
    return [
        (re.compile(pattern.replace("NAME", f"(?:{listed})")), template.format(**words))
        for pattern, template in rows
    ], names
