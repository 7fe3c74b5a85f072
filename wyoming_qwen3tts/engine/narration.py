"""One request: arriving text -> sentences -> utterances -> audio in order."""

import asyncio
import logging
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from dataclasses import dataclass, replace
from typing import Final

from wyoming_qwen3tts.audio import AudioChunk, silence
from wyoming_qwen3tts.config import Config
from wyoming_qwen3tts.engine.prebuffer import SpeedEstimate, expected_audio_s, prebuffer
from wyoming_qwen3tts.engine.request_report import RequestReport
from wyoming_qwen3tts.engine.worker import SynthesisWorker
from wyoming_qwen3tts.synthesis.request import (
    DesignedVoice,
    IclVoice,
    PresetSpeaker,
    SynthesisOptions,
    SynthesisRequest,
    Voice,
    XVectorVoice,
)
from wyoming_qwen3tts.synthesis.synthesizer import Synthesizer
from wyoming_qwen3tts.synthesis.timing import Playback
from wyoming_qwen3tts.synthesis.utterance import Utterance
from wyoming_qwen3tts.text.language import (
    detect_language,
    has_words,
    model_language,
    unsupported_scripts,
)
from wyoming_qwen3tts.text.markup import drop_code_blocks
from wyoming_qwen3tts.text.normalize import Rule, normalize
from wyoming_qwen3tts.text.sentences import SentenceStream

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
_VOICE_KINDS: Final[dict[type, str]] = {
    PresetSpeaker: "preset",
    XVectorVoice: "x-vector",
    IclVoice: "icl",
    DesignedVoice: "designed",
}


@dataclass(frozen=True)
class SpeechPlan:
    """How a request is spoken."""

    voice_name: str
    voice: Voice
    options: SynthesisOptions
    """All but the language and the seed of each sentence."""
    language: str | None
    """Plain code that the request or the voice names; None leaves it to the text."""
    candidates: tuple[str, ...]
    """Plain codes that the text may be in, if ``language`` is None."""
    usual_language: str | None
    """Plain code for text whose language cannot be detected; None lets the model decide."""
    rules: frozenset[Rule]
    """Text rules to apply."""


class Narration:
    """Turns the text of one request into utterances, and yields their audio in order."""

    _synthesizer: Synthesizer
    _plan: SpeechPlan
    _speed: SpeedEstimate

    def __init__(self, config: Config, worker: SynthesisWorker) -> None:
        """Prepare; the text has not arrived yet."""
        self._config = config
        self._worker = worker
        self.report = RequestReport()
        self.waits_for_text = True
        """No text is left to read, as far as it has arrived."""
        self._pending: list[Utterance] = []
        self._queue: asyncio.Queue[Utterance | None] = asyncio.Queue()
        self._playback = Playback()
        # The reader waits for a place, so that a long text does not fill the worker's queue.
        self._places = asyncio.Semaphore(_LOOKAHEAD)
        self._is_continuous = False
        self._open_utterance: Utterance | None = None
        self._language: str | None = None
        self._is_language_fixed = False
        self._heard = ""
        self._expected_audio_s = 0.0
        self._skipped_scripts: set[str] = set()

    @property
    def is_started(self) -> bool:
        """Whether voice and model were found."""
        return hasattr(self, "_plan")

    def record_text(self) -> None:
        """Record that text has arrived."""
        self.waits_for_text = False
        self.report.record_text()

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
        """Speak; closing the generator early cancels the synthesis.

        Args:
            text: Pieces, cut anywhere.
            synthesizer: Speaks with the model.
            plan: Voice, options and language.
            speed: The model's speed so far; this request adds to it.
        """
        self._synthesizer, self._plan, self._speed = synthesizer, plan, speed
        self.report.voice = plan.voice_name
        self.report.voice_kind = _VOICE_KINDS[type(plan.voice)]
        self._set_language(plan.language or plan.usual_language)
        self._is_language_fixed = plan.language is not None
        # An ICL prompt holds the reference beside the text, so the text must be known.
        self._is_continuous = self._config.text_mode == "continuous" and not isinstance(
            plan.voice, IclVoice
        )
        reader = asyncio.create_task(self._read(text))
        try:
            async with (
                aclosing(self._audio()) as made,
                aclosing(prebuffer(made, self._delay_s)) as chunks,
            ):
                async for chunk in chunks:
                    self.report.record_output()
                    yield chunk
            await reader
            if not self.report.num_utterances:
                yield self._silence(_NOTHING_TO_SAY_S)
            elif self._config.trailing_silence:
                yield self._silence(self._config.trailing_silence)
        except BaseException as error:
            self.report.record_failure(error)
            raise
        finally:
            reader.cancel()
            self._cancel_pending()
            await asyncio.gather(reader, return_exceptions=True)

    # Text

    async def _read(self, text: AsyncIterator[str]) -> None:
        """Submit sentence after sentence until the text ends."""
        try:
            async for sentence in self._sentences(text):
                # Code may be as long as the text, and it is not in the text's language.
                said = self._without_code(sentence)
                self._warn_unsupported_scripts(said)
                self._detect_language(said)
                spoken = normalize(said, self._language, self._plan.rules)
                _LOGGER.debug("Says %r as %r", sentence, spoken)
                if has_words(spoken):
                    await self._speak(spoken)
        finally:
            self._close_utterance()
            self._queue.put_nowait(None)

    async def _sentences(self, text: AsyncIterator[str]) -> AsyncIterator[str]:
        """Cut arriving text into sentences; a finished one waits at most for the flush timer."""
        pieces = aiter(text)
        piece, arriving = await _arrived(pieces)
        if arriving.done() and not self._is_language_fixed:
            # All text is here: judge it as a whole.
            self._detect_language(self._without_code(piece[:_DETECTION_CHARS]))
            self._is_language_fixed = True
        sentences = SentenceStream(
            self._language, whole_blocks=Rule.CODE_BLOCKS in self._plan.rules
        )
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
                    await self._wait_for_text(arriving)
                if (arrived := arriving.result()) is None:
                    break
                piece = arrived
                arriving = asyncio.ensure_future(anext(pieces, None))
            for sentence in sentences.finish():
                yield sentence
        finally:
            arriving.cancel()

    async def _wait_for_text(self, arriving: "asyncio.Future[str | None]") -> None:
        self.waits_for_text = True
        await asyncio.wait([arriving], timeout=OPEN_UTTERANCE_TIMEOUT_S)
        if not arriving.done():
            self._close_utterance()
        await asyncio.wait([arriving])
        self.waits_for_text = False

    def _without_code(self, text: str) -> str:
        return drop_code_blocks(text) if Rule.CODE_BLOCKS in self._plan.rules else text

    def _detect_language(self, said: str) -> None:
        """Detect the language of all text so far; keep the last one while that is unsure."""
        if self._is_language_fixed:
            return
        self._heard = f"{self._heard} {said}"[-_DETECTION_CHARS:]
        detected = detect_language(self._heard, self._plan.candidates)
        self._set_language(detected or self._language)

    def _set_language(self, language: str | None) -> None:
        self._language = self.report.language = language

    def _warn_unsupported_scripts(self, sentence: str) -> None:
        if skipped := unsupported_scripts(sentence) - self._skipped_scripts:
            self._skipped_scripts |= skipped
            _LOGGER.warning("Skipping unsupported script: %s", ", ".join(sorted(skipped)))

    # Utterances

    async def _speak(self, sentence: str) -> None:
        """Speak a sentence as its own utterance, or as more text of the open one."""
        if self._open_utterance is not None:
            if await self._worker.extend(self._open_utterance, sentence + _SEPARATOR):
                self.report.num_characters += len(sentence)
                return
            # The model ended its speech before this sentence.
            self._close_utterance()
        await self._places.acquire()
        options = replace(
            self._plan.options,
            language=None if self._language is None else model_language(self._language),
            seed=self._next_seed(),
        )
        request = SynthesisRequest(
            sentence + _SEPARATOR if self._is_continuous else sentence,
            self._plan.voice,
            options,
            position=self.report.num_utterances,
            playback=self._playback,
            guarded=True,
            is_open=self._is_continuous,
        )
        utterance = self._worker.submit(self._synthesizer, request)
        if self._is_continuous:
            self._open_utterance = utterance
        self.report.num_utterances += 1
        self.report.num_characters += len(sentence)
        self._pending.append(utterance)
        self._queue.put_nowait(utterance)

    def _next_seed(self) -> int:
        """Return the seed of the next sentence, derived from the request's.

        A described voice depends on chance, so it keeps one seed.
        """
        if isinstance(self._plan.voice, DesignedVoice):
            return self._plan.options.seed
        return self._plan.options.seed + self.report.num_utterances

    def _close_utterance(self) -> None:
        """End the text of the open utterance; more text begins a new one."""
        if self._open_utterance is not None:
            self._worker.close_text(self._open_utterance)
            self._open_utterance = None

    def _cancel_pending(self) -> None:
        for utterance in self._pending:
            self._worker.release(utterance)
            self.report.record_end(utterance)
            self.report.is_cancelled = True
        self._pending.clear()

    # Audio

    async def _audio(self) -> AsyncGenerator[AudioChunk, None]:
        """Yield the audio of one utterance after the other, with silence before each."""
        silence_s = self._config.leading_silence
        while (utterance := await self._queue.get()) is not None:
            if silence_s:
                yield self._silence(silence_s)
            silence_s = self._config.sentence_silence
            async with aclosing(self._worker.audio(utterance)) as chunks:
                async for chunk in chunks:
                    self.report.audio_s += chunk.duration_s
                    yield chunk
            self._pending.remove(utterance)
            self._places.release()
            self.report.record_end(utterance)
            self._record_speed(utterance)

    def _delay_s(self) -> float:
        return self._speed.delay_s(self._expected_audio_s, self._config.max_prebuffer)

    def _record_speed(self, utterance: Utterance) -> None:
        is_short = utterance.timing.num_frames < _MIN_SPEED_FRAMES
        # An open utterance has waited for its text; a later one may have waited for playback.
        if is_short or utterance.request.is_open or utterance.request.position:
            return
        rtf = utterance.timing.rtf
        if rtf is not None:
            name = self._synthesizer.model.name
            self._speed.record(rtf, self._synthesizer.single_lane_rtf, name)

    def _silence(self, duration_s: float) -> AudioChunk:
        return silence(duration_s, self._synthesizer.model.facts.sample_rate_hz)


async def _arrived(
    pieces: AsyncIterator[str],
) -> tuple[str, "asyncio.Future[str | None]"]:
    """Return the text that is here already, and the next piece to wait for.

    The future is done when the text has ended.
    """
    text = ""
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
