"""Connects asyncio to the one thread that runs every synthesizer.

The thread runs commands between steps. So synthesis needs no locks, and a cancelled utterance ends
within a frame. A failure ends the utterances that it concerns. If the thread dies or hangs, the
process ends with a logged stack, and its supervisor (systemd, Docker, Home Assistant) restarts it.
"""

import asyncio
import faulthandler
import logging
import math
import os
import queue
import threading
import time
from collections.abc import AsyncGenerator, Callable
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from wyoming_qwen3tts.audio import AudioChunk
from wyoming_qwen3tts.errors import Qwen3TTSError, SynthesisError, synthesis_error
from wyoming_qwen3tts.synthesis.request import SynthesisRequest
from wyoming_qwen3tts.synthesis.synthesizer import Synthesizer
from wyoming_qwen3tts.synthesis.utterance import Utterance

_LOGGER = logging.getLogger(__name__)

_STOP_S: Final = 2.0
# A frame takes some 0.1 s, the longest prompt on a slow machine some 10 s.
_HUNG_S: Final = 120.0
# Arming the watchdog starts a thread, so not every step does it.
_ARM_EVERY_S: Final = 5.0
_STDERR: Final = 2
# Audio of one utterance that may wait for its listener: 6 MB.
_MAX_BUFFER_S: Final = 60.0

# A call for the thread, the utterance that fails with it, and its result.
_Command = tuple[Callable[[], object], Utterance | None, "Future[bool]"]


@dataclass(frozen=True)
class WorkerStatus:
    """The state of the thread, for reports."""

    is_alive: bool
    num_speaking: int  # utterances that have not ended, with those that wait for a lane
    num_waiting: int  # commands in the queue
    busy_s: float  # duration of the current step or command; 0 while idle


class SynthesisWorker:
    """Runs synthesizers in one thread."""

    def __init__(self) -> None:
        self._commands: queue.SimpleQueue[_Command | None] = queue.SimpleQueue()
        self._synthesizers: dict[Utterance, Synthesizer] = {}
        self._thread = threading.Thread(target=self._run, name="synthesis", daemon=True)
        self._is_stopping = False
        self._busy_since_s: float | None = None
        self._armed_s = -math.inf

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    async def stop(self) -> None:
        """Cancel every utterance and end the thread."""
        self._is_stopping = True
        self._commands.put(None)
        await asyncio.to_thread(self._thread.join, _STOP_S)

    @property
    def status(self) -> WorkerStatus:
        """The current state of the thread."""
        since_s = self._busy_since_s
        return WorkerStatus(
            is_alive=self._thread.is_alive(),
            num_speaking=len(self._synthesizers),
            num_waiting=self._commands.qsize(),
            busy_s=0.0 if since_s is None else time.monotonic() - since_s,
        )

    def submit(self, synthesizer: Synthesizer, request: SynthesisRequest) -> Utterance:
        """Queue a request; an open one takes more text with :meth:`extend`."""
        utterance = Utterance(request, synthesizer.model.facts.sample_rate_hz)
        utterance.buffer_limit_s = _MAX_BUFFER_S
        if self._is_stopping:
            utterance.finish(error=SynthesisError("The server is stopping."))
        self._post(lambda: self._submit(utterance, synthesizer), utterance)
        return utterance

    async def extend(self, utterance: Utterance, text: str) -> bool:
        """Add text to an open utterance; return False if it has ended and cannot take the text."""
        result = self._post(lambda: self._apply(Synthesizer.extend, utterance, text), utterance)
        # Shielded: the thread sets the result even if the caller was cancelled.
        return await asyncio.shield(asyncio.wrap_future(result))

    def close_text(self, utterance: Utterance) -> None:
        """Mark the text of an open utterance as complete."""
        self._post(lambda: self._apply(Synthesizer.close_text, utterance), utterance)

    async def audio(self, utterance: Utterance) -> AsyncGenerator[AudioChunk, None]:
        """Yield the audio of an utterance, or raise its error; closing this early cancels it."""
        changed, loop = asyncio.Event(), asyncio.get_running_loop()

        def notify() -> None:
            with suppress(RuntimeError):  # the loop was closed
                loop.call_soon_threadsafe(changed.set)

        utterance.on_change = notify
        try:
            while True:
                changed.clear()
                is_finished = utterance.is_finished
                was_blocked = utterance.is_blocked
                for chunk in utterance.take_audio():
                    if was_blocked:
                        self._post(lambda: None)  # an idle thread looks again what it can do
                        was_blocked = utterance.is_blocked
                    yield chunk
                if is_finished:
                    break
                await changed.wait()
            if utterance.error is not None:
                raise utterance.error
        finally:
            self.release(utterance)

    def release(self, utterance: Utterance) -> None:
        """Cancel an utterance if it has not ended."""
        if not utterance.is_finished:
            self._post(lambda: self._apply(Synthesizer.cancel, utterance), utterance)

    def _post(
        self, call: Callable[[], object], utterance: Utterance | None = None
    ) -> "Future[bool]":
        result: Future[bool] = Future()
        if self._is_stopping:
            result.set_result(False)
        else:
            self._commands.put((call, utterance, result))
        return result

    # In the thread

    def _run(self) -> None:
        try:
            while self._run_commands():
                self._arm_watchdog()
                self._step()
            for utterance in tuple(self._synthesizers):
                self._apply(Synthesizer.cancel, utterance)
        except BaseException:
            _LOGGER.critical("The synthesis thread died; the process ends", exc_info=True)
            logging.shutdown()
            os._exit(1)
        finally:
            self._disarm_watchdog()

    def _arm_watchdog(self) -> None:
        """Let the process end with a stack of every thread if this one hangs from now on."""
        self._busy_since_s = now_s = time.monotonic()
        if now_s - self._armed_s >= _ARM_EVERY_S:
            faulthandler.dump_traceback_later(_HUNG_S, exit=True, file=_STDERR)
            self._armed_s = now_s

    def _disarm_watchdog(self) -> None:
        faulthandler.cancel_dump_traceback_later()
        self._armed_s, self._busy_since_s = -math.inf, None

    def _step(self) -> None:
        for synthesizer in dict.fromkeys(self._synthesizers.values()):
            synthesizer.step()
        self._drop_finished()

    def _drop_finished(self) -> None:
        for utterance in [each for each in self._synthesizers if each.is_finished]:
            del self._synthesizers[utterance]

    def _run_commands(self) -> bool:
        """Run every command in the queue, and wait for one while there is nothing to speak."""
        while True:
            if is_idle := all(synth.is_blocked for synth in self._synthesizers.values()):
                self._disarm_watchdog()
            try:
                command = self._commands.get(block=is_idle)
            except queue.Empty:
                return True
            if command is None:
                return False
            self._arm_watchdog()
            self._run_command(*command)
            self._drop_finished()
            # While this thread waits it must not keep a model open.
            del command

    def _run_command(
        self, call: Callable[[], object], utterance: Utterance | None, result: "Future[bool]"
    ) -> None:
        value = False
        try:
            value = bool(call())
        except Exception as cause:
            if not isinstance(cause, Qwen3TTSError):
                _LOGGER.error("A request failed: %r", cause)  # noqa: TRY400 - one line
                _LOGGER.debug("Traceback", exc_info=cause)
            if utterance is not None:
                self._fail(utterance, synthesis_error(cause, "The request failed"))
        finally:
            result.set_result(value)

    def _fail(self, utterance: Utterance, error: Qwen3TTSError) -> None:
        synthesizer = self._synthesizers.get(utterance)
        if synthesizer is None:
            utterance.finish(error=error)
            return
        try:
            synthesizer.cancel(utterance, error)
        except Exception:  # noqa: BLE001 - it has lost track of the utterance
            synthesizer.reset(error)

    def _submit(self, utterance: Utterance, synthesizer: Synthesizer) -> None:
        synthesizer.add(utterance)
        self._synthesizers[utterance] = synthesizer

    def _apply(self, method: Callable[..., object], utterance: Utterance, *args: object) -> bool:
        """Call a method of the utterance's synthesizer; return False if the utterance has ended."""
        synthesizer = self._synthesizers.get(utterance)
        return synthesizer is not None and method(synthesizer, utterance, *args) is not False
