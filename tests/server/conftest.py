"""Fixtures of the tests that fetch."""

from tests.server.hub_fixtures import (
    builds_here,
    fresh_client,
    hub,
    hub_client,
    options,
    served_checkpoint,
    server_hub,
    tiny_catalogue,
)

__all__ = [
    "builds_here",
    "fresh_client",
    "hub",
    "hub_client",
    "options",
    "served_checkpoint",
    "server_hub",
    "tiny_catalogue",
]
