"""Which addresses a webhook may reach: public ones, and those that the settings list.

A name is resolved once, and the connection is made to the address that was checked. Otherwise a name could mean a
public address when it is checked and 127.0.0.1 when it is used.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Sequence
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network
from typing import Any, NamedTuple

from callslip.notify.settings import Network

Address = IPv4Address | IPv6Address
NAT64 = ip_network("64:ff9b::/96")


class Endpoint(NamedTuple):
    """An address that may be connected to: the arguments of a socket."""

    family: int
    sockaddr: Any


class AddressNotAllowedError(Exception):
    """A name has no address that may be reached."""


async def find_endpoints(host: str, port: int, networks: Sequence[Network]) -> list[Endpoint]:
    """Return the addresses of a host that may be reached. Raise OSError if it has none at all."""
    loop = asyncio.get_running_loop()
    found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    endpoints = [Endpoint(family, sockaddr) for family, _, _, _, sockaddr in found]
    allowed = [endpoint for endpoint in endpoints if may_reach(str(endpoint.sockaddr[0]), networks)]
    if not allowed:
        addresses = ", ".join(sorted({str(endpoint.sockaddr[0]) for endpoint in endpoints}))
        raise AddressNotAllowedError(
            f"{host} has the address {addresses}, which is not public. Add it to allow_addresses to permit it."
        )
    return allowed


def may_reach(text: str, networks: Sequence[Network]) -> bool:
    """Return whether an address is public or listed. An IPv4 address within an IPv6 address must be so itself."""
    address = _unwrap(ip_address(text.partition("%")[0]))
    return any(address in network for network in networks) or (address.is_global and not address.is_multicast)


def _unwrap(address: Address) -> Address:
    """Return the IPv4 address that an IPv6 address stands for, if it does."""
    if isinstance(address, IPv4Address):
        return address
    if address in NAT64:
        return IPv4Address(int(address) & 0xFFFFFFFF)
    return address.ipv4_mapped or address.sixtofour or (address.teredo or (None, None))[1] or address
