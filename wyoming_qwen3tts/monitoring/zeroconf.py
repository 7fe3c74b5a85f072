"""Advertises the server on the local network (mDNS), as Home Assistant looks for it.

Without a network, the package or a free name the server still serves: failures are logged and
tried again.
"""

import asyncio
import logging
import socket
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Final
from urllib.parse import SplitResult

from wyoming_qwen3tts.config import AUTOMATIC_NAME

_LOGGER = logging.getLogger(__name__)

_SERVICE_TYPE: Final = "_wyoming._tcp.local."
_ANY_HOSTS: Final = {"0.0.0.0", "::"}  # noqa: S104 - not to bind but to recognise
_MDNS_ADDRESS: Final = ("224.0.0.251", 5353)
CHECK_INTERVAL_S: Final = 30.0  # between two attempts, and two looks at the own address


@asynccontextmanager
async def advertised(name: str, address: SplitResult, port: int) -> AsyncIterator[None]:
    """Advertise the server in the background while the context lasts."""
    advertising = asyncio.create_task(_advertise(name, address, port))
    try:
        yield
    finally:
        advertising.cancel()
        await asyncio.gather(advertising, return_exceptions=True)


async def _advertise(name: str, address: SplitResult, port: int) -> None:
    # Home Assistant recognises the server by its name, so the automatic one never changes.
    instance = f"qwen3-tts-{uuid.getnode():012x}" if name == AUTOMATIC_NAME else name
    problem = ""
    while True:
        try:
            host = await find_host(address)
            async with _announced(instance, host, port):
                problem = ""
                while await find_host(address) == host:  # noqa: ASYNC110 - there is no event
                    await asyncio.sleep(CHECK_INTERVAL_S)
        except Exception as error:  # noqa: BLE001 - discovery must not end the server
            if repr(error) != problem:
                problem = repr(error)
                message = "Zeroconf: not advertised: %s; trying again every %g s"
                _LOGGER.warning(message, error, CHECK_INTERVAL_S)
            await asyncio.sleep(CHECK_INTERVAL_S)


@asynccontextmanager
async def _announced(instance: str, host: str, port: int) -> AsyncIterator[None]:
    try:
        from zeroconf import ServiceInfo
        from zeroconf.asyncio import AsyncZeroconf
    except ImportError as error:
        raise OSError("run pip install 'wyoming-qwen3tts[zeroconf]'") from error
    service = ServiceInfo(
        _SERVICE_TYPE,
        f"{instance}.{_SERVICE_TYPE}",
        addresses=[socket.inet_aton(host)],
        port=port,
        server=f"{instance}.local.",
    )
    announcer = AsyncZeroconf(interfaces=[host])
    try:
        # The call returns a task that sends the packets.
        await (await announcer.async_register_service(service, allow_name_change=True))
        _LOGGER.info("Zeroconf: advertised as %s on %s:%d", service.get_name(), host, port)
        yield
    finally:
        with suppress(Exception):  # the interface may be gone
            await announcer.async_unregister_all_services()
        await announcer.async_close()


async def find_host(address: SplitResult) -> str:
    """Return the IPv4 address under which other machines reach the server; raises OSError."""
    if address.scheme != "tcp":
        raise OSError("only tcp:// addresses can be advertised")
    if address.hostname in _ANY_HOSTS:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.connect(_MDNS_ADDRESS)  # sends nothing, chooses an interface
            return str(probe.getsockname()[0])
    loop = asyncio.get_running_loop()
    answers = await loop.getaddrinfo(address.hostname, None, family=socket.AF_INET)
    return str(answers[0][4][0])
