"""Sound bundles pass, damaged ones fail, and the checks says where."""

import shutil

import numpy as np
import pytest

from tests.conftest import NUM_THREADS
from tests.support.onnx_community_bundle import write_small_published_bundle
from tests.support.onnx_community_writer import Numerics, PublishedOptions
from tests.support.tiny_checkpoint import write_tiny_checkpoint
from wyoming_qwen3tts.builder import verify
from wyoming_qwen3tts.builder.build import BuildOptions, build_bundle, write_manifest
from wyoming_qwen3tts.builder.recipe import uniform_recipe
from wyoming_qwen3tts.cli import main
from wyoming_qwen3tts.errors import BuildError
from wyoming_qwen3tts.models.bundles import read_bundle
from wyoming_qwen3tts.runtime.manifest import read_manifest

CUSTOM, BASE, WIDE = "0.6B-custom_voice", "0.6B-base", "1.7B-voice_design"
LANGUAGE = {"talker", "code_predictor", "speech"}


pytestmark = pytest.mark.usefixtures("root_logger")


@pytest.fixture
def damaged(tiny_bundle, tmp_path):
    """Return a function: a copy of a tiny bundle that may be damaged."""

    def copy(name=CUSTOM, precision="int8"):
        return shutil.copytree(tiny_bundle(name, precision), tmp_path / "bundle")

    return copy


def verified(directory, checkpoint=None):
    return verify.verify_bundle(read_bundle(directory), checkpoint, NUM_THREADS)


def state_again(directory):
    """Let the manifest state the sizes and hashes that the files have now."""
    write_manifest(directory, read_manifest(directory))


def copy_component(source, target, name):
    for suffix in (".onnx", ".onnx.data"):
        shutil.copyfile(source / f"{name}{suffix}", target / f"{name}{suffix}")


def by_name(checks):
    return {check.name: check for check in checks}


def failed(checks):
    return {check.name: check.problem for check in checks if not check.has_passed}


# Sound bundles.


@pytest.mark.parametrize(("name", "precision"), [(CUSTOM, "fp32"), (WIDE, "int8"), (BASE, "int4")])
def test_sound_bundles_pass(name, precision, tiny_bundle, tiny_checkpoint):
    checks = verified(tiny_bundle(name, precision), tiny_checkpoint(name))
    assert failed(checks) == {}
    found = by_name(checks)
    assert found["talker"].precision == found["code_predictor"].precision == precision
    assert ("codec_encoder" in found) == ("speaker_encoder" in found) == (name == BASE)
    if precision == "fp32":
        assert found["talker"].value == found["code_predictor"].value == 1.0
        assert found["speech"].value == found["lanes"].value == 1.0
    else:
        assert found["speech"].value < 1.0


def test_a_published_bundle_passes(tiny_checkpoint, tmp_path):
    options = PublishedOptions(precision="int8", numerics=Numerics())
    checkpoint = tiny_checkpoint(CUSTOM)
    bundle = write_small_published_bundle(checkpoint, tmp_path / "cpu_int8", options)
    assert failed(verified(bundle, checkpoint)) == {}
    (bundle / "talker_cache.onnx").write_bytes(b"nothing")
    assert "talker_cache.onnx" in failed(verified(bundle))["speech"]


# Files.


def test_another_byte_fails_naming_the_file(damaged):
    bundle = damaged()
    path = bundle / "talker.onnx.data"
    content = bytearray(path.read_bytes())
    content[-5000] ^= 1
    path.write_bytes(content)
    checks = verified(bundle)
    assert set(failed(checks)) == {"files"}
    assert "talker.onnx.data has another SHA-256" in failed(checks)["files"]


def test_missing_and_cut_files_are_named(damaged):
    bundle = damaged()
    (bundle / "vocab.json").unlink()
    with (bundle / "text_embedding.npy").open("ab") as file:
        file.write(b"\0")
    checks = verified(bundle)
    assert set(failed(checks)) == {"files", "speech"}
    assert "vocab.json cannot be read" in failed(checks)["files"]
    assert "text_embedding.npy has another" in failed(checks)["files"]


# Files that are as stated, and wrong all the same.


def test_a_graph_of_another_model_cannot_speak(damaged, tiny_bundle):
    bundle = damaged()
    copy_component(tiny_bundle(WIDE, "int8"), bundle, "talker")
    state_again(bundle)
    assert set(failed(verified(bundle))) == {"speech"}


def test_another_code_predictor_is_found(damaged, tiny_checkpoint, tmp_path):
    bundle = damaged()
    other = write_tiny_checkpoint(tmp_path / "other", seed=1)
    built = build_bundle(other, tmp_path / "built", BuildOptions(recipe=uniform_recipe("int8")))
    copy_component(built, bundle, "code_predictor")
    copy_component(built, bundle, "codec_decoder")
    state_again(bundle)
    assert failed(verified(bundle)) == {}
    assert set(failed(verified(bundle, tiny_checkpoint(CUSTOM)))) == {
        "code_predictor",
        "codec_decoder",
    }


def test_a_table_in_a_wrong_order_is_found(damaged, tiny_checkpoint):
    bundle = damaged(precision="fp32")
    table = np.load(bundle / "group_embedding.npy")
    np.save(bundle / "group_embedding.npy", table[[1, 0, *range(2, 15)]])
    state_again(bundle)
    assert set(failed(verified(bundle, tiny_checkpoint(CUSTOM)))) <= LANGUAGE | {"lanes"} != set()


def test_lanes_that_disturb_each_other_are_found(tiny_bundle, tiny_checkpoint, monkeypatch):
    speak = verify.speak

    def disturbed(model, requests, num_lanes=1):
        frames = speak(model, requests, num_lanes)
        return [codes + (num_lanes > 1) for codes in frames]

    monkeypatch.setattr(verify, "speak", disturbed)
    checks = verified(tiny_bundle(CUSTOM, "fp32"), tiny_checkpoint(CUSTOM))
    assert set(failed(checks)) == {"lanes"}


def test_values_that_are_not_finite_fail(damaged, tiny_checkpoint):
    bundle = damaged(precision="fp32")
    table = np.load(bundle / "codec_embedding.npy")
    table[:] = np.nan
    np.save(bundle / "codec_embedding.npy", table)
    state_again(bundle)
    assert "speech" in failed(verified(bundle, tiny_checkpoint(CUSTOM)))


def test_the_checkpoint_of_another_model_is_refused(tiny_bundle, tiny_checkpoint):
    checks = verified(tiny_bundle(CUSTOM, "int8"), tiny_checkpoint(WIDE))
    assert "hidden_size is 64, not 96" in failed(checks)["checkpoint"]


def test_too_little_space_for_the_reference_says_what_to_do(
    tiny_bundle, tiny_checkpoint, monkeypatch
):
    usage = shutil.disk_usage("/")._replace(free=10)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage)
    with pytest.raises(BuildError, match="TMPDIR"):
        verified(tiny_bundle(CUSTOM, "int8"), tiny_checkpoint(CUSTOM))


# The command.


def test_the_command_prints_a_verdict(tiny_bundle, tiny_checkpoint, capsys):
    arguments = ["verify", str(tiny_bundle(CUSTOM, "int8")), "--threads", str(NUM_THREADS)]
    assert main([*arguments, "--checkpoint", str(tiny_checkpoint(CUSTOM))]) == 0
    text = capsys.readouterr().out
    assert text.splitlines()[-1].startswith("PASS")
    assert "agreement" in text
    assert "SNR dB" in text
    assert main(arguments) == 0
    text = capsys.readouterr().out
    assert "PASS  lanes" in text
    assert "Not compared with a checkpoint" in text


def test_the_command_takes_the_name_of_a_model(tiny_bundle, capsys):
    bundle = tiny_bundle(CUSTOM, "int8")
    arguments = ["verify", "tiny-0.6b-custom_voice", "--data-dir", str(bundle.parents[1])]
    assert main(arguments) == 0
    assert "tiny-0.6b-custom_voice" in capsys.readouterr().out


def test_the_command_fails_with_the_bundle(damaged, capsys):
    bundle = damaged()
    (bundle / "codec_embedding.npy").write_bytes(b"")
    assert main(["verify", str(bundle)]) == 1
    text = capsys.readouterr().out
    assert "FAIL  files" in text
    assert "codec_embedding.npy has another SHA-256" in text
    assert text.splitlines()[-1].startswith("FAIL")


def test_the_command_says_when_there_is_no_bundle(capsys, tmp_path):
    assert main(["verify", "nowhere", "--data-dir", str(tmp_path)]) == 1
    assert "nowhere" in capsys.readouterr().err
    assert main(["verify", str(tmp_path)]) == 1
    assert "manifest.json" in capsys.readouterr().err
