"""One synthesis thread <-> asyncio.

The thread owns every synthesizer: it runs one step after the other and carries out in between what
asyncio asks for, so synthesis needs no locks and a cancelled request is gone within a frame.
"""

import asyncio
import logging
import queue
import threading
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass, field

from wyoming_qwen3tts.audio import AudioChunk
from wyoming_qwen3tts.errors import Qwen3TTSError, SynthesisError
from wyoming_qwen3tts.synthesis.options import SynthesisRequest
from wyoming_qwen3tts.synthesis.speech import Speech
from wyoming_qwen3tts.synthesis.synthesizer import Synthesizer

_LOGGER = logging.getLogger(__name__)


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

    def send(self, item: AudioChunk | None) -> None:
        """Hand a chunk, or the end, to asyncio; called in the thread."""
        # A loop that was closed meanwhile has nobody left who listens.
        if not self.loop.is_closed():
            self.loop.call_soon_threadsafe(self.audio.put_nowait, item)


class SynthesisWorker:
    """Runs synthesizers in one thread."""

    def __init__(self) -> None:
        """Prepare the thread."""
        self._commands: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._active: list[Utterance] = []
        self._thread = threading.Thread(target=self._run, name="synthesis", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    async def stop(self) -> None:
        """Cancel what is left and end the thread."""
        self._commands.put(None)
        await asyncio.to_thread(self._thread.join)

    def submit(
        self, synthesizer: Synthesizer, request: SynthesisRequest, *, is_open: bool = False
    ) -> Utterance:
        """Queue a request; with ``is_open`` its text goes on, see :meth:`extend`."""
        utterance = Utterance(synthesizer, request, is_open=is_open)
        self._commands.put(lambda: self._begin(utterance))
        return utterance

    def extend(self, utterance: Utterance, text: str, num_frames: int) -> None:
        """Add text to an open utterance, and room for ``num_frames`` more frames."""
        self._commands.put(lambda: self._extend(utterance, text, num_frames))

    def end_text(self, utterance: Utterance) -> None:
        """Say that the text of an open utterance is complete."""
        self._commands.put(lambda: self._end_text(utterance))

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
        self._commands.put(lambda: self._cancel(utterance))

    def _run(self) -> None:
        while self._carry_out_commands():
            for synthesizer in {utterance.synthesizer for utterance in self._active}:
                synthesizer.step()
            for utterance in tuple(self._active):
                self._deliver(utterance)
        for utterance in tuple(self._active):
            self._cancel(utterance)

    def _carry_out_commands(self) -> bool:
        """Carry out what has been asked for; waits while there is nothing to speak."""
        while True:
            try:
                command = self._commands.get(block=self._is_idle)
            except queue.Empty:
                return True
            if command is None:
                return False
            command()

    @property
    def _is_idle(self) -> bool:
        """Whether nothing can be done before the next command."""
        return all(utterance.synthesizer.is_starved for utterance in self._active)

    def _extend(self, utterance: Utterance, text: str, num_frames: int) -> None:
        if utterance.speech is not None and not utterance.speech.is_finished:
            utterance.synthesizer.extend(utterance.speech, text, num_frames)

    def _end_text(self, utterance: Utterance) -> None:
        if utterance.speech is not None:
            utterance.synthesizer.end_text(utterance.speech)

    def _begin(self, utterance: Utterance) -> None:
        if utterance.is_cancelled:
            return
        try:
            begin = (
                utterance.synthesizer.begin if utterance.is_open else utterance.synthesizer.submit
            )
            utterance.speech = begin(utterance.request)
        except Qwen3TTSError as error:
            self._end(utterance, error)
        except Exception as error:  # the thread must outlive whatever a request makes of it
            _LOGGER.exception("Unexpected failure at the start of a request")
            self._end(utterance, SynthesisError(f"Unexpected failure: {error!r}"))
        else:
            self._active.append(utterance)

    def _deliver(self, utterance: Utterance) -> None:
        speech = utterance.speech
        if speech is None:
            return
        for chunk in speech.take_audio():
            utterance.send(chunk)
        if speech.is_finished:
            self._active.remove(utterance)
            self._end(utterance, speech.error)

    def _cancel(self, utterance: Utterance) -> None:
        if utterance in self._active and utterance.speech is not None:
            utterance.synthesizer.cancel(utterance.speech)
            self._deliver(utterance)

    def _end(self, utterance: Utterance, error: Exception | None) -> None:
        utterance.error = error
        utterance.send(None)
