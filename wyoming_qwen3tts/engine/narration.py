"""One request: its voice and model, then text -> sentences -> utterances -> audio in order."""

import asyncio
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import AsyncExitStack, aclosing
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

from wyoming_qwen3tts.audio import AudioChunk, silence
from wyoming_qwen3tts.config import Config
from wyoming_qwen3tts.engine.model_pool import ModelPool
from wyoming_qwen3tts.engine.prebuffer import SpeedEstimate, expected_audio_s, prebuffer
from wyoming_qwen3tts.engine.request_report import RequestReport
from wyoming_qwen3tts.engine.worker import SynthesisWorker
from wyoming_qwen3tts.errors import BusyError, RequestError
from wyoming_qwen3tts.models.installer import ModelInstaller
from wyoming_qwen3tts.monitoring.health import EngineStatus
from wyoming_qwen3tts.monitoring.metrics import Metrics
from wyoming_qwen3tts.protocol.backend import SpeechRequest, VoiceInfo, half_of
from wyoming_qwen3tts.runtime.speech_model import SpeechModel
from wyoming_qwen3tts.synthesis.request import (
    DesignedVoice,
    SynthesisOptions,
    SynthesisRequest,
    Voice,
    default_options,
)
from wyoming_qwen3tts.synthesis.synthesizer import Synthesizer
from wyoming_qwen3tts.synthesis.timing import Playback
from wyoming_qwen3tts.synthesis.utterance import FinishReason, Utterance
from wyoming_qwen3tts.text.language import (
    detect_language,
    has_words,
    language_code,
    model_language,
    unsupported_scripts,
)
from wyoming_qwen3tts.text.markup import drop_code_blocks
from wyoming_qwen3tts.text.normalize import Rule, chosen_rules, normalize
from wyoming_qwen3tts.text.sentences import SentenceStream
from wyoming_qwen3tts.voices.catalog import Catalog, CatalogVoice

_LOGGER = logging.getLogger(__name__)

_NOTHING_TO_SAY_S: Final = 0.1
# A finished sentence waits so long for text that may belong to it.
FLUSH_AFTER_S: Final = 0.4
# An utterance that waits for text occupies a lane, which other requests may need.
OPEN_UTTERANCE_TIMEOUT_S: Final = 5.0
_SEPARATOR: Final = " "
# Shorter utterances measure their prompt rather than the machine.
_MIN_SPEED_FRAMES: Final = 12
# Sentences submitted ahead of the one that is heard; more would only fill the queue.
_LOOKAHEAD: Final = 4
# Long texts are cut into sentences in slices, so that other clients are served in between: 100 kB
# of the worst text take seconds.
_SLICE_CHARS: Final = 1_000
_DETECTION_CHARS: Final = 2_000


@dataclass(frozen=True)
class SpeechPlan:
    """How a request is spoken."""

    voice_name: str
    voice: Voice
    options: SynthesisOptions  # all but the language and the seed of each sentence
    language: str | None  # plain code of the request or the voice; None leaves it to the text
    candidates: tuple[str, ...]  # plain codes that the text may then be in
    usual_language: str | None  # plain code while unsure; None lets the model decide
    rules: frozenset[Rule] | None  # text rules to apply; None: the text as it is, in one piece


@dataclass(eq=False)
class SpeechEngine:
    """Implements :class:`SpeechBackend` over the models of a server."""

    config: Config
    catalog: Catalog
    pool: ModelPool
    worker: SynthesisWorker
    installer: ModelInstaller
    metrics: Metrics
    is_server: bool = False  # clients may send names of another server's voices

    def __post_init__(self) -> None:
        """Check the setting that names rules."""
        self._narrations: set[Narration] = set()
        self._rules = chosen_rules(self.config.text_rules, self.config.disabled_text_rules)

    async def voices(self) -> Sequence[VoiceInfo]:
        """Return the voices that can be asked for now."""
        return await self.catalog.infos()

    def status(self) -> EngineStatus:
        """Return the state of synthesis."""
        models, installations = self.pool.status(), self.installer.progress
        return EngineStatus(len(self._narrations), self.worker.status, models, installations)

    async def stream(
        self, request: SpeechRequest, text: AsyncIterator[str], *, is_counted: bool = True
    ) -> AsyncGenerator[AudioChunk, None]:
        """Speak text that may still be arriving; see :class:`SpeechBackend`.

        ``is_counted``: the request is a client's, so it takes a place, and metrics count it.
        """
        narration = Narration(self.config, self.worker)
        try:
            async with AsyncExitStack() as stack:
                if is_counted:
                    narration.address = request.address
                    self._check_capacity(narration)
                    self._narrations.add(narration)
                chosen = await self._find(request)
                pieces = await stack.enter_async_context(aclosing(self._admitted(narration, text)))
                # A client may open a stream long before its text. Only text needs the model.
                narration.first_text = await anext(pieces, "")
                lent = self.pool.use(chosen.bundle)
                synthesizer, model = await stack.enter_async_context(lent)
                plan = await self._plan(chosen, request, synthesizer.model)
                spoken = narration.stream(pieces, synthesizer, plan, model.speed)
                async for chunk in await stack.enter_async_context(aclosing(spoken)):
                    yield chunk
                request.conversation.language = narration.report.language
        except BaseException as error:
            narration.report.record_failure(error)
            raise
        finally:
            self._narrations.discard(narration)
            narration.report.log()
            if is_counted:
                self.metrics.count_request(narration.report)

    async def _find(self, request: SpeechRequest) -> CatalogVoice:
        """Return the voice that a request means, once its model is installed."""
        find = partial(self.catalog.find, request, self.config.voice)
        try:
            chosen = await find()
        except RequestError:
            await self.installer.ensure_ready(None)
        else:
            if not await self.installer.ensure_ready(chosen.bundle):
                return chosen
        return await find(is_lenient=self.is_server)

    async def _plan(
        self, chosen: CatalogVoice, request: SpeechRequest, model: SpeechModel
    ) -> SpeechPlan:
        config = self.config
        options = default_options(model.facts.generation, config.seed).with_sampling(
            config.temperature, config.top_k, config.top_p
        )
        voice, options = await self.catalog.prepare(chosen, model, options, request.speaker)
        language = chosen.language
        if language is None and request.language and request.language.lower() != "auto":
            language = language_code(request.language)
            if language is None:
                _LOGGER.warning("Unknown language %r; detecting it", request.language[:40])
        last, candidates = request.conversation.language, chosen.info.languages
        usual = last if last in candidates else chosen.usual_language
        name = chosen.info.name
        rules = None if request.is_exact else self._rules
        return SpeechPlan(name, voice, options, language, candidates, usual, rules)

    def _check_capacity(self, narration: "Narration") -> None:
        """Raise BusyError if one more request is too many; one that waits for text is none."""
        limit = self.config.max_requests
        busy = [each for each in self._narrations if not each.is_idle]
        if len(busy) < limit and narration.address is not None:
            busy = [each for each in busy if each.address == narration.address]
            limit = half_of(limit)
        if len(busy) >= limit:
            raise BusyError(f"{len(busy)} requests are open already; try again later.")

    async def _admitted(
        self, narration: "Narration", text: AsyncIterator[str]
    ) -> AsyncGenerator[str, None]:
        """Yield the text of a request; others may have taken its place while it was idle."""
        async for piece in text:
            if narration.is_idle and narration in self._narrations:
                self._check_capacity(narration)
            narration.waits_for_text = False
            narration.report.record_text()
            yield piece


class Narration:
    """Turns the text of one request into utterances, and yields their audio in order."""

    _synthesizer: Synthesizer
    _plan: SpeechPlan

    def __init__(self, config: Config, worker: SynthesisWorker) -> None:
        self._config = config
        self._worker = worker
        self.report = RequestReport()
        self.address: str | None = None  # of the client
        self.first_text = ""  # what came before the stream
        self.waits_for_text = True  # all that has arrived was read
        self._pending: list[Utterance] = []
        self._queue: asyncio.Queue[Utterance | None] = asyncio.Queue()
        self._playback = Playback()
        # The reader waits for a place, so that a long text does not fill the worker's queue.
        self._places = asyncio.Semaphore(_LOOKAHEAD)
        self._is_continuous = False
        self._open_utterance: Utterance | None = None
        self._is_language_fixed = False
        self._heard = ""
        self._expected_audio_s = 0.0
        self._skipped_scripts: set[str] = set()

    @property
    def is_idle(self) -> bool:
        """Whether everything that has arrived was spoken."""
        return self.waits_for_text and not self._pending

    async def stream(
        self,
        text: AsyncIterator[str],
        synthesizer: Synthesizer,
        plan: SpeechPlan,
        speed: SpeedEstimate,
    ) -> AsyncGenerator[AudioChunk, None]:
        """Speak text in pieces; closing the generator early cancels the synthesis."""
        config, report = self._config, self.report
        self._synthesizer, self._plan = synthesizer, plan
        report.voice, report.voice_kind = plan.voice_name, plan.voice.kind
        report.language = plan.language or plan.usual_language
        self._is_language_fixed = plan.language is not None
        # An ICL prompt holds the reference beside the text, so the text must be known.
        self._is_continuous = config.text_mode == "continuous" and report.voice_kind != "icl"

        def delay_s() -> float:
            return speed.delay_s(self._expected_audio_s, config.max_prebuffer)

        reader = asyncio.create_task(self._read(text))
        try:
            async with (
                aclosing(self._audio(speed)) as made,
                aclosing(prebuffer(made, delay_s)) as chunks,
            ):
                async for chunk in chunks:
                    report.record_output()
                    yield chunk
            await reader
            if not report.num_utterances:
                yield self._silence(_NOTHING_TO_SAY_S)
            elif config.trailing_silence:
                yield self._silence(config.trailing_silence)
        finally:
            reader.cancel()
            report.is_cancelled |= bool(self._pending)
            for utterance in self._pending:
                self._worker.release(utterance)
                report.record_end(utterance)
            self._pending.clear()
            await asyncio.gather(reader, return_exceptions=True)

    async def _read(self, text: AsyncIterator[str]) -> None:
        """Submit sentence after sentence until the text ends."""
        try:
            cut = self._whole if self._plan.rules is None else self._sentences
            # Closed at once: its task reads the text, which is closed next.
            async with aclosing(cut(text)) as sentences:
                async for sentence in sentences:
                    await self._say(sentence)
        finally:
            self._close_utterance()
            self._queue.put_nowait(None)

    async def _say(self, sentence: str) -> None:
        """Submit one sentence, or add it to the open utterance."""
        rules = self._plan.rules
        # Code may be as long as the text, and it is not in the text's language.
        said = self._without_code(sentence)
        if skipped := unsupported_scripts(said) - self._skipped_scripts:
            self._skipped_scripts |= skipped
            _LOGGER.warning("Skipping unsupported script: %s", ", ".join(sorted(skipped)))
        self._detect_language()
        language = self.report.language
        spoken = sentence if rules is None else normalize(said, language, rules)
        _LOGGER.debug("Says %r as %r", sentence, spoken)
        if not has_words(spoken):
            return
        growing = self._open_utterance
        if not growing or not await self._worker.extend(growing, spoken + _SEPARATOR):
            self._close_utterance()  # its speech may have ended
            await self._places.acquire()
            utterance = self._worker.submit(self._synthesizer, self._request(spoken))
            self._open_utterance = utterance if self._is_continuous else None
            self.report.num_utterances += 1
            self._pending.append(utterance)
            self._queue.put_nowait(utterance)
        self.report.num_characters += len(spoken)

    async def _whole(self, text: AsyncIterator[str]) -> AsyncGenerator[str, None]:
        whole = self.first_text + "".join([piece async for piece in text])
        self._heard = whole[:_DETECTION_CHARS]
        yield whole

    async def _sentences(self, text: AsyncIterator[str]) -> AsyncGenerator[str, None]:
        """Cut arriving text into sentences; a finished one waits at most for the flush timer."""
        pieces = aiter(text)
        piece, arriving = await _arrived(self.first_text, pieces)
        self._heard = piece[:_DETECTION_CHARS]
        if arriving.done():
            # All text is here: judge it as a whole.
            self._detect_language()
            self._is_language_fixed = True
        whole_blocks = Rule.CODE_BLOCKS in (self._plan.rules or ())
        sentences = SentenceStream(self.report.language, whole_blocks=whole_blocks)
        try:
            while True:
                self._expected_audio_s += expected_audio_s(piece)
                for start in range(0, len(piece), _SLICE_CHARS):
                    for sentence in sentences.push(piece[start : start + _SLICE_CHARS]):
                        yield sentence
                    await asyncio.sleep(0)
                await asyncio.wait([arriving], timeout=FLUSH_AFTER_S)
                if not arriving.done():
                    for sentence in sentences.flush():
                        yield sentence
                    self.waits_for_text = True
                    await asyncio.wait([arriving], timeout=OPEN_UTTERANCE_TIMEOUT_S)
                    if not arriving.done():
                        self._close_utterance()
                    await asyncio.wait([arriving])
                    self.waits_for_text = False
                if (arrived := arriving.result()) is None:
                    break
                piece = arrived
                self._heard = f"{self._heard}{piece}"[-_DETECTION_CHARS:]
                arriving = asyncio.ensure_future(anext(pieces, None))
            for sentence in sentences.finish():
                yield sentence
        finally:
            arriving.cancel()
            await asyncio.gather(arriving, return_exceptions=True)

    def _without_code(self, text: str) -> str:
        return drop_code_blocks(text) if Rule.CODE_BLOCKS in (self._plan.rules or ()) else text

    def _detect_language(self) -> None:
        """Detect the language of all text so far; keep the last one while that is unsure."""
        if not self._is_language_fixed:
            heard = self._without_code(self._heard)
            detected = detect_language(heard, self._plan.candidates)
            self.report.language = detected or self.report.language

    def _request(self, sentence: str) -> SynthesisRequest:
        plan, position, language = self._plan, self.report.num_utterances, self.report.language
        # A described voice depends on chance, so it keeps one seed.
        step = 0 if isinstance(plan.voice, DesignedVoice) else position
        options = replace(
            plan.options,
            language=None if language is None else model_language(language),
            seed=plan.options.seed + step,
        )
        return SynthesisRequest(
            sentence + _SEPARATOR if self._is_continuous else sentence,
            plan.voice,
            options,
            position,
            self._playback,
            guarded=True,
            is_open=self._is_continuous,
        )

    def _close_utterance(self) -> None:
        """End the text of the open utterance; more text begins a new one."""
        if self._open_utterance is not None:
            self._worker.close_text(self._open_utterance)
            self._open_utterance = None

    async def _audio(self, speed: SpeedEstimate) -> AsyncGenerator[AudioChunk, None]:
        """Yield the audio of one utterance after the other, with silence before each."""
        silence_s = self._config.leading_silence
        while (utterance := await self._queue.get()) is not None:
            async with aclosing(self._worker.audio(utterance)) as chunks:
                async for chunk in chunks:
                    if silence_s:  # not earlier: a request that fails has no audio
                        yield self._silence(silence_s)
                    silence_s = 0.0
                    self.report.audio_s += chunk.duration_s
                    yield chunk
            silence_s = silence_s or self._config.sentence_silence
            self._pending.remove(utterance)
            self._places.release()
            self.report.record_end(utterance)
            timing, rtf = utterance.timing, utterance.timing.rtf
            # Not one that was cut or spoken twice. An open one has waited for its text, and a later
            # one may have waited for playback.
            is_typical = (
                utterance.finish_reason is FinishReason.STOP
                and not utterance.request.is_open
                and utterance.request.position == 0
            )
            if is_typical and rtf is not None and timing.num_frames >= _MIN_SPEED_FRAMES:
                synthesizer = self._synthesizer
                speed.record(rtf, synthesizer.single_lane_rtf, synthesizer.model.name)

    def _silence(self, duration_s: float) -> AudioChunk:
        return silence(duration_s, self._synthesizer.model.facts.sample_rate_hz)


async def _arrived(
    text: str, pieces: AsyncIterator[str]
) -> tuple[str, "asyncio.Future[str | None]"]:
    """Return the text that is here, and the next piece; that is done if the text has ended."""
    while True:
        arriving: asyncio.Future[str | None] = asyncio.ensure_future(anext(pieces, None))
        try:
            await asyncio.wait([arriving], timeout=0)
        except asyncio.CancelledError:
            arriving.cancel()
            raise
        if not arriving.done() or (piece := arriving.result()) is None:
            return text, arriving
        text += piece
