"""Approvals over HTTP: list them, read one, answer one. The first answer counts."""

from __future__ import annotations

from typing import Annotated, cast

import msgspec
from msgspec import UNSET, Meta
from starlette.responses import Response

from callslip.api.approvals import approve, deny
from callslip.api.find import find_approval, list_approvals
from callslip.errors import InvalidInputError
from callslip.http import schemas
from callslip.http.calls import NoQuery
from callslip.http.request import RequestAccess, RequestContext, Route, answer
from callslip.http.sessions import limit_of
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
    """List the approvals of sessions that the caller may read, oldest first."""
    await visit.admit()
    query = visit.query(ApprovalsQuery)
    if query.state not in ("", *STATES):
        raise InvalidInputError("state", f"unknown state {query.state!r}; known states: {', '.join(STATES)}")
    if query.session:
        await visit.session(query.session)
    records = await list_approvals(
        visit.ledger.log,
        session=query.session,
        state=query.state,
        limit=limit_of(visit, query.limit),
        access=RequestAccess(visit),
    )
    return answer(schemas.Approvals(approvals=[schemas.approval_view(record) for record in records]))


async def approval(visit: RequestContext) -> Response:
    """Return one approval, and its answer."""
    record = await find_approval(visit.ledger.log, visit.request.path_params["approval"], access=RequestAccess(visit))
    visit.query(NoQuery)
    return answer(schemas.approval_view(record))


_ANSWER = cast("type[schemas.Answer]", schemas.Answer)


async def answer_one(visit: RequestContext) -> Response:
    """Answer a request for approval, in the name of the caller."""
    await visit.known()
    visit.query(NoQuery)
    body = await visit.body(_ANSWER)
    log, params, access = visit.ledger.log, visit.request.path_params, RequestAccess(visit)
    approval, session = params["approval"], params.get("session", "")
    if isinstance(body, schemas.Deny):
        record = await deny(log, approval, option=body.option, reason=body.reason, session=session, access=access)
    else:
        input = body.input if isinstance(body, schemas.Edit) else UNSET
        record = await approve(
            log, approval, option=body.option, input=input, reason=body.reason, session=session, access=access
        )
    return answer(schemas.approval_view(record))


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
