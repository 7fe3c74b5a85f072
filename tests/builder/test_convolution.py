"""The residual units' convolutions against plain sums, in one call and in several."""

from functools import partial

import numpy as np
import pytest

from wyoming_qwen3tts.builder.graphs import convolution
from wyoming_qwen3tts.builder.graphs.convolution import (
    NUM_OUTPUTS,
    NUM_POINTS,
    NUM_TAPS,
    ConvSite,
    calibration_conv,
    int8_conv,
    polyphase,
    winograd_conv,
    winograd_matrices,
)
from wyoming_qwen3tts.builder.graphs.graph import GraphBuilder
from wyoming_qwen3tts.runtime.graphs import open_session

WIDTH_IN, WIDTH_OUT = 3, 5


def make_site(dilation):
    rng = np.random.default_rng(dilation)
    kernel = rng.standard_normal((WIDTH_OUT, WIDTH_IN, NUM_TAPS)).astype(np.float32)
    return ConvSite("conv", "state", kernel, dilation)


def make_input(num_rows):
    return np.random.default_rng(99).standard_normal((num_rows, WIDTH_IN)).astype(np.float32)


def open_convolution(directory, convolve, site):
    with GraphBuilder("convolution", directory) as graph:
        x = graph.input("x", np.float32, ["T", WIDTH_IN])
        y = convolve(graph, x, site)
        graph.output(y, "y", np.float32, [None, WIDTH_OUT])
    return open_session(graph.path, num_threads=2)


def run_in_pieces(session, site, x, sizes):
    state = np.zeros((6 * site.dilation, WIDTH_IN), np.float32)
    results, start = [], 0
    for size in sizes:
        feeds = {"x": x[start : start + size], "state": state}
        y, state = session.run(["y", "next_state"], feeds)
        results.append(y)
        start += size
    assert start == len(x)
    return np.concatenate(results)


def convolve(x, kernel, dilation):
    padded = np.concatenate([np.zeros((6 * dilation, x.shape[1])), x])
    taps = [
        padded[tap * dilation : tap * dilation + len(x)] @ kernel[:, :, tap].T.astype(np.float64)
        for tap in range(NUM_TAPS)
    ]
    return np.sum(taps, axis=0)


@pytest.mark.parametrize("separate_products", [True, False])
@pytest.mark.parametrize("dilation", [1, 3, 9])
@pytest.mark.parametrize("sizes", [[1], [12], [54], [5, 60, 1, 17]])
def test_winograd_convolution(dilation, sizes, separate_products, tmp_path, monkeypatch):
    if separate_products:
        monkeypatch.setattr(convolution, "_MIN_WIDTH_FOR_SEPARATE_PRODUCTS", 1)
    site = make_site(dilation)
    x = make_input(sum(sizes))
    session = open_convolution(tmp_path, winograd_conv, site)
    got = run_in_pieces(session, site, x, sizes)
    np.testing.assert_allclose(got, convolve(x, site.kernel, dilation), atol=1e-4)


@pytest.mark.parametrize("dilation", [1, 3, 9])
@pytest.mark.parametrize("sizes", [[1], [83], [5, 60, 1, 17]])
def test_quantized_convolution_multiplies_the_rounded_values(dilation, sizes, tmp_path):
    site = make_site(dilation)
    x = make_input(sum(sizes))
    session = open_convolution(tmp_path, partial(int8_conv, ranges={"state": (-2.0, 2.5)}), site)
    got = run_in_pieces(session, site, x, sizes)
    scale, zero_point = np.float32(4.5 / 255), 113
    integers = np.clip(np.rint(x / scale) + zero_point, 0, 255) - zero_point
    steps = np.abs(site.kernel).max((1, 2), keepdims=True) / 127
    weights = np.rint(site.kernel / steps) * steps
    np.testing.assert_allclose(got, convolve(integers * scale, weights, dilation), atol=1e-4)


def test_inputs_that_are_all_zero_are_quantised_too(tmp_path):
    session = open_convolution(
        tmp_path, partial(int8_conv, ranges={"state": (0.0, 0.0)}), make_site(1)
    )
    got = run_in_pieces(session, make_site(1), np.zeros((3, WIDTH_IN), np.float32), [3])
    np.testing.assert_array_equal(got, np.zeros((3, WIDTH_OUT)))


def test_calibration_returns_the_extremes_and_changes_nothing(tmp_path):
    site, x = make_site(1), make_input(20)
    session = open_convolution(tmp_path, calibration_conv, site)
    feeds = {"x": x, "state": np.zeros((6, WIDTH_IN), np.float32)}
    y, low, high = session.run(["y", "low_state", "high_state"], feeds)
    assert (low, high) == (x.min(), x.max())
    np.testing.assert_allclose(y, convolve(x, site.kernel, 1), atol=1e-4)


@pytest.mark.parametrize("taps_per_phase", [1, 2])
def test_polyphase_is_the_transposed_convolution(taps_per_phase):
    rng = np.random.default_rng(11)
    rate, width_in, width_out, count = 3, 2, 4, 5
    kernel = rng.standard_normal((width_in, width_out, rate * taps_per_phase))
    x = rng.standard_normal((count, width_in))
    full = np.zeros((rate * (count + taps_per_phase - 1), width_out))
    for time, row in enumerate(x):
        full[rate * time : rate * (time + taps_per_phase)] += np.einsum("i,iok->ko", row, kernel)
    phases = polyphase(kernel, rate)
    padded = np.concatenate([np.zeros((taps_per_phase - 1, width_in)), x])
    windows = np.lib.stride_tricks.sliding_window_view(padded, taps_per_phase, axis=0)
    outputs = np.einsum("roin,tin->tro", phases, windows).reshape(-1, width_out)
    np.testing.assert_allclose(outputs, full[: rate * count])


@pytest.fixture(scope="module")
def scheme():
    return winograd_matrices()


def direct(inputs, taps):
    return np.array([taps @ inputs[start : start + NUM_TAPS] for start in range(NUM_OUTPUTS)])


def test_products_at_the_points_give_the_sums(scheme):
    to_outputs, to_weights, to_inputs = scheme
    rng = np.random.default_rng(0)
    for _ in range(20):
        inputs, taps = rng.standard_normal(NUM_POINTS), rng.standard_normal(NUM_TAPS)
        products = (to_weights @ taps) * (to_inputs @ inputs)
        np.testing.assert_allclose(to_outputs @ products, direct(inputs, taps), atol=1e-12)


@pytest.mark.parametrize("offset", [0.0, 5.0])
def test_float32_keeps_a_relative_error_of_a_few_millionths(scheme, offset):
    """With white noise, and with an offset, which the squared sine of a snake always has."""
    to_outputs, to_weights, to_inputs = scheme
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
    points = np.tensordot(to_inputs.astype(np.float32), inputs.astype(np.float32), axes=1)
    weights = (to_weights @ taps).astype(np.float32)
    products = np.einsum("kc,kct->kt", weights, points)
    got = to_outputs.astype(np.float32) @ products
    error = np.sqrt(((got - exact) ** 2).mean() / (exact**2).mean())
    assert error < 1e-5
