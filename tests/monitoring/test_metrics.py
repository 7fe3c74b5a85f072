"""Metrics in the text format of Prometheus; their names are those of users' dashboards."""

import pytest
from prometheus_client.parser import text_string_to_metric_families

from wyoming_qwen3tts.engine.request_report import RequestReport
from wyoming_qwen3tts.errors import BundleError
from wyoming_qwen3tts.monitoring.metrics import Metrics

P = "wyoming_qwen3tts_"


def parse(text: bytes | str) -> dict[str, float]:
    """Return name{labels} -> value, the labels in the order of the alphabet."""
    values = {}
    text = text if isinstance(text, str) else text.decode()
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            labels = ",".join(f'{key}="{value}"' for key, value in sorted(sample.labels.items()))
            values[f"{sample.name}{{{labels}}}" if labels else sample.name] = sample.value
    return values


def count(metrics: Metrics, **values) -> None:
    report = RequestReport("ryan", "en", voice_kind="preset")
    for name, value in values.items():
        setattr(report, name, value)
    metrics.count_request(report)


def test_requests_are_counted_by_kind_of_voice_and_end():
    metrics = Metrics()
    spoken = {"first_audio_s": 0.25, "audio_s": 2.0, "busy_s": 1.0, "num_characters": 30}
    count(metrics, finish_reasons=["stop"], **spoken)
    count(metrics, finish_reasons=["stop", "length"], **spoken)
    count(metrics, is_cancelled=True)
    count(metrics, error="SynthesisError", is_cancelled=True)
    count(metrics)
    metrics.count_request(RequestReport(error="ValueError"))
    metrics.count_error(BundleError("x"))
    metrics.count_error(ValueError("x"))
    values = parse(metrics.render())
    for finish in ("stop", "length", "cancelled", "error", "none"):
        assert values[f'{P}requests_total{{finish="{finish}",voice_kind="preset"}}'] == 1
    assert values[f'{P}requests_total{{finish="error",voice_kind="none"}}'] == 1
    assert values[f'{P}errors_total{{code="BundleError"}}'] == 1
    assert values[f'{P}errors_total{{code="ValueError"}}'] == 1
    assert values[f"{P}characters_total"] == 60
    assert values[f'{P}first_audio_seconds_bucket{{le="0.2"}}'] == 0
    assert values[f'{P}first_audio_seconds_bucket{{le="0.3"}}'] == 2
    assert values[f'{P}first_audio_seconds_bucket{{le="+Inf"}}'] == 2
    assert values[f"{P}first_audio_seconds_sum"] == 0.5
    assert values[f'{P}real_time_factor_bucket{{le="0.5"}}'] == 2
    assert values[f"{P}real_time_factor_count"] == 2
    assert values[f"{P}audio_seconds_sum"] == 4.0
    assert not [name for name in values if "_created" in name]


def test_two_servers_of_one_process_count_apart():
    first, second = Metrics(), Metrics()
    first.count_request(RequestReport(error="ValueError"))
    assert f"{P}requests_total" not in second.render().decode().replace("# ", "").split("\n")
    assert not any("requests_total{" in name for name in parse(second.render()))


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
    report = RequestReport("ryan", "en", **report_of)
    assert report.finish == finish
