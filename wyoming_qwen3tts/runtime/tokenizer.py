r"""Text tokenizer: Qwen2's byte-level BPE from ``vocab.json``, ``merges.txt`` and added tokens.

The checkpoint ships no ``tokenizer.json``, so the pipeline is built here: NFC, the Qwen2 split
pattern, bytes to printable characters, merges. The official package tokenises the whole template
and cuts the body out by position. The body alone gives the same ids as long as it does not begin
with white space, because ``\n`` stands before it and ``<|im_end|>`` behind.

Ported from: huggingface/transformers models/qwen2/tokenization_qwen2.py and Qwen2Converter of
convert_slow_tokenizer.py.
"""

import json
from pathlib import Path
from typing import Any, Final

from tokenizers import AddedToken, Regex, Tokenizer, models, normalizers, pre_tokenizers

from wyoming_qwen3tts.errors import BundleError

TOKENIZER_FILES: Final = ("vocab.json", "merges.txt", "tokenizer_config.json")

# Every digit stands alone, contractions are split off, a word takes one character before it along.
_SPLIT_PATTERN: Final = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_TOKEN_FLAGS: Final = ("lstrip", "rstrip", "single_word", "normalized", "special")


class BpeTokenizer:
    """Text to token ids; user text can never yield a special token."""

    def __init__(self, directory: Path) -> None:
        """Read the ``TOKENIZER_FILES``; raise a BundleError that names a damaged or mixed one."""
        vocabulary_path, merges_path, config_path = (directory / name for name in TOKENIZER_FILES)
        vocabulary, merges = read_json_object(vocabulary_path), _read_merges(merges_path)
        if missing := set(pre_tokenizers.ByteLevel.alphabet()) - vocabulary.keys():
            raise BundleError(f"{vocabulary_path} has no {min(missing)!r}; fetch the file again.")
        try:
            model = models.BPE(vocab=vocabulary, merges=merges, fuse_unk=False, byte_fallback=False)
        except Exception as error:  # the tokenizers library raises bare Exception for a bad merge
            raise _mixed(merges_path, str(error)) from error
        self._plain = _pipeline(model)
        self._template = _pipeline(model)
        for token_id, token in sorted(_read_added_tokens(config_path).items()):
            add = self._template.add_special_tokens if token.special else self._template.add_tokens
            add([token])
            if (actual_id := self._template.token_to_id(token.content)) != token_id:
                raise _mixed(config_path, f"{token.content!r} gets {actual_id}, not {token_id}")

    def encode(self, text: str) -> list[int]:
        """Encode user text; special tokens in it are read as plain text."""
        return list(self._plain.encode(_repair_surrogates(text), add_special_tokens=False).ids)

    def encode_template(self, text: str) -> list[int]:
        """Encode our own text, in which special tokens have their meaning."""
        return list(self._template.encode(_repair_surrogates(text), add_special_tokens=False).ids)


def _mixed(path: Path, problem: str) -> BundleError:
    return BundleError(
        f"{path} does not fit vocab.json: {problem}; take both files from one checkpoint."
    )


def _pipeline(model: models.BPE) -> Tokenizer:
    tokenizer = Tokenizer(model)
    # The library documents these as assignable, its type stubs declare them read-only.
    pipeline: Any = tokenizer
    pipeline.normalizer = normalizers.NFC()
    split = pre_tokenizers.Split(Regex(_SPLIT_PATTERN), behavior="isolated", invert=False)
    to_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    pipeline.pre_tokenizer = pre_tokenizers.Sequence([split, to_bytes])
    return tokenizer


def _repair_surrogates(text: str) -> str:
    """Join surrogate pairs and replace lone ones, which JSON may carry but UTF-8 may not."""
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


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
    try:
        return {
            int(key): AddedToken(entry["content"], **{flag: entry[flag] for flag in _TOKEN_FLAGS})
            for key, entry in entries.items()
        }
    except (KeyError, TypeError, ValueError) as error:
        raise BundleError(f"{path}: an added token is malformed ({error!r}).") from error


def read_json_object(path: Path) -> dict[str, Any]:
    """Read a JSON object; raise a BundleError that names the file if it is missing or damaged."""
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
    except (OSError, UnicodeDecodeError) as error:
        raise BundleError(f"{path} cannot be read ({error}); fetch the file again.") from error
