"""Write a random checkpoint in the official layout: same files, names, types and shapes."""

import argparse
import json
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, get_args

from tqdm import tqdm

from tests.support.random_checkpoint.architecture import (
    TEMPLATES,
    ModelSize,
    Preset,
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
from wyoming_qwen3tts.runtime.manifest import MODEL_TYPES

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
            on_written: Told the number of bytes after every block of values.

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


def main(arguments: Sequence[str] | None = None) -> int:
    """Write one checkpoint; return the exit status."""
    options = _parser().parse_args(arguments)
    started_s = time.monotonic()
    try:
        recipe = RandomCheckpointRecipe(
            model_type=options.type,
            model_size=options.size,
            preset=options.preset,
            seed=options.seed,
            num_code_groups=options.code_groups,
            eos_gain=options.eos_gain,
        )
        checkpoint = RandomCheckpoint(recipe)
        with tqdm(
            total=checkpoint.num_bytes,
            unit="B",
            unit_scale=True,
            disable=options.preset == "tiny" or not sys.stderr.isatty(),
        ) as progress:
            checkpoint.write(options.output, progress.update)
    except BuildError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    elapsed_s = time.monotonic() - started_s
    print(f"{options.output}: {checkpoint.num_bytes / 1e6:.1f} MB in {elapsed_s:.1f} s")
    return 0


def _parser() -> argparse.ArgumentParser:
    defaults = RandomCheckpointRecipe()
    parser = argparse.ArgumentParser(
        prog="make_checkpoint",
        description="Write a checkpoint of seeded random weights in the official layout. It speaks "
        "noise, but builds and runs like a real one.",
    )
    parser.add_argument("output", type=Path, metavar="OUTPUT", help="a directory yet to be made")
    parser.add_argument("--size", choices=get_args(ModelSize), default=defaults.model_size)
    parser.add_argument("--type", choices=MODEL_TYPES, default=defaults.model_type)
    parser.add_argument(
        "--preset",
        choices=get_args(Preset),
        default="real",
        help="the published dimensions (2.5 or 4.5 GB) or tiny ones (2.5 MB); default: real",
    )
    parser.add_argument("--seed", type=int, default=defaults.seed)
    parser.add_argument(
        "--code-groups", type=int, default=defaults.num_code_groups, help="default: 16"
    )
    parser.add_argument(
        "--eos-gain",
        type=float,
        default=defaults.eos_gain,
        help="factor on the end-of-speech row; 0 speaks until the limit; default: 2.2",
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
