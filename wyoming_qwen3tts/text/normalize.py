"""Text as people and language models write it -> text to be spoken."""

from collections.abc import Callable, Iterable
from enum import StrEnum
from typing import Final

from wyoming_qwen3tts.errors import ConfigError
from wyoming_qwen3tts.text import markup, punctuation
from wyoming_qwen3tts.text.language import language_code
from wyoming_qwen3tts.text.language_data import LanguageData, language_data
from wyoming_qwen3tts.text.scripts import speakable, unsupported_scripts
from wyoming_qwen3tts.text.spoken.dates import speak_dates
from wyoming_qwen3tts.text.spoken.ordinals import speak_ordinals
from wyoming_qwen3tts.text.spoken.plain_numbers import speak_numbers
from wyoming_qwen3tts.text.spoken.signs import speak_phone_numbers, speak_ranges, speak_symbols
from wyoming_qwen3tts.text.spoken.times import speak_times
from wyoming_qwen3tts.text.spoken.units import speak_currencies, speak_units

__all__ = [
    "ALL_RULES",
    "MARKUP_RULES",
    "SPOKEN_RULES",
    "Rule",
    "normalize",
    "rules_from_names",
    "speakable",
    "unsupported_scripts",
]


class Rule(StrEnum):
    """What can be done to a text; each can be switched off."""

    CHARACTERS = "characters"
    """Control and invisible characters go; full-width digits and signs such as ℃ become plain."""
    CODE_BLOCKS = "code_blocks"
    """Fenced code and <think> blocks are left out."""
    HTML = "html"
    """Tags of HTML and SSML go; entities are read."""
    STAGE_DIRECTIONS = "stage_directions"
    """*smiles* and [laughs] go."""
    MARKDOWN = "markdown"
    """Headings, emphasis, lists, tables, quotes and inline code lose their marks."""
    LINKS = "links"
    """Web addresses become the name of the site; its dots, and the @ of mail, are said."""
    EMOJI = "emoji"
    """Emoji, emoticons and ornaments go."""
    DATES = "dates"
    PHONE_NUMBERS = "phone_numbers"
    RANGES = "ranges"
    """3–5 -> 3 to 5."""
    TIMES = "times"
    SYMBOLS = "symbols"
    """& + = × # and the like between words and numbers."""
    CURRENCIES = "currencies"
    UNITS = "units"
    """Units, temperatures and percentages."""
    ORDINALS = "ordinals"
    NUMBERS = "numbers"
    """Numbers that are left; their digits stay where the right form is uncertain."""
    PUNCTUATION = "punctuation"
    """Repeated and stray marks are reduced."""
    CLOSING = "closing"
    """A missing full stop is added."""


_SPOKEN_STEPS: Final[tuple[tuple[Rule, Callable[[str, LanguageData], str]], ...]] = (
    (Rule.DATES, speak_dates),
    (Rule.PHONE_NUMBERS, speak_phone_numbers),
    (Rule.RANGES, speak_ranges),
    (Rule.TIMES, speak_times),
    (Rule.ORDINALS, speak_ordinals),
    (Rule.SYMBOLS, speak_symbols),
    (Rule.CURRENCIES, speak_currencies),
    (Rule.UNITS, speak_units),
    (Rule.NUMBERS, speak_numbers),
)
ALL_RULES: Final = frozenset(Rule)
SPOKEN_RULES: Final = frozenset(rule for rule, _ in _SPOKEN_STEPS)
"""Rules that need to know the language."""
MARKUP_RULES: Final = ALL_RULES - SPOKEN_RULES
_MOST_PASSES: Final = 6


def normalize(text: str, language: str | None = None, rules: frozenset[Rule] = ALL_RULES) -> str:
    """Return text as it is to be spoken; the result may be empty.

    Normalized text stays as it is when it is normalized again. Whole sentences are needed: a number
    that was cut off its unit is spoken alone.

    Args:
        text: One sentence, or any number of them.
        language: In any form; None, or a language without tables: only markup is treated.
        rules: What to do.
    """
    code = language_code(language)
    data = None if code is None else language_data(code)
    for _ in range(_MOST_PASSES):
        # What one pass uncovers ("&lt;b&gt;", nested emphasis) the next one treats.
        normalized = _normalize_once(text, data, rules)
        if normalized == text:
            break
        text = normalized
    return text


def _normalize_once(text: str, data: LanguageData | None, rules: frozenset[Rule]) -> str:
    text = _strip_markup(text, data, rules)
    if data is not None:
        for rule, step in _SPOKEN_STEPS:
            if rule in rules:
                text = step(text, data)
    if Rule.PUNCTUATION in rules:
        text = punctuation.tidy_punctuation(text) if speakable(text) else ""
    return punctuation.join_lines(text, close=Rule.CLOSING in rules)


def _strip_markup(text: str, data: LanguageData | None, rules: frozenset[Rule]) -> str:
    if Rule.CHARACTERS in rules:
        text = punctuation.clean_characters(text)
    if Rule.CODE_BLOCKS in rules:
        text = markup.drop_code_blocks(text)
    if Rule.HTML in rules:
        text = markup.strip_html(text)
    if Rule.STAGE_DIRECTIONS in rules:
        text = markup.drop_stage_directions(text)
    if Rule.MARKDOWN in rules:
        text = markup.strip_markdown(text, None if data is None else data.code)
    if Rule.LINKS in rules:
        text = markup.speak_links(text, data)
    return markup.drop_emoji(text) if Rule.EMOJI in rules else text


def rules_from_names(names: Iterable[str]) -> frozenset[Rule]:
    """Return the rules of these names, as a setting lists them.

    Raises:
        ConfigError: A name is unknown.
    """
    chosen = set()
    for name in names:
        try:
            chosen.add(Rule(name))
        except ValueError:
            known = ", ".join(Rule)
            raise ConfigError(f"Unknown text rule {name!r}; the rules are {known}.") from None
    return frozenset(chosen)
