"""Host names and origins, compared part by part: no text that only looks like one of ours is taken for it."""

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
    """Where a page comes from. `port` 0 is that of a scheme that has none."""

    scheme: str
    host: str
    port: int


def read_origin(text: str) -> Origin | None:
    """What an Origin header says; None for `null` and whatever else is no origin."""
    found = _ORIGIN.fullmatch(text.lower())
    if found is None:
        return None
    scheme, host, port = found.groups()
    return Origin(scheme, _canonical(host), int(port) if port else PORTS.get(scheme, 0))


@lru_cache(256)
def read_host(text: str, scheme: str) -> Origin | None:
    """The origin that a Host header makes ours; None if it is none."""
    found = _HOST.fullmatch(text.lower())
    if found is None:
        return None
    host, port = found.groups()
    return Origin(scheme, _canonical(host), int(port) if port else PORTS.get(scheme, 0))


def _canonical(host: str) -> str:
    """IPv6 addresses have many spellings."""
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
    """The names that a server answers to.

    Bound to every address of the machine it answers to any address, too: only a name can be made to point elsewhere.
    """

    def __init__(self, bound: str = "127.0.0.1", named: Iterable[str] = ()) -> None:
        self._everywhere = bound in EVERYWHERE
        self._names = {_named_host(name) for name in (*LOCAL, *(() if self._everywhere else (bound,)), *named)}

    def __contains__(self, host: str) -> bool:
        return host in self._names or (self._everywhere and _is_address(host))


def _named_host(name: str) -> str:
    bare = f"[{name}]" if ":" in name and not name.startswith("[") and _is_address(name) else name
    found = _HOST.fullmatch(bare.lower())
    if found is None or found.group(2):
        raise InvalidInputError("host", f"{name!r} is not a host name; write it without scheme and port")
    return _canonical(found.group(1))


class Origins:
    """The other origins whose pages may use the server. `*` is all of them, and never with cookies."""

    def __init__(self, named: Iterable[str] = (), *, cookies: bool = True) -> None:
        given = list(named)
        self.any = ANY in given
        if self.any and cookies:
            raise InvalidInputError(
                "origin", "'*' would let every page act with a visitor's cookie; name origins, or go without"
            )
        self._named = {_named_origin(name) for name in given if name != ANY}

    def __contains__(self, origin: Origin) -> bool:
        return origin in self._named

    def __bool__(self) -> bool:
        return self.any or bool(self._named)


def _named_origin(name: str) -> Origin:
    origin = read_origin(name)
    if origin is None:
        raise InvalidInputError("origin", f"{name!r} is not an origin; write it as https://example.org or scheme://id")
    return origin
