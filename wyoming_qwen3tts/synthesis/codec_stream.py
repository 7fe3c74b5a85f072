"""Frames in, samples out: decides only how many frames go to the codec decoder at once.

The first frame is decoded by itself, so that audio starts as early as it can; later calls take more
frames, because one call for several frames costs much less than several calls. Which sizes pay is
the decoder's to say. It carries its state, so the samples are the same whatever the sizes.
"""

from typing import Any

import numpy as np

from wyoming_qwen3tts.arrays import Float32Array, Int64Array
from wyoming_qwen3tts.runtime.speech_model import CodecDecoder


class CodecStream:
    """The codec side of one utterance."""

    def __init__(self, decoder: CodecDecoder, state: Any) -> None:
        """Continue from ``state``: the decoder's initial one, or the one after a reference clip."""
        self._decoder = decoder
        self._state = state
        self._ramp = decoder.chunk_ramp
        self._num_chunks = 0
        self._frames: list[Int64Array] = []

    @property
    def is_ready(self) -> bool:
        """Whether enough frames wait for the next chunk."""
        return len(self._frames) >= self._ramp[min(self._num_chunks, len(self._ramp) - 1)]

    @property
    def num_waiting(self) -> int:
        """Frames that were pushed and not decoded."""
        return len(self._frames)

    def push(self, frame: Int64Array) -> None:
        """Add a frame (G,)."""
        self._frames.append(frame)

    def decode(self) -> Float32Array:
        """Decode every waiting frame into samples (S,); none gives an empty array."""
        if not self._frames:
            return np.zeros(0, np.float32)
        samples, self._state = self._decoder.decode(np.stack(self._frames), self._state)
        self._frames.clear()
        self._num_chunks += 1
        return samples
