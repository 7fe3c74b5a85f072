"""Prometheus metrics of the server, in a registry of its own."""

import threading
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Final

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Histogram,
    ProcessCollector,
    disable_created_metrics,
    generate_latest,
)
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from wyoming_qwen3tts import __version__
from wyoming_qwen3tts.monitoring.health import EngineStatus, HealthMonitor

if TYPE_CHECKING:
    from wyoming_qwen3tts.engine.request_report import RequestReport  # it imports onnxruntime

_PREFIX: Final = "wyoming_qwen3tts"
_FIRST_AUDIO_S: Final = (0.1, 0.2, 0.3, 0.5, 0.75, 1.0, 1.5, 2.0, 3.0, 5.0, 10.0, 30.0)
_RTF: Final = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 1.25, 1.5, 2.0, 3.0, 5.0)
_AUDIO_S: Final = (0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 30.0, 60.0, 120.0, 300.0, 600.0)


class Metrics:
    """Counts requests and errors; reads everything else when it is asked for."""

    def __init__(self) -> None:
        disable_created_metrics()  # type: ignore[no-untyped-call]
        self._registry = CollectorRegistry()
        common: dict[str, Any] = {"namespace": _PREFIX, "registry": self._registry}
        doc = "Finished speech requests, by kind of voice and reason of the end."
        self._requests = Counter("requests", doc, ["voice_kind", "finish"], **common)
        self._errors = Counter("errors", "Errors sent to clients.", ["code"], **common)
        self._characters = Counter("characters", "Spoken characters.", **common)
        doc = "Time from the text of the first sentence to the first audio."
        self._first_audio = Histogram("first_audio_seconds", doc, buckets=_FIRST_AUDIO_S, **common)
        doc = "Seconds of synthesis per second of audio, by request."
        self._rtf = Histogram("real_time_factor", doc, buckets=_RTF, **common)
        doc = "Audio length of a request."
        self._audio = Histogram("audio_seconds", doc, buckets=_AUDIO_S, **common)
        ProcessCollector(registry=self._registry)

    def watch(self, monitor: HealthMonitor) -> None:
        """Include the state of the server, read whenever metrics are collected."""
        self._monitor = monitor
        self._registry.register(self)

    def count_request(self, report: "RequestReport") -> None:
        """Count a request that has ended."""
        self._requests.labels(report.voice_kind, report.finish).inc()
        self._characters.inc(report.num_characters)
        if report.first_audio_s is not None:
            self._first_audio.observe(report.first_audio_s)
            self._audio.observe(report.audio_s)
        if report.rtf is not None:
            self._rtf.observe(report.rtf)

    def count_error(self, error: Exception) -> None:
        """Count an error that a client was sent."""
        self._errors.labels(type(error).__name__).inc()

    def render(self) -> bytes:
        """Return all metrics in the Prometheus text format."""
        return generate_latest(self._registry)

    def collect(self) -> Iterable[Metric]:
        """Yield metrics; called by the registry."""
        info = GaugeMetricFamily(f"{_PREFIX}_info", "Server version.", labels=["version"])
        info.add_metric([__version__], 1)
        yield info
        clients = self._monitor.clients()
        yield _gauge("connections", "Connected clients.", clients.num_connected)
        name = f"{_PREFIX}_connections"
        yield CounterMetricFamily(f"{name}_accepted", "Accepted clients.", clients.num_accepted)
        refused = CounterMetricFamily(f"{name}_refused", "Rejected clients.", labels=["reason"])
        refused.add_metric(["limit"], clients.num_beyond_limit)
        refused.add_metric(["network"], clients.num_denied)
        yield refused
        yield GaugeMetricFamily("process_threads", "Python threads.", threading.active_count())
        if (status := self._monitor.engine) is not None:
            yield from _engine_metrics(status)


def _engine_metrics(status: EngineStatus) -> Iterable[Metric]:
    worker = status.worker
    yield _gauge("open_requests", "Active and waiting requests.", status.num_requests)
    yield _gauge("utterances", "Unfinished sentences of all requests.", worker.num_speaking)
    yield _gauge("queue", "Commands waiting for the synthesis thread.", worker.num_waiting)
    yield _gauge("step_seconds", "Duration of the current synthesis step.", worker.busy_s)
    families = [
        _gauge("model_open", "Whether the model is open."),
        _gauge("model_weights_bytes", "Size of the open weights."),
        _gauge("model_memory_bytes", "Approximate memory that opening the model took."),
        _gauge("model_load_seconds", "Time that the last opening of the model took."),
    ]
    for model in status.models:
        values = (1, model.bundle.open_bytes, model.memory_bytes or 0)
        loaded = [value if model.is_loaded else 0 for value in values]
        for family, value in zip(families, (*loaded, model.load_s), strict=True):
            family.add_metric(model.labels, value)
    yield from families
    name, doc = f"{_PREFIX}_model_progress", "Progress of an installation."
    progress = GaugeMetricFamily(name, doc, labels=["model", "state"])
    for state in status.arrivals:
        progress.add_metric([state.model, state.state], state.fraction)
    yield progress


def _gauge(name: str, doc: str, value: float | None = None) -> GaugeMetricFamily:
    labels = ["model", "device", "precision"] if value is None else None
    return GaugeMetricFamily(f"{_PREFIX}_{name}", doc, value, labels)
