"""Whether a full stop belongs to an abbreviation, an initial or an ordinal."""

import re
from dataclasses import dataclass
from enum import Enum
from functools import cache

from wyoming_qwen3tts.text.rules import LANGUAGES, language_rules


class Period(Enum):
    """What a single full stop before white space can be."""

    SENTENCE = "the end of a sentence, if the next word may start one"
    ABBREVIATION = "part of a word, whatever comes next"
    BEFORE_NUMBER = "part of a word if a number comes next"
    ORDINAL = "part of an ordinal number, if the next word is one that follows ordinals"


@dataclass(frozen=True)
class Abbreviations:
    """Abbreviations of one language, or the safe ones of all of them."""

    never_final: frozenset[str]
    before_number: frozenset[str]
    may_end: frozenset[str]
    ordinal_after: frozenset[str]
    ordinal_before: frozenset[str]


# Letters and stops that may make up one abbreviation: "z. B", "U.S.A", "c.-à-d", "т. д".
_CHAIN = re.compile(
    r"(?<![^\s.\-(\[{\"'“‘«„*_/])(?:[^\W\d]{1,3}\.[ \u00a0\u202f]?-?)*(?<!\w)\w[\w\-'’]*$"
)
_LIST_MARK = re.compile(r"(?:^|\n)[ \t>]*(?:[-*+•][ \t]+)?[0-9]{1,3}$")
_BARE_NUMBER = re.compile(r"(?<![\w.,:/-])[0-9]{1,2}$")
_WORD_BEFORE = re.compile(r"(\w+)\W{1,3}[0-9]{1,2}$")
_UNIT_LETTER = re.compile(r"[0-9][ \u00a0\u202f]?\w$")
_UNIT = re.compile(r"[0-9][ \u00a0\u202f]?[^\W\d_A-ZА-Я]{1,4}$")
_VOWEL = re.compile(r"[aeiouyäöüáéíóúâêîôûàèìòùãõаеёиоуыэюя]")
# Longest text before a stop that matters: an abbreviation, or a word and a number.
_LOOK_BACK = 40


@cache
def abbreviations(language: str | None) -> Abbreviations:
    """Return the tables of a language; None: what is safe whatever the language is."""
    tables = [language_rules(code) for code in ([language] if language else LANGUAGES)]
    never_final = frozenset().union(*(rules.never_final for rules in tables))
    ordinal_after = frozenset().union(*(rules.lists["ordinal_after"] for rules in tables))
    return Abbreviations(
        never_final=never_final if language else frozenset(filter(_safe_anywhere, never_final)),
        before_number=frozenset().union(*(rules.before_number for rules in tables)),
        may_end=frozenset(_key(entry) for rules in tables for entry in rules.may_end),
        ordinal_after=ordinal_after,
        ordinal_before=frozenset().union(
            *({*rules.lists["ordinal_before"], *rules.month_numbers} for rules in tables)
        ),
    )


def classify_period(text: str, start: int, stop: int, tables: Abbreviations) -> Period:
    """Say what the full stop at ``text[stop]`` is, judged by the text from ``start`` to it."""
    before = text[max(start, stop - _LOOK_BACK) : stop]
    if _LIST_MARK.search(before) and (
        stop - start < _LOOK_BACK or "\n" in before.rstrip("0123456789")
    ):
        return Period.ABBREVIATION
    if tables.ordinal_after and _BARE_NUMBER.search(before):
        word = _WORD_BEFORE.search(before)
        is_ordinal = word is not None and word[1].casefold() in tables.ordinal_after
        return Period.ABBREVIATION if is_ordinal else Period.ORDINAL
    chain = _CHAIN.search(before)
    return _classify_chain(chain[0], before, tables) if chain else Period.SENTENCE


def _classify_chain(chain: str, before: str, tables: Abbreviations) -> Period:
    # "2026 г. Москва" may be two sentences, "г. Москва" is a city.
    is_city = chain == "г" and not _UNIT_LETTER.search(before)
    if (_key(chain) in tables.may_end and not is_city) or _UNIT.search(before):
        return Period.SENTENCE
    last = re.split(r"[.\s]", chain)[-1].lstrip("-")
    if _key(last) in tables.may_end and (len(last) > 1 or _UNIT_LETTER.search(before)):
        return Period.SENTENCE
    if _listed(chain, tables.never_final) or _listed(last, tables.never_final):
        return Period.ABBREVIATION
    if _listed(last, tables.before_number):
        return Period.BEFORE_NUMBER
    pieces = [piece for piece in re.split(r"[.\s\-]+", chain) if piece]
    # "U.S.A." and "u. s. w." are one word each; "Ja. Gut." is two sentences.
    longest = 1 if re.search(r"\s", chain) else 3
    is_dotted = len(pieces) > 1 and all(len(piece) <= longest for piece in pieces)
    is_initial = len(last) == 1 and last not in "яЯéèÉÈ" and not _UNIT_LETTER.search(before)
    is_cased = last.lower() != last.upper()
    return Period.ABBREVIATION if is_cased and (is_dotted or is_initial) else Period.SENTENCE


def _safe_anywhere(entry: str) -> bool:
    # What is short for a word here may be a word elsewhere: "mind.", "gem.", "es.", "ex.".
    return not entry.islower() or "." in entry or not _VOWEL.search(entry)


def _listed(word: str, entries: frozenset[str]) -> bool:
    # An entry in small letters also stands at the start of a sentence ("Ca. 5"); one with a
    # capital is written so ("Art." is not "art.").
    return word in entries or word.replace(" ", "") in entries or word.lower() in entries


def _key(chain: str) -> str:
    return re.sub(r"[\s\u00a0\u202f]", "", chain).casefold()
