"""One answer: arriving text -> sentences -> utterances -> audio in order."""

import asyncio
import logging
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from dataclasses import dataclass, replace

from wyoming_qwen3tts.audio import AudioChunk, silence
from wyoming_qwen3tts.config import Config
from wyoming_qwen3tts.engine.pacing import Pace, expected_audio_s, hold_back
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
from wyoming_qwen3tts.voices.catalog import CatalogVoice

_LOGGER = logging.getLogger(__name__)

_NOTHING_TO_SAY_S = 0.1
# A finished sentence is not held back longer than this while nobody knows whether more will come.
_FLUSH_AFTER_S = 0.4
_JOINT = " "
# An utterance that waits for text keeps its lane, which others may need, no longer than this.
_LET_GO_S = 5.0
# Shorter speech says more of its prompt than of the machine.
_MIN_PACE_FRAMES = 12
# Sentences submitted ahead of the one that is heard; more would only grow the queue.
_LOOKAHEAD = 4
# A long text is cut into sentences in pieces of so many characters, between which other clients are
# served: 100 kB of the worst text take seconds.
_SLICE_CHARS = 1_000
_VOICE_KINDS: dict[type, str] = {
    PresetSpeaker: "preset",
    XVectorVoice: "x-vector",
    IclVoice: "icl",
    DesignedVoice: "designed",
}


@dataclass(frozen=True)
class AnswerPlan:
    """What a request came down to."""

    chosen: CatalogVoice
    voice: Voice
    options: SynthesisOptions
    """But for the language, which may follow from the text."""
    language: str | None
    """Plain code that request or voice name; None leaves it to the text."""
    candidates: tuple[str, ...]
    """Plain codes that the text may be in, if nobody named one."""
    rules: frozenset[Rule]
    """What is done to the text."""


class Answer:
    """One request: turns arriving text into utterances, and gives their audio in order."""

    def __init__(
        self,
        config: Config,
        worker: SynthesisWorker,
        synthesizer: Synthesizer,
        plan: AnswerPlan,
        pace: Pace,
    ) -> None:
        self._config = config
        self._worker = worker
        self._synthesizer = synthesizer
        self._plan = plan
        self._pace = pace
        self._language = plan.language
        self.report = RequestReport(
            plan.chosen.info.name, plan.language, voice_kind=_VOICE_KINDS[type(plan.voice)]
        )
        self._unread: set[str] = set()
        self._drops_blocks = Rule.CODE_BLOCKS in plan.rules
        self._open: list[Utterance] = []
        self._playback = Playback()
        self._queue: asyncio.Queue[Utterance | None] = asyncio.Queue()
        # The reader waits for a place, so that a long text does not fill the worker.
        self._places = asyncio.Semaphore(_LOOKAHEAD)
        # An ICL prompt lays the reference beside the text, which must be known for that.
        self._is_growing = config.text_mode == "continuous" and not isinstance(plan.voice, IclVoice)
        self._growing: Utterance | None = None
        self._waits_for_text = False

    @property
    def is_idle(self) -> bool:
        """Whether nothing is spoken or left to speak before more text comes."""
        return self._waits_for_text and not self._open

    async def read(self, text: AsyncIterator[str]) -> None:
        """Submit sentence after sentence until the text ends."""
        try:
            async for sentence in self._sentences(text):
                # First: a block may be as long as the text, and its language is none of the text's.
                said = drop_code_blocks(sentence) if self._drops_blocks else sentence
                self._note_unread(said)
                language = self._language_of(said)
                spoken = normalize(said, language, self._plan.rules)
                _LOGGER.debug("Says %r as %r", sentence, spoken)
                if has_words(spoken):
                    await self._speak(spoken, language)
        finally:
            self._end_growing()
            self._queue.put_nowait(None)

    def _end_growing(self) -> None:
        """Take the text of the utterance under way as complete; what still comes is a new one."""
        if self._growing is not None:
            self._worker.close_text(self._growing)
            self._growing = None

    def _note_unread(self, sentence: str) -> None:
        """Log the scripts that no voice reads, each once an answer."""
        if unread := unsupported_scripts(sentence) - self._unread:
            self._unread |= unread
            _LOGGER.warning("No voice reads %s; it is left out", ", ".join(sorted(unread)))

    async def _speak(self, sentence: str, language: str | None) -> None:
        """Speak a sentence as an utterance of its own, or as more text of the one under way."""
        if self._growing is not None:
            if await self._worker.extend(self._growing, sentence + _JOINT):
                self.report.num_characters += len(sentence)
                return
            self._end_growing()  # the model ended its speech before this sentence
        await self._submit(sentence, language)

    async def audio(self) -> AsyncGenerator[AudioChunk, None]:
        """Yield the audio of one utterance after the other, with silence before each."""
        silence_s = self._config.leading_silence
        while (utterance := await self._queue.get()) is not None:
            if silence_s:
                yield self._silence(silence_s)
            silence_s = self._config.sentence_silence
            hold_s = self._hold_s(utterance)
            async with (
                aclosing(self._worker.audio(utterance)) as made,
                aclosing(hold_back(made, hold_s)) as chunks,
            ):
                async for chunk in chunks:
                    self.report.add_audio(chunk)
                    yield chunk
            self.report.add_end(utterance)
            self._note_pace(utterance)
            self._open.remove(utterance)
            self._places.release()

    def _hold_s(self, utterance: Utterance) -> float:
        """Return how long the first utterance is held back; by then the others are under way."""
        if self.report.audio_s or not self._config.max_prebuffer:
            return 0.0
        audio_s = expected_audio_s(utterance.request.text)
        return self._pace.hold_s(audio_s, self._config.max_prebuffer)

    def _note_pace(self, utterance: Utterance) -> None:
        if utterance.was_open or utterance.timing.num_frames < _MIN_PACE_FRAMES:
            return  # too short to tell, or it has waited for its text
        if utterance.request.position:
            return  # it may have rested while there was time
        synthesizer = self._synthesizer
        rtf = utterance.timing.rtf(synthesizer.model.facts.sample_rate_hz)
        if rtf is not None:
            self._pace.note(rtf, synthesizer.single_lane_rtf, synthesizer.model.name)

    def closing_silence(self) -> AudioChunk | None:
        """Return what comes after the last utterance; an answer is never empty."""
        if not self.report.num_utterances:
            return self._silence(_NOTHING_TO_SAY_S)
        trailing_s = self._config.trailing_silence
        return self._silence(trailing_s) if trailing_s else None

    def _silence(self, duration_s: float) -> AudioChunk:
        return silence(duration_s, self._synthesizer.model.facts.sample_rate_hz)

    def release(self) -> None:
        """Cancel whatever is still being made."""
        for utterance in self._open:
            self._worker.release(utterance)
            self.report.add_end(utterance)
            self.report.is_cancelled = True
        self._open.clear()

    async def _submit(self, sentence: str, language: str | None) -> None:
        await self._places.acquire()
        options = self._plan.options
        options = replace(
            options,
            language=None if language is None else model_language(language),
            seed=self._next_seed(),
        )
        request = SynthesisRequest(
            sentence + _JOINT if self._is_growing else sentence,
            self._plan.voice,
            options,
            position=self.report.num_utterances,
            playback=self._playback,
            guarded=True,
            is_open=self._is_growing,
        )
        utterance = self._worker.submit(self._synthesizer, request)
        if self._is_growing:
            self._growing = utterance
        self.report.num_utterances += 1
        self.report.num_characters += len(sentence)
        self._open.append(utterance)
        self._queue.put_nowait(utterance)

    def _next_seed(self) -> int:
        """Return the next sentence's seed, which follows from the request's.

        A described voice is partly made by chance: it keeps one seed, to stay more alike.
        """
        if isinstance(self._plan.voice, DesignedVoice):
            return self._plan.options.seed
        return self._plan.options.seed + self.report.num_utterances

    def _language_of(self, sentence: str) -> str | None:
        """Return the plain code of the language; once found it stays for the whole answer."""
        if self._language is None:
            self._language = detect_language(sentence, self._plan.candidates)
            self.report.language = self._language
        return self._language or self._plan.chosen.native_language

    async def _sentences(self, text: AsyncIterator[str]) -> AsyncIterator[str]:
        """Cut arriving text into sentences; a finished one waits at most for the flush timer."""
        stream = SentenceStream(self._plan.language, whole_blocks=self._drops_blocks)
        pieces = aiter(text)
        arriving = asyncio.ensure_future(anext(pieces, None))
        try:
            while True:
                await asyncio.wait([arriving], timeout=_FLUSH_AFTER_S)
                if not arriving.done():
                    for sentence in stream.flush():
                        yield sentence
                    self._waits_for_text = True
                    await asyncio.wait([arriving], timeout=_LET_GO_S)
                    if not arriving.done():
                        self._end_growing()
                    await asyncio.wait([arriving])
                    self._waits_for_text = False
                piece = arriving.result()
                if piece is None:
                    break
                self.report.note_text()
                for start in range(0, len(piece), _SLICE_CHARS):
                    for sentence in stream.push(piece[start : start + _SLICE_CHARS]):
                        yield sentence
                    await asyncio.sleep(0)
                arriving = asyncio.ensure_future(anext(pieces, None))
            for sentence in stream.finish():
                yield sentence
        finally:
            arriving.cancel()
