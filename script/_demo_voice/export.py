"""Writes the trained parts as a checkpoint in the official layout."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor

from script._demo_voice.layout import (
    voice_codec_config,
    voice_model_config,
    write_json_files,
    write_tokenizer,
)
from script._demo_voice.recipe import Recipe
from script._demo_voice.vocabulary import small_letters
from tests.support.random_checkpoint.inventory import codec_tensors, model_tensors
from tests.support.random_checkpoint.safetensors import (
    SafetensorsFile,
    write_safetensors,
)
from tests.support.random_checkpoint.values import (
    ExactNormals,
    TensorSpec,
    ValueSource,
)
from wyoming_qwen3tts.arrays import Float32Array

_PLAIN: Final = {"do_sample": False, "temperature": 1.0, "top_p": 1.0, "top_k": 50}

_TEXT_TABLE: Final = "talker.model.text_embedding.weight"


def generation_config(max_new_tokens: int = 512) -> dict[str, Any]:
    """Return ``generation_config.json``."""
    return {
        **_PLAIN,
        "repetition_penalty": 1.0,
        "subtalker_dosample": False,
        "subtalker_temperature": 1.0,
        "subtalker_top_p": 1.0,
        "subtalker_top_k": 50,
        "max_new_tokens": max_new_tokens,
        # The talker was trained to be fed one text token a frame.
        "non_streaming_mode": False,
    }


def export(recipe: Recipe, directory: Path, output: Path) -> None:
    """Write the averaged weights of both trainings in ``directory`` as a checkpoint."""
    codec_directory = output / "speech_tokenizer"
    codec_directory.mkdir(parents=True, exist_ok=True)
    write_tokenizer(output)
    model, codec = voice_model_config(recipe), voice_codec_config(recipe.codec)
    write_json_files(
        [
            (output / "config.json", model),
            (output / "generation_config.json", generation_config()),
            (codec_directory / "config.json", codec),
        ]
    )
    _write(
        output / "model.safetensors",
        SafetensorsFile(model_tensors(model), "BF16", with_metadata=True),
        _talker(directory / "language.pt"),
        recipe.seed,
    )
    _write(
        codec_directory / "model.safetensors",
        SafetensorsFile(codec_tensors(codec), "F32", with_metadata=False),
        _trained(directory / "codec.pt", "decoder."),
        recipe.seed,
    )


def _talker(path: Path) -> dict[str, Tensor]:
    weights = _trained(path, "talker.")
    weights[_TEXT_TABLE] = weights[_TEXT_TABLE][small_letters()]
    return weights


def _trained(path: Path, prefix: str) -> dict[str, Tensor]:
    weights = torch.load(path, weights_only=True)["average"]
    return {prefix + name: value for name, value in weights.items()}


def _write(path: Path, content: SafetensorsFile, trained: Mapping[str, Tensor], seed: int) -> None:
    """Write a file; what was not trained (the codec's encoder) gets random values.

    Raises:
        ValueError: A trained tensor has no place in the layout, or another shape.
    """
    shapes = {spec.name: spec.shape for spec in content.specs}
    for name, value in trained.items():
        if shapes.get(name) != tuple(value.shape):
            raise ValueError(f"{name} {tuple(value.shape)}: the layout has {shapes.get(name)}")
    rest = {name for name in shapes if name not in trained}
    if strange := [name for name in rest if not name.startswith("encoder.")]:
        raise ValueError(f"not trained: {', '.join(strange)}")
    random = ValueSource(ExactNormals(), seed)

    def blocks(index: int, spec: TensorSpec) -> Iterator[Float32Array]:
        if spec.name in trained:
            yield np.ascontiguousarray(trained[spec.name].float().numpy().reshape(-1))
        else:
            yield from random.blocks(index, spec)

    write_safetensors(path, content, blocks, lambda _num_bytes: None)
