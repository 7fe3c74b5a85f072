"""Text as people and language models write it -> text to be spoken."""

from collections.abc import Callable, Iterable
from enum import StrEnum
from typing import Final

from wyoming_qwen3tts.errors import ConfigError
from wyoming_qwen3tts.text import markup
from wyoming_qwen3tts.text.cardinals import (
    apply_rewrites,
    speak_numbers,
    speak_phone_numbers,
    speak_ranges,
    speak_symbols,
)
from wyoming_qwen3tts.text.dates import speak_dates, speak_ordinals
from wyoming_qwen3tts.text.language import has_words, language_code
from wyoming_qwen3tts.text.quantities import speak_currencies, speak_units
from wyoming_qwen3tts.text.rules import LanguageRules, language_rules
from wyoming_qwen3tts.text.times import speak_times


class Rule(StrEnum):
    """What is done to a text; each rule can be switched off."""

    CHARACTERS = "characters"  # drop control characters; full-width digits and ℃ in plain signs
    CODE_BLOCKS = "code_blocks"  # drop fenced code and <think> blocks
    HTML = "html"  # drop tags of HTML and SSML; decode entities
    STAGE_DIRECTIONS = "stage_directions"  # drop *smiles* and [laughs]
    MARKDOWN = "markdown"  # drop marks of headings, emphasis, lists, tables, quotes, inline code
    LINKS = "links"  # shorten web addresses to the site; say its dots and the @ of mail
    EMOJI = "emoji"  # drop emoji, emoticons and ornaments
    DATES = "dates"
    PHONE_NUMBERS = "phone_numbers"
    RANGES = "ranges"  # 3–5 -> 3 to 5
    TIMES = "times"  # times of day and durations
    SYMBOLS = "symbols"  # & + = × # and the like between words and numbers
    CURRENCIES = "currencies"
    UNITS = "units"  # units, temperatures and percentages
    ORDINALS = "ordinals"
    NUMBERS = "numbers"  # other numbers; digits stay where the right form is uncertain
    PUNCTUATION = "punctuation"  # reduce repeated and stray marks
    CLOSING = "closing"  # add a missing full stop


_MARKUP_STEPS: Final[tuple[tuple[Rule, Callable[[str, LanguageRules | None], str]], ...]] = (
    (Rule.CHARACTERS, lambda text, _: markup.clean_characters(text)),
    (Rule.CODE_BLOCKS, lambda text, _: markup.drop_code_blocks(text)),
    (Rule.HTML, lambda text, _: markup.strip_html(text)),
    (Rule.STAGE_DIRECTIONS, lambda text, _: markup.drop_stage_directions(text)),
    (Rule.MARKDOWN, markup.strip_markdown),
    (Rule.LINKS, markup.speak_links),
    (Rule.EMOJI, lambda text, _: markup.drop_emoji(text)),
)
_SPOKEN_STEPS: Final[tuple[tuple[Rule, Callable[[str, LanguageRules], str]], ...]] = (
    (Rule.SYMBOLS, apply_rewrites),
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
_MAX_PASSES: Final = 6
ALL_RULES: Final = frozenset(Rule)
SPOKEN_RULES: Final = frozenset(rule for rule, _ in _SPOKEN_STEPS)
"""Rules that need to know the language."""


def normalize(text: str, language: str | None = None, rules: frozenset[Rule] = ALL_RULES) -> str:
    """Return text as it is to be spoken; the result may be empty.

    Normalized text stays as it is when it is normalized again. Pass whole sentences: a number
    that was cut off its unit is spoken alone.

    Args:
        text: One or more sentences.
        language: In any form; None, or a language without tables: only markup is treated.
        rules: What to do.
    """
    code = language_code(language)
    tables = None if code is None else language_rules(code)
    for _ in range(_MAX_PASSES):
        # The next pass treats what one pass uncovers: "&lt;b&gt;", nested emphasis.
        before = text
        for rule, strip in _MARKUP_STEPS:
            text = strip(text, tables) if rule in rules else text
        if tables is not None:
            for rule, speak in _SPOKEN_STEPS:
                text = speak(text, tables) if rule in rules else text
        if Rule.PUNCTUATION in rules:
            text = markup.clean_punctuation(text) if has_words(text) else ""
        text = markup.join_lines(text, close=Rule.CLOSING in rules)
        if text == before:
            break
    return text


def chosen_rules(level: str, disabled: Iterable[str] = ()) -> frozenset[Rule]:
    """Return the rules of a level (none, markup, all) without those that are switched off.

    Raises:
        ConfigError: A name is unknown.
    """
    levels = {"none": frozenset[Rule](), "markup": ALL_RULES - SPOKEN_RULES, "all": ALL_RULES}
    try:
        return levels[level] - {rule for name in disabled for rule in _named(name)}
    except ValueError as error:
        raise ConfigError(f"{error}; the text rules are {', '.join(Rule)}.") from None


def _named(name: str) -> frozenset[Rule]:
    return ALL_RULES if name == "all" else frozenset({Rule(name)})
