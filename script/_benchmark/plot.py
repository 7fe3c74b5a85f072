"""A picture of several reports: real-time factor and first audio, by size and precision."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from script._benchmark.processes import BenchmarkError

_FIGURE_INCHES: Final = (9.0, 3.6)
_OURS: Final = "#2b6cb0"
_PUBLISHED: Final = "#c05621"
_BAR_HEIGHT: Final = 0.38


def plot_reports(reports: Sequence[dict[str, Any]], path: Path) -> None:
    """Draw reports (as the JSON files hold them) to a PNG or SVG file.

    Raises:
        BenchmarkError: matplotlib is missing, or it cannot write such a file.
    """
    try:
        import matplotlib as mpl
        from matplotlib.figure import Figure
    except ImportError as error:
        raise BenchmarkError(
            "Plotting needs matplotlib: install the extra 'benchmark' "
            "(script/benchmark does so when it gets --plot)."
        ) from error
    # Equal figures give equal files, with letters instead of outlines.
    mpl.rcParams.update({"svg.hashsalt": "benchmark", "svg.fonttype": "none"})
    figure = Figure(figsize=_FIGURE_INCHES, layout="constrained")
    speed, first = figure.subplots(1, 2)
    labels = [f"{r['settings']['size']} {r['settings']['precision']}" for r in reports]
    places = range(len(reports))
    ours = [report["frame"]["rtf"] for report in reports]
    published = [report["published"]["rtf"] for report in reports]
    above = [place - _BAR_HEIGHT / 2 for place in places]
    below = [place + _BAR_HEIGHT / 2 for place in places]
    bars = [
        speed.barh(above, ours, _BAR_HEIGHT, color=_OURS, label="this project"),
        speed.barh(below, published, _BAR_HEIGHT, color=_PUBLISHED, label="published design"),
    ]
    for bar in bars:
        speed.bar_label(bar, fmt="%.2f", padding=2, fontsize=8)
    speed.axvline(1.0, color="grey", linewidth=0.8, linestyle="--")
    speed.set_title("Real-time factor of one stream (lower is better)", fontsize=10)
    speed.legend(fontsize=8)
    milliseconds = [report["first_audio"]["measured_ms"] for report in reports]
    bar = first.barh(list(places), milliseconds, 2 * _BAR_HEIGHT, color=_OURS)
    first.bar_label(bar, fmt="%.0f", padding=2, fontsize=8)
    first.set_title("First audio of a sentence, ms", fontsize=10)
    for axes in (speed, first):
        axes.set_yticks(list(places), labels, fontsize=9)
        axes.invert_yaxis()
        axes.margins(x=0.15)
        axes.spines[["top", "right"]].set_visible(False)
    machine = reports[0]["machine"]
    threads = reports[0]["settings"]["num_threads"]
    figure.supxlabel(f"{machine['processor']}, {threads} threads", fontsize=8)
    try:
        figure.savefig(path, dpi=150, metadata=_metadata(path))
    except (OSError, ValueError) as error:
        raise BenchmarkError(f"{path} cannot be written ({error}); use .png or .svg.") from error


def _metadata(path: Path) -> dict[str, str | None]:
    return {"Date": None} if path.suffix == ".svg" else {}
