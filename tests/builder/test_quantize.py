import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.builder.graph_runner import dequantize
from wyoming_qwen3tts.builder.graphs.quantize import block_size_for, quantize
from wyoming_qwen3tts.errors import BuildError

BITS = st.sampled_from([4, 8])
BLOCK_SIZES = st.sampled_from([16, 32, 128])


def weights(seed, scale, heavy_tails, shape=(3, 256)):
    rng = np.random.default_rng(seed)
    values = rng.standard_t(2, shape) if heavy_tails else rng.standard_normal(shape)
    return (scale * values).astype(np.float32)


WEIGHTS = st.builds(
    weights, st.integers(0, 999), st.sampled_from([1e-8, 1e-4, 1.0, 1e6]), st.booleans()
)


@settings(deadline=None, max_examples=60)
@given(WEIGHTS, BITS, BLOCK_SIZES)
def test_searched_scales_are_off_by_more_only_where_they_clip(weight, bits, block_size):
    quantized = quantize(weight, bits, block_size)
    blocks = weight.reshape(*quantized[1].shape, block_size)
    steps = blocks / quantized[1][..., None]
    error = np.abs(dequantize(quantized, bits).reshape(blocks.shape) - blocks)
    half = 1 << (bits - 1)
    in_range = (steps >= -half - 0.5) & (steps <= half - 0.5)
    limit = np.abs(quantized[1])[..., None] / 2 * (1 + 1e-4)
    assert np.all((error <= limit) | ~in_range)


def largest_value_error(weight, bits, block_size):
    """Return the squared error (n,) of scales that keep the largest value of each block."""
    blocks, most = weight.reshape(-1, block_size), (1 << (bits - 1)) - 1
    scales = np.maximum(np.abs(blocks).max(1, keepdims=True) / most, 1e-30)
    error = np.clip(np.rint(blocks / scales), -most, most) * scales - blocks
    return np.square(error, dtype=np.float64).sum(1)


@settings(deadline=None, max_examples=60)
@given(WEIGHTS, BITS, BLOCK_SIZES)
def test_no_block_is_worse_than_with_its_largest_value_scale(weight, bits, block_size):
    error = dequantize(quantize(weight, bits, block_size), bits) - weight
    errors = np.square(error.reshape(-1, block_size), dtype=np.float64).sum(1)
    assert np.all(errors <= largest_value_error(weight, bits, block_size) * (1 + 1e-5) + 1e-30)


def test_the_search_gains_more_than_a_decibel_at_four_bits():
    weight = weights(1, 0.02, heavy_tails=False, shape=(256, 1024))
    plain = largest_value_error(weight, 4, 128).sum()
    error = dequantize(quantize(weight, 4, 128), 4) - weight
    assert plain / np.square(error).sum() > 10 ** (1 / 10)


@pytest.mark.parametrize("bits", [4, 8])
def test_representable_weights_and_zeros_are_exact(bits):
    steps = np.arange(-(1 << (bits - 1)), 1 << (bits - 1))
    weight = np.zeros((2, 256), np.float32)
    weight[1] = 0.25 * np.resize(steps, 256)
    quantized = quantize(weight, bits, 256)
    np.testing.assert_array_equal(dequantize(quantized, bits), weight)


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_values_that_are_not_finite_are_refused(value):
    weight = np.ones((2, 16), np.float32)
    weight[1, 3] = value
    with pytest.raises(BuildError, match="not finite"):
        quantize(weight, 8, 16)


@pytest.mark.parametrize(
    ("num_inputs", "expected"), [(1024, 128), (3072, 128), (96, 32), (80, 16), (64, 64)]
)
def test_blocks_are_the_largest_that_divide_the_inputs(num_inputs, expected):
    assert block_size_for(num_inputs, 128) == expected


def test_inputs_that_no_block_divides_are_refused():
    with pytest.raises(BuildError, match="24 inputs"):
        block_size_for(24, 128)
