"""Calls over HTTP: list them, read one by any of its ids, cancel one."""

from __future__ import annotations

from typing import Annotated, Literal, cast

import msgspec
from msgspec import Meta
from starlette.responses import Response

from callslip.api.cancel import cancel_call
from callslip.api.find import find_call, find_command, list_calls
from callslip.commands import Command
from callslip.errors import CursorExpiredError, InvalidInputError, NotFoundError, WaitTimeoutError
from callslip.http import schemas
from callslip.http.request import RequestAccess, RequestContext, Route, answer
from callslip.http.sessions import limit_of, waited
from callslip.ledger.call_entry import load_call_entry
from callslip.model import codec
from callslip.model.records import CallRecord
from callslip.rules.lifecycle import OPEN_STATES, TERMINAL_STATES

STATES = (*sorted(OPEN_STATES), *sorted(TERMINAL_STATES))
_STATE = f"({'|'.join(STATES)})"
SOURCE = "http"

Part = Annotated[str, Meta(max_length=200, pattern=r"^[^\x00]*$")]


# The list


class CallsQuery(msgspec.Struct, kw_only=True):
    """Which calls."""

    session: Annotated[str, Meta(description="Calls of this session only.")] = ""
    status: Annotated[
        str,
        Meta(
            description="States, with commas between them.",
            extra_json_schema={"pattern": f"^$|^{_STATE}(,{_STATE})*$"},
        ),
    ] = ""
    tool: Annotated[str, Meta(description="The whole name of the tool.")] = ""
    q: Annotated[Part, Meta(description="A part of the title, of the tool's name or of an id, in any case.")] = ""
    limit: Annotated[int, Meta(ge=1, description="How many at most.")] | None = None
    cursor: Annotated[str, Meta(description="The cursor of the page before.")] = ""


async def calls(visit: RequestContext) -> Response:
    """List the calls of sessions that the caller may read, newest first."""
    await visit.admit()
    query = visit.query(CallsQuery)
    if query.session:
        await visit.session(query.session)
    states = query.status.split(",") if query.status else []
    for state in states:
        if state not in STATES:
            raise InvalidInputError("status", f"unknown state {state!r}; known states: {', '.join(STATES)}")
    page = await list_calls(
        visit.ledger.log,
        session=query.session,
        states=states,
        tool=query.tool,
        query=query.q,
        limit=limit_of(visit, query.limit),
        cursor=query.cursor,
        access=RequestAccess(visit),
    )
    return answer(schemas.Calls(calls=[schemas.call_view(record) for record in page.items], cursor=page.cursor))


# One call


class CallQuery(msgspec.Struct, kw_only=True):
    """Which call is meant, and how long to wait for its end."""

    session: Annotated[str, Meta(description="Look for the id in this session only.")] = ""
    wait: Annotated[float, Meta(ge=0, description="Answer when the call has ended, after so many seconds at most.")] = 0
    format: Annotated[
        Literal["entry", "command"], Meta(description="`command`: how a command stands and what came of it, no more.")
    ] = "entry"


async def call(visit: RequestContext) -> Response:
    """Return a call and its entry, at once or when it has ended."""
    query = visit.query(CallQuery)
    waited(visit, query.wait)
    find = find_command if query.format == "command" else find_call
    access = RequestAccess(visit)
    record = await find(visit.ledger.log, visit.request.path_params["call"], session=query.session, access=access)
    record = await wait_ended(visit, record, query.wait)
    is_command = query.format == "command"
    response = answer(await (visit.server.commands.view(record) if is_command else _detail(visit, record)))
    etag = f'"{codec.digest(bytes(response.body))[:24]}"'
    headers = {"etag": etag, "cache-control": "private, no-cache"}
    if etag in visit.request.headers.get("if-none-match", ""):
        return Response(None, 304, headers)
    response.headers.update(headers)
    return response


async def wait_ended(visit: RequestContext, record: CallRecord, wait: float) -> CallRecord:
    """Return the call when it has ended, or as it is after `wait` seconds."""
    if not wait or record.state in TERMINAL_STATES:
        return record
    try:
        return await visit.ledger.wait(record.id, wait)
    except WaitTimeoutError:
        return await find_call(visit.ledger.log, record.id)
    except CursorExpiredError:
        raise NotFoundError(f"call {record.id} was deleted with its session") from None


async def _detail(visit: RequestContext, record: CallRecord) -> schemas.CallDetail:
    return schemas.to_call_detail(record, await load_call_entry(visit.ledger.log, record))


# Cancelling

_OPTIONAL_CANCEL = cast("type[schemas.Cancel | None]", schemas.Cancel | None)


async def cancel(visit: RequestContext) -> Response:
    """Cancel a call. One that was cancelled already stays so; one that has ended otherwise is a conflict."""
    await visit.known()
    session = visit.query(CancelQuery).session
    body = await visit.body(_OPTIONAL_CANCEL) or schemas.Cancel()
    record = await cancel_call(
        visit.ledger.log,
        visit.request.path_params["call"],
        reason=body.reason,
        session=session,
        source=SOURCE,
        access=RequestAccess(visit),
    )
    return answer(await _detail(visit, record))


class NoQuery(msgspec.Struct, kw_only=True):
    """Takes no parameters."""


class CancelQuery(msgspec.Struct, kw_only=True):
    """Which call is meant."""

    session: Annotated[str, Meta(description="Look for the id in this session only.")] = ""


ROUTES = (
    Route(
        method="GET",
        path="/v1/calls",
        endpoint=calls,
        about="Calls, newest first.",
        query=CallsQuery,
        answers={200: schemas.Calls},
        problems=(400, 401, 403, 404),
    ),
    Route(
        method="GET",
        path="/v1/calls/{call}",
        endpoint=call,
        about="A call by its id, the beginning of it, or an id that a producer gave it; at once or when it has ended.",
        query=CallQuery,
        headers={"if-none-match": "The ETag of what you have: 304 if it is still right."},
        answers={200: (schemas.CallDetail, Command), 304: None},
        problems=(400, 401, 403, 404, 409),
    ),
    Route(
        method="POST",
        path="/v1/calls/{call}/cancel",
        endpoint=cancel,
        verb="write",
        about="Stop a call. Cancelled twice is cancelled once.",
        query=CancelQuery,
        body=schemas.Cancel | None,
        answers={200: schemas.CallDetail},
        problems=(400, 401, 403, 404, 409, 413, 415, 503, 507),
    ),
)
