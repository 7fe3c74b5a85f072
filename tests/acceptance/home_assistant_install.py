"""Installs a Home Assistant to be tested: beside us, or in a small Debian of its own.

A new Home Assistant needs a newer Python than most machines have; Debian's newest has it.
"""

import shutil
import subprocess
import venv
from pathlib import Path

CACHE = Path.home() / ".cache" / "wyoming-qwen3tts-acceptance"

# What was released long after that version and no longer goes with it, or what it takes for
# granted because its own images have it.
_MORE = {
    "2024.3.3": ["josepy<2"],
    "2025.7.0": ["pycares<5", "pymicro-vad==1.0.1", "pyspeex-noise==1.0.2"],
}
_DEBIAN_PACKAGES = (
    "ca-certificates", "ffmpeg", "g++", "libturbojpeg0", "make", "python3-dev", "python3-venv",
)  # fmt: skip
_MIRROR = "http://deb.debian.org/debian"
_CERTIFICATES = Path("/etc/ssl/certs/ca-certificates.crt")
# Home Assistant installs what its integrations need when it starts; uv asks for the machine's
# certificates only when it is told to.
_ENVIRONMENT = [
    "HOME=/root",
    "PATH=/home-assistant/bin:/usr/bin:/bin:/usr/sbin:/sbin",
    f"SSL_CERT_FILE={_CERTIFICATES}",
    f"REQUESTS_CA_BUNDLE={_CERTIFICATES}",
    f"PIP_CERT={_CERTIFICATES}",
]


def install_here(version: str) -> str:
    """Install into an environment of this interpreter; returns the command that starts it."""
    directory = CACHE / f"home-assistant-{version}"
    hass = directory / "bin" / "hass"
    if not hass.exists():
        print(f"Installing Home Assistant {version} in {directory} ...", flush=True)
        venv.create(directory, with_pip=True, clear=True)
        pip = [directory / "bin" / "python", "-m", "pip", "install", "--quiet"]
        subprocess.run([*pip, *_requirements(version)], check=True)
    return str(hass)


def install_in_debian(version: str, suite: str, shared: Path) -> str:
    """Install into a Debian made by debootstrap (root only); returns the command that starts it.

    Args:
        version: Of Home Assistant.
        suite: Of Debian, for example forky.
        shared: Directory that must be the same inside and outside.
    """
    root = CACHE / f"debian-{suite}-{version}"
    if not (root / "home-assistant" / "bin" / "hass").exists():
        print(f"Installing Home Assistant {version} in {root} ...", flush=True)
        shutil.rmtree(root, ignore_errors=True)
        packages = f"--include={','.join(_DEBIAN_PACKAGES)}"
        subprocess.run(
            ["debootstrap", "--variant=minbase", packages, suite, root, _MIRROR, _scripts(suite)],
            check=True,
            stdout=subprocess.DEVNULL,
        )
        shutil.copy("/etc/resolv.conf", root / "etc/resolv.conf")
        shutil.copy(_CERTIFICATES, root / _CERTIFICATES.relative_to("/"))
        for command in (
            ["python3", "-m", "venv", "/home-assistant"],
            ["/home-assistant/bin/pip", "install", "--quiet", *_requirements(version)],
        ):
            subprocess.run(_inside(root, command), check=True)
    _mount(root, shared)
    return " ".join(_inside(root, ["/home-assistant/bin/hass"]))


def unmount(version: str, suite: str, shared: Path) -> None:
    """Undo what :func:`install_in_debian` mounted."""
    root = CACHE / f"debian-{suite}-{version}"
    for target in _mounts(root, shared):
        subprocess.run(["umount", target], check=False)


def _requirements(version: str) -> list[str]:
    return [f"homeassistant=={version}", *_MORE.get(version, [])]


def _inside(root: Path, command: list[str]) -> list[str]:
    return ["chroot", str(root), "env", "-i", *_ENVIRONMENT, *command]


def _mounts(root: Path, shared: Path) -> list[Path]:
    return [root / "proc", root / "dev", root / shared.relative_to("/")]


def _mount(root: Path, shared: Path) -> None:
    proc, dev, same = _mounts(root, shared)
    same.mkdir(parents=True, exist_ok=True)
    for arguments in (
        ["-t", "proc", "proc", proc],
        ["--bind", "/dev", dev],
        ["--bind", shared, same],
    ):
        if not arguments[-1].is_mount():
            subprocess.run(["mount", *arguments], check=True)


def _scripts(suite: str) -> str:
    """Return debootstrap's recipe; an older one does not know the newest suites by name."""
    known = Path("/usr/share/debootstrap/scripts") / suite
    return str(known if known.exists() else known.with_name("sid"))
