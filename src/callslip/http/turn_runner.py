"""Turns that this process answers: a handler that runs independently of the request. A lost reader stops nothing.

A turn ends once: when its handler returns or fails, or when another process ends it, which cancels the handler.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import AsyncIterator, Callable
from typing import Any, cast

import msgspec

from callslip.agent.loop import Outcome
from callslip.api.client_calls import run_on_client
from callslip.api.ledger import LocalLedger
from callslip.api.session import Session
from callslip.errors import CallslipError
from callslip.ledger.aio import finish_despite_cancel, race
from callslip.ledger.session_log import wait_for_turn
from callslip.model import codec
from callslip.model.events import Draft, Event
from callslip.model.names import SOURCE_PYTHON

log = logging.getLogger("callslip.chat")


class Chat(msgspec.Struct):
    """The argument of a handler: the session to work in, its turn, and the user's prompt.

    `messages` is the conversation as the client sent it; the ledger's own is `session.snapshot()`. `body` is the whole
    request. `by` is the user, as the host's `authorize` returned it.
    """

    session: Session
    turn: str
    prompt: str
    message: dict[str, Any]
    messages: list[Any]
    body: dict[str, Any]
    by: Any = None

    async def ask_client(self, tool: str, input: Any = None, *, title: str = "") -> Any:
        """Let the client run a tool, and return its output. Raise CallEndedError if it has none."""
        return await run_on_client(self.session.log, self.session.name, tool, input, title=title)


Handler = Callable[[Chat], Any]


class TurnRunner:
    """The turns in progress."""

    def __init__(self, ledger: LocalLedger, handler: Handler) -> None:
        self._ledger = ledger
        self._handler = handler
        self._tasks: set[asyncio.Task[None]] = set()

    def start(self, chat: Chat, seq: int) -> None:
        """Run the handler for a turn that started at `seq`."""
        task = asyncio.ensure_future(self._answer(chat, seq))
        self._tasks.add(task)  # The event loop keeps only a weak reference.
        task.add_done_callback(self._tasks.discard)

    async def _answer(self, chat: Chat, seq: int) -> None:
        """Run the handler until it returns or the turn ends. An error ends the turn, and is logged."""
        try:
            await race(self._run(chat), wait_for_turn(self._ledger.log, chat.session.name, chat.turn, seq))
        except CallslipError:  # The ledger was closed, or the session deleted.
            log.warning("a chat could not be answered completely", exc_info=True)

    async def _run(self, chat: Chat) -> None:
        try:
            await _append_output(chat, self._handler(chat))
        except asyncio.CancelledError:
            await finish_despite_cancel(_end(chat, "cancelled"))
            raise
        except Exception as error:
            log.exception("the handler of a chat failed")
            # Clients see the text of our own errors only; the rest is in the log.
            is_own = isinstance(error, CallslipError)
            detail = str(error) if is_own else f"the handler failed: {type(error).__name__}"
            await finish_despite_cancel(_end(chat, "error", detail))
        else:
            await finish_despite_cancel(_end(chat, "end_turn"))


async def _append_output(chat: Chat, output: Any) -> None:
    """Append what a handler returns or yields: texts and events."""
    if inspect.isawaitable(output):
        output = await output
    if not isinstance(output, AsyncIterator):
        return await _append_item(chat, output)
    items = cast("AsyncIterator[Any]", output)
    try:
        async for item in items:
            await _append_item(chat, item)
    finally:
        close = getattr(items, "aclose", None)
        if close is not None:
            await close()


async def _append_item(chat: Chat, item: Any) -> None:
    if isinstance(item, str):
        await (chat.session.say(item) if item else asyncio.sleep(0))
    elif isinstance(item, Event | Draft):
        await chat.session.log.append(chat.session.name, [item], source=SOURCE_PYTHON, strict=True)
    elif item is not None and not isinstance(item, Outcome):
        await chat.session.say(codec.encode(codec.to_json(item)).decode())


async def _end(chat: Chat, reason: str, detail: str = "") -> None:
    """End the turn, unless it has ended already: the agent loop ends its own."""
    record = await chat.session.log.get_session(chat.session.name)
    if record is not None and record.turn == chat.turn:
        await chat.session.end_turn(reason, detail=detail, turn=chat.turn)
