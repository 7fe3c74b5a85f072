"""Announces the server on the local network (mDNS), as Home Assistant looks for it.

The zeroconf package is an extra and is imported only when the announcement is on.
"""

import asyncio
import logging
import socket
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Final

from wyoming_qwen3tts.config import AUTOMATIC_NAME
from wyoming_qwen3tts.errors import ConfigError
from wyoming_qwen3tts.protocol.server import Address

_LOGGER = logging.getLogger(__name__)

_SERVICE_TYPE: Final = "_wyoming._tcp.local."
_ANY_HOSTS: Final = {"0.0.0.0", "::", ""}  # noqa: S104 - not to bind but to recognise
# Where mDNS itself is sent: the interface that leads there is the one to announce. Connecting a
# datagram socket sends nothing.
_MDNS_ADDRESS: Final = ("224.0.0.251", 5353)


@asynccontextmanager
async def announced(name: str, address: Address, port: int) -> AsyncIterator[None]:
    """Announce the server for as long as the context lasts.

    Args:
        name: Instance name, or "auto" for one that is the same at every start on this machine:
            Home Assistant recognises the server by it.
        address: Where the server listens.
        port: The port that it has bound.

    Raises:
        ConfigError: The package is missing, or the address cannot be announced.
    """
    if address.scheme != "tcp":
        raise ConfigError("zeroconf announces tcp:// addresses only; set zeroconf to false")
    try:
        from zeroconf import ServiceInfo
        from zeroconf.asyncio import AsyncZeroconf
    except ImportError as error:
        raise ConfigError(
            "zeroconf needs its package: pip install 'wyoming-qwen3tts[zeroconf]'"
        ) from error
    host = await find_host(address.host)
    instance = stable_name() if name == AUTOMATIC_NAME else name
    service = ServiceInfo(
        _SERVICE_TYPE,
        f"{instance}.{_SERVICE_TYPE}",
        addresses=[socket.inet_aton(host)],
        port=port,
        server=f"{instance}.local.",
    )
    announcer: Any = AsyncZeroconf(interfaces=[host])
    try:
        # Each call gives a task that sends the packets: it is awaited too.
        await (await announcer.async_register_service(service))
        _LOGGER.info("Announced as %s on %s:%d", instance, host, port)
        yield
        await (await announcer.async_unregister_service(service))
    finally:
        await announcer.async_close()


async def find_host(host: str) -> str:
    """Return the IPv4 address under which others reach a server that listens on a host.

    Raises:
        ConfigError: There is none.
    """
    if host in _ANY_HOSTS:
        try:
            with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
                probe.connect(_MDNS_ADDRESS)
                found: str = probe.getsockname()[0]
        except OSError as error:
            raise ConfigError(f"zeroconf found no network to announce on: {error}") from error
        return found
    try:
        loop = asyncio.get_running_loop()
        answers = await loop.getaddrinfo(host, None, family=socket.AF_INET)
    except OSError as error:
        raise ConfigError(f"zeroconf needs an IPv4 address; {host} has none: {error}") from error
    return str(answers[0][4][0])


def stable_name() -> str:
    """Return an instance name of this machine, made of its hardware address."""
    return f"qwen3-tts-{uuid.getnode():012x}"
