"""The cache alone: growing, moving, rewinding, snapshots."""

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from wyoming_qwen3tts.errors import RequestError
from wyoming_qwen3tts.machine import resident_memory_bytes
from wyoming_qwen3tts.runtime.kv_cache import GROWTH_POSITIONS, KVCache

NUM_LANES, NUM_LAYERS = 3, 2
LANES = st.integers(0, NUM_LANES - 1)


def make_cache(max_positions=4 * GROWTH_POSITIONS):
    return KVCache(
        num_layers=NUM_LAYERS,
        num_lanes=NUM_LANES,
        num_heads=2,
        head_size=4,
        capacity=1,
        max_positions=max_positions,
    )


class CacheMachine(RuleBasedStateMachine):
    """Every lane holds exactly what a plain list would hold, whatever was done to the cache."""

    def __init__(self):
        super().__init__()
        self.cache = make_cache()
        self.contents = [[] for _ in range(NUM_LANES)]
        self.counter = 0.0

    @rule(lane=LANES, count=st.integers(1, 300))
    def append(self, lane, count):
        count = min(count, 900 - len(self.contents[lane]))
        start = len(self.contents[lane])
        self.cache.reserve(start + count)
        values = [self.counter + offset for offset in range(count)]
        for block in self.cache.blocks:
            block[lane, :, start : start + count] = np.array(values)[None, :, None]
        self.cache.lengths[lane] += count
        self.contents[lane] += values
        self.counter += count

    @rule(source=LANES, into=LANES)
    def move(self, source, into):
        self.cache.move(source, into)
        if source != into:
            self.contents[into] = self.contents[source]
            self.contents[source] = []

    @rule(lane=LANES, other=LANES)
    def swap(self, lane, other):
        self.cache.swap(lane, other)
        contents = self.contents
        contents[lane], contents[other] = contents[other], contents[lane]

    @rule(lane=LANES, fraction=st.floats(0, 1, allow_subnormal=False))
    def rewind(self, lane, fraction):
        length = int(len(self.contents[lane]) * fraction)
        self.cache.rewind(lane, length)
        self.contents[lane] = self.contents[lane][:length]

    @rule(source=LANES, into=LANES)
    def fork(self, source, into):
        length = len(self.contents[source])
        snapshot = self.cache.snapshot(source, length)
        self.cache.restore(into, snapshot, length)
        self.contents[into] = list(self.contents[source])

    @rule()
    def shrink(self):
        self.cache.shrink(1)

    @invariant()
    def lanes_hold_their_contents(self):
        for lane, wanted in enumerate(self.contents):
            assert self.cache.lengths[lane] == len(wanted)
            for block in self.cache.blocks:
                assert np.array_equal(block[lane, 1, : len(wanted), 3], np.float32(wanted))


TestCache = CacheMachine.TestCase
TestCache.settings = settings(max_examples=25, stateful_step_count=20, deadline=None)


def test_more_positions_than_the_model_has_is_an_error():
    cache = make_cache(max_positions=100)
    cache.reserve(100)
    with pytest.raises(RequestError, match="100 positions"):
        cache.reserve(101)


def test_lanes_are_contiguous_views():
    cache = make_cache()
    assert cache.blocks[0][1:2].flags.c_contiguous
    assert np.shares_memory(cache.blocks[0][1:2], cache.blocks[0])


def test_lanes_take_memory_for_what_is_written_to_them_only():
    cache = KVCache(
        num_layers=16, num_lanes=4, num_heads=8, head_size=128, capacity=1024, max_positions=1024
    )
    before_bytes = resident_memory_bytes()
    for block in cache.blocks:
        block[:, :, :8] = 1
    taken_bytes = resident_memory_bytes() - before_bytes
    written_bytes = sum(block[:, :, :8].nbytes for block in cache.blocks)
    whole_bytes = sum(block.nbytes for block in cache.blocks)
    assert taken_bytes < 2 * written_bytes < whole_bytes / 50


def test_no_address_space_is_no_memory():
    with pytest.raises(MemoryError):
        KVCache(
            num_layers=1,
            num_lanes=1 << 20,
            num_heads=1 << 10,
            head_size=1 << 10,
            capacity=1 << 10,
            max_positions=1 << 10,
        )
