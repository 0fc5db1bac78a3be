"""URLs of databases: whether they name a server, and how they are shown without a password."""

from __future__ import annotations

import re

DATABASE_VARIABLE = "CALLSLIP_DB"
SERVER_SCHEMES = ("postgresql", "postgres")
MASK = "***"

_SECRET_PARAMETERS = frozenset({"password", "sslpassword"})
_PORT = re.compile(r"(?:\[[^\]]*\]|[^:\[\]]*)(?::(\d*))?")


def is_server_url(url: str) -> bool:
    """Return whether a URL names a database on a server, not a file."""
    scheme, separator, _ = url.partition("://")
    return bool(separator) and scheme in SERVER_SCHEMES


def mask_password(url: str) -> str:
    """Return a URL in which passwords are masked, also those in its parameters. A path is returned unchanged.

    If special characters of a password were not escaped, more than the password may be masked, but never less.
    """
    scheme, separator, rest = url.partition("://")
    if not separator or scheme == "sqlite":
        return url
    rest = "".join(map(_mask_parameter, re.split(r"([?&])", rest)))
    before, _, host = rest.rpartition("@")
    user, colon, _ = before.partition(":")
    return f"{scheme}://{user}:{MASK}@{host}" if colon else f"{scheme}://{rest}"


def _mask_parameter(part: str) -> str:
    name, equals, _ = part.partition("=")
    if not equals:
        return part
    from urllib.parse import unquote_plus

    return f"{name}={MASK}" if unquote_plus(name).strip().lower() in _SECRET_PARAMETERS else part


def has_valid_hosts(url: str) -> bool:
    """Return whether the part of a server URL after the password is a list of hosts with or without ports.

    It is not if the password contains one of `/?#` that is not escaped: a driver would then show a part of it.
    """
    authority = re.split(r"[/?#]", url.partition("://")[2], maxsplit=1)[0]
    return all(_PORT.fullmatch(host) for host in authority.rpartition("@")[2].split(","))
