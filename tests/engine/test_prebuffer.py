"""The beginning of an answer waits as long as the measured speed requires."""

import asyncio
import time
from contextlib import aclosing

import numpy as np
import pytest

from wyoming_qwen3tts.audio import AudioChunk
from wyoming_qwen3tts.engine.prebuffer import SpeedEstimate, expected_audio_s, prebuffer

CHUNK = AudioChunk(np.zeros(2400, np.float32), 24_000)


async def made(num_chunks, every_s):
    for _ in range(num_chunks):
        await asyncio.sleep(every_s)
        yield CHUNK


async def arrivals(num_chunks, every_s, hold_s):
    started_s = time.monotonic()
    return [
        time.monotonic() - started_s
        async for _ in prebuffer(made(num_chunks, every_s), lambda: hold_s)
    ]


async def test_a_fast_machine_holds_nothing_back():
    times = await arrivals(3, 0.02, hold_s=0.0)
    assert len(times) == 3
    assert times[0] < times[1] < times[2]


async def test_the_beginning_waits_and_then_everything_comes_together():
    times = await arrivals(8, 0.03, hold_s=0.1)
    assert len(times) == 8
    assert times[0] >= 0.1
    assert times[3] - times[0] < 0.02


async def test_an_answer_that_ends_earlier_waits_no_longer():
    times = await arrivals(2, 0.02, hold_s=10.0)
    assert len(times) == 2
    assert times[-1] < 1.0


async def test_audio_is_released_in_time_while_no_more_is_made():
    """A stream may wait for its text: what is held must not wait with it."""
    may_go_on = asyncio.Event()

    async def stalled():
        yield CHUNK
        await may_go_on.wait()
        yield CHUNK

    times = []
    started_s = time.monotonic()
    async for _ in prebuffer(stalled(), lambda: 0.1):
        times.append(time.monotonic() - started_s)
        may_go_on.set()
    assert len(times) == 2
    assert 0.1 <= times[0] < 5.0


async def test_closing_early_ends_what_makes_the_audio():
    ended = []

    async def endless():
        try:
            while True:
                await asyncio.sleep(0.01)
                yield CHUNK
        finally:
            ended.append(True)

    for num_chunks in (0, 1, 3):
        async with aclosing(endless()) as made, aclosing(prebuffer(made, lambda: 0.05)) as chunks:
            taking = asyncio.create_task(take(chunks, num_chunks))
            await asyncio.sleep(0.03)
            if num_chunks == 0:
                taking.cancel()
            await asyncio.gather(taking, return_exceptions=True)
    assert len(ended) == 3


async def take(chunks, num_chunks):
    async for _ in chunks:
        num_chunks -= 1
        if num_chunks == 0:
            return


@pytest.mark.parametrize(
    ("rtf", "audio_s", "hold_s"), [(None, 5, 0), (0.7, 5, 0), (1.2, 5, 1.0), (2.0, 5, 4.0)]
)
def test_what_is_held_back_is_what_the_end_would_be_late(rtf, audio_s, hold_s):
    assert SpeedEstimate(rtf).delay_s(audio_s, limit_s=4.0) == pytest.approx(hold_s)


def test_the_user_is_told_once_that_the_machine_is_slow(caplog):
    pace = SpeedEstimate()
    for _ in range(3):
        pace.record(2.5, 1.5, "a-model")
    assert pace.rtf == pytest.approx(2.5)
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "a-model" in caplog.text
    assert "int4" in caplog.text
    assert "1.50 s" in caplog.text


def test_nobody_is_told_that_the_machine_is_slow_because_it_has_much_to_do(caplog):
    pace = SpeedEstimate()
    for rtf_alone in (None, 0.8):
        pace.record(2.5, rtf_alone, "a-model")
    assert not caplog.records


def test_speech_of_a_text_is_about_as_long_as_people_take():
    assert 2.0 < expected_audio_s("Turn on the light in the kitchen, please.") < 4.0
    assert 1.0 < expected_audio_s("\u4eca\u5929\u5929\u6c14\u600e\u4e48\u6837") < 2.5
