"""How much of the processor other processes took while something was measured."""

import os
import time
from pathlib import Path
from typing import Final

QUIET: Final = 0.08
"""Share of one core up to which a measurement counts as undisturbed."""

# Columns of the first line of /proc/stat that are work, not waiting: user, nice, system, both kinds
# of interrupts, and time that the hypervisor gave to somebody else.
_BUSY_COLUMNS: Final = (0, 1, 2, 5, 6, 7)
_STAT = Path("/proc/stat")
_STATUS = Path("/proc/self/status")
_KIB_PER_MB: Final = 1_000_000 / 1024


class CpuMeter:
    """Measures from its creation on."""

    def __init__(self) -> None:
        self._started_s = time.perf_counter()
        self._busy_s = _busy_s()
        self._own_s = _own_s()

    def foreign_share(self) -> float | None:
        """Return the cores that other processes used on average; None where nobody tells."""
        busy_s = _busy_s()
        if busy_s is None or self._busy_s is None:
            return None
        elapsed_s = max(time.perf_counter() - self._started_s, 1e-3)
        foreign_s = (busy_s - self._busy_s) - (_own_s() - self._own_s)
        return max(foreign_s, 0.0) / elapsed_s


def peak_rss_mb() -> float | None:
    """Return the most memory that this process ever held, in MB; None where nobody tells.

    ``getrusage`` is of no use here: a new process inherits the figure of the one that started it.
    """
    try:
        lines = _STATUS.read_text().splitlines()
    except OSError:
        return None
    fields = dict(line.split(":", 1) for line in lines if ":" in line)
    return int(fields["VmHWM"].split()[0]) / _KIB_PER_MB


def _busy_s() -> float | None:
    """Return the seconds that all cores together have worked since the start of the machine."""
    try:
        with _STAT.open() as file:
            columns = [int(number) for number in file.readline().split()[1:]]
    except OSError:
        return None
    ticks = sum(columns[column] for column in _BUSY_COLUMNS if column < len(columns))
    return ticks / os.sysconf("SC_CLK_TCK")


def _own_s() -> float:
    times = os.times()
    return times.user + times.system
