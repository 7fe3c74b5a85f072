"""Serves ``/metrics`` and ``/health`` over HTTP, in the event loop of the server."""

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

from aiohttp import web
from aiohttp.typedefs import Handler
from prometheus_client import CONTENT_TYPE_LATEST

from wyoming_qwen3tts.errors import ConfigError
from wyoming_qwen3tts.monitoring.health import HealthMonitor
from wyoming_qwen3tts.monitoring.metrics import Metrics
from wyoming_qwen3tts.protocol.server import Networks, is_allowed

_LOGGER = logging.getLogger(__name__)

_NO_STORE: Final = {"Cache-Control": "no-store"}


def parse_http_address(text: str) -> tuple[str, int]:
    """Return host and port of HOST:PORT, or of PORT on this machine; raises ConfigError."""
    host, _, port_text = text.strip().rpartition(":")
    is_port = port_text.isascii() and port_text.isdigit() and int(port_text) < 2**16
    if not is_port or (":" in host and not (host.startswith("[") and host.endswith("]"))):
        raise ConfigError(f"http: {text!r} is not HOST:PORT, such as 127.0.0.1:10280, or PORT")
    return host.strip("[]") or "127.0.0.1", int(port_text)


@asynccontextmanager
async def serve_pages(
    address: str, metrics: Metrics, monitor: HealthMonitor, networks: Networks
) -> AsyncIterator[int]:
    """Serve the pages while the context lasts; gives the bound port; raises ConfigError."""
    host, port = parse_http_address(address)

    @web.middleware
    async def check_network(request: web.Request, handler: Handler) -> web.StreamResponse:
        peer = request.transport and request.transport.get_extra_info("peername")
        if not is_allowed(peer, networks):
            raise web.HTTPForbidden
        return await handler(request)

    async def get_metrics(_request: web.Request) -> web.Response:
        headers = {"Content-Type": CONTENT_TYPE_LATEST, **_NO_STORE}
        return web.Response(body=metrics.render(), headers=headers)

    async def get_health(_request: web.Request) -> web.Response:
        report = monitor.report()
        status = 200 if report["status"] == "ok" else 503
        return web.json_response(report, status=status, headers=_NO_STORE)

    app = web.Application(middlewares=[check_network])
    app.router.add_get("/metrics", get_metrics)
    app.router.add_get("/health", get_health)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.5)
    await runner.setup()
    try:
        try:
            await web.TCPSite(runner, host, port).start()
        except OSError as error:
            message = f"cannot listen on {address}: {error}; choose another address with --http"
            raise ConfigError(message) from error
        bound_port: int = runner.addresses[0][1]
        _LOGGER.info("Serving metrics at http://%s:%d/metrics", host, bound_port)
        yield bound_port
    finally:
        await runner.cleanup()
