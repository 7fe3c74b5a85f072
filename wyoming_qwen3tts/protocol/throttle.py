"""The rate at which one client is read."""

import asyncio


class Throttle:
    """Slows a client down that sends more than a limit: a bucket of one second's worth."""

    def __init__(self, max_per_s: int) -> None:
        """Allow events of this cost per second, and that much at once after a pause."""
        self._max_per_s = max_per_s
        self._num_left = float(max_per_s)
        self._looked_at = 0.0

    def spend(self, cost: float) -> None:
        """Take note of an event that was read."""
        self._regain()
        self._num_left -= cost

    async def wait(self) -> None:
        """Wait as long as there was too much."""
        self._regain()
        if self._num_left < 0.0:
            await asyncio.sleep(-self._num_left / self._max_per_s)

    def _regain(self) -> None:
        now = asyncio.get_running_loop().time()
        regained = (now - self._looked_at) * self._max_per_s
        self._num_left = min(float(self._max_per_s), self._num_left + regained)
        self._looked_at = now
