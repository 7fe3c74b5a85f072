"""The rate at which one client is read."""

import asyncio


class Throttle:
    """Slows a client down that sends more events than a limit: a bucket of one second's worth."""

    def __init__(self, max_per_s: int) -> None:
        """Allow this many events per second, and that many at once after a pause."""
        self._max_per_s = max_per_s
        self._num_left = float(max_per_s)
        self._looked_at = 0.0

    async def wait(self) -> None:
        """Take note of an event; waits as long as there were too many."""
        loop = asyncio.get_running_loop()
        now = loop.time()
        regained = (now - self._looked_at) * self._max_per_s
        self._num_left = min(float(self._max_per_s), self._num_left + regained) - 1.0
        self._looked_at = now
        if self._num_left < 0.0:
            await asyncio.sleep(-self._num_left / self._max_per_s)
