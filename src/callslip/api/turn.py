"""A turn: what the agent does in answer to one prompt, as a block that always ends it."""

from __future__ import annotations

import asyncio
import contextlib
from contextlib import AbstractContextManager
from types import TracebackType
from typing import TYPE_CHECKING

from callslip.api.call import describe_error
from callslip.errors import InvalidTransitionError
from callslip.ledger.aio import finish_despite_cancel

if TYPE_CHECKING:
    from callslip.api.session import Session


class Turn:
    """A turn while it runs. Leaving the block ends it: completed, cancelled, or `error` with the exception.

    Inside the block the session is the current one, so that `@callslip.tool` functions record their calls in it.
    """

    def __init__(self, session: Session, prompt: str) -> None:
        self.session = session
        self.id = ""
        self._prompt = prompt
        self._binding: AbstractContextManager[None] | None = None

    def __repr__(self) -> str:
        return f"<Turn {self.id or 'not started'} of session {self.session.name!r}>"

    async def __aenter__(self) -> Turn:
        if self.id:
            raise InvalidTransitionError(f"turn {self.id} was started before. Create a new turn.")
        self.id = await finish_despite_cancel(self.session.start_turn(self._prompt, owned=True))
        self._binding = self.session.use()
        self._binding.__enter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._binding is not None
        self._binding.__exit__(None, None, None)
        reason, detail = "end_turn", ""
        if error is not None:
            reason = "cancelled" if isinstance(error, asyncio.CancelledError | KeyboardInterrupt) else "error"
            detail = describe_error(error)
        with contextlib.suppress(InvalidTransitionError):  # Another process has ended the turn.
            await finish_despite_cancel(self.session.end_turn(reason, detail=detail, turn=self.id))

    async def say(self, text: str) -> None:
        """Append to the agent's message."""
        await self.session.say(text)

    async def think(self, text: str) -> None:
        """Append to the agent's thinking."""
        await self.session.think(text)
