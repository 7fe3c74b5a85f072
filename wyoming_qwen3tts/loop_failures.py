"""What went wrong in the event loop and nobody has caught, in few lines."""

import asyncio
import logging
from typing import Any, Final

_LOGGER = logging.getLogger(__name__)

_QUIET_S: Final = 60.0
_MAX_KINDS: Final = 100


class LoopFailures:
    """Logs a failure in one line, and the same one not again for a minute.

    asyncio itself logs a traceback each time: for a server that has run out of descriptors those
    are hundreds a second.
    """

    def __init__(self) -> None:
        """Start with nothing logged."""
        self._logged_s: dict[str, float] = {}

    def __call__(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """Log what :meth:`asyncio.loop.call_exception_handler` was told."""
        error = context.get("exception")
        line = f"{context.get('message')}: {error!r}"
        last_s = self._logged_s.get(line)
        if last_s is not None and loop.time() - last_s < _QUIET_S:
            return
        if len(self._logged_s) >= _MAX_KINDS:
            self._logged_s.clear()
        self._logged_s[line] = loop.time()
        _LOGGER.error("%s", line)
        _LOGGER.debug("Where it happened", exc_info=error)
