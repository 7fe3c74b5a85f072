"""What people and language models write is not read out mark by mark."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from wyoming_qwen3tts.errors import ConfigError
from wyoming_qwen3tts.text.normalize import (
    ALL_RULES,
    SPOKEN_RULES,
    Rule,
    chosen_rules,
    normalize,
)
from wyoming_qwen3tts.text.rules import LANGUAGES

MARKUP = [
    ("**bold** and *italic* and ***both***", "bold and italic and both."),
    ("__bold__ and _italic_", "bold and italic."),
    ("`code` and ~~gone~~ and ==marked==", "code and gone and marked."),
    ("这是**重要**的", "这是重要的。"),
    ("# Title #\n## Part\nText.", "Title. Part. Text."),
    ("- eggs\n* milk\n+ tea\n• jam", "eggs. milk. tea. jam."),
    ("1. Wash\n2) Cook\n10. Eat", "Wash. Cook. Eat."),
    ("- [x] done\n- [ ] open", "done. open."),
    ("> quoted\n>> deeper", "quoted deeper."),
    ("above\n\n---\n\nBelow", "above. Below."),
    ("| Room | °C |\n|:---|---:|\n| Bath | warm |", "Room, °C. Bath, warm."),
    ("[the site](https://a.example/b_(c) 'title') works", "the site works."),
    ("![a cat](cat.png) sits", "a cat sits."),
    ("see [this][1] and that[^2]", "see this and that."),
    ("Before.\n```python\nprint('x. Y')\n```\nAfter.", "Before. After."),
    ("Open:\n```\nnever closed", "Open:"),
    ("~~~\ncode\n~~~\nText.", "Text."),
    ("<think>Hm.\n\nWell.</think>Yes.", "Yes."),
    ("<p>Hi <b>there</b></p><br/>You &amp; me", "Hi there. You & me."),
    ("&lt;b&gt;bold&lt;/b&gt;", "bold."),
    ('<speak>Say <break time="1s"/>it <sub alias="kilo">k</sub></speak>', "Say, it kilo."),
    ("<!-- note -->Text", "Text."),
    ("if a < b and c > d", "if a < b and c > d."),
    ("<|im_start|>user<|im_end|> <tts_pad>Hi", "user Hi."),
    ("Look at https://www.example.com/a/b?c=d#e.", "Look at example.com."),
    ("(http://192.168.1.5:8123/lovelace)", "(192.168.1.5)."),
    ("Done! 🎉👍🏽 ❤️", "Done!"),
    ("I 👨\u200d👩\u200d👧 you 🇩🇪", "I you."),
    ("Press 1️⃣ or #️⃣", "Press 1 or #"),
    ("Fine :-) ;) <3 :D", "Fine."),
    ("A → B", "A, B."),
    ("*smiles* Hello! *winks at you*", "Hello!"),
    ("Well, *sighs* I guess so.", "Well, I guess so."),
    ("[laughs] Right. (laughs) [applause]", "Right."),
    ("（笑）好的。*微笑着说* 再见", "好的。再见。"),
    ("The *waves* are *very* high", "The waves are very high."),
    ("*music* is [not] (pause the film) here", "music is [not] (pause the film) here."),
    ("zero\u200bwidth\ufeff soft\u00adhyphen\x07 \u202ertl", "zerowidth softhyphen rtl."),
    ("light.living_room and my_file", "light.living room and my file."),
    (r"\*not\_bold\*", "not bold."),
    ("What?!?! No!!! Well.....", "What?! No! Well..."),
    ("Wait……", "Wait…"),
    ("No stop", "No stop."),
    ("没有句号", "没有句号。"),
    ('He said "yes"', 'He said "yes".'),
    ("Here is the list:", "Here is the list:"),
    ("It goes\non here\nAnd ends", "It goes on here. And ends."),
    ("今日は晴れ\n明日は雨", "今日は晴れ。明日は雨。"),
    ("  many \t spaces\u00a0here ", "many spaces here."),
    ("Ça va ? Oui !", "Ça va ? Oui !"),
]


@pytest.mark.parametrize(("written", "spoken"), MARKUP)
def test_markup_is_not_read_out(written: str, spoken: str) -> None:
    assert normalize(written) == spoken
    assert normalize(spoken) == spoken


@pytest.mark.parametrize(
    "text", ["", "   ", "😄", "...", "\n\n", "---", "***", "```\n```", "<br>", "()"]
)
def test_text_with_nothing_to_say_is_empty(text: str) -> None:
    for language in (None, *LANGUAGES):
        assert normalize(text, language) == ""


@pytest.mark.parametrize(
    ("language", "written", "spoken"),
    [
        ("en", "Mail me.too@example.co.uk now", "Mail me dot too at example dot co dot uk now."),
        ("de", "Siehe www.heise.de/artikel!", "Siehe heise Punkt de!"),
        ("es", "Mira example.com", "Mira example punto com."),
        ("ja", "example.com を見て", "example ドット com を見て。"),
        (None, "Mail a@example.com", "Mail a@example.com."),
        ("de-DE", "Es sind 5", "Es sind fünf."),
        ("German", "Es sind 5", "Es sind fünf."),
        ("th", "There are 5", "There are 5."),
        ("zh", "１４：３０，气温２１．５℃", "十四点三十分，气温二十一点五摄氏度。"),
        ("de", "3. Mai ist ein Feiertag", "dritter Mai ist ein Feiertag."),
        ("de", "1. Eier\n2. Milch", "Eier. Milch."),
        ("en", "- 5 apples\n- -5 °C", "five apples. minus five degrees Celsius."),
    ],
)
def test_markup_and_language_together(language: str | None, written: str, spoken: str) -> None:
    assert normalize(written, language) == spoken


RULE_EXAMPLES = {
    Rule.CHARACTERS: "a\u200bb is here.",
    Rule.CODE_BLOCKS: "One.\n```\nx = 1\n```\nTwo.",
    Rule.HTML: "<b>bold</b> move.",
    Rule.STAGE_DIRECTIONS: "Yes. [laughs] No.",
    Rule.MARKDOWN: "Some **bold** move.",
    Rule.LINKS: "See https://www.example.com/path.",
    Rule.EMOJI: "Good 🎉 news.",
    Rule.DATES: "Due 11/29/2026.",
    Rule.PHONE_NUMBERS: "Ask 030 1234567.",
    Rule.RANGES: "Take 8-10.",
    Rule.TIMES: "At 14:30.",
    Rule.SYMBOLS: "Salt & pepper.",
    Rule.CURRENCIES: "It costs $5.",
    Rule.UNITS: "It has 5 kg.",
    Rule.ORDINALS: "The 2nd.",
    Rule.NUMBERS: "There are 28,000.",
    Rule.PUNCTUATION: "What???",
    Rule.CLOSING: "No stop",
}


@pytest.mark.parametrize("rule", Rule)
def test_every_rule_can_be_switched_off_and_used_alone(rule: Rule) -> None:
    text = RULE_EXAMPLES[rule]
    alone = normalize(text, "en", frozenset({rule}))
    without = normalize(text, "en", ALL_RULES - {rule})
    assert alone != " ".join(text.split())
    assert without != normalize(text, "en")


def test_without_rules_only_white_space_changes() -> None:
    text = "**a** 5 kg\n <b>x</b> 😄 ..."
    assert normalize(text, "en", frozenset()) == "**a** 5 kg <b>x</b> 😄 ..."


def test_rules_that_need_the_language_do_nothing_without_it() -> None:
    text = "At 14:30 on 11/29/2026 we pay $5 for 8-10 kg"
    assert normalize(text, None, SPOKEN_RULES) == text
    assert normalize(text, "en", ALL_RULES - SPOKEN_RULES) == f"{text}."


def test_rules_are_chosen_by_name() -> None:
    assert chosen_rules("all", ["emoji", "units"]) == ALL_RULES - {Rule.EMOJI, Rule.UNITS}
    assert chosen_rules("markup") == ALL_RULES - SPOKEN_RULES
    assert not chosen_rules("none")
    assert not chosen_rules("all", ["all"])
    with pytest.raises(ConfigError, match=r"emojis.*characters, code_blocks"):
        chosen_rules("all", ["emojis"])


PIECES = st.sampled_from(
    [
        "word", "Wort", "z. B.", "*", "**", "_", "`", "```", "\n", "\n\n", " ", "# ", "- ", "1. ",
        "|", "|---|", "> ", "[a]", "(b)", "](http://x.y)", "http://a.de/b.", "me@x.com", "😄", ":)",
        "<b>", "</b>", "&amp;", "&lt;", "21.5", " °C", "-5", "5", "1", "3.", "Mai", "2026-11-29",
        "14:30", " pm", "$5", "€", "3,50", "1.234,56", "28,000", "%", " kg", "km/h", "–", "-",
        "...", "!!", "?", "。", "，", "你好", "こんにちは", "네", "2个", "3시", "1½", "#5", "~",
        "=", "+", "×", "&", "(", ")", "[laughs]", "*smiles*", "'", '"', "\u200b", "１２", "1st",
        "2e", "3º", "5-й", "192.168.1.1", "+49 30 123456", "2026 год", "am ", "до ", "a_b",
        "\\*", "->",
        "<think>", "</think>", "s", "m", "h", "1995", "1990s", ",", ".", ":", "Mio.", " €", "/kWh",
        "007", "123456789012",
    ]
)  # fmt: skip
TEXTS = st.lists(PIECES, max_size=9).map("".join) | st.text(max_size=30)


@settings(deadline=None)
@given(text=TEXTS, language=st.sampled_from([None, *LANGUAGES]))
def test_normalizing_again_changes_nothing(text: str, language: str | None) -> None:
    once = normalize(text, language)
    assert normalize(once, language) == once


@settings(deadline=None)
@given(
    text=TEXTS, language=st.sampled_from([None, *LANGUAGES]), rules=st.sets(st.sampled_from(Rule))
)
def test_any_choice_of_rules_works(text: str, language: str | None, rules: set[Rule]) -> None:
    assert "\n" not in normalize(text, language, frozenset(rules))


@settings(deadline=None)
@given(
    words=st.lists(st.text("abcdefghijklmnopqrstuvwxyzäöüéñçабв", min_size=2), min_size=1),
    language=st.sampled_from([None, *LANGUAGES]),
)
def test_plain_words_stay_as_they_are(words: list[str], language: str | None) -> None:
    text = " ".join(words) + "."
    assert normalize(text, language) == text
