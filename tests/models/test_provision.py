"""From a name to a bundle that speaks, and every way in which that can be interrupted."""

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.hub_fixtures import OWN, child_environment
from tests.support.onnx_community_bundle import write_small_published_bundle
from tests.support.tiny_checkpoint import write_tiny_checkpoint
from wyoming_qwen3tts.errors import BuildError, BundleError, ConfigError, DownloadError
from wyoming_qwen3tts.models import download, provision
from wyoming_qwen3tts.models import registry as model_catalogue
from wyoming_qwen3tts.models.bundles import InstalledBundle, installed_bundles, outdated_bundle
from wyoming_qwen3tts.models.checkpoint_store import STORE_NAME, sha256_of
from wyoming_qwen3tts.models.installer import installed_models
from wyoming_qwen3tts.models.orders import Order, Wishes, rebuild_order, resolve
from wyoming_qwen3tts.models.provision import Provisioner, ProvisionOptions
from wyoming_qwen3tts.models.provision_state import CancelledError, ProvisionState, read_state
from wyoming_qwen3tts.models.registry import Measured
from wyoming_qwen3tts.runtime.bundle import open_bundle
from wyoming_qwen3tts.runtime.manifest import MANIFEST_NAME

CUSTOM_VOICE = "qwen3-tts-0.6b-customvoice"
BASE = "qwen3-tts-0.6b-base"
CODEC = "speech_tokenizer/model.safetensors"


class Workshop:
    """A data directory, and what is needed to fill it."""

    def __init__(self, data_dir: Path, options) -> None:
        self.data_dir = data_dir
        self.options = ProvisionOptions(hub=options)
        self.cancelled = threading.Event()
        self.states: list[ProvisionState] = []

    def resolve(self, name: str, **wishes) -> InstalledBundle | Order:
        return resolve(name, Wishes(**wishes), [self.data_dir])

    def provide(self, name: str, *, keep_shared: bool = False, **changes) -> InstalledBundle:
        order = self.resolve(name)
        assert isinstance(order, Order)
        self.states = []
        provisioner = Provisioner(replace(self.options, **changes), self.cancelled)
        return provisioner.provide(order, self.states.append, keep_shared=keep_shared)

    @property
    def fetched_files(self) -> list[Path]:
        return [path for path in (self.data_dir / STORE_NAME).rglob("*") if path.is_file()]


@pytest.fixture
def workshop(tmp_path, options):
    return Workshop(tmp_path / "data", options)


def check_speaks(bundle: InstalledBundle) -> None:
    for file in bundle.manifest.files:
        assert sha256_of(bundle.directory / file.path) == file.sha256
    open_bundle(bundle.directory, 1)


def test_repository_becomes_a_bundle(workshop, hub):
    order = workshop.resolve(OWN)
    bundle = workshop.provide(OWN)
    check_speaks(bundle)
    assert bundle == workshop.resolve(OWN)
    assert bundle.reference == "someone--tiny/cpu_int8"
    assert bundle.manifest.source.repo == OWN
    assert workshop.fetched_files == []
    assert [state.state for state in workshop.states if state.is_over] == ["ready"]
    for stage in ("fetching", "building"):
        fractions = [state.fraction for state in workshop.states if state.state == stage]
        assert fractions == sorted(fractions)
        assert fractions[-1] > 0.5
    assert read_state(order.state_file) == workshop.states[-1]


def test_catalogue_names_fetch_pinned_files_and_share_the_codec(
    workshop, builds_here, hub, tiny_catalogue
):
    first = workshop.provide(CUSTOM_VOICE, keep_shared=True)
    second = workshop.provide(BASE)
    assert first.manifest.name == "qwen3-tts-12hz-0.6b-customvoice"
    assert second.manifest.source.revision == model_catalogue.find_model(BASE).revision
    assert len(hub.gets(CODEC)) == 1
    assert workshop.fetched_files == []
    assert all("/main/" not in request.path for request in hub.requests)


def test_kept_checkpoint_builds_again_without_a_network_call(
    workshop, builds_here, hub, tiny_catalogue
):
    bundle = workshop.provide(CUSTOM_VOICE, keep_checkpoint=True)
    shutil.rmtree(bundle.directory)
    hub.requests.clear()
    assert workshop.provide(CUSTOM_VOICE, local_files_only=True).directory == bundle.directory
    assert hub.requests == []


def test_nothing_there_and_no_network_allowed(workshop, hub, tiny_catalogue):
    with pytest.raises(DownloadError, match="not on this machine"):
        workshop.provide(CUSTOM_VOICE, local_files_only=True)
    assert workshop.states[-1].state == "failed"
    assert "not on this machine" in workshop.states[-1].message
    assert hub.requests == []


def test_local_checkpoint_is_built_left_alone_and_noticed_when_it_changes(
    workshop, builds_here, tmp_path
):
    checkpoint = write_tiny_checkpoint(tmp_path / "my voice")
    first = workshop.provide(str(checkpoint))
    assert first.manifest.name.startswith("my-voice-")
    assert workshop.resolve(str(checkpoint)) == first
    shutil.rmtree(checkpoint)
    write_tiny_checkpoint(checkpoint, seed=1)
    second = workshop.provide(str(checkpoint))
    assert second.directory == first.directory
    assert second.manifest.source.model_sha256 != first.manifest.source.model_sha256
    assert (checkpoint / "config.json").is_file()


def test_checkpoints_of_one_name_get_bundles_of_their_own(workshop, tmp_path):
    orders = [
        workshop.resolve(str(write_tiny_checkpoint(tmp_path / owner / "voice", seed=seed)))
        for seed, owner in enumerate(["anna", "bob"])
    ]
    assert orders[0].target != orders[1].target


def test_damaged_local_checkpoint_is_an_error_with_the_builders_own_words(workshop, tmp_path):
    checkpoint = write_tiny_checkpoint(tmp_path / "checkpoint")
    weights = checkpoint / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1000])
    with pytest.raises(BuildError, match=r"model\.safetensors is damaged: it has"):
        workshop.provide(str(checkpoint))
    assert installed_bundles([workshop.data_dir]) == []


def test_published_bundle_by_name_and_variant(
    workshop, hub, tiny_catalogue, served_checkpoint, tmp_path
):
    model = model_catalogue.find_model(CUSTOM_VOICE)
    published = model.published
    write_small_published_bundle(served_checkpoint, tmp_path / "published" / "cpu_int4")
    hub.add_directory(published.repo, tmp_path / "published", commit=published.revision)
    bundle = workshop.provide(f"{published.repo}/cpu_int4")
    assert bundle.is_published
    assert bundle.directory.parent.name == "onnx-community--qwen3-tts-12hz-0.6b-customvoice"
    open_bundle(bundle.directory, 1)
    for reference in (published.repo, f"{published.repo}:cpu_int4", published.repo.lower()):
        assert workshop.resolve(reference) == bundle
    # The owner's bundle does not pass for the one that is built from the checkpoint.
    assert isinstance(workshop.resolve(CUSTOM_VOICE), Order)
    fetched = {Path(request.path).name for request in hub.gets()}
    assert not fetched & {"model.safetensors", "tok_encoder.onnx", "speaker_encoder.onnx"}
    assert workshop.fetched_files == []


@pytest.fixture
def installed(workshop, tiny_bundle, tiny_catalogue):
    """Return a bundle of a published model that was not built here."""
    source = tiny_bundle("0.6B-custom_voice", "int8")
    model = model_catalogue.find_model(CUSTOM_VOICE)
    directory = workshop.data_dir / model.bundle_name / "cpu_int8"
    shutil.copytree(source, directory)
    origin = {"repo": model.repo, "revision": model.revision, "model_sha256": ""}
    change_manifest(directory, name=model.bundle_name, source=origin)
    bundle = workshop.resolve(CUSTOM_VOICE)
    assert isinstance(bundle, InstalledBundle)
    return bundle


def change_manifest(directory: Path, **changes) -> None:
    path = directory / MANIFEST_NAME
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def test_bundle_of_another_format_is_built_again_in_its_place(workshop, builds_here, installed):
    change_manifest(installed.directory, format_version=0, facts="of another kind")
    assert installed_bundles([workshop.data_dir]) == []
    order = rebuild_order(outdated_bundle(installed.directory), workshop.data_dir)
    assert order == workshop.resolve(CUSTOM_VOICE)
    assert workshop.resolve(str(installed.directory)) == order
    check_speaks(workshop.provide(CUSTOM_VOICE))


def test_bundle_of_another_format_and_unknown_origin_says_what_to_do(workshop, installed):
    origin = {"repo": None, "revision": None, "model_sha256": ""}
    change_manifest(installed.directory, format_version=2, source=origin)
    with pytest.raises(BundleError, match=r"another version of this program.*--force"):
        workshop.resolve(str(installed.directory))


@pytest.mark.parametrize("damage", ["truncated", "missing"])
def test_bundle_that_lost_bytes_is_ordered_again(workshop, installed, caplog, damage):
    weights = installed.directory / "talker.onnx.data"
    if damage == "missing":
        weights.unlink()
    else:
        weights.write_bytes(weights.read_bytes()[:-1])
    order = workshop.resolve(CUSTOM_VOICE)
    assert isinstance(order, Order)
    assert order.stand_in is None
    assert "talker.onnx.data" in caplog.text


def test_whole_bundle_stands_in_for_a_damaged_one(workshop, installed, caplog):
    other = installed.directory.with_name("cpu_fp32")
    shutil.copytree(installed.directory, other)
    change_manifest(other, recipe="fp32")
    (installed.directory / "talker.onnx.data").unlink()
    order = workshop.resolve(CUSTOM_VOICE)
    assert order.target == installed.directory
    assert order.stand_in.directory == other
    assert "cpu_fp32 serves until then" in caplog.text
    assert workshop.resolve(CUSTOM_VOICE, precision="int8").stand_in is None, "not what was asked"
    assert workshop.resolve(CUSTOM_VOICE, precision="fp32").directory == other


def test_damaged_bundle_of_unknown_origin_gives_way_to_a_whole_one(workshop, installed):
    folder = workshop.data_dir / "my-voice"
    installed.directory.parent.rename(folder)
    shutil.copytree(folder / "cpu_int8", folder / "cpu_int4")
    change_manifest(folder / "cpu_int8", name="my-voice")
    change_manifest(folder / "cpu_int4", name="my-voice", recipe="int4")
    assert workshop.resolve("my-voice").directory.name == "cpu_int8"
    (folder / "cpu_int8" / "talker.onnx.data").unlink()
    assert workshop.resolve("my-voice").directory.name == "cpu_int4"
    assert [model.directory.name for model in installed_models([workshop.data_dir])] == ["cpu_int4"]
    (folder / "cpu_int4" / "talker.onnx.data").unlink()
    assert workshop.resolve("my-voice").directory.name == "cpu_int8", "the error names it"
    assert [model.directory.name for model in installed_models([workshop.data_dir])] == ["cpu_int8"]


@pytest.mark.parametrize(
    ("reference", "message"),
    [
        (
            "qwen3-tts-0.6b-custom",
            r"did you mean qwen3-tts-0\.6b-customvoice\? Or name a directory",
        ),
        ("piper", r"there are .*qwen3-tts-1\.7b-voicedesign\. Or name a directory"),
        ("qwen3-tts-0.6b-customvoice/cpu_int3", "only fp32, fp16, int8, int4 can be got"),
        ("{empty}", "holds neither a bundle"),
    ],
)
def test_what_means_nothing_is_refused_at_once(workshop, tmp_path, reference, message):
    with pytest.raises(ConfigError, match=message):
        workshop.resolve(reference.format(empty=tmp_path))


def test_installed_bundle_of_any_precision_will_do_unless_one_is_asked_for(workshop, installed):
    change_manifest(installed.directory, recipe="fp32")
    found = workshop.resolve(CUSTOM_VOICE)
    assert found.directory == installed.directory
    assert workshop.resolve(CUSTOM_VOICE, precision="fp32") == found
    assert workshop.resolve(f"{CUSTOM_VOICE}/cpu_fp32") == found
    assert workshop.resolve(CUSTOM_VOICE, precision="int4").target.name == "cpu_int4"
    assert workshop.resolve(CUSTOM_VOICE, device="cuda").target.name == "cuda_fp16"


def test_memory_is_checked_before_the_build(workshop, tiny_catalogue, monkeypatch):
    model = model_catalogue.find_model(CUSTOM_VOICE)
    measured = replace(model, measured={"cpu_int8": Measured(1, 3_000_000_000, 1)})
    monkeypatch.setattr(model_catalogue, "catalogue_models", lambda: (measured,))
    monkeypatch.setattr(provision, "available_memory_bytes", lambda: 2_000_000_000)
    with pytest.raises(BuildError, match="needs about 3000 MB of memory, 2000 MB are free"):
        workshop.provide(CUSTOM_VOICE)


def test_builder_that_is_not_installed_is_named_before_anything_is_fetched(
    workshop, hub, tiny_catalogue, monkeypatch
):
    monkeypatch.setattr(
        "wyoming_qwen3tts.models.build_process.version", lambda _name: raise_missing()
    )
    with pytest.raises(BuildError, match=r"pip install 'wyoming-qwen3tts\[build\]'"):
        workshop.provide(CUSTOM_VOICE)
    assert hub.requests == []


def raise_missing() -> None:
    from importlib.metadata import PackageNotFoundError

    raise PackageNotFoundError("onnx")


@contextmanager
def small_disk(directory: Path, megabytes: int):
    """Mount a file system of a certain size; yields a function that changes the size."""

    def mount(*arguments: str) -> None:
        subprocess.run(["mount", "-t", "tmpfs", *arguments], check=True, capture_output=True)

    directory.mkdir()
    try:
        mount("-o", f"size={megabytes}m", "tmpfs", str(directory))
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("file systems cannot be mounted here")
    try:
        yield lambda size: mount("-o", f"remount,size={size}m", "tmpfs", str(directory))
    finally:
        subprocess.run(["umount", str(directory)], check=True)


def test_disk_that_is_too_small_for_what_is_fetched(workshop, builds_here, hub):
    with small_disk(workshop.data_dir, 1) as resize:
        with pytest.raises(DownloadError, match=r"needs 2 MB, but .* has 1 MB free; make room"):
            workshop.provide(OWN)
        assert hub.gets(CODEC) == []
        resize(40)
        check_speaks(workshop.provide(OWN))


def test_disk_that_fills_up_while_fetching(workshop, builds_here, hub, monkeypatch):
    with small_disk(workshop.data_dir, 2) as resize:
        monkeypatch.setattr(download, "free_disk_bytes", lambda _path: 10**9)
        with pytest.raises(DownloadError, match="The disk is full"):
            workshop.provide(OWN)
        resize(40)
        hub.requests.clear()
        check_speaks(workshop.provide(OWN))
        assert len(hub.gets(CODEC)) == 0
        assert hub.gets("/model.safetensors")[0].range is not None


def test_disk_that_is_too_small_for_the_bundle(workshop, hub, request):
    with small_disk(workshop.data_dir, 4) as resize:
        with pytest.raises(BuildError, match="The bundle needs about"):
            workshop.provide(OWN)
        resize(40)
        hub.requests.clear()
        request.getfixturevalue("builds_here")
        check_speaks(workshop.provide(OWN))
        assert hub.gets() == []


def test_cancelling_a_build_ends_its_process(workshop):
    original = provision.StageClock.advance

    def advance(clock, fraction, message):
        if message == "talker":
            workshop.cancelled.set()
        original(clock, fraction, message)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(provision.StageClock, "advance", advance)
        with pytest.raises(CancelledError):
            workshop.provide(OWN)
    assert installed_bundles([workshop.data_dir]) == []
    assert not list(workshop.data_dir.glob("someone*/.*"))


# In processes of their own


def start_command(hub, tmp_path: Path, *arguments: str, **options) -> subprocess.Popen:
    return subprocess.Popen(
        [sys.executable, "-m", "wyoming_qwen3tts", *arguments],
        env=child_environment(hub, tmp_path / "home"),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        **options,
    )


def start_build(hub, tmp_path: Path, data_dir: Path) -> subprocess.Popen:
    return start_command(hub, tmp_path, "models", "build", OWN, "--data-dir", str(data_dir))


def test_two_processes_on_one_data_directory_build_once(workshop, hub, tmp_path):
    hub.block_pause_s = 0.002
    processes = [start_build(hub, tmp_path, workshop.data_dir) for _ in range(2)]
    outputs = [process.communicate(timeout=60)[0] for process in processes]
    assert [process.returncode for process in processes] == [0, 0], outputs
    lines = [line for output in outputs for line in output.splitlines()]
    assert sum("building 0 %" in line and "another" not in line for line in lines) == 1
    assert any("another process" in line or "there already" in line for line in lines)
    assert len(hub.gets(CODEC)) == 1
    check_speaks(workshop.resolve(OWN))


def children_of(process: subprocess.Popen) -> list[int]:
    path = Path(f"/proc/{process.pid}/task/{process.pid}/children")
    return [int(pid) for pid in path.read_text().split()]


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def wait_until(condition, timeout_s: float = 20.0) -> None:
    end_s = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < end_s, "it did not come about"
        time.sleep(0.01)


def test_build_does_not_outlive_its_parent(workshop, hub, tmp_path):
    process = start_build(hub, tmp_path, workshop.data_dir)
    try:
        wait_until(lambda: children_of(process))
        (builder,) = children_of(process)
        process.kill()
        process.wait()
        wait_until(lambda: not is_alive(builder))
    finally:
        process.kill()
        process.communicate()
    assert isinstance(workshop.resolve(OWN), Order)


def test_build_that_is_killed_says_so(workshop, hub, tmp_path):
    process = start_build(hub, tmp_path, workshop.data_dir)
    try:
        wait_until(lambda: children_of(process))
        with suppress(ProcessLookupError):
            os.kill(children_of(process)[0], signal.SIGKILL)
        output, _ = process.communicate(timeout=30)
    finally:
        process.kill()
        process.wait()
    assert process.returncode == 1
    assert "error: The build was killed from outside, most likely for lack of memory" in output
