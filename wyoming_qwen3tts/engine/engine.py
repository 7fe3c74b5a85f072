"""The speech backend: finds voice and model of a request, and narrates its text."""

import asyncio
import logging
import math
import signal
import time
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Sequence
from contextlib import (
    AsyncExitStack,
    aclosing,
    asynccontextmanager,
    contextmanager,
    suppress,
)
from typing import Final

from wyoming_qwen3tts.audio import AudioChunk
from wyoming_qwen3tts.config import Config
from wyoming_qwen3tts.engine.model_pool import ModelPool
from wyoming_qwen3tts.engine.narration import Narration, SpeechPlan
from wyoming_qwen3tts.engine.worker import SynthesisWorker
from wyoming_qwen3tts.errors import BusyError, ConfigError, ModelNotReadyError, RequestError
from wyoming_qwen3tts.machine import trim_free_memory
from wyoming_qwen3tts.models.bundles import InstalledBundle
from wyoming_qwen3tts.models.installer import ModelInstaller
from wyoming_qwen3tts.models.references import BuildRequest, served_models
from wyoming_qwen3tts.monitoring.health import EngineStatus
from wyoming_qwen3tts.monitoring.metrics import Metrics
from wyoming_qwen3tts.protocol.backend import SpeechRequest, VoiceInfo
from wyoming_qwen3tts.runtime.speech_model import SpeechModel
from wyoming_qwen3tts.synthesis.request import default_options
from wyoming_qwen3tts.text.language import language_code
from wyoming_qwen3tts.text.normalize import ALL_RULES, Rule, rules_from_names
from wyoming_qwen3tts.text.rules import LANGUAGES
from wyoming_qwen3tts.voices.catalog import Catalog, CatalogVoice
from wyoming_qwen3tts.voices.library import VoiceLibrary

_LOGGER = logging.getLogger(__name__)

_WARM_UP_TEXT: Final = "Hello, this is ready."
_MAINTENANCE_INTERVAL_S: Final = 2.0
_TRIM_INTERVAL_S: Final = 60.0


class SpeechEngine:
    """Implements :class:`SpeechBackend` over the models of a server."""

    def __init__(
        self,
        config: Config,
        catalog: Catalog,
        pool: ModelPool,
        worker: SynthesisWorker,
        installer: ModelInstaller,
        metrics: Metrics,
    ) -> None:
        """Serve the voices of a catalog, including those of models that are being installed."""
        self._config = config
        self._catalog = catalog
        self._pool = pool
        self._worker = worker
        self._installer = installer
        self._metrics = metrics
        self._narrations: set[Narration] = set()
        self._languages = _known_languages(config.languages)
        self._rules = _enabled_rules(config.disabled_text_rules)

    async def voices(self) -> Sequence[VoiceInfo]:
        """Return the voices that can be asked for now."""
        return [voice.info for voice in await self._catalog.voices()]

    def status(self) -> EngineStatus:
        """Return the state of synthesis."""
        return EngineStatus(
            len(self._narrations),
            self._worker.status,
            self._pool.status(),
            self._installer.progress,
        )

    async def stream(
        self, request: SpeechRequest, text: AsyncIterator[str], *, is_counted: bool = True
    ) -> AsyncGenerator[AudioChunk, None]:
        """Speak text that may still be arriving; see :class:`SpeechBackend`.

        Args:
            request: Voice, language and style.
            text: Pieces of text, cut anywhere.
            is_counted: The request is a client's: it takes a place, and metrics count it.
        """
        narration = Narration(self._config, self._worker)
        try:
            async with AsyncExitStack() as stack:
                if is_counted:
                    self._check_capacity()
                    self._narrations.add(narration)
                chosen = await self._find(request)
                pieces = self._admitted(narration, text)
                await stack.enter_async_context(aclosing(pieces))
                # A client may open a stream long before its text. Only text needs the model.
                first = await anext(pieces, "")
                lent = self._pool.use(chosen.bundle)
                synthesizer, model = await stack.enter_async_context(lent)
                plan = await self._plan(chosen, request, synthesizer.model)
                stack.callback(model.usage.add, narration.report)
                stack.callback(narration.report.log)
                spoken = narration.stream(_joined(first, pieces), synthesizer, plan, model.speed)
                chunks = await stack.enter_async_context(aclosing(spoken))
                async for chunk in chunks:
                    yield chunk
        except Exception:
            if is_counted and not narration.is_started:
                self._metrics.count_refusal()
            raise
        finally:
            self._narrations.discard(narration)
            if is_counted and narration.is_started:
                self._metrics.count_request(narration.report)

    async def warm_up(self, bundle: InstalledBundle | None = None) -> None:
        """Speak a sentence with a model, so that the first request finds it open.

        Args:
            bundle: The model; None for that of the default voice.
        """
        started_s = time.perf_counter()
        try:
            chosen = await self._catalog.find(SpeechRequest(), self._config.voice)
            if bundle is not None:
                of_model = [v for v in await self._catalog.voices() if v.bundle == bundle]
                if not of_model:
                    async with self._pool.use(bundle):
                        return
                chosen = of_model[0]
            bundle = chosen.bundle
            if await self._installer.ensure_ready(bundle):
                return
            request, text = SpeechRequest(chosen.info.name), _one_piece(_WARM_UP_TEXT)
            async with aclosing(self.stream(request, text, is_counted=False)) as chunks:
                async for _ in chunks:
                    pass
        except ModelNotReadyError:
            pass  # warmed up once it is installed
        except Exception as error:  # one failed model must not block the others
            if bundle is not None:
                self._pool.record_error(bundle, error)
            _LOGGER.error("Warm-up failed: %s", error)  # noqa: TRY400 - the message is complete
            _LOGGER.debug("Traceback", exc_info=error)
        else:
            _LOGGER.info("Warm-up finished in %.1f s", time.perf_counter() - started_s)

    async def _find(self, request: SpeechRequest) -> CatalogVoice:
        """Return the voice that a request means, once its model is installed."""
        try:
            chosen = await self._catalog.find(request, self._config.voice)
        except RequestError:
            if not await self._installer.ensure_ready(None):
                raise
        else:
            if not await self._installer.ensure_ready(chosen.bundle):
                return chosen
        return await self._catalog.find(request, self._config.voice)

    async def _plan(
        self, chosen: CatalogVoice, request: SpeechRequest, model: SpeechModel
    ) -> SpeechPlan:
        config = self._config
        options = default_options(model.facts.generation, config.seed).with_sampling(
            config.temperature, config.top_k, config.top_p
        )
        voice, options = await self._catalog.prepare(chosen, model, options, request.speaker)
        spoken = chosen.info.languages
        configured = tuple(code for code in self._languages if code in spoken)
        usual = chosen.native_language
        if configured and usual not in configured:
            usual = configured[0]
        return SpeechPlan(
            chosen.info.name,
            voice,
            options,
            language=chosen.language or _requested_language(request),
            candidates=configured or spoken,
            usual_language=usual,
            rules=self._rules,
        )

    def _check_capacity(self) -> None:
        """Check that one more request can be spoken; those that wait for text do not count.

        Raises:
            BusyError: It cannot.
        """
        num_busy = sum(not narration.is_idle for narration in self._narrations)
        if num_busy >= self._config.max_requests:
            raise BusyError(f"{num_busy} requests are open already; try again later.")

    async def _admitted(
        self, narration: Narration, text: AsyncIterator[str]
    ) -> AsyncGenerator[str, None]:
        """Yield the text of a request; others may have taken its place while it was idle."""
        async for piece in text:
            if narration.is_idle and narration in self._narrations:
                self._check_capacity()
            narration.record_text()
            yield piece


async def _one_piece(text: str) -> AsyncIterator[str]:
    yield text


async def _joined(first: str, rest: AsyncIterator[str]) -> AsyncIterator[str]:
    yield first
    async for piece in rest:
        yield piece


def _known_languages(names: Sequence[str]) -> tuple[str, ...]:
    codes = {name: language_code(name) for name in names}
    unknown = [name for name, code in codes.items() if code is None]
    if unknown:
        raise ConfigError(
            f"languages: unknown {', '.join(unknown)}; the models speak {', '.join(LANGUAGES)}."
        )
    return tuple(code for code in codes.values() if code is not None)


def _enabled_rules(disabled: Sequence[str]) -> frozenset[Rule]:
    return frozenset() if "all" in disabled else ALL_RULES - rules_from_names(disabled)


def _requested_language(request: SpeechRequest) -> str | None:
    if not request.language or request.language.lower() == "auto":
        return None
    code = language_code(request.language)
    if code is None:
        _LOGGER.warning("Unknown language %r; detecting it", request.language[:40])
    return code


@asynccontextmanager
async def open_engine(
    config: Config, metrics: Metrics | None = None, *, is_server: bool = True
) -> AsyncIterator[SpeechEngine]:
    """Find the models, start the synthesis thread, and yield the speech backend.

    Args:
        config: Every setting.
        metrics: Counts requests.
        is_server: Warm up the models, log their status on SIGUSR1 and at the end, and fail
            requests after ``model_wait_timeout`` instead of waiting until the model is installed.

    Raises:
        ConfigError: A model reference or a setting cannot be used.
        BundleError: A model cannot be used.
    """
    data_dirs = config.data_paths
    models = await asyncio.to_thread(served_models, config.models, data_dirs, config.precision)
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

    def replace_bundle(old: InstalledBundle, new: InstalledBundle) -> None:
        installer.bundles[:] = [new if known == old else known for known in installer.bundles]

    pool = ModelPool(
        config.num_threads,
        max_lanes=config.parallel_utterances,
        memory_limit_bytes=None if limit_mb is None else limit_mb * 10**6,
        on_replaced=replace_bundle,
    )
    worker = SynthesisWorker()
    catalog = Catalog(installer.bundles, VoiceLibrary(data_dirs), config.styles)
    engine = SpeechEngine(config, catalog, pool, worker, installer, metrics or Metrics())
    worker.start()
    async with AsyncExitStack() as stack:
        stack.push_async_callback(worker.stop)
        stack.callback(catalog.close)
        await stack.enter_async_context(installer.running())
        background = [_maintain(pool, config.idle_unload_seconds)]
        if is_server:
            stack.enter_context(_reporting(pool))
            # Not awaited: describe is answered meanwhile, and requests wait for the same model.
            background.append(_warm_up_models(engine, installer))
        for each in background:
            stack.callback(asyncio.create_task(each).cancel)
        yield engine


def _log_serving(bundle: InstalledBundle) -> None:
    _LOGGER.info("Serving %s from %s", bundle.reference, bundle.directory)
    if bundle.notice is not None:
        _LOGGER.warning(bundle.notice)


@contextmanager
def _reporting(pool: ModelPool) -> Iterator[None]:
    """Log the status of the models at every SIGUSR1, and at the end."""
    loop = asyncio.get_running_loop()
    # Only the main thread may handle signals.
    with suppress(RuntimeError, ValueError):
        loop.add_signal_handler(signal.SIGUSR1, pool.log_status)
    try:
        yield
    finally:
        with suppress(RuntimeError, ValueError):
            loop.remove_signal_handler(signal.SIGUSR1)
        pool.log_status()


async def _warm_up_models(engine: SpeechEngine, installer: ModelInstaller) -> None:
    await engine.warm_up()
    async for bundle in installer.installed():
        _log_serving(bundle)
        await engine.warm_up(bundle)


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
