"""The official configuration of the demo voice, its tokenizer, and the prompts it is trained on."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from script._demo_voice.recipe import CodecRecipe, LanguageRecipe, Recipe
from script._demo_voice.vocabulary import letter_vocabulary
from tests.support.random_checkpoint.architecture import (
    LANGUAGE_IDS,
    NUM_SPECIAL_CODEC_IDS,
    REAL_CODEBOOK_SIZE,
    SPEAKER_IDS,
    SPECIAL_CODEC_IDS,
    codec_config,
    model_config,
)
from tests.support.random_checkpoint.recipe import RandomCheckpointRecipe
from wyoming_qwen3tts.runtime.tokenizer import BpeTokenizer, load_tokenizer

SPEAKER: Final = "demo"
NO_CODEC: Final = -1
# 160 s; the tables of a bundle grow with it.
_MAX_POSITIONS: Final = 2048
_ROLE: Final = "<|im_start|>assistant\n"


@dataclass(frozen=True)
class Prompt:
    """Positions in front of the first frame, and the text that is still to come."""

    text: tuple[int, ...]
    codec: tuple[int, ...]
    """Beside ``text``; NO_CODEC where there is none."""
    trailing: tuple[int, ...]
    """One text token a frame, the end mark included; then pad for ever."""


class PromptWriter:
    """Writes prompts in the official streaming layout: one text token a frame."""

    def __init__(self, tokenizer: BpeTokenizer, codebook_size: int) -> None:
        """Look up the ids."""
        self._tokenizer = tokenizer
        shift = REAL_CODEBOOK_SIZE - codebook_size
        ids = {name: real - shift for name, real in SPECIAL_CODEC_IDS.items()}
        self.end_of_speech = ids["codec_eos_token_id"]
        think = [ids["codec_think_id"], ids["codec_think_bos_id"], LANGUAGE_IDS["english"] - shift]
        no_think = [ids["codec_nothink_id"], ids["codec_think_bos_id"]]
        behind = [ids["codec_think_eos_id"], SPEAKER_IDS["ryan"] - shift, ids["codec_pad_id"]]
        self._announced = {True: [*think, *behind], False: [*no_think, *behind]}
        self._codec_bos = ids["codec_bos_id"]
        self._role = tokenizer.encode_template(_ROLE)
        (self.pad,) = tokenizer.encode_template("<tts_pad>")
        (self._bos,) = tokenizer.encode_template("<tts_text_bos>")
        (self._eos,) = tokenizer.encode_template("<tts_text_eod>")

    def write(self, text: str, *, names_language: bool) -> Prompt:
        """Write the prompt of one utterance."""
        codec = self._announced[names_language]
        body = self._tokenizer.encode(text)
        return Prompt(
            text=(*self._role, *[self.pad] * (len(codec) - 1), self._bos, body[0]),
            codec=(*[NO_CODEC] * len(self._role), *codec, self._codec_bos),
            trailing=(*body[1:], self._eos),
        )


def num_codec_rows(codec: CodecRecipe) -> int:
    """Return the rows of the talker's codec table."""
    return codec.codebook_size + NUM_SPECIAL_CODEC_IDS


def num_text_rows() -> int:
    """Return the rows of the text table."""
    return letter_vocabulary().padded_size


def write_tokenizer(directory: Path) -> BpeTokenizer:
    """Write the tokenizer's three files, and open them."""
    vocabulary = letter_vocabulary()
    directory.mkdir(parents=True, exist_ok=True)
    _write_json(directory / "vocab.json", vocabulary.ids, indent=None)
    (directory / "merges.txt").write_text(vocabulary.merges_text(), encoding="utf-8")
    _write_json(directory / "tokenizer_config.json", vocabulary.tokenizer_config())
    return load_tokenizer(directory)


def voice_model_config(recipe: Recipe) -> dict[str, Any]:
    """Return ``config.json``: the official keys with the recipe's widths."""
    config = model_config(_like(recipe.codec), letter_vocabulary())
    talker = config["talker_config"]
    shift = REAL_CODEBOOK_SIZE - recipe.codec.codebook_size
    language = recipe.language
    talker |= {
        **_talker_widths(language),
        "vocab_size": num_codec_rows(recipe.codec),
        "max_position_embeddings": _MAX_POSITIONS,
        "text_hidden_size": language.text_width,
        "text_vocab_size": num_text_rows(),
        **{name: real - shift for name, real in SPECIAL_CODEC_IDS.items()},
        "codec_language_id": {"english": LANGUAGE_IDS["english"] - shift},
        "spk_id": {SPEAKER: SPEAKER_IDS["ryan"] - shift},
        "spk_is_dialect": {SPEAKER: False},
    }
    half = language.head_width // 2
    talker["rope_scaling"]["mrope_section"] = [half - 2 * (half // 3), half // 3, half // 3]
    talker["code_predictor_config"] |= {
        "vocab_size": recipe.codec.codebook_size,
        "hidden_size": language.predictor_width,
        "intermediate_size": language.predictor_intermediate,
        "num_hidden_layers": language.predictor_layers,
        "num_attention_heads": language.predictor_heads,
        "num_key_value_heads": language.predictor_kv_heads,
        "head_dim": language.predictor_head_width,
        "layer_types": ["full_attention"] * language.predictor_layers,
    }
    return config


def _talker_widths(language: LanguageRecipe) -> dict[str, int]:
    return {
        "hidden_size": language.width,
        "intermediate_size": language.intermediate,
        "num_hidden_layers": language.num_layers,
        "num_attention_heads": language.num_heads,
        "num_key_value_heads": language.num_kv_heads,
        "head_dim": language.head_width,
    }


def voice_codec_config(codec: CodecRecipe) -> dict[str, Any]:
    """Return ``speech_tokenizer/config.json``: the official keys with the recipe's widths."""
    config = codec_config(_like(codec))
    config["decoder_config"] |= {
        "latent_dim": codec.width,
        "codebook_dim": 2 * codec.latent_width,
        "codebook_size": codec.codebook_size,
        "semantic_codebook_size": 2 * codec.codebook_size,
        "vector_quantization_hidden_dimension": 2 * codec.latent_width,
        "decoder_dim": codec.decoder_channels,
        "hidden_size": codec.width,
        "intermediate_size": 2 * codec.width,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 4,
        "head_dim": codec.width // 4,
        "sliding_window": 72,
        "max_position_embeddings": _MAX_POSITIONS,
        "layer_scale_initial_scale": 0.1,
    }
    config["encoder_config"]["codebook_size"] = codec.codebook_size
    return config


def _like(codec: CodecRecipe) -> RandomCheckpointRecipe:
    return RandomCheckpointRecipe(num_code_groups=codec.num_groups)


def _write_json(path: Path, value: object, *, indent: int | None = 2) -> None:
    path.write_text(json.dumps(value, indent=indent, ensure_ascii=False), encoding="utf-8")


def write_json_files(files: Sequence[tuple[Path, object]]) -> None:
    """Write values as indented JSON."""
    for path, value in files:
        _write_json(path, value)
