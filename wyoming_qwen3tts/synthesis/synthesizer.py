"""The main path: a text and a voice -> prompt -> frames -> samples.

Everything here is synchronous and runs in one thread. Several utterances side by side cost little
more than one: the lanes share every read of the weights.
"""

import time
from collections import deque
from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from wyoming_qwen3tts.audio import AudioChunk
from wyoming_qwen3tts.errors import Qwen3TTSError, RequestError, synthesis_error
from wyoming_qwen3tts.runtime.speech_model import SpeechModel
from wyoming_qwen3tts.synthesis.frame_loop import FrameLoop
from wyoming_qwen3tts.synthesis.guard import RunawayGuard, frame_budget
from wyoming_qwen3tts.synthesis.prompt import IncrementalTokenizer, PromptBuilder
from wyoming_qwen3tts.synthesis.request import SynthesisRequest, check_voice
from wyoming_qwen3tts.synthesis.utterance import FinishReason, Utterance

# A step with every lane, and the prefill of another prompt, fit into this time several times.
_MIN_BUFFER_S = 0.6
# A reference clip of 15 s has 188 frames. Decoded in one call, they would stop every lane for
# seconds; these slices take about 0.2 s, and 0.04 s while a listener needs audio soon.
_CLIP_SLICE_FRAMES = 8
_SHORT_CLIP_SLICE_FRAMES = 2
_MAX_ATTEMPTS = 2
# The codec decodes several frames at once, so single frames say little.
_MIN_TIMED_FRAMES = 8
_TIMING_WEIGHT = 0.05


class Synthesizer:
    """Speaks with one model."""

    def __init__(self, model: SpeechModel, *, max_lanes: int = 1) -> None:
        self.model = model
        self._prompts = PromptBuilder(model)
        self._loop = FrameLoop(model, max_lanes=max_lanes)
        self._waiting: deque[Utterance] = deque()
        self._speaking: list[Utterance] = []
        self._num_timed = 0
        self._frame_s = 0.0

    @property
    def single_lane_rtf(self) -> float | None:
        """Real-time factor of one utterance alone, as measured lately."""
        if self._num_timed < _MIN_TIMED_FRAMES:
            return None
        return self._frame_s * self.model.facts.frame_rate_hz

    def follow(self, utterance: Utterance) -> Iterator[AudioChunk]:
        """Run the loop for a submitted utterance and yield its audio; raise its error.

        Closing the iterator early cancels the utterance within a frame.
        """
        try:
            while not utterance.is_finished:
                self.step()
                yield from utterance.take_audio()
            if utterance.error is not None:
                raise utterance.error
        finally:
            self.cancel(utterance)

    def submit(self, request: SynthesisRequest) -> Utterance:
        """Queue an utterance; see :meth:`add`."""
        utterance = Utterance(request, self.model.facts.sample_rate_hz)
        self.add(utterance)
        return utterance

    def add(self, utterance: Utterance) -> None:
        """Queue an utterance; :meth:`step` gives it a lane when one is free.

        An open one is spoken while :meth:`extend` adds text, until :meth:`close_text`. Its first
        text without a space or full stop counts as a whole word.

        Raises:
            RequestError: The model cannot do what is asked, or the voice needs its whole text.
        """
        request = utterance.request
        check_voice(self.model.facts, request.voice)
        if request.is_open:
            utterance.tokenizer = tokenizer = IncrementalTokenizer(self.model.tokenizer)
            ids = tokenizer.push(request.text.lstrip()) or tokenizer.flush()
            if not ids:
                raise RequestError("There is no text to start with; send at least one word.")
            prompt = self._prompts.open(ids, request.voice, request.options)
        else:
            prompt = self._prompts.build(request.text, request.voice, request.options)
        if request.guarded:
            budget = frame_budget(request.text, self.model.facts.frame_rate_hz)
            utterance.frame_limit = min(budget, request.options.max_frames)
        utterance.start(prompt, request.options)
        self._waiting.append(utterance)

    def extend(self, utterance: Utterance, text: str) -> bool:
        """Add text to an open utterance; return False if it has ended and cannot take the text."""
        if utterance.frames_done or utterance.is_finished:
            return False
        if utterance.tokenizer is None:
            raise ValueError("the text of this utterance is closed")
        utterance.add_text(self._prompts.text_vectors(utterance.tokenizer.push(text)))
        if utterance.request.guarded:
            more = frame_budget(text, self.model.facts.frame_rate_hz)
            limit = utterance.frame_limit + more
            utterance.frame_limit = min(limit, utterance.options.max_frames)
        return True

    def close_text(self, utterance: Utterance) -> None:
        """Mark the text of an utterance as complete; it may be so already."""
        if utterance.tokenizer is None:
            return
        ids = [*utterance.tokenizer.finish(), self.model.facts.text_ids.tts_eos]
        utterance.add_text(self._prompts.text_vectors(ids))
        utterance.tokenizer = None

    def cancel(self, utterance: Utterance, error: Qwen3TTSError | None = None) -> None:
        """End an utterance early, with an error if there is one; it may have ended already."""
        if utterance.is_finished:
            return
        if utterance in self._speaking:
            self._loop.remove(utterance)
            self._speaking.remove(utterance)
        else:
            self._waiting.remove(utterance)
        utterance.finish(FinishReason.CANCELLED if error is None else None, error)

    @property
    def is_blocked(self) -> bool:
        """Whether every step is idle until text or a request arrives, or audio is taken."""
        return self._next_in_line() is None and all(it.is_blocked for it in self._speaking)

    def step(self) -> None:
        """Make one frame of each utterance that has a lane, and audio of full chunks."""
        try:
            self._admit()
            # Extra lanes slow one down: near an underrun, those that are heard next go alone.
            only_next = self._near_underrun
            active = [
                each
                for each in self._speaking
                if not each.is_blocked and (each.is_next or not only_next)
            ]
            started_s = time.perf_counter()
            made = self._loop.step(active)
            for utterance in tuple(self._speaking):
                if utterance in active or utterance.frames_done:
                    self._decode(utterance)
                if utterance.frames_done:
                    self._end(utterance)
            if len(active) == len(made) == 1:
                # The average over all frames at first, later over the latest ones.
                self._num_timed += 1
                weight = max(_TIMING_WEIGHT, 1 / self._num_timed)
                self._frame_s += weight * (time.perf_counter() - started_s - self._frame_s)
        except Exception as cause:  # noqa: BLE001 - graphs raise errors of any class
            error = synthesis_error(cause, "The model failed while speaking")
            # With no lane in use, end those that wait: else the next step fails in the same way.
            self.reset(error, keep_waiting=bool(self._speaking))

    def reset(self, error: Qwen3TTSError, *, keep_waiting: bool = False) -> None:
        """End every utterance with an error, and start from an empty loop."""
        failed = [*self._speaking, *(() if keep_waiting else self._waiting)]
        self._speaking.clear()
        if not keep_waiting:
            self._waiting.clear()
        try:
            for utterance in failed:
                utterance.finish(error=error)
        finally:
            self._loop.clear()

    @property
    def _near_underrun(self) -> bool:
        """Whether a listener needs audio soon, and one lane alone makes it fast enough.

        A machine that is too slow even for one lane gains by using all of them: its answers are
        held back before playback starts.
        """
        rtf = self.single_lane_rtf
        if rtf is not None and rtf > 1.0:
            return False
        return any(
            utterance.is_next
            and utterance.request.playback is not None
            and utterance.request.playback.buffered_s < _MIN_BUFFER_S
            for utterance in self._speaking
            if not utterance.is_blocked
        )

    def _admit(self) -> None:
        """Give one waiting utterance a lane: a second prefill would delay those that speak."""
        utterance = self._next_in_line()
        if utterance is None:
            return
        utterance.timing.started_s = utterance.timing.started_s or time.perf_counter()
        decoder = self.model.codec_decoder
        num_frames = _SHORT_CLIP_SLICE_FRAMES if self._near_underrun else _CLIP_SLICE_FRAMES
        try:
            state = self._loop.prefixes.codec_state(decoder, utterance.prompt, num_frames)
            if state is None:
                return  # the next step decodes more of the reference clip
            utterance.open_codec(decoder, state)
            if utterance.request.guarded:
                utterance.guard = RunawayGuard(self.model.facts.sample_rate_hz)
            self._loop.add(utterance)
        except Exception as cause:  # noqa: BLE001 - graphs raise errors of any class
            self._waiting.remove(utterance)
            utterance.finish(error=synthesis_error(cause, "The model failed at the prompt"))
        else:
            self._waiting.remove(utterance)
            self._speaking.append(utterance)

    def _next_in_line(self) -> Utterance | None:
        """Return the waiting utterance whose audio is needed first, if a lane is free for it.

        The last lane is reserved for audio that is needed next, so that a new request need not wait
        for later sentences of another. Near an underrun, later sentences wait too.
        """
        num_free = self._loop.max_lanes - len(self._speaking)
        if not self._waiting or not num_free:
            return None
        utterance = min(self._waiting, key=lambda it: (not it.is_next, it.request.position))
        if utterance.request.position == 0 or (utterance.request.playback and utterance.is_next):
            return utterance
        is_last_lane = num_free == 1 < self._loop.max_lanes
        return None if is_last_lane or self._near_underrun else utterance

    def _decode(self, utterance: Utterance) -> None:
        """Decode an utterance's frames; a failure ends this utterance only."""
        try:
            utterance.decode()
        except Exception as cause:  # noqa: BLE001 - graphs raise errors of any class
            utterance.error = synthesis_error(cause, "The codec failed")
        if utterance.frames_done:
            self._loop.remove(utterance)

    def _end(self, utterance: Utterance) -> None:
        """Finish an utterance after its last frame, or start it again if it failed unheard."""
        guard = utterance.guard
        if guard is not None:
            has_failed = utterance.error is not None or utterance.end_reason is FinishReason.LENGTH
            can_retry = not guard.audio_emitted and not utterance.request.is_open
            if has_failed and can_retry and utterance.num_attempts < _MAX_ATTEMPTS:
                options = replace(utterance.options, seed=_retry_seed(utterance.options.seed))
                utterance.start(utterance.prompt, options)
                self._waiting.appendleft(utterance)
                self._speaking.remove(utterance)
                return
            utterance.add_audio(guard.finish())
        if utterance.num_attempts > 1 and utterance.end_reason is FinishReason.STOP:
            utterance.end_reason = FinishReason.RETRY
        utterance.finish(error=utterance.error)
        # Last: until here, a failure must still find the utterance.
        self._speaking.remove(utterance)


def _retry_seed(seed: int) -> int:
    """Return a seed that follows from ``seed`` but samples other codes."""
    return int(np.random.SeedSequence(seed).generate_state(1, np.uint64)[0] >> np.uint64(1))
