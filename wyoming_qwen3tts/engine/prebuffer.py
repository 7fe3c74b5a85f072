"""Delays the beginning of an answer on a machine that speaks slower than real time.

A player starts with the first chunk and stops when the next one is late. So the beginning waits as
long as the end will be late, up to a limit: players give up after a long silence.
"""

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass
from typing import Final

from wyoming_qwen3tts.audio import AudioChunk

_LOGGER = logging.getLogger(__name__)

# Share of the newest measurement; the speed changes with the load of the machine.
_SMOOTHING: Final = 0.3
# Calm speech, in seconds per Latin letter and per CJK character.
_LETTER_S: Final = 0.07
_FIRST_CJK: Final = "\u2e80"
_CJK_S: Final = 0.22


def expected_audio_s(text: str) -> float:
    """Return about how long calm speech of ``text`` takes."""
    num_cjk = sum(character >= _FIRST_CJK for character in text)
    return num_cjk * _CJK_S + (len(text) - num_cjk) * _LETTER_S


@dataclass
class SpeedEstimate:
    """How fast one model speaks on this machine, as measured so far."""

    rtf: float | None = None
    """Synthesis seconds per second of an answer's beginning, under the load of that time."""
    has_warned: bool = False

    def record(self, rtf: float, single_lane_rtf: float | None, model: str) -> None:
        """Add a measurement; warn once if even one utterance alone is slower than real time."""
        self.rtf = rtf if self.rtf is None else self.rtf + _SMOOTHING * (rtf - self.rtf)
        if single_lane_rtf is not None and single_lane_rtf > 1.0 and not self.has_warned:
            self.has_warned = True
            _LOGGER.warning(
                "%s takes %.2f s per second of speech on this machine; answers begin later so that "
                "playback does not stop. A smaller model, or precision int4 instead of int8, is "
                "faster.",
                model,
                single_lane_rtf,
            )

    def delay_s(self, audio_s: float, limit_s: float) -> float:
        """Return how long the beginning of ``audio_s`` seconds of audio should wait."""
        return min(max((self.rtf or 0.0) - 1.0, 0.0) * audio_s, limit_s)


async def prebuffer(
    chunks: AsyncGenerator[AudioChunk, None], delay_s: Callable[[], float]
) -> AsyncGenerator[AudioChunk, None]:
    """Yield the chunks; hold the first ones for ``delay_s()`` seconds, at most until the end.

    ``delay_s`` is asked again with each chunk: more text may have arrived.
    """
    held: list[AudioChunk] = []
    first_s = 0.0
    while True:
        arriving = asyncio.ensure_future(anext(chunks, None))
        try:
            wait_s = max(first_s + delay_s() - time.monotonic(), 0.0) if held else None
            await asyncio.wait([arriving], timeout=wait_s)
            is_late = not arriving.done()
            if not is_late and (chunk := arriving.result()) is not None:
                first_s = first_s if held else time.monotonic()
                held.append(chunk)
                if time.monotonic() < first_s + delay_s():
                    continue
            for early in held:
                yield early
            if is_late and (chunk := await arriving) is not None:
                yield chunk
            break
        finally:
            if arriving.cancel():
                await asyncio.gather(arriving, return_exceptions=True)
    async for chunk in chunks:
        yield chunk
