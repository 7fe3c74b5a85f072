"""A build that another program runs: it tells how far it is, and does not outlive that program."""

import _thread
import json
import os
import threading
import time
from typing import Final

# Whoever builds beside a server must not make the speech stutter.
_NICENESS: Final = 10
# Time to leave nothing half-made; what cannot be removed in time is removed by the next build.
_GRACE_S: Final = 5.0
_PAUSE_S: Final = 0.2
_INTERRUPTED: Final = 130
_STDIN: Final = 0
_READ_BYTES: Final = 4096


def obey_supervisor() -> None:
    """Step back in priority, and stop when standard input ends, as it does with its owner."""
    os.nice(_NICENESS)
    threading.Thread(target=_stop_at_end_of_input, name="supervisor", daemon=True).start()


class SupervisorProgress:
    """Writes lines of JSON: the component that is built, and the finished part of the whole."""

    def __init__(self) -> None:
        self._stage = ""
        self._written_s = 0.0

    def __call__(self, stage: str, fraction: float) -> None:
        """Write a line if enough has happened since the last one."""
        now_s = time.monotonic()
        if stage == self._stage and now_s - self._written_s < _PAUSE_S:
            return
        self._stage, self._written_s = stage, now_s
        line = json.dumps({"stage": stage, "fraction": round(fraction, 4)})
        print(line, flush=True)  # noqa: T201 - the supervisor reads it


def _stop_at_end_of_input() -> None:
    # Not by sys.stdin: its lock would be held at the end of the interpreter.
    while os.read(_STDIN, _READ_BYTES):
        pass
    _thread.interrupt_main()
    time.sleep(_GRACE_S)
    os._exit(_INTERRUPTED)
