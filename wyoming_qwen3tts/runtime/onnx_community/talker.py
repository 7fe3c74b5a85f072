"""Runs ``talker_cache.onnx``: the talker with a cache that grows by concatenation.

What it costs, beside our own graph: each run takes the past keys and values as arrays of exactly
their length and gives all of them back with the new positions behind. The past of a lane is not
contiguous in the cache's blocks (their length is a capacity), so a step copies it in (45 MB at 200
positions of the 0.6B model), the graph copies it once more, and only the new positions are copied
out. Lanes run one after the other: the graph knows one length for all, and lanes that could share a
read of the weights are at different ones. The graph also scores every position of a prefill, of
which only the last is used.
"""

import math
from collections.abc import Sequence
from typing import Final

import numpy as np

from wyoming_qwen3tts.arrays import AnyArray, Float32Array
from wyoming_qwen3tts.runtime.facts import ModelFacts
from wyoming_qwen3tts.runtime.kv_cache import KVCache
from wyoming_qwen3tts.runtime.onnx_community.graph import PublishedGraph, as_float32
from wyoming_qwen3tts.runtime.speech_model import TalkerOutput

TALKER_INPUTS: Final = ("inputs_embeds", "position_ids", "attention_mask")
# The three axes of the official rotary embedding always agree for speech.
_ROPE_AXES = 3
_NUM_RESULTS = 2


class PublishedTalker:
    """The talker of a published bundle."""

    def __init__(self, graph: PublishedGraph, facts: ModelFacts) -> None:
        """Wrap the graph.

        Args:
            graph: ``talker_cache.onnx``; past keys and values are its inputs behind the first
                three, in the order of its outputs behind logits and hidden vectors.
            facts: Codes, end of speech and positions.

        Raises:
            GraphInterfaceError: Inputs and outputs do not pair up, or are those of another model.
        """
        past = [name for name in graph.input_names if name not in TALKER_INPUTS]
        num_present = graph.num_outputs - _NUM_RESULTS
        if not past or len(past) % 2 or len(past) != num_present:
            raise graph.contract_error(
                f"takes {len(past)} past keys and values and gives {num_present} back"
            )
        sizes = [(graph.size(name, 1), graph.size(name, 3)) for name in past]
        num_heads, head_size = sizes[0]
        if num_heads is None or head_size is None or set(sizes) != {sizes[0]}:
            raise graph.contract_error("does not say how wide its keys and values are")
        graph.check_size("inputs_embeds", 2, facts.hidden_size)
        self._graph = graph
        self._past_names = past
        self._num_heads, self._head_size = num_heads, head_size
        self._facts = facts
        # Where a lane's past is laid out without gaps. Kept, because into fresh memory, whose pages
        # are faulted in one by one, the same copy takes seven times as long.
        self._scratch: list[AnyArray] = []

    def new_cache(self, num_lanes: int, capacity: int) -> KVCache:
        """Make an empty cache for ``num_lanes`` lanes of ``capacity`` positions each."""
        return KVCache(
            num_layers=len(self._past_names) // 2,
            num_lanes=num_lanes,
            num_heads=self._num_heads,
            head_size=self._head_size,
            capacity=capacity,
            max_positions=self._facts.max_positions,
            dtype=self._graph.dtype(self._past_names[0]),
        )

    def prefill(self, embeddings: Float32Array, cache: KVCache, lane: int) -> TalkerOutput:
        """Append ``embeddings`` (T, D) to one lane; the output has B = 1.

        Raises:
            RequestError: The model has not that many positions.
        """
        past, length = int(cache.lengths[lane]), int(cache.lengths[lane]) + len(embeddings)
        cache.reserve(length)
        positions = np.arange(past, length, dtype=np.int64)
        blocks = _alternating(cache)
        feeds: dict[str, AnyArray] = {
            "inputs_embeds": embeddings[None],
            "position_ids": np.broadcast_to(positions, (_ROPE_AXES, 1, len(positions))),
            "attention_mask": np.ones((1, length), np.int64),
        }
        feeds.update(zip(self._past_names, self._past(blocks, lane, past), strict=True))
        logits, hidden, *present = self._graph.run(feeds)
        for block, grown in zip(blocks, present, strict=True):
            block[lane, :, past:length] = grown[0, :, past:]
        cache.lengths[lane] = length
        return TalkerOutput(self._chosen(logits[:, -1]), as_float32(hidden[:, -1]))

    def step(
        self, embeddings: Float32Array, cache: KVCache, advance: Sequence[bool]
    ) -> TalkerOutput:
        """Append one position (B, D) to lanes 0 .. B-1; those with ``advance`` False cost nothing.

        Raises:
            RequestError: The model has not that many positions.
        """
        logits = np.zeros((len(embeddings), self._facts.codebook_size + 1), np.float32)
        hidden = np.zeros((len(embeddings), self._facts.hidden_size), np.float32)
        for lane, moves in enumerate(advance):
            if moves:
                output = self.prefill(embeddings[lane : lane + 1], cache, lane)
                logits[lane], hidden[lane] = output.logits[0], output.hidden[0]
        return TalkerOutput(logits, hidden)

    def _past(self, blocks: Sequence[AnyArray], lane: int, length: int) -> list[AnyArray]:
        """Return one lane's first positions, (1, H, length, K) without gaps for each block."""
        shape = (1, self._num_heads, length, self._head_size)
        lane_size = blocks[0][0].size
        if not self._scratch or len(self._scratch[0]) < lane_size:
            self._scratch = [np.empty(lane_size, block.dtype) for block in blocks]
        views = []
        for block, scratch in zip(blocks, self._scratch, strict=True):
            view = scratch[: math.prod(shape)].reshape(shape)
            np.copyto(view, block[lane : lane + 1, :, :length])
            views.append(view)
        return views

    def _chosen(self, logits: AnyArray) -> Float32Array:
        """Return (B, C + 1) of scores (B, vocabulary): every code, then end of speech.

        The official code suppresses all other columns.
        """
        codes, eos = self._facts.codebook_size, self._facts.codec_ids.eos
        if logits.shape[-1] <= eos:
            raise self._graph.contract_error(
                f"scores {logits.shape[-1]} codes, but end of speech is number {eos}"
            )
        return as_float32(np.concatenate([logits[:, :codes], logits[:, eos : eos + 1]], axis=1))


def _alternating(cache: KVCache) -> list[AnyArray]:
    """Return the blocks in the graph's order: key and value of each layer."""
    return [block for pair in zip(cache.keys, cache.values, strict=True) for block in pair]
