"""Which clients are served at all, by the network that they are in."""

import ipaddress
from collections.abc import Sequence
from typing import Any

from wyoming_qwen3tts.errors import ConfigError


class AllowedNetworks:
    """A list of networks; an empty one allows everybody."""

    def __init__(self, networks: Sequence[str] = ()) -> None:
        """Allow these networks, such as ``192.168.1.0/24``, and this machine.

        Raises:
            ConfigError: A text is no network.
        """
        self._networks = [_parse(text) for text in networks]

    def allows(self, peer: Any) -> bool:
        """Return whether a client may come in.

        Args:
            peer: The other end's address as a socket gives it. What is no internet address is a
                local socket, which the file system guards.
        """
        if not self._networks or not isinstance(peer, tuple):
            return True
        address = ipaddress.ip_address(str(peer[0]).partition("%")[0])
        if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
            address = address.ipv4_mapped
        return address.is_loopback or any(address in network for network in self._networks)


def _parse(text: str) -> ipaddress.IPv4Network | ipaddress.IPv6Network:
    try:
        return ipaddress.ip_network(text.strip(), strict=False)
    except ValueError as error:
        raise ConfigError(
            f"allow: {text!r} is no network such as 192.168.1.0/24 or fd00::/8 ({error})"
        ) from error
