import pytest

from tests.support.hub_fixtures import CHECKPOINT_PATHS
from tests.support.random_checkpoint import PUBLISHED, RandomCheckpointRecipe
from tests.support.random_checkpoint.architecture import TEMPLATES, codec_config, model_config
from tests.support.random_checkpoint.vocabulary import build_vocabulary
from wyoming_qwen3tts.models.registry import (
    expected_facts,
    find_model,
    find_ready_made,
    published_models,
    suggest_models,
)
from wyoming_qwen3tts.runtime.manifest import facts_from_checkpoint

MODELS = {(model.model_size, model.model_type): model for model in published_models()}


def test_every_published_model_is_there_once():
    assert sorted(MODELS) == sorted(PUBLISHED)
    names = [name for model in published_models() for name in model.names]
    assert len(set(names)) == len(names)


@pytest.mark.parametrize("model", published_models(), ids=lambda model: model.name)
def test_entries_are_whole(model):
    assert sorted(file.path for file in model.files) == sorted(CHECKPOINT_PATHS)
    assert all(file.bytes > 0 for file in model.files)
    assert [file.path for file in model.files][-1] == "model.safetensors"
    weights = [file for file in model.files if file.path.endswith(".safetensors")]
    assert all(len(file.sha256) == 64 for file in weights)
    assert all(set(file.sha256) <= set("0123456789abcdef") for file in model.files)
    assert len(model.revision) == 40
    assert model.licence == "Apache-2.0"
    assert model.features


def test_the_codec_is_one_file():
    codecs = {
        file
        for model in published_models()
        for file in model.files
        if file.path == "speech_tokenizer/model.safetensors"
    }
    assert [codec.bytes for codec in codecs] == [682_293_092]


@pytest.mark.parametrize(("size", "model_type"), PUBLISHED)
def test_expected_facts_are_those_of_the_published_configuration(size, model_type):
    recipe = RandomCheckpointRecipe(model_type=model_type, model_size=size, preset="real")
    config = model_config(recipe, build_vocabulary("real"))
    facts = facts_from_checkpoint(config, codec_config(recipe), TEMPLATES["generation_config"])
    assert expected_facts(MODELS[size, model_type]) == facts


@pytest.mark.parametrize(
    "name",
    [
        "qwen3-tts-0.6b-customvoice",
        "Qwen3-TTS-12Hz-0.6B-CustomVoice",
        "qwen/qwen3-tts-12hz-0.6b-customvoice",
        "CustomVoice",
        "0.6b-customvoice",
        " qwen3_tts_0.6b_customvoice ",
    ],
)
def test_a_model_has_many_names(name):
    model = find_model(name)
    assert model is not None
    assert model.name == "qwen3-tts-0.6b-customvoice"


def test_unknown_names_get_a_suggestion():
    assert find_model("qwen3-tts-0.6b-custom") is None
    assert suggest_models("qwen3-tts-0.6b-custom") == "did you mean qwen3-tts-0.6b-customvoice?"
    assert "qwen3-tts-1.7b-base" in suggest_models("piper")


def test_published_bundles_are_found_by_their_repository():
    model = find_ready_made("onnx-community/qwen3-tts-12hz-1.7b-voicedesign")
    assert model is not None
    assert model.name == "qwen3-tts-1.7b-voicedesign"
    assert find_ready_made("someone/qwen3-tts") is None
