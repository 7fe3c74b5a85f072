"""Graphs in the published layout: names, shapes, places of outputs, and numbers."""

import json

import numpy as np
import pytest

from tests.builder.graph_runner import open_graph
from tests.oracle.codec_decoder import OracleCodecDecoder
from tests.oracle.language_model import OracleLanguageModel
from tests.support.onnx_community_writer import (
    COMPONENTS,
    PublishedOptions,
    write_published_bundle,
)
from wyoming_qwen3tts.builder.checkpoint import Checkpoint

WIDE = "1.7B-base"


@pytest.fixture(scope="module")
def directory(tmp_path_factory, tiny_checkpoint):
    target = tmp_path_factory.mktemp("published_layout") / "cpu_fp32"
    write_published_bundle(Checkpoint.open(tiny_checkpoint(WIDE)), target)
    return target


@pytest.fixture(scope="module")
def oracle(tiny_checkpoint):
    return OracleLanguageModel(tiny_checkpoint(WIDE))


def test_manifest_names_every_graph(directory):
    manifest = json.loads((directory / "manifest.json").read_text())
    assert set(manifest) == {"model_id", "execution_provider", "sub_models"}
    assert tuple(manifest["sub_models"]) == COMPONENTS
    for entry in manifest["sub_models"].values():
        assert (directory / entry["filename"]).is_file()


def test_cache_is_named_by_accident_and_told_by_place(directory):
    session = open_graph(directory / "talker_cache.onnx")
    inputs = [value.name for value in session.get_inputs()]
    outputs = [value.name for value in session.get_outputs()]
    assert inputs[:3] == ["inputs_embeds", "position_ids", "attention_mask"]
    assert inputs[3:7] == ["past_kv", "past_kv_0_1", "past_kv_1_0", "past_kv_1_1"]
    assert outputs[:2] == ["logits", "hidden_states"]
    assert len(inputs) - 3 == len(outputs) - 2 == 2 * 3  # 59 and 58 with the real 28 layers


@pytest.mark.parametrize(("precision", "name"), [("int8", "logits"), ("int4", "logits_Q4")])
def test_quantised_logits_have_another_name(precision, name, tmp_path, tiny_checkpoint):
    options = PublishedOptions(precision=precision, components=("talker_cache",))
    write_published_bundle(Checkpoint.open(tiny_checkpoint(WIDE)), tmp_path, options)
    session = open_graph(tmp_path / "talker_cache.onnx")
    assert session.get_outputs()[0].name == name


def test_talker_scores_every_position(directory, oracle):
    inputs = np.random.default_rng(0).standard_normal((7, 96)).astype(np.float32)
    session = open_graph(directory / "talker_cache.onnx")
    feeds = {
        "inputs_embeds": inputs[None],
        "position_ids": np.broadcast_to(np.arange(7), (3, 1, 7)),
        "attention_mask": np.ones((1, 7), np.int64),
    }
    for value in session.get_inputs()[3:]:
        feeds[value.name] = np.zeros((1, value.shape[1], 0, value.shape[3]), np.float32)
    logits, hidden, *present = session.run(None, feeds)
    wanted_logits, wanted_hidden = oracle.talker_outputs(inputs)
    np.testing.assert_allclose(hidden[0], wanted_hidden, atol=1e-4)
    np.testing.assert_allclose(logits[0], wanted_logits, atol=1e-3)
    assert {array.shape[2] for array in present} == {7}


def test_mask_and_positions_have_an_effect(directory):
    inputs = np.random.default_rng(0).standard_normal((1, 4, 96)).astype(np.float32)
    session = open_graph(directory / "talker_cache.onnx")
    feeds = {
        "inputs_embeds": inputs,
        "position_ids": np.broadcast_to(np.arange(4), (3, 1, 4)),
        "attention_mask": np.ones((1, 4), np.int64),
    }
    for value in session.get_inputs()[3:]:
        feeds[value.name] = np.zeros((1, value.shape[1], 0, value.shape[3]), np.float32)
    plain = session.run(["hidden_states"], feeds)[0]
    masked = {**feeds, "attention_mask": np.array([[0, 1, 1, 1]])}
    assert np.abs(session.run(["hidden_states"], masked)[0] - plain)[0, -1].max() > 1e-3
    for axis in range(3):
        positions = feeds["position_ids"].copy()
        positions[axis, 0, -1] += 5
        moved = session.run(["hidden_states"], {**feeds, "position_ids": positions})[0]
        assert np.abs(moved - plain)[0, -1].max() > 1e-4


def test_predictor_scores_follow_from_the_codes_before(directory, oracle):
    rng = np.random.default_rng(0)
    hidden = rng.standard_normal((2, 96)).astype(np.float32)
    codes = rng.integers(0, 64, (2, 16))
    session = open_graph(directory / "code_predictor.onnx")
    scores = session.run(None, {"talker_hidden": hidden, "codec_ids": codes})[0]
    wanted = np.stack([oracle.predictor_logits(h, c) for h, c in zip(hidden, codes, strict=True)])
    np.testing.assert_allclose(scores, wanted, atol=1e-3)
    codes[:, 9:] = 0
    cut = session.run(None, {"talker_hidden": hidden, "codec_ids": codes})[0]
    np.testing.assert_allclose(cut[:, :9], wanted[:, :9], atol=1e-3)


def test_decoder_equals_the_oracle_over_its_25_frames(directory, tiny_checkpoint):
    codes = np.random.default_rng(0).integers(0, 64, (25, 16))
    session = open_graph(directory / "tok_decoder.onnx")
    samples = session.run(None, {"audio_codes": codes[None]})[0]
    assert samples.shape == (1, 1, 48_000)
    wanted = OracleCodecDecoder(tiny_checkpoint(WIDE)).decode(codes)
    np.testing.assert_allclose(samples[0, 0], wanted, atol=1e-4)


def test_encoder_takes_one_second_and_gives_13_frames(directory):
    session = open_graph(directory / "tok_encoder.onnx")
    audio = np.random.default_rng(0).standard_normal((1, 1, 24_000)).astype(np.float32) / 10
    assert session.get_inputs()[0].shape == [1, 1, 24_000]
    assert session.run(None, {"audio": audio})[0].shape == (1, 13, 16)
