"""Runs the talker graph of our own bundles: prefill and step over a shared key/value cache."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnxruntime as ort

from wyoming_qwen3tts.arrays import Float32Array
from wyoming_qwen3tts.runtime.kv_cache import KVCache
from wyoming_qwen3tts.runtime.session import check_graph_io
from wyoming_qwen3tts.runtime.speech_model import TalkerOutput


class OnnxTalker:
    """The talker of one bundle. Cache blocks are bound as input and output: nothing is copied."""

    def __init__(self, session: ort.InferenceSession, path: Path, *, max_positions: int) -> None:
        """Wrap the session of ``talker.onnx``.

        Raises:
            GraphInterfaceError: The graph lacks an input or output.
        """
        past = [value for value in session.get_inputs() if value.name.startswith("past_key_")]
        self._num_layers = len(past)
        layers = range(max(self._num_layers, 1))
        check_graph_io(
            session,
            path,
            inputs=[
                "embeddings",
                "last_positions",
                "total_length",
                *(f"past_{kind}_{layer}" for layer in layers for kind in ("key", "value")),
            ],
            outputs=[
                "logits",
                "hidden",
                *(f"present_{kind}_{layer}" for layer in layers for kind in ("key", "value")),
            ],
        )
        self._session = session
        self._num_heads, self._head_size = past[0].shape[1], past[0].shape[3]
        self._cache_dtype = np.float16 if "float16" in past[0].type else np.float32
        self._max_positions = max_positions
        # onnxruntime spends more on dispatch than on a small copy: one binding object is reused.
        self._binding = session.io_binding()

    def new_cache(self, num_lanes: int, capacity: int) -> KVCache:
        """Make an empty cache for ``num_lanes`` lanes of ``capacity`` positions each."""
        return KVCache(
            num_layers=self._num_layers,
            num_lanes=num_lanes,
            num_heads=self._num_heads,
            head_size=self._head_size,
            capacity=capacity,
            max_positions=self._max_positions,
            dtype=self._cache_dtype,
        )

    def prefill(self, embeddings: Float32Array, cache: KVCache, lane: int) -> TalkerOutput:
        """Append ``embeddings`` (T, D) to one lane; the output has B = 1."""
        length = int(cache.lengths[lane]) + len(embeddings)
        cache.reserve(length)
        output = self._run(embeddings[None], cache, slice(lane, lane + 1), [length - 1])
        cache.lengths[lane] = length
        return output

    def step(
        self, embeddings: Float32Array, cache: KVCache, advance: Sequence[bool]
    ) -> TalkerOutput:
        """Append one position (B, D) to lanes 0 .. B-1, keeping those with ``advance`` False."""
        num_lanes = len(embeddings)
        lengths = cache.lengths[:num_lanes]
        cache.reserve(int(lengths.max()) + 1)
        # The position that a waiting lane writes lies beyond its length and is written again.
        output = self._run(embeddings[:, None], cache, slice(0, num_lanes), lengths.tolist())
        cache.lengths[:num_lanes] += np.asarray(advance, np.int32)
        return output

    def _run(
        self,
        embeddings: Float32Array,
        cache: KVCache,
        lanes: slice,
        last_positions: Sequence[int],
    ) -> TalkerOutput:
        binding = self._binding
        binding.clear_binding_inputs()
        binding.clear_binding_outputs()
        binding.bind_cpu_input("embeddings", np.ascontiguousarray(embeddings, np.float32))
        binding.bind_cpu_input("last_positions", np.asarray(last_positions, np.int32))
        binding.bind_cpu_input("total_length", np.asarray(max(last_positions) + 1, np.int32))
        for kind, blocks in (("key", cache.keys), ("value", cache.values)):
            for layer, block in enumerate(blocks):
                shared = ort.OrtValue.ortvalue_from_numpy(block[lanes])
                binding.bind_ortvalue_input(f"past_{kind}_{layer}", shared)
                binding.bind_ortvalue_output(f"present_{kind}_{layer}", shared)
        binding.bind_output("logits")
        binding.bind_output("hidden")
        self._session.run_with_iobinding(binding)
        logits, hidden = (value.numpy() for value in binding.get_outputs()[-2:])
        return TalkerOutput(logits, hidden)
