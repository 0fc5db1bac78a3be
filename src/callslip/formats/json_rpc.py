"""A JSON-RPC message as a decoder sees it: its kind, its sender and the request that it answers."""

from __future__ import annotations

from typing import Any, Literal

import msgspec
from msgspec import UNSET

Kind = Literal["request", "notification", "answer", "eof", "odd"]


class RpcMessage(msgspec.Struct, frozen=True, kw_only=True):
    """One message. An answer has the method, params and key of its request, "" if that is unknown.

    `body` is the message as it was recorded, with its row. `key` identifies a request, `at` is its time in ms.
    """

    body: Any
    kind: Kind = "odd"
    direction: str = ""
    at: int = 0
    method: str = ""
    params: dict[str, Any] = {}
    key: str = ""
    result: Any = UNSET
    error: Any = UNSET


def is_response(fields: dict[str, Any]) -> bool:
    """Return whether an object is the response to a request."""
    return "id" in fields and ("result" in fields or "error" in fields)
