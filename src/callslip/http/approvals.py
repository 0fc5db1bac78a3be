"""Approvals over HTTP: list them, read one, answer one. The first answer counts."""

from __future__ import annotations

from typing import Annotated, cast

import msgspec
from msgspec import UNSET, Meta
from starlette.responses import Response

from callslip.api.approvals import BulkAnswer, Offer, answer_several, approve, deny, read_offer
from callslip.api.find import ANSWERED, APPROVAL_STATES, find_approval, list_approvals
from callslip.errors import InvalidInputError
from callslip.http import schemas
from callslip.http.request import NoQuery, RequestContext, Route, json_response
from callslip.http.sessions import Limit, check_limit
from callslip.model.receipts import approval_receipt


class ApprovalsQuery(msgspec.Struct, kw_only=True):
    """Filters for approvals."""

    state: Annotated[
        str,
        Meta(
            description="The state; empty for all. `answered` is any but pending, with the newest request first.",
            extra_json_schema={"enum": ["", *APPROVAL_STATES, ANSWERED]},
        ),
    ] = "pending"
    session: Annotated[str, Meta(description="Only approvals of this session.")] = ""
    limit: Limit | None = None


async def approvals(context: RequestContext) -> Response:
    """List the approvals of sessions that the caller may read, oldest first unless the state is `answered`."""
    await context.admit()
    query = context.query(ApprovalsQuery)
    if query.session:
        await context.session(query.session)
    records = await list_approvals(
        context.ledger.log,
        session=query.session,
        state=query.state,
        limit=check_limit(context, query.limit),
        access=context.access,
    )
    return json_response(schemas.Approvals(approvals=[schemas.approval_view(record) for record in records]))


async def approval(context: RequestContext) -> Response:
    """Return an approval and its answer."""
    record = await find_approval(context.ledger.log, context.path_params["approval"], access=context.access)
    context.query(NoQuery)
    return json_response(schemas.approval_view(record))


async def offer(context: RequestContext) -> Response:
    """Return what a request asks, and which answers its agent can honour."""
    context.query(NoQuery)
    return json_response(await read_offer(context.ledger.log, context.path_params["approval"], access=context.access))


_ANSWER = cast("type[schemas.Answer]", schemas.Answer)


async def answer_one(context: RequestContext) -> Response:
    """Answer an approval. The first answer wins; a second one gets a conflict with the winner.

    Without the right to read, the response has neither the request nor the winner.
    """
    await context.require_authenticated()
    context.query(NoQuery)
    body = await context.body(_ANSWER)
    log, params, access = context.ledger.log, context.path_params, context.access
    approval, session = params["approval"], params.get("session", "")
    if body.by:
        pending = await find_approval(log, approval, session=session, access=access, verb="approve")
        if body.by != await access.require(pending.session, "approve"):
            raise InvalidInputError("by", "is set by the token")
    if isinstance(body, schemas.Deny):
        record = await deny(log, approval, option=body.option, reason=body.reason, session=session, access=access)
    else:
        input = body.input if isinstance(body, schemas.Edit) else UNSET
        record = await approve(
            log, approval, option=body.option, input=input, reason=body.reason, session=session, access=access
        )
    view = schemas.approval_view(record)
    return json_response(view if await access.may(record.session, "read") else approval_receipt(view))


async def answer_several_shown(context: RequestContext) -> Response:
    """Answer several requests, each only if it is still pending and as it was shown.

    `inputHash` is that of the approval when it was read. A request that has changed since is left out, and so is one
    that was answered. The answers are independent of each other.
    """
    await context.require_authenticated()
    context.query(NoQuery)
    answers = await context.body(list[BulkAnswer])
    results = await answer_several(context.ledger.log, answers, access=context.access)
    return json_response(schemas.BulkResults(results=results))


ROUTES = (
    Route(
        *("POST", "/v1/approvals/answers", answer_several_shown, "approve", NoQuery),
        body=list[BulkAnswer],
        answers={200: schemas.BulkResults},
        problems=(404,),
    ),
    Route("GET", "/v1/approvals", approvals, query=ApprovalsQuery, answers={200: schemas.Approvals}, problems=(404,)),
    Route("GET", "/v1/approvals/{approval}", approval, query=NoQuery, answers={200: schemas.ApprovalView}),
    Route("GET", "/v1/approvals/{approval}/offer", offer, query=NoQuery, answers={200: Offer}),
    *(
        Route("POST", path, answer_one, "approve", NoQuery, schemas.Answer, {200: schemas.ApprovalView})
        for path in ("/v1/approvals/{approval}", "/v1/sessions/{session}/approvals/{approval}")
    ),
)
