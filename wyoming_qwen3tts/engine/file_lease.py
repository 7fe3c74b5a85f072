"""Holds up whoever wants to change a file in place until it is no longer in use.

A file that is mapped and then cut short ends the process that touches it. Linux lets a reader take
a lease: another program's attempt to write to the file waits (up to 45 seconds, as a rule) until
the lease is given back. Replacing or removing the file as a whole is not held up and does no harm.

Other systems, network file systems and files of other users know no leases: nothing is held up.
"""

import fcntl
import os
import signal
from pathlib import Path


class FileLease:
    """A lease on one file, from its making to :meth:`release`."""

    def __init__(self, path: Path) -> None:
        """Take the lease, if that is possible."""
        self.path = path
        self._descriptor: int | None = None
        try:
            descriptor = os.open(path, os.O_RDONLY)
        except OSError:
            return
        try:
            # The signal for it is one that nobody minds; leases are looked at instead.
            fcntl.fcntl(descriptor, fcntl.F_SETSIG, signal.SIGURG)
            fcntl.fcntl(descriptor, fcntl.F_SETLEASE, fcntl.F_RDLCK)
        except (OSError, AttributeError):
            os.close(descriptor)
        else:
            self._descriptor = descriptor

    @property
    def is_held(self) -> bool:
        """Whether there is a lease."""
        return self._descriptor is not None

    @property
    def is_wanted_back(self) -> bool:
        """Whether somebody waits to change the file."""
        if self._descriptor is None:
            return False
        return fcntl.fcntl(self._descriptor, fcntl.F_GETLEASE) == fcntl.F_UNLCK

    def release(self) -> None:
        """Give the lease back."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def __del__(self) -> None:
        self.release()
