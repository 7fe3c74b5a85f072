"""What one request was and what it cost, for a log line and for figures; never what it said."""

import logging
import time
from dataclasses import dataclass, field
from typing import Any, Final

from wyoming_qwen3tts.audio import AudioChunk
from wyoming_qwen3tts.errors import Qwen3TTSError
from wyoming_qwen3tts.synthesis.utterance import FinishReason, Utterance

_LOGGER = logging.getLogger(__name__)

# The more an end is worth knowing, the earlier it stands.
_REASONS: Final = (FinishReason.LENGTH, FinishReason.RETRY, FinishReason.STOP)
# Text that comes so soon was there when the request began.
_AT_ONCE_S: Final = 0.02


@dataclass
class RequestReport:
    """Figures of one request, gathered while it is spoken."""

    voice: str
    language: str | None
    voice_kind: str = "none"
    """preset, x-vector, icl or designed."""
    started_s: float = field(default_factory=time.perf_counter)
    """When the request came."""
    first_audio_s: float | None = None
    """Seconds from the text that completed the first sentence."""
    audio_s: float = 0.0
    synthesis_s: float = 0.0
    """Sum over utterances, also of those that were spoken side by side."""
    busy_s: float = 0.0
    """Time in which at least one utterance was spoken."""
    num_utterances: int = 0
    num_characters: int = 0
    finish_reasons: list[str] = field(default_factory=list)
    is_cancelled: bool = False
    error: str | None = None
    """Code of what the request failed with."""
    _asked_s: float = field(default_factory=time.perf_counter)
    _text_s: float | None = None
    _busy_until_s: float = 0.0

    def note_text(self) -> None:
        """Note that text has come; only until the first sentence is complete it matters when."""
        if self.num_utterances:
            return
        now_s = time.perf_counter()
        was_there = self._text_s is None and now_s - self._asked_s < _AT_ONCE_S
        self._text_s = self.started_s if was_there else now_s

    def add_audio(self, chunk: AudioChunk) -> None:
        """Count a chunk that goes out."""
        if self.first_audio_s is None:
            began_s = self.started_s if self._text_s is None else self._text_s
            self.first_audio_s = time.perf_counter() - began_s
        self.audio_s += chunk.duration_s

    def add_end(self, utterance: Utterance) -> None:
        """Note how an utterance ended, also one that is cut short now."""
        timing = utterance.timing
        self.synthesis_s += timing.synthesis_s
        if timing.started_s is not None:
            ended_s = timing.finished_s or time.perf_counter()
            self.busy_s += max(0.0, ended_s - max(timing.started_s, self._busy_until_s))
            self._busy_until_s = max(self._busy_until_s, ended_s)
        if utterance.finish_reason is not None:
            self.finish_reasons.append(str(utterance.finish_reason))

    def note_error(self, error: BaseException) -> None:
        """Note that the request failed, or that nobody wants the rest."""
        if isinstance(error, Exception):
            self.error = error.code if isinstance(error, Qwen3TTSError) else type(error).__name__
        else:
            self.is_cancelled = True

    @property
    def rtf(self) -> float | None:
        """Seconds of synthesis for a second of audio; None without audio."""
        return self.busy_s / self.audio_s if self.audio_s and self.busy_s else None

    @property
    def finish(self) -> str:
        """How the request ended, in one word."""
        if self.error is not None:
            return "error"
        if self.is_cancelled:
            return str(FinishReason.CANCELLED)
        return next((str(reason) for reason in _REASONS if reason in self.finish_reasons), "none")

    def metrics(self) -> dict[str, Any]:
        """Return the arguments of :meth:`Metrics.count_request`."""
        return {
            "voice_kind": self.voice_kind,
            "finish": self.finish,
            "num_characters": self.num_characters,
            "first_audio_s": self.first_audio_s,
            "audio_s": self.audio_s,
            "rtf": self.rtf,
        }

    def log(self) -> None:
        """Write the line."""
        _LOGGER.info(
            "Spoke: voice=%s kind=%s language=%s characters=%d sentences=%d first_audio=%s "
            "audio=%.2fs rtf=%s finish=%s",
            self.voice,
            self.voice_kind,
            self.language or "auto",
            self.num_characters,
            self.num_utterances,
            "none" if self.first_audio_s is None else f"{self.first_audio_s:.3f}s",
            self.audio_s,
            "none" if self.rtf is None else f"{self.rtf:.2f}",
            self.finish if self.error is None else self.error,
        )
