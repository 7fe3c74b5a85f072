"""The official configuration, tokenizer and prompts of the demo voice, and its checkpoint."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from script._demo_voice.texts import letter_vocabulary, small_letters
from tests.support.random_checkpoint.architecture import (
    LANGUAGE_IDS,
    NUM_SPECIAL_CODEC_IDS,
    REAL_CODEBOOK_SIZE,
    SPEAKER_IDS,
    SPECIAL_CODEC_IDS,
    RandomCheckpointRecipe,
    codec_config,
    model_config,
)
from tests.support.random_checkpoint.inventory import codec_tensors, model_tensors
from tests.support.random_checkpoint.values import (
    ExactNormals,
    SafetensorsFile,
    TensorSpec,
    ValueSource,
    write_safetensors,
)
from wyoming_qwen3tts.arrays import Float32Array
from wyoming_qwen3tts.runtime.tokenizer import BpeTokenizer

NO_CODEC: Final = -1
_SPEAKER: Final = "demo"
_MAX_POSITIONS: Final = 2_048  # 160 s
_ROLE: Final = "<|im_start|>assistant\n"
_TEXT_TABLE: Final = "talker.model.text_embedding.weight"
_GENERATION: Final = {
    "do_sample": False,
    "temperature": 1.0,
    "top_p": 1.0,
    "top_k": 50,
    "repetition_penalty": 1.0,
    "subtalker_dosample": False,
    "subtalker_temperature": 1.0,
    "subtalker_top_p": 1.0,
    "subtalker_top_k": 50,
    "max_new_tokens": 512,
    # The talker was trained to read one text token per frame.
    "non_streaming_mode": False,
}


@dataclass(frozen=True)
class Prompt:
    """Positions before the first frame, and the text that follows."""

    text: tuple[int, ...]
    codec: tuple[int, ...]
    """Beside ``text``; NO_CODEC where there is none."""
    trailing: tuple[int, ...]
    """One text token per frame, the end mark included; then pad."""


class PromptWriter:
    """Writes prompts in the official streaming layout."""

    def __init__(self, tokenizer: BpeTokenizer, codebook_size: int) -> None:
        self._tokenizer = tokenizer
        shift = REAL_CODEBOOK_SIZE - codebook_size
        ids = {name: real - shift for name, real in SPECIAL_CODEC_IDS.items()}
        self.end_of_speech = ids["codec_eos_token_id"]
        think = [ids["codec_think_id"], ids["codec_think_bos_id"], LANGUAGE_IDS["english"] - shift]
        no_think = [ids["codec_nothink_id"], ids["codec_think_bos_id"]]
        after = [ids["codec_think_eos_id"], SPEAKER_IDS["ryan"] - shift, ids["codec_pad_id"]]
        self._codec = {True: [*think, *after], False: [*no_think, *after]}
        self._codec_bos = ids["codec_bos_id"]
        self._role = tokenizer.encode_template(_ROLE)
        self.pad, self._bos, self._eos = (
            tokenizer.encode_template(f"<tts_{name}>")[0]
            for name in ("pad", "text_bos", "text_eod")
        )

    def write(self, text: str, *, names_language: bool) -> Prompt:
        codec = self._codec[names_language]
        body = self._tokenizer.encode(text)
        return Prompt(
            text=(*self._role, *[self.pad] * (len(codec) - 1), self._bos, body[0]),
            codec=(*[NO_CODEC] * len(self._role), *codec, self._codec_bos),
            trailing=(*body[1:], self._eos),
        )


def num_codec_rows(codec: Any) -> int:
    """Return the rows of the talker's codec table."""
    return int(codec.codebook_size + NUM_SPECIAL_CODEC_IDS)


def write_tokenizer(directory: Path) -> BpeTokenizer:
    """Write the tokenizer's three files and open them."""
    vocabulary = letter_vocabulary()
    directory.mkdir(parents=True, exist_ok=True)
    _write_json(directory / "vocab.json", vocabulary.ids)
    (directory / "merges.txt").write_text(vocabulary.merges_text(), encoding="utf-8")
    _write_json(directory / "tokenizer_config.json", vocabulary.tokenizer_config())
    return BpeTokenizer(directory)


def voice_model_config(recipe: Any) -> dict[str, Any]:
    """Return ``config.json``: the official keys with the recipe's widths."""
    config = model_config(_random_recipe(recipe.codec), letter_vocabulary())
    shift = REAL_CODEBOOK_SIZE - recipe.codec.codebook_size
    language = recipe.language
    talker = config["talker_config"]
    talker |= {
        "hidden_size": language.width,
        "intermediate_size": language.intermediate,
        "num_hidden_layers": language.num_layers,
        "num_attention_heads": language.num_heads,
        "num_key_value_heads": language.num_kv_heads,
        "head_dim": language.head_width,
        "vocab_size": num_codec_rows(recipe.codec),
        "max_position_embeddings": _MAX_POSITIONS,
        "text_hidden_size": language.text_width,
        "text_vocab_size": letter_vocabulary().padded_size,
        **{name: real - shift for name, real in SPECIAL_CODEC_IDS.items()},
        "codec_language_id": {"english": LANGUAGE_IDS["english"] - shift},
        "spk_id": {_SPEAKER: SPEAKER_IDS["ryan"] - shift},
        "spk_is_dialect": {_SPEAKER: False},
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


def voice_codec_config(codec: Any) -> dict[str, Any]:
    """Return ``speech_tokenizer/config.json``: the official keys with the recipe's widths."""
    config = codec_config(_random_recipe(codec))
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


def _random_recipe(codec: Any) -> RandomCheckpointRecipe:
    return RandomCheckpointRecipe(num_code_groups=codec.num_groups)


def talker_shapes(recipe: Any) -> dict[str, tuple[int, ...]]:
    """Return the shapes of ``model.safetensors`` by name."""
    return {spec.name: spec.shape for spec in model_tensors(voice_model_config(recipe))}


def codec_shapes(codec: Any) -> dict[str, tuple[int, ...]]:
    """Return the shapes of the codec's decoder by name."""
    specs = codec_tensors(voice_codec_config(codec))
    return {spec.name: spec.shape for spec in specs if spec.name.startswith("decoder.")}


def export(recipe: Any, directory: Path, output: Path) -> None:
    """Write the averaged weights of both trainings in ``directory`` as a checkpoint."""
    import torch

    tokenizer = output / "speech_tokenizer"
    tokenizer.mkdir(parents=True, exist_ok=True)
    write_tokenizer(output)
    model, codec = voice_model_config(recipe), voice_codec_config(recipe.codec)
    _write_json(output / "config.json", model)
    _write_json(output / "generation_config.json", _GENERATION)
    _write_json(tokenizer / "config.json", codec)
    language, decoder = (
        torch.load(directory / f"{name}.pt", weights_only=True)["average"]
        for name in ("language", "codec")
    )
    # Capital letters get copies of the small letters' rows.
    language[_TEXT_TABLE] = language[_TEXT_TABLE][small_letters()]
    file = SafetensorsFile(model_tensors(model), "BF16", with_metadata=True)
    _write(output / "model.safetensors", file, language, recipe.seed)
    file = SafetensorsFile(codec_tensors(codec), "F32", with_metadata=False)
    _write(tokenizer / "model.safetensors", file, decoder, recipe.seed)


def _write(path: Path, content: SafetensorsFile, trained: dict[str, Any], seed: int) -> None:
    """Write a file; the codec's encoder, which was not trained, gets random values."""
    random = ValueSource(ExactNormals(), seed)

    def blocks(index: int, spec: TensorSpec) -> Iterator[Float32Array]:
        if spec.name in trained:
            yield np.ascontiguousarray(trained[spec.name].float().numpy().reshape(-1))
        else:
            yield from random.blocks(index, spec)

    write_safetensors(path, content, blocks, lambda _num_bytes: None)


def _write_json(path: Path, value: object) -> None:
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False), encoding="utf-8")
