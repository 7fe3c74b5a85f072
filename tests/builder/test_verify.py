"""Sound bundles pass, damaged ones fail, and the report says where."""

import json
import logging
import shutil
from dataclasses import replace

import numpy as np
import pytest

from tests.conftest import NUM_THREADS
from tests.support.onnx_community_bundle import write_small_published_bundle
from tests.support.onnx_community_writer import PublishedOptions
from tests.support.tiny_checkpoint import write_tiny_checkpoint
from wyoming_qwen3tts.builder.build import BuildOptions, build_bundle
from wyoming_qwen3tts.builder.bundle_writer import finish_bundle
from wyoming_qwen3tts.builder.layers import Numerics
from wyoming_qwen3tts.builder.recipe import uniform_recipe
from wyoming_qwen3tts.builder.verify.census import read_census
from wyoming_qwen3tts.builder.verify.parity import ArrayParity, ScoreParity
from wyoming_qwen3tts.builder.verify.verify import VerifyOptions, verify_bundle
from wyoming_qwen3tts.cli import main
from wyoming_qwen3tts.errors import BuildError
from wyoming_qwen3tts.runtime.manifest import read_manifest

CUSTOM, BASE, WIDE = "0.6B-custom_voice", "0.6B-base", "1.7B-voice_design"
OPTIONS = VerifyOptions(num_threads=NUM_THREADS, num_frames=8)


@pytest.fixture(autouse=True)
def root_logger():
    """Undo what the command line does to the log, which outlives a test's standard error."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)


@pytest.fixture
def damaged(tiny_bundle, tmp_path):
    """Return a function: a copy of a tiny bundle that may be damaged."""

    def copy(name=CUSTOM, precision="int8"):
        return shutil.copytree(tiny_bundle(name, precision), tmp_path / "bundle")

    return copy


def state_again(directory, **changes):
    """Let the manifest state the sizes and hashes that the files have now."""
    manifest = replace(read_manifest(directory), **changes)
    finish_bundle(directory, lambda files: replace(manifest, files=files))


def tensor_bytes(directory, graph, name):
    """Return the file and the place of a stored tensor."""
    tensor = read_census(directory / f"{graph}.onnx").tensors[name]
    return tensor.path, tensor.offset, tensor.num_bytes


def overwrite(directory, graph, name, change):
    path, offset, num_bytes = tensor_bytes(directory, graph, name)
    content = bytearray(path.read_bytes())
    content[offset : offset + num_bytes] = change(bytes(content[offset : offset + num_bytes]))
    path.write_bytes(content)


def failed(report):
    return {
        entry.name: "; ".join(entry.faults()) for entry in report.in_order if not entry.has_passed
    }


# Sound bundles.


@pytest.mark.parametrize(("name", "precision"), [(CUSTOM, "fp32"), (WIDE, "int8"), (BASE, "int4")])
def test_sound_bundles_pass(name, precision, tiny_bundle, tiny_checkpoint):
    report = verify_bundle(tiny_bundle(name, precision), tiny_checkpoint(name), OPTIONS)
    assert failed(report) == {}
    talker, predictor = report.components["talker"], report.components["code_predictor"]
    assert talker.precision == predictor.precision == precision
    assert 0 < report.num_frames <= 8
    assert predictor.figures["positions"] == 15 * report.num_frames
    assert len(predictor.figures["agreement_by_group"]) == 15
    assert ("codec_encoder" in report.components) == (name == BASE)
    if precision == "fp32":
        assert talker.figures["agreement"] == predictor.figures["agreement"] == 1.0
        assert report.components["free_running"].figures["equal_codes"] == 1.0
    else:
        assert 15 < talker.figures["weight_snr_db_lowest"] < 60
        assert talker.figures["kl_nats"] > 0
        assert report.components["free_running"].figures["equal_codes"] < 1.0


def test_a_published_bundle_passes(tiny_checkpoint, tmp_path):
    options = PublishedOptions(precision="int8", numerics=Numerics())
    checkpoint = tiny_checkpoint(CUSTOM)
    bundle = write_small_published_bundle(checkpoint, tmp_path / "cpu_int8", options)
    report = verify_bundle(bundle, checkpoint, OPTIONS)
    assert report.layout == "published"
    assert failed(report) == {}
    assert report.components["talker"].precision == "int8"
    (bundle / "talker_cache.onnx").write_bytes(b"nothing")
    assert "talker_cache.onnx" in failed(verify_bundle(bundle, None, OPTIONS))["talker"]


def test_what_graphs_hold_is_counted(tiny_bundle):
    report = verify_bundle(tiny_bundle(CUSTOM, "int8"), None, OPTIONS)
    (talker,) = report.components["talker"].graphs
    # Three layers with four matrices each, and the head.
    assert sum(group.num_nodes for group in talker.operators) == 3 * 4 + 1
    assert {group.bits for group in talker.operators} == {8}
    (predictor,) = report.components["code_predictor"].graphs
    num_nodes, num_weights = (
        sum(getattr(group, name) for group in predictor.operators)
        for name in ("num_nodes", "num_weights")
    )
    assert num_nodes == 15 * (num_weights - 15 + 1)  # layers in each step, heads once
    assert predictor.weight_bytes["float16"] > predictor.weight_bytes["float32"]
    (decoder,) = report.components["codec_decoder"].graphs
    assert decoder.precisions == ("fp32",)
    assert decoder.operators == ()


# Files.


def test_another_byte_fails_naming_the_file(damaged):
    bundle = damaged()
    path = bundle / "talker.onnx.data"
    content = bytearray(path.read_bytes())
    content[-5000] ^= 1
    path.write_bytes(content)
    report = verify_bundle(bundle, None, OPTIONS)
    assert set(failed(report)) == {"talker"}
    assert "talker.onnx.data has the SHA-256" in failed(report)["talker"]
    assert report.num_hashed == report.num_files - 1


def test_missing_cut_and_unknown_files_are_named(damaged):
    bundle = damaged()
    (bundle / "vocab.json").unlink()
    with (bundle / "text_embedding.npy").open("ab") as file:
        file.write(b"\0")
    (bundle / "notes.txt").write_text("mine")
    report = verify_bundle(bundle, None, OPTIONS)
    assert set(failed(report)) == {"tokenizer", "embeddings"}
    assert "vocab.json cannot be read" in failed(report)["tokenizer"]
    assert "text_embedding.npy has" in failed(report)["embeddings"]
    assert report.components["manifest"].notes == ["not in the manifest: notes.txt"]


def test_a_directory_without_a_manifest_fails(tmp_path):
    assert "manifest.json" in failed(verify_bundle(tmp_path, None, OPTIONS))["manifest"]


# Files that are as stated, and wrong all the same.


def test_a_graph_of_another_precision_is_not_what_the_manifest_says(damaged, tiny_bundle):
    bundle = damaged()
    for suffix in (".onnx", ".onnx.data"):
        shutil.copyfile(
            tiny_bundle(CUSTOM, "int4") / f"code_predictor{suffix}",
            bundle / f"code_predictor{suffix}",
        )
    state_again(bundle)
    faults = failed(verify_bundle(bundle, None, OPTIONS))
    assert set(faults) == {"code_predictor"}
    assert "layers is in int4, the manifest says int8" in faults["code_predictor"]


def test_graphs_and_tables_of_another_model_do_not_fit_the_manifest(damaged, tiny_bundle):
    bundle = damaged()
    other = tiny_bundle(WIDE, "int8")
    for name in ("talker.onnx", "talker.onnx.data", "codec_embedding.npy"):
        shutil.copyfile(other / name, bundle / name)
    state_again(bundle)
    faults = failed(verify_bundle(bundle, None, OPTIONS))
    assert set(faults) == {"talker", "embeddings"}
    assert "embeddings has the size 96 along axis 2, not 64" in faults["talker"]
    assert "width" in faults["embeddings"]


def test_the_cache_must_be_as_the_manifest_says(damaged):
    bundle = damaged()
    layout = replace(read_manifest(bundle).talker, num_layers=2, max_positions=4096)
    state_again(bundle, talker=layout)
    fault = failed(verify_bundle(bundle, None, OPTIONS))["talker"]
    assert "has 3 layers, the manifest says 2" in fault
    assert "knows 8192 positions, the manifest says 4096" in fault


@pytest.mark.parametrize(
    ("precision", "graph", "weight", "change"),
    [
        # One value of a block, and all of them by a wrong scale.
        (
            "int4",
            "code_predictor",
            "layers.1.mlp.down_proj.blocks",
            lambda b: bytes([b[0] ^ 8]) + b[1:],
        ),
        ("int8", "talker", "layers.2.self_attn.o_proj.scales", lambda b: b[4:] + b[:4]),
        ("fp32", "talker", "codec_head", lambda b: b[:7] + bytes([b[7] ^ 64]) + b[8:]),
    ],
    ids=["int4", "int8", "fp32"],
)
def test_a_damaged_weight_is_named(precision, graph, weight, change, damaged, tiny_checkpoint):
    bundle = damaged(precision=precision)
    overwrite(bundle, graph, weight, change)
    state_again(bundle)
    assert failed(verify_bundle(bundle, None, OPTIONS)) == {}
    faults = failed(verify_bundle(bundle, tiny_checkpoint(CUSTOM), OPTIONS))
    assert set(faults) - {"free_running"} == {graph}
    assert f"the weight {weight.split('.blocks')[0].split('.scales')[0]} (" in faults[graph]


def test_tables_in_a_wrong_order_and_another_codec_fail(damaged, tiny_checkpoint, tmp_path):
    bundle = damaged()
    table = np.load(bundle / "group_embedding.npy")
    np.save(bundle / "group_embedding.npy", table[[1, 0, *range(2, 15)]])
    other = write_tiny_checkpoint(tmp_path / "other", seed=1)
    built = build_bundle(other, tmp_path / "built", BuildOptions(recipe=uniform_recipe("int8")))
    for suffix in (".onnx", ".onnx.data"):
        shutil.copyfile(built / f"codec_decoder{suffix}", bundle / f"codec_decoder{suffix}")
    state_again(bundle)
    faults = failed(verify_bundle(bundle, tiny_checkpoint(CUSTOM), OPTIONS))
    assert set(faults) == {"embeddings", "codec_decoder"}
    assert "lowest_row_cosine" in faults["embeddings"]
    assert "snr_db" in faults["codec_decoder"]


def test_one_damaged_row_of_a_table_is_found(damaged, tiny_checkpoint):
    bundle = damaged(precision="fp32")
    table = np.load(bundle / "text_embedding.npy")
    table[123] = table[124]
    np.save(bundle / "text_embedding.npy", table)
    state_again(bundle)
    report = verify_bundle(bundle, tiny_checkpoint(CUSTOM), OPTIONS)
    assert "embeddings" in failed(report)
    assert report.components["embeddings"].notes == ["the lowest cosine is that of text row 123"]


def test_one_value_that_is_no_number_is_enough_to_fail(damaged, tiny_checkpoint):
    bundle = damaged(precision="fp32")
    table = np.load(bundle / "codec_embedding.npy")
    table[-1, 0] = np.nan  # a row that no speech uses
    np.save(bundle / "codec_embedding.npy", table)
    state_again(bundle)
    faults = failed(verify_bundle(bundle, tiny_checkpoint(CUSTOM), OPTIONS))
    assert "not finite" in faults["embeddings"]


def test_the_checkpoint_of_another_model_is_refused(tiny_bundle, tiny_checkpoint):
    report = verify_bundle(tiny_bundle(CUSTOM, "int8"), tiny_checkpoint(WIDE), OPTIONS)
    assert "hidden_size is 64, not 96" in failed(report)["manifest"]


def test_too_little_space_for_the_reference_says_what_to_do(
    tiny_bundle, tiny_checkpoint, monkeypatch
):
    usage = shutil.disk_usage("/")._replace(free=10)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage)
    with pytest.raises(BuildError, match="TMPDIR"):
        verify_bundle(tiny_bundle(CUSTOM, "int8"), tiny_checkpoint(CUSTOM), OPTIONS)


# The command.


def test_the_command_prints_a_verdict(tiny_bundle, tiny_checkpoint, capsys):
    arguments = ["verify", str(tiny_bundle(CUSTOM, "int8")), "--threads", str(NUM_THREADS)]
    assert main([*arguments, "--frames", "4", "--checkpoint", str(tiny_checkpoint(CUSTOM))]) == 0
    text = capsys.readouterr().out
    assert text.splitlines()[-1].startswith("PASS")
    assert "8 bits" in text
    assert main([*arguments, "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["verdict"] == "PASS"
    talker = next(entry for entry in report["components"] if entry["component"] == "talker")
    assert talker["graphs"][0]["quantized_operators"][0]["operator"] == "MatMulNBits"


def test_the_command_fails_with_the_bundle(damaged, capsys):
    bundle = damaged()
    (bundle / "codec_embedding.npy").write_bytes(b"")
    assert main(["verify", "bundle", "--data-dir", str(bundle.parent)]) == 1
    text = capsys.readouterr().out
    assert "FAIL  embeddings" in text
    assert "codec_embedding.npy has 0 bytes" in text
    assert text.splitlines()[-1].startswith("FAIL")


def test_the_command_says_when_there_is_no_bundle(capsys):
    assert main(["verify", "nowhere"]) == 1
    assert "nowhere is no directory" in capsys.readouterr().err


# Metrics.


def test_figures_of_arrays():
    rng = np.random.default_rng(0)
    wanted = rng.standard_normal(5000).astype(np.float32)
    parity = ArrayParity()
    parity.add(wanted, wanted + np.float32(0.01) * rng.standard_normal(5000).astype(np.float32))
    assert parity.snr_db == pytest.approx(40, abs=0.5)
    assert 0.9999 < parity.cosine < 1
    same = ArrayParity()
    same.add(wanted, wanted)
    assert same.figures() == {"cosine": 1.0, "max_abs_error": 0.0, "snr_db": 200.0}
    with pytest.raises(ValueError, match="shape"):
        same.add(wanted, wanted[1:])


def test_values_that_are_no_numbers_are_counted_and_ruin_every_figure():
    wanted = np.ones(8, np.float32)
    parity = ArrayParity()
    parity.add(wanted, np.full(8, np.nan, np.float32))
    figures = parity.figures()
    assert figures["not_finite"] == 8
    assert figures["cosine"] == 0.0
    assert figures["snr_db"] <= 0.0
    assert json.loads(json.dumps(figures)) == figures


def test_figures_of_scores():
    wanted = np.array([[0, 1, 2, 3], [3, 2, 1, 0], [0, 5, 0, 0]], np.float32)
    parity = ScoreParity()
    parity.add(wanted, wanted[:, ::-1])
    figures = parity.figures()
    assert figures["positions"] == 3
    assert figures["agreement"] == 0.0
    assert figures["top10_overlap"] == 1.0  # of four codes all are among the best ten
    assert figures["kl_nats"] > 0.5
    same = ScoreParity()
    same.add(wanted, wanted + 1)  # scores may be shifted
    assert same.figures()["kl_nats"] == pytest.approx(0, abs=1e-9)
    assert same.agreement == 1.0
