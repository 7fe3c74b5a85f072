"""The speech source of the server: requests -> voices, sentences, utterances -> audio in order."""

import asyncio
import logging
import signal
import time
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import AsyncExitStack, ExitStack, aclosing, asynccontextmanager, suppress
from dataclasses import replace

from wyoming_qwen3tts.audio import AudioChunk
from wyoming_qwen3tts.config import Config
from wyoming_qwen3tts.engine.admission import Admission
from wyoming_qwen3tts.engine.model_pool import ModelPool
from wyoming_qwen3tts.engine.narration import Answer, AnswerPlan
from wyoming_qwen3tts.engine.speed_record import SpeedRecord
from wyoming_qwen3tts.engine.worker import SynthesisWorker
from wyoming_qwen3tts.errors import (
    BusyError,
    ConfigError,
    ModelNotReadyError,
    RequestError,
)
from wyoming_qwen3tts.machine import trim_free_memory
from wyoming_qwen3tts.models.installer import ModelInstaller
from wyoming_qwen3tts.models.references import BuildRequest, served_models
from wyoming_qwen3tts.monitoring.health import EngineStatus
from wyoming_qwen3tts.monitoring.metrics import Metrics
from wyoming_qwen3tts.protocol.backend import SpeechRequest, VoiceInfo
from wyoming_qwen3tts.runtime.speech_model import SpeechModel
from wyoming_qwen3tts.synthesis.request import SynthesisOptions, default_options
from wyoming_qwen3tts.text.language import language_code
from wyoming_qwen3tts.text.normalize import (
    ALL_RULES,
    Rule,
    rules_from_names,
)
from wyoming_qwen3tts.text.rules import LANGUAGES
from wyoming_qwen3tts.voices.catalog import Catalog, CatalogVoice
from wyoming_qwen3tts.voices.library import VoiceLibrary

_LOGGER = logging.getLogger(__name__)

_WARM_UP_TEXT = "Hello, this is ready."
_CARE_S = 2.0
_TRIM_S = 60.0


class SpeechEngine:
    """Implements :class:`SpeechBackend` over the models of a server."""

    def __init__(
        self,
        config: Config,
        catalog: Catalog,
        pool: ModelPool,
        worker: SynthesisWorker,
        installer: ModelInstaller,
        speeds: SpeedRecord,
        figures: Metrics,
    ) -> None:
        """Serve the voices of a catalogue, also of models that are still on their way."""
        self._figures = figures
        self._config = config
        self._installer = installer
        self._catalog = catalog
        self._pool = pool
        self._worker = worker
        self._speeds = speeds
        self._admission = Admission(config.max_requests)
        self._languages = frozenset(_known_languages(config.languages))
        self._rules = _rules(config.disabled_text_rules)

    async def voices(self) -> Sequence[VoiceInfo]:
        """Return the voices that can be asked for now."""
        voices = await self._catalog.voices()
        return [voice.info for voice in voices]

    def status(self) -> EngineStatus:
        """Return how synthesis does now."""
        return EngineStatus(
            self._admission.num_open,
            self._worker.status,
            self._pool.status(),
            self._installer.progress,
        )

    def close(self) -> None:
        """Encode no more clips."""
        self._catalog.close()

    async def warm_up(self) -> None:
        """Speak a sentence to nobody, so that the first request finds everything open.

        It is spoken to its end, for that tells how fast this machine is. A model that cannot
        speak is logged with its reason now, not at the first request.
        """
        started_s = time.perf_counter()
        try:
            text = _one_piece(_WARM_UP_TEXT)
            # Not counted: nobody asked for it.
            async with aclosing(self._speak(SpeechRequest(), text, Metrics())) as chunks:
                async for _ in chunks:
                    pass
        except ModelNotReadyError:
            pass  # whoever brings it says how far it is, and has it warmed up
        except Exception as error:  # other models are still to come
            # The message is whole; a traceback would only hide it.
            _LOGGER.error("The model cannot speak: %s", error)  # noqa: TRY400
            _LOGGER.debug("Where it happened", exc_info=error)
        else:
            _LOGGER.info("Warm after %.1f s", time.perf_counter() - started_s)
            self._pool.record_speed(self._speeds)

    async def stream(
        self, request: SpeechRequest, text: AsyncIterator[str]
    ) -> AsyncGenerator[AudioChunk, None]:
        """Speak text that may still be arriving; see :class:`SpeechBackend`."""
        with ExitStack() as place:
            try:
                place.enter_context(self._admission.request())
            except BusyError:
                self._figures.count_refusal()
                raise
            async with aclosing(self._speak(request, text, self._figures)) as chunks:
                async for chunk in chunks:
                    yield chunk

    async def _speak(
        self, request: SpeechRequest, text: AsyncIterator[str], figures: Metrics
    ) -> AsyncGenerator[AudioChunk, None]:
        started_s = time.perf_counter()
        async with AsyncExitStack() as stack:
            try:
                chosen = await self._find(request)
                synthesizer = await stack.enter_async_context(self._pool.use(chosen.bundle))
                plan = await self._plan(chosen, request, synthesizer.model)
            except Exception:
                figures.count_refusal()
                raise
            pace = self._pool.pace(chosen.bundle)
            answer = Answer(self._config, self._worker, synthesizer, plan, pace)
            answer.report.started_s = started_s
            stack.enter_context(self._admission.answering(answer))
            reader = asyncio.create_task(answer.read(self._admission.text(answer, text)))
            try:
                async with aclosing(answer.audio()) as chunks:
                    async for chunk in chunks:
                        yield chunk
                await reader
                if (closing := answer.closing_silence()) is not None:
                    yield closing
            except BaseException as error:
                answer.report.note_error(error)
                raise
            finally:
                reader.cancel()
                answer.release()
                await asyncio.gather(reader, return_exceptions=True)
                answer.report.log()
                self._pool.usage(chosen.bundle).add(answer.report)
                figures.count_request(**answer.report.metrics())

    async def _find(self, request: SpeechRequest) -> CatalogVoice:
        """Return the voice that a request means, when its model is there."""
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
    ) -> AnswerPlan:
        options = self._sampled(default_options(model.facts.generation, self._config.seed))
        voice, options = await self._catalog.prepare(chosen, model, options, request.speaker)
        language = chosen.language or _requested_language(request)
        spoken = chosen.info.languages
        used = tuple(code for code in spoken if code in self._languages)
        return AnswerPlan(chosen, voice, options, language, used or spoken, self._rules)

    def _sampled(self, options: SynthesisOptions) -> SynthesisOptions:
        wishes = {
            name: value
            for name in ("temperature", "top_k", "top_p")
            if (value := getattr(self._config, name)) is not None
        }
        return replace(
            options,
            talker=replace(options.talker, **wishes),
            predictor=replace(options.predictor, **wishes),
        )


async def _one_piece(text: str) -> AsyncIterator[str]:
    yield text


def _known_languages(names: Sequence[str]) -> list[str]:
    codes = {name: language_code(name) for name in names}
    unknown = [name for name, code in codes.items() if code is None]
    if unknown:
        raise ConfigError(
            f"languages: unknown {', '.join(unknown)}; the models speak {', '.join(LANGUAGES)}."
        )
    return [code for code in codes.values() if code is not None]


def _rules(kept: Sequence[str]) -> frozenset[Rule]:
    if "all" in kept:
        return frozenset()
    return ALL_RULES - rules_from_names(kept)


def _requested_language(request: SpeechRequest) -> str | None:
    if not request.language or request.language.lower() == "auto":
        return None
    code = language_code(request.language)
    if code is None:
        _LOGGER.warning("Unknown language %r; the model finds it out", request.language[:40])
    return code


@asynccontextmanager
async def create_speech_source(
    config: Config, figures: Metrics | None = None
) -> AsyncIterator[SpeechEngine]:
    """Find the models, start the synthesis thread, and give the speech source of a server.

    Args:
        config: Every setting.
        figures: Where requests are counted.

    Raises:
        ConfigError: A model is not installed.
        BundleError: A model cannot be used.
    """
    data_dirs = config.data_paths
    models = await asyncio.to_thread(served_models, config.models, data_dirs, config.precision)
    for model in models:
        if isinstance(model, BuildRequest):
            _LOGGER.info("Installing %s into %s", model.reference, model.target)
        else:
            _LOGGER.info("Serving %s from %s", model.reference, model.directory)
            if model.notice is not None:
                _LOGGER.warning(model.notice)
    installer = ModelInstaller(
        models,
        wait_s=config.model_wait_timeout,
        local_files_only=config.local_files_only,
        keep_checkpoint=config.keep_checkpoint,
    )
    worker = SynthesisWorker()
    worker.start()
    limit_mb = config.max_loaded_weights_mb
    limit = None if limit_mb is None else limit_mb * 10**6
    pool = ModelPool(
        config.num_threads,
        max_lanes=config.parallel_utterances,
        memory_limit_bytes=limit,
        on_loss=worker.fail_all,
    )
    catalog = Catalog(installer.bundles, VoiceLibrary(data_dirs), config.styles)
    speeds = SpeedRecord(data_dirs[0])
    engine = SpeechEngine(config, catalog, pool, worker, installer, speeds, figures or Metrics())
    async with installer.running(), _reporting(pool):
        # Not awaited: describe is answered meanwhile, and a request waits for the same model.
        warm_up = asyncio.create_task(_keep_warm(engine, installer))
        care = asyncio.create_task(_take_care(pool, config.idle_unload_seconds))
        try:
            yield engine
        finally:
            warm_up.cancel()
            care.cancel()
            engine.close()
            await worker.stop()


@asynccontextmanager
async def _reporting(pool: ModelPool) -> AsyncIterator[None]:
    """Log what the models did at every SIGUSR1, where there is such a signal, and at the end."""
    loop = asyncio.get_running_loop()
    # Absent on Windows; only the main thread may handle signals.
    with suppress(AttributeError, NotImplementedError, RuntimeError, ValueError):
        loop.add_signal_handler(signal.SIGUSR1, pool.log_status)
    try:
        yield
    finally:
        with suppress(AttributeError, NotImplementedError, RuntimeError, ValueError):
            loop.remove_signal_handler(signal.SIGUSR1)
        pool.log_status()


async def _keep_warm(engine: SpeechEngine, installer: ModelInstaller) -> None:
    await engine.warm_up()
    async for bundle in installer.installed():
        _LOGGER.info("Serving %s from %s", bundle.reference, bundle.directory)
        await engine.warm_up()


async def _take_care(pool: ModelPool, unload_after_s: float | None) -> None:
    """Look after memory and the opened models: are their files the same, does anybody use them."""
    pause_s = _CARE_S if unload_after_s is None else min(_CARE_S, unload_after_s / 2)
    trimmed_s = time.monotonic()
    while True:
        await asyncio.sleep(pause_s)
        try:
            if time.monotonic() - trimmed_s >= _TRIM_S:
                trimmed_s = time.monotonic()
                await asyncio.to_thread(trim_free_memory)
            await pool.check_files()
            if unload_after_s is not None:
                pool.unload_idle(unload_after_s)
        except Exception as error:  # noqa: BLE001 - what fails once may work the next time
            _LOGGER.error("Looking after the models failed: %r", error)  # noqa: TRY400
