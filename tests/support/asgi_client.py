"""Send requests to an ASGI app in this process."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple
from urllib.parse import unquote

from starlette.datastructures import Headers

HeaderValues = Mapping[str, str] | Sequence[tuple[str, str]]


class AsgiResponse(NamedTuple):
    """A response, which unpacks as `status, headers, body`."""

    status: int
    headers: Headers
    body: bytes


def make_scope(
    path: str,
    headers: HeaderValues | None = None,
    method: str = "GET",
    *,
    scheme: str = "http",
    root_path: str = "",
    host: str | None = "localhost:7890",
) -> dict[str, Any]:
    """Return the scope of a request. `host=None` omits the Host header; a Host in `headers` replaces `host`."""
    values = list(headers.items() if isinstance(headers, Mapping) else headers or [])
    if host is not None and not any(name.lower() == "host" for name, _ in values):
        values.insert(0, ("host", host))
    raw_path, _, query = path.partition("?")
    return {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.4"},
        "http_version": "1.1",
        "method": method,
        "scheme": scheme,
        "path": unquote(raw_path),
        "raw_path": raw_path.encode(),
        "query_string": query.encode(),
        "root_path": root_path,
        "headers": [(name.lower().encode("latin-1"), value.encode("latin-1")) for name, value in values],
        "client": ("127.0.0.1", 50000),
        "server": ("127.0.0.1", 7890),
        "state": {},
    }


async def send_scope(app: Any, scope: dict[str, Any], body: bytes = b"") -> AsgiResponse:
    """Return the response to a request. The body is sent in one piece; then the client disconnects."""
    messages: list[dict[str, Any]] = [{"type": "http.request", "body": body, "more_body": False}]
    sent: list[dict[str, Any]] = []

    async def receive() -> dict[str, Any]:
        return messages.pop(0) if messages else {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        sent.append(dict(message))

    await app(scope, receive, send)
    (start,) = [message for message in sent if message["type"] == "http.response.start"]
    pieces = [message.get("body", b"") for message in sent if message["type"] == "http.response.body"]
    return AsgiResponse(start["status"], Headers(raw=list(start.get("headers", []))), b"".join(pieces))


async def get(
    app: Any, path: str, headers: HeaderValues | None = None, method: str = "GET", body: bytes = b"", **more: Any
) -> AsgiResponse:
    """Send a request; `more` are options of `make_scope`."""
    return await send_scope(app, make_scope(path, headers, method, **more), body)
