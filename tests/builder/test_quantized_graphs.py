"""int8 and int4 graphs against float32 graphs that hold the dequantised weights.

Without quantised activations (accuracy level 0) both compute the same, to float32 rounding. The
graphs that are shipped quantise activations to 8 bits as well, which costs about half a percent per
matrix product: 3 % of the result after the few layers of a tiny model.
"""

from dataclasses import replace

import numpy as np
import onnx
import pytest

from tests.builder.graph_runner import Draws, PredictorGraph, TalkerGraph, dequantize
from wyoming_qwen3tts.builder.checkpoint import Checkpoint, TensorFile
from wyoming_qwen3tts.builder.graphs.code_predictor import build_code_predictor
from wyoming_qwen3tts.builder.graphs.lm import build_talker
from wyoming_qwen3tts.builder.graphs.quantize import block_size_for, quantize
from wyoming_qwen3tts.builder.recipe import uniform_recipe

EXACT = 0
SHIPPED = 4
TOLERANCE = {EXACT: 2e-5, SHIPPED: 0.03}
LINEAR = ("_proj.weight", "lm_head", "codec_head")


class DequantizedFile(TensorFile):
    """Gives back what a quantised graph would multiply with."""

    def __init__(self, path, recipe):
        super().__init__(path)
        self.recipe = recipe

    def read(self, name, shape):
        tensor = super().read(name, shape)
        if not any(part in name for part in LINEAR) or tensor.ndim != 2:
            return tensor
        bits = 8 if self.recipe.name == "int8" or "codec_head" in name else 4
        block_size = block_size_for(tensor.shape[1], self.recipe.block_size)
        return dequantize(quantize(tensor, bits, block_size), bits)


def set_accuracy_level(path, level):
    model = onnx.load(path, load_external_data=False)
    for node in model.graph.node:
        for attribute in node.attribute:
            if attribute.name == "accuracy_level":
                attribute.i = level
    path.write_bytes(model.SerializeToString())


def relative_error(got, expected):
    return np.linalg.norm(got - expected) / np.linalg.norm(expected)


@pytest.mark.parametrize("level", [EXACT, SHIPPED])
@pytest.mark.parametrize("precision", ["int8", "int4"])
def test_talker(precision, level, tiny, tmp_path, rng):
    checkpoint = Checkpoint.open(tiny("1.7B"))
    recipe = uniform_recipe(precision)
    dequantized = DequantizedFile(checkpoint.main.path, recipe)
    paths = {name: tmp_path / name for name in ("quantized", "float")}
    for path in paths.values():
        path.mkdir()
    build_talker(checkpoint.main, checkpoint.talker, recipe, paths["quantized"])
    set_accuracy_level(paths["quantized"] / "talker.onnx", level)
    build_talker(dequantized, checkpoint.talker, uniform_recipe("fp32"), paths["float"])
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
    recipe = uniform_recipe(precision)
    recipe = replace(recipe, code_predictor=replace(recipe.code_predictor, projection="fp32"))
    build_code_predictor(checkpoint.main, config, recipe, paths["quantized"])
    set_accuracy_level(paths["quantized"] / "code_predictor.onnx", level)
    dequantized = DequantizedFile(checkpoint.main.path, recipe)
    float_recipe = replace(uniform_recipe("fp32"), embeddings="fp16")
    build_code_predictor(dequantized, config, float_recipe, paths["float"])
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
    float_recipe = uniform_recipe("fp32")
    outputs = []
    for name, projection in (("a", "fp32"), ("b", "int8")):
        (tmp_path / name).mkdir()
        predictor = replace(float_recipe.code_predictor, projection=projection)
        recipe = replace(float_recipe, code_predictor=predictor)
        build_code_predictor(checkpoint.main, config, recipe, tmp_path / name)
        hidden = np.random.default_rng(1).standard_normal((3, config.talker_hidden_size))
        draws = Draws(forced_codes=np.zeros((3, 3)))
        graph = PredictorGraph(tmp_path / name / "code_predictor.onnx")
        outputs.append(graph(hidden, [1, 2, 3], draws)[1])
    assert 0 < relative_error(*outputs) < TOLERANCE[SHIPPED]
