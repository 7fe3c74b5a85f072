"""Starts what a speech engine needs: models, the synthesis thread, warm-up and maintenance."""

import asyncio
import logging
import math
import time
from collections.abc import AsyncIterator, Hashable
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from typing import Final

from wyoming_qwen3tts.config import Config
from wyoming_qwen3tts.engine.model_pool import ModelPool
from wyoming_qwen3tts.engine.narration import SpeechEngine
from wyoming_qwen3tts.engine.worker import SynthesisWorker
from wyoming_qwen3tts.errors import ModelNotReadyError, Qwen3TTSError
from wyoming_qwen3tts.machine import trim_free_memory
from wyoming_qwen3tts.models.bundles import EMBEDDED_NOTICE, InstalledBundle
from wyoming_qwen3tts.models.installer import ModelInstaller
from wyoming_qwen3tts.models.references import BuildRequest, served_models
from wyoming_qwen3tts.monitoring.metrics import Metrics
from wyoming_qwen3tts.protocol.backend import SpeechRequest
from wyoming_qwen3tts.synthesis.request import default_options
from wyoming_qwen3tts.voices.catalog import Catalog
from wyoming_qwen3tts.voices.clips import encode_apart, encode_clip
from wyoming_qwen3tts.voices.library import VoiceLibrary

_LOGGER = logging.getLogger(__name__)

_MAINTENANCE_INTERVAL_S: Final = 2.0
_TRIM_INTERVAL_S: Final = 60.0
_ENCODING_INTERVAL_S: Final = 10.0


@asynccontextmanager
async def open_engine(
    config: Config, metrics: Metrics | None = None, *, is_server: bool = True
) -> AsyncIterator[SpeechEngine]:
    """Find the models, start the synthesis thread, and yield the speech backend.

    ``is_server``: warm up the models, and fail requests after ``model_wait_timeout`` instead of
    waiting until the model is installed. Raises ConfigError or BundleError where a setting or a
    model cannot be used.
    """
    config.check_data_dirs()
    data_dirs = config.data_paths
    models = await asyncio.to_thread(
        served_models, config.models, data_dirs, config.precision, is_server=is_server
    )
    for model in models:
        if isinstance(model, BuildRequest):
            _LOGGER.info("Installing %s into %s", model.reference, model.target)
        else:
            _log_serving(model)
    installer = ModelInstaller(
        models,
        wait_s=config.model_wait_timeout if is_server else math.inf,
        local_files_only=config.local_files_only,
        keep_checkpoint=config.keep_checkpoint,
    )
    limit_mb = config.max_loaded_weights_mb
    pool = ModelPool(
        config.num_threads,
        max_lanes=config.parallel_utterances,
        memory_limit_bytes=None if limit_mb is None else limit_mb * 10**6,
        bundles=installer.bundles,
    )
    worker = SynthesisWorker()
    # A program that uses the library may not be made for processes of its own.
    library = VoiceLibrary(data_dirs, encode_apart if is_server else encode_clip)
    catalog = Catalog(installer.bundles, library, config.styles, config.languages)
    if config.voice is not None and not any(isinstance(each, BuildRequest) for each in models):
        await catalog.find(SpeechRequest(config.voice), None)
    metrics = metrics or Metrics()
    engine = SpeechEngine(config, catalog, pool, worker, installer, metrics, is_server)
    worker.start()
    async with AsyncExitStack() as stack:
        stack.push_async_callback(worker.stop)
        stack.callback(library.close)
        await stack.enter_async_context(installer.running())
        background = [_maintain(pool, config.idle_unload_seconds)]
        if is_server:
            # Not awaited: describe is answered meanwhile, and requests wait for the same model.
            background.append(_warm_up_models(engine))
            background.append(_encode_clips(engine))
        for each in background:
            stack.callback(asyncio.create_task(each).cancel)
        yield engine


def _log_serving(bundle: InstalledBundle) -> None:
    _LOGGER.info("Serving %s from %s", bundle.reference, bundle.directory)
    if bundle.is_embedded:
        _LOGGER.warning(EMBEDDED_NOTICE)


async def _warm_up_models(engine: SpeechEngine) -> None:
    await warm_up(engine)
    async for bundle in engine.installer.installed():
        _log_serving(bundle)
        await warm_up(engine, bundle)


async def warm_up(engine: SpeechEngine, bundle: InstalledBundle | None = None) -> None:
    """Speak a sentence with a model, or with the default voice; so the first request is quick."""
    started_s = time.perf_counter()
    try:
        if bundle is None:
            chosen = await engine.catalog.find(SpeechRequest(), engine.config.voice)
        elif of_model := [v for v in await engine.catalog.voices() if v.bundle == bundle]:
            chosen = of_model[0]
        else:
            async with engine.pool.use(bundle):
                return
        bundle = chosen.bundle
        if await engine.installer.ensure_ready(bundle):
            return
        chunks = engine.stream(SpeechRequest(chosen.info.name), _warm_up_text(), is_counted=False)
        async with aclosing(chunks):
            async for _ in chunks:
                pass
    except ModelNotReadyError:
        pass  # warmed up once it is installed
    except Exception as error:  # one failed model must not block the others
        if bundle is not None:
            engine.pool.record_error(bundle, error)
        _LOGGER.error("Warm-up failed: %s", error)  # noqa: TRY400 - the message is complete
        _LOGGER.debug("Traceback", exc_info=error)
    else:
        _LOGGER.info("Warm-up finished in %.1f s", time.perf_counter() - started_s)


async def _warm_up_text() -> AsyncIterator[str]:
    yield "Hello, this is ready."


async def _encode_clips(engine: SpeechEngine) -> None:
    """Encode new clips before the first request for them."""
    done: set[Hashable] = set()
    while True:
        async for voice in engine.catalog.new_clips(done):
            try:
                async with engine.pool.use(voice.bundle) as (synthesizer, _):
                    started_s, model = time.perf_counter(), synthesizer.model
                    options = default_options(model.facts.generation)
                    await engine.catalog.prepare(voice, model, options, None)
                took_s = time.perf_counter() - started_s
                _LOGGER.info("Encoded the clip of %s in %.1f s", voice.info.name, took_s)
            except Qwen3TTSError as error:
                _LOGGER.warning("%s", error)
        await asyncio.sleep(_ENCODING_INTERVAL_S)


async def _maintain(pool: ModelPool, idle_unload_s: float | None) -> None:
    """Give freed memory back to the system, and close idle models."""
    pause_s = min(_MAINTENANCE_INTERVAL_S, (idle_unload_s or math.inf) / 2)
    trimmed_s = time.monotonic()
    while True:
        await asyncio.sleep(pause_s)
        try:
            if time.monotonic() - trimmed_s >= _TRIM_INTERVAL_S:
                trimmed_s = time.monotonic()
                await asyncio.to_thread(trim_free_memory)
            if idle_unload_s is not None:
                await pool.unload_idle(idle_unload_s)
        except Exception as error:  # noqa: BLE001 - it may work the next time
            _LOGGER.error("Model maintenance failed: %r", error)  # noqa: TRY400
