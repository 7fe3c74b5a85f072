"""The residual units' convolutions against plain sums, in one call and in several."""

import numpy as np
import pytest

from wyoming_qwen3tts.builder import codec_convolution
from wyoming_qwen3tts.builder.codec_convolution import (
    ConvolutionSite,
    FilteredConvolution,
    ObservedConvolution,
    QuantizedConvolution,
    ValueRange,
)
from wyoming_qwen3tts.builder.codec_layers import StreamStates
from wyoming_qwen3tts.builder.graph import GraphBuilder
from wyoming_qwen3tts.runtime.graphs import open_session

WIDTH_IN, WIDTH_OUT, NUM_TAPS = 3, 5, 7


def make_site(dilation):
    rng = np.random.default_rng(dilation)
    kernel = rng.standard_normal((WIDTH_OUT, WIDTH_IN, NUM_TAPS)).astype(np.float32)
    return ConvolutionSite("conv", "state", kernel, dilation)


def make_input(num_rows):
    return np.random.default_rng(99).standard_normal((num_rows, WIDTH_IN)).astype(np.float32)


def open_convolution(directory, convolution, site):
    with GraphBuilder("convolution", directory) as graph:
        x = graph.input("x", np.float32, ["T", WIDTH_IN])
        y = convolution.apply(graph, StreamStates(graph), x, site)
        graph.output(y, "y", np.float32, [None, WIDTH_OUT])
        graph.save()
    return open_session(graph.path, num_threads=2)


def run_in_pieces(session, site, x, sizes):
    state = np.zeros((site.carried_rows, WIDTH_IN), np.float32)
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
def test_filtered_convolution(dilation, sizes, separate_products, tmp_path, monkeypatch):
    if separate_products:
        monkeypatch.setattr(codec_convolution, "_MIN_WIDTH_FOR_SEPARATE_PRODUCTS", 1)
    site = make_site(dilation)
    x = make_input(sum(sizes))
    session = open_convolution(tmp_path, FilteredConvolution(), site)
    got = run_in_pieces(session, site, x, sizes)
    np.testing.assert_allclose(got, convolve(x, site.kernel, dilation), atol=1e-4)


@pytest.mark.parametrize("dilation", [1, 3, 9])
@pytest.mark.parametrize("sizes", [[1], [83], [5, 60, 1, 17]])
def test_quantized_convolution_multiplies_the_rounded_values(dilation, sizes, tmp_path):
    site = make_site(dilation)
    x = make_input(sum(sizes))
    values = ValueRange(-2.0, 2.5)
    session = open_convolution(tmp_path, QuantizedConvolution({"state": values}), site)
    got = run_in_pieces(session, site, x, sizes)
    scale = np.float32(values.scale)
    integers = np.clip(np.rint(x / scale) + values.zero_point, 0, 255) - values.zero_point
    steps = np.abs(site.kernel).max((1, 2), keepdims=True) / 127
    weights = np.rint(site.kernel / steps) * steps
    np.testing.assert_allclose(got, convolve(integers * scale, weights, dilation), atol=1e-4)


def test_a_range_maps_its_ends_and_zero_to_integers():
    values = ValueRange(-1.0, 3.0)
    assert values.zero_point == 64
    assert values.low / values.scale + values.zero_point == pytest.approx(0, abs=0.5)
    assert values.high / values.scale + values.zero_point == pytest.approx(255, abs=0.5)


def test_a_range_grows_and_may_be_empty():
    assert ValueRange(-1.0, 2.0).including(-3.0, 1.0) == ValueRange(-3.0, 2.0)
    assert ValueRange(0.0, 0.0).scale > 0
    assert ValueRange(0.0, 0.0).zero_point == 0


def test_observation_tells_the_extremes_and_changes_nothing(tmp_path):
    site, x = make_site(1), make_input(20)
    session = open_convolution(tmp_path, ObservedConvolution(FilteredConvolution()), site)
    feeds = {"x": x, "state": np.zeros((6, WIDTH_IN), np.float32)}
    y, low, high = session.run(["y", "low_state", "high_state"], feeds)
    assert (low, high) == (x.min(), x.max())
    np.testing.assert_allclose(y, convolve(x, site.kernel, 1), atol=1e-4)
