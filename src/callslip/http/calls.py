"""Calls over HTTP: list them, read one by any of its ids, cancel one."""

from __future__ import annotations

from typing import Annotated, Literal, cast

import msgspec
from msgspec import Meta
from starlette.responses import Response

from callslip.api.cancel import cancel_call
from callslip.api.find import CALL_STATES, check_states, find_call, find_command, list_calls
from callslip.commands import Command
from callslip.errors import (
    CommandNotFoundError,
    CursorExpiredError,
    NotFoundError,
    WaitTimeoutError,
)
from callslip.http import schemas
from callslip.http.request import RequestContext, Route, json_response
from callslip.http.sessions import Cursor, Limit, check_limit, check_wait
from callslip.ledger.call_entry import load_call_entry
from callslip.model import codec
from callslip.model.records import CallRecord
from callslip.rules.lifecycle import TERMINAL_STATES

_STATE = f"({'|'.join(CALL_STATES)})"
SOURCE = "http"

Part = Annotated[str, Meta(max_length=200, pattern=r"^[^\x00]*$")]


# The list


class CallsQuery(msgspec.Struct, kw_only=True):
    """Filters for calls."""

    session: Annotated[str, Meta(description="Calls of this session only.")] = ""
    status: Annotated[
        str,
        Meta(
            description="States, separated by commas.",
            extra_json_schema={"pattern": f"^$|^{_STATE}(,{_STATE})*$"},
        ),
    ] = ""
    tool: Annotated[str, Meta(description="The name of the tool.")] = ""
    q: Annotated[Part, Meta(description="Text in the title, the tool's name or an id, ignoring case.")] = ""
    limit: Limit | None = None
    cursor: Cursor = ""


async def calls(context: RequestContext) -> Response:
    """List the calls of sessions that the caller may read, newest first."""
    await context.admit()
    query = context.query(CallsQuery)
    if query.session:
        await context.session(query.session)
    states = query.status.split(",") if query.status else []
    check_states(states, CALL_STATES, "status")
    page = await list_calls(
        context.ledger.log,
        session=query.session,
        states=states,
        tool=query.tool,
        query=query.q,
        limit=check_limit(context, query.limit),
        cursor=query.cursor,
        access=context.access,
    )
    return json_response(schemas.Calls(calls=[schemas.call_view(record) for record in page.items], cursor=page.cursor))


# One call


class CallQuery(msgspec.Struct, kw_only=True):
    """Which call, and how long to wait for its end."""

    session: Annotated[str, Meta(description="Search only this session for the id.")] = ""
    wait: Annotated[float, Meta(ge=0, description="Seconds to wait for the end of the call.")] = 0
    format: Annotated[
        Literal["entry", "command"], Meta(description="`command`: the state and the result of a command.")
    ] = "entry"


async def call(context: RequestContext) -> Response:
    """Return a call by its id, a prefix of it, or an id of its producer; at once or when it has ended."""
    query = context.query(CallQuery)
    check_wait(context, query.wait)
    id, access, is_command = context.path_params["call"], context.access, query.format == "command"
    find = find_command if is_command else find_call
    record = await find(context.ledger.log, id, session=query.session, access=access)
    try:
        record = await wait_ended(context, record, query.wait)
        if query.wait:  # The rights may have ended meanwhile.
            await context.session(record.session)
    except NotFoundError:
        if is_command:
            raise CommandNotFoundError(id) from None
        raise
    response = json_response(await (context.server.commands.view(record) if is_command else _detail(context, record)))
    etag = f'"{codec.digest(bytes(response.body))[:24]}"'
    headers = {"etag": etag, "cache-control": "private, no-cache"}
    if context.has_version(etag):
        return Response(None, 304, headers)
    response.headers.update(headers)
    return response


async def wait_ended(context: RequestContext, record: CallRecord, wait: float) -> CallRecord:
    """Return the call when it has ended, or as it is after `wait` seconds."""
    if not wait or record.state in TERMINAL_STATES:
        return record
    try:
        async with context.while_admitted(record.session):
            return await context.ledger.wait(record.id, wait)
    except WaitTimeoutError:
        return await find_call(context.ledger.log, record.id)
    except CursorExpiredError:
        raise NotFoundError(f"call {record.id} was deleted with its session") from None


async def _detail(context: RequestContext, record: CallRecord) -> schemas.CallDetail:
    return schemas.to_call_detail(record, await load_call_entry(context.ledger.log, record))


# Cancelling

_OPTIONAL_CANCEL = cast("type[schemas.Cancel | None]", schemas.Cancel | None)


async def cancel(context: RequestContext) -> Response:
    """Cancel a call. One that was cancelled already stays so; one that has ended otherwise is a conflict.

    Without the right to read, the response has no content of the call.
    """
    await context.require_authenticated()
    session = context.query(CancelQuery).session
    body = await context.body(_OPTIONAL_CANCEL) or schemas.Cancel()
    record = await cancel_call(
        context.ledger.log,
        context.path_params["call"],
        reason=body.reason,
        session=session,
        source=SOURCE,
        access=context.access,
    )
    if await context.access.may(record.session, "read"):
        return json_response(await _detail(context, record))
    return json_response(schemas.to_call_receipt(record))


class CancelQuery(msgspec.Struct, kw_only=True):
    """Which call."""

    session: Annotated[str, Meta(description="Search only this session for the id.")] = ""


ROUTES = (
    Route("GET", "/v1/calls", calls, query=CallsQuery, answers={200: schemas.Calls}, problems=(404,)),
    Route(
        "GET",
        "/v1/calls/{call}",
        call,
        query=CallQuery,
        headers=("if-none-match",),
        answers={200: (schemas.CallDetail, Command), 304: None},
        problems=(409,),
    ),
    Route(
        "POST",
        "/v1/calls/{call}/cancel",
        cancel,
        "write",
        CancelQuery,
        body=schemas.Cancel | None,
        answers={200: schemas.CallDetail},
    ),
)
