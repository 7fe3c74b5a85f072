"""Measures two codec decoders side by side: time and what the second one loses."""

from functools import partial
from pathlib import Path
from statistics import median
from typing import Any, Final

import numpy as np

from script._benchmark.timing import durations_ms
from wyoming_qwen3tts.arrays import Float32Array, Int64Array
from wyoming_qwen3tts.runtime.codec import OnnxCodecDecoder
from wyoming_qwen3tts.runtime.manifest import read_manifest
from wyoming_qwen3tts.runtime.session import open_session

# What streaming settles at: see CHUNK_RAMP_FRAMES.
_FRAMES_PER_CALL: Final = 4
_NUM_CALLS: Final = 6
_MAX_SNR_DB: Final = 200.0


class CodecComparisonSubject:
    """Two decoders in one process, which take turns."""

    def __init__(self, reference_directory: Path, other_directory: Path, num_threads: int) -> None:
        facts = read_manifest(reference_directory).facts
        self._decoders = [
            OnnxCodecDecoder(open_session(path, num_threads=num_threads), path)
            for directory in (reference_directory, other_directory)
            for path in [directory / "codec_decoder.onnx"]
        ]
        num_frames = _FRAMES_PER_CALL * _NUM_CALLS
        shape = (num_frames, facts.num_code_groups)
        self._codes: Int64Array = np.random.default_rng(0).integers(0, facts.codebook_size, shape)

    def run(self, _task: str) -> dict[str, Any]:
        """Return ms per frame of both and the signal-to-noise ratio of the second, in dB."""
        durations: list[list[float]] = [[], []]
        samples: list[list[Float32Array]] = [[], []]
        states = [decoder.initial_state() for decoder in self._decoders]
        for start in range(0, len(self._codes), _FRAMES_PER_CALL):
            codes = self._codes[start : start + _FRAMES_PER_CALL]
            for which, decoder in enumerate(self._decoders):
                work = partial(decoder.decode, codes, states[which])
                durations[which] += durations_ms(work, num_runs=2, limit_s=1.0)
                piece, states[which] = work()
                samples[which].append(piece)
        reference, other = (np.concatenate(pieces) for pieces in samples)
        return {
            "reference_ms": median(durations[0]) / _FRAMES_PER_CALL,
            "other_ms": median(durations[1]) / _FRAMES_PER_CALL,
            "snr_db": _snr_db(reference, other),
        }


def _snr_db(reference: Float32Array, other: Float32Array) -> float:
    signal = float(np.square(reference, dtype=np.float64).sum())
    noise = float(np.square(np.subtract(reference, other, dtype=np.float64)).sum())
    if noise <= 0.0 or signal <= 0.0:
        return _MAX_SNR_DB
    return min(10.0 * float(np.log10(signal / noise)), _MAX_SNR_DB)
