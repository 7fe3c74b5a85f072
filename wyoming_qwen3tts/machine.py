"""What this machine has free, and what this process holds of it."""

import contextlib
import ctypes
import gc
import os
import resource
import shutil
from pathlib import Path
from typing import Final

_KILOBYTE: Final = 1024
_MEMINFO: Final = Path("/proc/meminfo")
_STATM: Final = Path("/proc/self/statm")
_CGROUP: Final = Path("/sys/fs/cgroup")
# glibc's mallopt: blocks from this size on are mapped one by one, and so much may stay free at
# the heap's end.
_MALLOPT: Final = {-3: 512 * _KILOBYTE, -1: 1024 * _KILOBYTE}


def free_disk_bytes(directory: Path) -> int:
    """Return the free space where a directory is, or will be."""
    existing = next(path for path in (directory, *directory.parents) if path.exists())
    return shutil.disk_usage(existing).free


def resident_memory_bytes() -> int | None:
    """Return the memory that this process holds now; None where the system does not tell."""
    try:
        return int(_STATM.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):
        return None


def descriptors_for(num_wanted: int) -> int:
    """Return how many file descriptors there may be, at most as many as wanted.

    What programs are given at first is often less than they may take: then it is taken.
    """
    given, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    unlimited = resource.RLIM_INFINITY
    wanted = num_wanted if most == unlimited else min(num_wanted, most)
    if given != unlimited and given < wanted:
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, most))
            given = wanted
    return num_wanted if given == unlimited else min(num_wanted, given)


def return_large_blocks() -> None:
    """Let the C library give every large block back to the system as soon as it is freed.

    By itself it learns to keep blocks of up to 32 MB, one after the other in one heap: what clients
    send and long texts need then leaves holes, and the process swings by tens of megabytes.
    """
    # Another C library has no such function, or does not know these settings.
    with contextlib.suppress(OSError, AttributeError):
        mallopt = ctypes.CDLL(None).mallopt
        for setting, num_bytes in _MALLOPT.items():
            mallopt(setting, num_bytes)


def return_free_memory() -> None:
    """Give memory that nothing uses any more back to the system, where that can be asked for.

    The C library keeps what was freed in pieces: of a closed 0.6B model (int8) that was 490 to 780
    of 1,470 MB.
    """
    gc.collect()
    trim_free_memory()


def trim_free_memory() -> None:
    """Give pages back to the system that lie free between those in use; quick, from any thread.

    Long texts and large events leave such pages behind, more of them with each hour.
    """
    # glibc's; other libraries have nothing of that name.
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)


def available_memory_bytes() -> int | None:
    """Return the memory that a process may still take, control group limits included.

    None where the system does not tell.
    """
    known = [size for size in (_system_available(), _cgroup_available()) if size is not None]
    return min(known, default=None)


def _system_available() -> int | None:
    try:
        for line in _MEMINFO.read_text().splitlines():
            name, _, value = line.partition(":")
            if name == "MemAvailable":
                return int(value.split()[0]) * _KILOBYTE
    except (OSError, ValueError, IndexError):
        pass
    return None


def _cgroup_available() -> int | None:
    """Return what the control group (version 2) has left; file pages that can go count as free."""
    try:
        limit = (_CGROUP / "memory.max").read_text().strip()
        if limit == "max":
            return None
        used = int((_CGROUP / "memory.current").read_text())
        statistics = (_CGROUP / "memory.stat").read_text().splitlines()
        values = dict(line.split() for line in statistics)
        return int(limit) - used + int(values.get("inactive_file", 0))
    except (OSError, ValueError):
        return None
