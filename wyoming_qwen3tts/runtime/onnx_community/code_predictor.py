"""Runs ``code_predictor.onnx``, which is teacher-forced and keeps no cache.

A run takes the codes drawn so far and scores all groups, of which one is used; the codes that are
not drawn yet are zeros, which cannot change the scores before them. So a frame costs G - 1 runs
over G positions and (G - 1)^2 heads, where our own graph reads each of its layers G - 1 times for a
single position.
"""

import numpy as np

from wyoming_qwen3tts.arrays import Float32Array, Int64Array
from wyoming_qwen3tts.runtime.facts import ModelFacts
from wyoming_qwen3tts.runtime.onnx_community.graph import PublishedGraph
from wyoming_qwen3tts.runtime.sampling import SamplingOptions, draw, process_logits
from wyoming_qwen3tts.runtime.speech_model import PredictorSampling

_GREEDY = SamplingOptions(do_sample=False)


class PublishedCodePredictor:
    """The code predictor of a published bundle."""

    def __init__(self, graph: PublishedGraph, facts: ModelFacts) -> None:
        """Wrap the graph.

        Raises:
            GraphInterfaceError: It is the graph of another model.
        """
        graph.check_size("talker_hidden", 1, facts.hidden_size)
        graph.check_size("codec_ids", 1, facts.num_code_groups)
        self._graph = graph
        self._num_groups = facts.num_code_groups

    def predict(
        self, hidden: Float32Array, code0: Int64Array, sampling: PredictorSampling
    ) -> Int64Array:
        """Return codes (B, G - 1) from hidden (B, D) and group 0's codes (B,).

        Raises:
            SynthesisError: The scores are not finite numbers.
        """
        options = [_options(sampling, lane) for lane in range(len(code0))]
        codes = np.zeros((len(code0), self._num_groups), np.int64)
        codes[:, 0] = code0
        for group in range(1, self._num_groups):
            scores = self.group_logits(hidden, codes)[:, group - 1]
            for lane, uniform in enumerate(sampling.uniforms[:, group - 1].tolist()):
                # A draw of 0 decides for the most probable code, whatever the other controls say.
                chosen = options[lane] if uniform > 0 else _GREEDY
                codes[lane, group] = draw(
                    process_logits(scores[lane], frozenset(), chosen), uniform
                )
        return codes[:, 1:]

    def group_logits(self, hidden: Float32Array, codes: Int64Array) -> Float32Array:
        """Return scores (B, G - 1, C): those of a group follow from the codes (B, G) before it."""
        return self._graph.run_rows("talker_hidden", hidden, {"codec_ids": codes})


def _options(sampling: PredictorSampling, lane: int) -> SamplingOptions:
    return SamplingOptions(
        temperature=float(sampling.temperature[lane]),
        top_k=int(sampling.top_k[lane]),
        top_p=float(sampling.top_p[lane]),
    )
