"""Audio chunks -> audio-start, audio-chunk, audio-stop of one answer."""

from typing import Final

from wyoming.audio import AudioChunk as WireChunk
from wyoming.audio import AudioStart, AudioStop

from wyoming_qwen3tts.audio import NUM_CHANNELS, SAMPLE_WIDTH_BYTES, AudioChunk
from wyoming_qwen3tts.errors import SynthesisError
from wyoming_qwen3tts.protocol.wire import EventWriter

MAX_BLOCK_SAMPLES: Final = 4_800
"""Samples per event, 0.2 s at 24 kHz: small enough that no player waits for the end of one."""


class AudioWriter:
    """Writes the audio of one answer: one start, blocks of bounded size, one stop."""

    def __init__(self, events: EventWriter) -> None:
        self._events = events
        self._sample_rate_hz = 0
        self._num_samples = 0
        self._is_open = False

    @property
    def is_open(self) -> bool:
        """audio-start was sent, audio-stop not yet."""
        return self._is_open

    async def write(self, chunk: AudioChunk) -> None:
        """Send a chunk at once, before it audio-start if it is the first.

        Raises:
            SynthesisError: The sample rate is another one than before: players take it once.
            ClientGoneError: The client has gone.
        """
        if not len(chunk.samples):
            return
        if not self._is_open:
            await self._start(chunk.sample_rate_hz)
        if chunk.sample_rate_hz != self._sample_rate_hz:
            raise SynthesisError(
                f"the sample rate changed from {self._sample_rate_hz} to {chunk.sample_rate_hz} Hz "
                "within one answer"
            )
        pcm = chunk.pcm16()
        block_bytes = MAX_BLOCK_SAMPLES * SAMPLE_WIDTH_BYTES
        for start in range(0, len(pcm), block_bytes):
            block = WireChunk(
                rate=self._sample_rate_hz,
                width=SAMPLE_WIDTH_BYTES,
                channels=NUM_CHANNELS,
                audio=pcm[start : start + block_bytes],
                timestamp=self._timestamp_ms(),
            )
            await self._events.write(block.event())
            self._num_samples += block.samples

    async def stop(self) -> None:
        """Send audio-stop, unless no audio-start was sent."""
        if self._is_open:
            self._is_open = False
            await self._events.write(AudioStop(timestamp=self._timestamp_ms()).event())

    async def _start(self, sample_rate_hz: int) -> None:
        self._sample_rate_hz = sample_rate_hz
        self._is_open = True
        start = AudioStart(
            rate=sample_rate_hz, width=SAMPLE_WIDTH_BYTES, channels=NUM_CHANNELS, timestamp=0
        )
        await self._events.write(start.event())

    def _timestamp_ms(self) -> int:
        """Return the time of the next sample since the start of the answer."""
        return self._num_samples * 1000 // self._sample_rate_hz
