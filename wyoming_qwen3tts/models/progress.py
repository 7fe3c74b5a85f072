"""Progress of one model's installation, for logs, clients and other programs."""

import json
import logging
import time
from collections import deque
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final, Literal

from wyoming_qwen3tts.runtime.manifest import decode_strictly

_LOGGER = logging.getLogger(__name__)

State = Literal["fetching", "building", "ready", "failed"]

_LOG_PAUSE_S: Final = 60.0
# A rate measured over a shorter time does not predict the rest.
_MIN_RATE_S: Final = 2.0
_RATE_WINDOW_S: Final = 20.0
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
    message: str
    """The current step, or the error and what to do about it."""
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


def parse_progress(text: str) -> InstallProgress | None:
    """Return the progress that a line of JSON states; None if it states none."""
    try:
        progress: InstallProgress = decode_strictly(InstallProgress, json.loads(text), "progress")
    except ValueError:
        return None
    return progress


def read_progress(path: Path) -> InstallProgress | None:
    """Return the progress that a file states; None if it states none."""
    try:
        return parse_progress(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None


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
        self._recent: deque[tuple[float, float]] = deque()
        """(time in seconds, fraction) of the last seconds."""
        self._message = ""

    def advance(self, fraction: float, message: str) -> None:
        """Report the finished fraction and the current step."""
        now_s, recent = time.monotonic(), self._recent
        if recent and message == self._message and now_s - recent[-1][0] < _REPORT_PAUSE_S:
            return
        self._message = message
        if recent and fraction < recent[-1][1]:
            recent.clear()  # damaged bytes are downloaded again
        recent.append((now_s, fraction))
        while now_s - recent[0][0] > _RATE_WINDOW_S:
            recent.popleft()
        elapsed_s, done = now_s - recent[0][0], fraction - recent[0][1]
        eta_s = elapsed_s * (1.0 - fraction) / done if elapsed_s >= _MIN_RATE_S and done else None
        self._report(InstallProgress(self._model, self._state, fraction, eta_s, message))


class LogReporter:
    """Logs the start of each state, its tenths, and at least one line a minute."""

    def __init__(self) -> None:
        self._last: tuple[str, int] | None = None
        self._logged_s = 0.0

    def __call__(self, progress: InstallProgress) -> None:
        """Log the progress if it is news."""
        now_s, step = time.monotonic(), (progress.state, int(10 * progress.fraction))
        if step == self._last and now_s - self._logged_s < _LOG_PAUSE_S:
            return
        self._last, self._logged_s = step, now_s
        if progress.is_over:
            level = logging.ERROR if progress.state == "failed" else logging.INFO
            _LOGGER.log(level, "%s: %s", progress.model, progress.message)
        else:
            _LOGGER.info("%s: %s (%s)", progress.model, progress.describe(), progress.message)
