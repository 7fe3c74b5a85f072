"""How many threads suit this machine."""

import os
from collections.abc import Iterable
from pathlib import Path

# Cores below this share of the best core's capacity are efficiency cores.
_MIN_CAPACITY = 0.8


def default_num_threads(root: Path = Path("/")) -> int:
    """Return the physical performance cores of this process, at most its control group's quota.

    Matrix products are cut into equal tiles. A second thread on a core competes with the first for
    its units, and an efficiency core finishes last.

    Args:
        root: Root of the file system that describes the machine.
    """
    cores = _physical_cores(root / "sys/devices", _available_cpus())
    return max(1, int(min([len(cores), *_quotas(root)])))


def _available_cpus() -> set[int]:
    try:
        return os.sched_getaffinity(0)
    except AttributeError:  # macOS
        return set(range(os.cpu_count() or 1))


def _physical_cores(devices: Path, cpus: set[int]) -> set[str]:
    """Return the names of the performance cores that have one of these logical CPUs."""
    # Hybrid Intel processors list their performance cores; others may state a capacity of each.
    performance = _cpu_list(_read(devices / "cpu_core/cpus")) & cpus or cpus
    capacities = {cpu: _read(devices / f"system/cpu/cpu{cpu}/cpu_capacity") for cpu in performance}
    known = {cpu: float(text) for cpu, text in capacities.items() if text.isdigit()}
    least = _MIN_CAPACITY * max(known.values(), default=0.0)
    # The hardware threads of a core share the list of their numbers.
    return {
        _read(devices / f"system/cpu/cpu{cpu}/topology/thread_siblings_list") or str(cpu)
        for cpu in performance
        if known.get(cpu, least) >= least
    }


def _quotas(root: Path) -> Iterable[float]:
    """Yield the CPU quotas of this process's control group and of those above it, in cores."""
    for line in _read(root / "proc/self/cgroup").splitlines() or ["0::/"]:
        _, controllers, path = line.split(":", 2)
        if controllers and "cpu" not in controllers.split(","):
            continue
        # Version 2 has no controllers here. In a container the path may be the host's.
        mount = root / "sys/fs/cgroup" / ("cpu" if controllers else "")
        group = mount / path.lstrip("/")
        for directory in (group, *group.parents):
            if mount not in (directory, *directory.parents):
                break
            words = _read(directory / "cpu.max").split() or [
                _read(directory / "cpu.cfs_quota_us"),
                _read(directory / "cpu.cfs_period_us"),
            ]
            if len(words) == 2 and words[0].isdigit() and words[1].isdigit():
                yield int(words[0]) / int(words[1])


def _cpu_list(text: str) -> set[int]:
    """Parse a list such as ``0-3,8``."""
    ranges = [part.split("-") for part in text.split(",") if part]
    return {cpu for ends in ranges for cpu in range(int(ends[0]), int(ends[-1]) + 1)}


def _read(path: Path) -> str:
    """Return a file's text without white space around it; empty if there is none."""
    try:
        return path.read_text(encoding="ascii").strip()
    except (OSError, ValueError):
        return ""
