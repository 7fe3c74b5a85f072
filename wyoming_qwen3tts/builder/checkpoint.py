"""Reads official checkpoints tensor by tensor, and strictly.

A tensor of another shape than the configuration asks for is an error. :meth:`TensorFile.finish`
refuses a file with tensors that were neither read nor named with a reason.
"""

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Final

import numpy as np
from safetensors import SafetensorError, safe_open

from wyoming_qwen3tts.arrays import Float32Array
from wyoming_qwen3tts.builder.config import (
    CodecDecoderConfig,
    CodecEncoderConfig,
    CodePredictorConfig,
    SpeakerEncoderConfig,
    TalkerConfig,
    read_code_predictor_config,
    read_codec_decoder_config,
    read_codec_encoder_config,
    read_speaker_encoder_config,
    read_talker_config,
)
from wyoming_qwen3tts.errors import CheckpointError
from wyoming_qwen3tts.runtime.manifest import ModelFacts, facts_from_checkpoint
from wyoming_qwen3tts.runtime.tokenizer import TOKENIZER_FILES

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
        """Read the header of ``path``.

        Raises:
            CheckpointError: The file is missing, truncated or not a safetensors file.
        """
        self.path = path
        self._shapes: dict[str, tuple[int, ...]] = {}
        self._value_bytes: dict[str, int] = {}
        self._read_names: set[str] = set()
        self.on_read: Callable[[int], None] = lambda _num_bytes: None
        """Called with the bytes of every read, for a progress bar."""
        try:
            with safe_open(path, "numpy") as file:
                for name in file.keys():  # noqa: SIM118 - it is not a mapping
                    entry = file.get_slice(name)
                    self._shapes[name] = tuple(entry.get_shape())
                    self._value_bytes[name] = _BYTES_PER_VALUE[entry.get_dtype()]
        except (OSError, SafetensorError) as error:
            problem = "cannot be read" if isinstance(error, OSError) else "is damaged"
            raise CheckpointError(f"{path} {problem} ({error}); download it again.") from error
        except KeyError as error:
            raise CheckpointError(
                f"{path} has tensors of type {error}; this builder reads "
                f"{', '.join(_BYTES_PER_VALUE)}."
            ) from error

    @property
    def names(self) -> tuple[str, ...]:
        """Names of all tensors."""
        return tuple(self._shapes)

    def __contains__(self, name: str) -> bool:
        return name in self._shapes

    def num_bytes(self, patterns: Sequence[str] = ("*",)) -> int:
        """Return the stored size of all tensors that match one of ``patterns``."""
        return sum(
            math.prod(shape) * self._value_bytes[name]
            for name, shape in self._shapes.items()
            if _matches(name, patterns)
        )

    def shape(self, name: str) -> tuple[int, ...]:
        """Return the shape of a tensor without reading it.

        Raises:
            CheckpointError: The tensor is missing.
        """
        if name not in self._shapes:
            raise CheckpointError(
                f"{self.path} has no tensor {name!r}; the download may be incomplete, "
                "or config.json belongs to another model."
            )
        return self._shapes[name]

    def read(self, name: str, shape: Sequence[int]) -> Float32Array:
        """Return a tensor as a new float32 array; ``shape`` is what the configuration asks for.

        Raises:
            CheckpointError: The tensor is missing or has another shape.
        """
        return self.read_rows(name, shape, 0, shape[0])

    def read_rows(self, name: str, shape: Sequence[int], start: int, stop: int) -> Float32Array:
        """Return rows ``start`` to ``stop`` of a tensor, for tensors too large to hold at once.

        The tensor counts as read once its last row was read.

        Raises:
            CheckpointError: The tensor is missing or has another shape.
        """
        found = self.shape(name)
        if found != tuple(shape):
            raise CheckpointError(
                f"{self.path}: tensor {name!r} has the shape {list(found)}, but the "
                f"configuration asks for {list(shape)}; config.json belongs to another model."
            )
        if stop >= found[0]:
            stop = found[0]
            self._read_names.add(name)
        with safe_open(self.path, "numpy") as file:
            rows = file.get_slice(name)[start:stop]
        self.on_read(rows.nbytes)
        return np.array(rows, np.float32)

    def finish(self, ignored: Mapping[str, str] | None = None) -> None:
        """Check that every tensor was read or is ignored for a stated reason.

        Args:
            ignored: Name, or pattern with ``*``, of tensors that are not needed -> the reason.

        Raises:
            CheckpointError: A tensor was not read; the message names it.
        """
        patterns = [*(ignored or {})]
        unread = [
            name
            for name in self._shapes
            if name not in self._read_names and not _matches(name, patterns)
        ]
        if unread:
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
    talker: TalkerConfig
    code_predictor: CodePredictorConfig
    codec_decoder: CodecDecoderConfig
    codec_encoder: CodecEncoderConfig
    speaker_encoder: SpeakerEncoderConfig | None
    """None if the model cannot clone voices."""
    main: TensorFile
    """Talker, code predictor, speaker encoder."""
    codec: TensorFile
    """Codec encoder and decoder."""

    @classmethod
    def open(cls, directory: Path) -> "Checkpoint":
        """Read configuration and tensor headers; no weights yet.

        Raises:
            CheckpointError: A file is missing or damaged, or the layout is unknown.
        """
        if not directory.is_dir():
            raise CheckpointError(
                f"{directory} is not a directory; give the directory of a downloaded Qwen3-TTS "
                "checkpoint (the one that has config.json)."
            )
        config = _read_json(directory / "config.json")
        codec_config = _read_json(directory / "speech_tokenizer" / "config.json")
        generation = _read_json(directory / "generation_config.json")
        for name in TOKENIZER_FILES:
            if not (directory / name).is_file():
                raise CheckpointError(f"{directory / name} is missing; download it again.")
        checkpoint = cls(
            directory=directory,
            talker=read_talker_config(config),
            code_predictor=read_code_predictor_config(config),
            codec_decoder=read_codec_decoder_config(codec_config),
            codec_encoder=read_codec_encoder_config(codec_config),
            speaker_encoder=read_speaker_encoder_config(config),
            facts=facts_from_checkpoint(config, codec_config, generation),
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
        for part in self.directory.resolve().parts:
            if part.startswith(_HUB_PREFIX):
                return part.removeprefix(_HUB_PREFIX).replace("--", "/")
        return None

    @property
    def source_revision(self) -> str | None:
        """Revision of :attr:`source_repo`."""
        directory = self.directory.resolve()
        if self.source_repo is None or directory.parent.name != "snapshots":
            return None
        return directory.name


def _read_json(path: Path) -> dict[str, Any]:
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise CheckpointError(
            f"{path} cannot be read ({error}); download the checkpoint again."
        ) from error
    if not isinstance(values, dict):
        raise CheckpointError(f"{path} is not a JSON object; download the checkpoint again.")
    return values


def _matches(name: str, patterns: Sequence[str]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)
