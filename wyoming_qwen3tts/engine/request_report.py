"""What one request was and what it cost, for a log line and for metrics; never what it said."""

import logging
import time
from dataclasses import dataclass, field
from typing import Final

from wyoming_qwen3tts.synthesis.utterance import FinishReason, Utterance

_LOGGER = logging.getLogger(__name__)

# The most serious end of an utterance stands for the whole request.
_REASONS: Final = (FinishReason.LENGTH, FinishReason.RETRY, FinishReason.STOP)


@dataclass
class RequestReport:
    """Measurements of one request."""

    voice: str = "none"
    language: str | None = None
    voice_kind: str = "none"  # preset, x-vector, icl or designed
    first_audio_s: float | None = None  # seconds from the text that completed the first sentence
    audio_s: float = 0.0
    busy_s: float = 0.0  # time in which at least one utterance was spoken
    num_utterances: int = 0
    num_characters: int = 0
    finish_reasons: list[str] = field(default_factory=list)
    is_cancelled: bool = False
    error: str | None = None  # code of the error that ended the request
    _text_s: float = field(default_factory=time.perf_counter)
    _busy_until_s: float = 0.0

    def record_text(self) -> None:
        """Record that text has arrived; its time matters until the first sentence is complete."""
        if not self.num_utterances:
            self._text_s = time.perf_counter()

    def record_output(self) -> None:
        """Record that audio goes out."""
        if self.first_audio_s is None and self.num_utterances:
            self.first_audio_s = time.perf_counter() - self._text_s

    def record_end(self, utterance: Utterance) -> None:
        """Add the costs of an utterance that has ended or is cancelled now."""
        timing = utterance.timing
        if timing.started_s is not None:
            ended_s = timing.finished_s or time.perf_counter()
            self.busy_s += max(0.0, ended_s - max(timing.started_s, self._busy_until_s))
            self._busy_until_s = max(self._busy_until_s, ended_s)
        if utterance.finish_reason is not None:
            self.finish_reasons.append(str(utterance.finish_reason))

    def record_failure(self, error: BaseException) -> None:
        """Record that the request failed or was cancelled."""
        if isinstance(error, Exception):
            self.error = type(error).__name__
        else:
            self.is_cancelled = True

    @property
    def rtf(self) -> float | None:
        """Seconds of synthesis per second of audio; None without audio."""
        return self.busy_s / self.audio_s if self.audio_s and self.busy_s else None

    @property
    def finish(self) -> str:
        """How the request ended, in one word."""
        if self.error is not None:
            return "error"
        if self.is_cancelled:
            return str(FinishReason.CANCELLED)
        return next((str(reason) for reason in _REASONS if reason in self.finish_reasons), "none")

    def log(self) -> None:
        """Write the log line, unless no voice was found."""
        if self.voice == "none":
            return
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
            self.error or self.finish,
        )
