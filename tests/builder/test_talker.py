import numpy as np
import onnx
import pytest

from tests.builder.graph_runner import TalkerGraph

SIZES = ["0.6B", "1.7B"]


def expected(oracle, size, inputs):
    """Return the oracle's logits (T, C + 1) and hidden (T, D) for every position."""
    model = oracle(size)
    logits, hidden = model.talker_outputs(inputs)
    eos = model.talker_config["codec_eos_token_id"]
    rows = [*range(model.codebook_size), eos]
    return logits[:, rows], hidden


def random_inputs(oracle, size, rng, num_positions=11):
    width = oracle(size).talker_config["hidden_size"]
    return (0.7 * rng.standard_normal((num_positions, width))).astype(np.float32)


@pytest.mark.parametrize("size", SIZES)
def test_prefill_and_steps_equal_the_oracle(size, talker_path, oracle, rng):
    inputs = random_inputs(oracle, size, rng)
    logits, hidden = expected(oracle, size, inputs)
    graph = TalkerGraph(talker_path(size))
    got_logits, got_hidden = graph.prefill(inputs[:6])
    np.testing.assert_allclose(got_logits, logits[5], atol=1e-4)
    np.testing.assert_allclose(got_hidden, hidden[5], atol=1e-4)
    for position in range(6, len(inputs)):
        got_logits, got_hidden = graph.step(inputs[position : position + 1])
        np.testing.assert_allclose(got_logits[0], logits[position], atol=1e-4)
        np.testing.assert_allclose(got_hidden[0], hidden[position], atol=1e-4)


@pytest.mark.parametrize("cuts", [[11], [1] * 11, [4, 7], [1, 9, 1], [3, 3, 5]])
def test_any_cut_of_a_prefill_gives_the_same(cuts, talker_path, oracle, rng):
    inputs = random_inputs(oracle, "0.6B", rng)
    logits, hidden = expected(oracle, "0.6B", inputs)
    graph = TalkerGraph(talker_path())
    start = 0
    for size in cuts:
        got_logits, got_hidden = graph.prefill(inputs[start : start + size])
        start += size
    np.testing.assert_allclose(got_logits, logits[-1], atol=1e-4)
    np.testing.assert_allclose(got_hidden, hidden[-1], atol=1e-4)


@pytest.mark.parametrize("precision", ["fp32", "int8"])
def test_lanes_of_different_lengths_do_not_disturb_each_other(precision, talker_path, oracle, rng):
    lanes = [random_inputs(oracle, "0.6B", rng) for _ in range(3)]
    lengths = [7, 2, 4]
    path = talker_path("0.6B", precision)
    together = TalkerGraph(path, num_lanes=3)
    alone = [TalkerGraph(path) for _ in lanes]
    for lane, length in enumerate(lengths):
        together.prefill(lanes[lane][:length], lane)
        alone[lane].prefill(lanes[lane][:length])
    for _ in range(4):
        inputs = np.stack([lanes[lane][lengths[lane]] for lane in range(3)])
        logits, hidden = together.step(inputs)
        for lane, graph in enumerate(alone):
            lane_logits, lane_hidden = graph.step(inputs[lane : lane + 1])
            np.testing.assert_allclose(logits[lane], lane_logits[0], atol=1e-4)
            np.testing.assert_allclose(hidden[lane], lane_hidden[0], atol=1e-4)
        lengths = [length + 1 for length in lengths]


def test_a_rewound_lane_overwrites_what_it_forgot(talker_path, oracle, rng):
    inputs = random_inputs(oracle, "0.6B", rng)
    graph = TalkerGraph(talker_path())
    graph.prefill(inputs[:5])
    graph.prefill(-inputs[5:9])
    graph.lengths[0] = 5
    logits, _ = graph.prefill(inputs[5:9])
    np.testing.assert_allclose(logits, expected(oracle, "0.6B", inputs[:9])[0][-1], atol=1e-4)


def test_the_cache_is_written_in_place(talker_path, oracle, rng):
    graph = TalkerGraph(talker_path(), capacity=16)
    graph.prefill(random_inputs(oracle, "0.6B", rng, 5))
    for block in graph.cache.values():
        assert np.all(np.any(block[0, :, :5] != 0, axis=-1))
        assert not np.any(block[0, :, 5:])


def test_the_head_has_the_codes_and_end_of_speech_only(talker_path, oracle):
    model = onnx.load(talker_path(), load_external_data=False)
    outputs = {value.name: value for value in model.graph.output}
    (_, width) = outputs["logits"].type.tensor_type.shape.dim
    assert width.dim_value == oracle().codebook_size + 1
