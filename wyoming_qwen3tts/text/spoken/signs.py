"""Ranges, telephone numbers and the signs between numbers, as they are spoken."""

import re

from wyoming_qwen3tts.text.language_data import LanguageData
from wyoming_qwen3tts.text.spoken.number_words import spell_digits
from wyoming_qwen3tts.text.spoken.numerals import LETTER, SPACE

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


def speak_phone_numbers(text: str, data: LanguageData) -> str:
    """Replace telephone numbers by their digits."""

    def spoken(match: re.Match[str]) -> str:
        groups = re.findall(r"[0-9]+", match[0])
        if sum(map(len, groups)) < 7:
            return match[0]
        comma = {"zh": "，", "ja": "、"}.get(data.code, ", ")
        words = comma.join(spell_digits(group, data.code) for group in groups)
        glue = "" if data.code in {"zh", "ja"} else " "
        return f"{data.words['plus']}{glue}{words}" if match[0][0] == "+" else words

    return _PHONE.sub(spoken, text)


def speak_ranges(text: str, data: LanguageData) -> str:
    """Put the word for "to" between two numbers with a dash: "3–5 kg", "8-10"."""
    word = data.words["range"]
    if not word:
        return text
    joined = {"zh": word, "ja": word, "ko": f"{word} "}.get(data.code, f" {word} ")

    def spoken(match: re.Match[str]) -> str:
        first, dash, last = match.groups()
        if dash == "-" and not _ascending(first, last):
            return match[0]
        return f"{first}{joined}{last}"

    if data.code in {"zh", "ja", "ko"}:
        text = _TILDE_RANGE.sub(joined, text)
    text = _MARKED_RANGE.sub(rf"\1{joined}", text)
    return _RANGE.sub(spoken, text)


def _ascending(first: str, last: str) -> bool:
    """Whether "first-last" is a range and not a score, a code or a telephone number."""
    if first[0] == "0" != first or len(first) > 5 or len(last) > 5:
        return ":" in first and ":" in last
    low, high = (float(part.replace(",", ".").replace(":", ".")) for part in (first, last))
    return low < high


def speak_symbols(text: str, data: LanguageData) -> str:
    """Replace signs between and before numbers by words: "2 × 3", "#5", "≈ 20", "A & B"."""
    for symbol, word in data.symbols.items():
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
    if times := data.symbols.get("×"):
        text = re.sub(r"(?<=[0-9])( ?)[xX]\1(?=[0-9])", f" {times} ", text)
    if data.code in {"zh", "ja"}:
        return re.sub(r"(?<=[\u3040-\u9fff]) (?=[0-9])|(?<=[0-9]) (?=[\u3040-\u9fff])", "", text)
    return text
