"""How far a model is on its way, for people, logs, bars and other programs."""

import json
import logging
import sys
import time
from collections import deque
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final, Literal, NoReturn

from tqdm import tqdm

_LOGGER = logging.getLogger(__name__)

Stage = Literal["fetching", "building", "ready", "failed"]

_BAR: Final = "{desc:<40} {percentage:3.0f}% |{bar}| {elapsed}<{remaining}"
_LOG_STEP: Final = 0.1
_LOG_PAUSE_S: Final = 60.0
# A rate that was measured for a shorter time says nothing about the rest.
_MIN_RATE_S: Final = 2.0
_MIN_FRACTION: Final = 0.001
_RATE_WINDOW_S: Final = 20.0
_RATE_STEP_S: Final = 0.5
_MINUTE_S, _HOUR_S = 60, 3600
_WRITE_PAUSE_S: Final = 0.5


class CancelledError(Exception):
    """Whoever wanted a model wants it no longer."""


@dataclass(frozen=True)
class ProvisionState:
    """One moment on the way of a model."""

    model: str
    """Bundle that is to be there, such as ``qwen3-tts-12hz-0.6b-customvoice/cpu_int8``."""
    state: Stage
    fraction: float
    """Finished part of the stage, 0 to 1."""
    eta_s: float | None
    """Seconds until the stage ends, about; None while nobody can tell."""
    message: str
    """What is done now, or what went wrong and what to do."""

    @property
    def is_over(self) -> bool:
        """Whether nothing goes on any more."""
        return self.state in ("ready", "failed")

    def describe(self) -> str:
        """Return it in words: "building 43 %, about 2 minutes"."""
        if self.is_over:
            return self.message
        text = f"{self.state} {self.fraction:.0%}".replace("%", " %")
        return text if self.eta_s is None else f"{text}, about {spell_duration(self.eta_s)}"


Report = Callable[[ProvisionState], None]


def spell_duration(seconds: float) -> str:
    """Return a duration in words, as exact as an estimate deserves."""
    if seconds < _MINUTE_S:
        return f"{max(10, round(seconds, -1)):.0f} seconds"
    unit, name = (_MINUTE_S, "minute") if seconds < _HOUR_S else (_HOUR_S, "hour")
    count = max(1, round(seconds / unit))
    return f"{count} {name}" if count == 1 else f"{count} {name}s"


class StageClock:
    """Turns the finished part of a stage into states with an estimate of what is left."""

    def __init__(self, model: str, stage: Stage, report: Report) -> None:
        """Begin a stage."""
        self._model, self._stage, self._report = model, stage, report
        self._recent: deque[tuple[float, float]] = deque()
        """(moment in seconds, fraction) of the last seconds: rates differ within a stage."""

    def advance(self, fraction: float, message: str) -> None:
        """Report how far the stage is."""
        now_s, recent = time.monotonic(), self._recent
        if recent and fraction < recent[-1][1]:
            # Bad bytes start the work anew.
            recent.clear()
        if not recent or now_s - recent[-1][0] >= _RATE_STEP_S:
            recent.append((now_s, fraction))
        while now_s - recent[0][0] > _RATE_WINDOW_S and len(recent) > 1:
            recent.popleft()
        elapsed_s, done = now_s - recent[0][0], fraction - recent[0][1]
        eta_s = None
        if elapsed_s >= _MIN_RATE_S and done >= _MIN_FRACTION:
            eta_s = elapsed_s * (1.0 - fraction) / done
        self._report(ProvisionState(self._model, self._stage, fraction, eta_s, message))


class StateFile:
    """Keeps the state in a JSON file, for programs that watch."""

    def __init__(self, path: Path) -> None:
        """Write to ``path``; its folder is made."""
        self._path = path
        self._last: tuple[Stage, float] | None = None

    def write(self, state: ProvisionState) -> None:
        """Replace the file, not more often than is of use; a full disk is no reason to stop."""
        now_s = time.monotonic()
        if self._last is not None and not state.is_over:
            stage, written_s = self._last
            if stage == state.state and now_s - written_s < _WRITE_PAUSE_S:
                return
        self._last = (state.state, now_s)
        text = json.dumps(asdict(state), ensure_ascii=False, indent=2) + "\n"
        partial = self._path.with_suffix(".partial")
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            partial.write_text(text, encoding="utf-8")
            partial.replace(self._path)
        except OSError as error:
            _LOGGER.debug("The state cannot be written to %s: %s", self._path, error)


def read_state(path: Path) -> ProvisionState | None:
    """Return the state that a file holds; None where there is none that can be read."""
    try:
        return ProvisionState(**json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):
        return None


class LogReporter:
    """Logs a line at the start of each stage, at its tenths, and at least one a minute."""

    def __init__(self) -> None:
        self._stage: Stage | None = None
        self._fraction = 0.0
        self._logged_s = 0.0

    def __call__(self, state: ProvisionState) -> None:
        """Log the state if it is news."""
        now_s = time.monotonic()
        is_news = (
            state.state != self._stage
            or not 0.0 <= state.fraction - self._fraction < _LOG_STEP
            or now_s - self._logged_s >= _LOG_PAUSE_S
        )
        if not is_news:
            return
        self._stage, self._fraction, self._logged_s = state.state, state.fraction, now_s
        if state.is_over:
            level = logging.ERROR if state.state == "failed" else logging.INFO
            _LOGGER.log(level, "%s: %s", state.model, state.message)
        else:
            _LOGGER.info("%s: %s (%s)", state.model, state.describe(), state.message)


class BarReporter:
    """Shows a bar for each stage on a terminal."""

    def __init__(self) -> None:
        self._stage: Stage | None = None
        self._bar: tqdm[NoReturn] | None = None

    def __call__(self, state: ProvisionState) -> None:
        """Move the bar."""
        is_new = state.state != self._stage or self._bar is None
        if is_new:
            self.close()
            self._stage = state.state
            if not state.is_over:
                self._bar = tqdm(total=1.0, bar_format=_BAR, leave=False, file=sys.stderr)
        if self._bar is not None:
            self._bar.set_description_str(f"{state.state} {state.message}"[:40], refresh=False)
            self._bar.update(state.fraction - self._bar.n)
            if is_new:
                self._bar.refresh()

    def close(self) -> None:
        """Remove the bar."""
        if self._bar is not None:
            self._bar.close()
            self._bar = None


def make_reporter() -> LogReporter | BarReporter:
    """Return a bar where a person watches, else the log."""
    return BarReporter() if sys.stderr.isatty() else LogReporter()
