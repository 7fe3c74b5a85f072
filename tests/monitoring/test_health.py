"""Health: 200 only while a voice can speak."""

from types import SimpleNamespace

import pytest

from wyoming_qwen3tts.monitoring.health import EngineStatus, HealthMonitor
from wyoming_qwen3tts.monitoring.metrics import Metrics
from wyoming_qwen3tts.protocol.server import ListenerStatus


def model(error: str | None = None, load_s: float = 1.0) -> SimpleNamespace:
    return SimpleNamespace(
        labels=("a-model", "cpu", "int8"),
        is_loaded=error is None,
        num_users=0,
        bundle=SimpleNamespace(open_bytes=5),
        memory_bytes=None,
        load_s=load_s,
        error=error,
    )


def installing(state: str) -> SimpleNamespace:
    return SimpleNamespace(model="b-model/cpu_int8", state=state, fraction=0.4, message="working")


class Backend:
    def __init__(self, models=(), arrivals=(), **worker):
        good = {"is_alive": True, "num_speaking": 0, "num_waiting": 0, "busy_s": 0.1}
        self.worker = SimpleNamespace(**{**good, **worker})
        self.models, self.arrivals = list(models), list(arrivals)

    def status(self):
        return EngineStatus(0, self.worker, self.models, self.arrivals)


@pytest.mark.parametrize(
    ("backend", "expected"),
    [
        (None, "starting"),
        (Backend(), "starting"),
        (Backend([model(load_s=0.0)]), "starting"),
        (Backend([model()]), "ok"),
        (Backend([model("damaged"), model()]), "ok"),
        (Backend([model("damaged")]), "failed"),
        (Backend([], [installing("building")]), "installing"),
        (Backend([model("damaged")], [installing("fetching")]), "installing"),
        (Backend([model()], [installing("failed")]), "ok"),
        (Backend([], [installing("failed")]), "failed"),
        (Backend([model()], busy_s=61.0), "stuck"),
        (Backend([model()], is_alive=False), "stuck"),
        (object(), "ok"),
    ],
)
def test_health(backend, expected):
    monitor = HealthMonitor(ListenerStatus)
    if backend is not None:
        monitor.backend = backend
    assert monitor.report()["status"] == expected


def test_report_says_what_each_model_does():
    metrics, monitor = Metrics(), HealthMonitor(ListenerStatus)
    metrics.watch(monitor)
    monitor.backend = Backend([model("damaged")], [installing("building")])
    assert monitor.report()["models"] == [
        {"model": "a-model/cpu_int8", "state": "failed", "requests": 0, "message": "damaged"},
        {"model": "b-model/cpu_int8", "state": "building", "message": "working"},
    ]
    progress = b'wyoming_qwen3tts_model_progress{model="b-model/cpu_int8",state="building"} 0.4'
    assert progress in metrics.render()
