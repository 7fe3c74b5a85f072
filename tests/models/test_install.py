"""From a request to a bundle that speaks, and every way in which that can be interrupted."""

import asyncio
import hashlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from tests.support.hub import COMMIT
from tests.support.hub_fixtures import OWN, child_environment
from tests.support.onnx_community_bundle import write_small_published_bundle
from tests.support.tiny_checkpoint import write_tiny_checkpoint
from wyoming_qwen3tts.files import remove_directory
from wyoming_qwen3tts.models import download, registry
from wyoming_qwen3tts.models import install as install_module
from wyoming_qwen3tts.models.bundles import InstalledBundle, installed_bundles, read_bundle
from wyoming_qwen3tts.models.install import InstallJob, install
from wyoming_qwen3tts.models.installer import run_install
from wyoming_qwen3tts.models.progress import InstallProgress
from wyoming_qwen3tts.models.references import BuildRequest, resolve, served_models
from wyoming_qwen3tts.runtime.bundle import open_bundle
from wyoming_qwen3tts.runtime.manifest import MANIFEST_NAME

CUSTOM_VOICE = "qwen3-tts-0.6b-customvoice"
BASE = "qwen3-tts-0.6b-base"
CODEC = "speech_tokenizer/model.safetensors"
CHECKPOINT_BYTES = 2_500_000


class Workshop:
    """A data directory, and what is needed to fill it."""

    def __init__(self, data_dir: Path) -> None:
        self.data_dir = data_dir
        self.progress: list[InstallProgress] = []

    def resolve(self, name: str, precision: str = "auto") -> InstalledBundle | BuildRequest:
        return resolve(name, [self.data_dir], precision)

    def job(self, name: str, **options) -> InstallJob:
        request = self.resolve(name)
        assert isinstance(request, BuildRequest)
        return InstallJob(request, **options)

    def install(self, name: str, **options) -> InstalledBundle:
        final = self.attempt(name, **options)
        assert final.state == "ready", final.message
        return self.resolve(name)

    def attempt(self, name: str, **options) -> InstallProgress:
        self.progress = []
        install(self.job(name, **options), self.progress.append)
        return self.progress[-1]

    @property
    def downloaded_files(self) -> list[Path]:
        return [path for path in (self.data_dir / ".checkpoints").rglob("*") if path.is_file()]


@pytest.fixture
def workshop(tmp_path):
    return Workshop(tmp_path / "data")


def check_speaks(bundle: InstalledBundle) -> None:
    for file in bundle.manifest.files:
        content = (bundle.directory / file.path).read_bytes()
        assert hashlib.sha256(content).hexdigest() == file.sha256
    open_bundle(bundle.directory, 1)


def change_manifest(directory: Path, **changes) -> None:
    path = directory / MANIFEST_NAME
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def test_repository_becomes_a_bundle(workshop, hub):
    bundle = workshop.install(OWN)
    check_speaks(bundle)
    assert bundle.reference == "someone--tiny/cpu_int8"
    assert bundle.manifest.source.repo == OWN
    assert bundle.manifest.source.revision == COMMIT
    assert workshop.downloaded_files == []
    states = [each.state for each in workshop.progress]
    assert sorted(set(states), key=states.index) == ["fetching", "building", "ready"]


def test_published_names_download_pinned_files(workshop, hub, tiny_catalogue):
    first = workshop.install(CUSTOM_VOICE, keep_checkpoint=True)
    second = workshop.install(BASE)
    assert first.manifest.name == "qwen3-tts-12hz-0.6b-customvoice"
    assert second.manifest.source.revision == registry.find_model(BASE).revision
    assert all("/main/" not in request.path for request in hub.requests)


def test_kept_checkpoint_builds_again_without_the_network(workshop, hub, tiny_catalogue):
    bundle = workshop.install(CUSTOM_VOICE, keep_checkpoint=True)
    remove_directory(bundle.directory)
    hub.requests.clear()
    assert workshop.install(CUSTOM_VOICE, local_files_only=True).directory == bundle.directory
    assert hub.requests == []


def test_nothing_there_and_no_network_allowed(workshop, hub, tiny_catalogue):
    final = workshop.attempt(CUSTOM_VOICE, local_files_only=True)
    assert (final.state, final.retry_s) == ("failed", None)
    assert "not completely on this machine" in final.message
    assert hub.requests == []


def test_what_a_killed_build_left_is_removed_by_the_next_one(workshop, tmp_path):
    half = workshop.data_dir / "other" / ".cpu_int8.building-abc"
    half.mkdir(parents=True)
    workshop.install(str(write_tiny_checkpoint(tmp_path / "checkpoint")))
    assert not half.exists()


def test_local_checkpoint_is_built_left_alone_and_built_again_when_it_changes(workshop, tmp_path):
    checkpoint = write_tiny_checkpoint(tmp_path / "my voice")
    first = workshop.install(str(checkpoint))
    assert first.manifest.name.startswith("my-voice-")
    shutil.rmtree(checkpoint)
    write_tiny_checkpoint(checkpoint, seed=1)
    second = workshop.install(str(checkpoint))
    assert second.directory == first.directory
    assert second.manifest.source.model_sha256 != first.manifest.source.model_sha256
    assert (checkpoint / "config.json").is_file()


def test_older_graphs_of_a_local_checkpoint_are_built_again(workshop, tmp_path):
    checkpoint = str(write_tiny_checkpoint(tmp_path / "checkpoint"))
    first = workshop.install(checkpoint)
    change_manifest(first.directory, graph_revision=1)
    assert workshop.resolve(checkpoint).fallback.directory == first.directory
    assert not workshop.install(checkpoint).is_outdated


def test_damaged_local_checkpoint_is_an_error_in_the_builders_words(workshop, tmp_path):
    checkpoint = write_tiny_checkpoint(tmp_path / "checkpoint")
    weights = checkpoint / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1000])
    final = workshop.attempt(str(checkpoint))
    assert final.retry_s is None
    assert "model.safetensors" in final.message
    assert installed_bundles([workshop.data_dir]) == []


@pytest.fixture
def ready_made(hub, tiny_catalogue, served_checkpoint, tmp_path):
    """Return the folder that the hub serves as a repository of onnx-community bundles."""
    model = registry.find_model(CUSTOM_VOICE)
    write_small_published_bundle(served_checkpoint, tmp_path / "published" / "cpu_int4")
    hub.add_directory(
        model.ready_made_repo, tmp_path / "published", commit=model.ready_made_revision
    )
    return tmp_path / "published"


def test_ready_made_bundle_by_name_and_variant(workshop, hub, ready_made):
    repo = registry.find_model(CUSTOM_VOICE).ready_made_repo
    bundle = workshop.install(f"{repo}/cpu_int4")
    assert bundle.is_published
    assert bundle.directory.parent.name == "onnx-community--qwen3-tts-12hz-0.6b-customvoice"
    open_bundle(bundle.directory, 1)
    for reference in (repo, f"{repo}:cpu_int4", repo.lower()):
        assert workshop.resolve(reference) == bundle
    # Another owner's bundle is not taken for the one that is built from the checkpoint.
    assert isinstance(workshop.resolve(CUSTOM_VOICE), BuildRequest)
    fetched = {Path(request.path).name for request in hub.gets()}
    assert not fetched & {"model.safetensors", "tok_encoder.onnx", "speaker_encoder.onnx"}
    assert workshop.downloaded_files == []


def test_file_names_of_a_hostile_manifest_stay_in_the_store(workshop, hub, ready_made, tmp_path):
    """B19: the names of graphs come from a downloaded manifest."""
    path = ready_made / "cpu_int4" / MANIFEST_NAME
    manifest = json.loads(path.read_text())
    name = next(iter(manifest["sub_models"]))
    manifest["sub_models"][name]["filename"] = "../../../../../../escape.onnx"
    path.write_text(json.dumps(manifest))
    model = registry.find_model(CUSTOM_VOICE)
    hub.add_directory(model.ready_made_repo, ready_made, commit=model.ready_made_revision)
    final = workshop.attempt(f"{model.ready_made_repo}/cpu_int4")
    assert final.state == "failed"
    assert "is not allowed" in final.message
    assert not list(tmp_path.rglob("escape*"))


def test_a_killed_replacement_of_a_ready_made_bundle_loses_nothing(
    workshop, ready_made, monkeypatch
):
    """B34: the old bundle was removed before the new one had its place."""
    repo = registry.find_model(CUSTOM_VOICE).ready_made_repo
    bundle = workshop.install(repo)
    (bundle.directory / "merges.txt").unlink()
    rename = Path.rename

    def refuse(path, target):
        assert bundle.directory.exists() or ".building-" in path.name
        return rename(path, target)

    monkeypatch.setattr(Path, "rename", refuse)
    assert workshop.install(repo).damage() is None
    assert not list(bundle.directory.parent.glob(".*"))


@pytest.fixture
def damaged(workshop, tiny_bundle, tiny_catalogue) -> Path:
    """Return the damaged bundle of a published model."""
    model = registry.find_model(CUSTOM_VOICE)
    directory = workshop.data_dir / model.bundle_name / "cpu_int8"
    shutil.copytree(tiny_bundle("0.6B-custom_voice", "int8"), directory)
    origin = {"repo": model.repo, "revision": model.revision, "model_sha256": ""}
    change_manifest(directory, name=model.bundle_name, source=origin)
    (directory / "talker.onnx.data").unlink()
    return directory


def interrupt_build(workshop, request: BuildRequest) -> Path:
    """Leave what a process leaves that is killed while it builds; return the checkpoint."""
    job = InstallJob(request, fetch_only=True)
    install(job, workshop.progress.append)
    progress = InstallProgress(request.reference, "building", 0.5, None, "talker")
    request.progress_file.parent.mkdir(exist_ok=True)
    request.progress_file.write_text(progress.to_json())
    return Path(workshop.progress[-1].message)


@pytest.mark.parametrize("kind", ["damaged", "missing"])
def test_a_killed_rebuild_keeps_its_checkpoint(workshop, damaged, hub, kind):
    """B1: a readable manifest was taken for a bundle that is ready."""
    if kind == "missing":
        shutil.rmtree(damaged)
    request = workshop.resolve(CUSTOM_VOICE)
    checkpoint = interrupt_build(workshop, request)
    list(served_models([], [workshop.data_dir]))
    assert (checkpoint / "model.safetensors").is_file()
    hub.requests.clear()
    check_speaks(workshop.install(CUSTOM_VOICE))
    assert hub.requests == []


def test_memory_is_checked_before_the_download_and_tried_again(
    workshop, hub, tiny_catalogue, monkeypatch
):
    """B21."""
    monkeypatch.setattr(install_module, "available_memory_bytes", lambda: 200_000_000)
    final = workshop.attempt(CUSTOM_VOICE)
    assert "needs about 320 MB of memory, 200 MB are free" in final.message
    assert final.retry_s == 0.0
    assert hub.requests == []


def test_missing_builder_is_named_before_anything_is_downloaded(
    workshop, hub, tiny_catalogue, monkeypatch
):
    monkeypatch.setitem(sys.modules, "wyoming_qwen3tts.builder.build", None)
    assert "pip install 'wyoming-qwen3tts[build]'" in workshop.attempt(CUSTOM_VOICE).message
    assert hub.requests == []


@contextmanager
def small_disk(directory: Path, num_bytes: int):
    """Mount a file system of a certain size; yields a function that changes the size."""

    def mount(*arguments: str) -> None:
        subprocess.run(["mount", "-t", "tmpfs", *arguments], check=True, capture_output=True)

    directory.mkdir()
    try:
        mount("-o", f"size={num_bytes}", "tmpfs", str(directory))
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("file systems cannot be mounted here")
    try:
        yield lambda size: mount("-o", f"remount,size={size}", "tmpfs", str(directory))
    finally:
        subprocess.run(["umount", str(directory)], check=True)


def test_disk_that_is_too_small_for_the_download(workshop, hub):
    with small_disk(workshop.data_dir, 1_000_000) as resize:
        assert "make room" in workshop.attempt(OWN).message
        assert hub.gets() == []
        resize(40_000_000)
        check_speaks(workshop.install(OWN))


def test_disk_that_fills_up_during_the_download(workshop, hub, monkeypatch):
    with small_disk(workshop.data_dir, CHECKPOINT_BYTES * 4 // 5) as resize:
        monkeypatch.setattr(download, "free_disk_bytes", lambda _path: 10**9)
        final = workshop.attempt(OWN)
        assert "is full" in final.message
        resize(40_000_000)
        hub.requests.clear()
        check_speaks(workshop.install(OWN))
        assert any(request.range for request in hub.gets())


def test_disk_that_is_too_small_for_the_bundle(workshop, hub):
    with small_disk(workshop.data_dir, 3_500_000) as resize:
        assert "MB for the bundle" in workshop.attempt(OWN).message
        assert hub.gets() == [], "nothing is fetched in vain"
        resize(40_000_000)
        check_speaks(workshop.install(OWN))


def test_disk_that_fills_up_during_the_build(workshop, tmp_path, monkeypatch):
    """The estimate may be wrong, and others write too; numpy names no disk in its error."""
    monkeypatch.setattr("wyoming_qwen3tts.builder.build._SPACE_MARGIN", 0)
    checkpoint = write_tiny_checkpoint(tmp_path / "checkpoint")
    with small_disk(workshop.data_dir, 1_000_000):
        message = workshop.attempt(str(checkpoint)).message
        assert re.search("the disk is full|No space left on device", message), message
        assert not list(workshop.data_dir.rglob("cpu_int8"))


def test_data_directory_that_cannot_be_written_is_named(workshop, hub):
    workshop.data_dir.write_text("in the way")
    job = InstallJob(BuildRequest("x", "int8", workshop.data_dir, "owner/x"))
    install(job, workshop.progress.append)
    assert "choose another --data-dir" in workshop.progress[-1].message


# The child process


async def test_cancelling_ends_the_child_and_leaves_nothing(workshop, hub):
    """B23: stopping a server must not wait for a build."""
    building, others = asyncio.Event(), children_of(os.getpid())

    def report(progress):
        if progress.state == "building":
            building.set()

    task = asyncio.create_task(run_install(workshop.job(OWN), report))
    async with asyncio.timeout(60):
        await building.wait()
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task
    assert installed_bundles([workshop.data_dir]) == []
    assert set(children_of(os.getpid())) <= set(others)


async def test_a_crash_of_the_child_is_a_failure_with_its_last_words(workshop, hub, monkeypatch):
    monkeypatch.setattr(InstallJob, "to_json", lambda _job: "not json")
    final = await run_install(workshop.job(OWN), lambda _progress: None)
    assert (final.state, final.retry_s) == ("failed", None)
    assert "JSONDecodeError" in final.message


def start_build(hub, tmp_path: Path, data_dir: Path) -> subprocess.Popen:
    command = [sys.executable, "-m", "wyoming_qwen3tts", "models", "build", OWN]
    return subprocess.Popen(
        [*command, "--data-dir", str(data_dir)],
        env=child_environment(hub, tmp_path / "home"),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


@pytest.mark.slow
def test_two_processes_on_one_data_directory_build_once(workshop, hub, tmp_path):
    processes = [start_build(hub, tmp_path, workshop.data_dir) for _ in range(2)]
    outputs = [process.communicate(timeout=120)[0] for process in processes]
    assert [process.returncode for process in processes] == [0, 0], outputs
    assert len(hub.gets(CODEC)) == 1
    assert sum("building 0 %" in output for output in outputs) >= 1
    check_speaks(workshop.resolve(OWN))


def children_of(pid: int) -> list[int]:
    path = Path(f"/proc/{pid}/task/{pid}/children")
    return [int(child) for child in path.read_text().split()]


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def wait_until(condition, timeout_s: float = 40.0) -> None:
    end_s = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < end_s, "it did not come about"
        time.sleep(0.02)


def test_the_child_does_not_outlive_its_parent(workshop, hub, tmp_path):
    hub.block_pause_s = 0.01
    process = start_build(hub, tmp_path, workshop.data_dir)
    try:
        wait_until(lambda: children_of(process.pid))
        (child,) = children_of(process.pid)
        process.kill()
        process.wait()
        wait_until(lambda: not is_alive(child))
    finally:
        process.kill()
        process.communicate()
    assert isinstance(workshop.resolve(OWN), BuildRequest)


def test_a_child_that_is_killed_is_reported(workshop, hub, tmp_path):
    hub.block_pause_s = 0.01
    process = start_build(hub, tmp_path, workshop.data_dir)
    try:
        wait_until(lambda: children_of(process.pid))
        with suppress(ProcessLookupError):
            os.kill(children_of(process.pid)[0], signal.SIGKILL)
        output, _ = process.communicate(timeout=60)
    finally:
        process.kill()
        process.wait()
    assert process.returncode == 1
    assert "error: The build was killed, most likely for lack of memory" in output


@pytest.mark.parametrize("moment", [0.3, 0.6, 0.9])
def test_whatever_is_killed_the_next_run_recovers(workshop, hub, tmp_path, moment):
    """Kill the whole installer some time into its run, and let the next one finish."""
    hub.block_pause_s = 0.002
    process = start_build(hub, tmp_path, workshop.data_dir)
    wait_until(lambda: hub.requests)
    time.sleep(2.0 * moment)
    for pid in (*children_of(process.pid), process.pid):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    process.communicate()
    hub.block_pause_s = 0.0
    for bundle in installed_bundles([workshop.data_dir]):
        check_speaks(read_bundle(bundle.directory))
    if isinstance(workshop.resolve(OWN), BuildRequest):
        workshop.install(OWN)
    check_speaks(workshop.resolve(OWN))
    assert not list(workshop.data_dir.glob("someone*/.*"))
