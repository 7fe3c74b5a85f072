"""THE MAIN PATH: a text and a voice -> prompt -> frames -> samples.

Everything here is synchronous and runs in one thread. :meth:`Synthesizer.stream` speaks one
utterance; :meth:`Synthesizer.submit` and :meth:`Synthesizer.step` run several side by side, which
costs little more: the lanes share every read of the weights.
"""

import time
from collections import deque
from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from wyoming_qwen3tts.arrays import Float32Array
from wyoming_qwen3tts.audio import AudioChunk
from wyoming_qwen3tts.errors import Qwen3TTSError, SynthesisError, synthesis_error
from wyoming_qwen3tts.runtime.speech_model import SpeechModel
from wyoming_qwen3tts.synthesis.codec_stream import CodecStream
from wyoming_qwen3tts.synthesis.frame_loop import FinishReason, FrameLoop, Lane, TrailingText
from wyoming_qwen3tts.synthesis.guard import SpeechGuard
from wyoming_qwen3tts.synthesis.prompt import PromptBuilder
from wyoming_qwen3tts.synthesis.request import SynthesisRequest, check_options, check_voice
from wyoming_qwen3tts.synthesis.speech import Speech
from wyoming_qwen3tts.synthesis.text_feed import TextFeed
from wyoming_qwen3tts.synthesis.timing import FrameTimer

# Less audio than this ahead of the listener is too little for making others' beside it: a step with
# every lane, and a prompt that joins, must fit into it several times.
_COMFORTABLE_LEAD_S = 0.6

MAX_ATTEMPTS = 2
"""A guarded utterance that failed before anything was heard starts again with another seed."""


class Synthesizer:
    """Speaks with one model."""

    def __init__(self, model: SpeechModel, *, max_lanes: int = 1) -> None:
        """Prepare to run up to ``max_lanes`` utterances side by side."""
        self.model = model
        self._prompts = PromptBuilder(model)
        self._loop = FrameLoop(model, max_lanes=max_lanes)
        self._waiting: deque[Speech] = deque()
        self._speaking: dict[Lane, Speech] = {}
        self._alone = FrameTimer()

    @property
    def alone_rtf(self) -> float | None:
        """Real-time factor of one utterance with nothing beside it, as measured lately."""
        frame_s, facts = self._alone.frame_s, self.model.facts
        if frame_s is None:
            return None
        return frame_s * facts.frame_rate_hz

    def stream(self, request: SynthesisRequest) -> Iterator[AudioChunk]:
        """Speak one utterance; closing the iterator early cancels it within a frame.

        Raises:
            RequestError: The model cannot do what is asked.
            SynthesisError: The model failed.
        """
        yield from self.follow(self.submit(request))

    def follow(self, speech: Speech) -> Iterator[AudioChunk]:
        """Run the loop for a submitted utterance and yield its audio as it is made.

        Raises:
            SynthesisError: The model failed.
        """
        try:
            while not speech.is_finished:
                self.step()
                yield from speech.take_audio()
            if speech.error is not None:
                raise speech.error
        finally:
            self.cancel(speech)

    def submit(self, request: SynthesisRequest) -> Speech:
        """Queue an utterance; :meth:`step` gives it a lane when one is free.

        Raises:
            RequestError: The model cannot do what is asked.
        """
        check_options(request.options)
        check_voice(self.model.facts, request.voice)
        prompt = self._prompts.build(request.text, request.voice, request.options)
        speech = Speech(request, Lane(prompt, request.options))
        self._waiting.append(speech)
        return speech

    def begin(self, request: SynthesisRequest) -> Speech:
        """Queue an utterance whose text goes on: :meth:`extend` it, then :meth:`end_text`.

        It is spoken as one utterance while its text arrives, and waits where the text runs dry. A
        text without a space or full stop in it counts as a whole word.

        Raises:
            RequestError: The model cannot do what is asked, or the voice needs its text whole.
        """
        check_options(request.options)
        check_voice(self.model.facts, request.voice)
        feed = TextFeed(self.model.tokenizer)
        ids = feed.push(request.text.lstrip()) or feed.finish()
        prompt = self._prompts.begin(ids, request.voice, request.options)
        text = TrailingText(prompt.trailing, prompt.text_pad, closed=False)
        speech = Speech(request, Lane(prompt, request.options, text))
        speech.feed = feed
        self._waiting.append(speech)
        return speech

    def extend(self, speech: Speech, text: str, num_frames: int) -> None:
        """Add text to an utterance that goes on, and room for ``num_frames`` more frames."""
        if speech.feed is None:
            raise ValueError("the text of this utterance has ended")
        speech.lane.max_frames += num_frames
        speech.lane.text.extend(self._prompts.text_vectors(speech.feed.push(text)))

    def end_text(self, speech: Speech) -> None:
        """Say that the text of an utterance is complete; nothing happens if it was already."""
        if speech.feed is None:
            return
        rest = self._prompts.text_vectors(speech.feed.finish())
        speech.feed = None
        speech.lane.text.extend(np.concatenate([rest, self._prompts.end_of_text]))
        speech.lane.text.close()

    def cancel(self, speech: Speech) -> None:
        """End an utterance that nobody wants any more; nothing happens if it has ended."""
        if speech.is_finished:
            return
        if speech.lane in self._speaking:
            self._loop.leave(speech.lane)
            del self._speaking[speech.lane]
        else:
            self._waiting.remove(speech)
        speech.finish(FinishReason.CANCELLED)

    @property
    def is_idle(self) -> bool:
        """Whether nothing is left to do until the next submission."""
        return not self._waiting and not self._speaking

    @property
    def is_starved(self) -> bool:
        """Whether no step can do anything before more text or another request arrives."""
        return self._next_in_line() is None and all(lane.is_waiting for lane in self._speaking)

    def step(self) -> None:
        """Make one frame of each utterance that has a lane, and audio where enough frames wait."""
        try:
            self._admit()
            started_s = time.perf_counter()
            frames = self._loop.step(self._due())
            for lane, frame in frames:
                self._speaking[lane].add_frame(frame)
            for lane, speech in tuple(self._speaking.items()):
                self._decode(speech, flush=lane.is_finished or lane.is_waiting)
                if lane.is_finished:
                    self._end(speech)
            if len(frames) == 1:
                self._alone.record(time.perf_counter() - started_s)
        except Exception as cause:  # noqa: BLE001 - whatever a graph raises, the loop lives on
            error = synthesis_error(cause, "The model failed while speaking")
            # Somebody must be ended, or the same would fail for ever.
            end = self._fail if self._speaking else self.reset
            end(error)

    def reset(self, error: Qwen3TTSError) -> None:
        """End every utterance with an error and forget everything, for whoever finds it broken."""
        waiting = list(self._waiting)
        self._waiting.clear()
        try:
            for speech in waiting:
                speech.finish(error=error)
        finally:
            self._fail(error)

    def _due(self) -> tuple[Lane, ...]:
        """Return the lanes that make a frame now.

        Lanes are cheap, not free: beside others, what is heard now is made more slowly. Where it is
        about to run out, it goes on alone, and later sentences rest until there is time again.
        """
        if not self._is_pressed:
            return tuple(self._speaking)
        return tuple(lane for lane, speech in self._speaking.items() if speech.is_next)

    @property
    def _is_pressed(self) -> bool:
        """Whether audio must be made that is heard very soon, and alone is fast enough for it.

        A machine that is too slow even for one lane gains by all of them: what is heard first is
        then held back by whoever plays it.
        """
        alone_rtf = self.alone_rtf
        if alone_rtf is not None and alone_rtf > 1.0:
            return False
        return any(
            speech.is_next
            and speech.request.playback is not None
            and speech.request.playback.buffered_s < _COMFORTABLE_LEAD_S
            for lane, speech in self._speaking.items()
            if not lane.is_waiting
        )

    def _admit(self) -> None:
        """Give one waiting utterance a lane: more than one prefill would stall those that speak."""
        speech = self._next_in_line()
        if speech is None:
            return
        self._waiting.remove(speech)
        # A second attempt goes on with the time of the first.
        speech.timing.started_s = speech.timing.started_s or time.perf_counter()
        decoder = self.model.codec_decoder
        try:
            state = self._loop.prefixes.codec_state(decoder, speech.lane.prompt)
            speech.codec = CodecStream(decoder, state)
            if speech.request.guarded:
                speech.guard = SpeechGuard(self.model.facts.sample_rate_hz)
            self._loop.join(speech.lane)
        except Exception as cause:  # noqa: BLE001 - as in step, but those that speak go on
            speech.finish(error=synthesis_error(cause, "The model failed at the prompt"))
        else:
            self._speaking[speech.lane] = speech

    def _next_in_line(self) -> Speech | None:
        """Return the utterance that is heard soonest, if there is a lane for it.

        The last lane is kept for what is heard next: a client that has just asked must not wait for
        sentences of another one that nobody hears yet. Nor may their prompts delay what is heard.
        """
        if not self._waiting or not self._loop.has_room:
            return None
        speech = min(self._waiting, key=lambda it: (not it.is_next, it.request.position))
        if speech.request.position == 0 or (speech.request.playback and speech.is_next):
            return speech
        is_last_lane = self._loop.max_lanes > 1 and len(self._speaking) == self._loop.max_lanes - 1
        return None if is_last_lane or self._is_pressed else speech

    def _decode(self, speech: Speech, *, flush: bool) -> None:
        codec = speech.codec
        if codec is None or not (codec.is_ready or (flush and codec.num_waiting)):
            return
        samples = codec.decode()
        if speech.guard is not None:
            samples = self._guarded(speech, speech.guard, samples)
        speech.add_audio(samples, self.model.facts.sample_rate_hz)

    def _guarded(self, speech: Speech, guard: SpeechGuard, samples: Float32Array) -> Float32Array:
        """Return what may be heard of the samples; ends the lane if it has lost itself."""
        lane = speech.lane
        try:
            samples = guard.push(samples)
        except SynthesisError as error:
            lane.error = error
            samples = np.zeros(0, np.float32)
        if guard.is_endless and not lane.is_finished:
            lane.finish_reason = FinishReason.LENGTH
        if lane.is_finished and lane in self._loop.lanes:
            self._loop.leave(lane)
        return samples

    def _end(self, speech: Speech) -> None:
        """End an utterance whose lane has ended, or start it again if nobody heard any of it."""
        guard, lane = speech.guard, speech.lane
        if guard is not None:
            has_failed = lane.error is not None or lane.finish_reason is FinishReason.LENGTH
            can_retry = not guard.has_spoken and not speech.was_open
            if has_failed and can_retry and speech.num_attempts < MAX_ATTEMPTS:
                options = replace(lane.options, seed=_retry_seed(lane.options.seed))
                speech.start_again(Lane(lane.prompt, options))
                self._waiting.appendleft(speech)
                del self._speaking[lane]
                return
            speech.add_audio(guard.finish(), self.model.facts.sample_rate_hz)
        if speech.num_attempts > 1 and lane.finish_reason is FinishReason.STOP:
            lane.finish_reason = FinishReason.RETRY
        speech.finish(error=lane.error)
        # Last: whoever fails before is still known, and is ended with the error.
        del self._speaking[lane]

    def _fail(self, error: Qwen3TTSError) -> None:
        """End every utterance in the loop: a graph failed for all of them."""
        failed = list(self._speaking.values())
        self._speaking.clear()
        try:
            for speech in failed:
                speech.finish(error=error)
        finally:
            # Whatever the failure left half done, the next utterance meets none of it.
            self._loop.clear()


def _retry_seed(seed: int) -> int:
    """Return a seed that follows from ``seed`` but draws other codes."""
    return int(np.random.SeedSequence(seed).generate_state(1, np.uint64)[0] >> np.uint64(1))
