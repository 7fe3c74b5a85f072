"""One log line per request: what it was and what it cost, never what it said."""

import logging
import time
from dataclasses import dataclass, field

from wyoming_qwen3tts.audio import AudioChunk
from wyoming_qwen3tts.server.worker import Utterance

_LOGGER = logging.getLogger(__name__)


@dataclass
class RequestReport:
    """Figures of one request, gathered while it is spoken."""

    voice: str
    language: str | None
    started_s: float = field(default_factory=time.perf_counter)
    first_audio_s: float | None = None
    """Seconds from the start of the request."""
    audio_s: float = 0.0
    synthesis_s: float = 0.0
    num_utterances: int = 0
    num_characters: int = 0
    finish_reasons: list[str] = field(default_factory=list)
    is_cancelled: bool = False

    def add_audio(self, chunk: AudioChunk) -> None:
        """Count a chunk that goes out."""
        if self.first_audio_s is None:
            self.first_audio_s = time.perf_counter() - self.started_s
        self.audio_s += chunk.duration_s

    def add_end(self, utterance: Utterance) -> None:
        """Note how an utterance ended."""
        speech = utterance.speech
        if speech is None:
            return
        self.synthesis_s += speech.timing.synthesis_s
        if speech.finish_reason is not None:
            self.finish_reasons.append(str(speech.finish_reason))

    def log(self) -> None:
        """Write the line."""
        reasons = "cancelled" if self.is_cancelled else "+".join(sorted(set(self.finish_reasons)))
        _LOGGER.info(
            "Spoke: voice=%s language=%s characters=%d sentences=%d first_audio=%s audio=%.2fs "
            "rtf=%s finish=%s",
            self.voice,
            self.language or "auto",
            self.num_characters,
            self.num_utterances,
            "none" if self.first_audio_s is None else f"{self.first_audio_s:.3f}s",
            self.audio_s,
            f"{self.synthesis_s / self.audio_s:.2f}" if self.audio_s else "none",
            reasons or "none",
        )
