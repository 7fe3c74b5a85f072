"""Progress of one model's installation, for logs, clients and other programs."""

import json
import logging
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Final, Literal

from wyoming_qwen3tts.runtime.manifest import decode_strictly

_LOGGER = logging.getLogger(__name__)

State = Literal["fetching", "building", "ready", "failed"]

# A rate measured over a shorter time does not predict the rest.
_MIN_RATE_S: Final = 2.0
_REPORT_PAUSE_S: Final = 0.25
_MINUTE_S, _HOUR_S = 60, 3600


@dataclass(frozen=True)
class InstallProgress:
    """State of one model's installation."""

    model: str
    """The bundle, such as ``qwen3-tts-12hz-0.6b-customvoice/cpu_int8``."""
    state: State
    fraction: float
    """Finished part of the state, 0 to 1."""
    eta_s: float | None
    """Estimated seconds until the state ends."""
    message: str = ""
    """What came of it, or the error and what to do about it."""
    retry_s: float | None = None
    """Of a failure: seconds before another attempt makes sense; None if none does."""

    @property
    def is_over(self) -> bool:
        """Whether the installation has ended."""
        return self.state in ("ready", "failed")

    def describe(self) -> str:
        """Return it in words: "building 43 %, about 2 minutes"."""
        if self.is_over:
            return self.message
        text = f"{self.state} {self.fraction:.0%}".replace("%", " %")
        return text if self.eta_s is None else f"{text}, about {spell_duration(self.eta_s)}"

    def to_json(self) -> str:
        """Return one line of JSON."""
        return json.dumps(asdict(self), ensure_ascii=False)


Report = Callable[[InstallProgress], None]


def parse_progress(text: str | bytes) -> InstallProgress | None:
    """Return the progress that a line of JSON states; None if it states none."""
    try:
        progress: InstallProgress = decode_strictly(InstallProgress, json.loads(text), "progress")
    except ValueError:
        return None
    return progress


def spell_duration(seconds: float) -> str:
    """Return a duration in words, rounded like an estimate."""
    if seconds < _MINUTE_S:
        return f"{max(10, round(seconds, -1)):.0f} seconds"
    unit, name = (_MINUTE_S, "minute") if seconds < _HOUR_S else (_HOUR_S, "hour")
    count = max(1, round(seconds / unit))
    return f"{count} {name}" if count == 1 else f"{count} {name}s"


class EtaEstimator:
    """Reports the progress of one state with an estimate of the remaining time."""

    def __init__(self, model: str, state: State, report: Report) -> None:
        """Begin a state; ``report`` is called a few times a second at most."""
        self._model, self._state, self._report = model, state, report
        self._start: tuple[float, float] | None = None
        """(time in seconds, fraction) of the first report: a download may continue an old one."""
        self._reported_s = 0.0

    def advance(self, fraction: float) -> None:
        """Report the finished fraction."""
        now_s = time.monotonic()
        if self._start is None:
            self._start = now_s, fraction
        elif now_s - self._reported_s < _REPORT_PAUSE_S:
            return
        self._reported_s = now_s
        elapsed_s, done = now_s - self._start[0], fraction - self._start[1]
        is_known = elapsed_s >= _MIN_RATE_S and done > 0
        eta_s = elapsed_s * (1.0 - fraction) / done if is_known else None
        self._report(InstallProgress(self._model, self._state, fraction, eta_s))


class LogReporter:
    """Logs the start of each state, its tenths, and the end."""

    def __init__(self) -> None:
        self._last: tuple[str, int] | None = None

    def __call__(self, progress: InstallProgress) -> None:
        """Log the progress if it is news."""
        step = progress.state, int(10 * progress.fraction)
        if step != self._last:
            self._last = step
            level = logging.ERROR if progress.state == "failed" else logging.INFO
            _LOGGER.log(level, "%s: %s", progress.model, progress.describe())
