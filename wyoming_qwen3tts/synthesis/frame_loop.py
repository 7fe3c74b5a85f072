"""The frame loop: talker step -> group 0 -> code predictor -> frame, until end of speech.

Several lanes share every read of the weights: a step makes one frame of each. What a lane draws
depends on its own prompt, options and seed only.

Ported from: QwenLM/Qwen3-TTS qwen_tts/core/models/modeling_qwen3_tts.py,
``Qwen3TTSTalkerForConditionalGeneration.forward`` and transformers ``generation/utils.py``.
"""

from collections import deque
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

import numpy as np

from wyoming_qwen3tts.arrays import Float32Array, Int64Array
from wyoming_qwen3tts.errors import SynthesisError
from wyoming_qwen3tts.runtime.sampling import process_logits, sample
from wyoming_qwen3tts.runtime.speech_model import PredictorSampling, SpeechModel
from wyoming_qwen3tts.synthesis.prefix_cache import PrefixCache
from wyoming_qwen3tts.synthesis.prompt import Prompt
from wyoming_qwen3tts.synthesis.request import SynthesisOptions

# End of speech cannot be drawn before this many codes (hard coded in the official package).
MIN_FRAMES = 2
# Room that each lane of an idle loop keeps: most utterances fit into it.
_IDLE_POSITIONS = 512


class FinishReason(StrEnum):
    """Why an utterance ended."""

    STOP = "stop"
    """The model said that its speech is over."""
    LENGTH = "length"
    """The limit of frames was reached, or nothing was said any more."""
    RETRY = "retry"
    """The model said that its speech is over, at the second attempt."""
    CANCELLED = "cancelled"
    """Nobody wants the rest."""


class TrailingText:
    """Text embeddings that are fed one per frame; more may still arrive.

    A lane whose text ran dry waits, unless the text is closed: then text pad follows for ever.
    """

    def __init__(
        self, vectors: Float32Array, text_pad: Float32Array, *, closed: bool = True
    ) -> None:
        """Start with ``vectors`` (N, D); ``closed`` says that no more will come."""
        self._queue: deque[Float32Array] = deque(vectors)
        self._text_pad = text_pad
        self._closed = closed
        self.was_open = not closed

    def extend(self, vectors: Float32Array) -> None:
        """Add vectors (N, D) that have arrived."""
        self._queue.extend(vectors)

    def close(self) -> None:
        """Say that the text has ended (its end mark was added by the caller)."""
        self._closed = True

    @property
    def is_dry(self) -> bool:
        """Whether the next vector is not there yet."""
        return not self._queue and not self._closed

    def take(self) -> Float32Array:
        """Return the vector (D,) of the next frame; not to be called while dry."""
        return self._queue.popleft() if self._queue else self._text_pad


@dataclass(frozen=True)
class Scored:
    """The talker has read everything so far: a code of group 0 can be drawn."""

    logits: Float32Array
    """(C + 1,)."""
    hidden: Float32Array
    """(D,): the code predictor's input."""


@dataclass(frozen=True)
class Framed:
    """A frame was made that the talker has not read yet."""

    embedding: Float32Array
    """(D,): sum of the embeddings of the frame's codes."""


class Lane:
    """One utterance on its way through the loop."""

    def __init__(
        self, prompt: Prompt, options: SynthesisOptions, text: TrailingText | None = None
    ) -> None:
        """Prepare an utterance; it starts when it joins a loop."""
        self.prompt = prompt
        self.options = options
        self.text = text or TrailingText(prompt.trailing, prompt.text_pad)
        self.max_frames = options.max_frames
        """Grows with the text while it arrives."""
        self.num_frames = 0
        self.finish_reason: FinishReason | None = None
        self.error: SynthesisError | None = None
        self._rng = np.random.default_rng(options.seed)
        self._drawn: set[int] = set()
        self.state: Scored | Framed | None = None
        """None until the lane joins a loop."""

    @property
    def is_finished(self) -> bool:
        """Whether the lane has made its last frame."""
        return self.finish_reason is not None or self.error is not None

    @property
    def is_waiting(self) -> bool:
        """Whether the lane cannot go on before more text arrives."""
        return isinstance(self.state, Framed) and self.text.is_dry

    def next_uniforms(self, num_groups: int) -> Float32Array:
        """Return the numbers (G,) in [0, 1) that decide the next frame; zeros decide greedily."""
        uniforms = self._rng.random(num_groups, dtype=np.float32)
        if not self.options.talker.do_sample:
            uniforms[0] = 0.0
        if not self.options.predictor.do_sample:
            uniforms[1:] = 0.0
        return uniforms

    def draw_code0(self, logits: Float32Array, uniform: float, end_of_speech: int) -> int | None:
        """Draw the next code of group 0; None ends the utterance and sets its reason or error."""
        if self.num_frames >= self.max_frames:
            self.finish_reason = FinishReason.LENGTH
            return None
        banned = end_of_speech if self.num_frames < MIN_FRAMES else None
        scores = process_logits(logits, self._drawn, self.options.talker, forbidden_code=banned)
        try:
            code = sample(scores, uniform)
        except SynthesisError as error:
            self.error = error
            return None
        if code == end_of_speech:
            self.finish_reason = FinishReason.STOP
            return None
        self._drawn.add(code)
        return code


class FrameLoop:
    """Runs up to ``max_lanes`` utterances through one model, a frame of each per step."""

    def __init__(self, model: SpeechModel, *, max_lanes: int = 1) -> None:
        """Prepare a loop; the key/value cache is allocated when the first lane joins."""
        self._model = model
        self._max_lanes = max_lanes
        self._lanes: list[Lane] = []
        self._prefixes = PrefixCache()
        self._cache = model.talker.new_cache(max_lanes, capacity=1)

    @property
    def lanes(self) -> tuple[Lane, ...]:
        """The utterances in the loop."""
        return tuple(self._lanes)

    @property
    def max_lanes(self) -> int:
        """Utterances that the loop has room for."""
        return self._max_lanes

    @property
    def has_room(self) -> bool:
        """Whether another lane may join."""
        return len(self._lanes) < self._max_lanes

    @property
    def prefixes(self) -> PrefixCache:
        """What prompts of the same voice share."""
        return self._prefixes

    def join(self, lane: Lane) -> None:
        """Prefill a lane's prompt; its first frame comes with the next step.

        Raises:
            RequestError: The prompt has more positions than the model.
        """
        index = len(self._lanes)
        self._cache.rewind(index, 0)
        output = self._prefixes.prefill(self._model.talker, lane.prompt, self._cache, index)
        lane.state = Scored(output.logits[0], output.hidden[0])
        self._lanes.append(lane)

    def leave(self, lane: Lane) -> None:
        """Take a lane out; the last lane moves into its place."""
        index = self._lanes.index(lane)
        last = len(self._lanes) - 1
        self._cache.move(last, index)
        self._lanes[index] = self._lanes[last]
        self._lanes.pop()
        self._cache.rewind(last, 0)
        if not self._lanes:
            # A long utterance must not keep its memory for ever.
            self._cache.shrink(_IDLE_POSITIONS)

    def clear(self) -> None:
        """Forget every lane and all that prompts share; the cache gives its memory back."""
        self._lanes.clear()
        self._prefixes = PrefixCache()
        self._cache.clear()

    def step(self, lanes: Collection[Lane] | None = None) -> list[tuple[Lane, Int64Array]]:
        """Make one frame (G,) of every lane that can go on.

        A lane that ends makes no frame: its ``finish_reason`` or ``error`` is set and it has left
        the loop.

        Args:
            lanes: Which lanes take part; the others rest and cost nothing. None means all.
        """
        for index in reversed(range(len(self._lanes))):
            if self._cache.lengths[index] >= self._cache.max_positions:
                self._lanes[index].finish_reason = FinishReason.LENGTH
                self.leave(self._lanes[index])
        active = self._lanes[: self._gather(self._lanes if lanes is None else lanes)]
        if not active:
            return []
        self._step_talker(active)
        return self._draw_frames(active)

    def _gather(self, chosen: Collection[Lane]) -> int:
        """Put the lanes that take part into the first rows; return how many they are."""
        count = 0
        for index, lane in enumerate(self._lanes):
            if lane not in chosen:
                continue
            if index != count:
                self._cache.swap(index, count)
                self._lanes[index], self._lanes[count] = self._lanes[count], lane
            count += 1
        return count

    def _step_talker(self, lanes: Sequence[Lane]) -> None:
        """Read the last frame and the next piece of text of each lane that has both.

        Args:
            lanes: Those that take part; they have the first rows of the cache.
        """
        embeddings = np.zeros((len(lanes), self._model.facts.hidden_size), np.float32)
        ready = [False] * len(lanes)
        for index, lane in enumerate(lanes):
            if isinstance(lane.state, Framed) and not lane.text.is_dry:
                embeddings[index] = lane.state.embedding + lane.text.take()
                ready[index] = True
        if not any(ready):
            return
        output = self._model.talker.step(embeddings, self._cache, ready)
        for index, lane in enumerate(lanes):
            if ready[index]:
                lane.state = Scored(output.logits[index], output.hidden[index])

    def _draw_frames(self, lanes: Sequence[Lane]) -> list[tuple[Lane, Int64Array]]:
        """Draw group 0 of each scored lane, then the other groups of all of them at once."""
        drawn: list[_Drawn] = []
        for lane in lanes:
            if not isinstance(lane.state, Scored):
                continue
            uniforms = lane.next_uniforms(self._model.facts.num_code_groups)
            code0 = lane.draw_code0(
                lane.state.logits, float(uniforms[0]), self._model.facts.codebook_size
            )
            if code0 is None:
                self.leave(lane)
            else:
                drawn.append(_Drawn(lane, code0, lane.state.hidden, uniforms[1:]))
        if not drawn:
            return []
        code0s = np.array([item.code0 for item in drawn], np.int64)
        hidden = np.stack([item.hidden for item in drawn])
        groups = self._model.code_predictor.predict(hidden, code0s, _predictor_sampling(drawn))
        frames = np.concatenate([code0s[:, None], groups], axis=1)  # (B, G)
        for item, embedding in zip(drawn, self._model.embeddings.frames(frames), strict=True):
            item.lane.num_frames += 1
            item.lane.state = Framed(embedding)
        return [(item.lane, frame) for item, frame in zip(drawn, frames, strict=True)]


class _Drawn(NamedTuple):
    """A lane with its code of group 0 and what decides the other groups."""

    lane: Lane
    code0: int
    hidden: Float32Array
    uniforms: Float32Array


def _predictor_sampling(drawn: list[_Drawn]) -> PredictorSampling:
    options = [item.lane.options.predictor for item in drawn]
    return PredictorSampling(
        uniforms=np.stack([item.uniforms for item in drawn]),
        temperature=np.array([option.temperature for option in options], np.float32),
        top_k=np.array([option.top_k for option in options], np.int64),
        top_p=np.array([option.top_p for option in options], np.float32),
    )
