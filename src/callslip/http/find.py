"""Find over HTTP: what an id names, a session, a call or an approval."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta
from starlette.responses import Response

from callslip.api.find import find
from callslip.http import schemas
from callslip.http.request import RequestContext, Route, json_response
from callslip.model.records import CallRecord, SessionRecord


class FindQuery(msgspec.Struct, kw_only=True):
    """An id as people write it."""

    id: Annotated[str, Meta(description="An id, a prefix that matches once, or @last.")]
    session: Annotated[str, Meta(description="Search only calls and approvals of this session.")] = ""


async def find_any(context: RequestContext) -> Response:
    """Find the session, call or approval that an id names. An id that matches several is a conflict."""
    query = context.query(FindQuery)
    record = await find(context.ledger.log, query.id, session=query.session, access=context.access)
    if isinstance(record, SessionRecord):
        return json_response(schemas.Match(session=schemas.session_view(record)))
    if isinstance(record, CallRecord):
        return json_response(schemas.Match(call=schemas.call_view(record)))
    return json_response(schemas.Match(approval=schemas.approval_view(record)))


ROUTES = (Route("GET", "/v1/find", find_any, query=FindQuery, answers={200: schemas.Match}, problems=(404, 409)),)
