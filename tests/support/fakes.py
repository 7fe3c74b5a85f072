"""Stand-ins that are scripted instead of trained."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from wyoming_qwen3tts.audio import AudioChunk, silence
from wyoming_qwen3tts.errors import RequestError, SynthesisError
from wyoming_qwen3tts.protocol.backend import SpeechRequest, VoiceInfo

SAMPLE_RATE_HZ = 24_000
FRAME_SAMPLES = 1_920

VOICES = (
    VoiceInfo("ryan", "Ryan, dynamic", ("de", "en")),
    VoiceInfo("vivian", "Vivian, bright", ("en", "zh"), ("cheerful", "whisper")),
)

FAIL_WORD = "FAIL"
"""A piece of text with this word fails after whatever was spoken before it."""
CRASH_WORD = "CRASH"
"""As FAIL, with an exception that is none of ours and has no text."""


@dataclass
class FakeSpeechSource:
    """Speaks one frame per character of every word, and one for every piece without a word.

    The piece of text "Hi you" becomes 5 frames, in chunks of one frame.
    """

    frame_s: float = 0.0
    """Seconds that a frame takes."""
    voice_infos: Sequence[VoiceInfo] = VOICES
    voices_error: Exception | None = None
    spoken: list[tuple[SpeechRequest, str]] = field(default_factory=list)
    """Requests in the order of their beginning; the text that was taken until now."""
    num_active: int = 0
    num_cancelled: int = 0
    is_stuck: bool = False
    """Give no audio at all, and never end."""

    async def voices(self) -> Sequence[VoiceInfo]:
        if self.voices_error is not None:
            raise self.voices_error
        return self.voice_infos

    async def stream(
        self, request: SpeechRequest, text: AsyncIterator[str]
    ) -> AsyncGenerator[AudioChunk, None]:
        index = len(self.spoken)
        self.spoken.append((request, ""))
        self.num_active += 1
        is_complete = False
        try:
            self._check_voice(request.voice)
            if self.is_stuck:
                await asyncio.Event().wait()
            has_spoken = False
            async for piece in text:
                self.spoken[index] = (request, self.spoken[index][1] + piece)
                async for chunk in self._speak(piece):
                    yield chunk
                    has_spoken = True
            if not has_spoken:
                yield silence(0.1, SAMPLE_RATE_HZ)
            is_complete = True
        except (RequestError, SynthesisError, MemoryError):
            is_complete = True
            raise
        finally:
            self.num_active -= 1
            self.num_cancelled += not is_complete

    def _check_voice(self, name: str | None) -> None:
        if name is not None and name not in {voice.name for voice in self.voice_infos}:
            raise RequestError(f"there is no voice {name[:40]!r}")

    async def _speak(self, piece: str) -> AsyncGenerator[AudioChunk, None]:
        for word in piece.split():
            if word == FAIL_WORD:
                raise SynthesisError("the scripted failure")
            if word == CRASH_WORD:
                raise MemoryError
            for _ in word:
                # At least one turn of the loop, as a real source never answers at once.
                await asyncio.sleep(self.frame_s)
                yield AudioChunk(np.full(FRAME_SAMPLES, 0.5, np.float32), SAMPLE_RATE_HZ)
