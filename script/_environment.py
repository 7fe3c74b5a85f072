"""What the scripts share: the project's root and its virtual environment, made when needed."""

import hashlib
import os
import subprocess
import sys
import venv
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
PYTHON = VENV / "bin" / "python"
_STAMP = VENV / "installed"


def ensure(extras: Sequence[str]) -> None:
    """Make ``.venv`` with the project and at least these extras; quick when nothing changed."""
    project = (ROOT / "pyproject.toml").read_bytes()
    digest = hashlib.sha256(project).hexdigest()
    stamp = _STAMP.read_text().split() if _STAMP.exists() else []
    if stamp[:1] == [digest] and set(extras) <= set(stamp[1:]):
        return
    if not PYTHON.exists():
        if sys.version_info < (3, 11):  # noqa: UP036 - this runs before anything was installed
            sys.exit("error: Python 3.11 or newer is needed; start this script with it.")
        print(f"Making {VENV} ...", file=sys.stderr)
        venv.create(VENV, with_pip=True, clear=True)
    wanted = sorted({*extras, *(stamp[1:] if stamp[:1] == [digest] else [])})
    print(f"Installing wyoming-qwen3tts[{','.join(wanted)}] ...", file=sys.stderr)
    command = [str(PYTHON), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*command, "--editable", f"{ROOT}[{','.join(wanted)}]"], check=True)
    _STAMP.write_text(" ".join([digest, *wanted]) + "\n")


def run_module(module: str, arguments: Sequence[str]) -> None:
    """Replace this process by a module of the environment, run from the project's root."""
    os.chdir(ROOT)
    os.execv(PYTHON, [str(PYTHON), "-m", module, *arguments])


def check_modules(*commands: Sequence[str]) -> int:
    """Run modules one after the other from the project's root; return the first failure's code."""
    for command in commands:
        code = subprocess.run([PYTHON, "-m", *command], cwd=ROOT, check=False).returncode
        if code:
            return code
    return 0
