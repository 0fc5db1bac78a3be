"""What a demo's server does beside the rest: it starts and kills worker processes."""

from __future__ import annotations

import msgspec
from starlette.responses import Response

from callslip.demo.workers import Workers
from callslip.http.calls import NoQuery
from callslip.http.request import RequestContext, Route, json_response


class WorkerFor(msgspec.Struct, forbid_unknown_fields=True):
    """The session that the worker is to run its call in."""

    session: str


class WorkerOf(msgspec.Struct):
    """The call that a worker runs."""

    call: str


class Killed(msgspec.Struct):
    """The process that is no more."""

    call: str
    pid: int


def routes(workers: Workers) -> tuple[Route, ...]:
    """The routes of one demo."""

    async def start(visit: RequestContext) -> Response:
        """A worker process takes up a call."""
        visit.query(NoQuery)
        await visit.known()
        row = await visit.session((await visit.body(WorkerFor)).session)
        return json_response(WorkerOf(await workers.start(row.name)), 201)

    async def kill(visit: RequestContext) -> Response:
        """Kill a worker process."""
        await visit.admit()
        visit.query(NoQuery)
        call = visit.request.path_params["call"]
        return json_response(Killed(call, await workers.kill(call)))

    wrong = (400, 401, 403, 404)
    return (
        Route(
            method="POST",
            path="/demo/workers",
            endpoint=start,
            about="Let a process of its own run a call.",
            verb="execute",
            query=NoQuery,
            body=WorkerFor,
            answers={201: WorkerOf},
            problems=wrong,
        ),
        Route(
            method="POST",
            path="/demo/workers/{call}/kill",
            endpoint=kill,
            about="Kill the process that runs a call.",
            verb="execute",
            query=NoQuery,
            answers={200: Killed},
            problems=wrong,
        ),
    )
