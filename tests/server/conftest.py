"""Fixtures of the tests that fetch."""

from tests.server.hub_fixtures import (
    hub,
    hub_client,
    options,
    served_checkpoint,
    server_hub,
    tiny_catalogue,
)

__all__ = ["hub", "hub_client", "options", "served_checkpoint", "server_hub", "tiny_catalogue"]
