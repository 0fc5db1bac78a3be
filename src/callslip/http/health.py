"""How the server does: one word for whatever restarts it, and numbers for whoever watches it."""

from __future__ import annotations

from starlette.responses import Response

from callslip._version import __version__
from callslip.errors import NotFoundError, StoreError
from callslip.http import schemas
from callslip.http.access import Forbidden
from callslip.http.metrics import MEDIA, Family, written
from callslip.http.request import RequestContext, Route, answer
from callslip.model.records import SessionRecord
from callslip.rules.lifecycle import OPEN_STATES

ALL = 2**31
EVERYBODYS = SessionRecord(name="", owner="*")
"""What stands for all sessions at once: it has no name, and no single person is its owner."""


async def healthz(visit: RequestContext) -> Response:
    """Whether the store can be read. Anybody may ask, so it says no more than that."""
    try:
        await visit.ledger.log.store.sessions(limit=1)
    except StoreError:
        return answer(schemas.Health(status="unavailable", version=__version__), 503)
    return answer(schemas.Health(status="ok", version=__version__))


async def metrics(visit: RequestContext) -> Response:
    """What the server has counted, and what stands open in its ledger. Numbers only: no names, no ids."""
    await _admitted(visit)
    store, server = visit.ledger.log.store, visit.server
    counts = server.metrics
    calls = await store.open_states()
    pending = await store.approvals(state="pending", limit=ALL)
    requests = [
        ({"route": route, "method": method, "status": str(status)}, count)
        for (route, method, status), count in sorted(counts.requests.items())
    ]
    told = written(
        (
            Family("requests_total", "counter", "Requests that were answered.", requests),
            Family("events_appended_total", "counter", "Events that this process wrote.", [({}, counts.appended)]),
            Family("readers", "gauge", "Streams that are being read.", [({}, server.hub.readers)]),
            Family("reader_cuts_total", "counter", "Readers cut off for being too slow.", [({}, counts.cuts)]),
            Family(
                "open_calls", "gauge", "Calls not ended.", [({"state": state}, calls.get(state, 0)) for state in _OPEN]
            ),
            Family("pending_approvals", "gauge", "Requests that wait for an answer.", [({}, len(pending))]),
        )
    )
    return Response(told, 200, {"content-type": MEDIA})


async def _admitted(visit: RequestContext) -> None:
    """The numbers are of all sessions: whoever may read only some would learn from them what the others do."""
    try:
        await visit.admit(EVERYBODYS)
    except NotFoundError:
        raise Forbidden("these numbers are for who may read every session") from None


_OPEN = sorted(OPEN_STATES)

ROUTES = (
    Route(
        method="GET",
        path="/healthz",
        endpoint=healthz,
        verb=None,
        about="Whether the server can read its store.",
        answers={200: schemas.Health, 503: schemas.Health},
    ),
    Route(
        method="GET",
        path="/metrics",
        endpoint=metrics,
        about="Counts, as Prometheus reads them.",
        answers={200: MEDIA},
        problems=(401, 403),
    ),
)
