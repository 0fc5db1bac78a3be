"""Values that are too large for their events, as downloads.

A browser must not run what a tool printed, so a blob is an attachment, and text or JSON at most.
"""

from __future__ import annotations

import re

from starlette.responses import Response, StreamingResponse

from callslip.api.blobs import find_blob, read_blob
from callslip.http import problems
from callslip.http.request import NoQuery, RequestContext, Route

RANGE = re.compile(r"bytes=([0-9]{0,18})-([0-9]{0,18})")
BINARY = "application/octet-stream"
INLINE_MEDIA_TYPES = {
    "text/plain": ("text/plain; charset=utf-8", "txt"),
    "application/json": ("application/json", "json"),
}
MEDIA_TYPES = ", ".join([*INLINE_MEDIA_TYPES, BINARY])


async def blob(context: RequestContext) -> Response:
    """Return a value that is too large for its event, or a range of its bytes."""
    hash = context.path_params["hash"]
    size, media_type = await find_blob(context.ledger.log, hash, access=context.access)
    context.query(NoQuery)
    headers = _headers(hash, media_type)
    request_headers = context.request.headers
    if context.has_version(headers["etag"]):
        return Response(None, 304, headers)
    start, end = 0, size
    if request_headers.get("if-range", headers["etag"]) == headers["etag"]:
        bounds = parse_range(request_headers.get("range", ""), size)
        if bounds is None:
            detail = f"range: beyond the end; the value has {size} bytes"
            return problems.problem_response(416, "range", detail, {"content-range": f"bytes */{size}"})
        start, end = bounds
    status = 206 if end - start < size else 200
    headers["content-length"] = str(end - start)
    if status == 206:
        headers["content-range"] = f"bytes {start}-{end - 1}/{size}"
    if context.request.method == "HEAD":
        return Response(None, status, headers)
    return StreamingResponse(read_blob(context.ledger.log, hash, start, end), status, headers)


def _headers(hash: str, media_type: str) -> dict[str, str]:
    content_type, suffix = INLINE_MEDIA_TYPES.get(media_type.partition(";")[0].strip(), (BINARY, "bin"))
    return {
        "content-type": content_type,
        "content-disposition": f'attachment; filename="{hash[:12]}.{suffix}"',
        "x-content-type-options": "nosniff",
        "cache-control": "private, max-age=31536000, immutable",
        "etag": f'"{hash}"',
        "accept-ranges": "bytes",
    }


def parse_range(header: str, size: int) -> tuple[int, int] | None:
    """Return the first byte and the end of a range; everything without a single valid range, None if out of bounds."""
    match = RANGE.fullmatch(header.strip())
    first, last = match.groups() if match else ("", "")
    if not first and not last:
        return 0, size
    if not first:
        start, end = max(0, size - int(last)), size
    else:
        start, end = int(first), min(size, int(last) + 1) if last else size
        if last and int(last) < int(first):
            return 0, size  # Not a valid range: ignored, as RFC 9110 says.
    return (start, end) if start < end else None


ROUTES = (
    Route(
        "GET",
        "/v1/blobs/{hash}",
        blob,
        query=NoQuery,
        headers=("range", "if-range", "if-none-match"),
        answers={200: MEDIA_TYPES, 206: MEDIA_TYPES, 304: None},
        problems=(416,),
    ),
)
