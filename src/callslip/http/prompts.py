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
from callslip.http.request import NoQuery, RequestContext, Route, json_response
from callslip.http.turn_runner import Chat, TurnRunner

SOURCE = "prompt"
MAX_PROMPT_CHARS = 100_000
NOT_ANSWERED = "this server accepts no prompts: it only records sessions. Send prompts to your agent directly"
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


class PromptAccepted(msgspec.Struct):
    """The turn that answers a prompt; its content comes with the session's stream."""

    turn: str


class PromptSupport(msgspec.Struct):
    """Whether prompts are answered, and if not, why."""

    answers: bool
    why: str


class Stopped(msgspec.Struct):
    """Whether a turn was stopped."""

    stopped: bool


async def answers(context: RequestContext) -> Response:
    """Return whether prompts are answered, so that the web UI shows a prompt box."""
    record = await context.session(context.path_params["session"])
    context.query(NoQuery)
    if context.server.prompts.runner is None:
        why = NOT_ANSWERED
    else:
        why = "" if await context.access.may(record.name, "write") else READ_ONLY
    return json_response(PromptSupport(not why, why))


async def prompt(context: RequestContext) -> Response:
    """Send a prompt; 404 if the server answers none, 409 while a turn is in progress."""
    record = await context.session(context.path_params["session"])
    principal = await context.admit(record)
    context.query(NoQuery)
    text = (await context.body(Prompt)).text
    if not text.strip():
        raise InvalidInputError("text", "must not be blank")
    runner = context.server.prompts.require_runner()
    started = await start_turn_if_idle(context.ledger.log, record.name, text, source=SOURCE, access=context.access)
    session = context.ledger.session(record.name)
    runner.start(Chat(session, started.turn, text, {}, [], {}, principal.user or principal.name), started.seq)
    return json_response(PromptAccepted(started.turn), 202)


async def stop(context: RequestContext) -> Response:
    """Stop the turn in progress. Without one, nothing happens."""
    record = await context.session(context.path_params["session"])
    context.query(NoQuery)
    context.server.prompts.require_runner()
    stopped = await cancel_turn(context.ledger.log, record.name, source=SOURCE, access=context.access)
    return json_response(Stopped(stopped))


ROUTES = (
    Route("GET", "/v1/sessions/{session}/prompt", answers, query=NoQuery, answers={200: PromptSupport}),
    Route(
        "POST", "/v1/sessions/{session}/prompt", prompt, "write", NoQuery, body=Prompt, answers={202: PromptAccepted}
    ),
    Route("POST", "/v1/sessions/{session}/prompt/stop", stop, "write", NoQuery, answers={200: Stopped}),
)
