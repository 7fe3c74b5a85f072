"""Builds the server from its settings, starts it and stops it."""

import asyncio
import logging
import os
import signal
import threading
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import (
    AbstractAsyncContextManager,
    AsyncExitStack,
    aclosing,
    asynccontextmanager,
    suppress,
)
from functools import partial
from typing import Final

from wyoming_qwen3tts import __version__
from wyoming_qwen3tts.audio import AudioChunk
from wyoming_qwen3tts.config import Config
from wyoming_qwen3tts.machine import configure_malloc
from wyoming_qwen3tts.monitoring.health import HealthMonitor
from wyoming_qwen3tts.monitoring.metrics import Metrics
from wyoming_qwen3tts.monitoring.zeroconf import advertised
from wyoming_qwen3tts.protocol.backend import SpeechBackend, SpeechRequest, VoiceInfo
from wyoming_qwen3tts.protocol.server import Listener, parse_networks, parse_uri

_LOGGER = logging.getLogger(__name__)

_CLIENT_SHARE: Final = 0.75
"""Part of the shutdown timeout for running requests; the rest is for threads and processes."""

BackendFactory = Callable[[Config], AbstractAsyncContextManager[SpeechBackend]]
"""Gives the speech backend of a server; its context ends with the server."""


class DeferredBackend:
    """Stands in for a backend that is still loading: requests wait for it."""

    def __init__(self) -> None:
        self._backend: asyncio.Future[SpeechBackend] = asyncio.get_running_loop().create_future()

    def set(self, backend: SpeechBackend) -> None:
        """Let waiting requests go on with the real backend."""
        self._backend.set_result(backend)

    async def voices(self) -> Sequence[VoiceInfo]:
        """Return the voices of the real backend."""
        return await (await asyncio.shield(self._backend)).voices()

    async def stream(
        self, request: SpeechRequest, text: AsyncIterator[str]
    ) -> AsyncGenerator[AudioChunk, None]:
        """Speak with the real backend."""
        backend = await asyncio.shield(self._backend)
        async with aclosing(backend.stream(request, text)) as chunks:
            async for chunk in chunks:
                yield chunk


class Server:
    """Serves from the first signal handler to the last connection."""

    def __init__(
        self,
        config: Config,
        create_backend: BackendFactory,
        metrics: Metrics | None = None,
        on_stop: Callable[[], None] = lambda: None,
    ) -> None:
        """Prepare to serve; ``on_stop`` is called at the first signal."""
        self._config = config
        self._create_backend = create_backend
        self._metrics = metrics or Metrics()
        self._on_stop = on_stop
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
        backend = DeferredBackend()
        networks = parse_networks(config.allowed_networks)
        monitor = HealthMonitor(lambda: listener.status)
        self._metrics.watch(monitor)
        listener = Listener(
            config.uri,
            backend,
            max_connections=config.max_connections,
            max_text_chars=config.max_text_chars,
            supports_streaming=config.streaming,
            networks=networks,
            on_error=self._metrics.count_error,
            health=monitor.report,
        )
        async with AsyncExitStack() as stack:
            # The ports come first: a client that asks while models load waits instead of failing.
            await stack.enter_async_context(listener)
            if config.http is not None:
                # Imported late: aiohttp takes memory and time to load.
                from wyoming_qwen3tts.monitoring.http import serve_pages

                pages = serve_pages(config.http, self._metrics, monitor, networks)
                await stack.enter_async_context(pages)
            loaded = await stack.enter_async_context(self._create_backend(config))
            backend.set(loaded)
            monitor.set_ready(loaded)
            async with AsyncExitStack() as discovery:
                if config.zeroconf is not None:
                    await discovery.enter_async_context(
                        advertised(config.zeroconf, parse_uri(config.uri), listener.port)
                    )
                self._is_ready = True
                _LOGGER.info("Ready (version %s, %s)", __version__, config.uri)
                await self._wait_for_end(listener)
            await listener.stop(config.shutdown_timeout * _CLIENT_SHARE)

    async def _wait_for_end(self, listener: Listener) -> None:
        ends = (self._stop.wait(), listener.wait_for_input_end())
        waits = [asyncio.ensure_future(end) for end in ends]
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()
            await asyncio.gather(*waits, return_exceptions=True)

    def _on_signal(self, number: int, main: asyncio.Task[None] | None) -> None:
        if self._stop.is_set():
            _exit(128 + number)
        _LOGGER.info("%s: stopping", signal.Signals(number).name)
        self._stop.set()
        self._on_stop()
        if not self._is_ready and main is not None:
            main.cancel()


def serve(config: Config, create_backend: BackendFactory | None = None) -> None:
    """Run the server until it is told to stop; by default with the backend that runs the models.

    Raises:
        ConfigError: A setting cannot be used.
        BundleError: A model cannot be used.
    """
    configure_malloc()
    metrics = Metrics()

    async def run() -> None:
        create = create_backend or partial(_create_engine, metrics=metrics)
        on_stop = partial(_exit_after, config.shutdown_timeout)
        await Server(config, create, metrics, on_stop).run()

    with suppress(KeyboardInterrupt):
        asyncio.run(run())


@asynccontextmanager
async def _create_engine(config: Config, metrics: Metrics) -> AsyncIterator[SpeechBackend]:
    # Imported late and in a thread: onnxruntime takes seconds, and describe waits for this loop.
    create = await asyncio.to_thread(_load_engine, config)
    async with create(config, metrics) as engine:
        yield engine


def _load_engine(
    config: Config,
) -> Callable[[Config, Metrics], AbstractAsyncContextManager[SpeechBackend]]:
    from wyoming_qwen3tts.engine.engine import open_engine
    from wyoming_qwen3tts.text.language import detect_language

    if len(config.languages) != 1:
        with suppress(OSError):  # without a temporary directory
            detect_language("This loads the language model.")
    return open_engine


def _exit_after(timeout_s: float) -> None:
    """End the process after a time, whatever hangs: a thread, a child or the event loop."""

    def give_up() -> None:
        _LOGGER.warning("Shutdown took longer than %g s; exiting", timeout_s)
        _exit(0)

    timer = threading.Timer(timeout_s, give_up)
    timer.daemon = True
    timer.start()


def _exit(code: int) -> None:
    logging.shutdown()
    os._exit(code)
