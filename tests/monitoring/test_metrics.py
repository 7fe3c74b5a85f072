"""Figures in the text format of Prometheus, and what is counted in them."""

import re

import pytest

from wyoming_qwen3tts.engine.request_report import RequestReport
from wyoming_qwen3tts.errors import BundleError
from wyoming_qwen3tts.monitoring.metrics import Counter, Gauge, Histogram, Metrics

SAMPLE = re.compile(
    r'([a-z][a-z0-9_]*)(?:\{((?:[a-z_]+="(?:[^"\\\n]|\\["\\n])*",?)+)\})? (\+Inf|-?[0-9.e+-]+)'
)


def parse(text: str) -> dict[str, float]:
    """Return name{labels} -> value; every line must be as the format wants it."""
    assert text.endswith("\n")
    values: dict[str, float] = {}
    described: dict[str, str] = {}
    for line in text.splitlines():
        if line.startswith("# HELP "):
            _, _, name, doc = line.split(" ", 3)
            assert doc
            assert name not in described
            described[name] = ""
        elif line.startswith("# TYPE "):
            _, _, name, kind = line.split(" ")
            assert described[name] == ""
            assert kind in {"counter", "gauge", "histogram"}
            described[name] = kind
        else:
            match = SAMPLE.fullmatch(line)
            assert match, line
            family = match[1]
            if family not in described:
                family = re.sub("_(bucket|sum|count)$", "", family)
                assert described[family] == "histogram"
            key = line.rpartition(" ")[0]
            assert key not in values
            values[key] = float(match[3])
    return values


def report(**values) -> RequestReport:
    made = RequestReport("ryan", "en", voice_kind="preset")
    for name, value in values.items():
        setattr(made, name, value)
    return made


def test_requests_are_counted_by_kind_of_voice_and_end():
    metrics = Metrics()
    spoken = {"first_audio_s": 0.25, "audio_s": 2.0, "busy_s": 1.0, "num_characters": 30}
    metrics.count_request(report(finish_reasons=["stop"], **spoken))
    metrics.count_request(report(finish_reasons=["stop", "length"], **spoken))
    metrics.count_request(report(is_cancelled=True))
    metrics.count_request(report(error="SynthesisError", is_cancelled=True))
    metrics.count_request(report())
    metrics.count_refusal()
    metrics.count_error(BundleError("x"))
    metrics.count_error(ValueError("x"))
    values = parse(metrics.render())
    prefix = "wyoming_qwen3tts_"
    for finish in ("stop", "length", "cancelled", "error", "none"):
        assert values[f'{prefix}requests_total{{voice_kind="preset",finish="{finish}"}}'] == 1
    assert values[f'{prefix}requests_total{{voice_kind="none",finish="error"}}'] == 1
    assert values[f'{prefix}errors_total{{code="BundleError"}}'] == 1
    assert values[f'{prefix}errors_total{{code="ValueError"}}'] == 1
    assert values[f"{prefix}characters_total"] == 60
    assert values[f'{prefix}first_audio_seconds_bucket{{le="0.2"}}'] == 0
    assert values[f'{prefix}first_audio_seconds_bucket{{le="0.3"}}'] == 2
    assert values[f'{prefix}first_audio_seconds_bucket{{le="+Inf"}}'] == 2
    assert values[f"{prefix}first_audio_seconds_sum"] == 0.5
    assert values[f'{prefix}real_time_factor_bucket{{le="0.5"}}'] == 2
    assert values[f"{prefix}real_time_factor_count"] == 2
    assert values[f"{prefix}audio_seconds_sum"] == 4.0


def test_bound_of_a_bucket_belongs_to_it():
    histogram = Histogram("x_seconds", "Some time.", (1.0, 2.0))
    for value in (0.0, 1.0, 1.5, 2.0, 2.1, 1e9):
        histogram.observe(value)
    lines = list(histogram.lines())
    assert lines[2:] == [
        'wyoming_qwen3tts_x_seconds_bucket{le="1"} 2',
        'wyoming_qwen3tts_x_seconds_bucket{le="2"} 4',
        'wyoming_qwen3tts_x_seconds_bucket{le="+Inf"} 6',
        "wyoming_qwen3tts_x_seconds_sum 1000000006.6",
        "wyoming_qwen3tts_x_seconds_count 6",
    ]


def test_labels_are_escaped_and_their_number_is_bounded():
    metrics = Metrics()
    metrics.watch(lambda: [Gauge("odd", "Odd\nthings \\.", [({"name": 'a"b\\c\nd'}, 0.5)])])
    values = parse(metrics.render())
    assert values['wyoming_qwen3tts_odd{name="a\\"b\\\\c\\nd"}'] == 0.5
    counter = Counter("codes", "Codes.", ["code"])
    for number in range(1_000):
        counter.add(str(number))
    lines = list(counter.lines())
    assert len(lines) < 300
    assert lines[-1] == f'wyoming_qwen3tts_codes_total{{code="other"}} {1_000 - 256}'


@pytest.mark.parametrize(
    ("report_of", "finish"),
    [
        ({"error": "BundleError", "is_cancelled": True, "finish_reasons": ["stop"]}, "error"),
        ({"is_cancelled": True, "finish_reasons": ["length"]}, "cancelled"),
        ({"finish_reasons": ["stop", "retry", "stop"]}, "retry"),
        ({"finish_reasons": ["retry", "length"]}, "length"),
        ({}, "none"),
    ],
)
def test_the_end_most_worth_knowing_counts(report_of, finish):
    assert report(**report_of).finish == finish
