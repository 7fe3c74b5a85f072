"""Graphs for CUDA compute in float16. The CPU runs them too, which checks them as far as it can."""

import numpy as np
import onnx
import pytest

from tests.builder.graph_runner import Draws, PredictorGraph, TalkerGraph
from tests.oracle.language_model import DecoderStack
from wyoming_qwen3tts.builder.checkpoint import Checkpoint
from wyoming_qwen3tts.builder.recipe import uniform_recipe
from wyoming_qwen3tts.builder.talker import build_talker
from wyoming_qwen3tts.builder.weights import Numerics

TOLERANCE = {"fp16": 0.01, "int8": 0.06, "int4": 0.5}


def relative_error(got, expected):
    return np.linalg.norm(got - expected) / np.linalg.norm(expected)


@pytest.mark.parametrize("precision", TOLERANCE)
@pytest.mark.parametrize("size", ["0.6B", "1.7B"])
def test_talker(size, precision, talker_path, oracle, rng):
    model = oracle(size)
    inputs = rng.standard_normal((7, model.talker_config["hidden_size"])).astype(np.float32)
    _, hidden = model.talker_outputs(inputs)
    graph = TalkerGraph(talker_path(size, precision, "cuda"))
    assert all(block.dtype == np.float16 for block in graph.cache.values())
    _, got = graph.prefill(inputs[:5])
    assert got.dtype == np.float32
    assert relative_error(got, hidden[4]) < TOLERANCE[precision]
    _, got = graph.step(inputs[5:6])
    assert relative_error(got[0], hidden[5]) < TOLERANCE[precision]


@pytest.mark.parametrize("precision", TOLERANCE)
@pytest.mark.parametrize("size", ["0.6B", "1.7B"])
def test_code_predictor(size, precision, predictor_path, oracle, rng):
    model = oracle(size, 4)
    hidden = rng.standard_normal((3, model.talker_config["hidden_size"])).astype(np.float32)
    forced = rng.integers(0, model.codebook_size, (3, 4))
    graph = PredictorGraph(predictor_path(size, 4, precision, "cuda"))
    _, scores = graph(hidden, forced[:, 0], Draws(forced_codes=forced[:, 1:]))
    expected = [model.predictor_logits(hidden[lane], forced[lane]) for lane in range(3)]
    assert scores.dtype == np.float32
    assert relative_error(scores, np.array(expected)) < TOLERANCE[precision]


@pytest.mark.parametrize("weight", ["self_attn.o_proj", "mlp.up_proj"])
def test_large_activations_do_not_overflow(weight, tiny, tmp_path, rng):
    # Trained models have vectors of more than 65504 between layers and inside an MLP.
    name, factor = f"talker.model.layers.0.{weight}.weight", 2.0**16
    checkpoint = Checkpoint.open(tiny())
    read = checkpoint.main.read
    weights = {
        key: read(key, checkpoint.main.shape(key))
        for key in checkpoint.main.names
        if "talker." in key
    }
    weights[name] *= factor
    checkpoint.main.read = lambda key, _shape: weights[key].copy()
    transformer = checkpoint.talker.transformer
    build_talker(
        checkpoint.main,
        checkpoint.talker,
        uniform_recipe("fp16").talker,
        Numerics.half_precision(),
        tmp_path,
    )
    inputs = rng.standard_normal((5, transformer.hidden_size)).astype(np.float32)
    config = {
        "num_hidden_layers": transformer.num_layers,
        "num_attention_heads": transformer.num_heads,
        "num_key_value_heads": transformer.num_kv_heads,
        "rope_theta": transformer.rope_theta,
        "rms_norm_eps": transformer.norm_eps,
    }
    expected = DecoderStack(weights, "talker.model", config)(inputs)[-1]
    _, got = TalkerGraph(tmp_path / "talker.onnx").prefill(inputs)
    assert relative_error(got, expected) < 0.02


def test_all_large_work_is_in_half_precision(talker_path):
    model = onnx.load(talker_path("0.6B", "fp16", "cuda"), load_external_data=False)
    types = {tensor.name: tensor.data_type for tensor in model.graph.initializer}
    for node in model.graph.node:
        if node.op_type in {"MatMul", "GroupQueryAttention"}:
            weights = [types[name] for name in node.input if name in types]
            assert set(weights) == {onnx.TensorProto.FLOAT16}
