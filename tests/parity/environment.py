"""The environment of the official package, and a run of it."""

import hashlib
import os
import subprocess
import sys
import venv
from pathlib import Path

from tests.parity.comparison import OfficialRun
from tests.support.tiny_checkpoint import TINY_CHECKPOINTS, write_tiny_checkpoint

ROOT = Path(__file__).resolve().parent.parent.parent
VENV = ROOT / ".venv-parity"
# What the official package was measured with.
REQUIREMENTS = (
    "torch==2.13.0",
    "transformers==4.57.3",
    "accelerate==1.12.0",
    "librosa",
    "soundfile",
    "einops",
)
# Without its dependencies: they include a demo's web framework and a torchaudio that does not load.
OFFICIAL_PACKAGE = "qwen-tts==0.1.1"


def ensure_official_python() -> Path:
    """Make ``.venv-parity`` (about 1 GB) if it is not there, and return its interpreter."""
    python = VENV / "bin" / "python"
    stamp = VENV / "installed"
    digest = hashlib.sha256(" ".join((*REQUIREMENTS, OFFICIAL_PACKAGE)).encode()).hexdigest()
    if stamp.exists() and stamp.read_text() == digest:
        return python
    print(f"Making {VENV} with torch and the official package ...", file=sys.stderr)
    venv.create(VENV, with_pip=True, clear=True)
    install = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*install, *REQUIREMENTS], check=True)
    subprocess.run([*install, "--no-deps", OFFICIAL_PACKAGE], check=True)
    stamp.write_text(digest)
    return python


def write_checkpoints(directory: Path) -> None:
    """Write the tiny checkpoints that are not there yet."""
    for name, (size, model_type) in TINY_CHECKPOINTS.items():
        if not (directory / name).exists():
            write_tiny_checkpoint(directory / name, model_type, size)


def run_official(checkpoints: Path, output: Path) -> OfficialRun:
    """Run the official package over every case (a minute or two)."""
    python = ensure_official_python()
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "HF_HUB_OFFLINE": "1"}
    command = [str(python), "-m", "tests.parity.official", str(checkpoints), str(output)]
    subprocess.run(command, check=True, cwd=ROOT, env=environment)
    return OfficialRun.read(output)
