"""The report as Markdown."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict

from script._benchmark.component_campaign import ComponentFigures
from script._benchmark.report import Report, SpeechFigures

_MEGA = 1e6
_GIGA = 1e9
_PARTS = (
    ("talker", "talker_ms"),
    ("code predictor", "predictor_ms"),
    ("codec decoder", "codec_ms"),
    ("rest", "rest_ms"),
    ("frame", "total_ms"),
    ("RTF", "rtf"),
)


def report_table(report: Report) -> str:
    """Return the tables of one report."""
    return "\n\n".join(
        [
            _heading(report),
            _machine_lines(report),
            _cost_table(report),
            _speech_table(report.speech),
            _first_audio_line(report),
            _memory_line(report.peak_rss_mb),
            _summary_table(report),
        ]
    )


def _heading(report: Report) -> str:
    settings = report.settings
    kind = "" if settings.extent == "full" else f", {settings.extent}"
    trial = " **Tiny trial model: the figures mean nothing.**" if settings.preset == "tiny" else ""
    return (
        f"## {settings.size} {settings.precision}{kind}\n\n"
        f"Random weights of the {settings.preset} dimensions, {settings.num_threads} threads, "
        f"{report.num_rounds} rounds in {report.duration_s:.0f} s, medians.{trial}"
    )


def _machine_lines(report: Report) -> str:
    machine, rates, noise = report.machine, report.rates, report.noise
    memory = "" if machine.memory_gib is None else f", {machine.memory_gib:.0f} GiB"
    lines = [
        f"{machine.processor}, {machine.num_cores} cores{memory}, {machine.system}, "
        f"Python {machine.python}, onnxruntime {machine.onnxruntime}.",
        f"By number of threads: reads {_by_threads(rates.read_gb_per_s, 1)} GB/s, computes "
        f"{_by_threads(rates.fp32_gflops, 0)} Gflop/s in float32 and "
        f"{_by_threads(rates.int8_gops, 0)} Gop/s in int8.",
    ]
    if noise.median_foreign_cpu is not None and noise.worst_foreign_cpu is not None:
        verdict = " **Noisy: measure again on a quiet machine.**" if noise.is_noisy else ""
        lines.append(
            f"Other processes used {noise.median_foreign_cpu:.0%} of a core (median of the "
            f"measurements; worst {noise.worst_foreign_cpu:.0%}).{verdict}"
        )
    if noise.apart is not None:
        lines.append(
            "The host moves the two cores; they shared a cache in "
            f"{1 - noise.apart:.0%} of the measurements, and these count where there are any."
        )
    return "\n".join(lines)


def _by_threads(rates: Mapping[str, float], digits: int) -> str:
    return ", ".join(f"{rate:.{digits}f} ({count})" for count, rate in rates.items())


def _cost_table(report: Report) -> str:
    work = report.work

    def row(title: str, key: str) -> list[str]:
        ours, floor, published = (
            float(asdict(cost)[key]) for cost in (report.frame, report.floor, report.published)
        )
        return [
            title,
            f"{ours:.2f}",
            f"{floor:.2f}",
            _ratio(ours, floor),
            f"{published:.2f}",
            _ratio(published, ours),
        ]

    header = ["per frame, ms", "here", "floor", "x floor", "published design", "times faster"]
    return (
        f"{_table(header, [row(*part) for part in _PARTS])}\n\n"
        f"Floor of a frame: {work.talker_bytes / _MEGA:.0f} MB of talker and "
        f"{work.predictor_bytes / _MEGA:.0f} MB of code predictor weights to read, "
        f"{work.codec_operations / _GIGA:.2f} Gflop of codec to compute."
    )


def _ratio(numerator: float, denominator: float) -> str:
    return f"{numerator / denominator:.2f}" if denominator > 0 and numerator > 0 else "-"


def _speech_table(speech: Sequence[SpeechFigures]) -> str:
    header = ["", "lanes", "utterances", "frames", "RTF", "speed"]
    header += ["stops, s", "ms per frame: prefill + talker + predictor + codec", "first audio ms"]
    return _table(
        header,
        (
            [
                figures.name,
                str(figures.lanes),
                str(figures.utterances),
                str(figures.num_frames),
                f"{figures.rtf:.3f}",
                f"{1 / figures.rtf:.2f}",
                "-" if figures.stopped_s is None else f"{figures.stopped_s:.1f}",
                " + ".join(f"{value:.1f}" for value in figures.parts_ms.values()),
                ", ".join(f"{value:.0f}" for value in figures.first_audio_ms),
            ]
            for figures in speech
        ),
    )


def _first_audio_line(report: Report) -> str:
    first = report.first_audio
    return (
        f"First audio of the sentence: {first.measured_ms:.1f} ms; its parts alone: prefill "
        f"{first.prefill_ms:.1f}, first frame {first.frame_ms:.1f}, decoding it "
        f"{first.decode_ms:.1f} ms."
    )


def _memory_line(peaks: Mapping[str, float]) -> str:
    if not peaks:
        return "Peak memory is not known on this system."
    listed = ", ".join(f"{name.replace('_', ' ')} {peak:.0f} MB" for name, peak in peaks.items())
    return f"Peak memory (resident, mapped files included): {listed}."


def _summary_table(report: Report) -> str:
    rows = [
        [name, "not measured" if value is None else f"{value:.2f}"]
        for name, value in asdict(report.summary).items()
    ]
    return _table(["summary", ""], rows)


def _table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def component_table(figures: Sequence[ComponentFigures]) -> str:
    """Return the table of ``--components``."""
    header = ["component", "case", "median ms", "best ms", "per frame ms", "x floor", "memory MB"]
    header += ["other processes", "against ms", "times faster"]
    return _table(
        header,
        (
            [
                entry.component,
                entry.case,
                f"{entry.median_ms:.2f}",
                f"{entry.best_ms:.2f}",
                _number(entry.per_frame_ms, "{:.2f}"),
                _number(entry.floor_ratio, "{:.2f}"),
                _number(entry.peak_rss_mb, "{:.0f}"),
                _number(entry.foreign_cpu, "{:.0%}") + (" (noisy)" if entry.is_noisy else ""),
                _number(entry.against_ms, "{:.2f}"),
                "-" if entry.against_ms is None else _ratio(entry.against_ms, entry.median_ms),
            ]
            for entry in figures
        ),
    )


def _number(value: float | None, pattern: str) -> str:
    return "-" if value is None else pattern.format(value)
