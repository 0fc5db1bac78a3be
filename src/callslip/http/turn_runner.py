"""Turns that this process answers: a handler at work, apart from whoever asked. Losing a reader stops nothing.

A turn ends exactly once: by its handler's end, by its error, or by whoever ends it elsewhere, in any process: then the
handler is cancelled.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import AsyncIterator, Callable
from typing import Any, cast

import msgspec

from callslip.agent.loop import Outcome
from callslip.api.ledger import Ledger
from callslip.api.session import Session
from callslip.errors import CallEndedError, CallslipError
from callslip.ledger.aio import finish_despite_cancel, race
from callslip.model import codec
from callslip.model import events as ev
from callslip.model.events import Draft

log = logging.getLogger("callslip.chat")

CLIENT = "client"
"""The worker of calls that the chat's client runs."""


class Chat(msgspec.Struct):
    """What a handler is given: the session to work in, its turn, and what was said.

    `messages` is the conversation as the client tells it; the ledger's own is `session.snapshot()`. `body` is all that
    was posted. `by` is whoever asked, as the host's `authorize` gave them.
    """

    session: Session
    turn: str
    prompt: str
    message: dict[str, Any]
    messages: list[Any]
    body: dict[str, Any]
    by: Any = None

    async def ask_client(self, tool: str, input: Any = None, *, title: str = "") -> Any:
        """Let the client run a tool, and give what it came to. CallEnded if it came to nothing."""
        ledger = self.session.ledger
        started = ev.CallStarted(call="new:1", tool_name=tool, input=input, title=title, worker=CLIENT)
        (made,) = await self.session.append(started, owner=ledger.log.owner)
        assert isinstance(made, ev.CallStarted)
        row = await ledger.wait(made.call)
        end = await ledger.log.ending_event(row)
        if not isinstance(end, ev.CallCompleted):
            raise CallEndedError(row.state, row.reason)
        return end.output


Handler = Callable[[Chat], Any]


class TurnRunner:
    """The turns under way."""

    def __init__(self, ledger: Ledger, handler: Handler) -> None:
        self._ledger = ledger
        self._handler = handler
        self._tasks: set[asyncio.Task[None]] = set()

    def begin(self, chat: Chat, seq: int) -> None:
        """Let the handler answer. `seq` is where the turn began."""
        task = asyncio.ensure_future(self._answer(chat, seq))
        self._tasks.add(task)  # Nobody else holds it.
        task.add_done_callback(self._tasks.discard)

    async def _answer(self, chat: Chat, seq: int) -> None:
        """Work until it is done, or until somebody ends the turn. What goes wrong ends the turn, and is logged."""
        try:
            await race(self._work(chat), self._ledger.log.wait_for_turn(chat.session.name, chat.turn, seq))
        except CallslipError:  # The ledger was closed, or the session deleted: nobody is there to be told.
            log.warning("a chat could not be answered to its end", exc_info=True)

    async def _work(self, chat: Chat) -> None:
        try:
            await _say(chat, self._handler(chat))
        except asyncio.CancelledError:
            await finish_despite_cancel(_end(chat, "cancelled"))
            raise
        except Exception as error:
            log.exception("the handler of a chat failed")
            await finish_despite_cancel(_end(chat, "error", _shown(error)))
        else:
            await finish_despite_cancel(_end(chat, "end_turn"))


def _shown(error: Exception) -> str:
    """What a client is told of an error: our own words, and of others only what it is. The rest is in the log."""
    return str(error) if isinstance(error, CallslipError) else f"the handler failed: {type(error).__name__}"


async def _say(chat: Chat, given: Any) -> None:
    """Everything a handler gives: pieces of text, and events of any kind; one at a time, or one as its result."""
    if inspect.isawaitable(given):
        given = await given
    if not isinstance(given, AsyncIterator):
        return await _piece(chat, given)
    pieces = cast("AsyncIterator[Any]", given)
    try:
        async for piece in pieces:
            await _piece(chat, piece)
    finally:
        close = getattr(pieces, "aclose", None)
        if close is not None:
            await close()


async def _piece(chat: Chat, piece: Any) -> None:
    if isinstance(piece, str):
        await (chat.session.say(piece) if piece else asyncio.sleep(0))
    elif isinstance(piece, ev.Event | Draft):
        await chat.session.append(piece)
    elif piece is not None and not isinstance(piece, Outcome):
        await chat.session.say(codec.encode(codec.to_json(piece)).decode())


async def _end(chat: Chat, reason: str, detail: str = "") -> None:
    """Unless the turn is over already: the agent loop ends its own, and so may anybody."""
    row = await chat.session.ledger.log.store.session(chat.session.name)
    if row is not None and row.turn == chat.turn:
        await chat.session.append(ev.TurnEnded(turn=chat.turn, reason=reason, detail=detail))
