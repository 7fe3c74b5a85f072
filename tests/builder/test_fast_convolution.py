"""Minimal filtering against the sum that it replaces."""

import numpy as np
import pytest

from wyoming_qwen3tts.builder.fast_convolution import (
    NUM_OUTPUTS,
    NUM_POINTS,
    NUM_TAPS,
    minimal_filter,
)


@pytest.fixture(scope="module")
def scheme():
    return minimal_filter()


def direct(inputs, taps):
    return np.array([taps @ inputs[start : start + NUM_TAPS] for start in range(NUM_OUTPUTS)])


def test_products_at_the_points_give_the_sums(scheme):
    rng = np.random.default_rng(0)
    for _ in range(20):
        inputs, taps = rng.standard_normal(NUM_POINTS), rng.standard_normal(NUM_TAPS)
        products = (scheme.taps @ taps) * (scheme.inputs @ inputs)
        np.testing.assert_allclose(scheme.outputs @ products, direct(inputs, taps), atol=1e-12)


@pytest.mark.parametrize("offset", [0.0, 5.0])
def test_float32_keeps_a_relative_error_of_a_few_millionths(scheme, offset):
    """With white noise, and with an offset, which the squared sine of a snake always has."""
    rng = np.random.default_rng(1)
    width = 256
    inputs = rng.standard_normal((NUM_POINTS, width, 500)) + offset
    taps = rng.standard_normal((NUM_TAPS, width)) / np.sqrt(NUM_TAPS * width)
    exact = np.array(
        [
            np.einsum("jc,jct->t", taps, inputs[start : start + NUM_TAPS])
            for start in range(NUM_OUTPUTS)
        ]
    )
    points = np.tensordot(scheme.inputs.astype(np.float32), inputs.astype(np.float32), axes=1)
    weights = (scheme.taps @ taps).astype(np.float32)
    products = np.einsum("kc,kct->kt", weights, points)
    got = scheme.outputs.astype(np.float32) @ products
    error = np.sqrt(((got - exact) ** 2).mean() / (exact**2).mean())
    assert error < 1e-5


def test_a_kernel_is_transformed_tap_by_tap(scheme):
    kernel = np.random.default_rng(2).standard_normal((3, 2, NUM_TAPS)).astype(np.float32)
    weights = scheme.transform(kernel)
    assert weights.shape == (NUM_POINTS, 2, 3)
    np.testing.assert_allclose(weights[:, 1, 2], scheme.taps @ kernel[2, 1], rtol=1e-6)
