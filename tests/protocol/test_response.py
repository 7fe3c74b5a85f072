import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from wyoming.event import Event

from wyoming_qwen3tts.audio import AudioChunk
from wyoming_qwen3tts.protocol.response import MAX_BLOCK_SAMPLES, Response


class EventList:
    def __init__(self) -> None:
        self.events: list[Event] = []

    async def write(self, event: Event) -> None:
        self.events.append(event)


class Chunks:
    """Speaks these chunks, whatever the text."""

    def __init__(self, chunks: list[AudioChunk]) -> None:
        self.chunks = chunks

    async def stream(self, _request, _text):
        for chunk in self.chunks:
            yield chunk


def chunk(num_samples: int, rate: int = 24_000) -> AudioChunk:
    return AudioChunk(np.linspace(-1.5, 1.5, num_samples, dtype=np.float32), rate)


async def speak(*chunks: AudioChunk) -> tuple[list[Event], Exception | None]:
    sent = EventList()
    response = Response(sent, 10, is_stream=False)
    failure = await response.speak(Chunks(list(chunks)))
    return sent.events, failure


@settings(max_examples=40, deadline=None)
@given(st.lists(st.integers(0, 3 * MAX_BLOCK_SAMPLES), max_size=6))
async def test_any_chunks_give_the_same_samples_in_bounded_blocks(sizes):
    events, failure = await speak(*map(chunk, sizes))
    if not sum(sizes):
        assert [event.type for event in events] == ["error"]
        return
    assert failure is None
    assert [events[0].type, events[-1].type] == ["audio-start", "audio-stop"]
    blocks = events[1:-1]
    assert {event.type for event in blocks} == {"audio-chunk"}
    assert all(0 < len(event.payload) <= 2 * MAX_BLOCK_SAMPLES for event in blocks)
    pcm = b"".join(event.payload for event in blocks)
    assert pcm == b"".join(chunk(size).pcm16() for size in sizes)
    num_samples = 0
    for event in blocks:
        assert event.data["timestamp"] == num_samples // 24
        num_samples += len(event.payload) // 2
    assert events[-1].data["timestamp"] == num_samples // 24
