"""Counts and distributions of what the server does, in the text format of Prometheus.

The format is a few lines of text, so no library writes it: prometheus-client would bring a registry
for the whole process and a web server of its own, neither of which is wanted here.
"""

from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from wyoming_qwen3tts.errors import Qwen3TTSError

if TYPE_CHECKING:
    from wyoming_qwen3tts.engine.request_report import RequestReport

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
_PREFIX: Final = "wyoming_qwen3tts_"
_MAX_SERIES: Final = 256
"""Combinations of labels that are kept apart; no client can make more of them."""

_FIRST_AUDIO_S: Final = (0.1, 0.2, 0.3, 0.5, 0.75, 1.0, 1.5, 2.0, 3.0, 5.0, 10.0, 30.0)
_RTF: Final = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 1.25, 1.5, 2.0, 3.0, 5.0)
_AUDIO_S: Final = (0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 30.0, 60.0, 120.0, 300.0, 600.0)


@dataclass(frozen=True)
class Gauge:
    """A value that is read when somebody asks for it."""

    name: str
    """Without the project's prefix, unless it is a name that everybody uses."""
    doc: str
    samples: Sequence[tuple[Mapping[str, str], float]]
    """Labels and value."""
    is_common: bool = False
    """Whether the name is one that programs of every kind use."""
    is_counter: bool = False
    """Whether it only grows."""


class Counter:
    """A number that only grows, for each combination of labels."""

    def __init__(self, name: str, doc: str, labels: Sequence[str] = ()) -> None:
        self._name, self._doc, self._labels = name, doc, tuple(labels)
        self._values: dict[tuple[str, ...], float] = {} if labels else {(): 0.0}

    def add(self, *values: str, by: float = 1.0) -> None:
        """Add to the series with these values of the labels."""
        if values not in self._values and len(self._values) >= _MAX_SERIES:
            values = ("other",) * len(self._labels)
        self._values[values] = self._values.get(values, 0.0) + by

    def lines(self) -> Iterable[str]:
        """Yield the lines of the text format."""
        name = f"{_PREFIX}{self._name}_total"
        yield from _head(name, self._doc, "counter")
        for values, total in self._values.items():
            labels = dict(zip(self._labels, values, strict=True))
            yield _sample(name, labels, total)


class Histogram:
    """How values are distributed over fixed buckets."""

    def __init__(self, name: str, doc: str, bounds: Sequence[float]) -> None:
        """Count values up to each bound, and those above all of them."""
        self._name, self._doc, self._bounds = name, doc, tuple(bounds)
        self._counts = [0] * (len(bounds) + 1)
        self._sum = 0.0

    def observe(self, value: float) -> None:
        """Count a value."""
        self._counts[bisect_left(self._bounds, value)] += 1
        self._sum += value

    def lines(self) -> Iterable[str]:
        """Yield the lines of the text format."""
        name = f"{_PREFIX}{self._name}"
        yield from _head(name, self._doc, "histogram")
        total = 0
        for bound, count in zip((*self._bounds, float("inf")), self._counts, strict=True):
            total += count
            yield _sample(f"{name}_bucket", {"le": _number(bound)}, total)
        yield _sample(f"{name}_sum", {}, self._sum)
        yield _sample(f"{name}_count", {}, total)


class Metrics:
    """Everything that is counted."""

    def __init__(self) -> None:
        """Start at zero."""
        self._requests = Counter(
            "requests",
            "Requests for speech that have ended, by kind of voice and by how they ended.",
            ["voice_kind", "finish"],
        )
        self._errors = Counter("errors", "What clients were told was wrong, by code.", ["code"])
        self._characters = Counter("characters", "Characters that were spoken.")
        self._first_audio = Histogram(
            "first_audio_seconds",
            "Time from the text of the first sentence to the first audio.",
            _FIRST_AUDIO_S,
        )
        self._rtf = Histogram(
            "real_time_factor", "Seconds of synthesis for a second of audio, by request.", _RTF
        )
        self._audio = Histogram("audio_seconds", "Length of the audio of a request.", _AUDIO_S)
        self._sources: list[Callable[[], Iterable[Gauge]]] = []

    def watch(self, source: Callable[[], Iterable[Gauge]]) -> None:
        """Ask a source for its values whenever somebody asks for figures."""
        self._sources.append(source)

    def count_request(self, report: "RequestReport") -> None:
        """Count a request that was spoken, as far as it was."""
        self._requests.add(report.voice_kind, report.finish)
        self._characters.add(by=report.num_characters)
        if report.first_audio_s is not None:
            self._first_audio.observe(report.first_audio_s)
            self._audio.observe(report.audio_s)
        if report.rtf is not None:
            self._rtf.observe(report.rtf)

    def count_refusal(self) -> None:
        """Count a request that failed before it was known who would speak it."""
        self._requests.add("none", "error")

    def count_error(self, error: Exception) -> None:
        """Count what a client was told."""
        self._errors.add(error.code if isinstance(error, Qwen3TTSError) else type(error).__name__)

    def render(self) -> str:
        """Return all figures as text."""
        lines: list[str] = []
        for metric in (
            self._requests,
            self._errors,
            self._characters,
            self._first_audio,
            self._rtf,
            self._audio,
        ):
            lines += metric.lines()
        for source in self._sources:
            for gauge in source():
                lines += _gauge_lines(gauge)
        return "\n".join(lines) + "\n"


def _gauge_lines(gauge: Gauge) -> Iterable[str]:
    name = gauge.name if gauge.is_common else f"{_PREFIX}{gauge.name}"
    yield from _head(name, gauge.doc, "counter" if gauge.is_counter else "gauge")
    for labels, value in gauge.samples:
        yield _sample(name, labels, value)


def _head(name: str, doc: str, kind: str) -> Iterable[str]:
    yield f"# HELP {name} {_escape(doc, quotes=False)}"
    yield f"# TYPE {name} {kind}"


def _sample(name: str, labels: Mapping[str, str], value: float) -> str:
    inner = ",".join(f'{label}="{_escape(text)}"' for label, text in labels.items())
    return f"{name}{{{inner}}} {_number(value)}" if inner else f"{name} {_number(value)}"


def _escape(text: str, *, quotes: bool = True) -> str:
    text = text.replace("\\", r"\\").replace("\n", r"\n")
    return text.replace('"', r"\"") if quotes else text


def _number(value: float) -> str:
    if value == float("inf"):
        return "+Inf"
    return str(int(value)) if value == int(value) else repr(float(value))
