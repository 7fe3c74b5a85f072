"""Keeps playback from starving on a machine that speaks slower than real time.

A player begins with the first chunk and stops when the next one is late. If a second of audio takes
longer than a second to make, the beginning is held back for as long as the rest will be late,
within a limit: players give up on a silence that is too long.
"""

import logging
import time
from collections.abc import AsyncGenerator, AsyncIterator
from dataclasses import dataclass

from wyoming_qwen3tts.audio import AudioChunk

_LOGGER = logging.getLogger(__name__)

# How much the latest measurement counts; speed changes with what else the machine does.
_SMOOTHING = 0.3
# Calm speech, in seconds for a Latin letter; scripts without letters take about three times that.
_LETTER_S = 0.07
_FIRST_CJK = 0x2E80
_CJK_S = 0.22
_SLOW_RTF = 1.0


def expected_audio_s(text: str) -> float:
    """Return about how long calm speech of ``text`` takes."""
    return sum(_CJK_S if ord(character) >= _FIRST_CJK else _LETTER_S for character in text)


@dataclass
class Pace:
    """How fast one model speaks on this machine, as measured so far."""

    rtf: float | None = None
    """Synthesis seconds for a second of an answer's beginning, with whatever was spoken beside it;
    None before anything was measured."""
    alone_rtf: float | None = None
    """The same for one utterance with nothing beside it."""
    has_warned: bool = False

    def note(self, rtf: float, alone_rtf: float | None, model: str) -> None:
        """Take measurements into account; warns once when the machine is too slow."""
        self.rtf = rtf if self.rtf is None else self.rtf + _SMOOTHING * (rtf - self.rtf)
        self.alone_rtf = alone_rtf
        if alone_rtf is not None and alone_rtf > _SLOW_RTF and not self.has_warned:
            self.has_warned = True
            _LOGGER.warning(
                "%s takes %.2f s for a second of speech on this machine, so the beginning of "
                "answers is held back. A smaller model, or int4 instead of int8, reads fewer "
                "bytes for each frame and is faster.",
                model,
                alone_rtf,
            )

    def hold_s(self, audio_s: float, limit_s: float) -> float:
        """Return how long the beginning of ``audio_s`` seconds of audio should be held back."""
        if self.rtf is None or self.rtf <= _SLOW_RTF:
            return 0.0
        return min((self.rtf - 1.0) * audio_s, limit_s)


async def hold_back(
    chunks: AsyncIterator[AudioChunk], hold_s: float
) -> AsyncGenerator[AudioChunk, None]:
    """Yield the chunks; the first ones not before ``hold_s`` seconds after the first was made."""
    held: list[AudioChunk] = []
    release_s: float | None = None
    async for chunk in chunks:
        if hold_s <= 0.0:
            yield chunk
            continue
        now_s = time.monotonic()
        release_s = now_s + hold_s if release_s is None else release_s
        held.append(chunk)
        if now_s >= release_s:
            hold_s = 0.0
            for early in held:
                yield early
            held.clear()
    for late in held:
        yield late
