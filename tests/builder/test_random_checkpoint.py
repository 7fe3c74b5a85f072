"""Random checkpoints have the official layout, are reproducible, and keep activations in range."""

import hashlib
import itertools
import json
import math
from pathlib import Path

import numpy as np
import pytest

from tests.oracle.checkpoint import OracleCheckpoint, read_safetensors
from tests.oracle.codec_decoder import OracleCodecDecoder
from tests.support.random_checkpoint import (
    ModelSize,
    RandomCheckpoint,
    RandomCheckpointRecipe,
)
from tests.support.random_checkpoint.__main__ import main
from tests.support.random_checkpoint.architecture import codec_config, model_config
from tests.support.random_checkpoint.inventory import codec_tensors, model_tensors
from tests.support.random_checkpoint.values import (
    POOL_VALUES,
    PooledNormals,
    SafetensorsFile,
    TensorSpec,
    Values,
    ValueSource,
    to_bfloat16,
)
from tests.support.random_checkpoint.vocabulary import build_vocabulary
from tests.support.tiny_checkpoint import TINY_CHECKPOINTS, write_tiny_checkpoint
from wyoming_qwen3tts.errors import BuildError
from wyoming_qwen3tts.runtime.manifest import ModelType, facts_from_checkpoint
from wyoming_qwen3tts.runtime.tokenizer import BpeTokenizer


def digests(directory: Path) -> dict[str, str]:
    return {
        str(path.relative_to(directory)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(directory.rglob("*"))
        if path.is_file()
    }


def test_equal_recipes_give_equal_files_and_seeds_differ(tmp_path: Path) -> None:
    first = digests(write_tiny_checkpoint(tmp_path / "first", seed=3))
    again = digests(write_tiny_checkpoint(tmp_path / "again", seed=3))
    other = digests(write_tiny_checkpoint(tmp_path / "other", seed=4))

    assert first == again
    differing = {name for name in first if first[name] != other[name]}
    assert differing == {"model.safetensors", "speech_tokenizer/model.safetensors"}


def test_files_are_those_of_the_published_repositories(tmp_path: Path) -> None:
    assert set(digests(write_tiny_checkpoint(tmp_path / "tiny"))) == {
        "config.json",
        "generation_config.json",
        "merges.txt",
        "model.safetensors",
        "preprocessor_config.json",
        "speech_tokenizer/config.json",
        "speech_tokenizer/configuration.json",
        "speech_tokenizer/model.safetensors",
        "speech_tokenizer/preprocessor_config.json",
        "tokenizer_config.json",
        "vocab.json",
    }


@pytest.mark.parametrize(
    ("size", "model_type", "num_tensors", "num_bytes"),
    [
        ("0.6B", "custom_voice", 402, 1_811_626_576),
        ("0.6B", "base", 478, 1_829_344_272),
        ("1.7B", "custom_voice", 404, 3_833_402_552),
        ("1.7B", "base", 480, 3_857_413_744),
        ("1.7B", "voice_design", 404, 3_833_402_552),
    ],
)
def test_real_preset_has_the_published_file_sizes(
    size: ModelSize, model_type: ModelType, num_tensors: int, num_bytes: int
) -> None:
    """To the byte, header included: so every name and shape is the published one."""
    recipe = RandomCheckpointRecipe(model_type, size, "real")
    specs = model_tensors(model_config(recipe, build_vocabulary("real")))
    by_name = sorted(specs, key=lambda spec: spec.name)
    file = SafetensorsFile(by_name, "BF16", with_metadata=model_type != "base")

    assert len(specs) == num_tensors
    assert len(file.header()) + file.num_bytes == num_bytes


def test_real_codec_has_the_published_file_size() -> None:
    specs = codec_tensors(codec_config(RandomCheckpointRecipe(preset="real")))
    by_name = sorted(specs, key=lambda spec: spec.name)
    file = SafetensorsFile(by_name, "F32", with_metadata=False)

    assert len(specs) == 496
    assert len(file.header()) + file.num_bytes == 682_293_092


def test_real_vocabulary_has_the_published_ids() -> None:
    vocabulary = build_vocabulary("real")

    assert sorted(vocabulary.ids.values()) == list(range(151643))
    assert (vocabulary.ids["Ċ"], vocabulary.ids["user"]) == (198, 872)
    config = model_config(RandomCheckpointRecipe(preset="real"), vocabulary)
    assert config["assistant_token_id"] == 77091
    assert (config["im_start_token_id"], config["im_end_token_id"]) == (151644, 151645)
    assert config["tts_pad_token_id"] == 151671
    assert (config["tts_bos_token_id"], config["tts_eos_token_id"]) == (151672, 151673)
    assert config["talker_config"]["codec_eos_token_id"] == 2150
    assert config["talker_config"]["spk_id"]["ryan"] == 3061


def test_real_tokenizer_loads_and_knows_the_role(tmp_path: Path) -> None:
    vocabulary = build_vocabulary("real")
    (tmp_path / "vocab.json").write_text(json.dumps(vocabulary.ids), encoding="utf-8")
    (tmp_path / "merges.txt").write_text(vocabulary.merges_text(), encoding="utf-8")
    config = json.dumps(vocabulary.tokenizer_config())
    (tmp_path / "tokenizer_config.json").write_text(config, encoding="utf-8")

    tokenizer = BpeTokenizer(tmp_path)

    assert tokenizer.encode_template("<|im_start|>assistant\n") == [151644, 77091, 198]
    assert tokenizer.encode_template("<|audio_pad|>") == [151675]
    assert max(tokenizer.encode("Hello world, <filler_1000> zz")) < 2000


@pytest.mark.parametrize("name", TINY_CHECKPOINTS)
def test_facts_can_be_read(tmp_path: Path, name: str) -> None:
    size, model_type = TINY_CHECKPOINTS[name]
    directory = write_tiny_checkpoint(tmp_path / name, model_type, size)
    files = ("config.json", "speech_tokenizer/config.json", "generation_config.json")
    facts = facts_from_checkpoint(
        *(json.loads((directory / file).read_text(encoding="utf-8")) for file in files)
    )

    assert (facts.model_size, facts.model_type) == (size, model_type)
    assert facts.samples_per_frame == 1920
    assert facts.codec_ids.pad == facts.codebook_size + 100
    assert bool(facts.speakers) == (model_type == "custom_voice")
    weights = OracleCheckpoint(directory).weights
    projection = "talker.code_predictor.small_to_mtp_projection.weight"
    assert (projection in weights) == (size == "1.7B")
    assert ("speaker_encoder.fc.weight" in weights) == (model_type == "base")


@pytest.mark.parametrize("num_code_groups", [2, 4, 8, 20])
def test_other_numbers_of_code_groups(tmp_path: Path, num_code_groups: int) -> None:
    directory = write_tiny_checkpoint(tmp_path / "tiny", num_code_groups=num_code_groups)
    weights = OracleCheckpoint(directory).weights

    heads = [name for name in weights if name.startswith("talker.code_predictor.lm_head.")]
    assert len(heads) == num_code_groups - 1
    codes = np.zeros((2, num_code_groups), np.int64)
    assert OracleCodecDecoder(directory).decode(codes).shape == (3840,)


def test_eos_gain_scales_one_row_alone(tmp_path: Path) -> None:
    plain = write_tiny_checkpoint(tmp_path / "plain", eos_gain=1.0)
    never = write_tiny_checkpoint(tmp_path / "never", eos_gain=0.0)
    name = "talker.codec_head.weight"
    eos = OracleCheckpoint(plain).config["talker_config"]["codec_eos_token_id"]
    before = OracleCheckpoint(plain).weights[name].copy()
    after = OracleCheckpoint(never).weights[name]

    assert before[eos].any()
    before[eos] = 0
    np.testing.assert_array_equal(before, after)


def test_codec_neither_clips_nor_whispers(tmp_path: Path) -> None:
    directory = write_tiny_checkpoint(tmp_path / "tiny")
    codes = np.random.default_rng(0).integers(0, 64, (12, 16))

    samples = OracleCodecDecoder(directory).decode(codes)

    assert 0.05 < samples.std() < 0.6
    assert np.mean(np.abs(samples) >= 1) < 0.01


def test_every_codebook_has_one_dead_code(tmp_path: Path) -> None:
    codec = OracleCheckpoint(write_tiny_checkpoint(tmp_path / "tiny")).codec_weights
    usages = [values for name, values in codec.items() if name.endswith("cluster_usage")]

    assert len(usages) == 16 + 20
    assert all(np.flatnonzero(usage == 0).tolist() == [63] for usage in usages)


def test_pooled_values_are_distinct_normal_and_independent_of_the_cut() -> None:
    normals = PooledNormals(seed=1)
    whole = normals.start(1, 0)(POOL_VALUES + 1000)
    take = normals.start(1, 0)
    pieces = np.concatenate([take(count) for count in (1, 4_000_000, POOL_VALUES - 3_999_001)])
    other = normals.start(1, 1)(1000)

    np.testing.assert_array_equal(whole, pieces)
    np.testing.assert_array_equal(whole[:1000], whole[-1000:])  # once around the circle
    assert not np.array_equal(other, whole[:1000])
    assert abs(whole.mean()) < 1e-3
    assert abs(whole.std() - 1) < 1e-3


def test_large_tensors_come_in_blocks_of_rows() -> None:
    spec = TensorSpec("talker.codec_head.weight", (3072, 1024), Values.HEAD)
    source = ValueSource(PooledNormals(0), 0, {spec.name: (2150, 0.0)})

    blocks = list(source.blocks(0, spec))

    assert len(blocks) == 3
    rows = np.concatenate(blocks).reshape(spec.shape)
    assert np.flatnonzero(~rows.any(axis=1)).tolist() == [2150]
    assert math.isclose(rows.std(), 3 / math.sqrt(1024), rel_tol=0.01)


def test_bfloat16_rounds_to_the_nearest_even() -> None:
    bits = np.array([0x3F800000, 0x3F808000, 0x3F818000, 0x3F808001, 0xBF80FFFF], np.uint32)

    rounded = to_bfloat16(bits.view(np.float32))

    assert [hex(value) for value in rounded] == ["0x3f80", "0x3f80", "0x3f82", "0x3f81", "0xbf81"]


def test_progress_adds_up_to_the_announced_size(tmp_path: Path) -> None:
    checkpoint = RandomCheckpoint(RandomCheckpointRecipe("base"))
    written: list[int] = []

    checkpoint.write(tmp_path / "tiny", written.append)

    assert sum(written) == checkpoint.num_bytes


def test_failed_write_leaves_nothing_behind(tmp_path: Path) -> None:
    counter = itertools.count()

    def fail_halfway(_num_bytes: int) -> None:
        if next(counter) == 50:
            raise OSError(28, "No space left on device")

    with pytest.raises(BuildError, match="No space left"):
        RandomCheckpoint(RandomCheckpointRecipe()).write(tmp_path / "tiny", fail_halfway)

    assert list(tmp_path.iterdir()) == []


def test_directory_in_use_is_refused(tmp_path: Path) -> None:
    (tmp_path / "note.txt").write_text("mine", encoding="utf-8")

    with pytest.raises(BuildError, match="exists"):
        write_tiny_checkpoint(tmp_path)

    assert (tmp_path / "note.txt").read_text(encoding="utf-8") == "mine"


@pytest.mark.parametrize(
    "fields",
    [
        {"model_type": "tenor"},
        {"model_size": "7B"},
        {"preset": "huge"},
        {"num_code_groups": 1},
        {"num_code_groups": 21},
        {"seed": -1},
    ],
)
def test_impossible_recipes_are_refused(fields) -> None:
    with pytest.raises(BuildError):
        RandomCheckpointRecipe(**fields)


def test_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output = tmp_path / "new" / "tiny"
    arguments = ["--preset", "tiny", "--type", "base", "--size", "1.7B", str(output)]

    assert main(arguments) == 0
    assert "MB" in capsys.readouterr().out
    assert read_safetensors(output / "model.safetensors")["speaker_encoder.fc.bias"].shape == (96,)
    assert main(arguments) == 1
    assert "remove it" in capsys.readouterr().err
