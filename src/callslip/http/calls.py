"""Calls over HTTP: the list, one of them by any of its ids, and stopping one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Literal, NoReturn, cast

import msgspec
from msgspec import Meta
from starlette.responses import Response

from callslip.commands import Command
from callslip.errors import (
    AmbiguousIdError,
    CommandNotFoundError,
    ConflictError,
    CursorExpiredError,
    InvalidInputError,
    NotFoundError,
)
from callslip.http import schemas
from callslip.http.access import Forbidden, Verb
from callslip.http.request import RequestContext, Route, answer
from callslip.http.sessions import limit_of, waited
from callslip.ledger.call_entry import load_call_entry
from callslip.model import codec
from callslip.model.events import CallCancelled
from callslip.model.records import CallRecord
from callslip.rules.lifecycle import OPEN_STATES, TERMINAL_STATES

STATES = (*sorted(OPEN_STATES), *sorted(TERMINAL_STATES))
_STATE = f"({'|'.join(STATES)})"
SOURCE = "http"
BEGINS = "exec_"
CANDIDATES = 10
"""How many calls are named when an id fits several."""

AT_ONCE = 100
"""So many calls are looked at together, at the least: they may all be somebody else's."""

Part = Annotated[str, Meta(max_length=200, pattern=r"^[^\x00]*$")]


class Known:
    """Which sessions whoever asks may know of: what they may read, or do there what they came for. Each is asked once.

    What lies in other sessions is not there.
    """

    def __init__(self, visit: RequestContext, verb: Verb = "read") -> None:
        self._visit = visit
        self._verb: Verb = verb
        self._answers: dict[str, bool] = {}

    async def __call__(self, session: str) -> bool:
        if session not in self._answers:
            self._answers[session] = await self._visit.may_see(session) or await self._may(session)
        return self._answers[session]

    async def _may(self, session: str) -> bool:
        row = await self._visit.ledger.store.session(session) if self._verb != "read" else None
        if row is None:
            return False
        try:
            await self._visit.admit(row, self._verb)
        except (NotFoundError, Forbidden):
            return False
        return True


async def none_such(visit: RequestContext, said: str) -> NoReturn:
    """Nothing is there for them. Somebody who is nobody is told to say who they are, whether it is there or not."""
    await visit.known()
    raise NotFoundError(said)


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
    """Calls, newest first: those of sessions that whoever asks may read."""
    await visit.admit()
    query = visit.query(CallsQuery)
    if query.session:
        await visit.session(query.session)
    found, cursor = await page_of(visit, query, states_of(query.status), limit_of(visit, query.limit))
    return answer(schemas.Calls(calls=[schemas.call_view(row) for row in found], cursor=cursor))


def states_of(given: str) -> list[str]:
    """The states that a list is asked for."""
    states = given.split(",") if given else []
    for state in states:
        if state not in STATES:
            raise InvalidInputError("status", f"{state!r} is no state; these are: {', '.join(STATES)}")
    return states


async def _check_cursor(visit: RequestContext, known: Known, cursor: str) -> None:
    """A cursor is a call; one that they may not see was not given to them."""
    row = await visit.ledger.store.call(cursor) if cursor else None
    if cursor and (row is None or not await known(row.session)):
        raise InvalidInputError("cursor", "is none that this list gave, or retention removed its call")


async def page_of(
    visit: RequestContext, query: CallsQuery, states: Sequence[str], limit: int
) -> tuple[list[CallRecord], str]:
    """So many calls that they may see, however many lie in between. A cursor says that there is one more of these."""
    known, cursor = Known(visit), query.cursor
    await _check_cursor(visit, known, cursor)
    found: list[CallRecord] = []
    while True:
        page = await visit.ledger.store.calls(
            session=query.session,
            states=states,
            tool=query.tool,
            q=query.q,
            limit=max(limit + 1, AT_ONCE),
            cursor=cursor,
        )
        found += [row for row in page.items if await known(row.session)]
        if len(found) > limit:
            return found[:limit], found[limit - 1].id
        cursor = page.cursor
        if not cursor:
            return found, ""


# One call


class CallQuery(msgspec.Struct, kw_only=True):
    """Which call is meant, and how long to wait for its end."""

    session: Annotated[str, Meta(description="Look for the id in this session only.")] = ""
    wait: Annotated[float, Meta(ge=0, description="Answer when the call has ended, after so many seconds at most.")] = 0
    format: Annotated[
        Literal["entry", "command"], Meta(description="`command`: how a command stands and what came of it, no more.")
    ] = "entry"


async def call(visit: RequestContext) -> Response:
    """A call and its entry, at once or when it has ended."""
    query = visit.query(CallQuery)
    waited(visit, query.wait)
    row = await _asked_for(visit, visit.request.path_params["call"], query)
    shown = answer(await (visit.server.commands.shown(row) if query.format == "command" else _shown(visit, row)))
    etag = f'"{codec.digest(bytes(shown.body))[:24]}"'
    headers = {"etag": etag, "cache-control": "private, no-cache"}
    if etag in visit.request.headers.get("if-none-match", ""):
        return Response(None, 304, headers)
    shown.headers.update(headers)
    return shown


async def _asked_for(visit: RequestContext, given: str, query: CallQuery) -> CallRecord:
    """The call; whoever polls for a command is told that asking again is no use if there is none any more."""
    try:
        return await ended(visit, await find(visit, given, query.session, "read"), query.wait)
    except NotFoundError:
        if query.format == "command":
            raise CommandNotFoundError(given) from None
        raise


async def ended(visit: RequestContext, row: CallRecord, wait: float) -> CallRecord:
    """The call when it has ended, or as it stands after that time."""
    if not wait or row.state in TERMINAL_STATES:
        return row
    try:
        return await visit.ledger.wait(row.id, wait)
    except TimeoutError:
        return await visit.ledger.store.call(row.id) or row
    except CursorExpiredError:
        raise NotFoundError(f"call {row.id} was deleted with its session") from None


async def _shown(visit: RequestContext, row: CallRecord) -> schemas.CallDetail:
    return schemas.to_call_detail(row, await load_call_entry(visit.ledger, row))


async def find(visit: RequestContext, given: str, session: str, verb: Verb) -> CallRecord:
    """The call that an id means to whoever asks: its own, a foreign one, or the beginning of its own."""
    known = Known(visit, verb)
    fitting = [row for row in await _named(visit, given) if session in ("", row.session) and await known(row.session)]
    if not fitting and given.startswith(BEGINS):
        fitting = await _beginning(visit, known, given, session)
    if not fitting:
        await none_such(visit, f"no call {given!r}")
    if len(fitting) > 1:
        names = [row.id for row in fitting]
        raise AmbiguousIdError(
            f"{given!r} fits several: {', '.join(names)}", [schemas.call_view(row) for row in fitting]
        )
    return fitting[0]


async def _named(visit: RequestContext, given: str) -> list[CallRecord]:
    exact = await visit.ledger.store.call(given)
    return [exact] if exact else await visit.ledger.store.alias(given)


async def _beginning(visit: RequestContext, known: Known, given: str, session: str) -> list[CallRecord]:
    found: list[CallRecord] = []
    cursor = ""
    while len(found) < CANDIDATES:
        most = visit.server.limits.most
        page = await visit.ledger.store.calls(session=session, prefix=given, limit=most, cursor=cursor)
        found += [row for row in page.items if await known(row.session)]
        cursor = page.cursor
        if not cursor:
            break
    return found[:CANDIDATES]


# Stopping one

_MAYBE = cast("type[schemas.Cancel | None]", schemas.Cancel | None)


async def cancel(visit: RequestContext) -> Response:
    """Stop a call. One that was cancelled already stays so; one that has ended otherwise is a conflict."""
    row = await find(visit, visit.request.path_params["call"], visit.query(CancelQuery).session, "write")
    who = await visit.admit(await visit.session(row.session))
    asked = await visit.body(_MAYBE) or schemas.Cancel()
    return answer(await _shown(visit, await stopped(visit, row, f"cancelled by {who.name}", asked.reason, SOURCE)))


async def stopped(visit: RequestContext, row: CallRecord, by: str, reason: str, source: str) -> CallRecord:
    """A call that is cancelled, whoever did it; one that has ended otherwise is a conflict."""
    if row.state not in TERMINAL_STATES:
        why = f"{by}: {reason}" if reason else by
        await visit.ledger.append(row.session, [CallCancelled(call=row.id, reason=why)], source=source)
        row = await visit.ledger.find_call(row.id)
    if row.state != "cancelled":
        raise ConflictError(f"call {row.id} has ended: it is {row.state}", row)
    return row


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
