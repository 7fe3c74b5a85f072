"""Lints and builds the container images, and talks to what runs in them.

Builds with buildah and chroot isolation, which needs no container engine, on a base image that
debootstrap makes, which needs no registry. With a registry at hand, --base names a real one.
"""

import argparse
import asyncio
import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

from wyoming.audio import AudioChunk, AudioStop
from wyoming.client import AsyncTcpClient
from wyoming.tts import Synthesize

from tests.acceptance.server_process import free_port
from tests.support.tiny_checkpoint import write_tiny_checkpoint

_ROOT = Path(__file__).parents[2]
_SERVICES = _ROOT / "config/addon/rootfs/etc/s6-overlay/s6-rc.d"
_MIRROR = "http://deb.debian.org/debian"
_CERTIFICATES = Path("/etc/ssl/certs/ca-certificates.crt")
_BUILDAH = ["nice", "buildah"]
_BUILD = [*_BUILDAH, "build", "--isolation", "chroot", "--network", "host", "--format", "docker"]
_RUN = [*_BUILDAH, "run", "--isolation", "chroot", "--network", "host"]
# A tiny checkpoint of random weights is copied there; the container builds it at its first start.
_MODEL = "/trial/checkpoint"
_APP_PORT = 10200
_START_TIMEOUT_S = 180.0
_TOLD = "/told.json"
_IMAGE_SERVICES = "/etc/s6-overlay/s6-rc.d"
_FIRST = {"tini", "python", "python3"}

# Stands in for what the app's real base image has: s6-overlay's and bashio's part in our scripts.
_WITH_CONTENV = '#!/bin/sh\nexec "$@"\n'
_BASHIO = """\
#!/bin/bash
bashio::var.json() { printf '{"%s":"%s"}' "$1" "$2"; }
bashio::discovery() { printf '{"service":"%s","config":%s}' "$1" "$2" > /told.json; }
bashio::log.info() { echo "$*"; }
bashio::log.error() { echo "$*" >&2; }
source "$1"
"""


def lint() -> None:
    """Check the Dockerfile, the scripts in the image and the YAML files of installations."""
    subprocess.run(["hadolint", _ROOT / "Dockerfile"], check=True)
    scripts = [path for path in _SERVICES.rglob("*") if path.name in {"run", "finish"}]
    subprocess.run(["shellcheck", *scripts], check=True)
    yaml = ["config", "compose.yaml", "repository.yaml"]
    subprocess.run(["yamllint", "--strict", *yaml], cwd=_ROOT, check=True)


def make_base(suite: str) -> str:
    """Make a base image out of Debian's packages; returns its name."""
    name = f"localhost/debian:{suite}"
    with tempfile.TemporaryDirectory() as temporary:
        root = Path(temporary) / "root"
        command = ["nice", "debootstrap", "--variant=minbase", "--include=ca-certificates"]
        subprocess.run([*command, suite, root, _MIRROR], check=True, stdout=subprocess.DEVNULL)
        # So that pip reaches the index from inside as it does from here, also behind a proxy.
        shutil.copy(_CERTIFICATES, root / _CERTIFICATES.relative_to("/"))
        (root / "etc/pip.conf").write_text(f"[global]\ncert = {_CERTIFICATES}\n")
        for folder in ("var/cache/apt", "var/lib/apt/lists"):
            shutil.rmtree(root / folder)
            (root / folder / "partial").mkdir(parents=True)
        container = _output([*_BUILDAH, "from", "scratch"])
        _output([*_BUILDAH, "copy", "--quiet", container, str(root), "/"])
        _output([*_BUILDAH, "commit", "--quiet", "--rm", container, name])
    return name


def make_app_base(base: str) -> str:
    """Put what stands in for s6-overlay and bashio on a base image; returns its name."""
    name = "localhost/app-base"
    container = _output([*_BUILDAH, "from", base])
    with tempfile.TemporaryDirectory() as folder:
        for path, text in (("command/with-contenv", _WITH_CONTENV), ("usr/bin/bashio", _BASHIO)):
            file = Path(folder) / Path(path).name
            file.write_text(text)
            _output(
                [*_BUILDAH, "copy", "--quiet", "--chmod", "755", container, str(file), f"/{path}"]
            )
    _output([*_BUILDAH, "commit", "--quiet", "--rm", container, name])
    return name


def _copy_checkpoint(container: str) -> None:
    with tempfile.TemporaryDirectory() as scratch:
        checkpoint = write_tiny_checkpoint(Path(scratch) / "checkpoint", eos_gain=0.8)
        _output([*_BUILDAH, "copy", container, str(checkpoint), _MODEL])


def check_server(base: str) -> None:
    """Build the server image; it runs as nobody special, is healthy, speaks and stops."""
    image = _build("server", f"BASE={base}")
    config = json.loads(_output([*_BUILDAH, "inspect", "--type", "image", image]))
    settings: dict[str, Any] = config["Docker"]["config"]
    assert settings["User"] not in {"", "0", "root"}, settings["User"]
    assert settings["Healthcheck"]["StartPeriod"] >= 60e9, settings["Healthcheck"]
    container = _output([*_BUILDAH, "from", image])
    _copy_checkpoint(container)
    try:
        port = free_port()
        uri = f"WYOMING_QWEN3TTS_URI=tcp://127.0.0.1:{port}"
        # Built at the first start: so the image can build, and /data can be written.
        model = f"WYOMING_QWEN3TTS_MODELS={_MODEL}"
        wait = "WYOMING_QWEN3TTS_MODEL_WAIT_TIMEOUT=180"
        run = [*_RUN, "--env", uri, "--env", model, "--env", wait, container, "--"]
        assert _output([*run, "id", "-u"]) == settings["User"].split(":")[0]
        with subprocess.Popen([*run, *settings["Entrypoint"]]) as process:
            try:
                _wait_for_port(port, process)
                health = settings["Healthcheck"]["Test"][1:]
                print("health check:", _output([*run, *health]))
                asyncio.run(_speak(port))
            finally:
                _terminate(process)
        left = _output([*run, "find", "/data", "-mindepth", "1", "-maxdepth", "1"]).split()
        assert any("checkpoint" in path for path in left), left
        assert "/data/.cache" not in left, "something collects"
    finally:
        _output([*_BUILDAH, "rm", container])


def check_app(base: str) -> None:
    """Build the app image; its services serve, and tell Home Assistant where."""
    with socket.socket() as probe:
        if probe.connect_ex(("127.0.0.1", _APP_PORT)) == 0:
            raise SystemExit(f"error: port {_APP_PORT} is in use; the app needs it.")
    image = _build("addon", f"BASE={base}", f"BUILD_FROM={make_app_base(base)}")
    container = _output([*_BUILDAH, "from", image])
    _copy_checkpoint(container)
    run = [*_RUN, container, "--"]
    services = _IMAGE_SERVICES
    try:
        options = f'{{"models": ["{_MODEL}"], "model_wait_timeout": 180, "threads": 1}}'
        _output([*run, "sh", "-c", f"mkdir -p /data; echo '{options}' > /data/options.json"])
        with subprocess.Popen([*run, f"{services}/wyoming-qwen3tts/run"]) as process:
            try:
                _wait_for_port(_APP_PORT, process)
                print("discovery:", _output([*run, f"{services}/discovery/run"]))
                told = json.loads(_output([*run, "cat", _TOLD]))
                assert told["service"] == "wyoming", told
                assert told["config"]["uri"].endswith(f":{_APP_PORT}"), told
                asyncio.run(_speak(_APP_PORT))
            finally:
                _terminate(process)
        assert "checkpoint" in _output([*run, "ls", "/data/models"])
        _check_finish(run, f"{services}/wyoming-qwen3tts/finish")
    finally:
        _output([*_BUILDAH, "rm", container])


def _check_finish(run: list[str], finish: str) -> None:
    """A failure's code becomes the container's; a normal end leaves everything alone."""
    results = "/run/s6-linux-init-container-results"
    halt = "/run/s6/basedir/bin"
    prepare = f"mkdir -p {results} {halt}; echo 0 > {results}/exitcode; "
    prepare += f"printf '#!/bin/sh\\necho halted\\n' > {halt}/halt; chmod +x {halt}/halt; "
    for arguments, expected in (("1 0", "halted\n1"), ("256 9", "halted\n137"), ("0 0", "0")):
        script = f"{prepare}{finish} {arguments}; cat {results}/exitcode"
        got = _output([*run, "sh", "-c", script])
        assert got == expected, (arguments, got)
    # s6 cannot stop a container whose discovery waits for a server that has failed.
    failed = f"echo 1 > {results}/exitcode; timeout 60 {_IMAGE_SERVICES}/discovery/run"
    assert not _output([*run, "sh", "-c", f"{prepare}{failed}"])


def _build(target: str, *arguments: str) -> str:
    name = f"localhost/wyoming-qwen3tts-{target}"
    flags = [flag for argument in arguments for flag in ("--build-arg", argument)]
    started_s = time.perf_counter()
    subprocess.run(
        [*_BUILD, "--layers", *flags, "--target", target, "--tag", name, str(_ROOT)],
        check=True,
        stdout=subprocess.DEVNULL,
    )
    size = _output([*_BUILDAH, "images", "--format", "{{.Size}}", name])
    print(f"{target}: built in {time.perf_counter() - started_s:.0f} s, {size}")
    return name


async def _speak(port: int) -> None:
    started_s = time.perf_counter()
    num_bytes = 0
    async with AsyncTcpClient("127.0.0.1", port) as client, asyncio.timeout(200):
        await client.write_event(Synthesize("Good evening from a container.").event())
        while (event := await client.read_event()) is not None:
            assert event.type != "error", event.data
            if AudioChunk.is_type(event.type):
                num_bytes += len(AudioChunk.from_event(event).audio)
            if AudioStop.is_type(event.type):
                break
    assert num_bytes > 0
    print(f"spoke {num_bytes} bytes in {time.perf_counter() - started_s:.2f} s")


def _wait_for_port(port: int, process: subprocess.Popen[bytes]) -> None:
    deadline_s = time.monotonic() + _START_TIMEOUT_S
    while time.monotonic() < deadline_s and process.poll() is None:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.2)
    raise RuntimeError("the server in the container does not start")


def _terminate(process: subprocess.Popen[bytes]) -> None:
    """Send SIGTERM to the process in the container, as an engine does when it stops it."""
    children = _descendants(process.pid)
    try:
        # The first process of the image; others may be its children.
        os.kill(next(pid for pid in children if _program(pid) in _FIRST), signal.SIGTERM)
        code = process.wait(30)
    finally:
        for child in children:
            with contextlib.suppress(ProcessLookupError):
                os.kill(child, signal.SIGKILL)
    assert code == 0, f"stopped with {code}"


def _program(pid: int) -> str:
    return Path(Path(f"/proc/{pid}/cmdline").read_text().partition("\0")[0]).name


def _descendants(pid: int) -> list[int]:
    found = []
    for task in Path(f"/proc/{pid}/task").iterdir():
        for child in map(int, (task / "children").read_text().split()):
            found += [child, *_descendants(child)]
    return found


def _output(command: list[str]) -> str:
    result = subprocess.run(command, check=False, capture_output=True, text=True)
    if result.returncode:
        raise RuntimeError(f"{' '.join(command)}: {result.stderr[-2000:]}")
    return result.stdout.strip()


def main() -> None:
    """Read the command line and check."""
    parser = argparse.ArgumentParser(description="Check the container images.")
    parser.add_argument("--base", metavar="IMAGE", help="base image (default: made here)")
    parser.add_argument("--suite", default="bookworm", help="Debian to make it of (%(default)s)")
    parser.add_argument("--lint-only", action="store_true", help="build nothing")
    given = parser.parse_args()
    lint()
    if not given.lint_only:
        base = given.base or make_base(given.suite)
        check_server(base)
        check_app(base)
    print("All is well")


if __name__ == "__main__":
    main()
