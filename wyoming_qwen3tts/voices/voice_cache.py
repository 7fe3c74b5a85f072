"""Encoded reference clips on disk, beside the clips: ``<voice>/.cache/<key>.clip``.

Encoding a clip takes seconds on a small machine, reading the result a millisecond. A file is two
lines and the arrays::

    SHA-256 of all that follows
    {"format": 1, "key": ..., "x_vector": [D], "codes": [F, G] or null}
    x-vector, float32 little-endian | codes, int32 little-endian

Nothing in it is trusted: whatever does not fit is as good as not there, and is written anew.
"""

import hashlib
import json
import logging
import os
import tempfile
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from wyoming_qwen3tts.arrays import AnyArray, Float32Array, Int64Array
from wyoming_qwen3tts.errors import VoiceError
from wyoming_qwen3tts.runtime.manifest import Manifest, ModelFacts
from wyoming_qwen3tts.runtime.speech_model import SpeechModel
from wyoming_qwen3tts.voices.voice_folder import CACHE_NAME

_LOGGER = logging.getLogger(__name__)

FORMAT_VERSION: Final = 1
"""Raised when files, or the preparation of clips before they are encoded, change."""

_SUFFIX, _PART_SUFFIX = ".clip", ".part"
_MAX_FILE_BYTES = 2**20
_MAX_FILES = 8
_ABANDONED_S = 3_600
# The names of our own layout and of the published one.
_ENCODERS = ("codec_encoder.", "tok_encoder.", "speaker_encoder.")


@dataclass(frozen=True, eq=False)
class EncodedClip:
    """What a Base model's encoders make of a clip."""

    x_vector: Float32Array
    """(D,)."""
    codes: Int64Array | None
    """(F, G) for an ICL voice."""


def encoder_id(manifest: Manifest) -> str:
    """Return what tells a bundle's encoders from others: a hash of their files' hashes."""
    hashes = sorted(
        (file.path, file.sha256) for file in manifest.files if file.path.startswith(_ENCODERS)
    )
    return hashlib.sha256(json.dumps(hashes).encode()).hexdigest()


def cache_key(clip: bytes, transcript: str | None, model: SpeechModel, encoder_id: str) -> str:
    """Return the name under which a clip's encoding is kept: all that it depends on, hashed."""
    facts = model.facts
    parts = [
        FORMAT_VERSION,
        hashlib.sha256(clip).hexdigest(),
        transcript,
        model.name,
        encoder_id,
        [facts.sample_rate_hz, facts.hidden_size, facts.num_code_groups, facts.codebook_size],
    ]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


def check(encoded: EncodedClip, facts: ModelFacts) -> None:
    """Check that an encoded clip is what a model can speak from.

    Raises:
        VoiceError: It is not: shapes, types or values are wrong.
    """
    x_vector, codes = encoded.x_vector, encoded.codes
    good = (
        x_vector.dtype == np.float32
        and x_vector.shape == (facts.hidden_size,)
        and bool(np.isfinite(x_vector).all())
    )
    if good and codes is not None:
        good = (
            codes.dtype == np.int64
            and codes.ndim == 2
            and len(codes) > 0
            and codes.shape[1] == facts.num_code_groups
            and bool((codes >= 0).all() and (codes < facts.codebook_size).all())
        )
    if not good:
        raise VoiceError(
            "The model's encoders made no usable numbers of the clip; try another clip, or build "
            "the bundle again."
        )


def load(
    voice_directory: Path, key: str, facts: ModelFacts, *, has_codes: bool
) -> EncodedClip | None:
    """Return the encoded clip that is kept under a key; None if it is not there or damaged."""
    folder = _cache_folder(voice_directory)
    path = folder / f"{key}{_SUFFIX}"
    if folder.is_symlink() or path.is_symlink():
        return None
    try:
        with path.open("rb") as file:
            content = file.read(_MAX_FILE_BYTES + 1)
    except OSError:
        return None
    try:
        encoded = _unpack(content, key)
        check(encoded, facts)
    except (ValueError, KeyError, TypeError, RecursionError, VoiceError) as error:
        _LOGGER.warning("%s is damaged and will be made again: %s", path, error)
        return None
    return encoded if (encoded.codes is not None) == has_codes else None


def store(voice_directory: Path, key: str, encoded: EncodedClip) -> bool:
    """Keep an encoded clip; return whether that was possible (a folder may be read-only)."""
    folder = _cache_folder(voice_directory)
    try:
        folder.mkdir(exist_ok=True)
        _refuse_link(folder)
        _write(folder / f"{key}{_SUFFIX}", _pack(encoded, key))
        _prune(folder)
    except OSError as error:
        _LOGGER.info("The encoded clip of %s is kept in memory only: %s", voice_directory, error)
        return False
    return True


def _cache_folder(voice_directory: Path) -> Path:
    return voice_directory / CACHE_NAME


def _refuse_link(folder: Path) -> None:
    """Raise an OSError if a cache folder is a link: it might lead anywhere."""
    if folder.is_symlink():
        raise OSError(f"{folder} is a link")


def _pack(encoded: EncodedClip, key: str) -> bytes:
    codes = encoded.codes
    header = {
        "format": FORMAT_VERSION,
        "key": key,
        "x_vector": list(encoded.x_vector.shape),
        "codes": None if codes is None else list(codes.shape),
    }
    body = json.dumps(header).encode() + b"\n" + encoded.x_vector.astype("<f4").tobytes()
    if codes is not None:
        body += codes.astype("<i4").tobytes()
    return hashlib.sha256(body).hexdigest().encode() + b"\n" + body


def _unpack(content: bytes, key: str) -> EncodedClip:
    """Return the arrays in a file's content.

    Raises:
        ValueError: Something does not fit; KeyError and TypeError may be raised as well.
    """
    digest, _, body = content.partition(b"\n")
    if digest != hashlib.sha256(body).hexdigest().encode():
        raise ValueError("its checksum is wrong")
    line, _, payload = body.partition(b"\n")
    header = json.loads(line)
    if header["format"] != FORMAT_VERSION or header["key"] != key:
        raise ValueError("it belongs to something else")
    (width,) = header["x_vector"]
    x_vector = _array(payload[: 4 * width], "<f4", header["x_vector"]).astype(np.float32)
    if header["codes"] is None:
        return EncodedClip(x_vector, None)
    codes = _array(payload[4 * width :], "<i4", header["codes"])
    return EncodedClip(x_vector, codes.astype(np.int64))


def _array(content: bytes, dtype: str, shape: Any) -> AnyArray:
    return np.frombuffer(content, dtype).reshape(shape)


def _write(path: Path, content: bytes) -> None:
    """Write a file that is there as a whole or not at all."""
    number, name = tempfile.mkstemp(dir=path.parent, suffix=_PART_SUFFIX)
    part = Path(name)
    try:
        with os.fdopen(number, "wb") as file:
            file.write(content)
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


def _prune(folder: Path) -> None:
    """Remove all but the newest files, and what killed writes have left."""
    files = [(path.stat().st_mtime, path) for path in folder.iterdir()]
    kept = sorted((file for file in files if file[1].suffix == _SUFFIX), reverse=True)
    parts = [file for file in files if file[1].suffix == _PART_SUFFIX]
    abandoned = [path for written_s, path in parts if time.time() - written_s > _ABANDONED_S]
    for path in (*(path for _, path in kept[_MAX_FILES:]), *abandoned):
        with suppress(OSError):
            path.unlink()
