"""Kills processes that fetch and build, and checks that the next one recovers.

``python -m tests.models.kill_trial points`` forks a process for every file operation of a run and
kills it right before that operation; the build itself is replaced by a quick stand-in.
``python -m tests.models.kill_trial random --count 20`` kills whole processes, real builds among
them, at random moments. Both end with an error at the first data directory that is not recovered.
"""

import argparse
import hashlib
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

from tests.support.hub import COMMIT, running_hub
from tests.support.hub_fixtures import OWN, PATIENCE, child_environment
from tests.support.tiny_checkpoint import write_tiny_checkpoint
from wyoming_qwen3tts.builder.build import BuildOptions, build_bundle
from wyoming_qwen3tts.builder.recipe import uniform_recipe
from wyoming_qwen3tts.models import provision
from wyoming_qwen3tts.models.bundles import installed_bundles, restore_replaced
from wyoming_qwen3tts.models.checkpoint_store import STORE_NAME, CheckpointStore
from wyoming_qwen3tts.models.hub import HubOptions
from wyoming_qwen3tts.models.orders import Order, Wishes, resolve
from wyoming_qwen3tts.models.provision import Provisioner, ProvisionOptions

NAME = OWN.replace("/", "--")
OPERATIONS = [
    (os, "replace"),
    (os, "rename"),
    (os, "link"),
    (os, "unlink"),
    (os, "rmdir"),
    (os, "mkdir"),
    (os, "fsync"),
    (shutil, "rmtree"),
    (provision, "run_build"),
]


def check_nothing_false(data_dir: Path) -> None:
    """Check that nothing that a later run would trust is wrong."""
    for bundle in installed_bundles([data_dir]):
        for file in bundle.manifest.files:
            assert digest_of(bundle.directory / file.path) == file.sha256, file
    store = CheckpointStore(data_dir)
    for blob in (store.root / "blobs").glob("*"):
        assert digest_of(blob) == blob.name, blob
    for snapshot in store.snapshots():
        for path, record in snapshot.records.items():
            assert digest_of(snapshot.directory / path) == record.sha256, path


def check_recovered(data_dir: Path) -> None:
    check_nothing_false(data_dir)
    (bundle,) = installed_bundles([data_dir])
    assert bundle.manifest.name == NAME
    left = [path for path in (data_dir / STORE_NAME).rglob("*") if path.is_file()]
    assert not left, left
    hidden = [path for path in data_dir.glob("*/.*") if ".building-" in path.name]
    assert not hidden, hidden


def digest_of(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


# Every file operation of a run


def run_once(data_dir: Path, endpoint: str) -> None:
    """Do what a server does at its start."""
    provisioner = Provisioner(
        ProvisionOptions(hub=HubOptions(endpoint=endpoint, **PATIENCE)), threading.Event()
    )
    restore_replaced(data_dir)
    provisioner.finish_clean_up(data_dir)
    wanted = resolve(OWN, Wishes(), [data_dir])
    if isinstance(wanted, Order):
        provisioner.provide(wanted, lambda _state: None)


def kill_before(number: int) -> None:
    """Let this process die right before its file operation of that number."""
    left = number

    def wrap(function):
        def call(*arguments, **options):
            nonlocal left
            left -= 1
            if left == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            return function(*arguments, **options)

        return call

    for module, name in OPERATIONS:
        setattr(module, name, wrap(getattr(module, name)))


def quick_build(prebuilt: Path):
    """Return a stand-in of the build: beside the target, then renamed, as the builder does."""

    def run_build(arguments, progress, _cancelled) -> None:
        target = next(Path(each[9:]) for each in arguments if each.startswith("--output="))
        half = target.with_name(f".{target.name}.building-{os.getpid()}")
        for path in target.parent.glob(f".{target.name}.building-*"):
            shutil.rmtree(path)
        shutil.copytree(prebuilt, half)
        progress(0.5, "talker")
        half.rename(target)

    return run_build


def fork(action, *arguments) -> int:
    """Run an action in a fork of this process; returns how that ended."""
    pid = os.fork()
    if pid == 0:
        try:
            action(*arguments)
            os._exit(0)
        except BaseException as error:  # noqa: BLE001 - reported by the exit code
            print(f"{type(error).__name__}: {error}", file=sys.stderr)
            os._exit(1)
    return os.waitpid(pid, 0)[1]


def try_points(scratch: Path, endpoint: str, prebuilt: Path, stride: int) -> int:
    """Kill before one operation after the other until a run gets by; returns how many it has."""
    provision.run_build = quick_build(prebuilt)
    number = 1 - stride
    while True:
        number += stride
        data_dir = scratch / "data"
        shutil.rmtree(data_dir, ignore_errors=True)

        def killed(data_dir=data_dir, number=number) -> None:
            kill_before(number)
            run_once(data_dir, endpoint)

        status = fork(killed)
        if status != signal.SIGKILL:
            assert status == 0, f"status {status} at operation {number}"
            return number - 1
        check_nothing_false(data_dir)
        assert fork(run_once, data_dir, endpoint) == 0, f"not recovered at operation {number}"
        check_recovered(data_dir)


# Whole processes at random moments


def start(environment: dict[str, str], data_dir: Path) -> subprocess.Popen:
    return subprocess.Popen(
        [sys.executable, "-m", "tests.models.kill_trial", "once", str(data_dir)],
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    )


def finish(environment: dict[str, str], data_dir: Path) -> float:
    """Run a whole process to its end; returns the seconds that it took."""
    started_s = time.monotonic()
    process = start(environment, data_dir)
    _, errors = process.communicate(timeout=120)
    assert process.returncode == 0, errors.decode()
    return time.monotonic() - started_s


def try_random(scratch: Path, environment: dict[str, str], count: int, seed: int) -> list[float]:
    """Kill processes at random moments of their run; returns the moments, 0 to 1."""
    generator = random.Random(seed)
    whole_s = finish(environment, scratch / "first")
    moments = []
    for number in range(count):
        data_dir = scratch / f"trial-{number}"
        moment = generator.uniform(0.15, 1.0)
        process = start(environment, data_dir)
        time.sleep(moment * whole_s)
        process.kill()
        process.communicate()
        check_nothing_false(data_dir)
        finish(environment, data_dir)
        check_recovered(data_dir)
        shutil.rmtree(data_dir)
        moments.append(moment)
    return moments


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("trial", choices=["points", "random", "once"])
    parser.add_argument("data_dir", nargs="?", type=Path)
    parser.add_argument("--count", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--stride", type=int, default=1, help="try every n-th operation")
    arguments = parser.parse_args()
    if arguments.trial == "once":
        run_once(arguments.data_dir, os.environ["HF_ENDPOINT"])
        return
    with tempfile.TemporaryDirectory() as folder:
        scratch = Path(folder)
        # As in the store, so that the builder knows where it came from.
        snapshot = scratch / f"models--{NAME}" / "snapshots" / COMMIT
        checkpoint = write_tiny_checkpoint(snapshot)
        if arguments.trial == "points":
            # The hub must live in another process: a fork copies no threads.
            options = BuildOptions(recipe=uniform_recipe("int8"), name=NAME)
            prebuilt = build_bundle(checkpoint, scratch / "prebuilt", options)
            print(try_points(scratch, os.environ["HF_ENDPOINT"], prebuilt, arguments.stride))
            return
        with running_hub() as hub:
            hub.add_directory(OWN, checkpoint)
            hub.block_pause_s = 0.001
            environment = child_environment(hub, scratch / "home")
            moments = try_random(scratch, environment, arguments.count, arguments.seed)
        print("recovered after kills at", ", ".join(f"{moment:.0%}" for moment in moments))


if __name__ == "__main__":
    main()
