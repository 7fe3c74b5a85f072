from pathlib import Path

import pytest

from wyoming_qwen3tts.builder.recipe import (
    PRECISIONS,
    CodePredictorPrecision,
    TalkerPrecision,
    load_recipe,
    uniform_recipe,
)
from wyoming_qwen3tts.errors import BuildError

SHIPPED = sorted((Path(__file__).parents[2] / "config" / "recipes").glob("*.yaml"))

RECIPE = """
talker: {layers: int8, head: int4}
code_predictor: {layers: int8, heads: int4, projection: fp32}
embeddings: fp16
"""


def write(tmp_path, text):
    path = tmp_path / "mixed.yaml"
    path.write_text(text)
    return path


def test_a_file_gives_each_part_its_precision(tmp_path):
    recipe = load_recipe(write(tmp_path, RECIPE + "block_size: 64\n"))
    assert recipe.name == "mixed"
    assert recipe.block_size == 64
    assert recipe.embeddings == "fp16"
    assert recipe.talker == TalkerPrecision("int8", "int4")
    assert recipe.code_predictor == CodePredictorPrecision("int8", "int4", "fp32")


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.stem)
def test_shipped_recipes_load(path):
    assert load_recipe(path).name == path.stem


def test_there_are_shipped_recipes():
    assert SHIPPED


@pytest.mark.parametrize("precision", PRECISIONS)
def test_embeddings_are_never_quantised(precision):
    recipe = uniform_recipe(precision)
    assert recipe.embeddings == ("fp32" if precision == "fp32" else "fp16")
    assert recipe.talker.layers == recipe.code_predictor.layers == precision


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("heads: int4", "heads: int3", "heads is 'int3'.*int8"),
        ("embeddings: fp16", "embeddings: int8", "embeddings is 'int8'"),
        ("embeddings: fp16", "", "no key 'embeddings'"),
        ("embeddings: fp16", "embeddings: fp16\nextra: 1", "unknown key 'extra'"),
        ("heads: int4, ", "", "no key 'heads'"),
        ("head: int4", "head: int4, tail: int4", "unknown key 'tail'"),
        ("embeddings: fp16", "embeddings: fp16\nblock_size: 100", "block_size is 100"),
        ("embeddings: fp16", "embeddings: fp16\nblock_size: big", "block_size is 'big'"),
        ("{layers: int8, head: int4}", "int8", "talker is 'int8'"),
        ("talker:", "talker: {", "cannot be read"),
    ],
)
def test_mistakes_are_named(tmp_path, old, new, message):
    with pytest.raises(BuildError, match=message):
        load_recipe(write(tmp_path, RECIPE.replace(old, new)))


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(BuildError, match=r"absent\.yaml cannot be read"):
        load_recipe(tmp_path / "absent.yaml")


def test_the_codec_is_float32_unless_the_recipe_says_otherwise(tmp_path):
    assert uniform_recipe("int4").codec_decoder == "fp32"
    with pytest.raises(BuildError, match="codec_decoder is 'int4'"):
        load_recipe(write(tmp_path, RECIPE + "codec_decoder: int4\n"))


def test_quantisation_blocks_are_short():
    assert uniform_recipe("int8").block_size == 64
    assert uniform_recipe("int4").block_size == 32
