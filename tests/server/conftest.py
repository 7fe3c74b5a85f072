"""Fixtures of the tests that fetch."""

from tests.server.hub_fixtures import (
    hub,
    hub_client,
    options,
    served_checkpoint,
    tiny_catalogue,
)

__all__ = ["hub", "hub_client", "options", "served_checkpoint", "tiny_catalogue"]
