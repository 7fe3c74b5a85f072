"""int8 and int4 graphs against float32 graphs that hold the dequantised weights.

Without quantised activations (accuracy level 0) both compute the same, to float32 rounding. The
graphs that are shipped quantise activations to 8 bits as well, which costs about half a percent per
matrix product: 3 % of the result after the few layers of a tiny model.
"""

from dataclasses import replace

import numpy as np
import pytest

from tests.builder.graph_runner import Draws, PredictorGraph, TalkerGraph
from wyoming_qwen3tts.builder.checkpoint import Checkpoint, TensorFile
from wyoming_qwen3tts.builder.code_predictor import build_code_predictor
from wyoming_qwen3tts.builder.quantize import block_size_for, dequantize, quantize
from wyoming_qwen3tts.builder.recipe import uniform_recipe
from wyoming_qwen3tts.builder.talker import build_talker
from wyoming_qwen3tts.builder.weights import Numerics

EXACT = 0
SHIPPED = 4
TOLERANCE = {EXACT: 2e-5, SHIPPED: 0.03}
LINEAR = ("_proj.weight", "lm_head", "codec_head")


class DequantizedFile(TensorFile):
    """Gives back what a quantised graph would multiply with."""

    def __init__(self, path, precision):
        super().__init__(path)
        self.precision = precision

    def read(self, name, shape):
        tensor = super().read(name, shape)
        if not any(part in name for part in LINEAR) or tensor.ndim != 2:
            return tensor
        bits = 8 if self.precision == "int8" or "codec_head" in name else 4
        block_size = block_size_for(tensor.shape[1], uniform_recipe(self.precision).block_size)
        return dequantize(quantize(tensor, bits, block_size))


def relative_error(got, expected):
    return np.linalg.norm(got - expected) / np.linalg.norm(expected)


@pytest.mark.parametrize("level", [EXACT, SHIPPED])
@pytest.mark.parametrize("precision", ["int8", "int4"])
def test_talker(precision, level, tiny, tmp_path, rng):
    checkpoint = Checkpoint.open(tiny("1.7B"))
    dequantized = DequantizedFile(checkpoint.main.path, precision)
    paths = {name: tmp_path / name for name in ("quantized", "float")}
    for path in paths.values():
        path.mkdir()
    recipe = uniform_recipe(precision)
    numerics = Numerics(block_size=recipe.block_size, accuracy_level=level)
    build_talker(checkpoint.main, checkpoint.talker, recipe.talker, numerics, paths["quantized"])
    recipe = uniform_recipe("fp32").talker
    build_talker(dequantized, checkpoint.talker, recipe, Numerics(), paths["float"])
    inputs = rng.standard_normal((8, checkpoint.talker.transformer.hidden_size))
    graphs = [TalkerGraph(path / "talker.onnx") for path in paths.values()]
    for got, expected in zip(*(graph.prefill(inputs) for graph in graphs), strict=True):
        assert relative_error(got, expected) < TOLERANCE[level]
    for got, expected in zip(*(graph.step(inputs[:1]) for graph in graphs), strict=True):
        assert relative_error(got, expected) < TOLERANCE[level]


@pytest.mark.parametrize("level", [EXACT, SHIPPED])
@pytest.mark.parametrize("precision", ["int8", "int4"])
def test_code_predictor(precision, level, tiny, tmp_path, rng):
    checkpoint = Checkpoint.open(tiny("1.7B", 4))
    config = checkpoint.code_predictor
    paths = {name: tmp_path / name for name in ("quantized", "float")}
    for path in paths.values():
        path.mkdir()
    # The projection is folded into tables from the float weight, so it stays float here.
    recipe = replace(uniform_recipe(precision).code_predictor, projection="fp32")
    numerics = Numerics(block_size=uniform_recipe(precision).block_size, accuracy_level=level)
    build_code_predictor(checkpoint.main, config, recipe, numerics, paths["quantized"])
    build_code_predictor(
        DequantizedFile(checkpoint.main.path, precision),
        config,
        uniform_recipe("fp32").code_predictor,
        Numerics(),
        paths["float"],
    )
    hidden = rng.standard_normal((3, config.talker_hidden_size))
    draws = Draws(forced_codes=rng.integers(0, config.codebook_size, (3, 3)))
    (_, got), (_, expected) = (
        PredictorGraph(path / "code_predictor.onnx")(hidden, [1, 2, 3], draws)
        for path in paths.values()
    )
    assert relative_error(got, expected) < TOLERANCE[level]


def test_a_quantised_projection_is_near_the_float_one(tiny, tmp_path, rng):
    checkpoint = Checkpoint.open(tiny("1.7B", 4))
    config = checkpoint.code_predictor
    float_recipe = uniform_recipe("fp32").code_predictor
    outputs = []
    for name, projection in (("a", "fp32"), ("b", "int8")):
        (tmp_path / name).mkdir()
        recipe = replace(float_recipe, projection=projection)
        build_code_predictor(checkpoint.main, config, recipe, Numerics(), tmp_path / name)
        hidden = np.random.default_rng(1).standard_normal((3, config.talker_hidden_size))
        draws = Draws(forced_codes=np.zeros((3, 3)))
        graph = PredictorGraph(tmp_path / name / "code_predictor.onnx")
        outputs.append(graph(hidden, [1, 2, 3], draws)[1])
    assert 0 < relative_error(*outputs) < TOLERANCE[SHIPPED]
