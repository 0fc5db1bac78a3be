"""What everybody who asks a server shares: where it is, and which exception each of its problems stands for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple
from urllib.parse import parse_qs, urlsplit

import msgspec

from callslip import errors

READ_TIMEOUT_S = 30.0
"""Seconds without a byte after which a connection counts as lost. A stream says something every 15."""


class ServerAddress(NamedTuple):
    """Where a server is, and the token that its address brought along."""

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
        """The address without the token, as one may say it aloud."""
        return f"{self.scheme}://{self.authority}{self.path}"

    @property
    def local(self) -> bool:
        """Whether it is on this machine."""
        return self.host in ("localhost", "::1") or self.host.startswith("127.")


def parse_address(given: str, said_by: str) -> ServerAddress:
    """The address of a server as a person gives it, also with `?token=` as `serve` prints it."""
    try:
        parts = urlsplit(given)
        port = parts.port
    except ValueError:
        parts, port = urlsplit(""), None
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.username is not None:
        raise errors.InvalidInputError(said_by, "not the address of a server; write it as http://127.0.0.1:7890")
    tokens = parse_qs(parts.query).get("token", [""])
    default = 443 if parts.scheme == "https" else 80
    return ServerAddress(parts.scheme, parts.hostname, port or default, parts.path.rstrip("/"), tokens[0])


def lost(url: str, error: BaseException) -> errors.ServerUnavailableError:
    """That a server cannot be reached, and why."""
    why = getattr(error, "strerror", None) or str(error) or type(error).__name__
    return errors.ServerUnavailableError(f"no server can be reached at {url}: {why}")


def stranger(url: str) -> errors.ServerUnavailableError:
    """That somebody else answers."""
    return errors.ServerUnavailableError(f"what answers at {url} is no callslip server")


# Problems


class _Problem(msgspec.Struct):
    type: str = ""
    detail: str = ""
    title: str = ""
    field: str = ""
    limit: int | None = None
    low: int = 0
    current: Any = None


def _refused(said: _Problem) -> errors.CallslipError:
    """The server's words begin with the field and end with the limit, as ours do."""
    told = said.detail.removeprefix(f"{said.field}: ").removesuffix(f" (limit {said.limit})")
    return errors.InvalidInputError(said.field or "request", told, said.limit)


class _Gone(errors.CursorExpiredError):
    """In the server's words: it knows the cursor."""

    def __init__(self, said: _Problem) -> None:
        super().__init__(0, said.low)
        self.args = (said.detail,)


class _QueueFull(errors.QueueFullError):
    """In the server's words: it knows the client."""

    def __init__(self, said: _Problem) -> None:
        super().__init__("", said.limit or 0)
        self.args = (said.detail,)


_KINDS: dict[str, Callable[[_Problem], errors.CallslipError]] = {
    "unknown": lambda said: errors.AuthenticationError(
        f"{said.detail}; give one with --token, token= or CALLSLIP_TOKEN"
    ),
    "forbidden": lambda said: errors.CallslipError(said.detail),
    "ambiguous": lambda said: errors.AmbiguousIdError(said.detail, said.current),
    "conflict": lambda said: errors.ConflictError(said.detail, said.current),
    "stale-fence": lambda said: errors.StaleClaimError(said.detail, said.current),
    "queue_full": _QueueFull,
    "illegal": lambda said: errors.InvalidTransitionError(said.detail),
    "not-found": lambda said: errors.NotFoundError(said.detail),
    "gone": _Gone,
    "refused": _refused,
    "too-large": lambda said: errors.InvalidInputError("request", said.detail, said.limit),
    "read-only": lambda said: errors.ReadOnlyStoreError(said.detail),
    "full": lambda said: errors.DiskFullError(said.detail),
    "busy": lambda said: errors.ServerUnavailableError(said.detail),
}


def error_from_problem(url: str, status: int, body: bytes) -> errors.CallslipError:
    """The exception that a problem document stands for."""
    try:
        said = msgspec.json.decode(body, type=_Problem)
    except (msgspec.DecodeError, msgspec.ValidationError):
        return stranger(url)
    prefix, _, kind = said.type.rpartition(":")
    if prefix != "urn:callslip":
        return stranger(url)
    if kind in _KINDS:
        return _KINDS[kind](said)
    return errors.StoreError(said.detail or f"the server failed ({status})")
