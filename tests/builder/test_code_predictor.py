import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.builder.graph_runner import Draws, PredictorGraph

CASES = [("0.6B", 16), ("1.7B", 16), ("0.6B", 8), ("1.7B", 4), ("0.6B", 2)]


def random_hidden(model, rng, num_lanes):
    """Return vectors as the talker makes them: about 1 in every element."""
    return rng.standard_normal((num_lanes, model.talker_config["hidden_size"])).astype(np.float32)


@pytest.mark.parametrize(("size", "groups"), CASES)
def test_greedy_codes_equal_the_oracle(size, groups, predictor_path, oracle, rng):
    model = oracle(size, groups)
    hidden = random_hidden(model, rng, 5)
    code0 = rng.integers(0, model.codebook_size, 5)
    codes, _ = PredictorGraph(predictor_path(size, groups))(hidden, code0)
    expected = [model.predict_frame(hidden[lane], int(code0[lane]))[1:] for lane in range(5)]
    np.testing.assert_array_equal(codes, expected)


@pytest.mark.parametrize(("size", "groups"), CASES)
def test_scores_of_forced_codes_equal_the_oracle(size, groups, predictor_path, oracle, rng):
    model = oracle(size, groups)
    hidden = random_hidden(model, rng, 3)
    forced = rng.integers(0, model.codebook_size, (3, groups))
    codes, scores = PredictorGraph(predictor_path(size, groups))(
        hidden, forced[:, 0], Draws(forced_codes=forced[:, 1:])
    )
    np.testing.assert_array_equal(codes, forced[:, 1:])
    for lane in range(3):
        expected = model.predictor_logits(hidden[lane], forced[lane])
        np.testing.assert_allclose(scores[lane], expected, atol=1e-4)


def test_some_codes_forced_and_the_others_free(predictor_path, oracle, rng):
    model = oracle()
    hidden = random_hidden(model, rng, 1)
    forced = np.full((1, 15), -1)
    forced[0, 4] = 33
    codes, scores = PredictorGraph(predictor_path())(hidden, [3], Draws(forced_codes=forced))
    assert codes[0, 4] == 33
    free = forced[0] < 0
    np.testing.assert_array_equal(codes[0, free], scores[0].argmax(-1)[free])


def test_lanes_do_not_disturb_each_other(predictor_path, oracle, rng):
    graph = PredictorGraph(predictor_path("1.7B"))
    hidden = random_hidden(oracle("1.7B"), rng, 4)
    code0 = rng.integers(0, 64, 4)
    uniforms = rng.random((4, 15))
    together, _ = graph(hidden, code0, Draws(uniforms, temperature=0.9, top_k=50))
    for lane in range(4):
        one = slice(lane, lane + 1)
        alone, _ = graph(hidden[one], code0[one], Draws(uniforms[one], temperature=0.9, top_k=50))
        np.testing.assert_array_equal(alone[0], together[lane])


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_lane_without_finite_scores_gets_no_codes(value, predictor_path, oracle, rng):
    graph = PredictorGraph(predictor_path())
    hidden = random_hidden(oracle(), rng, 3)
    expected, _ = graph(hidden, [1, 2, 3])
    hidden[1, 7] = value
    codes, _ = graph(hidden, [1, 2, 3])
    np.testing.assert_array_equal(codes[1], -1)
    np.testing.assert_array_equal(codes[[0, 2]], expected[[0, 2]])


def official_probabilities(scores, temperature, top_k, top_p):
    """Return probabilities (C,) as the official processors make them, in their order.

    Ported from: huggingface/transformers logits_process.py TemperatureLogitsWarper,
    TopKLogitsWarper, TopPLogitsWarper.
    """
    scores = scores.astype(np.float64) / temperature
    top_k = min(top_k, len(scores))
    scores = np.where(scores < np.sort(scores)[-top_k], -np.inf, scores)
    if top_p < 1:
        ascending = np.argsort(scores)
        cumulative = np.cumsum(softmax(scores)[ascending])
        dropped = cumulative <= 1 - top_p
        dropped[-1] = False
        scores[ascending[dropped]] = -np.inf
    return softmax(scores)


def softmax(scores):
    exponentials = np.exp(scores - scores.max())
    return exponentials / exponentials.sum()


@pytest.mark.parametrize("step", [0, 2])
@pytest.mark.parametrize(
    ("temperature", "top_k", "top_p"),
    [(0.9, 50, 1.0), (1.0, 64, 1.0), (0.7, 20, 0.8), (2.5, 64, 0.3), (1.3, 5, 0.95), (0.9, 1, 0.5)],
)
def test_draws_follow_the_official_distribution(
    step, temperature, top_k, top_p, predictor_path, oracle, rng
):
    # One draw for each of 1000 evenly spaced uniforms: counts are probabilities, but for rounding.
    num_draws = 1000
    hidden = np.repeat(random_hidden(oracle("0.6B", 4), rng, 1), num_draws, axis=0)
    uniforms = np.zeros((num_draws, 3))
    uniforms[:, step] = (np.arange(num_draws) + 0.5) / num_draws
    forced = np.full((num_draws, 3), 5)
    forced[:, step] = -1
    codes, scores = PredictorGraph(predictor_path("0.6B", 4))(
        hidden, np.full(num_draws, 9), Draws(uniforms, temperature, top_k, top_p, forced)
    )
    drawn = np.bincount(codes[:, step], minlength=scores.shape[-1]) / num_draws
    expected = official_probabilities(scores[0, step], temperature, top_k, top_p)
    np.testing.assert_allclose(drawn, expected, atol=1.5 / num_draws)


@settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    # No subnormal numbers: the runtime's sessions make the process flush them to zero.
    uniform=st.floats(0, 1, exclude_max=True, width=32, allow_subnormal=False),
    temperature=st.floats(0.05, 5),
    top_k=st.integers(1, 64),
    top_p=st.floats(0.01, 1),
    seed=st.integers(0, 1000),
)
def test_every_draw_is_one_of_the_kept_codes(
    predictor_path, oracle, uniform, temperature, top_k, top_p, seed
):
    graph = PredictorGraph(predictor_path("0.6B", 4))
    hidden = random_hidden(oracle("0.6B", 4), np.random.default_rng(seed), 2)
    uniforms = np.array([[uniform] * 3, [0] * 3])
    codes, scores = graph(hidden, [1, 2], Draws(uniforms, temperature, top_k, top_p))
    ranks = (scores > np.take_along_axis(scores, codes[..., None], -1)).sum(-1)
    assert np.all(ranks < top_k)
    # A uniform of 0 takes the most probable code whatever the other controls say.
    np.testing.assert_array_equal(ranks[1], 0)


def test_lanes_keep_their_own_top_k(predictor_path, oracle, rng):
    graph = PredictorGraph(predictor_path("0.6B", 4))
    hidden = np.repeat(random_hidden(oracle("0.6B", 4), rng, 1), 2, axis=0)
    feeds = {
        "hidden": hidden,
        "code0": np.array([4, 4]),
        "uniforms": np.full((2, 3), 0.999, np.float32),
        "temperature": np.full(2, 5, np.float32),
        "top_k": np.array([1, 64]),
        "max_top_k": np.array([64]),
        "top_p": np.ones(2, np.float32),
        "forced_codes": np.full((2, 3), -1),
    }
    codes, scores = graph.session.run(["codes", "group_logits"], feeds)
    np.testing.assert_array_equal(codes[0], scores[0].argmax(-1))
    assert codes[1, 0] != codes[0, 0]
