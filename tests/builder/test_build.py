import json
import shutil
import signal
import subprocess
import sys
from dataclasses import replace

import numpy as np
import onnx
import pytest

from tests.support.tiny_checkpoint import write_tiny_checkpoint
from wyoming_qwen3tts.builder import build
from wyoming_qwen3tts.builder.build import (
    BuildOptions,
    build_bundle,
    default_output,
    model_name,
    sha256_of,
)
from wyoming_qwen3tts.builder.checkpoint import Checkpoint
from wyoming_qwen3tts.builder.graphs.codec import build_codec_decoder
from wyoming_qwen3tts.builder.recipe import uniform_recipe
from wyoming_qwen3tts.builder.trial import encode_clip, speak, trial_requests
from wyoming_qwen3tts.errors import BuildError, CheckpointError
from wyoming_qwen3tts.runtime.bundle import open_bundle
from wyoming_qwen3tts.runtime.manifest import read_manifest

FILES = {
    *("talker.onnx", "talker.onnx.data", "code_predictor.onnx", "code_predictor.onnx.data"),
    *("codec_decoder.onnx", "codec_decoder.onnx.data"),
    *("text_embedding.npy", "codec_embedding.npy", "group_embedding.npy"),
    *("vocab.json", "merges.txt", "tokenizer_config.json"),
}


@pytest.fixture(scope="module")
def bundle(tiny, tmp_path_factory):
    return build_bundle(tiny(), tmp_path_factory.mktemp("bundle") / "cpu_int8")


@pytest.fixture
def copied_bundle(bundle, tmp_path):
    return shutil.copytree(bundle, tmp_path / "cpu_int8")


def test_the_bundle_is_complete(bundle, tiny):
    manifest = read_manifest(bundle)
    assert {file.path for file in manifest.files} == FILES
    assert {path.name for path in bundle.iterdir()} == FILES | {"manifest.json"}
    for file in manifest.files:
        assert (bundle / file.path).stat().st_size == file.bytes
        assert sha256_of(bundle / file.path) == file.sha256
    assert manifest.device == "cpu"
    assert manifest.recipe == "int8"
    assert manifest.precision["talker"] == {"layers": "int8", "head": "int8"}
    assert manifest.precision["codec_decoder"] == {"all": "fp32"}
    assert manifest.source.model_sha256 == sha256_of(tiny() / "model.safetensors")


def test_the_manifest_has_the_models_facts(bundle, tiny):
    manifest, checkpoint = read_manifest(bundle), Checkpoint.open(tiny())
    assert manifest.facts.max_positions == 8192
    assert replace(manifest.facts, max_positions=32768) == checkpoint.facts


def test_progress_grows_to_one(tiny, tmp_path):
    seen = []
    build_bundle(tiny(), tmp_path / "b", progress=lambda *step: seen.append(step))
    fractions = [fraction for _, fraction in seen]
    assert fractions == sorted(fractions)
    assert seen[-1] == ("done", 1.0)
    # Nearly everything is told as it is read: no long standstill at the end.
    assert seen[-2][1] > 0.95
    assert {"talker", "embeddings", "codec_decoder"} <= {stage for stage, _ in seen}


def test_progress_of_an_int8_codec_reaches_one_at_the_end_only(tiny, tmp_path):
    seen = []
    options = BuildOptions(recipe=replace(uniform_recipe("fp32"), codec_decoder="int8"))
    build_bundle(tiny(), tmp_path / "b", options, lambda *step: seen.append(step))
    fractions = [fraction for _, fraction in seen]
    assert fractions == sorted(fractions)
    halves = [fraction for stage, fraction in seen if stage == "codec_decoder"]
    assert halves[len(halves) // 2] < 0.95
    assert halves[-1] > 0.95


def test_too_little_space_is_told_in_numbers(tiny, tmp_path, monkeypatch):
    usage = shutil.disk_usage(tmp_path)._replace(free=1_200_000)
    monkeypatch.setattr(shutil, "disk_usage", lambda _path: usage)
    with pytest.raises(BuildError, match=r"needs about \d+ MB.*1 MB free"):
        build_bundle(tiny(), tmp_path / "models" / "b")
    assert list((tmp_path / "models").iterdir()) == []


def test_a_place_that_cannot_be_written_is_named(tiny, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(BuildError, match=r"file/b cannot be written.*--output"):
        build_bundle(tiny(), tmp_path / "file" / "b")


@pytest.mark.parametrize("model_type", ["custom_voice", "base", "voice_design"])
def test_every_kind_of_model_builds(model_type, tmp_path):
    checkpoint = write_tiny_checkpoint(tmp_path / "checkpoint", model_type, "1.7B")
    bundle = build_bundle(checkpoint, tmp_path / "bundle")
    has_encoders = model_type == "base"
    assert (bundle / "speaker_encoder.onnx").exists() == has_encoders
    assert (bundle / "codec_encoder.onnx").exists() == has_encoders
    assert read_manifest(bundle).facts.model_type == model_type


def test_an_existing_bundle_needs_force(copied_bundle, tiny):
    with pytest.raises(BuildError, match="--force"):
        build_bundle(tiny(), copied_bundle)
    assert read_manifest(copied_bundle).recipe == "int8"
    build_bundle(tiny(), copied_bundle, BuildOptions(recipe=uniform_recipe("int4"), force=True))
    assert read_manifest(copied_bundle).recipe == "int4"


def test_a_tensor_that_nobody_knows_stops_the_build(tiny, tmp_path):
    checkpoint = shutil.copytree(tiny(), tmp_path / "checkpoint")
    path = checkpoint / "model.safetensors"
    content = path.read_bytes()
    length = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + length])
    end = len(content) - 8 - length
    header["talker.surprise"] = {"dtype": "BF16", "shape": [1], "data_offsets": [end, end + 2]}
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + content[8 + length :] + b"\0\0")
    with pytest.raises(CheckpointError, match=r"talker\.surprise"):
        build_bundle(checkpoint, tmp_path / "bundle")
    assert not (tmp_path / "bundle").exists()


KILLED_BUILD = """
import os, signal, sys
from pathlib import Path
from wyoming_qwen3tts.builder.build import BuildOptions, build_bundle

def die(stage, fraction):
    if stage == "embeddings":
        os.kill(os.getpid(), signal.SIGKILL)

build_bundle(Path(sys.argv[1]), Path(sys.argv[2]), BuildOptions(force=True), die)
"""


def test_a_killed_build_leaves_nothing_that_counts(tiny, tmp_path):
    target = tmp_path / "models" / "cpu_int8"
    command = [sys.executable, "-c", KILLED_BUILD, str(tiny()), str(target)]
    killed = subprocess.run(command, check=False, capture_output=True, timeout=60)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    assert not target.exists()
    (leftover,) = target.parent.iterdir()
    assert leftover.name.startswith(".")
    build_bundle(tiny(), target)
    assert list(target.parent.iterdir()) == [target]
    assert read_manifest(target).recipe == "int8"


def test_names(tiny, tmp_path):
    checkpoint = Checkpoint.open(tiny("1.7B"))
    assert model_name(checkpoint) == "qwen3-tts-12hz-1.7b-customvoice"
    named = Checkpoint.open(shutil.copytree(tiny(), tmp_path / "Qwen3-TTS-12Hz-Mine"))
    assert model_name(named) == "qwen3-tts-12hz-mine"
    options = BuildOptions(recipe=uniform_recipe("int4"))
    assert default_output(named, options, tmp_path) == tmp_path / "qwen3-tts-12hz-mine" / "cpu_int4"


def test_equal_checkpoints_give_equal_bundles(bundle, tiny, tmp_path):
    again = build_bundle(tiny(), tmp_path / "again")
    assert read_manifest(again) == read_manifest(bundle)


@pytest.mark.parametrize("model_type", ["custom_voice", "base"])
def test_an_int8_codec_is_calibrated_on_speech_of_the_model(model_type, tmp_path, monkeypatch):
    given = []

    def spy(*args):
        given.append(args[3] if len(args) > 3 else None)
        build_codec_decoder(*args)

    monkeypatch.setattr(build, "build_codec_decoder", spy)
    recipe = replace(uniform_recipe("fp32"), codec_decoder="int8")
    checkpoint = write_tiny_checkpoint(tmp_path / "checkpoint", model_type, eos_gain=0.0)
    directory = build_bundle(checkpoint, tmp_path / "bundle", BuildOptions(recipe=recipe))
    none, codes = given
    assert none is None
    model = open_bundle(directory, 1)
    requests = trial_requests(model, encode_clip(model), 96, greedy=False)
    np.testing.assert_array_equal(codes, np.concatenate(speak(model, requests)))
    assert len(codes) >= 64
    files = {file.path: file.sha256 for file in read_manifest(directory).files}
    assert all(sha256_of(directory / path) == digest for path, digest in files.items())


def test_the_codec_can_be_built_with_8_bit_convolutions(tmp_path):
    recipe = replace(uniform_recipe("int8"), codec_decoder="int8")
    checkpoint = write_tiny_checkpoint(tmp_path / "checkpoint")
    directory = build_bundle(checkpoint, tmp_path / "bundle", BuildOptions(recipe=recipe))
    assert read_manifest(directory).precision["codec_decoder"] == {"all": "int8"}
    graph = onnx.load(directory / "codec_decoder.onnx", load_external_data=False).graph
    assert any(node.op_type == "MatMulIntegerToFloat" for node in graph.node)
