"""Calls and sessions as MCP resources: JSON to attach to a conversation, such as `callslip://calls/{id}`."""

from __future__ import annotations

import re
from urllib.parse import quote, unquote

from mcp_types import (
    ListResourcesResult,
    PaginatedRequestParams,
    ReadResourceRequestParams,
    ReadResourceResult,
    Resource,
    ResourceTemplate,
    TextResourceContents,
)

from callslip.api.find import find_call, list_calls
from callslip.errors import NotFoundError
from callslip.http.request import RequestContext
from callslip.mcp.call_tools import call_detail
from callslip.mcp.results import Json, plain_json
from callslip.model import codec
from callslip.model.records import CallRecord
from callslip.model.views import call_view, session_view

JSON = "application/json"
PAGE_ROWS = 50
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


async def list_resources(context: RequestContext, params: PaginatedRequestParams | None) -> ListResourcesResult:
    """List the calls that the client may read, newest first."""
    await context.admit(None, "read")
    cursor = (params.cursor if params else None) or ""
    page = await list_calls(context.ledger.log, limit=PAGE_ROWS, cursor=cursor, access=context.access)
    return ListResourcesResult(
        resources=[_call_resource(record) for record in page.items], next_cursor=page.cursor or None
    )


def _call_resource(record: CallRecord) -> Resource:
    return Resource(
        name=record.id,
        title=record.title or record.tool or record.id,
        uri=f"callslip://calls/{record.id}",
        description=f"{record.tool or 'a call'} in session {record.session}: {record.state}",
        mime_type=JSON,
    )


async def read_resource(context: RequestContext, params: ReadResourceRequestParams) -> ReadResourceResult:
    """Return a call or a session as JSON."""
    match = URI.fullmatch(params.uri)
    if match is None:
        raise NotFoundError(f"no resource {params.uri!r}")
    name = unquote(match[2])
    if match[1] == "calls":
        record = await find_call(context.ledger.log, name, access=context.access)
        value = await call_detail(context.ledger, record)
    else:
        value = await _read_session(context, name)
    text = codec.encode(value).decode()
    return ReadResourceResult(contents=[TextResourceContents(uri=params.uri, mime_type=JSON, text=text)])


async def _read_session(context: RequestContext, name: str) -> Json:
    record = await context.session(name, "read")
    page = await list_calls(context.ledger.log, session=name, limit=PAGE_ROWS, access=context.access)
    calls = [
        {**plain_json(call_view(call)), "uri": f"callslip://calls/{quote(call.id, safe='')}"} for call in page.items
    ]
    return {**plain_json(session_view(record)), "newest": calls, "cursor": page.cursor}
