"""A picture of one run, as SVG: a few lines of text, so no library draws it."""

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import Any, Final

_WIDTH: Final = 820
_PANEL_HEIGHT: Final = 120
_LEFT, _RIGHT, _TOP, _GAP = 64, 16, 40, 44
_COLOURS: Final = ("#2b6cb0", "#c05621")
_NUM_TICKS: Final = 4
_STYLE: Final = "font-family='sans-serif' font-size='11' fill='#444'"


@dataclass(frozen=True)
class _Panel:
    """One diagram over time."""

    title: str
    lines: Sequence[tuple[str, Sequence[tuple[float, float]]]]
    """Name, and (seconds, value)."""
    as_dots: bool = False


def draw(report: dict[str, Any]) -> str:
    """Return the picture of a report."""
    samples = report["samples"]

    def series(name: str) -> list[tuple[float, float]]:
        return [(sample["at_s"], sample[name]) for sample in samples]

    milliseconds = {
        name: [(at_s, 1_000 * value) for at_s, value in report["series"][name]]
        for name in ("describe_s", "first_audio_s")
    }
    panels = [
        _Panel("Memory (RSS), MB", [("memory", series("rss_mb"))]),
        _Panel(
            "Threads and file descriptors",
            [("threads", series("num_threads")), ("descriptors", series("num_descriptors"))],
        ),
        _Panel("Describe, ms", [("describe", milliseconds["describe_s"])], as_dots=True),
        _Panel(
            "First audio of the control sentence, ms",
            [("first audio", milliseconds["first_audio_s"])],
            as_dots=True,
        ),
    ]
    height = _TOP + len(panels) * (_PANEL_HEIGHT + _GAP)
    duration_s = report["duration_s"]
    parts = [
        f"<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 {_WIDTH} {height}' "
        f"width='{_WIDTH}' height='{height}'>",
        f"<rect width='{_WIDTH}' height='{height}' fill='white'/>",
        f"<text x='{_LEFT}' y='20' {_STYLE} font-weight='bold'>{escape(_title(report))}</text>",
    ]
    for index, panel in enumerate(panels):
        parts += _draw_panel(panel, _TOP + index * (_PANEL_HEIGHT + _GAP), duration_s)
    return "\n".join([*parts, "</svg>", ""])


def _title(report: dict[str, Any]) -> str:
    minutes = report["duration_s"] / 60
    total = sum(report["done"].values())
    hostile = sum(report["hostile"].values())
    return f"Soak of {minutes:.1f} minutes: {total:,} clients, {hostile:,} of them hostile"


def _draw_panel(panel: _Panel, top: float, duration_s: float) -> list[str]:
    highest = max((value for _, line in panel.lines for _, value in line), default=1.0)
    step = _round_step(highest / _NUM_TICKS)
    most = step * _NUM_TICKS if step * _NUM_TICKS >= highest else step * (_NUM_TICKS + 1)

    def x(at_s: float) -> float:
        return _LEFT + (_WIDTH - _LEFT - _RIGHT) * at_s / duration_s

    def y(value: float) -> float:
        return top + _PANEL_HEIGHT * (1.0 - value / most)

    parts = [f"<text x='{_LEFT}' y='{top - 6}' {_STYLE}>{escape(panel.title)}</text>"]
    for tick in range(round(most / step) + 1):
        value = tick * step
        parts.append(
            f"<line x1='{_LEFT}' x2='{_WIDTH - _RIGHT}' y1='{y(value):.1f}' y2='{y(value):.1f}' "
            "stroke='#ddd'/>"
        )
        parts.append(
            f"<text x='{_LEFT - 6}' y='{y(value) + 4:.1f}' {_STYLE} text-anchor='end'>"
            f"{value:,.10g}</text>"
        )
    minute = _round_step(duration_s / 60 / 6)
    parts += [
        f"<text x='{x(60 * tick * minute):.1f}' y='{top + _PANEL_HEIGHT + 14}' {_STYLE} "
        f"text-anchor='middle'>{tick * minute:g} min</text>"
        for tick in range(int(duration_s / 60 / minute) + 1)
    ]
    for index, (name, line) in enumerate(panel.lines):
        colour = _COLOURS[index % len(_COLOURS)]
        parts += _draw_line([(x(at_s), y(value)) for at_s, value in line], colour, panel.as_dots)
        if len(panel.lines) > 1:
            parts.append(
                f"<text x='{_WIDTH - _RIGHT - 90 * (len(panel.lines) - index) + 80}' "
                f"y='{top - 6}' {_STYLE} style='fill:{colour}' text-anchor='end'>{name}</text>"
            )
    return parts


def _draw_line(points: Sequence[tuple[float, float]], colour: str, as_dots: bool) -> list[str]:
    if as_dots:
        path = "".join(f"M{x:.1f} {y:.1f}h0" for x, y in points)
        return [f"<path d='{path}' stroke='{colour}' stroke-width='2.5' stroke-linecap='round'/>"]
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    return [f"<polyline points='{path}' fill='none' stroke='{colour}' stroke-width='1.3'/>"]


def _round_step(value: float) -> float:
    """Return the next 1, 2 or 5 times a power of ten."""
    power = 1.0
    while power > value:
        power /= 10
    while power * 10 < value:
        power *= 10
    return next((factor * power for factor in (1, 2, 5) if factor * power >= value), 10 * power)
