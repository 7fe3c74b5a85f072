"""Defaults that depend on the machine: where models live, and how many threads make sense."""

import os
from pathlib import Path

_PACKAGE_ROOT = Path(__file__).resolve().parent.parent


def default_data_dirs() -> list[Path]:
    """Return ``onnx/`` of a source checkout, else a folder of the user's data."""
    if (_PACKAGE_ROOT / "pyproject.toml").exists():
        return [_PACKAGE_ROOT / "onnx"]
    home = os.environ.get("XDG_DATA_HOME")
    base = Path(home) if home else Path.home() / ".local" / "share"
    return [base / "wyoming-qwen3tts"]


def default_num_threads() -> int:
    """Return the number of cores that this process may use, control group limits included."""
    available = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    quota = _cgroup_cores()
    return max(1, min(available or 1, quota or available or 1))


def _cgroup_cores() -> int | None:
    """Return the whole cores of the control group's quota (version 2); None without one."""
    try:
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
    except (OSError, ValueError):
        return None
    return None if quota == "max" else max(1, int(quota) // int(period))
