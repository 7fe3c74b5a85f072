"""Texts that are made to cost time hold nobody else up, whatever is done with them."""

import asyncio
import shutil
import time
from contextlib import suppress

import pytest

from tests.conftest import NUM_THREADS
from wyoming_qwen3tts.config import Config
from wyoming_qwen3tts.engine.engine import open_engine
from wyoming_qwen3tts.protocol.backend import SpeechRequest

NUM_CHARS = 100_000
ROWS = ["~", "*_", "今。", '"', "1. ", "IV. ", "<think>", "a@b.", "(", "```\n", "Dr. "]


@pytest.fixture(scope="module")
def data_dir(tmp_path_factory, tiny_bundle):
    root = tmp_path_factory.mktemp("data")
    source = tiny_bundle("0.6B-custom_voice")
    shutil.copytree(source, root / source.parent.name / source.name)
    return root


async def longest_pause_s(task: asyncio.Task, limit_s: float) -> float:
    """Return the longest time in which nobody else got a turn."""
    end_s = time.monotonic() + limit_s
    longest_s, last_s = 0.0, time.monotonic()
    while not task.done() and last_s < end_s:
        await asyncio.sleep(0)
        now_s = time.monotonic()
        longest_s, last_s = max(longest_s, now_s - last_s), now_s
    return longest_s


@pytest.mark.parametrize("text_mode", ["sentences", "continuous"])
@pytest.mark.parametrize("keep", [(), ("code_blocks",)], ids=["usual", "blocks read out"])
async def test_hostile_texts_hold_nobody_up(text_mode, keep, data_dir):
    config = Config(
        data_dirs=(str(data_dir),),
        threads=NUM_THREADS,
        text_mode=text_mode,
        disabled_text_rules=keep,
    )

    async def piece(text):
        yield text

    async def listen(source, text):
        async for _ in source.stream(SpeechRequest("ryan"), piece(text)):
            pass

    async with open_engine(config) as source:
        await listen(source, "Hello there.")
        for row in ROWS:
            task = asyncio.create_task(listen(source, row * (NUM_CHARS // len(row))))
            assert await longest_pause_s(task, 0.15) < 0.8, row
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task
