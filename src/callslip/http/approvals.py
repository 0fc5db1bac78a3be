"""Requests for approval over HTTP: which there are, and answering one. The first answer counts (S2.7, S4.6)."""

from __future__ import annotations

from typing import Annotated, cast

import msgspec
from msgspec import UNSET, Meta
from starlette.responses import Response

from callslip.api import approvals as answering
from callslip.errors import InvalidInputError, NotFoundError
from callslip.http import schemas
from callslip.http.access import Verb
from callslip.http.calls import Known, NoQuery, none_such
from callslip.http.request import RequestContext, Route, answer
from callslip.http.sessions import limit_of
from callslip.model.records import ApprovalRecord
from callslip.rules.lifecycle import ANSWERED

STATES = ("pending", *ANSWERED.values(), "moot", "superseded")


class ApprovalsQuery(msgspec.Struct, kw_only=True):
    """Which requests."""

    state: Annotated[
        str,
        Meta(description="How they stand; empty for all of them.", extra_json_schema={"enum": ["", *STATES]}),
    ] = "pending"
    session: Annotated[str, Meta(description="Requests of this session only.")] = ""
    limit: Annotated[int, Meta(ge=1, description="How many at most.")] | None = None


async def approvals(visit: RequestContext) -> Response:
    """Requests for approval, oldest first: those of sessions that whoever asks may read."""
    await visit.admit()
    query = visit.query(ApprovalsQuery)
    if query.state not in ("", *STATES):
        raise InvalidInputError("state", f"{query.state!r} is no state; these are: {', '.join(STATES)}")
    if query.session:
        await visit.session(query.session)
    rows = await _first(visit, query, limit_of(visit, query.limit))
    return answer(schemas.Approvals(approvals=[schemas.approval_view(row) for row in rows]))


async def _first(visit: RequestContext, query: ApprovalsQuery, limit: int) -> list[ApprovalRecord]:
    """So many that they may see: twice as many are looked at until there are enough, or no more."""
    known, asked = Known(visit), limit
    while True:
        rows = await visit.ledger.store.approvals(session=query.session, state=query.state, limit=asked)
        found = [row for row in rows if await known(row.session)]
        if len(found) >= limit or len(rows) < asked:
            return found[:limit]
        asked *= 2


async def approval(visit: RequestContext) -> Response:
    """One request for approval, and its answer."""
    row = await _find(visit, "read")
    visit.query(NoQuery)
    return answer(schemas.approval_view(row))


async def _find(visit: RequestContext, verb: Verb) -> ApprovalRecord:
    """The request that is named. One of another session than the named one, or of a hidden one, is not there."""
    given = visit.request.path_params
    row = await visit.ledger.store.approval(given["approval"])
    in_place = row is not None and given.get("session", row.session) == row.session
    if row is not None and in_place and await Known(visit, verb)(row.session):
        return row
    await none_such(visit, f"no approval {given['approval']!r}")


_ANSWER = cast("type[schemas.Answer]", schemas.Answer)


async def answer_one(visit: RequestContext) -> Response:
    """Answer a request, in the name of whoever asks."""
    row = await _find(visit, "approve")
    who = await visit.admit(await visit.session(row.session))
    visit.query(NoQuery)
    said = await visit.body(_ANSWER)
    try:
        done = await _answered(visit, row, said, who.name)
    except NotFoundError as error:
        if not said.option:
            raise
        raise InvalidInputError("option", str(error)) from None
    return answer(schemas.approval_view(done))


async def _answered(visit: RequestContext, row: ApprovalRecord, said: schemas.Answer, by: str) -> ApprovalRecord:
    ledger = visit.ledger
    if isinstance(said, schemas.Deny):
        reason = said.reason or f"denied by {by}"
        return await answering.deny(ledger, row.id, by=by, option=said.option, reason=reason)
    edited = said.input if isinstance(said, schemas.Edit) else UNSET
    return await answering.approve(ledger, row.id, by=by, option=said.option, input=edited, reason=said.reason)


ROUTES = (
    Route(
        method="GET",
        path="/v1/approvals",
        endpoint=approvals,
        about="Requests for approval, oldest first.",
        query=ApprovalsQuery,
        answers={200: schemas.Approvals},
        problems=(400, 401, 403, 404),
    ),
    Route(
        method="GET",
        path="/v1/approvals/{approval}",
        endpoint=approval,
        about="A request for approval, and its answer.",
        query=NoQuery,
        answers={200: schemas.ApprovalView},
        problems=(400, 401, 403, 404),
    ),
    *(
        Route(
            method="POST",
            path=path,
            endpoint=answer_one,
            verb="approve",
            about="Answer a request for approval. The first answer counts; a second one is told who was first.",
            query=NoQuery,
            body=schemas.Answer,
            answers={200: schemas.ApprovalView},
            problems=(400, 401, 403, 404, 409, 413, 415, 503, 507),
        )
        for path in ("/v1/approvals/{approval}", "/v1/sessions/{session}/approvals/{approval}")
    ),
)
