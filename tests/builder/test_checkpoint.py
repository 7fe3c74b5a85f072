import json
import shutil
import struct

import numpy as np
import pytest

from tests.oracle.checkpoint import read_safetensors
from wyoming_qwen3tts.builder.checkpoint import Checkpoint, TensorFile
from wyoming_qwen3tts.errors import CheckpointError


def write_safetensors(path, tensors, *, metadata=True):
    """Write name -> (dtype name, array of the stored type)."""
    header, blobs, place = ({"__metadata__": {"format": "pt"}} if metadata else {}), [], 0
    for name, (dtype, array) in tensors.items():
        blob = array.tobytes()
        header[name] = {
            "dtype": dtype,
            "shape": list(array.shape),
            "data_offsets": [place, place + len(blob)],
        }
        blobs.append(blob)
        place += len(blob)
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + b"".join(blobs))
    return path


@pytest.fixture
def small_file(tmp_path):
    tensors = {
        "a": ("F32", np.arange(6, dtype="<f4").reshape(2, 3)),
        "b": ("F16", np.array([1.5, -2], "<f2")),
        "c": ("BF16", np.array([0x3F80, 0xC020, 0x0001], "<u2")),
        "group.0.d": ("F32", np.array([4], "<f4")),
    }
    return write_safetensors(tmp_path / "model.safetensors", tensors)


@pytest.fixture
def copied(tiny, tmp_path):
    return shutil.copytree(tiny(), tmp_path / "checkpoint")


def test_every_stored_type_is_widened(small_file):
    tensors = TensorFile(small_file)
    np.testing.assert_array_equal(tensors.read("a", (2, 3)), [[0, 1, 2], [3, 4, 5]])
    np.testing.assert_array_equal(tensors.read("b", (2,)), [1.5, -2])
    np.testing.assert_array_equal(tensors.read("c", (3,)), np.float32([1, -2.5, 2**-133]))
    assert tensors.read("group.0.d", (1,)) == 4
    assert all(tensors.read(name, tensors.shapes[name]).dtype == np.float32 for name in "abc")


def test_a_header_needs_no_metadata(tmp_path):
    path = write_safetensors(tmp_path / "x", {"a": ("F32", np.ones(2, "<f4"))}, metadata=False)
    assert TensorFile(path).shapes == {"a": (2,)}


def test_reads_are_copies_that_may_be_changed(small_file):
    tensors = TensorFile(small_file)
    tensors.read("a", (2, 3))[:] = 0
    assert tensors.read("a", (2, 3))[1, 2] == 5


def test_rows_are_read_alone(small_file):
    tensors = TensorFile(small_file)
    np.testing.assert_array_equal(tensors.read_rows("a", (2, 3), 0, 1), [[0, 1, 2]])
    with pytest.raises(CheckpointError, match="a, b"):
        tensors.finish({})
    np.testing.assert_array_equal(tensors.read_rows("a", (2, 3), 1, 9), [[3, 4, 5]])
    tensors.finish({"b": "not needed", "c": "not needed", "group.*": "not needed"})


def test_reads_are_told_for_a_progress_bar(small_file):
    tensors, seen = TensorFile(small_file), []
    tensors.on_read = seen.append
    tensors.read("a", (2, 3))
    tensors.read("c", (3,))
    assert seen == [24, 6]
    assert tensors.num_bytes() == 24 + 4 + 6 + 4
    assert tensors.num_bytes(["group.*", "b"]) == 8


def test_a_wrong_shape_names_tensor_and_file(small_file):
    with pytest.raises(CheckpointError, match=r"model\.safetensors.*'a'.*\[2, 3\].*\[3, 2\]"):
        TensorFile(small_file).read("a", (3, 2))


def test_a_missing_tensor_is_named(small_file):
    with pytest.raises(CheckpointError, match="no tensor 'z'"):
        TensorFile(small_file).read("z", (1,))


def test_unread_tensors_are_refused_unless_a_reason_is_given(small_file):
    tensors = TensorFile(small_file)
    tensors.read("a", (2, 3))
    with pytest.raises(CheckpointError, match=r"3 tensors.*b, c, group\.0\.d"):
        tensors.finish({})
    with pytest.raises(CheckpointError, match=r"1 tensors.*group\.0\.d"):
        tensors.finish({"b": "not needed", "c": "not needed"})
    tensors.finish({"b": "not needed", "c": "not needed", "group.*.d": "not needed"})


def test_long_lists_of_unread_tensors_are_cut(tmp_path):
    tensors = {f"t{index}": ("F32", np.ones(1, "<f4")) for index in range(9)}
    path = write_safetensors(tmp_path / "x", tensors)
    with pytest.raises(CheckpointError, match="t4 and 4 more"):
        TensorFile(path).finish({})


@pytest.mark.parametrize("cut", [1, 20, 200, 10**9])
def test_a_truncated_file_is_named(small_file, cut):
    content = small_file.read_bytes()
    small_file.write_bytes(content[: max(len(content) - cut, 0)])
    with pytest.raises(CheckpointError, match=r"model\.safetensors is damaged.*again"):
        TensorFile(small_file)


@pytest.mark.parametrize(
    "entry",
    [
        {"dtype": "I64", "shape": [1], "data_offsets": [0, 8]},
        {"dtype": "F32", "shape": [3], "data_offsets": [0, 8]},
        {"dtype": "F32", "shape": [-2], "data_offsets": [0, -8]},
        {"dtype": "F32", "shape": [2], "data_offsets": [-8, 0]},
        {"dtype": "F32", "shape": [2]},
        {"dtype": "F32", "shape": "x", "data_offsets": [0, 8]},
        7,
    ],
)
def test_a_senseless_header_is_refused(tmp_path, entry):
    text = json.dumps({"a": entry}).encode()
    path = tmp_path / "model.safetensors"
    path.write_bytes(struct.pack("<Q", len(text)) + text + bytes(64))
    with pytest.raises(CheckpointError, match=r"model\.safetensors is damaged"):
        TensorFile(path)


@pytest.mark.parametrize(
    "content", [b"", b"<html>404</html>", b"\x04\0\0\0\0\0\0\0[[]]", b"\xff" * 30]
)
def test_files_of_another_kind_are_refused(tmp_path, content):
    path = tmp_path / "model.safetensors"
    path.write_bytes(content)
    with pytest.raises(CheckpointError, match="damaged"):
        TensorFile(path)


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(CheckpointError, match=r"model\.safetensors cannot be read"):
        TensorFile(tmp_path / "model.safetensors")


def test_a_whole_checkpoint_reads_as_the_oracle_does(tiny):
    checkpoint = Checkpoint.open(tiny("1.7B"))
    for tensors in (checkpoint.main, checkpoint.codec):
        expected = read_safetensors(tensors.path)
        assert set(tensors.shapes) == set(expected)
        for name, array in expected.items():
            np.testing.assert_array_equal(tensors.read(name, array.shape), array)
        tensors.finish({})


def test_the_configuration_is_read(tiny):
    checkpoint = Checkpoint.open(tiny("1.7B", 4))
    assert checkpoint.facts.model_size == "1.7B"
    assert checkpoint.talker.num_code_groups == checkpoint.code_predictor.num_code_groups == 4
    assert checkpoint.code_predictor.has_projection
    assert checkpoint.codec_decoder.num_quantizers == 4
    assert checkpoint.codec_decoder.samples_per_frame == 1920
    assert checkpoint.speaker_encoder is None


@pytest.mark.parametrize(
    "name",
    [
        "config.json",
        "generation_config.json",
        "model.safetensors",
        "vocab.json",
        "merges.txt",
        "tokenizer_config.json",
        "speech_tokenizer/config.json",
        "speech_tokenizer/model.safetensors",
    ],
)
def test_a_missing_file_of_a_checkpoint_is_named(copied, name):
    (copied / name).unlink()
    with pytest.raises(CheckpointError, match=name):
        Checkpoint.open(copied)


@pytest.mark.parametrize("text", ["", "{", "[1]", "\udcff"])
def test_a_damaged_configuration_is_named(copied, text):
    (copied / "config.json").write_text(text, "utf-8", "surrogateescape")
    with pytest.raises(CheckpointError, match=r"config\.json"):
        Checkpoint.open(copied)


def test_a_path_that_is_no_directory_is_explained(tmp_path):
    with pytest.raises(CheckpointError, match="not a directory"):
        Checkpoint.open(tmp_path / "absent")


@pytest.mark.parametrize(
    ("file", "keys", "value", "message"),
    [
        ("config.json", ["talker_config", "hidden_size"], "64", "hidden_size"),
        ("config.json", ["talker_config", "rms_norm_eps"], None, "rms_norm_eps"),
        ("config.json", ["talker_config", "attention_bias"], True, "attention_bias"),
        ("config.json", ["talker_config", "hidden_act"], "gelu", "hidden_act"),
        ("config.json", ["talker_config", "num_key_value_heads"], 3, "3 key/value heads"),
        ("config.json", ["talker_config", "num_code_groups"], 1, "at least 2"),
        # Sizes of which nothing may be allocated.
        ("config.json", ["talker_config", "num_hidden_layers"], 0, "num_layers is 0"),
        ("config.json", ["talker_config", "num_hidden_layers"], 10**12, "num_layers is 10000"),
        ("config.json", ["talker_config", "head_dim"], 9_999_999, "attention head .* too large"),
        ("config.json", ["talker_config", "rope_theta"], float("inf"), "rope_theta is inf"),
        ("config.json", ["talker_config", "codec_eos_token_id"], 3, "codec_eos_token_id"),
        ("config.json", ["talker_config", "code_predictor_config"], 5, "code_predictor_config"),
        (
            "config.json",
            ["talker_config", "code_predictor_config", "num_code_groups"],
            8,
            "num_code_groups",
        ),
        ("config.json", ["talker_config", "spk_id"], [], "spk_id|items"),
        ("config.json", ["tts_model_size"], None, "model_size is None"),
        ("config.json", ["speaker_encoder_config"], 5, "speaker_encoder_config"),
        ("speech_tokenizer/config.json", ["decoder_config", "num_quantizers"], 8, "8 code groups"),
        ("speech_tokenizer/config.json", ["decoder_config", "codebook_size"], 32, "32 codes"),
        ("speech_tokenizer/config.json", ["decoder_config", "upsample_rates"], 8, "upsample_rates"),
        ("speech_tokenizer/config.json", ["encoder_config", "hidden_act"], "relu", "hidden_act"),
    ],
)
def test_configurations_that_make_no_sense_are_refused(copied, file, keys, value, message):
    config = json.loads((copied / file).read_text())
    section = config
    for key in keys[:-1]:
        section = section[key]
    section[keys[-1]] = value
    (copied / file).write_text(json.dumps(config))
    with pytest.raises(CheckpointError, match=message):
        Checkpoint.open(copied)


@pytest.mark.parametrize("key", ["head_dim", "text_vocab_size", "rope_theta", "spk_id"])
def test_missing_keys_are_named(copied, key):
    config = json.loads((copied / "config.json").read_text())
    del config["talker_config"][key]
    (copied / "config.json").write_text(json.dumps(config))
    with pytest.raises(CheckpointError, match=key):
        Checkpoint.open(copied)


def test_the_hub_cache_tells_repository_and_revision(tiny, tmp_path):
    directory = tmp_path / "models--Qwen--Qwen3-TTS-12Hz-0.6B-CustomVoice" / "snapshots" / "85e237"
    directory.parent.mkdir(parents=True)
    directory.symlink_to(shutil.copytree(tiny(), tmp_path / "blobs"))
    # A link elsewhere loses the place; the cache's own directory keeps it.
    assert Checkpoint.open(directory).source_repo is None
    directory.unlink()
    shutil.copytree(tiny(), directory)
    checkpoint = Checkpoint.open(directory)
    assert checkpoint.source_repo == "Qwen/Qwen3-TTS-12Hz-0.6B-CustomVoice"
    assert checkpoint.source_revision == "85e237"
