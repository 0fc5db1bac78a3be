"""Commands over HTTP: submitted by some, polled for by them, taken up and finished by others.

The bodies have the seed's names. Whoever runs commands needs the verb `execute`, sees their arguments whole, and is
given only those of sessions that they may run commands of.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal, cast

import msgspec
from msgspec import UNSET, Meta
from starlette.responses import Response

from callslip.api.commands import DEFAULT_QUEUE, DEFAULT_SESSION
from callslip.api.find import find_command
from callslip.commands import Claim, Command
from callslip.errors import CommandNotFoundError, ConflictError, InvalidInputError, NotFoundError
from callslip.http.access import Principal
from callslip.http.calls import CancelQuery, NoQuery
from callslip.http.ingest import owned_by
from callslip.http.request import RequestAccess, RequestContext, Route, answer
from callslip.http.sessions import limit_of, waited
from callslip.ledger.aio import race
from callslip.model.events import Draft
from callslip.model.names import check_session_name
from callslip.model.records import CallRecord, SessionRecord

Name = Annotated[str, Meta(min_length=1, max_length=200)]
Seconds = Annotated[float, Meta(gt=0)]
ACCESS_TTL_S = 1.0
"""How long an answer of the authorizer holds for a worker that waits: its token may be revoked meanwhile."""


class Body(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Named as the seed names things."""


# Submitting


class Submit(Body):
    """A command. `timeout` seconds after it was queued it expires; with `approve` "ask" a person is asked before."""

    action: Name
    params: Any = None
    timeout: Seconds | None = None
    client: Name = DEFAULT_QUEUE
    session: Name = DEFAULT_SESSION
    idempotent: bool = False
    approve: Literal["", "ask"] = ""
    correlation_id: Annotated[str, Meta(max_length=200)] = ""
    title: str = ""


class Queued(msgspec.Struct):
    """That a command was taken, and the id to ask for it by."""

    status: Literal["queued"]
    correlation_id: str


class SubmitQuery(msgspec.Struct, kw_only=True):
    """Whether to wait for what comes of it."""

    wait: Annotated[
        float, Meta(ge=0, description="Answer when the command has ended, after so many seconds at most.")
    ] = 0


async def submit(visit: RequestContext) -> Response:
    """Take a command. Its session comes to be with it, if need be, and belongs to whoever submits it."""
    await visit.known()
    asked = await visit.body(Submit)
    name = check_session_name(asked.session)
    row = await visit.ledger.log.store.session(name)
    who = await visit.admit(row or SessionRecord(name=name))
    wait = waited(visit, visit.query(SubmitQuery).wait)
    made = await _registered(visit, who, asked, wait, () if row is not None else (owned_by(who),))
    if not wait:
        return answer(Queued("queued", made.correlation_id), 202)
    return answer(made, 200 if made.final else 202)


async def _registered(
    visit: RequestContext, who: Principal, asked: Submit, wait: float, before: Sequence[Draft]
) -> Command:
    key = visit.request.headers.get("idempotency-key", "")
    try:
        return await visit.server.commands.submit(
            asked.action,
            asked.params,
            queue=asked.client,
            session=asked.session,
            timeout=asked.timeout,
            idempotent=asked.idempotent,
            approval=bool(asked.approve),
            correlation_id=asked.correlation_id,
            title=asked.title,
            key=f"http {key}" if key else "",
            wait=wait,
            before=before,
        )
    except ConflictError:
        row = await visit.ledger.log.store.session(asked.session)
        if not before or row is None or row.owner == who.name:
            raise
        await visit.admit(row)  # Somebody else has begun this session meanwhile.
        return await _registered(visit, who, asked, wait, ())


# The lists


class Lists(msgspec.Struct):
    """Commands: those that have not ended, those completed in the last minute, the last hundred that failed."""

    pending: list[Command]
    completed: list[Command]
    failed: list[Command]


class ListsQuery(msgspec.Struct, kw_only=True):
    """Whose commands, and how many of each list."""

    client: Annotated[str, Meta(description="Commands for this client only.")] = ""
    limit: Annotated[int, Meta(ge=1, description="How many of each at most.")] | None = None


async def lists(visit: RequestContext) -> Response:
    """The three windows, of sessions that whoever asks may read."""
    await visit.admit()
    query = visit.query(ListsQuery)
    limit, access, commands = limit_of(visit, query.limit), RequestAccess(visit), visit.server.commands
    all_three = (commands.pending, commands.completed, commands.failed)
    return answer(Lists(*[await read(query.client, limit, access) for read in all_three]))


# Running them


class Queries(msgspec.Struct):
    """Commands that wait to be run, the oldest first. They stay in the queue until somebody posts a result."""

    queries: list[Claim]


class QueriesQuery(msgspec.Struct, kw_only=True):
    """For whom, and how many."""

    client: Annotated[str, Meta(min_length=1, description="The client whose commands are wanted.")] = DEFAULT_QUEUE
    session: Annotated[str, Meta(description="Commands of this session only.")] = ""
    limit: Annotated[int, Meta(ge=1, description="How many at most.")] | None = None


async def queries(visit: RequestContext) -> Response:
    """What an executor that only polls may run."""
    query = visit.query(QueriesQuery)
    await _executor(visit, query.session)
    found = await visit.server.commands.queued(
        query.client, session=query.session, limit=limit_of(visit, query.limit), access=RequestAccess(visit)
    )
    return answer(Queries(found))


class Claiming(Body):
    """Who wants work, how long to wait for it, and how long to hold it without being heard of again."""

    client: Name = DEFAULT_QUEUE
    wait: Annotated[float, Meta(ge=0)] = 0
    lease: Seconds | None = None
    worker: Annotated[str, Meta(max_length=200)] = ""
    session: Annotated[str, Meta(max_length=200)] = ""


async def claim(visit: RequestContext) -> Response:
    """Give the next command to a worker; 204 if none has come."""
    await visit.known()
    visit.query(NoQuery)
    asked = await visit.body(cast("type[Claiming | None]", Claiming | None)) or Claiming()
    await _executor(visit, asked.session)
    taking = visit.server.commands.claim(
        asked.client,
        worker=asked.worker,
        wait=waited(visit, asked.wait),
        lease=asked.lease,
        session=asked.session,
        access=RequestAccess(visit, ACCESS_TTL_S),
    )
    taken = await race(taking, _gone(visit))
    if taken is not None and _has_gone(visit):  # Both at once: nobody would be told.
        await visit.server.commands.release(taken.call, taken.fence, "whoever claimed this command had gone")
        taken = None
    return answer(taken) if taken is not None else Response(None, 204)


async def _gone(visit: RequestContext) -> None:
    """Return when whoever asked is not there any more: nobody is given work who cannot be told of it."""
    while (await visit.request.receive())["type"] != "http.disconnect":
        pass


def _has_gone(visit: RequestContext) -> bool:
    """The same, asked now: one step of it, as far as it gets without waiting."""
    going = _gone(visit)
    try:
        going.send(None)
    except StopIteration:
        return True
    going.close()
    return False


async def _executor(visit: RequestContext, session: str) -> None:
    if session:
        await visit.session(session)
    else:
        await visit.admit()


class Result(Body):
    """What came of a command, or what went wrong. `fence` is that of the claim, if it was claimed."""

    result: Any = UNSET
    error: Any = UNSET
    fence: Annotated[int, Meta(ge=0)] = 0


async def result(visit: RequestContext) -> Response:
    """Finish a command. The same result again changes nothing."""
    row = await _command(visit)
    asked = await visit.body(Result)
    if (asked.result is UNSET) == (asked.error is UNSET):
        raise InvalidInputError("result", "say either `result` or `error`")
    commands = visit.server.commands
    if asked.error is not UNSET:
        return answer(await commands.fail(row, asked.error, fence=asked.fence))
    return answer(await commands.complete(row, asked.result, fence=asked.fence))


class Heartbeat(Body):
    """That a worker goes on: for how many seconds more it holds its command, and how far it is."""

    fence: Annotated[int, Meta(ge=1)]
    lease: Seconds | None = None
    text: str = ""
    progress: Any = UNSET


class Held(msgspec.Struct):
    """Until when a worker holds its command, in ms since the epoch."""

    lease_until: int


async def heartbeat(visit: RequestContext) -> Response:
    """Keep a claim."""
    row = await _command(visit)
    asked = await visit.body(Heartbeat)
    told: dict[str, Any] = {"lease": asked.lease, "text": asked.text, "progress": asked.progress}
    return answer(Held(await visit.server.commands.heartbeat(row, asked.fence, **told)))


class Release(Body):
    """That a worker does not run its command after all: it has not begun with it, or it may run twice."""

    fence: Annotated[int, Meta(ge=1)]
    reason: Annotated[str, Meta(max_length=2000)] = ""


async def release(visit: RequestContext) -> Response:
    """Put a claimed command back into its queue."""
    row = await _command(visit)
    asked = await visit.body(Release)
    await visit.server.commands.release(row, asked.fence, asked.reason)
    return Response(None, 204)


async def _command(visit: RequestContext) -> CallRecord:
    """Return the command that the path names, of a session whose commands the caller may run."""
    id, session, access = visit.request.path_params["call"], visit.query(CancelQuery).session, RequestAccess(visit)
    record = await find_command(visit.ledger.log, id, session=session, access=access, verb="execute")
    try:
        await access.require(record.session, "execute")
    except NotFoundError:
        raise CommandNotFoundError(id) from None
    return record


_WRITES = (400, 401, 403, 404, 409, 413, 415, 503, 507)
_RUNS = (400, 401, 403, 404, 409, 412, 413, 415, 503, 507)

ROUTES = (
    Route(
        method="POST",
        path="/v1/calls",
        endpoint=submit,
        verb="write",
        about="Submit a command for somebody else to run; answered at once, or when it has ended.",
        query=SubmitQuery,
        headers={"idempotency-key": "A name for this body: posted again under it, it is the same command."},
        body=Submit,
        answers={200: Command, 202: (Queued, Command)},
        problems=(*_WRITES, 429),
    ),
    Route(
        method="GET",
        path="/v1/commands",
        endpoint=lists,
        about="Commands: pending, lately completed, lately failed.",
        query=ListsQuery,
        answers={200: Lists},
        problems=(400, 401, 403),
    ),
    Route(
        method="GET",
        path="/pending-queries",
        endpoint=queries,
        verb="execute",
        about="Commands that wait to be run. Asking takes none of them away.",
        query=QueriesQuery,
        answers={200: Queries},
        problems=(400, 401, 403, 404),
    ),
    Route(
        method="POST",
        path="/v1/calls/claim",
        endpoint=claim,
        verb="execute",
        about="Take up the next command, for as long as the lease is kept up.",
        query=NoQuery,
        body=Claiming | None,
        answers={200: Claim, 204: None},
        problems=_RUNS,
    ),
    Route(
        method="POST",
        path="/v1/calls/{call}/result",
        endpoint=result,
        verb="execute",
        about="Say what came of a command. Said twice it counts once.",
        query=CancelQuery,
        body=Result,
        answers={200: Command},
        problems=_RUNS,
    ),
    Route(
        method="POST",
        path="/v1/calls/{call}/heartbeat",
        endpoint=heartbeat,
        verb="execute",
        about="Go on with a command, and tell how far it is.",
        query=CancelQuery,
        body=Heartbeat,
        answers={200: Held},
        problems=_RUNS,
    ),
    Route(
        method="POST",
        path="/v1/calls/{call}/release",
        endpoint=release,
        verb="execute",
        about="Give a claimed command back to its queue.",
        query=CancelQuery,
        body=Release,
        answers={204: None},
        problems=_RUNS,
    ),
)
