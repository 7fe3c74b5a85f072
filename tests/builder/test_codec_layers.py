"""The codec's shared blocks against numpy, one small graph each."""

import numpy as np
import pytest

from wyoming_qwen3tts.builder.config import TransformerConfig
from wyoming_qwen3tts.builder.graphs.codec import snake
from wyoming_qwen3tts.builder.graphs.graph import GraphBuilder
from wyoming_qwen3tts.builder.graphs.tensor_graph import TensorGraph
from wyoming_qwen3tts.runtime.graphs import open_session


@pytest.fixture
def rng():
    return np.random.default_rng(11)


def transformer(num_kv_heads):
    return TransformerConfig(
        hidden_size=24,
        intermediate_size=48,
        num_layers=1,
        num_heads=4,
        num_kv_heads=num_kv_heads,
        head_size=6,
        norm_eps=1e-5,
        rope_theta=1e4,
    )


def evaluate(tmp_path, build, rank, **inputs):
    """Build a graph with inputs of these names and return its one output."""
    with GraphBuilder("block", tmp_path) as graph:
        values = [
            graph.input(name, array.dtype.type, [f"{name}{axis}" for axis in range(array.ndim)])
            for name, array in inputs.items()
        ]
        graph.output(build(graph, *values), "result", np.float32, [None] * rank)
    session = open_session(graph.path, num_threads=2)
    return session.run(None, inputs)[0]


def test_snake_stays_within_a_millionth_over_many_periods(tmp_path):
    width = 5
    alpha = np.linspace(-1.0, 1.0, width, dtype=np.float32)[:, None]
    beta = np.linspace(1.0, -1.0, width, dtype=np.float32)[:, None]
    x = np.tile(np.linspace(-20, 20, 20001, dtype=np.float32), (width, 1))
    a, b = np.exp(alpha.astype(np.float64)), np.exp(beta.astype(np.float64)) + 1e-9
    phase, amplitude = a / np.pi, 1 / np.sqrt(b)

    def build(graph, x):
        return snake(graph, x, x * phase.astype(np.float32), "act", amplitude)

    got = evaluate(tmp_path, build, 2, x=x)
    exact = x + np.sin(x * a) ** 2 / b
    # Besides the polynomial's own error, a float32 phase of 50 radians is good to 4e-6.
    np.testing.assert_allclose(got, exact, atol=3e-5)
    near = np.abs(x[0]) < 2
    np.testing.assert_allclose(got[:, near], exact[:, near], atol=5e-6)


@pytest.mark.parametrize("start", [0, 71, 8000, 1_000_003])
def test_rotary_tables_are_exact_for_late_positions(start, tmp_path):
    def build(graph, start):
        tables = TensorGraph(graph, None, "").rotary(start, 2, transformer(1))
        return graph.op("Concat", tables, axis=0)

    got = evaluate(tmp_path, build, 3, start=np.array(start))
    positions = np.array([start, start + 1])
    angles = positions[:, None] * 1e4 ** -(np.arange(0, 6, 2) / 6)
    np.testing.assert_allclose(got, [np.cos(angles), np.sin(angles)], atol=1e-6)


@pytest.mark.parametrize("window", [None, 2, 3])
def test_mask_shows_the_past_within_the_window(window, tmp_path):
    def build(graph, queries, keys):
        return TensorGraph(graph, None, "").causal_mask(queries, keys, window)

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
        return TensorGraph(graph, None, "").attend(*inputs, transformer(num_kv_heads))

    got = evaluate(tmp_path, build, 2, query=query, key=key, value=value, mask=mask)
    key, value = (np.repeat(x, heads // num_kv_heads, axis=1) for x in (key, value))
    scores = np.exp(query @ key.transpose(0, 1, 3, 2) + mask)
    mixed = scores / scores.sum(-1, keepdims=True) @ value
    np.testing.assert_allclose(got, mixed[0].transpose(1, 0, 2).reshape(3, -1), atol=1e-6)
