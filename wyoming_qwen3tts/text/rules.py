"""The tables of a language in ``text/data``, as dataclasses."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

import yaml

from wyoming_qwen3tts.errors import ConfigError

LANGUAGES: tuple[str, ...] = ("zh", "en", "ja", "ko", "de", "fr", "ru", "pt", "es", "it")
"""Plain codes of the languages that the models speak."""


@dataclass(frozen=True)
class Term:
    """A word that follows a number: a unit, a currency, a scale such as "million"."""

    gender: str
    """"m", "f" or "n"; "n" also where the number does not agree; "native": Korean numerals."""
    forms: tuple[str, ...]
    """One form for all numbers; or for one and many; or, in Russian, for one, few and many."""


@dataclass(frozen=True)
class Times:
    """Patterns for a time of day; ``{h}`` and ``{m}`` stand for the spoken numbers."""

    hour: Sequence[str]
    minutes: Sequence[str]
    minutes_below_ten: Sequence[str] = ()
    suffixes: Sequence[str] = ()
    """Words that belong to the time in writing: "14:30 Uhr"."""
    letter: str | None = None
    """Letter that may stand for the colon: "14h30"."""
    dot: bool = False
    """Whether "14.30" is a time before a suffix."""
    dot_after: Sequence[str] = ()
    """Words after which "14.30" is a time."""
    timers: Sequence[str] = ()
    """Words after which "00:05:00" is a duration."""
    left: Sequence[str] = ()
    """Words before which it is one."""
    hour_gender: str = "n"
    minute_gender: str = "n"


@dataclass(frozen=True)
class LanguageRules:
    """All tables of one language; Chinese and Japanese put no space between words."""

    code: str
    decimal: str
    grouping: str
    """Characters that may separate thousands."""
    words: Mapping[str, str]
    times: Times
    amount: str
    """Pattern for major and minor units of money; empty: decimals are spoken instead."""
    scale_link: str
    """Word between a scale and the currency: "millions **de** dollars"."""
    currencies: Mapping[str, Term]
    minor_currencies: Mapping[str, Term]
    units: Mapping[str, Term]
    unit_symbols: Mapping[str, str]
    """Symbol -> unit, only of units that the language names."""
    currency_symbols: Mapping[str, str]
    symbols: Mapping[str, str]
    scales: Mapping[str, Term]
    dates: Mapping[str, str]
    """Patterns for dates in languages without declension."""
    months: tuple[str, ...]
    months_genitive: tuple[str, ...]
    month_numbers: Mapping[str, int]
    """Every spelling of a month in lower case -> 1 to 12."""
    never_final: frozenset[str]
    """Abbreviations that cannot end a sentence, without their last stop."""
    before_number: frozenset[str]
    """Abbreviations that do not end a sentence when a number follows."""
    may_end: frozenset[str]
    """Dotted or short abbreviations that do end sentences."""
    lists: Mapping[str, tuple[str, ...]]
    """All other word lists; empty where a language has none."""

    @property
    def space(self) -> str:
        """What stands between two words."""
        return "" if self.code in {"zh", "ja"} else " "


@cache
def language_rules(code: str) -> LanguageRules:
    """Return the tables of a language; each file is read once.

    Raises:
        ConfigError: There are no tables for this code.
    """
    if code not in LANGUAGES:
        raise ConfigError(f"No text rules for language {code!r}; known: {', '.join(LANGUAGES)}.")
    table = read_table(f"{code}.yaml")
    abbreviations = table.pop("abbreviations")
    currencies = table.pop("currencies")
    units = _terms(table.pop("units"))
    months, genitive = (tuple(table.pop(key, ())) for key in ("months", "months_genitive"))
    return LanguageRules(
        code=code,
        **table.pop("numbers"),
        words=table.pop("words"),
        times=Times(**table.pop("times")),
        amount=currencies["amount"],
        scale_link=currencies["scale_link"],
        currencies=_terms(currencies["names"]),
        minor_currencies=_terms(currencies["minor"]),
        units=units,
        unit_symbols=_by_symbol("units.yaml", table.pop("extra_symbols", {}), units),
        currency_symbols=_by_symbol(
            "currencies.yaml", currencies.get("extra_symbols", {}), currencies["names"]
        ),
        symbols=table.pop("symbols"),
        scales=_terms(table.pop("scales", {})),
        dates=table.pop("dates", {}),
        months=months,
        months_genitive=genitive,
        month_numbers={
            name.casefold(): number
            for names in (months, genitive, table.pop("month_abbreviations", ()))
            for number, spellings in enumerate(names, start=1)
            for name in (spellings if isinstance(spellings, list) else [spellings])
            if name
        },
        never_final=frozenset(abbreviations.get("never_final", ())),
        before_number=frozenset(abbreviations.get("before_number", ())),
        may_end=frozenset(abbreviations.get("may_end", ())),
        lists=defaultdict(tuple, {name: tuple(words) for name, words in table.items()}),
    )


@cache
def stage_directions() -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the first words of stage directions: what is done, and what is heard; lower case."""
    table = read_table("stage_directions.yaml")
    actions = tuple(word.casefold() for row in table["actions"] for word in row)
    return actions, tuple(word.casefold() for row in table["sounds"] for word in row)


def _by_symbol(
    name: str, extra: Mapping[str, Sequence[str]], named: Mapping[str, Any]
) -> dict[str, str]:
    return {
        symbol: key
        for table in (read_table(name), extra)
        for key, symbols in table.items()
        for symbol in symbols
        if key in named
    }


def read_table(name: str) -> dict[str, Any]:
    """Return the content of a file in ``text/data``."""
    text = files("wyoming_qwen3tts.text").joinpath("data", name).read_text(encoding="utf-8")
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    table: dict[str, Any] = yaml.load(text, Loader=loader)  # noqa: S506  a safe loader, in C if there
    return table


def _terms(table: Mapping[str, Any]) -> dict[str, Term]:
    rows = {str(name): ["m", row] if isinstance(row, str) else row for name, row in table.items()}
    return {name: Term(row[0], tuple(row[1:])) for name, row in rows.items()}
