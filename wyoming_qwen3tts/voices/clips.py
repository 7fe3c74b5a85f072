"""Reference clips: any recording in; samples fit for cloning, or an error that says what to do.

A clip is decoded, mixed to mono, resampled and freed of long silence at its ends. The encoders of a
Base model make an x-vector and codes of it, which are kept on disk in the voice's folder.

Ported from: QwenLM/Qwen3-TTS qwen_tts/inference/qwen3_tts_model.py ``_load_audio_to_np`` (mean of
the channels, soxr HQ); the checks and the silence are our own.
"""

import hashlib
import io
import json
import logging
import os
import unicodedata
from collections.abc import Mapping
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import replace
from multiprocessing import get_context
from pathlib import Path
from typing import Any, Final, TypeAlias

import numpy as np
import soundfile
import soxr

from wyoming_qwen3tts.arrays import AnyArray, Float32Array, Int64Array
from wyoming_qwen3tts.errors import VoiceError
from wyoming_qwen3tts.files import atomic_write
from wyoming_qwen3tts.runtime.manifest import Manifest
from wyoming_qwen3tts.runtime.speech_model import SpeechModel
from wyoming_qwen3tts.synthesis.request import IclVoice, XVectorVoice

_LOGGER = logging.getLogger(__name__)

ClonedVoice: TypeAlias = IclVoice | XVectorVoice

MAX_CLIP_S: Final = 30.0  # silence included
_MIN_SOUND_S: Final = 1.0  # from the first to the last sound
_END_SILENCE_S: Final = 0.5  # that a clip ends in when speech is to continue from it

# Raised when the preparation of clips before they are encoded changes.
_CACHE_VERSION: Final = 3
_MAX_CACHE_FILES: Final = 8
_ENCODER_NICENESS: Final = 10

_MAX_FILE_BYTES: Final = 64 * 2**20
_MIN_RATE_HZ, _MAX_RATE_HZ = 4_000, 192_000

_FRAME_S: Final = 0.02
_SILENCE_DBFS: Final = -45.0  # of the loudest 20 ms; 8-bit dither is below
_QUIET_DB: Final = -40.0  # frames this far below the loudest one are silence
_KEPT_LEAD_S: Final = 0.2
_MAX_PAUSE_S: Final = 0.3  # longer silence between sounds is a pause, not speech
_FADE_S: Final = 0.01

_MIN_CLIPPED_PEAK: Final = 0.25
_MIN_FLAT_SAMPLES: Final = 3
_MAX_FLAT_SHARE: Final = 0.005

# Seconds that speech without pauses takes for a character, at an average pace.
_DIGIT_S: Final = 0.28
_LATIN_S: Final = 1 / 14
_SCRIPT_S: Final = {
    **dict.fromkeys(("CJK", "IDEOGRAPHIC"), 0.19),
    **dict.fromkeys(("HIRAGANA", "KATAKANA", "KATAKANA-HIRAGANA", "HALFWIDTH"), 0.13),
    "HANGUL": 0.17,
}
# Speech this many times faster or slower than average does not belong to the transcript.
_MAX_PACE: Final = 2.0


def read_clip_file(path: Path) -> bytes:
    """Return the bytes of a clip's file, or raise a VoiceError that says why not."""
    # Asked first, because opening a pipe would wait for ever.
    if not path.is_file():
        raise VoiceError(f"The clip {path.name} is not there, or is not an ordinary file.")
    try:
        with path.open("rb") as file:
            content = file.read(_MAX_FILE_BYTES + 1)
    except OSError as error:
        raise VoiceError(f"The clip {path.name} cannot be read: {error.strerror}.") from error
    if len(content) > _MAX_FILE_BYTES:
        size = f"more than {_MAX_FILE_BYTES / 10**6:.0f} MB"
        raise VoiceError(f"The clip {path.name} has {size}; cut it to {MAX_CLIP_S:g} s.")
    return content


def decode_reference_clip(content: bytes, sample_rate_hz: int) -> Float32Array:
    """Return the clip in the bytes of a file as mono samples (S,) in [-1, 1].

    Silence is cut to 0.2 s at the start and 0.5 s at the end.

    Raises:
        VoiceError: The clip cannot be used; the message says why and what to do.
    """
    recorded, rate_hz = _decode(content)  # (S, channels)
    # Float files may go beyond full scale without being clipped.
    recorded /= max(1.0, float(np.abs(recorded).max()))
    mono: Float32Array = recorded.mean(axis=1, dtype=np.float32)
    _check_loudness(mono, recorded, rate_hz)
    _check_clipping(mono)
    start, end = _speech_bounds(mono, rate_hz)
    if (extent_s := (end - start) / rate_hz) < _MIN_SOUND_S:
        raise VoiceError(
            f"The clip holds only {extent_s:.2f} s of sound; it needs {_MIN_SOUND_S:g} s at least, "
            "and 5 to 15 s of calm speech make the best voice."
        )
    start = max(0, start - round(_KEPT_LEAD_S * rate_hz))
    end = min(len(mono), end + round(_END_SILENCE_S * rate_hz))
    samples = soxr.resample(mono[start:end], rate_hz, sample_rate_hz, quality="HQ")
    clipped: Float32Array = np.clip(samples, -1.0, 1.0).astype(np.float32, copy=False)
    return clipped


def add_continuation_silence(samples: Float32Array, sample_rate_hz: int) -> Float32Array:
    """Return samples (S,) of a clip that end in half a second of silence, after a fade of 10 ms.

    Speech continues from the clip's last frame: a clip that was cut in the middle of a word would
    make the model finish that word first. Only the codes need this, the x-vector does not.
    """
    _, end = _speech_bounds(samples, sample_rate_hz)
    num_missing = round(_END_SILENCE_S * sample_rate_hz) - (len(samples) - end)
    if num_missing <= 0:
        return samples
    faded = samples.copy()
    num_faded = min(len(samples), round(_FADE_S * sample_rate_hz))
    faded[len(samples) - num_faded :] *= np.linspace(1.0, 0.0, num_faded, dtype=np.float32)
    return np.concatenate([faded, np.zeros(num_missing, np.float32)])


def speech_duration_s(samples: Float32Array, sample_rate_hz: int) -> float:
    """Return for how long samples (S,) hold speech, pauses left out."""
    loud = _loud_frames(samples, sample_rate_hz)
    if not len(loud):
        return 0.0
    steps = np.diff(loud)
    within = np.where(steps * _FRAME_S <= _MAX_PAUSE_S, steps, 1)
    return float(1 + within.sum()) * _FRAME_S


def check_transcript(text: str, duration_s: float) -> None:
    """Raise a VoiceError if a transcript cannot be what a clip with so much speech says.

    A transcript of a part only makes the model babble the rest before it speaks.
    """
    expected_s = reading_time_s(text)
    if not expected_s:
        raise VoiceError(
            "The transcript is empty; write down what the clip says, or leave the transcript out "
            "to clone the timbre alone."
        )
    if not 1 / _MAX_PACE <= duration_s / expected_s <= _MAX_PACE:
        raise VoiceError(
            f"The transcript does not fit the clip: it takes about {expected_s:.1f} s to say, the "
            f"clip holds {duration_s:.1f} s of speech. Write down exactly what the clip says, cut "
            "the clip, or leave the transcript out to clone the timbre alone."
        )


def reading_time_s(text: str) -> float:
    """Return how long a text takes to say without pauses at an average pace, by its script."""
    seconds = 0.0
    for character in unicodedata.normalize("NFC", text):
        match unicodedata.category(character)[0]:
            case "N":
                seconds += _DIGIT_S
            case "L":
                script = unicodedata.name(character, "").split(" ", 1)[0]
                seconds += _SCRIPT_S.get(script, _LATIN_S)
    return seconds


def _decode(content: bytes) -> tuple[Float32Array, int]:
    """Return finite samples (S, channels), S > 0, and their rate."""
    try:
        with soundfile.SoundFile(io.BytesIO(content)) as file:
            rate_hz, max_samples = int(file.samplerate), int(MAX_CLIP_S * file.samplerate)
            num_read = min(max_samples, int(MAX_CLIP_S * _MAX_RATE_HZ)) + 1
            samples = file.read(num_read, "float32", always_2d=True)
    except (soundfile.SoundFileError, TypeError, ValueError) as error:
        reason = (getattr(error, "error_string", None) or str(error)).strip().rstrip(".")
        raise VoiceError(
            f"The clip is not a recording that can be read ({reason or type(error).__name__}). "
            "Save it as wav, flac, ogg or mp3, for example with: ffmpeg -i CLIP -ac 1 -ar 24000 "
            "ref.wav"
        ) from error
    if not _MIN_RATE_HZ <= rate_hz <= _MAX_RATE_HZ:
        raise VoiceError(f"The clip has {rate_hz} samples a second; save it again with 24000 Hz.")
    if len(samples) > max_samples:
        raise VoiceError(
            f"The clip is longer than {MAX_CLIP_S:g} s; cut it, 5 to 15 s of calm speech make the "
            "best voice."
        )
    if not len(samples) or not np.isfinite(samples).all():
        raise VoiceError(
            "The clip holds no samples, or some that are not numbers (NaN or infinite); save it "
            "again as 16-bit wav."
        )
    return samples, rate_hz


def _check_loudness(mono: Float32Array, recorded: Float32Array, rate_hz: int) -> None:
    level, *channels = (
        20 * float(np.log10(max(_frame_levels(samples, rate_hz).max(), 1e-10)))
        for samples in (mono, *recorded.T)
    )
    if level >= _SILENCE_DBFS:
        return
    if max(channels) >= _SILENCE_DBFS:
        raise VoiceError(
            "The clip's channels cancel each other out when they are mixed; save one of them as a "
            "mono file."
        )
    raise VoiceError(
        f"The clip is silent (its loudest moment has {level:.0f} dBFS); record it again, louder "
        "or nearer to the microphone."
    )


def _check_clipping(mono: Float32Array) -> None:
    """Refuse clips with many flat tops, at whatever level they were clipped."""
    peak = float(np.abs(mono).max())
    if peak < _MIN_CLIPPED_PEAK:
        return
    at_top = np.abs(mono) >= peak * (1 - 1e-4)
    edges = np.flatnonzero(np.diff(at_top, prepend=False, append=False))
    lengths = edges[1::2] - edges[::2]
    share = float(lengths[lengths >= _MIN_FLAT_SAMPLES].sum()) / len(mono)
    if share > _MAX_FLAT_SHARE:
        raise VoiceError(
            f"The clip is clipped: {100 * share:.1f} % of it lies at full scale, which the voice "
            "would copy as distortion; record it again with less gain."
        )


def _frame_levels(samples: Float32Array, rate_hz: int) -> Float32Array:
    """Root mean square of each 20 ms, without its constant offset."""
    size = round(_FRAME_S * rate_hz)
    frames = np.pad(samples, (0, -len(samples) % size), mode="edge").reshape(-1, size)
    levels: Float32Array = frames.std(axis=1)
    return levels


def _loud_frames(samples: Float32Array, rate_hz: int) -> Int64Array:
    """Return the indices of the 20 ms that are not silent."""
    levels = _frame_levels(samples, rate_hz)
    # Digital silence is never loud, not even in a clip that is nothing else.
    return np.flatnonzero(levels > max(float(levels.max()) * 10 ** (_QUIET_DB / 20), 1e-6))


def _speech_bounds(samples: Float32Array, rate_hz: int) -> tuple[int, int]:
    """Return the sample indices of the first sound's start and the last sound's end."""
    loud = _loud_frames(samples, rate_hz)
    if not len(loud):
        return 0, 0
    size = round(_FRAME_S * rate_hz)
    return int(loud[0]) * size, min(len(samples), (int(loud[-1]) + 1) * size)


def encode_clip(content: bytes, transcript: str | None, model: SpeechModel) -> dict[str, AnyArray]:
    """Return what a Base model makes of the bytes of an audio file; see :func:`cloned_voice`.

    Without a transcript only the timbre is cloned. Raises a VoiceError for a clip or a model that
    cannot be used.
    """
    rate_hz = model.facts.sample_rate_hz
    samples = decode_reference_clip(content, rate_hz)
    embed, encode = model.speaker_encoder, model.codec_encoder
    if embed is None or encode is None:
        raise VoiceError(
            f"The model {model.name} has no encoder for reference clips; use a Base model."
        )
    try:
        arrays: dict[str, AnyArray] = {"x_vector": embed(samples)}
        if transcript is not None:
            arrays["codes"] = encode(add_continuation_silence(samples, rate_hz))
            if model.clip_state is not None:
                arrays |= model.clip_state(arrays["codes"])
    except Exception as error:  # onnxruntime raises several kinds
        raise VoiceError(f"The model {model.name} failed at the clip: {error}") from error
    cloned_voice(arrays, transcript, model)
    return arrays


def encode_apart(content: bytes, transcript: str | None, model: SpeechModel) -> dict[str, AnyArray]:
    """Encode in a process of its own, which runs where speech leaves the processor free."""
    nothing: Any = None
    parts = ("tokenizer", "embeddings", "talker", "code_predictor", "codec_decoder", "load_state")
    encoders = replace(model, **dict.fromkeys(parts, nothing))
    try:
        with ProcessPoolExecutor(1, get_context("spawn"), os.nice, (_ENCODER_NICENESS,)) as pool:
            return pool.submit(encode_clip, content, transcript, encoders).result()
    except BrokenProcessPool as error:
        raise VoiceError(f"The model {model.name} failed at the clip: its process died.") from error
    except OSError:  # semaphores need room on a disk
        return encode_clip(content, transcript, model)


def cache_path(
    directory: Path, content: bytes, transcript: str | None, model: Manifest | SpeechModel
) -> Path:
    """Return where a voice folder keeps an encoding; the name hashes all that it depends on."""
    parts = [_CACHE_VERSION, transcript, model.name, model.encoder_id, model.facts.sample_rate_hz]
    key = hashlib.sha256(json.dumps(parts).encode() + content).hexdigest()
    return directory / ".cache" / f"{key[:32]}.npz"


def load_encoded(path: Path, transcript: str | None, model: SpeechModel) -> ClonedVoice | None:
    """Return the voice that :func:`store_encoded` kept; None without a usable one."""
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as arrays:
            return cloned_voice(arrays, transcript, model)
    except FileNotFoundError:
        return None
    except Exception as error:  # noqa: BLE001 - damaged archives raise many kinds
        _LOGGER.warning("Encoding the clip again: %s is damaged (%s)", path, error)
        return None


def store_encoded(path: Path, arrays: Mapping[str, AnyArray]) -> None:
    """Keep an encoding on disk, if that can be written."""
    buffer = io.BytesIO()
    np.savez(buffer, **dict[str, Any](arrays))
    try:
        path.parent.mkdir(exist_ok=True)
        atomic_write(path, buffer.getvalue())
        newest_first = sorted(path.parent.iterdir(), key=lambda p: -p.stat().st_mtime_ns)
        for old in newest_first[_MAX_CACHE_FILES:]:
            old.unlink()
    except OSError as error:
        _LOGGER.info("The encoded clip %s is kept in memory only: %s", path, error)


def cloned_voice(
    arrays: Mapping[str, AnyArray], transcript: str | None, model: SpeechModel
) -> ClonedVoice:
    """Return the voice of an encoding, or raise a VoiceError if that does not fit the model."""
    facts, x_vector = model.facts, arrays["x_vector"]
    good = x_vector.dtype == np.float32 and x_vector.shape == (facts.hidden_size,)
    voice: ClonedVoice = XVectorVoice(x_vector)
    if transcript is not None:
        codes = arrays["codes"]
        good = good and codes.dtype == np.int64 and codes.ndim == 2 and len(codes) > 0
        good = good and codes.shape[1] == facts.num_code_groups
        good = good and bool((codes >= 0).all() and (codes < facts.codebook_size).all())
        state = model.load_state(arrays) if model.load_state is not None else None
        voice = IclVoice(x_vector, transcript, codes, state)
    if not good or not np.isfinite(x_vector).all():
        raise VoiceError(
            "The model's encoders made no usable numbers of the clip; try another clip, or build "
            "the bundle again."
        )
    return voice
