"""Prompts from the page: a user's text starts a turn, which a function of the server answers.

The turn starts with the request, so that it is in the log before it is answered. A turn in progress is not superseded
by another prompt: the user waits for its end, or stops it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

import msgspec
from msgspec import Meta
from starlette.responses import Response

from callslip.api.ledger import LocalLedger
from callslip.api.turns import cancel_turn, start_turn_if_idle
from callslip.errors import InvalidInputError, NotFoundError
from callslip.http.access import Forbidden
from callslip.http.calls import NoQuery
from callslip.http.request import RequestAccess, RequestContext, Route, json_response
from callslip.http.turn_runner import Chat, TurnRunner
from callslip.model.records import SessionRecord

SOURCE = "prompt"
MAX_PROMPT_CHARS = 100_000
NOT_ANSWERED = "this server answers no prompts: it records and shows agents. Prompt your agent where it runs."
READ_ONLY = "you may read this session, but not write to it"

Answers = Callable[[LocalLedger, str, str], Any]
"""`answers(ledger, session, text)` answers a prompt, which is already in the session's open turn.

A coroutine function or an async generator: its texts become the agent's message, and it may use the session itself.
The turn ends when it returns, unless it has ended the turn itself. If the turn ends first, it is cancelled.
"""


class Prompts:
    """The function that answers the prompts of one server, if there is one."""

    def __init__(self, ledger: LocalLedger, answers: Answers | None = None) -> None:
        def handler(chat: Chat) -> Any:
            assert answers is not None
            return answers(ledger, chat.session.name, chat.prompt)

        self.runner = TurnRunner(ledger, handler) if answers is not None else None

    def require_runner(self) -> TurnRunner:
        if self.runner is None:
            raise NotFoundError(NOT_ANSWERED)
        return self.runner


class Prompt(msgspec.Struct, forbid_unknown_fields=True):
    """A user's prompt."""

    text: Annotated[str, Meta(min_length=1, max_length=MAX_PROMPT_CHARS)]


class Taken(msgspec.Struct):
    """The turn that answers a prompt; its content comes with the session's stream."""

    turn: str


class Answered(msgspec.Struct):
    """Whether prompts are answered, and if not, why."""

    answers: bool
    why: str


class Stopped(msgspec.Struct):
    """Whether a turn was stopped."""

    stopped: bool


async def answers(context: RequestContext) -> Response:
    """Return whether the page should show a prompt box."""
    record = await context.session(context.request.path_params["session"])
    context.query(NoQuery)
    why = NOT_ANSWERED if context.server.prompts.runner is None else await _why_read_only(context, record)
    return json_response(Answered(not why, why))


async def _why_read_only(context: RequestContext, record: SessionRecord) -> str:
    """Return why the caller may not write to a session, or ""."""
    try:
        await context.admit(record, "write")
    except (Forbidden, NotFoundError):
        return READ_ONLY
    return ""


async def prompt(context: RequestContext) -> Response:
    """Start a turn with a prompt, and answer it."""
    record = await context.session(context.request.path_params["session"])
    principal = await context.admit(record)
    context.query(NoQuery)
    text = (await context.body(Prompt)).text
    if not text.strip():
        raise InvalidInputError("text", "must not be blank")
    runner = context.server.prompts.require_runner()
    started = await start_turn_if_idle(
        context.ledger.log, record.name, text, source=SOURCE, access=RequestAccess(context)
    )
    session = context.ledger.session(record.name)
    runner.start(Chat(session, started.turn, text, {}, [], {}, principal.user or principal.name), started.seq)
    return json_response(Taken(started.turn), 202)


async def stop(context: RequestContext) -> Response:
    """Cancel the turn in progress. Without one, nothing happens."""
    record = await context.session(context.request.path_params["session"])
    context.query(NoQuery)
    context.server.prompts.require_runner()
    stopped = await cancel_turn(context.ledger.log, record.name, source=SOURCE, access=RequestAccess(context))
    return json_response(Stopped(stopped))


ROUTES = (
    Route(
        method="GET",
        path="/v1/sessions/{session}/prompt",
        endpoint=answers,
        about="Whether prompts are answered.",
        query=NoQuery,
        answers={200: Answered},
        problems=(400, 401, 403, 404),
    ),
    Route(
        method="POST",
        path="/v1/sessions/{session}/prompt",
        endpoint=prompt,
        verb="write",
        about="Send a prompt; 404 if the server answers none, 409 while a turn is in progress.",
        query=NoQuery,
        body=Prompt,
        answers={202: Taken},
        problems=(400, 401, 403, 404, 409, 413, 415, 503, 507),
    ),
    Route(
        method="POST",
        path="/v1/sessions/{session}/prompt/stop",
        endpoint=stop,
        verb="write",
        about="Stop the turn in progress.",
        query=NoQuery,
        answers={200: Stopped},
        problems=(400, 401, 403, 404, 409, 503, 507),
    ),
)
