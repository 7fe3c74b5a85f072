"""Text in pieces gives whole sentences: early, complete, and the same however it was cut."""

import itertools
import time

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from wyoming_qwen3tts.text.sentences import SentenceStream, display_length, split_sentences

SENTENCES = [
    ("de", ["Es dauert 5 min. und mehr.", "Noch 5 min.", "Danach ist Ruhe."]),
    (None, ["I do not mind.", "It is a gem.", "He lives in St. Louis, p.ex. there."]),
    # What belongs together in each language: the stop inside does not end the sentence.
    ("en", ["Mr. J. R. R. Tolkien met Dr. Who.", "It was 3 p.m. and warm.", "They left."]),
    ("en", ["It costs $3.14.", "No. 5 is alive.", "No.", "I am not."]),
    ("en", ["See e.g. https://a.example/c?d=e.f for more.", "The U.S. economy grew."]),
    ("en", ["“Really?” he asked.", '"Yes."', "She left.", "(It rained.)", "Then it stopped."]),
    ("en", ["Wait... what?", "It said Yahoo! in bold.", "OK."]),
    ("de", ["Das ist z. B. Dr. Müller.", "Am 3. Mai kommt er.", "Es ist der 24. Dezember."]),
    ("de", ["Er ist 24.", "Danach schlief er.", "Im 2. Stock brennt Licht, d. h. jemand ist da."]),
    ("de", ["Hunde, Katzen usw. sind da.", "Es kostet ca. 5 Euro bzw. Dollar.", "Gut."]),
    ("fr", ["C'est p. ex. M. Dupont.", "Il arrive à 8 h.", "Mme Durand, c.-à-d. sa femme, dort."]),
    ("es", ["El Sr. Pérez vive en EE. UU. desde 2020.", "¿Qué tal?", "¡Bien!", "Pág. 5."]),
    ("it", ["Il Dott. Rossi abita al n. 5.", "Cfr. pag. 3.", "Pane, latte ecc. sono finiti."]),
    ("pt", ["O Sr. Silva mora na Av. Paulista.", "Veja p. ex. a pág. 5.", "Tudo bem?"]),
    (
        "ru",
        ["Это, т. е. пример, на ул. Ленина.", "Хлеб и т. д.", "Это я.", "Было в 2026 г.", "Да."],
    ),
    ("ru", ["Это г. Москва.", "Да."]),
    ("zh", ["今天很热。", "气温3.5度！", "“好的。”", "他说：“走吧。”"]),
    ("ja", ["「はい。」と言いました。", "元気ですか？", "はい、元気です。"]),
    ("ko", ["안녕하세요.", "오늘은 21.5도입니다.", "“네!”", "좋아요."]),
    (
        None,
        ["Dr. Meyer kommt z. B. am 3. Mai.", "Mr. Smith too.", "Это т. е. пример.", "好。", "OK."],
    ),
]


@pytest.mark.parametrize(("language", "sentences"), SENTENCES)
def test_a_text_comes_out_in_its_sentences(language: str | None, sentences: list[str]) -> None:
    glue = "" if language in {"zh", "ja"} else " "
    assert split_sentences(glue.join(sentences), language) == sentences


@pytest.mark.parametrize(("language", "sentences"), SENTENCES)
def test_a_text_comes_out_the_same_letter_by_letter(
    language: str | None, sentences: list[str]
) -> None:
    stream = SentenceStream(language)
    glue = "" if language in {"zh", "ja"} else " "
    taken = [sentence for letter in glue.join(sentences) for sentence in stream.push(letter)]
    assert taken + stream.finish() == sentences


def test_a_sentence_is_given_out_when_the_next_word_begins() -> None:
    stream = SentenceStream("en")
    assert stream.push("The light is on. ") == []
    assert stream.push("T") == ["The light is on."]


def test_a_chinese_sentence_needs_no_space() -> None:
    stream = SentenceStream("zh")
    assert stream.push("灯开了。") == []
    assert stream.push("门") == ["灯开了。"]


def test_lines_and_list_items_are_sentences() -> None:
    text = "# Shopping\n- eggs\n- milk\n\n1. Wash.\n2. Cook\n| a | b |\nThe end goes\non here"
    assert split_sentences(text, "en") == [
        "# Shopping", "- eggs", "- milk",
        "1. Wash.", "2. Cook", "| a | b |", "The end goes\non here",
    ]  # fmt: skip


def test_a_code_block_is_one_piece_whatever_is_in_it() -> None:
    code = "```python\nprint('A. B! C?')\n\nx = 1\n```"
    for text in (f"Look. Here:\n{code}\nDone. Good.", f"Look. Here:\n\n{code}\n\nDone. Good."):
        assert split_sentences(text, "en") == ["Look.", "Here:", code, "Done.", "Good."]


def test_a_code_block_is_not_joined_to_a_short_sentence() -> None:
    code = "```\nx = 1\n```"
    assert split_sentences(f"OK\n{code}\nDone.") == ["OK", code, "Done."]


def test_an_open_code_block_is_not_cut_by_the_length_limit() -> None:
    stream = SentenceStream("en", max_chars=20)
    assert stream.push("```\n" + "x = 1. Y\n" * 20) == []
    assert stream.flush() == []
    assert len(stream.finish()) == 1


def test_inline_code_does_not_open_a_block() -> None:
    assert split_sentences("```ls``` lists. It is old.", "en") == ["```ls``` lists.", "It is old."]


def test_thoughts_are_one_piece() -> None:
    thought = "<think>\nHm. The user asks. Well.\n</think>"
    assert split_sentences(thought + "\nHello. You.", "en") == [thought, "Hello.", "You."]


def test_a_long_sentence_is_cut_at_clauses_then_at_words() -> None:
    clause = "and then the long story went on and on, "
    parts = split_sentences(clause * 20, "en", max_chars=100)
    assert all(part.endswith("on,") and len(part) <= 100 for part in parts)
    words = split_sentences("word " * 160, "en", max_chars=100)
    assert all(set(part.split()) == {"word"} and len(part) <= 100 for part in words)


def test_eight_hundred_characters_without_punctuation_are_bounded() -> None:
    text = ("all that without any stop " * 31)[:800]
    parts = split_sentences(text, "en")
    assert len(parts) == 3
    assert " ".join(parts) == text.strip()


def test_a_word_of_two_thousand_letters_is_cut_anywhere() -> None:
    parts = split_sentences("a" * 2000, "en", max_chars=300)
    assert [len(part) for part in parts] == [300] * 6 + [200]


def test_chinese_without_punctuation_is_cut_by_spoken_length() -> None:
    parts = split_sentences("今天" * 300, "zh", max_chars=300)
    assert {len(part) for part in parts} == {100}


def test_thousands_are_not_cut() -> None:
    parts = split_sentences("he counted 1,000 and 2,000 and 3,000 " * 9, "en", max_chars=50)
    assert all(",000" in part for part in parts if "00" in part)
    assert not any(part.startswith("000") for part in parts)


@pytest.mark.parametrize("cut_off", ["é" * 50, "👨\u200d👩\u200d👧" * 50, "e\u0301" * 200])
def test_signs_of_several_characters_stay_whole(cut_off: str) -> None:
    for part in split_sentences(cut_off, "en", max_chars=37):
        assert part[0] not in "\u0301\u200d"
        assert part[-1] != "\u200d"


FLUSHED = [
    ("en", "The last words.", True),
    ("en", "Done!", True),
    ("en", "He said “yes.”", True),
    ("zh", "好的。", True),
    ("en", "I asked Dr.", False),
    ("en", "It costs 3.", False),
    ("en", "I think that", False),
    ("de", "Das ist z.", False),
    ("de", "Hunde, Katzen usw.", True),
    ("en", "A title\n", True),
    ("en", "Run this.\n``", False),
    ("en", "...", False),
    ("en", "", False),
]  # fmt: skip


@pytest.mark.parametrize(("language", "text", "flushed"), FLUSHED)
def test_the_timer_flushes_only_what_looks_finished(
    language: str, text: str, *, flushed: bool
) -> None:
    stream = SentenceStream(language)
    taken = stream.push(text)
    assert bool(given := stream.flush()) == flushed
    assert taken + given == ([text.strip()] if flushed else taken)


def test_the_stream_goes_on_after_a_flush() -> None:
    stream = SentenceStream("en")
    stream.push("One is here.")
    assert stream.flush() == ["One is here."]
    assert stream.flush() == []
    assert stream.push(" Two is there. Three") == ["Two is there."]
    assert stream.finish() == ["Three"]


def test_the_stream_can_be_used_again_after_its_end() -> None:
    stream = SentenceStream("en")
    stream.push("Say this")
    assert stream.finish() == ["Say this"]
    assert stream.finish() == []
    assert stream.push("```\ncode. More\n```\nA. ") == ["```\ncode. More\n```"]


def test_blank_text_gives_no_sentence() -> None:
    for text in ("", "   ", "\n\n"):
        assert split_sentences(text) == []


PIECES = st.sampled_from(
    [
        "word", "Word", "z. B.", "Dr.", "3.", "3.14", "Mai", "am", "OK", "a.b", "etc.", "J.",
        "т. д.", "(", ")", '"', "“", "”", "*", "…", "...", ".", "!", "?", ",", ";", ":", "-",
        "\n", "\n\n", "\n- ", "\n1. ", "# ", "|", " ", "  ", "今天", "。", "！", "」", "「", "と",
        "です", "네", "```", "\n```\n", "~~~", "`", "<think>", "</think>", "<", "\n<think>",
        "😄", "\u0301", "é", "é. É", "1,000", "http://x.y?z=1", "\r\n", "\t", "¿", "usw.",
        "longerwordwithmanyletters", "й", "Я",
    ]
)  # fmt: skip
TEXTS = st.lists(PIECES, max_size=40).map("".join) | st.text(max_size=60)


@settings(deadline=None)
@given(
    text=TEXTS,
    cuts=st.lists(st.integers(0, 300), max_size=12),
    language=st.sampled_from([None, "en", "de", "ja", "ru"]),
    max_chars=st.sampled_from([10, 40, 300]),
)
@example(text="Hi\n``x", cuts=[4], language=None, max_chars=300)
def test_any_cut_gives_the_same_sentences_and_loses_no_letter(
    text: str, cuts: list[int], language: str | None, max_chars: int
) -> None:
    whole = split_sentences(text, language, max_chars=max_chars)
    assert "".join("".join(whole).split()) == "".join(text.split())
    edges = sorted({0, len(text), *(cut for cut in cuts if cut < len(text))})
    for pieces in (
        [text[first:last] for first, last in itertools.pairwise(edges)],
        list(text),
    ):
        stream = SentenceStream(language, max_chars=max_chars)
        taken = [sentence for piece in pieces for sentence in stream.push(piece)]
        assert taken + stream.finish() == whole


@settings(deadline=None)
@given(text=TEXTS, flush_after=st.sets(st.integers(0, 100)))
def test_flushing_loses_no_letter(text: str, flush_after: set[int]) -> None:
    stream = SentenceStream(None, max_chars=40)
    taken: list[str] = []
    for index, letter in enumerate(text):
        taken += stream.push(letter)
        if index in flush_after:
            taken += stream.flush()
    taken += stream.finish()
    assert "".join("".join(taken).split()) == "".join(text.split())


@settings(deadline=None)
@given(text=st.text(alphabet="ab ,;今", max_size=400), max_chars=st.integers(5, 60))
def test_no_sentence_is_longer_than_the_limit(text: str, max_chars: int) -> None:
    assert all(
        display_length(part) <= max_chars for part in split_sentences(text, max_chars=max_chars)
    )


@pytest.mark.parametrize(
    "text",
    [
        "a" * 200_000,
        "a b " * 50_000,
        " " * 200_000 + "a",
        "A. " * 20_000,
        "!" * 100_000,
        "x\n" * 30_000,
    ],
)
def test_large_text_takes_linear_time(text: str) -> None:
    begin = time.process_time()
    split_sentences(text)
    assert time.process_time() - begin < 5.0


def test_an_impossible_limit_is_refused() -> None:
    with pytest.raises(ValueError, match="max_chars"):
        SentenceStream(max_chars=0)
