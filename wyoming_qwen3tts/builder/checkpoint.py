"""Reads official checkpoints: safetensors by memory map, tensor by tensor, and strictly.

Strict means that a tensor of another shape than the configuration asks for is an error, and that
:meth:`TensorFile.finish` refuses a file with tensors that nobody read and nobody named with a
reason. Each read maps only its own part of the file and lets go of it, so that the resident memory
of a build does not grow to the size of the checkpoint.
"""

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import numpy as np

from wyoming_qwen3tts.arrays import AnyArray, Float32Array
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

TOKENIZER_FILES = ("vocab.json", "merges.txt", "tokenizer_config.json")

# BF16 has no numpy type: it is read as its bits, the upper half of a float32.
_STORAGE_TYPES: dict[str, np.dtype[Any]] = {
    "BF16": np.dtype("<u2"),
    "F16": np.dtype("<f2"),
    "F32": np.dtype("<f4"),
}
_LENGTH_BYTES = 8
# The format's own limit; a longer header is a damaged file.
_MAX_HEADER_BYTES = 100_000_000
_NAMES_IN_MESSAGE = 5
# The hub's cache keeps "owner/name" in models--owner--name/snapshots/<revision>.
_HUB_PREFIX = "models--"


@dataclass(frozen=True)
class TensorEntry:
    """Where a tensor lies in its file."""

    dtype: str
    shape: tuple[int, ...]
    offset: int
    """Bytes from the start of the file."""
    num_bytes: int


class TensorFile:
    """One safetensors file."""

    def __init__(self, path: Path) -> None:
        """Read the header of ``path``.

        Raises:
            CheckpointError: The file is missing, truncated or no safetensors file.
        """
        self.path = path
        self._entries = _read_header(path)
        self._read_names: set[str] = set()
        self.on_read: Callable[[int], None] = lambda _num_bytes: None
        """Told of the bytes of every read, for a progress bar."""

    @property
    def names(self) -> tuple[str, ...]:
        """Names of all tensors, in the file's order."""
        return tuple(self._entries)

    def __contains__(self, name: str) -> bool:
        return name in self._entries

    def num_bytes(self, patterns: Sequence[str] = ("*",)) -> int:
        """Return the stored size of all tensors whose name matches one of ``patterns``."""
        return sum(
            entry.num_bytes for name, entry in self._entries.items() if _matches(name, patterns)
        )

    def shape(self, name: str) -> tuple[int, ...]:
        """Return the shape of a tensor without reading it.

        Raises:
            CheckpointError: There is no such tensor.
        """
        return self._entry(name).shape

    def read(self, name: str, shape: Sequence[int]) -> Float32Array:
        """Return a tensor as a new float32 array.

        Args:
            name: The tensor's name.
            shape: The shape that the configuration asks for.

        Raises:
            CheckpointError: There is no such tensor, or it has another shape.
        """
        entry = self._checked(name, shape)
        self._read_names.add(name)
        return self._widened(entry, 0, math.prod(entry.shape)).reshape(entry.shape)

    def read_rows(self, name: str, shape: Sequence[int], start: int, stop: int) -> Float32Array:
        """Return rows ``start`` to ``stop`` of a tensor, for tensors too large to hold at once.

        The tensor counts as read once its last row was.

        Raises:
            CheckpointError: There is no such tensor, or it has another shape.
        """
        entry = self._checked(name, shape)
        if stop >= entry.shape[0]:
            stop = entry.shape[0]
            self._read_names.add(name)
        row_size = math.prod(entry.shape[1:])
        values = self._widened(entry, start * row_size, (stop - start) * row_size)
        return values.reshape(stop - start, *entry.shape[1:])

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
            for name in self._entries
            if name not in self._read_names and not _matches(name, patterns)
        ]
        if unread:
            raise CheckpointError(
                f"{self.path} has {len(unread)} tensors that this builder does not know "
                f"({_listed(unread)}). The result would not be the model; "
                "a newer version of the builder may know them."
            )

    def _entry(self, name: str) -> TensorEntry:
        try:
            return self._entries[name]
        except KeyError:
            raise CheckpointError(
                f"{self.path} has no tensor {name!r}; the download may be incomplete, "
                "or config.json belongs to another model."
            ) from None

    def _checked(self, name: str, shape: Sequence[int]) -> TensorEntry:
        entry = self._entry(name)
        if entry.shape != tuple(shape):
            raise CheckpointError(
                f"{self.path}: tensor {name!r} has the shape {list(entry.shape)}, but the "
                f"configuration asks for {list(shape)}; config.json belongs to another model."
            )
        return entry

    def _widened(self, entry: TensorEntry, first: int, count: int) -> Float32Array:
        """Return ``count`` values from the ``first`` on, as float32 in memory of its own."""
        storage = _STORAGE_TYPES[entry.dtype]
        if count == 0:
            return np.empty(0, np.float32)
        mapped: AnyArray = np.memmap(
            self.path,
            storage,
            mode="r",
            offset=entry.offset + first * storage.itemsize,
            shape=(count,),
        )
        self.on_read(mapped.nbytes)
        if entry.dtype != "BF16":
            return np.array(mapped, np.float32)
        bits = mapped.astype(np.uint32)
        np.left_shift(bits, 16, out=bits)
        return bits.view(np.float32)


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
    """None where the model cannot clone voices."""
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
            facts=_read_facts(config, codec_config, generation),
            main=TensorFile(directory / "model.safetensors"),
            codec=TensorFile(directory / "speech_tokenizer" / "model.safetensors"),
        )
        checkpoint._check_agreement()
        return checkpoint

    @property
    def source_repo(self) -> str | None:
        """Repository that the checkpoint came from, where a hub cache's path tells it."""
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

    def _check_agreement(self) -> None:
        """Refuse a codec that belongs to another language model."""
        groups = self.talker.num_code_groups
        if self.codec_decoder.num_quantizers != groups:
            raise CheckpointError(
                f"{self.directory}: the codec decodes {self.codec_decoder.num_quantizers} code "
                f"groups, the talker makes {groups}; speech_tokenizer/ belongs to another model."
            )
        if self.codec_decoder.codebook_size != self.code_predictor.codebook_size:
            raise CheckpointError(
                f"{self.directory}: the codec has {self.codec_decoder.codebook_size} codes per "
                f"group, the language model {self.code_predictor.codebook_size}; "
                "speech_tokenizer/ belongs to another model."
            )


def _read_facts(
    config: dict[str, Any], codec_config: dict[str, Any], generation: dict[str, Any]
) -> ModelFacts:
    try:
        return facts_from_checkpoint(config, codec_config, generation)
    except (TypeError, AttributeError) as error:
        raise CheckpointError(
            f"config.json or generation_config.json has a value of the wrong kind ({error}); "
            "download the checkpoint again."
        ) from error


def _read_json(path: Path) -> dict[str, Any]:
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise CheckpointError(
            f"{path} cannot be read ({error.strerror}); download the checkpoint again."
        ) from error
    except ValueError as error:
        raise CheckpointError(
            f"{path} is damaged ({error}); download the checkpoint again."
        ) from error
    if not isinstance(values, dict):
        raise CheckpointError(f"{path} is not a JSON object; download the checkpoint again.")
    return values


def _read_header(path: Path) -> dict[str, TensorEntry]:
    """Read names, types, shapes and places, and check them against the file's size."""
    try:
        file_bytes = path.stat().st_size
        with path.open("rb") as file:
            length = int.from_bytes(file.read(_LENGTH_BYTES), "little")
            if length > min(file_bytes - _LENGTH_BYTES, _MAX_HEADER_BYTES):
                raise _damaged(path, "it is shorter than its own header says")
            text = file.read(length)
    except OSError as error:
        raise CheckpointError(
            f"{path} cannot be read ({error.strerror}); download the checkpoint again."
        ) from error
    try:
        header = json.loads(text)
        header.pop("__metadata__", None)  # published files have it or not
        entries = {
            name: _entry_of(fields, _LENGTH_BYTES + length) for name, fields in header.items()
        }
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise _damaged(path, f"its header cannot be read: {error}") from error
    end = max((entry.offset + entry.num_bytes for entry in entries.values()), default=0)
    if end > file_bytes:
        raise _damaged(path, f"it has {file_bytes} bytes, but its header promises {end}")
    return entries


def _entry_of(fields: Mapping[str, Any], data_start: int) -> TensorEntry:
    dtype, shape = fields["dtype"], tuple(int(size) for size in fields["shape"])
    begin, end = (int(place) for place in fields["data_offsets"])
    if dtype not in _STORAGE_TYPES:
        known = ", ".join(_STORAGE_TYPES)
        raise ValueError(f"tensors of type {dtype} are not supported, only {known}")
    if not 0 <= begin <= end or end - begin != math.prod(shape) * _STORAGE_TYPES[dtype].itemsize:
        raise ValueError(f"a tensor of shape {list(shape)} lies at bytes {begin} to {end}")
    return TensorEntry(dtype, shape, data_start + begin, end - begin)


def _damaged(path: Path, reason: str) -> CheckpointError:
    return CheckpointError(f"{path} is damaged: {reason}. Download it again.")


def _matches(name: str, patterns: Sequence[str]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)


def _listed(names: Sequence[str]) -> str:
    shown = ", ".join(names[:_NAMES_IN_MESSAGE])
    more = len(names) - _NAMES_IN_MESSAGE
    return f"{shown} and {more} more" if more > 0 else shown
