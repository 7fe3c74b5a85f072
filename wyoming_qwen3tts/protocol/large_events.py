"""Large events of all clients together: a few at a time are taken in, one at a time is understood.

A megabyte of JSON takes tens of milliseconds, in which nobody else is served, and becomes twenty
of them in memory. What an ordinary client sends is a thousand times smaller and never waits here.
"""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Final

LARGE_BYTES: Final = 32_768
_MAX_AT_ONCE: Final = 16
_REST: Final = 3.0
"""Time that is left to others after an event was understood, as a multiple of what that took."""


class LargeEvents:
    """Shared by the connections of a server."""

    def __init__(self) -> None:
        """Start with no large event under way."""
        self._places = asyncio.Semaphore(_MAX_AT_ONCE)
        self._turn = asyncio.Lock()

    @asynccontextmanager
    async def place(self, num_bytes: int) -> AsyncIterator[None]:
        """Keep a place for the bytes of an event; waits for one if they are many."""
        if num_bytes <= LARGE_BYTES:
            yield
            return
        async with self._places:
            yield

    async def load(self, content: bytes) -> Any:
        """Return JSON as Python values; waits for its turn if it is large.

        Raises:
            ValueError: It is no JSON.
            RecursionError: It is nested too deeply.
        """
        if len(content) <= LARGE_BYTES:
            return json.loads(content.decode("utf-8"))
        await self._turn.acquire()
        loop = asyncio.get_running_loop()
        started_s = loop.time()
        try:
            return json.loads(content.decode("utf-8"))
        finally:
            loop.call_later(_REST * (loop.time() - started_s), self._turn.release)
