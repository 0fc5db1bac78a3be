"""The address of a server as people write it."""

from __future__ import annotations

from typing import NamedTuple
from urllib.parse import parse_qs, urlsplit

from callslip.errors import InvalidInputError

READ_TIMEOUT_S = 30.0
"""After this time without a byte a connection counts as lost. A stream sends a heartbeat every 15 s."""


class ServerAddress(NamedTuple):
    """Where a server is, and the token that its address contained."""

    scheme: str
    host: str
    port: int
    path: str
    token: str

    @property
    def authority(self) -> str:
        """The host and the port, as a request names them."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def url(self) -> str:
        """The address without the token, safe to print."""
        return f"{self.scheme}://{self.authority}{self.path}"

    @property
    def is_local(self) -> bool:
        """Whether the server is on this machine."""
        return self.host in ("localhost", "::1") or self.host.startswith("127.")


def parse_address(text: str, field: str) -> ServerAddress:
    """Parse the address of a server, also with `?token=` as `serve` prints it."""
    try:
        parts = urlsplit(text)
        port = parts.port
    except ValueError:
        parts, port = urlsplit(""), None
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.username is not None:
        raise InvalidInputError(field, "not the address of a server; write it like http://127.0.0.1:7890")
    tokens = parse_qs(parts.query).get("token", [""])
    default_port = 443 if parts.scheme == "https" else 80
    return ServerAddress(parts.scheme, parts.hostname, port or default_port, parts.path.rstrip("/"), tokens[0])
