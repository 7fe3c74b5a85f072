r"""Text tokenizer: Qwen2's byte-level BPE from ``vocab.json``, ``merges.txt`` and added tokens.

The checkpoint ships no ``tokenizer.json``, so the pipeline is put together here: NFC, the Qwen2
split pattern, bytes to printable characters, merges. The official package tokenises the whole
template and cuts the body out by position; the body alone gives the same ids as long as it does
not begin with white space, because ``\n`` stands before it and ``<|im_end|>`` behind.

Ported from: huggingface/transformers models/qwen2/tokenization_qwen2.py and Qwen2Converter of
convert_slow_tokenizer.py.
"""

import json
from pathlib import Path
from typing import Any, Final

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

from wyoming_qwen3tts.errors import BundleError

TOKENIZER_FILES: Final = ("vocab.json", "merges.txt", "tokenizer_config.json")
_VOCABULARY, _MERGES, _CONFIG = TOKENIZER_FILES

# Every digit stands alone, contractions are split off, a word takes one character before it along.
_SPLIT_PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)


class BpeTokenizer:
    """Text to token ids; user text can never yield a special token."""

    def __init__(self, model: models.BPE, added_tokens: dict[int, AddedToken]) -> None:
        """Build both pipelines over one shared vocabulary.

        Args:
            model: The vocabulary and its merges.
            added_tokens: Id -> token, known to ``encode_template`` alone.

        Raises:
            BundleError: An added token would get another id than the one it is stated to have.
        """
        self._plain = _pipeline(model)
        self._template = _pipeline(model)
        for token_id, token in sorted(added_tokens.items()):
            add = self._template.add_special_tokens if token.special else self._template.add_tokens
            add([token])
            actual_id = self._template.token_to_id(token.content)
            if actual_id != token_id:
                raise BundleError(
                    f"{_CONFIG} gives {token.content!r} the id {token_id}, but with "
                    f"{_VOCABULARY} it gets {actual_id}; take both files from one checkpoint."
                )

    @property
    def vocabulary_size(self) -> int:
        """Number of ids, added tokens included."""
        return self._template.get_vocab_size(with_added_tokens=True)

    def encode(self, text: str) -> list[int]:
        """Encode user text; special tokens in it are read as plain text."""
        return self._encode(self._plain, text)

    def encode_template(self, text: str) -> list[int]:
        """Encode text of ours in which special tokens have their meaning."""
        return self._encode(self._template, text)

    @staticmethod
    def _encode(pipeline: Tokenizer, text: str) -> list[int]:
        return list(pipeline.encode(_repair_surrogates(text), add_special_tokens=False).ids)


def load_tokenizer(directory: Path) -> BpeTokenizer:
    """Read the tokenizer of a bundle or a checkpoint.

    Args:
        directory: Holds ``vocab.json``, ``merges.txt`` and ``tokenizer_config.json``.

    Raises:
        BundleError: A file is missing or damaged; the message names it.
    """
    vocabulary = _read_vocabulary(directory / _VOCABULARY)
    merges = _read_merges(directory / _MERGES)
    added_tokens = _read_added_tokens(directory / _CONFIG)
    try:
        model = models.BPE(vocab=vocabulary, merges=merges, fuse_unk=False, byte_fallback=False)
    except Exception as error:  # the tokenizers library raises bare Exception for a bad merge
        raise BundleError(
            f"{directory / _MERGES} does not fit {_VOCABULARY}: {error}; "
            "take both files from one checkpoint."
        ) from error
    return BpeTokenizer(model, added_tokens)


def _pipeline(model: models.BPE) -> Tokenizer:
    tokenizer = Tokenizer(model)
    # The library documents these four as assignable, its type stubs declare them read-only.
    pipeline: Any = tokenizer
    pipeline.normalizer = normalizers.NFC()
    pipeline.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_SPLIT_PATTERN), behavior="isolated", invert=False),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    pipeline.decoder = decoders.ByteLevel()
    return tokenizer


def _repair_surrogates(text: str) -> str:
    """Join surrogate pairs and replace lone ones, which JSON may carry but UTF-8 may not."""
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def _read_vocabulary(path: Path) -> dict[str, int]:
    vocabulary = read_json_object(path)
    for token, token_id in vocabulary.items():
        if not isinstance(token_id, int) or isinstance(token_id, bool) or token_id < 0:
            raise BundleError(f"{path}: the id of {token!r} is {token_id!r}, not a number.")
    if len(set(vocabulary.values())) != len(vocabulary):
        raise BundleError(f"{path}: two tokens have the same id; fetch the file again.")
    missing = [char for char in pre_tokenizers.ByteLevel.alphabet() if char not in vocabulary]
    if missing:
        raise BundleError(
            f"{path}: {len(missing)} of the 256 byte tokens are missing, so some text could not be "
            "spoken; fetch the file again."
        )
    return vocabulary


def _read_merges(path: Path) -> list[tuple[str, str]]:
    merges: list[tuple[str, str]] = []
    for number, line in enumerate(_read_text(path).split("\n"), start=1):
        if not line.strip() or (number == 1 and line.startswith("#version:")):
            continue
        pair = line.split()
        if len(pair) != 2:
            raise BundleError(f"{path}, line {number}: expected two symbols, found {line!r}.")
        merges.append((pair[0], pair[1]))
    return merges


def _read_added_tokens(path: Path) -> dict[int, AddedToken]:
    entries = read_json_object(path).get("added_tokens_decoder")
    if not isinstance(entries, dict) or not entries:
        raise BundleError(f"{path} has no added_tokens_decoder; is it a Qwen3-TTS tokenizer?")
    tokens: dict[int, AddedToken] = {}
    for key, entry in entries.items():
        try:
            tokens[int(key)] = AddedToken(
                entry["content"],
                lstrip=entry["lstrip"],
                rstrip=entry["rstrip"],
                single_word=entry["single_word"],
                normalized=entry["normalized"],
                special=entry["special"],
            )
        except (KeyError, TypeError, ValueError) as error:
            raise BundleError(f"{path}: added token {key!r} is malformed: {error!r}.") from error
    return tokens


def read_json_object(path: Path) -> dict[str, Any]:
    """Read a JSON object.

    Raises:
        BundleError: The file is missing or damaged; the message names it.
    """
    try:
        value = json.loads(_read_text(path))
    except json.JSONDecodeError as error:
        raise BundleError(f"{path} is not JSON ({error}); fetch the file again.") from error
    if not isinstance(value, dict):
        raise BundleError(f"{path} is not a JSON object; fetch the file again.")
    return value


def _read_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise BundleError(f"Cannot read {path}: {error.strerror}.") from error
    except UnicodeDecodeError as error:
        raise BundleError(f"{path} is not UTF-8 text; fetch the file again.") from error
