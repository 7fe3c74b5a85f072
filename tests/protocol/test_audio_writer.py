import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from wyoming.event import Event

from wyoming_qwen3tts.audio import AudioChunk
from wyoming_qwen3tts.errors import SynthesisError
from wyoming_qwen3tts.protocol.audio_writer import MAX_BLOCK_SAMPLES, AudioWriter


class EventList:
    def __init__(self) -> None:
        self.events: list[Event] = []

    async def write(self, event: Event) -> None:
        self.events.append(event)


def chunk(num_samples: int, rate: int = 24_000) -> AudioChunk:
    return AudioChunk(np.linspace(-1.5, 1.5, num_samples, dtype=np.float32), rate)


@settings(max_examples=40, deadline=None)
@given(st.lists(st.integers(0, 3 * MAX_BLOCK_SAMPLES), max_size=6))
async def test_any_chunks_give_the_same_samples_in_bounded_blocks(sizes):
    sent = EventList()
    writer = AudioWriter(sent)
    for size in sizes:
        await writer.write(chunk(size))
    await writer.stop()

    if not sum(sizes):
        assert sent.events == []
        return
    assert [event.type for event in sent.events][:: len(sent.events) - 1] == [
        "audio-start",
        "audio-stop",
    ]
    blocks = sent.events[1:-1]
    assert {event.type for event in blocks} == {"audio-chunk"}
    assert all(0 < len(event.payload) <= 2 * MAX_BLOCK_SAMPLES for event in blocks)
    pcm = b"".join(event.payload for event in blocks)
    assert pcm == b"".join(chunk(size).pcm16() for size in sizes)
    num_samples = 0
    for event in blocks:
        assert event.data["timestamp"] == num_samples // 24
        num_samples += len(event.payload) // 2
    assert sent.events[-1].data["timestamp"] == num_samples // 24


async def test_a_chunk_is_sent_at_once():
    sent = EventList()
    await AudioWriter(sent).write(chunk(10))
    assert [event.type for event in sent.events] == ["audio-start", "audio-chunk"]


async def test_another_sample_rate_is_refused():
    writer = AudioWriter(EventList())
    await writer.write(chunk(10))
    with pytest.raises(SynthesisError, match="24000 to 16000 Hz"):
        await writer.write(chunk(10, 16_000))
