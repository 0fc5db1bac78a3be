"""The demo's own routes: they start and kill worker processes."""

from __future__ import annotations

import msgspec
from starlette.responses import Response

from callslip.demo.workers import Workers
from callslip.http.request import NoQuery, RequestContext, Route, json_response


class WorkerRequest(msgspec.Struct, forbid_unknown_fields=True):
    """The session in which a worker runs its call."""

    session: str


class StartedWorker(msgspec.Struct):
    """The call that a worker runs."""

    call: str


class KilledWorker(msgspec.Struct):
    """The process that was killed."""

    call: str
    pid: int


def routes(workers: Workers) -> tuple[Route, ...]:
    """Return the routes of one demo."""

    async def start(context: RequestContext) -> Response:
        """Start a worker process that runs a call."""
        context.query(NoQuery)
        await context.require_authenticated()
        record = await context.session((await context.body(WorkerRequest)).session)
        return json_response(StartedWorker(await workers.start(record.name)), 201)

    async def kill(context: RequestContext) -> Response:
        """Kill the process that runs a call."""
        await context.admit()
        context.query(NoQuery)
        call = context.path_params["call"]
        return json_response(KilledWorker(call, await workers.kill(call)))

    return (
        Route("POST", "/demo/workers", start, "execute", NoQuery, WorkerRequest, {201: StartedWorker}, (404,)),
        Route("POST", "/demo/workers/{call}/kill", kill, "execute", NoQuery, answers={200: KilledWorker}),
    )
