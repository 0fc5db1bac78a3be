"""The ledger that programs open: sessions, calls, approvals and commands over one event log."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from types import TracebackType
from typing import Any

from msgspec import UNSET

from callslip.api import approvals as answers
from callslip.api import find
from callslip.api.cancel import cancel_call
from callslip.api.commands import CommandQueue
from callslip.api.session import Session
from callslip.errors import StoreError, WaitTimeoutError
from callslip.ledger import checkpoint
from callslip.ledger.event_log import EventLog
from callslip.model.entries import Snapshot
from callslip.model.events import Event, TurnEnded
from callslip.model.names import check_session_name
from callslip.model.records import ApprovalRecord, CallRecord, SessionRecord
from callslip.rules.lifecycle import TERMINAL_STATES
from callslip.settings import Settings
from callslip.store.protocol import Page


class Ledger:
    """A ledger in this process. Open it with `callslip.open`; one per process and database is enough.

    `log` is the event log below it, for code that builds on events instead of calls.
    """

    def __init__(self, log: EventLog) -> None:
        self.log = log
        self._commands: CommandQueue | None = None

    async def __aenter__(self) -> Ledger:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """End the calls and turns that this process owns, and close the database."""
        await self.log.close()

    def session(self, name: str) -> Session:
        """Return a session by name. It is created with its first event."""
        return Session(self, check_session_name(name))

    @property
    def commands(self) -> CommandQueue:
        """The commands of this ledger."""
        if self._commands is None:
            self._commands = CommandQueue(self.log)
        return self._commands

    # Finding

    async def sessions(self, *, limit: int = 100, cursor: str = "", prefix: str = "") -> Page:
        """Return sessions, the last written first."""
        return await find.list_sessions(self.log, limit=limit, cursor=cursor, prefix=prefix)

    async def calls(self, *, session: str = "", states: Sequence[str] = (), limit: int = 100, cursor: str = "") -> Page:
        """Return calls, newest first."""
        return await find.list_calls(self.log, session=session, states=states, limit=limit, cursor=cursor)

    async def approvals(self, *, session: str = "", state: str = "pending", limit: int = 100) -> list[ApprovalRecord]:
        """Return approvals, oldest first."""
        return await find.list_approvals(self.log, session=session, state=state, limit=limit)

    async def find(self, id: str, session: str = "") -> SessionRecord | CallRecord | ApprovalRecord:
        """Find what an id names: a session, a call or an approval."""
        return await find.find(self.log, id, session=session)

    async def find_session(self, id: str) -> SessionRecord:
        """Find a session by its name, by a prefix that matches only one, or `@last` for the last written."""
        return await find.find_session(self.log, id)

    async def find_call(self, id: str, session: str = "") -> CallRecord:
        """Find a call by its id, a prefix of it, an id of its producer, its approval, or `@last` for the newest."""
        return await find.find_call(self.log, id, session=session)

    async def find_approval(self, id: str, session: str = "") -> ApprovalRecord:
        """Find an approval by its id, a prefix of it, its call, or `@last` for the newest pending one."""
        return await find.find_approval(self.log, id, session=session)

    # Acting

    async def approve(
        self, id: str, *, by: str, option: str = "", input: Any = UNSET, reason: str = ""
    ) -> ApprovalRecord:
        """Approve a call, with `input` as its arguments if given."""
        return await answers.approve(self.log, id, by=by, option=option, input=input, reason=reason)

    async def deny(self, id: str, *, by: str, option: str = "", reason: str = "") -> ApprovalRecord:
        """Deny a call. The model reads the reason."""
        return await answers.deny(self.log, id, by=by, option=option, reason=reason)

    async def withdraw(self, id: str, *, by: str, reason: str = "") -> ApprovalRecord:
        """Withdraw a request for approval; its call is cancelled."""
        return await answers.withdraw(self.log, id, by=by, reason=reason)

    async def cancel(self, id: str, *, by: str = "", reason: str = "") -> CallRecord:
        """Cancel an open call. Raise ConflictError if it has ended otherwise."""
        return await cancel_call(self.log, id, by=by, reason=reason)

    async def wait(self, id: str, timeout: float | None = None) -> CallRecord:
        """Wait until a call has ended, and return it. Raise WaitTimeoutError after `timeout` seconds."""
        record = await find.find_call(self.log, id)
        if record.state not in TERMINAL_STATES:
            try:
                async with asyncio.timeout(timeout):
                    await self.log.feed.until_ended(record.session, record.id)
            except TimeoutError:
                raise WaitTimeoutError(f"call {record.id} has not ended within {timeout:g} s") from None
            record = await find.find_call(self.log, record.id)
        return record

    async def end_turn(self, session: str, reason: str = "end_turn", detail: str = "") -> Event:
        """End the open turn of a session."""
        return (await self.log.append(session, [TurnEnded(reason=reason, detail=detail)]))[0]

    # Reading

    async def snapshot(self, session: str, *, limit: int = checkpoint.ALL, before: int = checkpoint.ALL) -> Snapshot:
        """Return a session's newest entries."""
        return await self.log.snapshot(session, limit=limit, before=before)

    def events(self, session: str, after: int = 0, upto: int | None = None) -> AsyncIterator[Event]:
        """Yield the recorded events of a session in order, and stop at the last."""
        return self.log.events(session, after, upto)

    def follow(self, session: str, after: int = 0) -> AsyncGenerator[Event]:
        """Yield the events of a session after a cursor, then new ones as they are written."""
        return self.log.follow(session, after)

    async def blob(self, hash: str) -> bytes:
        """Return a value that was too large to be stored in its event."""
        return await self.log.blob(hash)

    # Maintenance

    async def prune(self, keep_seconds: float) -> int:
        """Delete events older than this from every session, and return how many."""
        return await self.log.prune(keep_seconds)

    async def delete(self, session: str) -> None:
        """Delete a session with everything in it."""
        await self.log.delete(session)


async def open_log(url: str, settings: Settings | None = None) -> EventLog:
    """Open the event log of a database, creating it if needed."""
    from callslip.store.sqlite import SqliteStore

    settings = settings or Settings()
    if url.startswith(("postgresql:", "postgres:")):
        raise StoreError("PostgreSQL is not supported by this version yet; use sqlite:///file.db")
    log = EventLog(SqliteStore(url, settings), settings)
    await log.start()
    return log


async def open_ledger(url: str, settings: Settings | None = None) -> Ledger:
    """Open a ledger, creating it if needed: `sqlite:///file.db`, or `sqlite:///:memory:`."""
    return Ledger(await open_log(url, settings))
