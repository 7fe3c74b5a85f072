"""From scores to a code: the official processors in their order, and one uniform per sample.

A sample is the inverse of the cumulative distribution over codes sorted by probability. One number
in [0, 1) decides it; 0 takes the most probable code. The code predictor's graph does the same.

Ported from: transformers ``generation/logits_process.py`` (order and formulas of the processors).
"""

from collections.abc import Set as AbstractSet
from dataclasses import dataclass

import numpy as np

from wyoming_qwen3tts.arrays import Float32Array
from wyoming_qwen3tts.errors import SynthesisError


@dataclass(frozen=True)
class SamplingOptions:
    """How a code is sampled from its scores."""

    do_sample: bool = True
    """False takes the most probable code (greedy); the repetition penalty still applies."""
    temperature: float = 0.9
    top_k: int = 50
    """Only the k best codes are candidates; 0 keeps every code."""
    top_p: float = 1.0
    """Only the best codes that together reach this probability are candidates."""
    repetition_penalty: float = 1.0


def process_logits(
    logits: Float32Array,
    history: AbstractSet[int],
    options: SamplingOptions,
    *,
    forbidden_code: int | None = None,
) -> Float32Array:
    """Return processed scores (C,), -inf for codes that are not candidates.

    ``history`` has the codes sampled so far, for the repetition penalty. ``forbidden_code`` is not
    a candidate now (end of speech, at the start).
    """
    scores = logits.astype(np.float32, copy=True)
    if history and options.repetition_penalty != 1.0:
        seen = np.fromiter(history, np.int64, len(history))
        values = scores[seen]
        penalty = np.float32(options.repetition_penalty)
        scores[seen] = np.where(values < 0, values * penalty, values / penalty)
    if forbidden_code is not None:
        scores[forbidden_code] = -np.inf
    if not options.do_sample:
        return scores
    scores /= np.float32(options.temperature)
    if 0 < options.top_k < len(scores):
        kth_best = np.partition(scores, -options.top_k)[-options.top_k]
        scores[scores < kth_best] = -np.inf
    if options.top_p < 1.0:
        order = np.argsort(scores, kind="stable")
        exponentials = np.exp(scores[order] - scores.max())
        below = np.cumsum(exponentials / exponentials.sum())
        dropped = below <= 1.0 - options.top_p
        dropped[-1] = False  # the best code always stays
        scores[order[dropped]] = -np.inf
    return scores


def sample(scores: Float32Array, uniform: float) -> int:
    """Sample a code with one number in [0, 1); raise a SynthesisError if no score is finite."""
    best = int(np.argmax(scores))
    if not np.isfinite(scores[best]):
        raise SynthesisError(
            "The model's scores are not finite numbers; "
            "rebuild the bundle, or use a higher precision such as fp32."
        )
    if uniform <= 0.0:
        return best
    (candidates,) = np.nonzero(np.isfinite(scores))
    order = candidates[np.argsort(-scores[candidates], kind="stable")]
    cumulative = np.cumsum(np.exp(scores[order] - scores[best]))
    # "<", not "<=": rounding of uniform * total can then never reach past the last code.
    index = int(np.searchsorted(cumulative, np.float32(uniform) * cumulative[-1], side="left"))
    return int(order[min(index, len(order) - 1)])
