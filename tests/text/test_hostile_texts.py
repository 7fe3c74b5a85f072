"""Texts that are made to cost time: each is cleaned in about the time of an ordinary one."""

import time

import pytest

from wyoming_qwen3tts.text.normalize import normalize
from wyoming_qwen3tts.text.sentences import DEFAULT_MAX_CHARS, SentenceStream, split_sentences

NUM_CHARS = 100_000
SIGNS = [".", "…", "_", "`", "*_", "_`", '"', ")", "~)", "!?"]


def long(row: str) -> str:
    return row * (NUM_CHARS // len(row))


def cleaning_s(text: str) -> float:
    """Return the time of the sentence that takes longest."""
    worst_s = 0.0
    for sentence in split_sentences(text, "en"):
        started_s = time.thread_time()
        normalize(sentence, "en")
        worst_s = max(worst_s, time.thread_time() - started_s)
    return worst_s


@pytest.mark.parametrize("fence", ["~" * NUM_CHARS, "`" * NUM_CHARS, "~~~\n" + long("~~~ x\n")])
def test_fences_without_end_cost_no_time(fence):
    started_s = time.thread_time()
    assert normalize(fence, "en") == ""
    assert time.thread_time() - started_s < 2.0  # possessive: 0.01 s; before: minutes


@pytest.mark.parametrize("sign", SIGNS)
@pytest.mark.parametrize("head", ["a.", "Hello *a."])
def test_rows_of_marks_without_end_are_cut(head, sign):
    text = head + long(sign)
    assert max(map(len, split_sentences(text, "en"))) <= 2 * DEFAULT_MAX_CHARS
    assert cleaning_s(text) < 1.0


@pytest.mark.parametrize("sign", SIGNS)
def test_where_a_row_is_cut_does_not_depend_on_the_chunks(sign):
    text = "So." + sign * 1_500 + " And then it went on."
    whole = split_sentences(text, "en")
    stream = SentenceStream("en")
    in_chunks = [
        sentence
        for start in range(0, len(text), 7)
        for sentence in stream.push(text[start : start + 7])
    ]
    assert in_chunks + stream.finish() == whole
    assert "".join("".join(whole).split()) == "".join(text.split())


def test_blocks_that_are_read_out_are_cut_like_other_text():
    text = "```\nx = 1\n" + long("a_b. ") + "\n```\n"
    stream = SentenceStream("en", whole_blocks=False)
    sentences = stream.push(text) + stream.finish()
    assert max(map(len, sentences)) <= DEFAULT_MAX_CHARS
    assert "".join("".join(sentences).split()) == "".join(text.split())
