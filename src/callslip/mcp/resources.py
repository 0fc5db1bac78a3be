"""Calls and sessions as MCP resources: JSON to be attached to a conversation, `callslip://calls/{id}` and its like."""

from __future__ import annotations

import re
from urllib.parse import quote, unquote

from mcp_types import (
    ListResourcesResult,
    ListResourceTemplatesResult,
    PaginatedRequestParams,
    ReadResourceRequestParams,
    ReadResourceResult,
    Resource,
    ResourceTemplate,
    TextResourceContents,
)

from callslip.api.find import find_call, list_calls
from callslip.errors import NotFoundError
from callslip.http.request import RequestAccess, RequestContext
from callslip.mcp.call_tools import shown
from callslip.mcp.results import Json, plain_json
from callslip.model import codec
from callslip.model.records import CallRecord
from callslip.model.views import call_view, session_view

JSON = "application/json"
RECENT = 50
URI = re.compile(r"callslip://(calls|sessions)/([^/?#]+)")
TEMPLATES = (
    ResourceTemplate(
        name="call",
        title="A tool call",
        uri_template="callslip://calls/{id}",
        description="A recorded tool call by its id (exec_...): state, arguments, progress, output.",
        mime_type=JSON,
    ),
    ResourceTemplate(
        name="session",
        title="A session",
        uri_template="callslip://sessions/{name}",
        description="A recorded session by its name, with its newest tool calls.",
        mime_type=JSON,
    ),
)


async def listed(visit: RequestContext, params: PaginatedRequestParams | None) -> ListResourcesResult:
    """The calls that they may read, newest first."""
    await visit.admit(None, "read")
    cursor = (params.cursor if params else None) or ""
    page = await list_calls(visit.ledger.log, limit=RECENT, cursor=cursor, access=RequestAccess(visit))
    return ListResourcesResult(resources=[_resource(row) for row in page.items], next_cursor=page.cursor or None)


def _resource(row: CallRecord) -> Resource:
    return Resource(
        name=row.id,
        title=row.title or row.tool or row.id,
        uri=f"callslip://calls/{row.id}",
        description=f"{row.tool or 'a call'} in session {row.session}: {row.state}",
        mime_type=JSON,
    )


async def templates() -> ListResourceTemplatesResult:
    return ListResourceTemplatesResult(resource_templates=list(TEMPLATES))


async def read(visit: RequestContext, params: ReadResourceRequestParams) -> ReadResourceResult:
    """One of them as it stands."""
    known = URI.fullmatch(params.uri)
    if known is None:
        raise NotFoundError(f"no resource {params.uri!r}")
    name = unquote(known[2])
    made = await (_call(visit, name) if known[1] == "calls" else _session(visit, name))
    text = codec.encode(made).decode()
    return ReadResourceResult(contents=[TextResourceContents(uri=params.uri, mime_type=JSON, text=text)])


async def _call(visit: RequestContext, given: str) -> Json:
    return await shown(visit, await find_call(visit.ledger.log, given, access=RequestAccess(visit)))


async def _session(visit: RequestContext, name: str) -> Json:
    row = await visit.session(name, "read")
    page = await list_calls(visit.ledger.log, session=name, limit=RECENT, access=RequestAccess(visit))
    calls = [{**plain_json(call_view(one)), "uri": f"callslip://calls/{quote(one.id, safe='')}"} for one in page.items]
    return {**plain_json(session_view(row)), "newest": calls, "cursor": page.cursor}
