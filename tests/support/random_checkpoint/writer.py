"""Write a random checkpoint in the official layout: same files, names, types and shapes."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Final

from tests.support.random_checkpoint.architecture import (
    TEMPLATES,
    RandomCheckpointRecipe,
    codec_config,
    model_config,
)
from tests.support.random_checkpoint.inventory import codec_tensors, model_tensors
from tests.support.random_checkpoint.values import (
    ExactNormals,
    Normals,
    PooledNormals,
    SafetensorsFile,
    ValueSource,
    write_safetensors,
)
from tests.support.random_checkpoint.vocabulary import build_vocabulary
from wyoming_qwen3tts.errors import BuildError
from wyoming_qwen3tts.files import atomic_directory

CODEC_DIRECTORY: Final = "speech_tokenizer"
# Added to the seed, so that codec and language model never share values.
_CODEC_SEED_OFFSET: Final = 1000


class RandomCheckpoint:
    """A checkpoint yet to be written."""

    def __init__(self, recipe: RandomCheckpointRecipe) -> None:
        """Lay out configuration, vocabulary and tensors."""
        self._recipe = recipe
        self._vocabulary = build_vocabulary(recipe.preset)
        self._model_config = model_config(recipe, self._vocabulary)
        self._codec_config = codec_config(recipe)
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

    def write(self, directory: Path, on_written: Callable[[int], object] | None = None) -> None:
        """Write the checkpoint; ``directory`` appears complete or not at all.

        Args:
            directory: Must not exist, or be empty; its parents are made.
            on_written: Called with the number of bytes after every block of values.

        Raises:
            BuildError: The directory is in use, or the disk cannot take the files.
        """
        if directory.is_dir() and not any(directory.iterdir()):
            directory.rmdir()
        if directory.exists():
            raise BuildError(f"{directory} exists; remove it or choose another directory.")
        try:
            with atomic_directory(directory) as partial:
                (partial / CODEC_DIRECTORY).mkdir()
                self._write_texts(partial)
                self._write_tensors(partial, on_written or (lambda _num_bytes: None))
        except OSError as error:
            raise BuildError(f"Cannot write {directory}: {error}.") from error

    def _write_texts(self, directory: Path) -> None:
        codec = directory / CODEC_DIRECTORY
        _write_json(directory / "config.json", self._model_config)
        _write_json(directory / "generation_config.json", TEMPLATES["generation_config"])
        _write_json(directory / "preprocessor_config.json", TEMPLATES["text_preprocessor"])
        _write_json(directory / "tokenizer_config.json", self._vocabulary.tokenizer_config())
        _write_json(directory / "vocab.json", self._vocabulary.ids, indent=None)
        merges = self._vocabulary.merges_text()
        (directory / "merges.txt").write_text(merges, encoding="utf-8")
        _write_json(codec / "config.json", self._codec_config)
        _write_json(codec / "configuration.json", TEMPLATES["hub_configuration"], indent=None)
        _write_json(codec / "preprocessor_config.json", TEMPLATES["audio_preprocessor"])

    def _write_tensors(self, directory: Path, on_written: Callable[[int], object]) -> None:
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
