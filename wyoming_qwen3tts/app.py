"""Builds the server from its settings, starts and stops it."""

import asyncio
import contextlib
import logging
import os
import signal
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, aclosing
from functools import partial

from wyoming_qwen3tts import __version__
from wyoming_qwen3tts.audio import AudioChunk
from wyoming_qwen3tts.config import Config
from wyoming_qwen3tts.machine import configure_malloc
from wyoming_qwen3tts.monitoring.health import HasStatus, StatusPages
from wyoming_qwen3tts.monitoring.http import HttpEndpoint
from wyoming_qwen3tts.monitoring.metrics import Metrics
from wyoming_qwen3tts.monitoring.zeroconf import announced
from wyoming_qwen3tts.protocol.backend import SpeechBackend, SpeechRequest, VoiceInfo
from wyoming_qwen3tts.protocol.server import Listener, Networks, parse_networks, parse_uri

_LOGGER = logging.getLogger(__name__)

SourceFactory = Callable[[Config], AbstractAsyncContextManager[SpeechBackend]]
"""Gives the speech source of a server; its context ends with the server."""


class DeferredBackend:
    """Stands in for a speech source that is still loading: whoever asks waits for it."""

    def __init__(self) -> None:
        self._source: SpeechBackend | None = None
        self._is_there = asyncio.Event()

    def set(self, source: SpeechBackend) -> None:
        """Let everybody who waits go on with the real one."""
        self._source = source
        self._is_there.set()

    async def voices(self) -> Sequence[VoiceInfo]:
        """Return the voices of the real source."""
        source = await self._wait()
        return await source.voices()

    async def stream(
        self, request: SpeechRequest, text: AsyncIterator[str]
    ) -> AsyncGenerator[AudioChunk, None]:
        """Speak with the real source."""
        source = await self._wait()
        async with aclosing(source.stream(request, text)) as chunks:
            async for chunk in chunks:
                yield chunk

    async def _wait(self) -> SpeechBackend:
        await self._is_there.wait()
        assert self._source is not None  # noqa: S101 - set() did both
        return self._source


class Server:
    """The program that serves, from the first signal handler to the last connection."""

    def __init__(
        self, config: Config, create_source: SourceFactory, figures: Metrics | None = None
    ) -> None:
        """Prepare to serve.

        Args:
            config: Every setting.
            create_source: Gives the speech source.
            figures: What is counted; the speech source counts there as well.
        """
        self._config = config
        self._create_source = create_source
        self._figures = figures or Metrics()
        self._stop = asyncio.Event()
        self._is_ready = False

    async def run(self) -> None:
        """Serve until SIGTERM, SIGINT or the end of input on stdio://.

        Raises:
            ConfigError: A setting cannot be used, such as an address that is taken.
            BundleError: A model cannot be used.
        """
        loop = asyncio.get_running_loop()
        main = asyncio.current_task()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._on_signal, number, main)
        try:
            await self._serve()
        except asyncio.CancelledError:
            if not self._stop.is_set():
                raise
        finally:
            for number in (signal.SIGTERM, signal.SIGINT):
                loop.remove_signal_handler(number)
        _LOGGER.info("Stopped")

    async def _serve(self) -> None:
        config = self._config
        source = DeferredBackend()
        networks = parse_networks(config.allowed_networks)
        listener = Listener(
            config.uri,
            source,
            max_connections=config.max_connections,
            max_text_chars=config.max_text_chars,
            supports_streaming=config.streaming,
            networks=networks,
            on_error=self._figures.count_error,
        )
        pages = StatusPages(self._figures, lambda: listener.status)
        # The ports come first: a client that asks while models load waits instead of failing.
        async with (
            listener,
            _serving(config.http, pages, networks),
            self._create_source(config) as loaded,
        ):
            source.set(loaded)
            pages.set_ready(loaded if isinstance(loaded, HasStatus) else None)
            async with AsyncExitStack() as announcement:
                if config.zeroconf is not None:
                    await announcement.enter_async_context(
                        announced(config.zeroconf, parse_uri(config.uri), listener.port)
                    )
                self._is_ready = True
                _LOGGER.info("Ready (version %s, %s)", __version__, config.uri)
                await self._wait_for_end(listener)
            await listener.stop(config.shutdown_timeout)

    async def _wait_for_end(self, listener: Listener) -> None:
        waits = [
            asyncio.create_task(self._stop.wait()),
            asyncio.create_task(listener.wait_for_input_end()),
        ]
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()
            await asyncio.gather(*waits, return_exceptions=True)

    def _on_signal(self, number: int, main: asyncio.Task[None] | None) -> None:
        if self._stop.is_set():
            # Whoever asks twice does not want to wait: not for clients, not for the models.
            logging.shutdown()
            os._exit(128 + number)
        _LOGGER.info("%s: stopping", signal.Signals(number).name)
        self._stop.set()
        if not self._is_ready and main is not None:
            main.cancel()


def serve(config: Config, create_source: SourceFactory | None = None) -> None:
    """Run the server until it is told to stop.

    Args:
        config: Every setting.
        create_source: Gives the speech source; by default the one that runs the models.

    Raises:
        ConfigError: A setting cannot be used.
        BundleError: A model cannot be used.
    """
    configure_malloc()
    figures = Metrics()

    async def run() -> None:
        create = create_source or partial(_create_engine, figures=figures)
        await Server(config, create, figures).run()

    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(run())


def _serving(
    address: str | None, pages: StatusPages, networks: Networks
) -> AbstractAsyncContextManager[object]:
    """Return the context in which the pages are served, if anybody wants them."""
    if address is None:
        return contextlib.nullcontext()
    return HttpEndpoint(address, pages.pages, networks)


def _create_engine(config: Config, figures: Metrics) -> AbstractAsyncContextManager[SpeechBackend]:
    # Imported late: it brings onnxruntime, which --version and a wrong flag have no need of.
    from wyoming_qwen3tts.engine.engine import create_speech_source

    return create_speech_source(config, figures)
