"""The processors in their official order, and drawing by one uniform number."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from wyoming_qwen3tts.errors import SynthesisError
from wyoming_qwen3tts.runtime.sampling import SamplingOptions, process_logits, sample

NUM_CODES = 40
# No subnormal numbers: once a graph ran in this process, onnxruntime reads them as zero.
UNIFORMS = st.floats(0.0, 1.0, exclude_max=True, width=32, allow_subnormal=False)


def official(scores, history, options, forbidden_code):
    """The chain of transformers 4.57, spelt out one processor after the other."""
    scores = scores.astype(np.float32).copy()
    for code in history:
        penalty = np.float32(options.repetition_penalty)
        scores[code] = scores[code] * penalty if scores[code] < 0 else scores[code] / penalty
    if forbidden_code is not None:
        scores[forbidden_code] = -np.inf
    scores = scores / np.float32(options.temperature)
    if options.top_k:
        kth = np.sort(scores)[-min(options.top_k, len(scores))]
        scores[scores < kth] = -np.inf
    if options.top_p < 1.0:
        order = np.argsort(scores, kind="stable")
        exponentials = np.exp(scores[order] - scores.max())
        cumulative = np.cumsum(exponentials / exponentials.sum())
        for position, code in enumerate(order[:-1]):
            if cumulative[position] <= 1.0 - options.top_p:
                scores[code] = -np.inf
    return scores


options_strategy = st.builds(
    SamplingOptions,
    temperature=st.floats(0.1, 2.0),
    top_k=st.sampled_from([0, 1, 5, 50]),
    top_p=st.sampled_from([1.0, 0.95, 0.8, 0.3]),
    repetition_penalty=st.sampled_from([1.0, 1.05, 1.5]),
)


@given(
    seed=st.integers(0, 2**32),
    history=st.sets(st.integers(0, NUM_CODES - 1), max_size=20),
    options=options_strategy,
    forbidden_code=st.sampled_from([None, NUM_CODES - 1]),
)
def test_processed_scores_equal_the_official_order(seed, history, options, forbidden_code):
    logits = (np.random.default_rng(seed).standard_normal(NUM_CODES) * 3).astype(np.float32)
    got = process_logits(logits, history, options, forbidden_code=forbidden_code)
    wanted = official(logits, history, options, forbidden_code)
    assert np.array_equal(np.isinf(got), np.isinf(wanted))
    finite = np.isfinite(wanted)
    np.testing.assert_allclose(got[finite], wanted[finite], rtol=1e-5)


@given(seed=st.integers(0, 2**32), uniform=UNIFORMS)
def test_suppressed_codes_are_never_drawn(seed, uniform):
    rng = np.random.default_rng(seed)
    scores = rng.standard_normal(NUM_CODES).astype(np.float32)
    scores[rng.random(NUM_CODES) < 0.7] = -np.inf
    scores[3] = 0.0
    assert np.isfinite(scores[sample(scores, uniform)])


@given(seed=st.integers(0, 2**32), uniform=UNIFORMS)
def test_top_k_1_is_the_most_probable_code(seed, uniform):
    logits = np.random.default_rng(seed).standard_normal(NUM_CODES).astype(np.float32)
    scores = process_logits(logits, set(), SamplingOptions(top_k=1))
    assert sample(scores, uniform) == np.argmax(logits)


def test_greedy_keeps_the_penalty_and_the_ban():
    options = SamplingOptions(do_sample=False, repetition_penalty=2.0)
    logits = np.array([1.0, 0.8, 5.0], np.float32)
    assert sample(process_logits(logits, {0}, options, forbidden_code=2), 0.0) == 1


@settings(max_examples=5, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_draws_have_the_processed_distribution(seed):
    rng = np.random.default_rng(seed)
    logits = (rng.standard_normal(8) * 2).astype(np.float32)
    scores = process_logits(logits, set(), SamplingOptions(temperature=0.9, top_k=5))
    exponentials = np.exp(scores - scores.max())
    wanted = exponentials / exponentials.sum()
    # An even grid instead of chance: the counts are then exact up to one per code.
    grid = (np.arange(4000) + 0.5) / 4000
    counts = np.bincount([sample(scores, uniform) for uniform in grid], minlength=8)
    np.testing.assert_allclose(counts / 4000, wanted, atol=1 / 4000 + 1e-4)


@pytest.mark.parametrize("broken", [np.nan, np.inf, -np.inf])
def test_numbers_that_are_not_finite_are_an_error(broken):
    with pytest.raises(SynthesisError, match="higher precision"):
        sample(np.full(5, broken, np.float32), 0.5)


def test_one_nan_among_numbers_is_an_error():
    scores = np.zeros(5, np.float32)
    scores[2] = np.nan
    with pytest.raises(SynthesisError):
        sample(scores, 0.5)
