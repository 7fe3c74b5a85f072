"""The speech source of the server: requests -> voices, sentences, utterances -> audio in order."""

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing, asynccontextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path

from wyoming_qwen3tts.audio import AudioChunk, silence
from wyoming_qwen3tts.errors import BusyError, Qwen3TTSError
from wyoming_qwen3tts.model.bundle import SessionOptions
from wyoming_qwen3tts.model.speech_model import SpeechModel
from wyoming_qwen3tts.protocol.speech_source import SpeechRequest, SpeechSource, VoiceInfo
from wyoming_qwen3tts.server.bundles import (
    EMBEDDED_NOTICE,
    InstalledBundle,
    find_bundle,
    installed_bundles,
)
from wyoming_qwen3tts.server.catalogue import Catalogue, CatalogueVoice
from wyoming_qwen3tts.server.config import ServerConfig
from wyoming_qwen3tts.server.model_pool import ModelPool
from wyoming_qwen3tts.server.paths import default_data_dirs, default_num_threads
from wyoming_qwen3tts.server.request_report import RequestReport
from wyoming_qwen3tts.server.voice_library import VoiceLibrary
from wyoming_qwen3tts.server.worker import SynthesisWorker, Utterance
from wyoming_qwen3tts.synthesis.guard import frame_budget
from wyoming_qwen3tts.synthesis.options import SynthesisOptions, SynthesisRequest, default_options
from wyoming_qwen3tts.synthesis.synthesizer import Synthesizer
from wyoming_qwen3tts.synthesis.voice import Voice
from wyoming_qwen3tts.text.language import detect_language, language_code, model_language
from wyoming_qwen3tts.text.scripts import speakable
from wyoming_qwen3tts.text.sentence_stream import SentenceStream

_LOGGER = logging.getLogger(__name__)

_WARM_UP_TEXT = "Hello, this is ready."
_NOTHING_TO_SAY_S = 0.1
# A finished sentence is not held back longer than this while nobody knows whether more will come.
_FLUSH_AFTER_S = 0.4
# Sentences submitted ahead of the one that is heard; more would only grow the queue.
_LOOKAHEAD = 4


@dataclass(frozen=True)
class _Plan:
    """What a request came down to."""

    chosen: CatalogueVoice
    voice: Voice
    options: SynthesisOptions
    """But for the language, which may follow from the text."""
    language: str | None
    """Plain code that request or voice name; None leaves it to the text."""


class SpeechEngine:
    """Implements :class:`SpeechSource` over the models of a server."""

    def __init__(
        self,
        config: ServerConfig,
        catalogue: Catalogue,
        pool: ModelPool,
        worker: SynthesisWorker,
    ) -> None:
        """Serve the voices of a catalogue."""
        self._config = config
        self._catalogue = catalogue
        self._pool = pool
        self._worker = worker
        self._num_open = 0

    async def voices(self) -> Sequence[VoiceInfo]:
        """Return the voices that can be asked for now."""
        voices = await asyncio.to_thread(self._catalogue.voices)
        return [voice.info for voice in voices]

    async def warm_up(self) -> None:
        """Speak a word to nobody, so that the first request finds everything open.

        A model that cannot speak is logged with its reason now, not at the first request.
        """
        started_s = time.perf_counter()
        try:
            async with aclosing(self._speak(SpeechRequest(), _one_piece(_WARM_UP_TEXT))) as chunks:
                async for _ in chunks:
                    break
        except Qwen3TTSError as error:
            # The message is whole; a traceback would only hide it.
            _LOGGER.error("The model cannot speak: %s", error)  # noqa: TRY400
        else:
            _LOGGER.info("Warm after %.1f s", time.perf_counter() - started_s)

    async def stream(
        self, request: SpeechRequest, text: AsyncIterator[str]
    ) -> AsyncGenerator[AudioChunk, None]:
        """Speak text that may still be arriving; see :class:`SpeechSource`."""
        if self._num_open >= self._config.max_waiting:
            raise BusyError(f"{self._num_open} requests are open already; try again later.")
        self._num_open += 1
        try:
            async with aclosing(self._speak(request, text)) as chunks:
                async for chunk in chunks:
                    yield chunk
        finally:
            self._num_open -= 1

    async def _speak(
        self, request: SpeechRequest, text: AsyncIterator[str]
    ) -> AsyncGenerator[AudioChunk, None]:
        chosen = await asyncio.to_thread(self._catalogue.find, request, self._config.voice)
        async with self._pool.use(chosen.bundle) as synthesizer:
            # In a thread: a new clip of the library is encoded here, which takes seconds.
            plan = await asyncio.to_thread(self._plan, chosen, request, synthesizer.model)
            speaker = _Speaker(self._worker, synthesizer, plan)
            reader = asyncio.create_task(speaker.read(text))
            try:
                async with aclosing(speaker.audio()) as chunks:
                    async for chunk in chunks:
                        yield chunk
                await reader
                if not speaker.report.num_utterances:
                    yield silence(_NOTHING_TO_SAY_S, synthesizer.model.facts.sample_rate_hz)
            finally:
                reader.cancel()
                speaker.release()
                with suppress(asyncio.CancelledError, Qwen3TTSError):
                    await reader
                speaker.report.log()

    def _plan(self, chosen: CatalogueVoice, request: SpeechRequest, model: SpeechModel) -> _Plan:
        options = self._sampled(default_options(model.facts.generation, self._config.seed))
        voice, options = self._catalogue.prepare(chosen, model, options, request.speaker)
        language = chosen.language or _requested_language(request)
        return _Plan(chosen, voice, options, language)

    def _sampled(self, options: SynthesisOptions) -> SynthesisOptions:
        sampling = self._config.sampling
        wishes = {
            name: value
            for name in ("temperature", "top_k", "top_p")
            if (value := getattr(sampling, name)) is not None
        }
        return replace(
            options,
            talker=replace(options.talker, **wishes),
            predictor=replace(options.predictor, **wishes),
        )


class _Speaker:
    """One request: turns arriving text into utterances, and gives their audio in order."""

    def __init__(self, worker: SynthesisWorker, synthesizer: Synthesizer, plan: _Plan) -> None:
        self._worker = worker
        self._synthesizer = synthesizer
        self._plan = plan
        self._language = plan.language
        self.report = RequestReport(plan.chosen.info.name, plan.language)
        self._open: list[Utterance] = []
        self._queue: asyncio.Queue[Utterance | None] = asyncio.Queue()
        # The reader waits for a place, so that a long text does not fill the worker.
        self._places = asyncio.Semaphore(_LOOKAHEAD)

    async def read(self, text: AsyncIterator[str]) -> None:
        """Submit sentence after sentence until the text ends."""
        try:
            async for sentence in _sentences(text, self._plan.language):
                if speakable(sentence):
                    await self._submit(sentence)
        finally:
            self._queue.put_nowait(None)

    async def audio(self) -> AsyncGenerator[AudioChunk, None]:
        """Yield the audio of one utterance after the other."""
        while (utterance := await self._queue.get()) is not None:
            async with aclosing(self._worker.audio(utterance)) as chunks:
                async for chunk in chunks:
                    self.report.add_audio(chunk)
                    yield chunk
            self.report.add_end(utterance)
            self._open.remove(utterance)
            self._places.release()

    def release(self) -> None:
        """Cancel whatever is still being made."""
        for utterance in self._open:
            self._worker.release(utterance)
            self.report.is_cancelled = True
        self._open.clear()

    async def _submit(self, sentence: str) -> None:
        await self._places.acquire()
        options = self._plan.options
        frame_rate_hz = self._synthesizer.model.facts.frame_rate_hz
        options = replace(
            options,
            language=self._language_of(sentence),
            max_frames=min(options.max_frames, frame_budget(sentence, frame_rate_hz)),
            # Each sentence draws from a seed of its own, which follows from the request's.
            seed=options.seed + self.report.num_utterances,
        )
        request = SynthesisRequest(sentence, self._plan.voice, options, guarded=True)
        utterance = self._worker.submit(self._synthesizer, request)
        self.report.num_utterances += 1
        self.report.num_characters += len(sentence)
        self._open.append(utterance)
        self._queue.put_nowait(utterance)

    def _language_of(self, sentence: str) -> str | None:
        """Return the language as the model spells it; once found it stays for the whole answer."""
        if self._language is None:
            self._language = detect_language(sentence, self._plan.chosen.info.languages)
            self.report.language = self._language
        return None if self._language is None else model_language(self._language)


async def _one_piece(text: str) -> AsyncIterator[str]:
    yield text


async def _sentences(text: AsyncIterator[str], language: str | None) -> AsyncIterator[str]:
    """Cut arriving text into sentences; a finished one waits at most for the flush timer."""
    stream = SentenceStream(language)
    pieces = aiter(text)
    arriving = asyncio.ensure_future(anext(pieces, None))
    try:
        while True:
            await asyncio.wait([arriving], timeout=_FLUSH_AFTER_S)
            if not arriving.done():
                for sentence in stream.flush():
                    yield sentence
                await asyncio.wait([arriving])
            piece = arriving.result()
            if piece is None:
                break
            for sentence in stream.push(piece):
                yield sentence
            arriving = asyncio.ensure_future(anext(pieces, None))
        for sentence in stream.finish():
            yield sentence
    finally:
        arriving.cancel()


def _requested_language(request: SpeechRequest) -> str | None:
    if not request.language or request.language.lower() == "auto":
        return None
    code = language_code(request.language)
    if code is None:
        _LOGGER.warning("Unknown language %r; the model finds it out", request.language[:40])
    return code


@asynccontextmanager
async def create_speech_source(config: ServerConfig) -> AsyncIterator[SpeechSource]:
    """Find the models, start the synthesis thread, and give the speech source of a server.

    Raises:
        ConfigError: A model is not installed.
        BundleError: A model cannot be used.
    """
    data_dirs = [Path(directory) for directory in config.data_dir] or default_data_dirs()
    bundles = await asyncio.to_thread(_served_bundles, config.model, data_dirs)
    for bundle in bundles:
        _LOGGER.info("Serving %s from %s", bundle.reference, bundle.directory)
        if bundle.is_embedded:
            _LOGGER.warning(EMBEDDED_NOTICE)
    options = SessionOptions(num_threads=config.threads or default_num_threads())
    worker = SynthesisWorker()
    worker.start()
    catalogue = Catalogue(bundles, VoiceLibrary(data_dirs), {})
    engine = SpeechEngine(config, catalogue, ModelPool(options, max_lanes=1), worker)
    # Not awaited: describe is answered meanwhile, and a request waits for the same model.
    warm_up = asyncio.create_task(engine.warm_up())
    try:
        yield engine
    finally:
        warm_up.cancel()
        await worker.stop()


def _served_bundles(models: Sequence[str], data_dirs: list[Path]) -> list[InstalledBundle]:
    if models:
        return [find_bundle(model, data_dirs) for model in models]
    found = [bundle for bundle in installed_bundles(data_dirs) if not bundle.is_embedded]
    return found or [find_bundle(None, data_dirs)]
