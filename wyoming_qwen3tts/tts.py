"""The library: open models, list their voices, stream speech."""

import asyncio
import threading
from collections.abc import (
    AsyncGenerator,
    AsyncIterable,
    AsyncIterator,
    Coroutine,
    Generator,
    Iterable,
    Sequence,
)
from contextlib import AsyncExitStack
from typing import Any, Self, TypeVar

from wyoming_qwen3tts.audio import AudioChunk
from wyoming_qwen3tts.config import Config, make_config
from wyoming_qwen3tts.engine.engine import open_engine
from wyoming_qwen3tts.engine.narration import SpeechEngine
from wyoming_qwen3tts.protocol.backend import SpeechRequest, VoiceInfo

Result = TypeVar("Result")


class TTS:
    """Speaks with Qwen3-TTS models, in a thread of its own.

    Example::

        with TTS("qwen3-tts-0.6b-customvoice") as tts:
            for chunk in tts.stream("Hello there.", voice="ryan"):
                play(chunk.pcm16(), chunk.sample_rate_hz)
    """

    def __init__(
        self,
        model: str | Sequence[str] | None = None,
        *,
        config: Config | None = None,
        **settings: Any,
    ) -> None:
        """Open models; a missing one is downloaded and built when it is first needed.

        Args:
            model: A name, a repository, a directory, or several. Default: all installed models,
                or the built-in demo voice.
            config: Every setting, in place of the other arguments.
            settings: Settings of :class:`Config` by name, such as ``precision="int4"``.

        Raises:
            ConfigError: A setting is wrong, or the model is unknown.
            BundleError: A model cannot be used.
        """
        if model is not None:
            settings["models"] = [model] if isinstance(model, str) else list(model)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="tts", daemon=True)
        self._thread.start()
        self._stack = AsyncExitStack()
        try:
            context = open_engine(config or make_config(**settings), is_server=False)
            self._engine: SpeechEngine = self._run(self._stack.enter_async_context(context))
        except BaseException:
            self.close()
            raise

    def voices(self) -> Sequence[VoiceInfo]:
        """Return the voices, with the languages and styles of each."""
        return self._run(self._engine.voices())

    def stream(
        self,
        text: str | Iterable[str],
        *,
        voice: str | None = None,
        language: str | None = None,
        style: str | None = None,
        is_exact: bool = False,
    ) -> Generator[AudioChunk, None, None]:
        """Speak; yields audio while the rest is being made. Closing it early cancels the rest.

        Args:
            text: The text, or pieces of it as they arrive.
            voice: Name of a voice; None for the first one.
            language: "de", "German" ...; None detects it.
            style: Name of a style or an instruction; for VoiceDesign models, a description.
            is_exact: Give the model the text as it is: no text rules, no cut into sentences.

        Raises:
            RequestError: There is no such voice, or the model cannot do this.
            SynthesisError: The model failed.
        """
        pieces = _in_thread([text] if isinstance(text, str) else text)
        chunks = self._engine.stream(SpeechRequest(voice, language, style, is_exact), pieces)
        try:
            while (chunk := self._run(_next(chunks))) is not None:
                yield chunk
        finally:
            self._run(chunks.aclose())

    async def astream(
        self,
        text: str | AsyncIterable[str],
        *,
        voice: str | None = None,
        language: str | None = None,
        style: str | None = None,
        is_exact: bool = False,
    ) -> AsyncGenerator[AudioChunk, None]:
        """Speak as :meth:`stream` does, in an event loop of the caller's."""
        if isinstance(text, str):
            pieces = _in_thread([text])
        else:
            pieces = _in_loop(aiter(text), asyncio.get_running_loop())
        chunks = self._engine.stream(SpeechRequest(voice, language, style, is_exact), pieces)
        try:
            while (chunk := await self._wrap(_next(chunks))) is not None:
                yield chunk
        finally:
            await self._wrap(chunks.aclose())

    def close(self) -> None:
        """Cancel all speech and close the models."""
        if self._thread.is_alive():
            self._run(self._stack.aclose())
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    def _run(self, work: Coroutine[Any, Any, Result]) -> Result:
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def _wrap(self, work: Coroutine[Any, Any, Result]) -> "asyncio.Future[Result]":
        return asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, self._loop))


async def _next(items: AsyncIterator[Result]) -> Result | None:
    return await anext(items, None)


async def _in_thread(pieces: Iterable[str]) -> AsyncIterator[str]:
    """Yield pieces of the caller, which may block."""
    iterator = iter(pieces)
    while (piece := await asyncio.to_thread(next, iterator, None)) is not None:
        yield piece


async def _in_loop(
    pieces: AsyncIterator[str], loop: asyncio.AbstractEventLoop
) -> AsyncIterator[str]:
    """Yield pieces that are made in another event loop."""
    while True:
        arriving = asyncio.run_coroutine_threadsafe(_next(pieces), loop)
        if (piece := await asyncio.wrap_future(arriving)) is None:
            return
        yield piece
