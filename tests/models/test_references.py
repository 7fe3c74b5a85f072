"""What a user writes for a model, and what it means."""

import json
import shutil
from pathlib import Path

import pytest

from tests.support.tiny_checkpoint import write_tiny_checkpoint
from wyoming_qwen3tts.errors import BundleError, ConfigError
from wyoming_qwen3tts.models import registry
from wyoming_qwen3tts.models.bundles import InstalledBundle
from wyoming_qwen3tts.models.references import (
    BuildRequest,
    build_request,
    find_bundle,
    installed_models,
    matching_bundles,
    resolve,
    served_models,
)
from wyoming_qwen3tts.runtime.manifest import MANIFEST_NAME

CUSTOM_VOICE = "qwen3-tts-0.6b-customvoice"
BUNDLE_NAME = "qwen3-tts-12hz-0.6b-customvoice"


@pytest.fixture
def data_dir(tmp_path, monkeypatch):
    """Return a data directory that is also the working directory, as in a container."""
    directory = tmp_path / "data"
    directory.mkdir()
    monkeypatch.chdir(directory)
    return directory


@pytest.fixture
def install(data_dir, tiny_bundle):
    """Return a function that installs a bundle under a name and precision."""

    def copy(folder: str, precision: str = "int8", **changes) -> Path:
        target = data_dir / folder / f"cpu_{precision}"
        shutil.copytree(tiny_bundle("0.6B-custom_voice", "int8"), target)
        change_manifest(target, **{"name": folder, "recipe": precision, **changes})
        return target

    return copy


@pytest.fixture
def installed(install) -> Path:
    """Return the bundle of a published model."""
    model = registry.find_model(CUSTOM_VOICE)
    origin = {"repo": model.repo, "revision": model.revision, "model_sha256": ""}
    return install(BUNDLE_NAME, source=origin)


def change_manifest(directory: Path, **changes) -> None:
    path = directory / MANIFEST_NAME
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


@pytest.mark.parametrize(
    "reference",
    [
        BUNDLE_NAME,
        CUSTOM_VOICE,
        "customvoice",
        "Qwen/Qwen3-TTS-12Hz-0.6B-CustomVoice",
        f"{CUSTOM_VOICE}/cpu_int8",
        f"{CUSTOM_VOICE}/int8",
        f"{CUSTOM_VOICE}:cpu_int8",
        f"{BUNDLE_NAME}/cpu_int8",
        "{directory}",
        "./" + BUNDLE_NAME + "/cpu_int8",
    ],
)
def test_every_command_understands_every_way_to_write_a_model(installed, data_dir, reference):
    """B7: one resolver. B4: the working directory has a folder of the model's name."""
    reference = reference.format(directory=installed)
    assert resolve(reference, [data_dir]).directory == installed
    assert find_bundle(reference, [data_dir]).directory == installed
    assert served_models([reference], [data_dir])[0].directory == installed
    if "directory" not in reference and not reference.startswith(("/", "./")):
        assert [each.directory for each in matching_bundles(reference, [data_dir])] == [installed]


@pytest.mark.parametrize("alias", ["base", "customvoice"])
def test_a_folder_with_the_name_of_a_model_does_not_hide_the_model(data_dir, alias):
    """B4: only a path with a slash is a directory."""
    (data_dir / alias).mkdir()
    request = resolve(alias, [data_dir])
    assert isinstance(request, BuildRequest)
    assert request.repo.startswith("Qwen/")
    with pytest.raises(ConfigError, match="holds neither a bundle"):
        resolve(f"./{alias}", [data_dir])


def test_an_unknown_name_that_is_a_folder_says_how_to_write_it(data_dir):
    (data_dir / "mine").mkdir()
    with pytest.raises(ConfigError, match=r"name a directory as \./mine"):
        resolve("mine", [data_dir])


def test_a_path_with_a_slash_in_the_middle_is_a_directory(installed, data_dir):
    shutil.move(installed.parent, data_dir / "some")
    (data_dir / "deep").mkdir()
    shutil.move(data_dir / "some", data_dir / "deep" / "bundles")
    assert resolve("deep/bundles/cpu_int8", [data_dir]).directory.parent.name == "bundles"
    write_tiny_checkpoint(data_dir / "deep" / "checkpoint")
    assert resolve("deep/checkpoint", [data_dir]).checkpoint == data_dir / "deep" / "checkpoint"


def test_revisions_get_bundles_of_their_own(data_dir):
    """B6: the revision was cut to six characters, and a slash in it made a subfolder."""
    commit = "a" * 40
    revisions = ["release-1", "release-2", "release_1", "refs/pr/1", "x" * 90, "x" * 91, commit]
    targets = [resolve(f"owner/x@{revision}", [data_dir]).target for revision in revisions]
    assert len(set(targets)) == len(targets)
    assert {target.parent.parent for target in targets} == {data_dir}
    assert targets[-1].parent.name == "owner--x-aaaaaa", "as older versions called it"
    assert resolve("owner/x@main", [data_dir]).target.parent.name == "owner--x"


def test_the_bundle_of_a_revision_is_found_again(install, data_dir):
    request = resolve("owner/x@release-1", [data_dir])
    target = install(request.name)
    assert resolve("owner/x@release-1", [data_dir]).directory == target
    assert isinstance(resolve("owner/x@release-2", [data_dir]), BuildRequest)


def test_checkpoints_of_one_name_get_bundles_of_their_own(data_dir, tmp_path):
    requests = [
        resolve(str(write_tiny_checkpoint(tmp_path / owner / "voice", seed=seed)), [data_dir])
        for seed, owner in enumerate(["anna", "bob"])
    ]
    assert requests[0].target != requests[1].target
    assert requests[0].expected_bundle().manifest.facts.speakers


def test_any_installed_precision_will_do_unless_one_is_named(installed, data_dir):
    change_manifest(installed, recipe="fp32")
    found = resolve(CUSTOM_VOICE, [data_dir])
    assert found.directory == installed
    assert resolve(CUSTOM_VOICE, [data_dir], "fp32") == found
    assert resolve(f"{CUSTOM_VOICE}/fp32", [data_dir], "int4") == found
    assert resolve(CUSTOM_VOICE, [data_dir], "int4").target.name == "cpu_int4"


@pytest.mark.parametrize("damage", ["truncated", "missing"])
def test_damaged_bundle_is_built_again(installed, data_dir, damage):
    weights = installed / "talker.onnx.data"
    if damage == "missing":
        weights.unlink()
    else:
        weights.write_bytes(weights.read_bytes()[:-1])
    for references in ([CUSTOM_VOICE], []):
        (request,) = served_models(references, [data_dir])
        assert isinstance(request, BuildRequest)
        assert (request.target, request.fallback) == (installed, None)
        assert request.model.name == CUSTOM_VOICE
        assert "talker.onnx.data" in request.damage
    with pytest.raises(BundleError, match=r"talker\.onnx\.data .* models build"):
        find_bundle(CUSTOM_VOICE, [data_dir])


def test_intact_bundle_serves_until_the_damaged_one_is_built(installed, data_dir, caplog):
    other = installed.with_name("cpu_fp32")
    shutil.copytree(installed, other)
    change_manifest(other, recipe="fp32")
    (installed / "talker.onnx.data").unlink()
    (request,) = served_models([CUSTOM_VOICE], [data_dir])
    assert request.target == installed
    assert request.fallback.directory == other
    assert "cpu_fp32 serves meanwhile" in caplog.text
    assert find_bundle(CUSTOM_VOICE, [data_dir]).directory == other
    assert resolve(CUSTOM_VOICE, [data_dir], "int8").fallback is None, "another precision"
    assert resolve(CUSTOM_VOICE, [data_dir], "fp32").directory == other


@pytest.mark.parametrize("references", [[CUSTOM_VOICE], []], ids=["named", "found"])
def test_bundle_of_older_graphs_serves_until_the_new_one_is_built(installed, data_dir, references):
    change_manifest(installed, graph_revision=1)
    (request,) = served_models(references, [data_dir])
    assert isinstance(request, BuildRequest)
    assert request.target == request.fallback.directory == installed
    assert request.model.name == CUSTOM_VOICE
    (bundle,) = served_models(references, [data_dir], is_server=False)
    assert bundle == request.fallback == find_bundle(CUSTOM_VOICE, [data_dir])


def test_bundle_of_older_graphs_whose_checkpoint_is_unknown_is_served(install, data_dir):
    unknown = {"repo": None, "revision": None, "model_sha256": ""}
    directory = install("my-voice", source=unknown, graph_revision=1)
    assert [model.directory for model in served_models([], [data_dir])] == [directory]


def test_model_in_two_data_directories_is_served_once(installed, data_dir, tmp_path):
    second = tmp_path / "share"
    shutil.copytree(installed.parent, second / installed.parent.name)
    assert [each.directory for each in served_models([], [data_dir, second])] == [installed]


def test_damaged_bundle_of_unknown_origin_gives_way_to_an_intact_one(install, data_dir):
    unknown = {"repo": None, "revision": None, "model_sha256": ""}
    first = install("my-voice", "int8", source=unknown)
    second = install("my-voice", "int4", source=unknown)
    assert resolve("my-voice", [data_dir]).directory == first
    (first / "talker.onnx.data").unlink()
    assert resolve("my-voice", [data_dir]).directory == second
    assert [model.directory for model in installed_models([data_dir])] == [second]
    (second / "talker.onnx.data").unlink()
    assert resolve("my-voice", [data_dir]).directory == first, "the error of opening names it"
    assert [model.directory for model in installed_models([data_dir])] == [first]


def test_bundle_of_another_format_is_refused_and_says_what_to_do(installed, data_dir, caplog):
    change_manifest(installed, format_version=99)
    with pytest.raises(BundleError, match=r"another format version, 99; build or fetch"):
        resolve(str(installed), [data_dir])
    assert served_models([], [data_dir])[0].is_embedded
    assert "another format version" in caplog.text
    assert resolve(CUSTOM_VOICE, [data_dir]).target == installed


def test_without_anything_the_demo_voice_is_served(data_dir):
    (bundle,) = served_models([], [data_dir])
    assert isinstance(bundle, InstalledBundle)
    assert bundle.is_embedded
    assert find_bundle(None, [data_dir]) == bundle == resolve("embedded-demo", [data_dir])


def test_the_retired_model_of_random_weights_is_not_served(install, data_dir):
    install("embedded-random")
    assert served_models([], [data_dir])[0].is_embedded
    with pytest.raises(ConfigError, match="Unknown model 'embedded-random'"):
        resolve("embedded-random", [data_dir])


def test_bundle_for_another_device_is_a_problem_and_not_served(installed, data_dir, caplog):
    change_manifest(installed, device="cuda")
    assert served_models([], [data_dir])[0].is_embedded
    assert "cpu_int8" in caplog.text


@pytest.mark.parametrize(
    ("reference", "message"),
    [
        ("qwen3-tts-0.6b-custom", r"did you mean qwen3-tts-0\.6b-customvoice\? Or name"),
        ("piper", r"there are .*qwen3-tts-1\.7b-voicedesign\. Or name a directory"),
        ("qwen3-tts-0.6b-customvoice/cpu_int3", "only fp32, int8, int4 can be built"),
        ("{empty}", "holds neither a bundle"),
        ("./nothing", "holds neither a bundle"),
    ],
)
def test_what_means_nothing_is_refused_at_once(data_dir, reference, message):
    with pytest.raises(ConfigError, match=message):
        resolve(reference.format(empty=data_dir), [data_dir])


def test_a_model_that_is_not_installed_says_how_to_get_it(installed, data_dir):
    message = rf"installed: {BUNDLE_NAME}/cpu_int8\); get it with: .* models build base"
    with pytest.raises(ConfigError, match=message):
        find_bundle("base", [data_dir])


def test_a_request_can_be_made_for_what_is_installed(installed, data_dir):
    request = build_request(CUSTOM_VOICE, [data_dir])
    assert request.target == installed
    assert request.reference == f"{BUNDLE_NAME}/cpu_int8"
