"""The log interface that sessions, calls and recorders use; implemented locally and over HTTP."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import AbstractAsyncContextManager, aclosing
from typing import Any, Protocol

from callslip.errors import StoreError
from callslip.model.entries import Snapshot
from callslip.model.events import Draft, Event, TurnEnded
from callslip.model.records import CallRecord, SessionRecord


class SessionLog(Protocol):
    """Append to sessions and read them. Implemented by `EventLog` and by the client's `RemoteLog`."""

    @property
    def owner(self) -> str:
        """The owner of calls that live as long as this process; "" if they live by a lease instead."""
        ...

    @property
    def required_tools(self) -> tuple[str, ...]:
        """The tools whose calls a user must accept by the settings; () if they are not known here."""
        ...

    async def append(
        self, session: str, drafts: Sequence[Event | Draft], *, source: str = "", owner: str = "", strict: bool = False
    ) -> list[Event]:
        """Append drafts to a session, all or none, and return their events once they are durable."""
        ...

    def follow(self, session: str, after: int = 0) -> AsyncGenerator[Event]:
        """Yield the events of a session after a cursor, then new ones as they are written."""
        ...

    async def snapshot(self, session: str, *, limit: int = ...) -> Snapshot:
        """Return a session's newest entries."""
        ...

    async def get_session(self, session: str) -> SessionRecord | None:
        """Return a session by its whole name."""
        ...

    async def get_call(self, call: str) -> CallRecord | None:
        """Return a call by its whole id."""
        ...

    async def wait_ended(self, session: str, call: str) -> None:
        """Wait until a call has ended."""
        ...

    async def approval_deadline(self) -> int:
        """Return when an approval requested now expires, in ms since the epoch."""
        ...

    def restore_secrets(self, edited: Any, original: Any) -> Any:
        """Put the original values back in place of redacted ones in edited arguments."""
        ...

    def keep_alive(self, call: str) -> AbstractAsyncContextManager[None]:
        """Keep a call that this process runs alive while the block runs."""
        ...


async def last_seq(log: SessionLog, session: str) -> int:
    """Return the seq of the last event of a session, 0 if there is none."""
    record = await log.get_session(session)
    return record.last_seq if record else 0


async def wait_for_turn(log: SessionLog, session: str, turn: str, after: int) -> TurnEnded:
    """Wait until a turn that began after a cursor has ended, in any process, and return its end."""
    async with aclosing(log.follow(session, after)) as events:
        async for event in events:
            if isinstance(event, TurnEnded) and (event.turn, event.verdict) == (turn, "applied"):
                return event
    raise StoreError("the ledger was closed")
