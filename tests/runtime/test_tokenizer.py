"""The tokenizer gives the official ids, and user text can never yield a special token."""

import json
import unicodedata
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.oracle.bpe import OracleTokenizer
from tests.support.tiny_checkpoint import write_tiny_checkpoint
from wyoming_qwen3tts.errors import BundleError
from wyoming_qwen3tts.runtime.tokenizer import BpeTokenizer

# Merges of white space and punctuation with newlines, as the published vocabulary has them and the
# toy one has not: with these a body that is cut wrongly gives other ids.
NEWLINE_MERGES = ("Ċ Ċ", "ĊĊ Ċ", "Ġ Ċ", "Ġ Ġ", ". Ċ", "? Ċ", ". .", "č Ċ", "ĉ Ċ", "Ġ .")
SPECIAL_TEXTS = ("<|im_start|>", "<|im_end|>", "<think>", "</think>", "<tts_pad>", "<tool_call>")
PIECES = (
    *(
        "the ",
        "It's",
        "DON'T",
        "'Tis ",
        "helloWorld",
        " 123,4",
        "user",
        "assistant\n",
        "I'LL",
        "'ſ",
    ),
    *(
        "\n",
        "\n\n",
        "\r\n",
        "\t",
        "  ",
        " \n ",
        ".\n",
        "?\n\n",
        "\u00a0",
        "\u3000",
        "\u2028",
        "\x85",
    ),
    *(
        "e\u0301",
        "\u0301",
        "Ǆ",
        "ñ",
        "中文，你好。",
        "こんにちは",
        "안녕",
        "Привет",
        "ก็",
        "هَ",
        "🙂",
    ),
    *(
        "👩\u200d👩",
        "/",
        "...",
        "—",
        "½",
        "Ⅷ",
        "x²",
        "\x00",
        "\x1c",
        "ﬁ",
        "_",
        "a",
        "\ufeff",
        "\u180e",
    ),
)
# Unassigned characters are left out: two Unicode versions may disagree about them.
CHARACTERS = st.characters(exclude_categories=["Cs", "Cn", "Co"])
TEXTS = st.lists(st.sampled_from(PIECES) | st.text(CHARACTERS, max_size=4), max_size=14).map(
    "".join
)
TEXTS_WITH_SPECIALS = st.lists(
    st.sampled_from(PIECES) | st.sampled_from(SPECIAL_TEXTS), max_size=14
).map("".join)


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny checkpoint whose vocabulary also merges newlines."""
    checkpoint = write_tiny_checkpoint(tmp_path_factory.mktemp("tokenizer"))
    vocabulary = json.loads((checkpoint / "vocab.json").read_text(encoding="utf-8"))
    for merge in NEWLINE_MERGES:
        vocabulary.setdefault(merge.replace(" ", ""), len(vocabulary))
    (checkpoint / "vocab.json").write_text(json.dumps(vocabulary), encoding="utf-8")
    with (checkpoint / "merges.txt").open("a", encoding="utf-8") as merges:
        merges.writelines(f"{merge}\n" for merge in NEWLINE_MERGES)
    config_path = checkpoint / "tokenizer_config.json"
    config = json.loads(config_path.read_text(encoding="utf-8"))
    entries = config["added_tokens_decoder"].values()
    config["added_tokens_decoder"] = {
        str(len(vocabulary) + index): entry for index, entry in enumerate(entries)
    }
    config_path.write_text(json.dumps(config), encoding="utf-8")
    return checkpoint


@pytest.fixture(scope="module")
def tokenizer(directory: Path) -> BpeTokenizer:
    return BpeTokenizer(directory)


@pytest.fixture(scope="module")
def oracle(directory: Path) -> OracleTokenizer:
    return OracleTokenizer(directory)


def test_ids_of_the_role(tokenizer: BpeTokenizer) -> None:
    assert len(tokenizer.encode_template("<|im_start|>assistant\n")) == 3
    assert tokenizer.encode("") == []


@given(text=TEXTS)
def test_plain_text_equals_the_plain_python_tokenizer(
    tokenizer: BpeTokenizer, oracle: OracleTokenizer, text: str
) -> None:
    assert tokenizer.encode(text) == oracle.encode(text)


@given(text=TEXTS_WITH_SPECIALS)
def test_templates_equal_the_plain_python_tokenizer(
    tokenizer: BpeTokenizer, oracle: OracleTokenizer, text: str
) -> None:
    assert tokenizer.encode_template(text) == oracle.encode_template(text)


@given(text=TEXTS)
def test_stripped_body_equals_the_slice_of_the_template(tokenizer: BpeTokenizer, text: str) -> None:
    body = text.strip()
    speech = f"<|im_start|>assistant\n{body}<|im_end|>\n<|im_start|>assistant\n"
    instruction = f"<|im_start|>user\n{body}<|im_end|>\n"

    assert tokenizer.encode(body) == tokenizer.encode_template(speech)[3:-5]
    assert tokenizer.encode(body) == tokenizer.encode_template(instruction)[3:-2]


def test_unstripped_body_can_differ_from_the_slice(tokenizer: BpeTokenizer) -> None:
    """Why text must be stripped first: its newline joins the template's."""
    template = "<|im_start|>assistant\n\nHi<|im_end|>\n<|im_start|>assistant\n"

    assert tokenizer.encode("\nHi") != tokenizer.encode_template(template)[3:-5]


@given(text=TEXTS_WITH_SPECIALS)
def test_user_text_never_yields_special_tokens(tokenizer: BpeTokenizer, text: str) -> None:
    first_special_id = min(tokenizer.encode_template(special)[0] for special in SPECIAL_TEXTS)

    ids = tokenizer.encode(text)

    assert all(token_id < first_special_id for token_id in ids)


@pytest.mark.parametrize("special", SPECIAL_TEXTS)
def test_special_tokens_are_one_id_in_templates_and_text_elsewhere(
    tokenizer: BpeTokenizer, special: str
) -> None:
    assert len(tokenizer.encode_template(special)) == 1
    assert len(tokenizer.encode(special)) > 1


def test_decomposed_text_gives_the_ids_of_composed_text(tokenizer: BpeTokenizer) -> None:
    text = "Übergröße für die Küche"

    assert tokenizer.encode(unicodedata.normalize("NFD", text)) == tokenizer.encode(text)


@pytest.mark.parametrize("method", ["encode", "encode_template"])
def test_surrogates_are_joined_or_replaced(tokenizer: BpeTokenizer, method: str) -> None:
    encode: Callable[[str], list[int]] = getattr(tokenizer, method)

    assert encode("a\ud83d\ude00b") == encode("a😀b")
    assert encode("a\ud83db") == encode("a\ufffdb")
    assert encode("a\ude00") == encode("a\ufffd")
    assert encode("\ufeffa") != encode("a")


@pytest.mark.parametrize("name", ["vocab.json", "merges.txt", "tokenizer_config.json"])
def test_missing_file_is_named(tmp_path: Path, name: str) -> None:
    checkpoint = write_tiny_checkpoint(tmp_path / "tiny")
    (checkpoint / name).unlink()

    with pytest.raises(BundleError, match=name):
        BpeTokenizer(checkpoint)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("vocab.json", "{", "vocab.json is not JSON"),
        ("vocab.json", "[]", "vocab.json is not a JSON object"),
        ("vocab.json", '{"a": 0}', "vocab.json has no '!'"),
        ("merges.txt", "#version: 0.2\na b c\n", "merges.txt, line 2"),
        ("merges.txt", "a a\n", "merges.txt does not fit vocab.json"),
        ("tokenizer_config.json", "{}", "no added_tokens_decoder"),
        (
            "tokenizer_config.json",
            '{"added_tokens_decoder": {"x": {}}}',
            "token is malformed",
        ),
        (
            "tokenizer_config.json",
            '{"added_tokens_decoder": {"1": []}}',
            "token is malformed",
        ),
    ],
)
def test_damaged_file_is_named(tmp_path: Path, name: str, content: str, message: str) -> None:
    checkpoint = write_tiny_checkpoint(tmp_path / "tiny")
    (checkpoint / name).write_text(content, encoding="utf-8")

    with pytest.raises(BundleError, match=message):
        BpeTokenizer(checkpoint)


def test_text_that_is_not_utf8_is_refused(tmp_path: Path) -> None:
    checkpoint = write_tiny_checkpoint(tmp_path / "tiny")
    (checkpoint / "vocab.json").write_bytes(b"\xff\xfe")

    with pytest.raises(BundleError, match=r"vocab\.json cannot be read"):
        BpeTokenizer(checkpoint)


def test_added_token_with_another_id_is_refused(tmp_path: Path) -> None:
    checkpoint = write_tiny_checkpoint(tmp_path / "tiny")
    path = checkpoint / "tokenizer_config.json"
    config = json.loads(path.read_text(encoding="utf-8"))
    entries = config["added_tokens_decoder"]
    config["added_tokens_decoder"] = {str(int(key) + 1): entry for key, entry in entries.items()}
    path.write_text(json.dumps(config), encoding="utf-8")

    with pytest.raises(BundleError, match=r"'<\|endoftext\|>'"):
        BpeTokenizer(checkpoint)
