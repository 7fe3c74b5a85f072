"""What a published bundle needs beside its graphs, and what is said when it is not there."""

import json
import shutil

import pytest

from tests.support.onnx_community_bundle import CHECKPOINT_FILES, NUM_THREADS, open_small
from wyoming_qwen3tts.errors import BundleError, GraphInterfaceError
from wyoming_qwen3tts.runtime.bundle import open_bundle
from wyoming_qwen3tts.runtime.graphs import OnnxCodecDecoder
from wyoming_qwen3tts.runtime.manifest import read_manifest
from wyoming_qwen3tts.runtime.onnx_community import (
    _WindowedDecoder,
    is_onnx_community,
    read_onnx_community_manifest,
)

CUSTOM, BASE = "0.6B-custom_voice", "0.6B-base"


@pytest.fixture
def bundle(tmp_path, published_bundle):
    """A copy that a test may damage, with the checkpoint's files in the folder above."""
    source = published_bundle(CUSTOM)
    directory = tmp_path / "model" / "cpu_fp32"
    shutil.copytree(source, directory)
    for name in CHECKPOINT_FILES:
        shutil.copyfile(source.parent / name, directory.parent / name)
    return directory


def edit_json(path, change):
    values = json.loads(path.read_text())
    change(values)
    path.write_text(json.dumps(values))


def test_layouts_are_told_apart(bundle, tiny_bundle, tmp_path):
    assert is_onnx_community(bundle)
    assert not is_onnx_community(tiny_bundle(CUSTOM))
    assert not is_onnx_community(tmp_path)
    (bundle / "manifest.json").write_text("no JSON")
    assert not is_onnx_community(bundle)


def test_checkpoint_files_may_lie_in_two_places(bundle):
    assert open_small(bundle).facts.hidden_size == 64
    for name in CHECKPOINT_FILES:
        shutil.move(bundle.parent / name, bundle / name)
    assert open_small(bundle).facts.hidden_size == 64
    for name in CHECKPOINT_FILES:
        (bundle / name).unlink()
    with pytest.raises(BundleError, match=r"has no config\.json, generation_config\.json, vocab"):
        open_small(bundle)


def test_missing_files_are_named_with_where_to_get_them(bundle):
    edit_json(
        bundle / "manifest.json",
        lambda values: values.update(model_id="onnx-community/Qwen3-TTS-12Hz-0.6B-CustomVoice"),
    )
    (bundle.parent / "vocab.json").unlink()
    (bundle.parent / "merges.txt").unlink()
    with pytest.raises(BundleError) as caught:
        open_small(bundle)
    message = str(caught.value)
    assert f"{bundle.parent} has no vocab.json, merges.txt" in message
    assert "https://huggingface.co/Qwen/Qwen3-TTS-12Hz-0.6B-CustomVoice" in message


def test_files_of_two_places_are_not_mixed(bundle):
    shutil.move(bundle.parent / "vocab.json", bundle / "vocab.json")
    with pytest.raises(BundleError, match=r"has no vocab\.json\."):
        open_small(bundle)


def test_a_missing_graph_is_named(bundle):
    (bundle / "talker_cache.onnx").unlink()
    with pytest.raises(BundleError, match=r"talker_cache\.onnx cannot be loaded"):
        open_small(bundle)


def test_a_mixed_up_graph_is_named(bundle):
    shutil.copy(bundle / "tok_decoder.onnx", bundle / "text_embed.onnx")
    with pytest.raises(GraphInterfaceError, match=r"text_embed\.onnx has no input 'text_ids'"):
        open_small(bundle)


def test_missing_weights_are_an_error_of_the_bundle(bundle):
    (bundle / "talker_cache.onnx.data").unlink()
    with pytest.raises(BundleError, match=r"talker_cache\.onnx cannot be loaded"):
        open_small(bundle)


def test_configuration_of_another_model(bundle):
    edit_json(bundle.parent / "config.json", lambda v: v["talker_config"].update(hidden_size=128))
    with pytest.raises(GraphInterfaceError, match=r"config\.json says 128"):
        open_small(bundle)


def test_configuration_that_is_none(bundle):
    edit_json(bundle.parent / "config.json", lambda values: values.pop("talker_config"))
    with pytest.raises(BundleError, match="talker_config"):
        open_small(bundle)


def test_manifest_for_lists(published_bundle, tiny_bundle):
    directory = published_bundle(BASE, "cpu_fp32")
    manifest = read_onnx_community_manifest(directory)
    own = read_manifest(tiny_bundle(BASE)).facts
    assert manifest.name == "qwen3-tts-12hz-0.6b-base"
    assert (manifest.device, manifest.recipe) == ("cpu", "fp32")
    assert manifest.facts.languages == own.languages
    assert manifest.facts.model_type == "base"
    assert sum(file.bytes for file in manifest.files) > 1_000_000
    assert {"talker_cache.onnx", "speaker_encoder.onnx.data"} <= {f.path for f in manifest.files}


def test_a_replaced_file_is_noticed(bundle):
    def hashes():
        return {file.path: file.sha256 for file in read_onnx_community_manifest(bundle).files}

    before = hashes()
    path = bundle / "code_predictor.onnx"
    path.write_bytes(path.read_bytes() + b"\0")
    changed = {name for name, value in hashes().items() if value != before[name]}
    assert changed == {"code_predictor.onnx"}


def test_one_function_opens_both_layouts(bundle, tiny_bundle):
    published, own = (
        open_bundle(directory, NUM_THREADS) for directory in (bundle, tiny_bundle(CUSTOM))
    )
    assert isinstance(published.codec_decoder, _WindowedDecoder)
    assert isinstance(own.codec_decoder, OnnxCodecDecoder)
    assert published.facts.speakers == own.facts.speakers


def test_only_base_models_encode(published_model):
    custom, base = published_model(CUSTOM), published_model(BASE)
    assert custom.codec_encoder is None
    assert custom.speaker_encoder is None
    assert base.codec_encoder is not None
    assert base.speaker_encoder is not None
