"""Virtual environments in the project's root, made when a script needs them."""

import hashlib
import os
import subprocess
import sys
import venv
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PYTHON = ROOT / ".venv" / "bin" / "python"


def ensure(extras: Sequence[str]) -> None:
    """Make ``.venv`` with the project and at least these extras; quick when nothing changed."""
    stamp = ROOT / ".venv" / "installed"
    digest, *present = stamp.read_text().split() if stamp.exists() else [""]
    if digest != _project_digest():
        present = []
    wanted = sorted({*extras, *present})
    if not present or wanted != present:
        make(".venv", ["--editable", f"{ROOT}[{','.join(wanted)}]"])
        stamp.write_text(" ".join([_project_digest(), *wanted]) + "\n")


def ensure_other(name: str, packages: Sequence[str]) -> Path:
    """Make another environment unless it has these packages already; return its Python."""
    stamp = ROOT / name / "installed"
    wanted = "\n".join([_project_digest(), *packages])
    if not stamp.exists() or stamp.read_text() != wanted:
        make(name, packages)
        stamp.write_text(wanted)
    return ROOT / name / "bin" / "python"


def make(name: str, packages: Sequence[str]) -> None:
    """Install packages into an environment, which is made first if it is missing or incomplete."""
    if sys.version_info < (3, 11):  # noqa: UP036 - this runs before anything was installed
        sys.exit("error: Python 3.11 or newer is needed; start this script with it.")
    folder = ROOT / name
    print(f"Making {folder} ...", file=sys.stderr)
    if not (folder / "bin" / "pip").exists():
        try:
            venv.create(folder, with_pip=True, clear=True)
        except subprocess.CalledProcessError:
            sys.exit("error: Python's venv is incomplete; on Debian: apt install python3-venv")
    pip = [str(folder / "bin" / "python"), "-m", "pip", "install", "--quiet"]
    subprocess.run([*pip, "--disable-pip-version-check", *packages], check=True)


def run_module(module: str, arguments: Sequence[str]) -> None:
    """Replace this process by a module of ``.venv``, run from the project's root."""
    os.chdir(ROOT)
    os.execv(PYTHON, [str(PYTHON), "-m", module, *arguments])


def check_modules(*commands: Sequence[str]) -> int:
    """Run modules one after the other from the project's root; return the first failure's code."""
    for command in commands:
        code = subprocess.run([PYTHON, "-m", *command], cwd=ROOT, check=False).returncode
        if code:
            return code
    return 0


def _project_digest() -> str:
    return hashlib.sha256((ROOT / "pyproject.toml").read_bytes()).hexdigest()
