"""One synthesis thread <-> asyncio.

The thread owns every synthesizer: it runs one step after the other and carries out in between what
asyncio asks for, so synthesis needs no locks and a cancelled request is gone within a frame.

Whatever fails in the thread ends the utterances that it concerns with an error. A thread that dies
all the same is replaced at once by another, which goes on with what has not begun.
"""

import asyncio
import logging
import queue
import threading
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final

from wyoming_qwen3tts.audio import AudioChunk
from wyoming_qwen3tts.errors import Qwen3TTSError, SynthesisError, synthesis_error
from wyoming_qwen3tts.synthesis.request import SynthesisRequest
from wyoming_qwen3tts.synthesis.speech import Speech
from wyoming_qwen3tts.synthesis.synthesizer import Synthesizer

_LOGGER = logging.getLogger(__name__)

_STOP_S: Final = 10.0


@dataclass(eq=False)
class Utterance:
    """A request on its way through the thread; lives on the asyncio side."""

    synthesizer: Synthesizer
    request: SynthesisRequest
    loop: asyncio.AbstractEventLoop = field(default_factory=asyncio.get_running_loop)
    audio: "asyncio.Queue[AudioChunk | None]" = field(default_factory=asyncio.Queue)
    """Chunks in order; None ends them."""
    speech: Speech | None = None
    """Set by the thread when the utterance was submitted."""
    error: Exception | None = None
    is_open: bool = False
    """Whether more text may come."""
    is_cancelled: bool = False

    @property
    def has_ended(self) -> bool:
        """Whether no more audio will be made, as far as is known outside the thread."""
        return self.speech is not None and self.speech.is_finished

    def send(self, item: AudioChunk | None) -> None:
        """Hand a chunk, or the end, to asyncio; called in the thread."""
        # A loop that was closed meanwhile has nobody left who listens.
        with suppress(RuntimeError):
            self.loop.call_soon_threadsafe(self.audio.put_nowait, item)

    def end(self, error: Exception | None) -> None:
        """Say that nothing more comes, and why; called in the thread."""
        self.error = error
        self.send(None)


@dataclass(frozen=True)
class _Command:
    """What the thread is asked to do, and for whom."""

    carry_out: Callable[[], None]
    utterance: Utterance | None
    """Who must be told if that fails."""

    def fail(self, error: Qwen3TTSError) -> None:
        """Say that it was not done."""
        if self.utterance is not None:
            self.utterance.end(error)


@dataclass(frozen=True)
class WorkerStatus:
    """How the thread does, for reports."""

    is_alive: bool
    num_speaking: int
    """Utterances that have begun and not ended, those that wait for a lane among them."""
    num_waiting: int
    """Orders that the thread has not looked at yet."""
    busy_s: float
    """Seconds that the present step has taken; 0 between steps."""
    num_replaced: int
    """Threads that have died."""


class SynthesisWorker:
    """Runs synthesizers in one thread."""

    def __init__(self) -> None:
        """Prepare the thread."""
        self._commands: queue.SimpleQueue[_Command | None] = queue.SimpleQueue()
        self._active: list[Utterance] = []
        self._thread = self._make_thread()
        self._starting = threading.Lock()
        self._is_started = self._is_stopping = False
        self._num_replaced = 0
        self._step_started_s: float | None = None

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()
        self._is_started = True

    async def stop(self) -> None:
        """Cancel what is left and end the thread; one that hangs is left behind."""
        with self._starting:
            self._is_stopping = True
        self._commands.put(None)
        await asyncio.to_thread(self._thread.join, _STOP_S)
        self._fail_waiting("the server stops")
        if self._thread.is_alive():
            self._commands.put(None)

    @property
    def status(self) -> WorkerStatus:
        """How the thread does now."""
        started_s = self._step_started_s
        return WorkerStatus(
            is_alive=self._thread.is_alive(),
            num_speaking=len(self._active),
            num_waiting=self._commands.qsize(),
            busy_s=0.0 if started_s is None else time.monotonic() - started_s,
            num_replaced=self._num_replaced,
        )

    def submit(
        self, synthesizer: Synthesizer, request: SynthesisRequest, *, is_open: bool = False
    ) -> Utterance:
        """Queue a request; with ``is_open`` its text goes on, see :meth:`extend`."""
        utterance = Utterance(synthesizer, request, is_open=is_open)
        self._order(utterance, lambda: self._begin(utterance))
        return utterance

    def extend(self, utterance: Utterance, text: str, num_frames: int) -> None:
        """Add text to an open utterance, and room for ``num_frames`` more frames."""
        self._order(utterance, lambda: self._extend(utterance, text, num_frames))

    def end_text(self, utterance: Utterance) -> None:
        """Say that the text of an open utterance is complete."""
        self._order(utterance, lambda: self._end_text(utterance))

    async def audio(self, utterance: Utterance) -> AsyncGenerator[AudioChunk, None]:
        """Yield the audio of an utterance; closing the iterator early cancels it.

        Raises:
            RequestError: The model cannot do what was asked.
            SynthesisError: The model failed.
        """
        try:
            while (chunk := await utterance.audio.get()) is not None:
                yield chunk
            if utterance.error is not None:
                raise utterance.error
        finally:
            self.release(utterance)

    def release(self, utterance: Utterance) -> None:
        """Say that nobody listens to an utterance any more; cancels it if it goes on."""
        if utterance.is_cancelled:
            return
        utterance.is_cancelled = True
        self._order(utterance, lambda: self._cancel(utterance))

    def abandon(self, synthesizer: Synthesizer, error: Qwen3TTSError) -> None:
        """End every utterance of a synthesizer with an error."""
        self._order(None, lambda: self._abandon(synthesizer, error))

    def _order(self, utterance: Utterance | None, carry_out: Callable[[], None]) -> None:
        self._commands.put(_Command(carry_out, utterance))
        with self._starting:
            if self._is_started and not self._thread.is_alive():
                self._replace()

    # In the thread

    def _make_thread(self) -> threading.Thread:
        return threading.Thread(target=self._run, name="synthesis", daemon=True)

    def _run(self) -> None:
        try:
            while self._carry_out_commands():
                self._note_step(self._step)
            for utterance in tuple(self._active):
                self._cancel(utterance)
        except BaseException as error:  # noqa: BLE001 - nobody may wait for a thread that is gone
            _log("The synthesis thread died; another takes its place", error)
            self._hand_over(error)

    def _hand_over(self, cause: BaseException) -> None:
        """Fail what this thread was about, and start the next one."""
        error = synthesis_error(cause, "The synthesis thread died")
        active, self._active = self._active, []
        try:
            for synthesizer in {utterance.synthesizer for utterance in active}:
                with suppress(Exception):
                    synthesizer.reset(error)
        finally:
            for utterance in active:
                utterance.end(error)
            with self._starting:
                self._replace()

    def _replace(self) -> None:
        """Start a thread in the place of a dead one; where none can be, what is waiting fails.

        ``_starting`` is held.
        """
        if self._is_stopping:
            self._fail_waiting("the server stops")
            return
        self._thread = self._make_thread()
        try:
            self._thread.start()
        except RuntimeError as cause:  # the system gives no more threads
            _log("No synthesis thread can be started", cause)
            self._fail_waiting(f"no thread can be started ({cause}); try again later")
        else:
            self._num_replaced += 1

    def _fail_waiting(self, reason: str) -> None:
        with suppress(queue.Empty):
            while True:
                if (command := self._commands.get_nowait()) is not None:
                    command.fail(SynthesisError(f"Nothing can be spoken: {reason}."))

    def _note_step(self, step: Callable[[], None]) -> None:
        self._step_started_s = time.monotonic()
        try:
            step()
        finally:
            self._step_started_s = None

    def _step(self) -> None:
        for synthesizer in {utterance.synthesizer for utterance in self._active}:
            try:
                synthesizer.step()
            except Exception as cause:  # noqa: BLE001 - other models go on
                self._reset(synthesizer, cause)
        for utterance in tuple(self._active):
            self._deliver(utterance)

    def _reset(self, synthesizer: Synthesizer, cause: Exception) -> None:
        """Give a synthesizer that failed beyond its own care a new start."""
        _log("Unexpected failure while speaking", cause)
        self._abandon(synthesizer, synthesis_error(cause, "The model failed while speaking"))

    def _abandon(self, synthesizer: Synthesizer, error: Qwen3TTSError) -> None:
        synthesizer.reset(error)
        for utterance in tuple(self._active):
            if utterance.synthesizer is synthesizer:
                self._active.remove(utterance)
                utterance.end(error)

    def _carry_out_commands(self) -> bool:
        """Carry out what has been asked for; waits while there is nothing to speak."""
        while True:
            try:
                command = self._commands.get(block=self._is_idle)
            except queue.Empty:
                return True
            if command is None:
                return False
            self._carry_out(command)
            # A thread that waits must not keep a model open.
            del command

    def _carry_out(self, command: _Command) -> None:
        try:
            self._note_step(command.carry_out)
        except Exception as cause:  # noqa: BLE001 - the thread must outlive what a request makes of it
            if not isinstance(cause, Qwen3TTSError):
                _log("Unexpected failure of a request", cause)
            self._fail(command, synthesis_error(cause, "The request failed"))
        except BaseException as cause:
            command.fail(synthesis_error(cause, "The synthesis thread died"))
            raise

    @property
    def _is_idle(self) -> bool:
        """Whether nothing can be done before the next command."""
        return all(utterance.synthesizer.is_starved for utterance in self._active)

    def _begin(self, utterance: Utterance) -> None:
        if utterance.is_cancelled:
            return
        synthesizer = utterance.synthesizer
        begin = synthesizer.begin if utterance.is_open else synthesizer.submit
        utterance.speech = begin(utterance.request)
        self._active.append(utterance)

    def _extend(self, utterance: Utterance, text: str, num_frames: int) -> None:
        if utterance.speech is not None and not utterance.speech.is_finished:
            utterance.synthesizer.extend(utterance.speech, text, num_frames)

    def _end_text(self, utterance: Utterance) -> None:
        if utterance.speech is not None:
            utterance.synthesizer.end_text(utterance.speech)

    def _cancel(self, utterance: Utterance) -> None:
        if utterance in self._active and utterance.speech is not None:
            utterance.synthesizer.cancel(utterance.speech)
            self._deliver(utterance)

    def _fail(self, command: _Command, error: Qwen3TTSError) -> None:
        utterance = command.utterance
        if utterance is None:
            return
        if utterance in self._active:
            self._active.remove(utterance)
        utterance.end(error)
        if utterance.speech is not None:
            try:
                utterance.synthesizer.cancel(utterance.speech)
            except Exception as cause:  # noqa: BLE001 - it has lost track of what it speaks
                self._reset(utterance.synthesizer, cause)

    def _deliver(self, utterance: Utterance) -> None:
        speech = utterance.speech
        if speech is None:
            return
        for chunk in speech.take_audio():
            utterance.send(chunk)
        if speech.is_finished:
            self._active.remove(utterance)
            utterance.end(speech.error)


def _log(message: str, cause: BaseException) -> None:
    _LOGGER.error("%s: %r", message, cause)
    _LOGGER.debug("Where it happened", exc_info=cause)
