"""Runs built language-model graphs with onnxruntime alone, without the runtime's classes."""

from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort

from wyoming_qwen3tts.runtime.graphs import open_session


@cache
def open_graph(path: Path) -> ort.InferenceSession:
    # Through the project's door: all sessions of a process must share its thread pool.
    return open_session(path, num_threads=2)


class TalkerGraph:
    """``talker.onnx`` with a cache of fixed capacity per lane."""

    def __init__(self, path: Path, *, num_lanes: int = 1, capacity: int = 64) -> None:
        self.session = open_graph(path)
        self.lengths = np.zeros(num_lanes, np.int32)
        self.cache = {}
        for value in self.session.get_inputs():
            if value.name.startswith("past_"):
                _, heads, _, width = value.shape
                self.cache[value.name] = np.zeros((num_lanes, heads, capacity, width), np.float32)

    def prefill(self, embeddings: Any, lane: int = 0) -> tuple[Any, Any]:
        """Append (T, D) to one lane; return logits (C + 1,) and hidden (D,)."""
        self.lengths[lane] += len(embeddings)
        logits, hidden = self._run(
            embeddings[None], slice(lane, lane + 1), self.lengths[lane : lane + 1] - 1
        )
        return logits[0], hidden[0]

    def step(self, embeddings: Any) -> tuple[Any, Any]:
        """Append one position (B, D) to the first B lanes; return (B, C + 1) and (B, D)."""
        num_lanes = len(embeddings)
        last = self.lengths[:num_lanes].copy()
        self.lengths[:num_lanes] += 1
        return self._run(embeddings[:, None], slice(0, num_lanes), last)

    def _run(self, embeddings: Any, lanes: slice, last: Any) -> tuple[Any, Any]:
        binding = self.session.io_binding()
        binding.bind_cpu_input("embeddings", np.ascontiguousarray(embeddings, np.float32))
        binding.bind_cpu_input("last_positions", np.asarray(last, np.int32))
        binding.bind_cpu_input("total_length", np.asarray(last.max() + 1, np.int32))
        for name, block in self.cache.items():
            shared = ort.OrtValue.ortvalue_from_numpy(block[lanes])
            binding.bind_ortvalue_input(name, shared)
            binding.bind_ortvalue_output(name.replace("past_", "present_"), shared)
        binding.bind_output("logits")
        binding.bind_output("hidden")
        self.session.run_with_iobinding(binding)
        logits, hidden = binding.get_outputs()[-2:]
        return logits.numpy(), hidden.numpy()


@dataclass(frozen=True)
class Draws:
    """Sampling controls for one run; the defaults are greedy."""

    uniforms: Any = None
    temperature: float = 1.0
    top_k: int = 1
    top_p: float = 1.0
    forced_codes: Any = None


class PredictorGraph:
    """``code_predictor.onnx``."""

    def __init__(self, path: Path) -> None:
        self.session = open_graph(path)
        shapes = {value.name: value.shape for value in self.session.get_inputs()}
        self.num_steps = shapes["uniforms"][1]

    def __call__(self, hidden: Any, code0: Any, draws: Draws | None = None) -> tuple[Any, Any]:
        """Return codes (B, G - 1) and scores (B, G - 1, C) for hidden (B, D) and code0 (B,)."""
        draws = draws or Draws()
        num_lanes = len(hidden)
        per_step = (num_lanes, self.num_steps)
        uniforms = np.zeros(per_step) if draws.uniforms is None else draws.uniforms
        forced = np.full(per_step, -1) if draws.forced_codes is None else draws.forced_codes
        feeds = {
            "hidden": np.asarray(hidden, np.float32),
            "code0": np.asarray(code0, np.int64),
            "uniforms": np.asarray(uniforms, np.float32),
            "temperature": np.full(num_lanes, draws.temperature, np.float32),
            "top_k": np.full(num_lanes, draws.top_k, np.int64),
            "max_top_k": np.array([draws.top_k], np.int64),
            "top_p": np.full(num_lanes, draws.top_p, np.float32),
            "forced_codes": np.asarray(forced, np.int64),
        }
        codes, scores = self.session.run(["codes", "group_logits"], feeds)
        return codes, scores


def dequantize(weight, bits):
    """Return the (N, K) weight that a graph multiplies with in place of a quantised one."""
    levels, scales = weight
    if bits == 4:
        levels = np.stack([levels & 0xF, levels >> 4], axis=-1)
    steps = levels.reshape(*scales.shape, -1).astype(np.float32) - (1 << (bits - 1))
    return np.asarray((steps * scales[..., None]).reshape(len(steps), -1), np.float32)
