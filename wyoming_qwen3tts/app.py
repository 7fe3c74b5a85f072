"""Builds the server from its settings, starts it and stops it."""

import asyncio
import logging
import os
import signal
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, suppress
from functools import partial
from typing import Final

from wyoming_qwen3tts import __version__
from wyoming_qwen3tts.config import Config
from wyoming_qwen3tts.machine import configure_malloc
from wyoming_qwen3tts.monitoring.health import HealthMonitor
from wyoming_qwen3tts.monitoring.metrics import Metrics
from wyoming_qwen3tts.monitoring.zeroconf import advertised
from wyoming_qwen3tts.protocol.backend import SpeechBackend
from wyoming_qwen3tts.protocol.connection import ConnectionOptions
from wyoming_qwen3tts.protocol.server import Listener, parse_networks, parse_uri

_LOGGER = logging.getLogger(__name__)

_CLIENT_SHARE: Final = 0.75  # of the shutdown timeout; the rest is for threads and processes

BackendFactory = Callable[[Config], AbstractAsyncContextManager[SpeechBackend]]


def serve(config: Config, create_backend: BackendFactory | None = None) -> None:
    """Run the server in a new event loop; by default with the backend that runs the models."""
    configure_malloc()
    metrics = Metrics()
    create = create_backend or partial(_create_engine, metrics=metrics)
    on_stop = partial(_exit_after, config.shutdown_timeout)
    asyncio.run(run_server(config, create, metrics, on_stop))


async def run_server(
    config: Config,
    create_backend: BackendFactory,
    metrics: Metrics,
    on_stop: Callable[[], None] = lambda: None,
) -> None:
    """Serve until SIGTERM, SIGINT or the end of input on stdio://.

    ``on_stop`` is called at the first signal; a second one ends the process. Raises ConfigError
    where a setting cannot be used, and BundleError where a model cannot.
    """
    loop, main = asyncio.get_running_loop(), asyncio.current_task()
    ready, stop = asyncio.Event(), asyncio.Event()

    def on_signal(number: int) -> None:
        name = signal.Signals(number).name
        if stop.is_set():
            _exit(128 + number, f"{name}: exiting at once")
        _LOGGER.info("%s: stopping", name)
        stop.set()
        on_stop()
        if not ready.is_set() and main is not None:
            main.cancel()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, on_signal, number)
    backend: asyncio.Future[SpeechBackend] = loop.create_future()
    networks = parse_networks(config.allowed_networks)
    monitor = HealthMonitor(lambda: listener.status)
    metrics.watch(monitor)
    options = ConnectionOptions(
        backend, config.max_text_chars, config.streaming, metrics.count_error, monitor.report
    )
    listener = Listener(config.uri, options, config.max_connections, networks, stop.set)
    try:
        async with AsyncExitStack() as stack:
            # The ports come first: a client that asks while models load waits instead of failing.
            await stack.enter_async_context(listener)
            if config.http is not None:
                # Imported late: aiohttp takes memory and time to load.
                from wyoming_qwen3tts.monitoring.http import serve_pages

                pages = serve_pages(config.http, metrics, monitor, networks)
                await stack.enter_async_context(pages)
            loaded = await stack.enter_async_context(create_backend(config))
            backend.set_result(loaded)
            monitor.backend = loaded
            async with AsyncExitStack() as discovery:
                if config.zeroconf is not None:
                    address = parse_uri(config.uri)
                    advertising = advertised(config.zeroconf, address, listener.port)
                    await discovery.enter_async_context(advertising)
                ready.set()
                _LOGGER.info("Ready (version %s, %s)", __version__, config.uri)
                await stop.wait()
            await listener.stop(config.shutdown_timeout * _CLIENT_SHARE)
    except asyncio.CancelledError:
        if not stop.is_set():
            raise
    _LOGGER.info("Stopped")


@asynccontextmanager
async def _create_engine(config: Config, metrics: Metrics) -> AsyncIterator[SpeechBackend]:
    # Imported late and in a thread: onnxruntime takes seconds, and describe waits for this loop.
    create = await asyncio.to_thread(_load_engine, config)
    async with create(config, metrics) as engine:
        yield engine


def _load_engine(config: Config) -> Callable[..., AbstractAsyncContextManager[SpeechBackend]]:
    from wyoming_qwen3tts.engine.engine import open_engine
    from wyoming_qwen3tts.text.language import detect_language

    if len(config.languages) != 1:
        with suppress(OSError):  # without a temporary directory
            detect_language("This loads the language model.")
    return open_engine


def _exit_after(timeout_s: float) -> None:
    """End the process after a time, whatever hangs: a thread, a child or the event loop."""
    timer = threading.Timer(timeout_s, _exit, [0, f"Shutdown took longer than {timeout_s:g} s"])
    timer.daemon = True
    timer.start()


def _exit(code: int, message: str) -> None:
    _LOGGER.warning(message)
    logging.shutdown()
    os._exit(code)
