"""One utterance: from its request to its last sample."""

import math
import time
from collections import deque
from collections.abc import Callable, Iterator
from enum import StrEnum
from typing import NamedTuple

import numpy as np

from wyoming_qwen3tts.arrays import Float32Array, Int64Array
from wyoming_qwen3tts.audio import AudioChunk
from wyoming_qwen3tts.errors import Qwen3TTSError, SynthesisError
from wyoming_qwen3tts.runtime.sampling import process_logits, sample
from wyoming_qwen3tts.runtime.speech_model import CodecDecoder, CodecState
from wyoming_qwen3tts.synthesis.guard import RunawayGuard
from wyoming_qwen3tts.synthesis.prompt import IncrementalTokenizer, Prompt
from wyoming_qwen3tts.synthesis.request import SynthesisOptions, SynthesisRequest
from wyoming_qwen3tts.synthesis.timing import SynthesisTiming

# End of speech cannot be sampled before this many frames (hard coded in the official package).
_MIN_FRAMES = 2


class FinishReason(StrEnum):
    """Why an utterance ended."""

    STOP = "stop"  # the model ended its speech
    LENGTH = "length"  # it reached the frame limit, or ran away
    RETRY = "retry"  # the model ended its speech, at the second attempt
    CANCELLED = "cancelled"


class ReadyToSample(NamedTuple):
    """The talker has read every position: group 0 of the next frame can be sampled."""

    logits: Float32Array  # (C + 1,)
    hidden: Float32Array  # (D,): the code predictor's input


class ReadyToStep(NamedTuple):
    """A frame was made; the talker has not read it yet."""

    embedding: Float32Array  # (D,): sum of the embeddings of the frame's codes


class Utterance:
    """One utterance: its request, its state in the frame loop, its audio and its end.

    The synthesis thread writes it. Another thread may read ``is_finished`` and ``error``, and take
    the audio.
    """

    prompt: Prompt
    options: SynthesisOptions
    state: ReadyToSample | ReadyToStep | None = None  # None until the prompt is prefilled

    def __init__(self, request: SynthesisRequest, sample_rate_hz: int) -> None:
        self.request = request
        self.timing = SynthesisTiming()
        self.num_attempts = 0
        self.frame_limit = request.options.max_frames
        self.tokenizer: IncrementalTokenizer | None = None  # set while more text may come
        self.guard: RunawayGuard | None = None
        self.end_reason: FinishReason | None = None  # no more frames; audio may still follow
        self.error: Qwen3TTSError | None = None
        self.on_change: Callable[[], None] = lambda: None  # after new audio and at the end
        self.buffer_limit_s = math.inf  # of audio that may wait for take_audio
        self._sample_rate_hz = sample_rate_hz
        self._frames: list[Int64Array] = []
        self._audio: deque[AudioChunk] = deque()
        self._taken_s = 0.0

    def start(self, prompt: Prompt, options: SynthesisOptions) -> None:
        """Start from the prompt, or start again if nothing was heard yet."""
        self.prompt = prompt
        self.options = options
        self.state = None
        self.end_reason = self.error = None
        self.num_attempts += 1
        self.timing.num_frames = 0
        self._frames.clear()
        self._text = deque(prompt.trailing)
        self._rng = np.random.default_rng(options.seed)
        self._history: set[int] = set()

    def open_codec(self, decoder: CodecDecoder, state: CodecState) -> None:
        """Decode frames from ``state``: the initial one, or the one after a reference clip.

        Chunks grow, so that audio starts early. The samples do not depend on their sizes.
        """
        self._decoder = decoder
        self._codec_state = state
        self._num_decoded = self._num_chunks = 0

    @property
    def is_next(self) -> bool:
        """Whether playback of its answer needs this utterance next."""
        playback = self.request.playback
        return playback is None or playback.current == self.request.position

    @property
    def needs_text(self) -> bool:
        """Whether no frame can be made before more text arrives."""
        return isinstance(self.state, ReadyToStep) and not self._text and self.tokenizer is not None

    @property
    def is_blocked(self) -> bool:
        """Whether no frame should be made now, also because the listener is far behind."""
        return self.needs_text or self.timing.audio_s - self._taken_s >= self.buffer_limit_s

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

    def add_text(self, vectors: Float32Array) -> None:
        """Add text embeddings (N, D), which the talker is fed one per frame."""
        self._text.extend(vectors)

    def next_text(self) -> Float32Array:
        """Return the text embedding (D,) of the next frame: padding after the end of the text."""
        return self._text.popleft() if self._text else self.prompt.text_pad

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
        talker = self.options.talker
        try:
            scores = process_logits(logits, self._history, talker, forbidden_code=forbidden)
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
        if self.guard is not None:
            self.guard.record_code(int(frame[0]))

    def decode(self) -> None:
        """Turn waiting frames into audio if they fill a chunk, or if no other frame follows soon.

        Raises:
            SynthesisError: The codec's samples are unusable.
        """
        ramp = self._decoder.chunk_ramp
        num_waiting = len(self._frames) - self._num_decoded
        is_last = self.frames_done or self.needs_text
        if num_waiting < (1 if is_last else ramp[min(self._num_chunks, len(ramp) - 1)]):
            return
        frames = np.stack(self._frames[self._num_decoded :])
        samples, self._codec_state = self._decoder.decode(frames, self._codec_state)
        self._num_decoded += num_waiting
        self._num_chunks += 1
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
        self.timing.audio_s += chunk.duration_s
        self.on_change()

    def take_audio(self) -> Iterator[AudioChunk]:
        """Yield the chunks that were not taken yet."""
        while self._audio:
            chunk = self._audio.popleft()
            self._taken_s += chunk.duration_s
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
        self.on_change()
