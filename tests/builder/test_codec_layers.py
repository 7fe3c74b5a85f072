"""The codec's shared blocks against numpy, one small graph each."""

import numpy as np
import pytest

from wyoming_qwen3tts.builder import codec_layers
from wyoming_qwen3tts.builder.graph import GraphBuilder
from wyoming_qwen3tts.runtime.graphs import open_session


@pytest.fixture
def rng():
    return np.random.default_rng(11)


def evaluate(tmp_path, build, rank, **inputs):
    """Build a graph with inputs of these names and return its one output."""
    with GraphBuilder("block", tmp_path) as graph:
        values = [
            graph.input(name, array.dtype.type, [f"{name}{axis}" for axis in range(array.ndim)])
            for name, array in inputs.items()
        ]
        graph.output(build(graph, *values), "result", np.float32, [None] * rank)
        graph.save()
    session = open_session(graph.path, num_threads=2)
    return session.run(None, inputs)[0]


def test_snake_stays_within_a_millionth_over_many_periods(tmp_path):
    width = 5
    alpha = np.linspace(-1.0, 1.0, width, dtype=np.float32)[:, None]
    beta = np.linspace(1.0, -1.0, width, dtype=np.float32)[:, None]
    x = np.tile(np.linspace(-20, 20, 20001, dtype=np.float32), (width, 1))
    parameters = codec_layers.SnakeParameters.from_logarithms(alpha, beta)

    def build(graph, x):
        half_turns = graph.op("Mul", [x, graph.constant(parameters.half_turns, np.float32)])
        return codec_layers.add_squared_sine(graph, x, half_turns, "act", parameters.amplitude)

    got = evaluate(tmp_path, build, 2, x=x)
    a, b = np.exp(alpha.astype(np.float64)), np.exp(beta.astype(np.float64)) + 1e-9
    exact = x + np.sin(x * a) ** 2 / b
    # Besides the polynomial's own error, a float32 phase of 50 radians is good to 4e-6.
    np.testing.assert_allclose(got, exact, atol=3e-5)
    near = np.abs(x[0]) < 2
    np.testing.assert_allclose(got[:, near], exact[:, near], atol=5e-6)


def test_rotary_tables_are_exact_for_late_positions(tmp_path):
    positions = np.array([0, 1, 71, 8000, 1_000_003], np.int64)

    def build(graph, positions):
        tables = codec_layers.rotary(graph, positions, head_size=8, theta=1e4)
        return graph.op("Concat", [tables.cosine, tables.sine], axis=0)

    got = evaluate(tmp_path, build, 3, positions=positions)
    angles = positions[:, None] * 1e4 ** -(np.arange(0, 8, 2) / 8)
    np.testing.assert_allclose(got, [np.cos(angles), np.sin(angles)], atol=1e-6)


@pytest.mark.parametrize("window", [None, 2, 3])
def test_mask_shows_the_past_within_the_window(window, tmp_path):
    def build(graph, queries, keys):
        return codec_layers.causal_mask(graph, queries, keys, window)

    got = evaluate(tmp_path, build, 2, queries=np.array(3), keys=np.array(5))
    expected = [
        [key <= query and (window is None or key > query - window) for key in range(5)]
        for query in (2, 3, 4)
    ]
    np.testing.assert_array_equal(got == 0, expected)


@pytest.mark.parametrize("num_kv_heads", [1, 2, 4])
def test_query_heads_share_key_heads(num_kv_heads, tmp_path, rng):
    heads, head_size = 4, 6
    query = rng.standard_normal((1, heads, 3, head_size)).astype(np.float32)
    key, value = rng.standard_normal((2, 1, num_kv_heads, 5, head_size)).astype(np.float32)
    mask = np.zeros((3, 5), np.float32)
    mask[0, 4] = -1e30

    def build(graph, *inputs):
        return codec_layers.attend(
            graph, *inputs, num_heads=heads, num_kv_heads=num_kv_heads, head_size=head_size
        )

    got = evaluate(tmp_path, build, 2, query=query, key=key, value=value, mask=mask)
    key, value = (np.repeat(x, heads // num_kv_heads, axis=1) for x in (key, value))
    scores = np.exp(query @ key.transpose(0, 1, 3, 2) + mask)
    mixed = scores / scores.sum(-1, keepdims=True) @ value
    np.testing.assert_allclose(got, mixed[0].transpose(1, 0, 2).reshape(3, -1), atol=1e-6)


@pytest.mark.parametrize("taps_per_phase", [1, 2])
def test_polyphase_is_the_transposed_convolution(taps_per_phase, rng):
    rate, width_in, width_out, count = 3, 2, 4, 5
    kernel = rng.standard_normal((width_in, width_out, rate * taps_per_phase))
    x = rng.standard_normal((count, width_in))
    full = np.zeros((rate * (count + taps_per_phase - 1), width_out))
    for time, row in enumerate(x):
        full[rate * time : rate * (time + taps_per_phase)] += np.einsum("i,iok->ko", row, kernel)
    phases = codec_layers.polyphase(kernel, rate)
    padded = np.concatenate([np.zeros((taps_per_phase - 1, width_in)), x])
    windows = np.lib.stride_tricks.sliding_window_view(padded, taps_per_phase, axis=0)
    outputs = np.einsum("roin,tin->tro", phases, windows).reshape(-1, width_out)
    np.testing.assert_allclose(outputs, full[: rate * count])
