"""Write a random checkpoint in the official layout: same files, names, types and shapes."""

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from tests.support.random_checkpoint.architecture import codec_config, model_config
from tests.support.random_checkpoint.inventory import codec_tensors, model_tensors
from tests.support.random_checkpoint.recipe import RandomCheckpointRecipe
from tests.support.random_checkpoint.safetensors import (
    SafetensorsFile,
    write_safetensors,
)
from tests.support.random_checkpoint.values import (
    ExactNormals,
    Normals,
    PooledNormals,
    ValueSource,
)
from tests.support.random_checkpoint.vocabulary import Vocabulary, build_vocabulary
from wyoming_qwen3tts.errors import BuildError

CODEC_DIRECTORY: Final = "speech_tokenizer"
# Added to the seed, so that codec and language model never share values.
_CODEC_SEED_OFFSET: Final = 1000
# The published sampling defaults and the files that are the same in every published checkpoint.
_GENERATION_CONFIG: Final = {
    "do_sample": True,
    "repetition_penalty": 1.05,
    "temperature": 0.9,
    "top_p": 1.0,
    "top_k": 50,
    "subtalker_dosample": True,
    "subtalker_temperature": 0.9,
    "subtalker_top_p": 1.0,
    "subtalker_top_k": 50,
    "max_new_tokens": 8192,
}
_TEXT_PREPROCESSOR: Final = {
    "padding_side": "left",
    "padding_value": 0.0,
    "processor_class": "Qwen3TTSProcessor",
    "return_attention_mask": True,
}
_AUDIO_PREPROCESSOR: Final = {
    "chunk_length_s": None,
    "feature_extractor_type": "EncodecFeatureExtractor",
    "feature_size": 1,
    "overlap": None,
    "padding_side": "right",
    "padding_value": 0.0,
    "return_attention_mask": True,
    "sampling_rate": 24000,
}
_HUB_CONFIGURATION: Final = {
    "framework": "pytorch",
    "task": "feature-extraction",
    "allow_remote": True,
}


class RandomCheckpoint:
    """A checkpoint yet to be written."""

    def __init__(self, recipe: RandomCheckpointRecipe) -> None:
        """Lay out configuration, vocabulary and tensors."""
        self._recipe = recipe
        self._vocabulary: Vocabulary = build_vocabulary(recipe.preset)
        self._model_config: dict[str, Any] = model_config(recipe, self._vocabulary)
        self._codec_config: dict[str, Any] = codec_config(recipe)
        self._model_file = SafetensorsFile(
            model_tensors(self._model_config),
            "BF16",
            # As published: Base and codec files came from another tool, which writes none.
            with_metadata=recipe.model_type != "base",
        )
        self._codec_file = SafetensorsFile(
            codec_tensors(self._codec_config), "F32", with_metadata=False
        )

    @property
    def num_bytes(self) -> int:
        """Bytes of tensor values that ``write`` will report in all."""
        return self._model_file.num_bytes + self._codec_file.num_bytes

    def write(self, directory: Path, on_written: Callable[[int], None] | None = None) -> None:
        """Write the checkpoint; ``directory`` appears complete or not at all.

        Args:
            directory: Must not exist, or be empty; its parents are made.
            on_written: Told the number of bytes after every block of values.

        Raises:
            BuildError: The directory is in use, or the disk cannot take the files.
        """
        if directory.is_dir() and not any(directory.iterdir()):
            directory.rmdir()
        if directory.exists():
            raise BuildError(f"{directory} exists; remove it or choose another directory.")
        partial = directory.with_name(f".{directory.name}.partial-{os.getpid()}")
        try:
            (partial / CODEC_DIRECTORY).mkdir(parents=True)
            self._write_texts(partial)
            self._write_tensors(partial, on_written or (lambda _num_bytes: None))
            partial.rename(directory)
        except OSError as error:
            raise BuildError(f"Cannot write {directory}: {error}.") from error
        finally:
            shutil.rmtree(partial, ignore_errors=True)

    def _write_texts(self, directory: Path) -> None:
        codec = directory / CODEC_DIRECTORY
        _write_json(directory / "config.json", self._model_config)
        _write_json(directory / "generation_config.json", _GENERATION_CONFIG)
        _write_json(directory / "preprocessor_config.json", _TEXT_PREPROCESSOR)
        _write_json(directory / "tokenizer_config.json", self._vocabulary.tokenizer_config())
        _write_json(directory / "vocab.json", self._vocabulary.ids, indent=None)
        merges = self._vocabulary.merges_text()
        (directory / "merges.txt").write_text(merges, encoding="utf-8")
        _write_json(codec / "config.json", self._codec_config)
        _write_json(codec / "configuration.json", _HUB_CONFIGURATION, indent=None)
        _write_json(codec / "preprocessor_config.json", _AUDIO_PREPROCESSOR)

    def _write_tensors(self, directory: Path, on_written: Callable[[int], None]) -> None:
        recipe = self._recipe
        seed, codec_seed = recipe.seed, recipe.seed + _CODEC_SEED_OFFSET
        normals: Normals = ExactNormals() if recipe.preset == "tiny" else PooledNormals(seed)
        end_of_speech = self._model_config["talker_config"]["codec_eos_token_id"]
        gains = {"talker.codec_head.weight": (end_of_speech, recipe.eos_gain)}
        write_safetensors(
            directory / "model.safetensors",
            self._model_file,
            ValueSource(normals, seed, gains).blocks,
            on_written,
        )
        write_safetensors(
            directory / CODEC_DIRECTORY / "model.safetensors",
            self._codec_file,
            ValueSource(normals, codec_seed).blocks,
            on_written,
        )


def _write_json(path: Path, value: object, *, indent: int | None = 2) -> None:
    path.write_text(json.dumps(value, indent=indent, ensure_ascii=False), encoding="utf-8")
