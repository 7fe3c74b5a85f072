"""The pages for programs that watch: figures for Prometheus, and whether the server is well."""

import json
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol, runtime_checkable

from wyoming_qwen3tts import __version__
from wyoming_qwen3tts.machine import resident_memory_bytes
from wyoming_qwen3tts.models.provision_state import ProvisionState
from wyoming_qwen3tts.monitoring import metrics
from wyoming_qwen3tts.monitoring.http import Page
from wyoming_qwen3tts.monitoring.metrics import Gauge, Metrics
from wyoming_qwen3tts.protocol.server import ListenerStatus

if TYPE_CHECKING:
    # They bring the model runtime, which the program has not loaded when it opens its ports.
    from wyoming_qwen3tts.engine.model_pool import ModelStatus
    from wyoming_qwen3tts.engine.worker import WorkerStatus

_STUCK_S: Final = 60.0
"""A step of synthesis takes a fraction of a second, a long prompt on a slow machine seconds."""
_DESCRIPTORS: Final = Path("/proc/self/fd")


@dataclass(frozen=True)
class EngineStatus:
    """How the speech source does."""

    num_requests: int
    """Requests that are spoken or wait."""
    worker: "WorkerStatus"
    models: "list[ModelStatus]"
    """Models that were opened at least once."""
    arrivals: list[ProvisionState]
    """Models that had to be fetched or built."""


@runtime_checkable
class HasStatus(Protocol):
    """A speech source that tells how it does."""

    def status(self) -> EngineStatus:
        """Return how synthesis does now."""


class Health(StrEnum):
    """Whether the server can do its work."""

    STARTING = "starting"
    OK = "ok"
    STUCK = "stuck"
    """Synthesis does not move; only a new start helps."""


class StatusPages:
    """Makes the pages of one server."""

    def __init__(self, figures: Metrics, listener: Callable[[], ListenerStatus]) -> None:
        """Prepare the pages.

        Args:
            figures: What was counted.
            listener: Gives the state of the connections.
        """
        self._figures = figures
        self._listener = listener
        self._source: HasStatus | None = None
        self._is_ready = False
        self._started_s = time.monotonic()
        figures.watch(self._gauges)

    def set_ready(self, source: HasStatus | None) -> None:
        """Say that the server is ready, and who tells how synthesis does."""
        self._is_ready = True
        self._source = source

    @property
    def pages(self) -> Mapping[str, Callable[[], Page]]:
        """Path -> what gives the page."""
        return {"/metrics": self.metrics, "/health": self.health}

    def metrics(self) -> Page:
        """Return the figures."""
        return Page(self._figures.render().encode(), metrics.CONTENT_TYPE)

    def health(self) -> Page:
        """Return whether the server is well, as JSON; status 503 if it is not."""
        status = None if self._source is None else self._source.status()
        health = self._judge(status)
        content: dict[str, Any] = {
            "status": health,
            "version": __version__,
            "uptime_s": round(time.monotonic() - self._started_s, 1),
            "connections": self._listener().num_connected,
        }
        if status is not None:
            content["requests"] = status.num_requests
            content["models"] = _describe_models(status)
        code = HTTPStatus.OK if health is Health.OK else HTTPStatus.SERVICE_UNAVAILABLE
        return Page(json.dumps(content, indent=2).encode() + b"\n", "application/json", code)

    def _judge(self, status: EngineStatus | None) -> Health:
        if not self._is_ready:
            return Health.STARTING
        worker = None if status is None else status.worker
        is_stuck = worker is not None and (not worker.is_alive or worker.busy_s >= _STUCK_S)
        return Health.STUCK if is_stuck else Health.OK

    def _gauges(self) -> Iterable[Gauge]:
        yield Gauge("info", "Version of the server.", [({"version": __version__}, 1)])
        yield from _connection_gauges(self._listener())
        if self._source is not None:
            status = self._source.status()
            yield from _synthesis_gauges(status)
            yield from _model_gauges(status)
        yield from _process_gauges()


def _describe_models(status: EngineStatus) -> list[dict[str, Any]]:
    opened = [
        {
            "model": f"{model.name}/{model.device}_{model.precision}",
            "state": "open" if model.is_loaded else "closed",
            "requests": model.num_users,
        }
        for model in status.models
    ]
    coming = [
        {"model": state.model, "state": state.state, "message": state.message}
        for state in status.arrivals
        if state.state != "ready"
    ]
    return [*opened, *coming]


def _connection_gauges(status: ListenerStatus) -> Iterable[Gauge]:
    yield Gauge("connections", "Clients that are connected.", [({}, status.num_connected)])
    yield Gauge(
        "connections_accepted_total",
        "Clients that were let in.",
        [({}, status.num_accepted)],
        is_counter=True,
    )
    yield Gauge(
        "connections_refused_total",
        "Clients that were not let in: too many, or of a network that is not allowed.",
        [
            ({"reason": "limit"}, status.num_beyond_limit),
            ({"reason": "network"}, status.num_denied),
        ],
        is_counter=True,
    )


def _synthesis_gauges(status: EngineStatus) -> Iterable[Gauge]:
    worker = status.worker
    yield Gauge("open_requests", "Requests that are spoken or wait.", [({}, status.num_requests)])
    yield Gauge(
        "utterances",
        "Sentences that have begun, those that wait for a lane among them.",
        [({}, worker.num_speaking)],
    )
    yield Gauge("queue", "Orders that the thread has not taken yet.", [({}, worker.num_waiting)])
    yield Gauge(
        "step_seconds", "How long the present step of synthesis has taken.", [({}, worker.busy_s)]
    )
    yield Gauge(
        "threads_replaced_total",
        "Synthesis threads that have died and were replaced.",
        [({}, worker.num_replaced)],
        is_counter=True,
    )


def _model_gauges(status: EngineStatus) -> Iterable[Gauge]:
    models = [
        ({"model": model.name, "device": model.device, "precision": model.precision}, model)
        for model in status.models
    ]
    yield Gauge(
        "model_open", "Whether the model is open.", [(labels, m.is_loaded) for labels, m in models]
    )
    yield Gauge(
        "model_weights_bytes",
        "Weights of the model's graphs that are open.",
        [(labels, model.num_bytes * model.is_loaded) for labels, model in models],
    )
    yield Gauge(
        "model_memory_bytes",
        "Memory that opening the model took, about.",
        [(labels, (model.memory_bytes or 0) * model.is_loaded) for labels, model in models],
    )
    yield Gauge(
        "model_load_seconds",
        "How long the model took to open, the last time.",
        [(labels, model.load_s) for labels, model in models],
    )
    yield Gauge(
        "model_progress",
        "How far models are that are fetched or built, 0 to 1.",
        [({"model": s.model, "state": s.state}, s.fraction) for s in status.arrivals],
    )


def _process_gauges() -> Iterable[Gauge]:
    figures: list[tuple[str, str, float | None]] = [
        ("process_resident_memory_bytes", "Resident memory.", resident_memory_bytes()),
        ("process_open_fds", "Open file descriptors.", _num_descriptors()),
        ("process_threads", "Python's threads.", threading.active_count()),
    ]
    for name, doc, value in figures:
        if value is not None:
            yield Gauge(name, doc, [({}, value)], is_common=True)
    cpu_s = time.process_time()
    doc = "Processor time."
    yield Gauge("process_cpu_seconds_total", doc, [({}, cpu_s)], is_common=True, is_counter=True)


def _num_descriptors() -> int | None:
    try:
        return sum(1 for _ in _DESCRIPTORS.iterdir())
    except OSError:
        return None
