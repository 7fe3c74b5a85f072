"""Runs the code predictor graph of our own bundles: groups 1 .. G-1 of a frame in one call."""

from pathlib import Path

import numpy as np
import onnxruntime as ort

from wyoming_qwen3tts.arrays import Float32Array, Int64Array
from wyoming_qwen3tts.runtime.session import check_graph_io
from wyoming_qwen3tts.runtime.speech_model import PredictorSampling


class OnnxCodePredictor:
    """The code predictor of one bundle; sampling happens inside the graph."""

    def __init__(
        self,
        session: ort.InferenceSession,
        path: Path,
        *,
        num_code_groups: int,
        codebook_size: int,
    ) -> None:
        """Wrap the session of ``code_predictor.onnx``.

        Raises:
            GraphInterfaceError: The graph lacks an input or output.
        """
        check_graph_io(
            session,
            path,
            inputs=[
                "hidden",
                "code0",
                "uniforms",
                "temperature",
                "top_k",
                "max_top_k",
                "top_p",
                "forced_codes",
            ],
            outputs=["codes", "group_logits"],
        )
        self._session = session
        self._num_groups = num_code_groups - 1
        self._codebook_size = codebook_size

    def predict(
        self, hidden: Float32Array, code0: Int64Array, sampling: PredictorSampling
    ) -> Int64Array:
        """Return codes (B, G - 1) from hidden (B, D) and group 0's codes (B,)."""
        (codes,) = self._run(["codes"], hidden, code0, sampling, self._all_free(len(code0)))
        return codes

    def teacher_forced_logits(
        self, hidden: Float32Array, code0: Int64Array, codes: Int64Array
    ) -> Float32Array:
        """Return scores (B, G - 1, C) when the given codes (B, G - 1) are taken at every step."""
        num_lanes = len(code0)
        greedy = PredictorSampling(
            np.zeros((num_lanes, self._num_groups), np.float32),
            np.ones(num_lanes, np.float32),
            np.ones(num_lanes, np.int64),
            np.ones(num_lanes, np.float32),
        )
        (logits,) = self._run(["group_logits"], hidden, code0, greedy, codes)
        return logits

    def _all_free(self, num_lanes: int) -> Int64Array:
        return np.full((num_lanes, self._num_groups), -1, np.int64)

    def _run(
        self,
        outputs: list[str],
        hidden: Float32Array,
        code0: Int64Array,
        sampling: PredictorSampling,
        forced_codes: Int64Array,
    ) -> list[np.ndarray]:
        top_k = np.where(sampling.top_k > 0, sampling.top_k, self._codebook_size)
        top_k = np.minimum(top_k, self._codebook_size).astype(np.int64)
        result: list[np.ndarray] = self._session.run(
            outputs,
            {
                "hidden": hidden,
                "code0": code0,
                "uniforms": sampling.uniforms,
                "temperature": sampling.temperature,
                "top_k": top_k,
                "max_top_k": top_k.max(keepdims=True),
                "top_p": sampling.top_p,
                "forced_codes": forced_codes,
            },
        )
        return result
