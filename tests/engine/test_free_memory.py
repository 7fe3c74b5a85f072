"""Memory that nothing uses any more goes back to the system, also while the server speaks."""

import asyncio
import os
import platform
import shutil
import subprocess
import sys

import pytest

from tests.conftest import NUM_THREADS
from tests.protocol.client import eventually
from wyoming_qwen3tts.config import Config
from wyoming_qwen3tts.engine import engine
from wyoming_qwen3tts.engine.engine import open_engine
from wyoming_qwen3tts.machine import resident_memory_bytes, trim_free_memory

MIB = 2**20


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc can be asked for that")
def test_free_pages_between_those_in_use_go_back():
    blocks = [bytes(2_000) for _ in range(30_000)]
    full_bytes = resident_memory_bytes()
    kept = blocks[::100]
    del blocks
    before_bytes = resident_memory_bytes()
    trim_free_memory()
    after_bytes = resident_memory_bytes()
    assert full_bytes - after_bytes > 30 * MIB, f"{before_bytes - after_bytes} bytes of it by trim"
    assert sys.getsizeof(kept[0]) > 2_000


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc can be asked for that")
def test_large_blocks_go_back_as_soon_as_they_are_free():
    program = """
from wyoming_qwen3tts.machine import resident_memory_bytes, configure_malloc
configure_malloc()
bytes(30 << 20)  # is what teaches the C library to keep blocks of that size
large = [b"x" * (1 << 20) for _ in range(40)]
small = [bytes(1000) for _ in range(1000)]  # lie behind them
full_bytes = resident_memory_bytes()
del large
print(full_bytes - resident_memory_bytes())
"""
    freed = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True)
    assert int(freed.stdout) > 35 * MIB


async def test_server_trims_now_and_then(tiny_bundle, tmp_path, monkeypatch):
    source = tiny_bundle("0.6B-custom_voice")
    shutil.copytree(source, tmp_path / source.parent.name / source.name)
    num_trims = 0

    def trim():
        nonlocal num_trims
        num_trims += 1
        raise OSError("not this time")  # is no reason to look after nothing any more

    monkeypatch.setattr(engine, "_MAINTENANCE_INTERVAL_S", 0.01)
    monkeypatch.setattr(engine, "_TRIM_INTERVAL_S", 0.05)
    monkeypatch.setattr(engine, "trim_free_memory", trim)
    config = Config(data_dirs=(str(tmp_path),), threads=NUM_THREADS)
    async with open_engine(config):
        await eventually(lambda: num_trims >= 3)
    stopped_at = num_trims
    await asyncio.sleep(0.1)
    assert num_trims == stopped_at


def test_resident_memory_grows_with_what_is_held():
    before_bytes = resident_memory_bytes()
    block = bytearray(os.urandom(1)) * 30_000_000
    assert resident_memory_bytes() - before_bytes > 20_000_000
    del block
