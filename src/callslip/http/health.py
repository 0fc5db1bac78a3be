"""Health and metrics of the server."""

from __future__ import annotations

from starlette.responses import Response

from callslip._version import __version__
from callslip.api.status import can_read, count_open
from callslip.errors import NotFoundError, PermissionDeniedError
from callslip.http import schemas
from callslip.http.metrics import MEDIA_TYPE, Family, format_metrics
from callslip.http.request import RequestContext, Route, json_response
from callslip.model.records import SessionRecord
from callslip.rules.lifecycle import OPEN_STATES

ALL_SESSIONS = SessionRecord(name="", owner="*")
"""Placeholder session for authorizing access to all sessions."""


async def healthz(context: RequestContext) -> Response:
    """Return whether the database can be read. It needs no token, so it returns nothing else."""
    is_ok = await can_read(context.ledger.log)
    health = schemas.Health(status="ok" if is_ok else "unavailable", version=__version__)
    return json_response(health, 200 if is_ok else 503)


async def metrics(context: RequestContext) -> Response:
    """Return metrics in the text format of Prometheus. Numbers only: no names, no ids."""
    try:
        await context.admit(ALL_SESSIONS)
    except NotFoundError:  # The counts would reveal what happens in the sessions of others.
        raise PermissionDeniedError("metrics are only for callers who may read every session") from None
    server = context.server
    counts = server.metrics
    opened = await count_open(context.ledger.log)
    requests = [
        ({"route": route, "method": method, "status": str(status)}, count)
        for (route, method, status), count in sorted(counts.requests.items())
    ]
    calls = [({"state": state}, opened.calls.get(state, 0)) for state in sorted(OPEN_STATES)]
    text = format_metrics(
        (
            Family("requests_total", "counter", "Requests that were answered.", requests),
            Family("events_appended_total", "counter", "Events written by this process.", [({}, counts.appended)]),
            Family("readers", "gauge", "Open streams.", [({}, server.hub.readers)]),
            Family("reader_cuts_total", "counter", "Readers disconnected for being slow.", [({}, counts.cuts)]),
            Family("open_calls", "gauge", "Calls that have not ended.", calls),
            Family("pending_approvals", "gauge", "Approvals that are pending.", [({}, opened.approvals)]),
        )
    )
    return Response(text, 200, {"content-type": MEDIA_TYPE})


ROUTES = (
    Route("GET", "/healthz", healthz, None, answers={200: schemas.Health, 503: schemas.Health}),
    Route("GET", "/metrics", metrics, answers={200: MEDIA_TYPE}),
)
