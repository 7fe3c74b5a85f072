"""The machine: whether it can run this, free disk space and memory, and processor cores."""

import ctypes
import os
import platform
import shutil
import sys
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Final

_CGROUP: Final = Path("/sys/fs/cgroup")
# glibc's M_MMAP_THRESHOLD and M_TRIM_THRESHOLD.
_MALLOPT: Final = {-3: 512 * 1024, -1: 1024 * 1024}
# Cores below this share of the best core's capacity are efficiency cores.
_MIN_CAPACITY: Final = 0.8
# x86-64-v2: numpy and onnxruntime die of an illegal instruction without these.
_NEEDED_FLAGS: Final = frozenset({"cx16", "popcnt", "ssse3", "sse4_1", "sse4_2"})


def why_unsupported(root: Path = Path("/")) -> str | None:
    """Return why this program cannot run here and what to do; None where it can."""
    if sys.platform == "win32":
        return "Windows needs Docker: see docs/install.md for the container."
    flags = next(
        (
            line.partition(":")[2].split()
            for line in _read(root / "proc/cpuinfo").splitlines()
            if line.startswith("flags") and platform.machine() == "x86_64"
        ),
        _NEEDED_FLAGS,
    )
    if missing := sorted(_NEEDED_FLAGS.difference(flags)):
        return (
            f"This processor lacks {', '.join(missing)} (x86-64-v2), which numpy and onnxruntime "
            "need. In a virtual machine change the CPU type to host (in Proxmox: Hardware, "
            "Processors, Type; kvm64 hides them)."
        )
    return None


def free_disk_bytes(directory: Path) -> int:
    """Return the free space of the file system that holds a directory, or will hold it."""
    existing = next(path for path in (directory, *directory.parents) if path.exists())
    return shutil.disk_usage(existing).free


def resident_memory_bytes() -> int | None:
    """Return the resident memory of this process; None where the system does not tell."""
    try:
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):
        return None


def configure_malloc() -> None:
    """Let the C library return every large block to the system as soon as it is freed.

    By default glibc raises its threshold up to 32 MB. Long texts then leave holes in the heap, and
    the process swings by tens of megabytes.
    """
    with suppress(OSError, AttributeError):  # not every C library has mallopt
        mallopt = ctypes.CDLL(None).mallopt
        for setting, num_bytes in _MALLOPT.items():
            mallopt(setting, num_bytes)


def trim_free_memory() -> None:
    """Return free pages between used ones to the system; takes milliseconds.

    glibc kept a third or half of a closed model.
    """
    with suppress(OSError, AttributeError):  # only glibc has malloc_trim
        ctypes.CDLL(None).malloc_trim(0)


def available_memory_bytes() -> int | None:
    """Return the memory that this process may still allocate; None where the system does not tell.

    The limit of its control group (version 2) counts; inactive file pages in it count as free.
    """
    known: list[int] = []
    with suppress(OSError, ValueError, KeyError):
        fields = dict(line.split(":", 1) for line in Path("/proc/meminfo").read_text().splitlines())
        known.append(int(fields["MemAvailable"].split()[0]) * 1024)
    with suppress(OSError, ValueError):
        limit = int((_CGROUP / "memory.max").read_text())  # "max" means unlimited
        used = int((_CGROUP / "memory.current").read_text())
        statistics = (_CGROUP / "memory.stat").read_text().splitlines()
        values = dict(line.split() for line in statistics)
        known.append(limit - used + int(values.get("inactive_file", 0)))
    return min(known, default=None)


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
