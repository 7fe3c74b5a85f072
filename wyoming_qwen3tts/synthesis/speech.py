"""One utterance under way."""

import time
from collections import deque

import numpy as np

from wyoming_qwen3tts.arrays import Float32Array, Int64Array
from wyoming_qwen3tts.audio import AudioChunk
from wyoming_qwen3tts.errors import Qwen3TTSError
from wyoming_qwen3tts.synthesis.codec_stream import CodecStream
from wyoming_qwen3tts.synthesis.frame_loop import FinishReason, Lane
from wyoming_qwen3tts.synthesis.guard import SpeechGuard
from wyoming_qwen3tts.synthesis.request import SynthesisRequest
from wyoming_qwen3tts.synthesis.text_feed import TextFeed
from wyoming_qwen3tts.synthesis.timing import SynthesisTiming


class Speech:
    """One utterance under way: what it asked for, what it gave so far, and how it ended."""

    def __init__(self, request: SynthesisRequest, lane: Lane) -> None:
        """Prepare an utterance that waits for a lane."""
        self.request = request
        self.lane = lane
        self.timing = SynthesisTiming()
        self.error: Qwen3TTSError | None = None
        self.codec: CodecStream | None = None
        """Set when the utterance gets its lane."""
        self.guard: SpeechGuard | None = None
        self.num_attempts = 1
        self.feed: TextFeed | None = None
        """While more text may come."""
        self._audio: deque[AudioChunk] = deque()
        self._frames: list[Int64Array] = []

    @property
    def was_open(self) -> bool:
        """Whether the text came, or comes, in pieces: the request then holds only the first."""
        return self.lane.text.was_open

    @property
    def is_next(self) -> bool:
        """Whether its answer can be heard no further without it."""
        playback = self.request.playback
        return playback is None or playback.current == self.request.position

    @property
    def finish_reason(self) -> FinishReason | None:
        """Why the utterance ended; None while it goes on, and after an error."""
        return self.lane.finish_reason if self.timing.finished_s is not None else None

    @property
    def is_finished(self) -> bool:
        """Whether no more audio will be made."""
        return self.timing.finished_s is not None

    @property
    def codes(self) -> Int64Array:
        """(F, G): the frames made so far."""
        if not self._frames:
            return np.zeros((0, 0), np.int64)
        return np.stack(self._frames)

    def take_audio(self) -> list[AudioChunk]:
        """Return the chunks made since the last call."""
        chunks = list(self._audio)
        self._audio.clear()
        return chunks

    def add_frame(self, frame: Int64Array) -> None:
        """Note a frame (G,) that the loop made."""
        self._frames.append(frame)
        self.timing.num_frames += 1
        if self.codec is not None:
            self.codec.push(frame)
        if self.guard is not None:
            self.guard.note_code(int(frame[0]))

    def add_audio(self, samples: Float32Array, sample_rate_hz: int) -> None:
        """Note samples (S,) that may be heard."""
        if not len(samples):
            return
        if self.timing.first_audio_s is None:
            self.timing.first_audio_s = time.perf_counter()
        self.timing.num_samples += len(samples)
        if self.request.playback is not None:
            self.request.playback.record_audio(self.request.position, len(samples) / sample_rate_hz)
        self._audio.append(AudioChunk(samples, sample_rate_hz))

    def start_again(self, lane: Lane) -> None:
        """Forget what was made so far, nothing of which was heard."""
        self.lane = lane
        self.num_attempts += 1
        self._frames.clear()
        self.timing.num_frames = 0

    def finish(
        self, reason: FinishReason | None = None, error: Qwen3TTSError | None = None
    ) -> None:
        """End the utterance."""
        self.lane.finish_reason = reason or self.lane.finish_reason
        self.error = error
        self.timing.finished_s = time.perf_counter()
        if self.request.playback is not None:
            self.request.playback.record_end(self.request.position)
