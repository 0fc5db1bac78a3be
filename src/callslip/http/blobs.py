"""Values that were too large to stand in their events: to whoever may read a session that names them, never as a page.

What a tool printed is nothing that a browser may run: it is handed out to be saved, and as text or JSON at most.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Mapping

import msgspec
from starlette.responses import Response, StreamingResponse

from callslip.errors import NotFoundError
from callslip.http.calls import NoQuery
from callslip.http.problems import Problem
from callslip.http.request import RequestAccess, RequestContext, Route
from callslip.store.protocol import Store

HASH = re.compile(r"[0-9a-f]{64}")
RANGE = re.compile(r"bytes=([0-9]{0,18})-([0-9]{0,18})")
OTHER = "application/octet-stream"
INLINE_MEDIA_TYPES = {
    "text/plain": ("text/plain; charset=utf-8", "txt"),
    "application/json": ("application/json", "json"),
}

ANY = ", ".join([*INLINE_MEDIA_TYPES, OTHER])


async def blob(visit: RequestContext) -> Response:
    """A large value, whole or a range of its bytes."""
    identity = visit.request.path_params["hash"]
    size, media = await _facts(visit, identity)
    visit.query(NoQuery)
    headers = _headers(identity, media)
    asked = visit.request.headers
    if headers["etag"] in asked.get("if-none-match", ""):
        return Response(None, 304, headers)
    start, end = 0, size
    if asked.get("if-range", headers["etag"]) == headers["etag"]:
        found = range_of(asked.get("range", ""), size)
        if found is None:
            return _outside(size)
        start, end = found
    return _part(visit, identity, (start, end, size), headers)


async def _facts(visit: RequestContext, identity: str) -> tuple[int, str]:
    """Its size and type, if it is named in a session that they may read."""
    store, access = visit.ledger.log.store, RequestAccess(visit)
    if HASH.fullmatch(identity):
        for session in await store.sessions_with_blob(identity):
            found = await store.blob_size(identity) if await access.may(session, "read") else None
            if found is not None:
                return found
    await visit.known()
    raise NotFoundError(f"no blob {identity!r}")


def _headers(identity: str, media: str) -> dict[str, str]:
    kind, ending = INLINE_MEDIA_TYPES.get(media.partition(";")[0].strip(), (OTHER, "bin"))
    return {
        "content-type": kind,
        "content-disposition": f'attachment; filename="{identity[:12]}.{ending}"',
        "x-content-type-options": "nosniff",
        "cache-control": "private, max-age=31536000, immutable",
        "etag": f'"{identity}"',
        "accept-ranges": "bytes",
    }


def range_of(asked: str, size: int) -> tuple[int, int] | None:
    """From where to where; all of it if no single range is asked for, and None for one that lies outside."""
    found = RANGE.fullmatch(asked.strip())
    first, last = found.groups() if found else ("", "")
    if not first and not last:
        return 0, size
    if not first:
        start, end = max(0, size - int(last)), size
    else:
        start, end = int(first), min(size, int(last) + 1) if last else size
        if last and int(last) < int(first):
            return 0, size  # It says nothing.
    return (start, end) if start < end else None


def _outside(size: int) -> Response:
    said = Problem(type="urn:callslip:range", title="It is not that long", status=416, detail=f"it has {size} bytes")
    return Response(
        msgspec.json.encode(said), 416, {"content-range": f"bytes */{size}"}, media_type="application/problem+json"
    )


def _part(visit: RequestContext, identity: str, place: tuple[int, int, int], headers: Mapping[str, str]) -> Response:
    start, end, size = place
    given = {**headers, "content-length": str(end - start)}
    if end - start < size:
        given["content-range"] = f"bytes {start}-{end - 1}/{size}"
    status = 206 if end - start < size else 200
    if visit.request.method == "HEAD":
        return Response(None, status, given)
    return StreamingResponse(pieces(visit.ledger.log.store, identity, start, end), status, given)


async def pieces(store: Store, identity: str, start: int, end: int) -> AsyncIterator[bytes]:
    """The bytes from one place to another. All pieces but the last have the length of the first."""
    length = len(await store.blob_piece(identity, 0)) or 1
    while start < end:
        piece = await store.blob_piece(identity, start // length)
        part = piece[start % length :][: end - start]
        if not part:
            return  # Retention was faster, and the reader sees that there should be more.
        yield part
        start += len(part)


ROUTES = (
    Route(
        method="GET",
        path="/v1/blobs/{hash}",
        endpoint=blob,
        about="A value that was too large for its event, by its hash.",
        query=NoQuery,
        headers={
            "range": "Which bytes of it: `bytes=0-1023`.",
            "if-range": "The ETag of what you have a part of.",
            "if-none-match": "The ETag of what you have.",
        },
        answers={200: ANY, 206: ANY, 304: None},
        problems=(400, 401, 403, 404, 416),
    ),
)
