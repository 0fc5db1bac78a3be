"""Prompts from the page: what a person types goes to whoever the server was given to answer.

The turn begins with the request, so that it is in the log before anybody answers; the answer is given apart from it, as
a chat's is. A turn that is under way is not cut short by another prompt: it is waited for, or stopped.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

import msgspec
from msgspec import Meta
from starlette.responses import Response

from callslip.api.ledger import Ledger
from callslip.errors import ConflictError, InvalidInputError, NotFoundError
from callslip.http.access import Forbidden
from callslip.http.calls import NoQuery
from callslip.http.request import RequestContext, Route, answer
from callslip.http.turn_runner import Chat, TurnRunner
from callslip.ledger import write
from callslip.ledger.write import WriteContext
from callslip.model import events as ev
from callslip.model.events import Draft, Event
from callslip.model.records import SessionRecord
from callslip.store.unit_of_work import UnitOfWork

SOURCE = "prompt"
MAX_PROMPT_CHARS = 100_000
NOBODY = (
    "nobody answers prompts on this server: it records and shows what agents do, and yours is prompted where it runs"
)
READER = "you may read this session, and not write in it"
BUSY = "a turn is under way in this session: wait for its end, or stop it"

Answers = Callable[[Ledger, str, str], Any]
"""`answers(ledger, session, text)` answers a prompt, which stands in the session's open turn already.

A coroutine function, or an async generator: what it gives is said, and it may work in the session meanwhile. The turn
ends when it does, if it has not ended that itself; it is cancelled when somebody else ends the turn.
"""


class Prompts:
    """Whoever answers the prompts of one server, if anybody does."""

    def __init__(self, ledger: Ledger, answers: Answers | None = None) -> None:
        def answered(chat: Chat) -> Any:
            assert answers is not None
            return answers(ledger, chat.session.name, chat.prompt)

        self.answering = TurnRunner(ledger, answered) if answers is not None else None

    def present(self) -> TurnRunner:
        if self.answering is None:
            raise NotFoundError(NOBODY)
        return self.answering


class Prompt(msgspec.Struct, forbid_unknown_fields=True):
    """What a person says."""

    text: Annotated[str, Meta(min_length=1, max_length=MAX_PROMPT_CHARS)]


class Taken(msgspec.Struct):
    """The turn that answers a prompt; what is said in it comes by the session's stream."""

    turn: str


class Answered(msgspec.Struct):
    """Whether somebody answers prompts, and if not, why."""

    answers: bool
    why: str


class Stopped(msgspec.Struct):
    """Whether there was a turn to stop."""

    stopped: bool


async def answers(visit: RequestContext) -> Response:
    """Whether a prompt box makes sense here."""
    row = await visit.session(visit.request.path_params["session"])
    visit.query(NoQuery)
    why = NOBODY if visit.server.prompts.answering is None else await _forbidden(visit, row)
    return answer(Answered(not why, why))


async def _forbidden(visit: RequestContext, row: SessionRecord) -> str:
    """Why whoever may read this may not say anything here, "" if they may."""
    try:
        await visit.admit(row, "write")
    except (Forbidden, NotFoundError):
        return READER
    return ""


async def prompt(visit: RequestContext) -> Response:
    """Begin a turn with what was said, and let it be answered."""
    row = await visit.session(visit.request.path_params["session"])
    who = await visit.admit(row)
    visit.query(NoQuery)
    text = (await visit.body(Prompt)).text
    if not text.strip():
        raise InvalidInputError("text", "says nothing")
    answering = visit.server.prompts.present()
    started = await _begin(visit.ledger, row.name, text)
    chat = Chat(visit.ledger.session(row.name), started.turn, text, {}, [], {}, who.given or who.name)
    answering.begin(chat, started.seq)
    return answer(Taken(started.turn), 202)


async def _begin(ledger: Ledger, session: str, text: str) -> ev.TurnStarted:
    """A new turn, if none is open. That is looked at where it is written, so that nobody can come between."""

    def begin(unit: UnitOfWork, drafts: list[Draft], how: WriteContext) -> list[Event]:
        if _open_turn(unit, session):
            raise ConflictError(BUSY)
        return write.write_events(unit, session, drafts, how)

    owner = ledger.log.owner  # It is answered in this process: if that dies, the turn ends.
    given = [ev.TurnStarted(), ev.MessageUser(text=text)]
    made = await ledger.log.transact_drafts(given, begin, source=SOURCE, owner=owner, strict=False)
    return next(event for event in made if isinstance(event, ev.TurnStarted))


def _open_turn(unit: UnitOfWork, session: str) -> str:
    """The turn that is under way, "" for none. A session that was deleted meanwhile is not begun anew."""
    row = unit.session(session)
    if row is None:
        raise NotFoundError(f"no session {session!r}")
    return row.turn


async def stop(visit: RequestContext) -> Response:
    """End the turn that is under way. Nothing to stop is no error."""
    row = await visit.session(visit.request.path_params["session"])
    who = await visit.admit(row)
    visit.query(NoQuery)
    visit.server.prompts.present()

    def end(unit: UnitOfWork, drafts: list[Draft], how: WriteContext) -> bool:
        under_way = bool(_open_turn(unit, row.name))
        if under_way:
            write.write_events(unit, row.name, drafts, how)
        return under_way

    ending = ev.TurnEnded(reason="cancelled", detail=f"stopped by {who.name}")
    return answer(Stopped(await visit.ledger.log.transact_drafts([ending], end, source=SOURCE, strict=False)))


ROUTES = (
    Route(
        method="GET",
        path="/v1/sessions/{session}/prompt",
        endpoint=answers,
        about="Whether somebody answers prompts.",
        query=NoQuery,
        answers={200: Answered},
        problems=(400, 401, 403, 404),
    ),
    Route(
        method="POST",
        path="/v1/sessions/{session}/prompt",
        endpoint=prompt,
        verb="write",
        about="Say something to whoever answers prompts; 404 if nobody does, 409 while a turn is under way.",
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
        about="Stop the turn that is under way.",
        query=NoQuery,
        answers={200: Stopped},
        problems=(400, 401, 403, 404, 409, 503, 507),
    ),
)
