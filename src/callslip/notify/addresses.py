"""Which addresses a webhook may reach: public ones, and those that the settings list.

A name is resolved once, and the connection is made to the address that was checked. Otherwise a name could mean a
public address when it is checked and 127.0.0.1 when it is used.
"""

from __future__ import annotations

import asyncio
import errno
import socket
from collections.abc import Sequence
from concurrent.futures import Future
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network
from threading import Thread
from typing import Any, NamedTuple

from callslip.notify.settings import Network

Address = IPv4Address | IPv6Address
NAT64 = ip_network("64:ff9b::/96")
GLOBAL_UNICAST = ip_network("2000::/3")
"""The only public addresses of IPv6. Python takes some others for global, such as NAT64 prefixes of a network."""
PROTOCOL_ADDRESSES = ip_network("192.0.0.0/24")
"""Special addresses, of which earlier versions of Python take most for global."""


class Endpoint(NamedTuple):
    """An address that may be connected to: the arguments of a socket."""

    family: int
    sockaddr: Any


class AddressNotAllowedError(Exception):
    """A name has no address that may be reached."""


async def find_endpoints(host: str, port: int, networks: Sequence[Network]) -> list[Endpoint]:
    """Return the addresses of a host that may be reached. Raise OSError if it has none at all."""
    endpoints = [Endpoint(family, sockaddr) for family, _, _, _, sockaddr in await _resolve(host, port)]
    allowed = [endpoint for endpoint in endpoints if may_reach(str(endpoint.sockaddr[0]), networks)]
    if not allowed:
        addresses = ", ".join(sorted({str(endpoint.sockaddr[0]) for endpoint in endpoints}))
        raise AddressNotAllowedError(
            f"{host} has the address {addresses}, which is not public. Add it to allow_addresses to permit it."
        )
    return allowed


async def _resolve(host: str, port: int) -> list[Any]:
    """Look up a name in a thread of its own.

    Without an answer of a name server this may take a minute. In the few threads that others share, a receiver would
    then hold up the other ones and the end of the process.
    """
    found: Future[list[Any]] = Future()
    found.set_running_or_notify_cancel()

    def look_up() -> None:
        try:
            found.set_result(socket.getaddrinfo(host, port, type=socket.SOCK_STREAM))
        except UnicodeError:
            found.set_exception(OSError(errno.EINVAL, "the name is not valid"))
        except Exception as error:
            found.set_exception(error)

    Thread(target=look_up, name="callslip-resolver", daemon=True).start()
    return await asyncio.wrap_future(found)


def may_reach(text: str, networks: Sequence[Network]) -> bool:
    """Return whether an address is public or listed. An IPv4 address within an IPv6 address must be so itself."""
    address = _unwrap(ip_address(text.partition("%")[0]))
    return any(address in network for network in networks) or _is_public(address)


def _is_public(address: Address) -> bool:
    is_special = address in PROTOCOL_ADDRESSES or (address.version == 6 and address not in GLOBAL_UNICAST)
    return address.is_global and not (address.is_multicast or is_special)


def _unwrap(address: Address) -> Address:
    """Return the IPv4 address that an IPv6 address stands for, if it does."""
    if isinstance(address, IPv4Address):
        return address
    if address in NAT64:
        return IPv4Address(int(address) & 0xFFFFFFFF)
    return address.ipv4_mapped or address.sixtofour or (address.teredo or (None, None))[1] or address
