"""Parse and compare host names and origins. They are compared by part, as similar texts may be different hosts."""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import lru_cache
from ipaddress import ip_address
from typing import NamedTuple

from callslip.errors import InvalidInputError

LOCAL = ("localhost", "127.0.0.1", "[::1]")
EVERYWHERE = ("", "0.0.0.0", "::", "[::]")
ANY = "*"
PORTS = {"http": 80, "https": 443, "ws": 80, "wss": 443}

_NAME = r"(\[[0-9a-f:.]+\]|[a-z0-9_-]+(?:\.[a-z0-9_-]+)*)"
_PORT = r"(?::([0-9]{1,5}))?"
_HOST = re.compile(_NAME + _PORT)
_ORIGIN = re.compile(r"([a-z][a-z0-9+.-]*)://" + _NAME + _PORT)


class Origin(NamedTuple):
    """The origin of a page. `port` is 0 for a scheme without a default port."""

    scheme: str
    host: str
    port: int


def parse_origin(text: str) -> Origin | None:
    """Return the origin in an Origin header; None for `null` and anything else that is not an origin."""
    match = _ORIGIN.fullmatch(text.lower())
    return _to_origin(*match.groups()) if match else None


@lru_cache(256)
def parse_host(text: str, scheme: str) -> Origin | None:
    """Return our own origin by a Host header; None if it is not valid."""
    match = _HOST.fullmatch(text.lower())
    return _to_origin(scheme, *match.groups()) if match else None


def _to_origin(scheme: str, host: str, port: str | None) -> Origin:
    return Origin(scheme, _canonical(host), int(port) if port else PORTS.get(scheme, 0))


def _canonical(host: str) -> str:
    """Return the canonical form of a host: an IPv6 address has many."""
    if not host.startswith("["):
        return host
    try:
        return f"[{ip_address(host[1:-1])}]"
    except ValueError:
        return host


def _is_address(host: str) -> bool:
    try:
        return bool(ip_address(host.strip("[]")))
    except ValueError:
        return False


class Hosts:
    """The host names of a server.

    A server that listens on all addresses also accepts any IP address: only a name can be redirected by DNS.
    """

    def __init__(self, bound: str = "127.0.0.1", allowed: Iterable[str] = ()) -> None:
        self._is_everywhere = bound in EVERYWHERE
        names = (*LOCAL, *(() if self._is_everywhere else (bound,)), *allowed)
        self._names = {_check_host(name) for name in names}

    def __contains__(self, host: str) -> bool:
        return host in self._names or (self._is_everywhere and _is_address(host))


def _check_host(name: str) -> str:
    bare = f"[{name}]" if ":" in name and not name.startswith("[") and _is_address(name) else name
    match = _HOST.fullmatch(bare.lower())
    if match is None or match.group(2):
        raise InvalidInputError("host", f"{name!r} is not a host name. Write it without scheme and port.")
    return _canonical(match.group(1))


class Origins:
    """The other origins whose pages may use the server. `*` means all of them, and requires that cookies are off."""

    def __init__(self, allowed: Iterable[str] = (), *, cookies: bool = True) -> None:
        names = list(allowed)
        self.any = ANY in names
        if self.any and cookies:
            raise InvalidInputError(
                "origin", "'*' would let every page use a visitor's cookie. Name the origins, or turn cookies off."
            )
        self._origins = {_check_origin(name) for name in names if name != ANY}

    def __contains__(self, origin: Origin) -> bool:
        return origin in self._origins

    def __bool__(self) -> bool:
        return self.any or bool(self._origins)


def _check_origin(name: str) -> Origin:
    origin = parse_origin(name)
    if origin is None:
        raise InvalidInputError("origin", f"{name!r} is not an origin. Write it as https://example.org or scheme://id.")
    return origin
