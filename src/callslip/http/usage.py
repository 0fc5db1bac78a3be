"""Usage over HTTP: the tokens and costs that agents reported."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta
from starlette.responses import Response

from callslip.api.search import MAX_TIME_MS
from callslip.api.usage import GROUPS, MAX_OFFSET_MINUTES, UsageReport, add_up_usage
from callslip.http.request import RequestContext, Route, json_response

Time = Annotated[int, Meta(ge=0, le=MAX_TIME_MS, description="In ms since the epoch; 0 for no limit.")]


class UsageQuery(msgspec.Struct, kw_only=True):
    """What to add up. Turns and calls need a session."""

    by: Annotated[str, Meta(description="A group for each of these.", extra_json_schema={"enum": ["", *GROUPS]})] = ""
    session: Annotated[str, Meta(description="Only this session: its whole name.")] = ""
    project: Annotated[str, Meta(description="Only sessions in this folder.")] = ""
    agent: Annotated[str, Meta(description="Only sessions of this agent.")] = ""
    model: Annotated[str, Meta(description="Only responses of this model.")] = ""
    since: Time = 0
    until: Time = 0
    utc_offset_minutes: Annotated[
        int,
        Meta(ge=-MAX_OFFSET_MINUTES, le=MAX_OFFSET_MINUTES, description="How long before those of UTC days begin."),
    ] = msgspec.field(default=0, name="utcOffsetMinutes")


async def usage(context: RequestContext) -> Response:
    """Add up the tokens and costs that agents reported in the sessions that the caller may read."""
    await context.admit()
    query = context.query(UsageQuery)
    filters = {name: getattr(query, name) for name in query.__struct_fields__ if name != "by"}
    report = await add_up_usage(context.ledger.log, query.by, filters, access=context.access)  # pyright: ignore[reportArgumentType]
    return json_response(report)


ROUTES = (Route("GET", "/v1/usage", usage, query=UsageQuery, answers={200: UsageReport}, problems=()),)
