"""Decides whether the server can speak, for ``/health`` and for Wyoming's ``health`` event."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal

from wyoming_qwen3tts import __version__
from wyoming_qwen3tts.protocol.server import ListenerStatus

if TYPE_CHECKING:
    # They import onnxruntime, which is loaded only after the ports are open.
    from wyoming_qwen3tts.engine.model_pool import PooledModel
    from wyoming_qwen3tts.engine.worker import WorkerStatus
    from wyoming_qwen3tts.models.progress import InstallProgress

STUCK_S: Final = 60.0
"""A synthesis step takes a fraction of a second, a long prompt on a slow machine some seconds."""

Health = Literal["ok", "starting", "installing", "failed", "stuck"]
"""``starting``: no model has been opened yet. ``installing``: the first one is being fetched or
built. ``failed``: no model can speak. ``stuck``: the synthesis thread does not move."""


@dataclass(frozen=True)
class EngineStatus:
    """Requests, the synthesis thread, opened or failed models, and installations."""

    num_requests: int
    worker: "WorkerStatus"
    models: "list[PooledModel]"
    arrivals: "list[InstallProgress]"


class HealthMonitor:
    """Collects the state of one server."""

    def __init__(self, clients: Callable[[], ListenerStatus]) -> None:
        self.clients = clients
        self.backend: object = None  # until it is loaded
        self._started_s = time.monotonic()

    @property
    def engine(self) -> EngineStatus | None:
        """State of synthesis; None while the backend loads or if it does not report any."""
        status: Callable[[], EngineStatus] | None = getattr(self.backend, "status", None)
        return None if status is None else status()

    @property
    def health(self) -> Health:
        """Whether the server can speak."""
        status = self.engine
        if status is None:
            return "starting" if self.backend is None else "ok"
        if not status.worker.is_alive or status.worker.busy_s >= STUCK_S:
            return "stuck"
        if any(model.error is None and model.load_s > 0 for model in status.models):
            return "ok"
        states = {state.state for state in status.arrivals}
        if states - {"ready", "failed"}:
            return "installing"
        has_failed = "failed" in states or any(model.error for model in status.models)
        return "failed" if has_failed else "starting"

    def report(self) -> dict[str, Any]:
        """Return the health and its reasons, as JSON values."""
        report: dict[str, Any] = {
            "status": self.health,
            "version": __version__,
            "uptime_s": round(time.monotonic() - self._started_s, 1),
            "connections": self.clients().num_connected,
        }
        if (status := self.engine) is not None:
            report |= {"requests": status.num_requests, "models": []}
            for model in status.models:
                name = "{}/{}_{}".format(*model.labels)
                state = "open" if model.is_loaded else "closed"
                described = {"model": name, "state": state, "requests": model.num_users}
                if model.error is not None:
                    described |= {"state": "failed", "message": model.error}
                report["models"].append(described)
            report["models"] += [
                {"model": state.model, "state": state.state, "message": state.message}
                for state in status.arrivals
                if state.state != "ready"
            ]
        return report
