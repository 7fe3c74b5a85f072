"""Measures single graphs, for work on one of them."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import numpy as np

from script._benchmark.timing import durations_ms
from wyoming_qwen3tts.runtime.code_predictor import OnnxCodePredictor
from wyoming_qwen3tts.runtime.codec import OnnxCodecDecoder
from wyoming_qwen3tts.runtime.manifest import read_manifest
from wyoming_qwen3tts.runtime.session import open_session
from wyoming_qwen3tts.runtime.speech_model import PredictorSampling
from wyoming_qwen3tts.runtime.talker import OnnxTalker

COMPONENTS: Final = ("talker", "code_predictor", "codec_decoder")
"""The components that can be measured."""

_STEP: Final = "step"
_PREFILL: Final = "prefill"
# Frames that fill the codec's attention window, so that its history has its full length.
_WARM_FRAMES: Final = 72
_WARM_CALL_FRAMES: Final = 12

CASES: Final[dict[str, tuple[dict[str, int | str], ...]]] = {
    "talker": (
        *({"kind": _STEP, "lanes": 1, "past": past} for past in (10, 200, 600)),
        *({"kind": _STEP, "lanes": lanes, "past": 200} for lanes in (2, 4)),
        *({"kind": _PREFILL, "lanes": 1, "past": 0, "new": new} for new in (40, 200)),
    ),
    "code_predictor": tuple({"kind": "frame", "lanes": lanes} for lanes in (1, 2, 4)),
    "codec_decoder": tuple({"kind": "decode", "frames": frames} for frames in (1, 2, 4, 12)),
}
"""Component -> what is measured of it."""


class ComponentSubject:
    """One component of a bundle, alone in its process."""

    def __init__(self, component: str, bundle_directory: Path, num_threads: int) -> None:
        manifest = read_manifest(bundle_directory)
        self._facts = manifest.facts
        path = bundle_directory / f"{component}.onnx"
        session = open_session(path, num_threads=num_threads)
        self._component = component
        if component == "talker":
            positions = manifest.talker.max_positions
            self._talker = OnnxTalker(session, path, max_positions=positions)
        elif component == "code_predictor":
            self._predictor = OnnxCodePredictor(
                session,
                path,
                num_code_groups=self._facts.num_code_groups,
                codebook_size=self._facts.codebook_size,
            )
        else:
            self._codec = OnnxCodecDecoder(session, path)

    def run(self, _task: str, case: dict[str, Any], limit_s: float) -> dict[str, Any]:
        """Return the durations of a case of :data:`CASES`, in ms."""
        makers: dict[str, Callable[..., Callable[[], object]]] = {
            "talker": self._talker_work,
            "code_predictor": self._predictor_work,
            "codec_decoder": self._codec_work,
        }
        work = makers[self._component](**case)
        return {"durations_ms": durations_ms(work, num_runs=30, limit_s=limit_s)}

    def _talker_work(self, kind: str, lanes: int, past: int, new: int = 1) -> Callable[[], object]:
        width = self._facts.hidden_size
        cache = self._talker.new_cache(lanes, past + new)
        if kind == _PREFILL:
            prompt = np.full((new, width), 0.01, np.float32)

            def prefill() -> None:
                cache.lengths[:] = past
                self._talker.prefill(prompt, cache, 0)

            return prefill
        embeddings = np.full((lanes, width), 0.01, np.float32)

        def step() -> None:
            cache.lengths[:] = past
            self._talker.step(embeddings, cache, [True] * lanes)

        return step

    def _predictor_work(self, kind: str, lanes: int) -> Callable[[], object]:
        del kind
        defaults = self._facts.generation
        groups = self._facts.num_code_groups - 1
        sampling = PredictorSampling(
            uniforms=np.full((lanes, groups), 0.5, np.float32),
            temperature=np.full(lanes, defaults.predictor_temperature, np.float32),
            top_k=np.full(lanes, defaults.predictor_top_k, np.int64),
            top_p=np.full(lanes, defaults.predictor_top_p, np.float32),
        )
        hidden = np.full((lanes, self._facts.hidden_size), 0.01, np.float32)
        code0 = np.zeros(lanes, np.int64)
        return lambda: self._predictor.predict(hidden, code0, sampling)

    def _codec_work(self, kind: str, frames: int) -> Callable[[], object]:
        del kind
        generator = np.random.default_rng(0)
        groups, size = self._facts.num_code_groups, self._facts.codebook_size
        codes = generator.integers(0, size, (_WARM_FRAMES, groups))
        state = self._codec.initial_state()
        for start in range(0, _WARM_FRAMES, _WARM_CALL_FRAMES):
            _, state = self._codec.decode(codes[start : start + _WARM_CALL_FRAMES], state)
        return lambda: self._codec.decode(codes[:frames], state)
