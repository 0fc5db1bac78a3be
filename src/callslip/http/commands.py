"""Commands over HTTP: submit them, poll for their results, claim them as a worker and finish them.

A worker needs the verb `execute`, receives the full arguments, and only commands of sessions that it may execute in.
"""

from __future__ import annotations

import contextlib
from typing import Annotated, Any, Literal, cast

import msgspec
from msgspec import UNSET, Meta
from starlette.responses import Response

from callslip.api.commands import DEFAULT_QUEUE, DEFAULT_SESSION, ClaimOptions, SubmitOptions
from callslip.api.find import find_call, find_command
from callslip.api.leases import renew_lease
from callslip.commands import Claim, Command
from callslip.errors import CommandNotFoundError, InvalidInputError, NotFoundError
from callslip.http.calls import CancelQuery
from callslip.http.request import NoQuery, RequestAccess, RequestContext, Route, json_response
from callslip.http.sessions import Limit, check_limit, check_wait
from callslip.ledger.aio import race
from callslip.model.names import check_session_name
from callslip.model.records import CallRecord

Name = Annotated[str, Meta(min_length=1, max_length=200)]
Seconds = Annotated[float, Meta(gt=0)]
ACCESS_TTL_S = 1.0
"""How long a decision of the authorizer is remembered for a waiting worker: its token may be revoked."""


class Body(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """A JSON body with snake_case fields."""


# Submitting


class Submit(Body):
    """A command. It expires `timeout` seconds after it was queued. `approve: "ask"` requires approval first."""

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
    """A queued command, and the id to poll for it."""

    status: Literal["queued"]
    correlation_id: str


class SubmitQuery(msgspec.Struct, kw_only=True):
    """How long to wait for the result."""

    wait: Annotated[float, Meta(ge=0, description="Seconds to wait for the end of the command.")] = 0


async def submit(context: RequestContext) -> Response:
    """Submit a command for a worker; respond at once, or when it has ended. A new session belongs to the caller.

    Without the right to read, the response has neither the result nor the error.
    """
    await context.require_authenticated()
    body = await context.body(Submit)
    access = context.access
    await access.require_write(check_session_name(body.session))
    wait = check_wait(context, context.query(SubmitQuery).wait)
    key = context.request.headers.get("idempotency-key", "")

    options = SubmitOptions(
        queue=body.client,
        session=body.session,
        timeout=body.timeout,
        idempotent=body.idempotent,
        approval=bool(body.approve),
        correlation_id=body.correlation_id,
        title=body.title,
        key=f"http {key}" if key else "",
        wait=wait,
    )
    async with context.while_admitted(body.session) if wait else contextlib.nullcontext():
        command = await context.server.commands.submit_as(access, body.action, body.params, options)
    if not wait:
        return json_response(Queued("queued", command.correlation_id), 202)
    if not await access.allows(body.session, "read"):
        command = msgspec.structs.replace(command, result=UNSET, error=UNSET)
    return json_response(command, 200 if command.final else 202)


# The lists


class Lists(msgspec.Struct):
    """Commands: the open ones, those completed in the last minute (a setting), and the last hundred that failed."""

    pending: list[Command]
    completed: list[Command]
    failed: list[Command]


class ListsQuery(msgspec.Struct, kw_only=True):
    """Filters for the lists of commands."""

    client: Annotated[str, Meta(description="Only commands of this queue.")] = ""
    limit: Annotated[int, Meta(ge=1, description="The maximum number in each list.")] | None = None


async def lists(context: RequestContext) -> Response:
    """List commands: pending, recently completed, recently failed."""
    await context.admit()
    query = context.query(ListsQuery)
    limit, access, commands = check_limit(context, query.limit), context.access, context.server.commands
    reads = (commands.pending, commands.completed, commands.failed)
    return json_response(Lists(*[await read(query.client, limit, access) for read in reads]))


# Running commands


class Queries(msgspec.Struct):
    """Queued commands, oldest first. They stay in the queue until a worker posts a result."""

    queries: list[Claim]


class QueriesQuery(msgspec.Struct, kw_only=True):
    """The queue, and the maximum number of commands."""

    client: Annotated[str, Meta(min_length=1, description="The queue.")] = DEFAULT_QUEUE
    session: Annotated[str, Meta(description="Only commands of this session.")] = ""
    limit: Limit | None = None


async def queries(context: RequestContext) -> Response:
    """List queued commands, without claiming them."""
    query = context.query(QueriesQuery)
    await _require_execute(context, query.session)
    claims = await context.server.commands.queued(
        query.client, session=query.session, limit=check_limit(context, query.limit), access=context.access
    )
    return json_response(Queries(claims))


class Claiming(Body):
    """The queue and name of a worker, how long to wait for a command, and the length of its lease."""

    client: Name = DEFAULT_QUEUE
    wait: Annotated[float, Meta(ge=0)] = 0
    lease: Seconds | None = None
    worker: Annotated[str, Meta(max_length=200)] = ""
    session: Annotated[str, Meta(max_length=200)] = ""


async def claim(context: RequestContext) -> Response:
    """Claim the next command for a worker, which keeps it while it renews the lease; 204 if there is none."""
    await context.require_authenticated()
    context.query(NoQuery)
    body = await context.body(cast("type[Claiming | None]", Claiming | None)) or Claiming()
    await _require_execute(context, body.session)
    options = ClaimOptions(
        worker=body.worker, wait=check_wait(context, body.wait), lease=body.lease, session=body.session
    )
    access = RequestAccess(context, ACCESS_TTL_S)
    claiming = context.server.commands.claim_as(access, body.client, options)
    claim = await race(claiming, _wait_gone(context, body.session))
    if claim is not None and _is_disconnected(context):  # Both at once: the worker would not receive it.
        await context.server.commands.release(claim.call, claim.fence, "its worker disconnected")
        claim = None
    return json_response(claim) if claim is not None else Response(None, 204)


async def _wait_gone(context: RequestContext, session: str) -> None:
    """Wait until the worker disconnects; raise AuthenticationError when its token is revoked."""
    async with context.while_admitted(*([session] if session else [])):
        await context.wait_disconnected()


def _is_disconnected(context: RequestContext) -> bool:
    """Return whether the client is gone, by running `wait_disconnected` as far as it gets without waiting."""
    waiting = context.wait_disconnected()
    try:
        waiting.send(None)
    except StopIteration:
        return True
    waiting.close()
    return False


async def _require_execute(context: RequestContext, session: str) -> None:
    if session:
        await context.session(session)
    else:
        await context.admit()


class Result(Body):
    """The result of a command, or its error. `fence` is that of the claim, if it was claimed."""

    result: Any = UNSET
    error: Any = UNSET
    fence: Annotated[int, Meta(ge=0)] = 0


async def result(context: RequestContext) -> Response:
    """Finish a command. Posting the same result again changes nothing."""
    record = await _find_command(context)
    body = await context.body(Result)
    if (body.result is UNSET) == (body.error is UNSET):
        raise InvalidInputError("result", "give either `result` or `error`")
    commands = context.server.commands
    if body.error is not UNSET:
        return json_response(await commands.fail(record, body.error, fence=body.fence))
    return json_response(await commands.complete(record, body.result, fence=body.fence))


class Heartbeat(Body):
    """A sign of life: the new length of the lease in seconds, and the progress. A command needs its `fence`."""

    fence: Annotated[int, Meta(ge=0)] = 0
    lease: Seconds | None = None
    text: str = ""
    progress: Any = UNSET


class LeaseRenewed(msgspec.Struct):
    """The end of the lease, in ms since the epoch."""

    lease_until: int


async def heartbeat(context: RequestContext) -> Response:
    """Renew the lease of a command (verb `execute`), or of a call that no process owns (verb `write`)."""
    record = await _find_command_or_call(context)
    body = await context.body(Heartbeat)
    if not record.client:
        if body.fence or body.text or body.progress is not UNSET:
            raise InvalidInputError("fence", f"{record.id} is not a command; send only `lease`")
        return json_response(
            LeaseRenewed(await renew_lease(context.ledger.log, record, body.lease, access=context.access))
        )
    if not body.fence:
        raise InvalidInputError("fence", "required: the fence of the claim")
    fields: dict[str, Any] = {"lease": body.lease, "text": body.text, "progress": body.progress}
    return json_response(LeaseRenewed(await context.server.commands.heartbeat(record, body.fence, **fields)))


class Release(Body):
    """A worker gives its command back: it has not started it, or the command may run twice."""

    fence: Annotated[int, Meta(ge=1)]
    reason: Annotated[str, Meta(max_length=2000)] = ""


async def release(context: RequestContext) -> Response:
    """Put a claimed command back into its queue."""
    record = await _find_command(context)
    body = await context.body(Release)
    await context.server.commands.release(record, body.fence, body.reason)
    return Response(None, 204)


async def _find_command(context: RequestContext) -> CallRecord:
    """Return the command that the path names, of a session that the caller may execute in."""
    id, session, access = context.path_params["call"], context.query(CancelQuery).session, context.access
    record = await find_command(context.ledger.log, id, session=session, access=access, verb="execute")
    try:
        await access.require(record.session, "execute")
    except NotFoundError:
        raise CommandNotFoundError(id) from None
    return record


async def _find_command_or_call(context: RequestContext) -> CallRecord:
    """Return the command that the path names, or another call of a session that the caller may write to."""
    id, session, access = context.path_params["call"], context.query(CancelQuery).session, context.access
    with contextlib.suppress(NotFoundError):
        record = await find_call(context.ledger.log, id, session=session, access=access, verb="write")
        if not record.client:
            await access.require(record.session, "write")
            return record
    return await _find_command(context)


ROUTES = (
    Route(
        "POST",
        "/v1/calls",
        submit,
        "write",
        SubmitQuery,
        headers=("idempotency-key",),
        body=Submit,
        answers={200: Command, 202: (Queued, Command)},
        problems=(404, 429),
    ),
    Route("GET", "/v1/commands", lists, query=ListsQuery, answers={200: Lists}),
    Route("GET", "/pending-queries", queries, "execute", QueriesQuery, answers={200: Queries}, problems=(404,)),
    Route(
        "POST",
        "/v1/calls/claim",
        claim,
        "execute",
        NoQuery,
        body=Claiming | None,
        answers={200: Claim, 204: None},
        problems=(404, 412),
    ),
    *(
        Route("POST", f"/v1/calls/{{call}}/{action}", endpoint, "execute", CancelQuery, body, {status: answer}, (412,))
        for action, endpoint, body, status, answer in (
            ("result", result, Result, 200, Command),
            ("heartbeat", heartbeat, Heartbeat, 200, LeaseRenewed),
            ("release", release, Release, 204, None),
        )
    ),
)
