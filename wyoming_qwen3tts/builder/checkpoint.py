"""Reads official checkpoints strictly: every tensor is read, or named with a reason."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Final

import numpy as np
from safetensors import SafetensorError, safe_open

from wyoming_qwen3tts.arrays import Float32Array
from wyoming_qwen3tts.builder import config
from wyoming_qwen3tts.errors import BundleError, CheckpointError
from wyoming_qwen3tts.runtime.manifest import ModelFacts, facts_from_checkpoint
from wyoming_qwen3tts.runtime.tokenizer import TOKENIZER_FILES, read_json_object

_BYTES_PER_VALUE: Final = {"BF16": 2, "F16": 2, "F32": 4}
_NAMES_IN_MESSAGE: Final = 5
# The hub's cache keeps "owner/name" in models--owner--name/snapshots/<revision>.
_HUB_PREFIX: Final = "models--"


class TensorFile:
    """One safetensors file.

    Each read opens the file again: the memory map of an open file would count as memory of the
    build, up to the size of the checkpoint.
    """

    def __init__(self, path: Path) -> None:
        """Read the header; raise a CheckpointError if the file is missing or damaged."""
        self.path = path
        self.shapes: dict[str, tuple[int, ...]] = {}
        self._value_bytes: dict[str, int] = {}
        self._read_names: set[str] = set()
        self.on_read: Callable[[int], None] = lambda _num_bytes: None
        """Called with the bytes of every read, for a progress bar."""
        try:
            with safe_open(path, "numpy") as file:
                for name in file.keys():  # noqa: SIM118 - it is not a mapping
                    entry = file.get_slice(name)
                    self.shapes[name] = tuple(entry.get_shape())
                    self._value_bytes[name] = _BYTES_PER_VALUE[entry.get_dtype()]
        except (OSError, SafetensorError) as error:
            problem = "cannot be read" if isinstance(error, OSError) else "is damaged"
            raise CheckpointError(f"{path} {problem} ({error}); download it again.") from error
        except KeyError as error:
            raise CheckpointError(f"{path} has tensors of the unknown type {error}.") from error

    def num_bytes(self, patterns: Sequence[str] = ("*",)) -> int:
        """Return the stored size of all tensors that match one of ``patterns``."""
        return sum(
            math.prod(shape) * self._value_bytes[name]
            for name, shape in self.shapes.items()
            if _matches(name, patterns)
        )

    def read(self, name: str, shape: Sequence[int]) -> Float32Array:
        """Return a tensor as a new float32 array; see :meth:`read_rows`."""
        return self.read_rows(name, shape, 0, shape[0])

    def read_rows(self, name: str, shape: Sequence[int], start: int, stop: int) -> Float32Array:
        """Return rows of a tensor, which counts as read once its last row was read.

        Raises:
            CheckpointError: The tensor is missing or has not the configuration's ``shape``.
        """
        found = self.shapes.get(name)
        if found is None:
            raise CheckpointError(f"{self.path} has no tensor {name!r}; download it again.")
        if found != tuple(shape):
            wrong = f"{self.path}: tensor {name!r} has the shape {list(found)}"
            raise CheckpointError(f"{wrong}, but the configuration asks for {list(shape)}.")
        if stop >= found[0]:
            self._read_names.add(name)
        with safe_open(self.path, "numpy") as file:
            rows = file.get_slice(name)[start : min(stop, found[0])]
        self.on_read(rows.nbytes)
        return np.array(rows, np.float32)

    def finish(self, ignored: Mapping[str, str]) -> None:
        """Raise a CheckpointError if a tensor was not read and no pattern -> reason names it."""
        left = self.shapes.keys() - self._read_names
        if unread := sorted(name for name in left if not _matches(name, ignored)):
            more = len(unread) - _NAMES_IN_MESSAGE
            listed = ", ".join(unread[:_NAMES_IN_MESSAGE])
            raise CheckpointError(
                f"{self.path} has {len(unread)} tensors that this builder does not know "
                f"({listed}{f' and {more} more' if more > 0 else ''}). The bundle would not be "
                "the model; a newer version of the builder may know them."
            )


@dataclass(frozen=True)
class Checkpoint:
    """An opened checkpoint directory in the official layout."""

    directory: Path
    facts: ModelFacts
    talker: config.TalkerConfig
    code_predictor: config.CodePredictorConfig
    codec_decoder: config.CodecDecoderConfig
    codec_encoder: config.CodecEncoderConfig
    speaker_encoder: config.SpeakerEncoderConfig | None
    """None if the model cannot clone voices."""
    main: TensorFile
    codec: TensorFile

    @classmethod
    def open(cls, directory: Path) -> "Checkpoint":
        """Read configuration and headers; raise a CheckpointError if a file does not fit."""
        if not directory.is_dir():
            raise CheckpointError(f"{directory} is not a directory; give that of a checkpoint.")
        model_config = _read_json(directory / "config.json")
        codec_config = _read_json(directory / "speech_tokenizer" / "config.json")
        generation = _read_json(directory / "generation_config.json")
        for name in TOKENIZER_FILES:
            if not (directory / name).is_file():
                raise CheckpointError(f"{directory / name} is missing; download it again.")
        checkpoint = cls(
            directory=directory,
            talker=config.read_talker_config(model_config),
            code_predictor=config.read_code_predictor_config(model_config),
            codec_decoder=config.read_codec_decoder_config(codec_config),
            codec_encoder=config.read_codec_encoder_config(codec_config),
            speaker_encoder=config.read_speaker_encoder_config(model_config),
            facts=facts_from_checkpoint(model_config, codec_config, generation),
            main=TensorFile(directory / "model.safetensors"),
            codec=TensorFile(directory / "speech_tokenizer" / "model.safetensors"),
        )
        decoder, predictor = checkpoint.codec_decoder, checkpoint.code_predictor
        for name, of_codec, of_model in (
            ("code groups", decoder.num_quantizers, predictor.num_code_groups),
            ("codes per group", decoder.codebook_size, predictor.codebook_size),
        ):
            if of_codec != of_model:
                raise CheckpointError(
                    f"{directory}: the codec has {of_codec} {name}, the language model "
                    f"{of_model}; speech_tokenizer/ belongs to another model."
                )
        return checkpoint

    @property
    def source_repo(self) -> str | None:
        """Repository of the checkpoint; None outside a hub cache."""
        snapshots = self.directory.resolve().parent
        repository = snapshots.parent.name
        if snapshots.name != "snapshots" or not repository.startswith(_HUB_PREFIX):
            return None
        return repository.removeprefix(_HUB_PREFIX).replace("--", "/")

    @property
    def source_revision(self) -> str | None:
        """Revision of :attr:`source_repo`."""
        return self.directory.resolve().name if self.source_repo else None


def _read_json(path: Path) -> dict[str, Any]:
    try:
        return read_json_object(path)
    except BundleError as error:
        raise CheckpointError(str(error)) from error


def _matches(name: str, patterns: Iterable[str]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)
