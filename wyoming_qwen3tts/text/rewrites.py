"""What one language writes in its own way, as patterns of ``data/rewrites.yaml``."""

import re
from functools import cache

from wyoming_qwen3tts.text.numbers import cardinal, ordinal, spell_digits
from wyoming_qwen3tts.text.rules import LanguageRules, language_rules, read_table

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
    words = {"and": rules.symbols["&"], "subtract": rules.words["minus"], **rules.words}
    own = table["languages"][code]
    names = {str(short): name for short, name in own.get("names", {}).items()}
    listed = "|".join(sorted(map(re.escape, names), key=len, reverse=True)) or "(?!)"
    rows = [*table["any"], *own["rows"]]
    return [
        (re.compile(pattern.replace("NAME", f"(?:{listed})")), template.format(**words))
        for pattern, template in rows
    ], names
