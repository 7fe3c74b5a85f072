"""Free disk space, free memory, and what the C library does with freed memory."""

import ctypes
import gc
import os
import shutil
from contextlib import suppress
from pathlib import Path
from typing import Final

_CGROUP: Final = Path("/sys/fs/cgroup")
# glibc's M_MMAP_THRESHOLD and M_TRIM_THRESHOLD.
_MALLOPT: Final = {-3: 512 * 1024, -1: 1024 * 1024}


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


def return_free_memory() -> None:
    """Collect garbage and return free memory: glibc kept a third or half of a closed model."""
    gc.collect()
    trim_free_memory()


def trim_free_memory() -> None:
    """Return free pages between used ones to the system; takes milliseconds."""
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
