"""One utterance: from its request to its last sample."""

import math
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import numpy as np

from wyoming_qwen3tts.arrays import Float32Array, Int64Array
from wyoming_qwen3tts.audio import AudioChunk
from wyoming_qwen3tts.errors import Qwen3TTSError, SynthesisError
from wyoming_qwen3tts.runtime.sampling import process_logits, sample
from wyoming_qwen3tts.runtime.speech_model import CodecDecoder
from wyoming_qwen3tts.synthesis.guard import RunawayGuard
from wyoming_qwen3tts.synthesis.prompt import IncrementalTokenizer, Prompt
from wyoming_qwen3tts.synthesis.request import SynthesisOptions, SynthesisRequest
from wyoming_qwen3tts.synthesis.timing import SynthesisTiming

# End of speech cannot be sampled before this many frames (hard coded in the official package).
_MIN_FRAMES = 2


class FinishReason(StrEnum):
    """Why an utterance ended."""

    STOP = "stop"
    """The model ended its speech."""
    LENGTH = "length"
    """It reached the frame limit, or ran away."""
    RETRY = "retry"
    """The model ended its speech, at the second attempt."""
    CANCELLED = "cancelled"
    """The caller cancelled it."""


class TextQueue:
    """Text embeddings, fed to the talker one per frame.

    Once the text is closed and the queue is empty, the pad embedding is fed.
    """

    def __init__(self, vectors: Float32Array, text_pad: Float32Array, *, is_open: bool) -> None:
        """Start with ``vectors`` (N, D)."""
        self._queue: deque[Float32Array] = deque(vectors)
        self._text_pad = text_pad
        self._is_open = is_open

    def extend(self, vectors: Float32Array) -> None:
        """Add vectors (N, D)."""
        self._queue.extend(vectors)

    def close(self) -> None:
        """Mark the text as complete; the caller has added its end mark."""
        self._is_open = False

    @property
    def is_blocked(self) -> bool:
        """Whether the next vector has not arrived yet."""
        return not self._queue and self._is_open

    def take(self) -> Float32Array:
        """Return the vector (D,) of the next frame; only while not blocked."""
        return self._queue.popleft() if self._queue else self._text_pad


class CodecStream:
    """Decodes the frames of one utterance in chunks that grow, so that audio starts early.

    The decoder carries its state: the samples do not depend on the chunk sizes.
    """

    def __init__(self, decoder: CodecDecoder, state: Any) -> None:
        """Continue from ``state``: the decoder's initial one, or the one after a reference clip."""
        self._decoder = decoder
        self._state = state
        self._ramp = decoder.chunk_ramp
        self._num_chunks = 0
        self._frames: list[Int64Array] = []

    @property
    def is_ready(self) -> bool:
        """Whether there are enough frames for the next chunk."""
        return len(self._frames) >= self._ramp[min(self._num_chunks, len(self._ramp) - 1)]

    @property
    def num_waiting(self) -> int:
        """Frames that are not decoded yet."""
        return len(self._frames)

    def push(self, frame: Int64Array) -> None:
        """Add a frame (G,)."""
        self._frames.append(frame)

    def decode(self) -> Float32Array:
        """Decode every waiting frame, at least one, into samples (S,)."""
        samples, self._state = self._decoder.decode(np.stack(self._frames), self._state)
        self._frames.clear()
        self._num_chunks += 1
        return samples


@dataclass(frozen=True)
class ReadyToSample:
    """The talker has read every position: group 0 of the next frame can be sampled."""

    logits: Float32Array
    """(C + 1,)."""
    hidden: Float32Array
    """(D,): the code predictor's input."""


@dataclass(frozen=True)
class ReadyToStep:
    """A frame was made; the talker has not read it yet."""

    embedding: Float32Array
    """(D,): sum of the embeddings of the frame's codes."""


class Utterance:
    """One utterance: its request, its state in the frame loop, its audio and its end.

    The synthesis thread writes it. Another thread may read ``is_finished`` and ``error``, and take
    the audio.
    """

    prompt: Prompt
    options: SynthesisOptions
    text: TextQueue
    state: ReadyToSample | ReadyToStep | None
    """None until the frame loop has prefilled the prompt."""

    def __init__(self, request: SynthesisRequest, sample_rate_hz: int) -> None:
        """Prepare an utterance; it begins with :meth:`start`."""
        self.request = request
        self.timing = SynthesisTiming()
        self.num_attempts = 0
        self.frame_limit = request.options.max_frames
        """Grows with the text of a guarded open utterance."""
        self.tokenizer: IncrementalTokenizer | None = None
        """Set while more text may come."""
        self.codec: CodecStream | None = None
        self.guard: RunawayGuard | None = None
        self.end_reason: FinishReason | None = None
        """Why no more frames are made; audio may still follow."""
        self.error: Qwen3TTSError | None = None
        self.on_change: Callable[[], None] | None = None
        """Called after new audio and at the end."""
        self.buffer_limit_s = math.inf
        """Seconds of audio that may wait for :meth:`take_audio`."""
        self._sample_rate_hz = sample_rate_hz
        self._frames: list[Int64Array] = []
        self._audio: deque[AudioChunk] = deque()
        self._num_taken = 0

    def start(self, prompt: Prompt, options: SynthesisOptions) -> None:
        """Start from the prompt, or start again if nothing was heard yet."""
        self.prompt = prompt
        self.options = options
        self.text = TextQueue(prompt.trailing, prompt.text_pad, is_open=self.tokenizer is not None)
        self.state = None
        self.end_reason = self.error = None
        self.num_attempts += 1
        self.timing.num_frames = 0
        self._frames.clear()
        self._rng = np.random.default_rng(options.seed)
        self._history: set[int] = set()

    @property
    def was_open(self) -> bool:
        """Whether the text came in pieces: the request then holds only the first."""
        return self.request.is_open

    @property
    def is_next(self) -> bool:
        """Whether playback of its answer needs this utterance next."""
        playback = self.request.playback
        return playback is None or playback.current == self.request.position

    @property
    def needs_text(self) -> bool:
        """Whether no frame can be made before more text arrives."""
        return isinstance(self.state, ReadyToStep) and self.text.is_blocked

    @property
    def is_full(self) -> bool:
        """Whether the listener is so far behind that no frame should be made now."""
        num_waiting = self.timing.num_samples - self._num_taken
        return num_waiting >= self.buffer_limit_s * self._sample_rate_hz

    @property
    def is_blocked(self) -> bool:
        """Whether a step can do nothing for it."""
        return self.needs_text or self.is_full

    @property
    def frames_done(self) -> bool:
        """Whether the last frame was made."""
        return self.end_reason is not None or self.error is not None

    @property
    def is_finished(self) -> bool:
        """Whether no more audio will be made."""
        return self.timing.finished_s is not None

    @property
    def finish_reason(self) -> FinishReason | None:
        """Why the utterance ended; None before its end and after an error."""
        return self.end_reason if self.is_finished and self.error is None else None

    @property
    def codes(self) -> Int64Array:
        """(F, G): the frames made so far."""
        return np.stack(self._frames) if self._frames else np.zeros((0, 0), np.int64)

    def next_uniforms(self, num_groups: int) -> Float32Array:
        """Return the random numbers (G,) in [0, 1) of the next frame; zero means greedy."""
        uniforms = self._rng.random(num_groups, dtype=np.float32)
        if not self.options.talker.do_sample:
            uniforms[0] = 0.0
        if not self.options.predictor.do_sample:
            uniforms[1:] = 0.0
        return uniforms

    def sample_code0(self, logits: Float32Array, uniform: float, end_of_speech: int) -> int | None:
        """Sample the next code of group 0; None ends the frames and sets a reason or an error."""
        num_frames = self.timing.num_frames
        forbidden = end_of_speech if num_frames < _MIN_FRAMES else None
        scores = process_logits(
            logits, self._history, self.options.talker, forbidden_code=forbidden
        )
        try:
            code = sample(scores, uniform)
        except SynthesisError as error:
            self.error = error
            return None
        if code == end_of_speech:
            self.end_reason = FinishReason.STOP
            return None
        if num_frames >= self.frame_limit:
            self.end_reason = FinishReason.LENGTH
            return None
        self._history.add(code)
        return code

    def add_frame(self, frame: Int64Array) -> None:
        """Add a frame (G,)."""
        self._frames.append(frame)
        self.timing.num_frames += 1
        if self.codec is not None:
            self.codec.push(frame)
        if self.guard is not None:
            self.guard.record_code(int(frame[0]))

    def decode(self) -> None:
        """Turn waiting frames into audio if they fill a chunk, or if no other frame follows soon.

        Raises:
            SynthesisError: The codec's samples are unusable.
        """
        codec = self.codec
        flush = self.frames_done or self.needs_text
        if codec is None or not (codec.is_ready or (flush and codec.num_waiting)):
            return
        samples = codec.decode()
        if self.guard is not None:
            samples = self.guard.push(samples)
            if self.guard.is_runaway and not self.frames_done:
                self.end_reason = FinishReason.LENGTH
        self.add_audio(samples)

    def add_audio(self, samples: Float32Array) -> None:
        """Add samples (S,) for the listener."""
        if not len(samples):
            return
        if self.timing.first_audio_s is None:
            self.timing.first_audio_s = time.perf_counter()
        chunk = AudioChunk(samples, self._sample_rate_hz)
        if self.request.playback is not None:
            self.request.playback.record_audio(self.request.position, chunk.duration_s)
        self._audio.append(chunk)
        self.timing.num_samples += len(samples)
        if self.on_change is not None:
            self.on_change()

    def take_audio(self) -> Iterator[AudioChunk]:
        """Yield the chunks that were not taken yet."""
        while self._audio:
            chunk = self._audio.popleft()
            self._num_taken += len(chunk.samples)
            yield chunk

    def finish(
        self, reason: FinishReason | None = None, error: Qwen3TTSError | None = None
    ) -> None:
        """End the utterance."""
        self.end_reason = reason or self.end_reason
        self.error = error
        self.timing.finished_s = time.perf_counter()
        if self.request.playback is not None:
            self.request.playback.record_end(self.request.position)
        if self.on_change is not None:
            self.on_change()
