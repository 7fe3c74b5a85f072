"""Is it flat? What a run measured, judged."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median, quantiles
from typing import Any, Final

from script._soak.server import Sample

# What may grow although nothing leaks: caches that fill, and an allocator that keeps pages.
_RSS_MB: Final = 6.0
_RSS_SHARE: Final = 0.03
_THREADS: Final = 1.0
_DESCRIPTORS: Final = 4.0
_LATENCY_FACTOR: Final = 1.5
_LATENCY_S: Final = 0.1
_DESCRIBE_LIMIT_S: Final = 1.0


@dataclass(frozen=True)
class Judgement:
    """One measure at two times."""

    name: str
    unit: str
    early: float
    """Median of the second quarter: the first one fills caches."""
    late: float
    """Median of the last quarter."""
    worst: float
    allowed_growth: float

    @property
    def is_flat(self) -> bool:
        """Whether the late value is not above the early one by more than what is allowed."""
        return self.late - self.early <= self.allowed_growth


def judge(
    samples: Sequence[Sample],
    describe_s: Sequence[tuple[float, float]],
    first_audio_s: Sequence[tuple[float, float]],
    duration_s: float,
) -> list[Judgement]:
    """Return a judgement for each measure."""
    rss = [(sample.at_s, sample.rss_mb) for sample in samples]
    threads = [(sample.at_s, float(sample.num_threads)) for sample in samples]
    descriptors = [(sample.at_s, float(sample.num_descriptors)) for sample in samples]
    rss_growth = max(_RSS_MB, _RSS_SHARE * _early(rss, duration_s))
    return [
        _judge("memory", "MB", rss, duration_s, rss_growth),
        _judge("threads", "", threads, duration_s, _THREADS),
        _judge("descriptors", "", descriptors, duration_s, _DESCRIPTORS),
        _judge_latency("describe", describe_s, duration_s),
        _judge_latency("first audio", first_audio_s, duration_s),
    ]


def problems(report: dict[str, Any], judgements: Sequence[Judgement]) -> list[str]:
    """Return what is wrong, in words; nothing if the run was good."""
    found = [
        f"{each.name} grew from {each.early:.3g} to {each.late:.3g} {each.unit}".rstrip()
        for each in judgements
        if not each.is_flat
    ]
    found += [f"lost: {what}" for what in report["lost"]]
    found += [f"log: {line}" for line in report["bad_log_lines"]]
    if report["exit_code"] != 0:
        found.append(f"the server ended with {report['exit_code']}")
    slowest_s = report["slowest_describe_s"]  # but for those while the machine stood still
    if slowest_s > _DESCRIBE_LIMIT_S:
        found.append(f"a describe took {slowest_s:.2f} s")
    left = {name: report["left_behind"][name] for name in ("connections", "requests")}
    found += [f"{count} {name} left behind" for name, count in left.items() if count]
    return found


def describe_latency(values: Sequence[tuple[float, float]]) -> dict[str, float]:
    """Return the figures of a series of waits, in seconds."""
    waits = sorted(value for _, value in values)
    cuts = quantiles(waits, n=100, method="inclusive") if len(waits) > 1 else [*waits, *waits] * 50
    return {
        "count": len(waits),
        "median_s": round(median(waits), 4),
        "p95_s": round(cuts[94], 4),
        "p99_s": round(cuts[98], 4),
        "worst_s": round(waits[-1], 4),
    }


def _judge(
    name: str, unit: str, series: Sequence[tuple[float, float]], duration_s: float, growth: float
) -> Judgement:
    late = _between(series, 0.75 * duration_s, duration_s)
    worst = max(value for _, value in series)
    return Judgement(name, unit, _early(series, duration_s), median(late), worst, growth)


def _judge_latency(
    name: str, series: Sequence[tuple[float, float]], duration_s: float
) -> Judgement:
    growth = (_LATENCY_FACTOR - 1.0) * _early(series, duration_s) + _LATENCY_S
    return _judge(name, "s", series, duration_s, growth)


def _early(series: Sequence[tuple[float, float]], duration_s: float) -> float:
    return median(_between(series, 0.25 * duration_s, 0.5 * duration_s))


def _between(series: Sequence[tuple[float, float]], start_s: float, end_s: float) -> list[float]:
    return [value for at_s, value in series if start_s <= at_s <= end_s] or [
        value for _, value in series
    ]
