"""Keeps what a voice's prompts have in common, so that only the text has to be prefilled.

Every prompt is prefilled in two runs, the reusable part and the rest, also the first time: the
numbers of a run depend in their last bits on its length, and the same seed must give the same codes
whether the cache was warm or not.
"""

import hashlib
from collections import OrderedDict
from typing import Any

import numpy as np

from wyoming_qwen3tts.arrays import AnyArray
from wyoming_qwen3tts.runtime.kv_cache import CacheSnapshot, KVCache
from wyoming_qwen3tts.runtime.speech_model import CodecDecoder, Talker, TalkerOutput
from wyoming_qwen3tts.synthesis.prompt import Prompt

DEFAULT_LIMIT_BYTES = 128 * 2**20


class PrefixCache:
    """Talker snapshots of prompt prefixes and codec states of reference clips, oldest out first."""

    def __init__(self, limit_bytes: int = DEFAULT_LIMIT_BYTES, max_codec_states: int = 8) -> None:
        """Keep at most ``limit_bytes`` of snapshots and ``max_codec_states`` codec states."""
        self._limit_bytes = limit_bytes
        self._max_codec_states = max_codec_states
        self._snapshots: OrderedDict[bytes, CacheSnapshot] = OrderedDict()
        self._codec_states: OrderedDict[bytes, Any] = OrderedDict()

    def prefill(self, talker: Talker, prompt: Prompt, cache: KVCache, lane: int) -> TalkerOutput:
        """Fill an empty lane with the prompt, the reusable part from memory if it is there."""
        shared = prompt.embeddings[: prompt.num_reusable]
        key = _digest(shared)
        snapshot = self._snapshots.get(key)
        if snapshot is None:
            talker.prefill(shared, cache, lane)
            self._remember(key, cache.snapshot(lane, len(shared)))
        else:
            self._snapshots.move_to_end(key)
            cache.restore(lane, snapshot, len(shared))
        return talker.prefill(prompt.embeddings[prompt.num_reusable :], cache, lane)

    def codec_state(self, decoder: CodecDecoder, prompt: Prompt) -> Any:
        """Return the codec's state after the reference clip of the prompt, if it has one."""
        if prompt.reference_codes is None:
            return decoder.initial_state()
        key = _digest(prompt.reference_codes)
        if key not in self._codec_states:
            state = decoder.advance(prompt.reference_codes, decoder.initial_state())
            self._codec_states[key] = state
            while len(self._codec_states) > self._max_codec_states:
                self._codec_states.popitem(last=False)
        self._codec_states.move_to_end(key)
        return self._codec_states[key]

    def _remember(self, key: bytes, snapshot: CacheSnapshot) -> None:
        # Numbers that were broken for once must not break the voice for good.
        is_sound = all(np.isfinite(array).all() for array in snapshot.blocks)
        if snapshot.num_bytes > self._limit_bytes or not is_sound:
            return
        self._snapshots[key] = snapshot
        total = sum(entry.num_bytes for entry in self._snapshots.values())
        while total > self._limit_bytes:
            _, oldest = self._snapshots.popitem(last=False)
            total -= oldest.num_bytes


def _digest(array: AnyArray) -> bytes:
    return hashlib.blake2b(array.tobytes(), digest_size=16).digest()
