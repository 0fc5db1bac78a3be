"""The ledger that programs open: sessions, calls, approvals and commands over one event log."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Sequence
from types import TracebackType
from typing import Any, Generic, Protocol, Self, TypeVar, Unpack

from msgspec import UNSET

from callslip.api import approvals as answers
from callslip.api import find
from callslip.api.cancel import cancel_call
from callslip.api.commands import CommandQueue, Commands
from callslip.api.export import export_session, export_turn
from callslip.api.follow import Frame, follow_frames
from callslip.api.keywords import check_keywords
from callslip.api.rule_book import LocalRuleBook, RuleBook
from callslip.api.search import SearchFilters, search
from callslip.api.session import Session
from callslip.api.session_list import SessionFilters, list_sessions
from callslip.api.usage import UsageFilters, UsageReport, add_up_usage
from callslip.errors import NotFoundError, WaitTimeoutError
from callslip.ledger.call_entry import load_call_entry
from callslip.ledger.checkpoint import ALL
from callslip.ledger.event_log import EventLog
from callslip.ledger.session_log import SessionLog
from callslip.model.database_url import mask_password
from callslip.model.entries import Snapshot, ToolCall
from callslip.model.events import Event, TurnEnded
from callslip.model.names import check_session_name
from callslip.model.records import ApprovalRecord, CallRecord, ListedSession, Page, SessionRecord
from callslip.model.search import SearchResults
from callslip.rules.lifecycle import TERMINAL_STATES
from callslip.settings import Settings


class Ledger(Protocol):
    """What a local ledger and a ledger behind a server have in common: `callslip.open` and `callslip.connect`."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    @property
    def log(self) -> SessionLog:
        """The underlying event log, for code that works with events."""
        ...

    @property
    def commands(self) -> Commands:
        """The commands of this ledger."""
        ...

    @property
    def rules(self) -> RuleBook:
        """The saved rules of this ledger."""
        ...

    def session(self, name: str) -> Session:
        """Return a session by name. It is created with its first event."""
        ...

    async def sessions(
        self, *, limit: int = 100, cursor: str = "", **filters: Unpack[SessionFilters]
    ) -> Page[ListedSession]:
        """Return sessions, the last active first unless sorted otherwise."""
        ...

    async def usage(self, by: str = "", **filters: Unpack[UsageFilters]) -> UsageReport:
        """Return the tokens and costs of each group: by day, model, project, agent, session, turn or call."""
        ...

    async def search(
        self, query: str, *, limit: int = 20, cursor: str = "", **filters: Unpack[SearchFilters]
    ) -> SearchResults:
        """Return the entries whose texts have all words of a query, the best first."""
        ...

    async def calls(
        self, *, session: str = "", states: Sequence[str] = (), limit: int = 100, cursor: str = ""
    ) -> Page[CallRecord]:
        """Return calls, newest first."""
        ...

    async def approvals(self, *, session: str = "", state: str = "pending", limit: int = 100) -> list[ApprovalRecord]:
        """Return approvals, oldest first."""
        ...

    async def find(self, id: str, session: str = "") -> SessionRecord | CallRecord | ApprovalRecord:
        """Find what an id names: a session, a call or an approval."""
        ...

    async def find_session(self, id: str) -> SessionRecord:
        """Find a session by its name, by a prefix that matches only one, or `@last` for the last written."""
        ...

    async def find_call(self, id: str, session: str = "") -> CallRecord:
        """Find a call by its id, a prefix of it, an id of its producer, its approval, or `@last` for the newest."""
        ...

    async def find_approval(self, id: str, session: str = "") -> ApprovalRecord:
        """Find an approval by its id, a prefix of it, its call, or `@last` for the newest pending one."""
        ...

    async def approve(
        self, id: str, *, by: str = "", option: str = "", input: Any = UNSET, reason: str = ""
    ) -> ApprovalRecord:
        """Approve a call, with `input` as its arguments if given."""
        ...

    async def deny(self, id: str, *, by: str = "", option: str = "", reason: str = "") -> ApprovalRecord:
        """Deny a call. The model reads the reason."""
        ...

    async def cancel(self, id: str, *, by: str = "", reason: str = "") -> CallRecord:
        """Cancel an open call. Raise ConflictError if it has ended otherwise."""
        ...

    async def wait(self, id: str, timeout: float | None = None) -> CallRecord:
        """Wait until a call has ended, and return it. Raise WaitTimeoutError after `timeout` seconds."""
        ...

    async def entry(self, call: str) -> ToolCall | None:
        """Return a call's entry: its arguments, progress and output."""
        ...

    async def snapshot(self, session: str, *, limit: int = ALL, before: int = ALL) -> Snapshot:
        """Return a session's newest entries."""
        ...

    def events(self, session: str, after: int = 0, upto: int | None = None) -> AsyncGenerator[Event]:
        """Yield the recorded events of a session in order, and stop at the last."""
        ...

    def follow(self, session: str, after: int = 0) -> AsyncGenerator[Event]:
        """Yield the events of a session after a cursor, then new ones as they are written."""
        ...

    def frames(self, session: str, format: str = "entries", after: int | None = None) -> AsyncGenerator[Frame]:
        """Yield a session as frames: `events`, or `entries` as a snapshot and the patches after it."""
        ...

    async def export(self, session: str, format: str, *, at: int | None = None) -> bytes:
        """Return a session in a format, now or as it was after an event."""
        ...

    def export_chunks(self, session: str, format: str, *, at: int | None = None) -> AsyncGenerator[bytes]:
        """Yield what `export` returns, in chunks, without loading the whole log into memory."""
        ...

    def export_turn(self, session: str, format: str, *, turn: str = "", at: int | None = None) -> AsyncGenerator[bytes]:
        """Yield one turn as it is streamed in a format."""
        ...

    async def blob(self, hash: str) -> bytes:
        """Return a value that was too large to be stored in its event."""
        ...

    async def close(self) -> None:
        """Close the ledger. A local one ends the calls and turns that this process owns."""
        ...


class LocalLedger(Ledger):
    """A ledger in this process. Open it with `callslip.open`; one per process and database is enough.

    `log` is the underlying event log, for code that works with events.
    """

    def __init__(self, log: EventLog) -> None:
        self._log = log
        self._commands: CommandQueue | None = None

    def __repr__(self) -> str:
        return f"<LocalLedger {mask_password(self._log.store.url)!r}>"

    async def close(self) -> None:
        await self.log.close()

    def session(self, name: str) -> Session:
        return Session(self, check_session_name(name))

    @property
    def log(self) -> EventLog:
        return self._log

    @property
    def commands(self) -> CommandQueue:
        if self._commands is None:
            self._commands = CommandQueue(self.log)
        return self._commands

    @property
    def rules(self) -> RuleBook:
        return LocalRuleBook(self.log)

    # Finding

    async def sessions(
        self, *, limit: int = 100, cursor: str = "", **filters: Unpack[SessionFilters]
    ) -> Page[ListedSession]:
        check_keywords("sessions", filters, SessionFilters)
        return await list_sessions(self.log, filters, limit=limit, cursor=cursor)

    async def usage(self, by: str = "", **filters: Unpack[UsageFilters]) -> UsageReport:
        check_keywords("usage", filters, UsageFilters)
        return await add_up_usage(self.log, by, filters)

    async def search(
        self, query: str, *, limit: int = 20, cursor: str = "", **filters: Unpack[SearchFilters]
    ) -> SearchResults:
        check_keywords("search", filters, SearchFilters)
        return await search(self.log, query, filters, limit=limit, cursor=cursor)

    async def calls(
        self, *, session: str = "", states: Sequence[str] = (), limit: int = 100, cursor: str = ""
    ) -> Page[CallRecord]:
        return await find.list_calls(self.log, session=session, states=states, limit=limit, cursor=cursor)

    async def approvals(self, *, session: str = "", state: str = "pending", limit: int = 100) -> list[ApprovalRecord]:
        return await find.list_approvals(self.log, session=session, state=state, limit=limit)

    async def find(self, id: str, session: str = "") -> SessionRecord | CallRecord | ApprovalRecord:
        return await find.find(self.log, id, session=session)

    async def find_session(self, id: str) -> SessionRecord:
        return await find.find_session(self.log, id)

    async def find_call(self, id: str, session: str = "") -> CallRecord:
        return await find.find_call(self.log, id, session=session)

    async def find_approval(self, id: str, session: str = "") -> ApprovalRecord:
        return await find.find_approval(self.log, id, session=session)

    # Acting

    async def approve(
        self, id: str, *, by: str = "", option: str = "", input: Any = UNSET, reason: str = ""
    ) -> ApprovalRecord:
        return await answers.approve(self.log, id, by=by, option=option, input=input, reason=reason)

    async def deny(self, id: str, *, by: str = "", option: str = "", reason: str = "") -> ApprovalRecord:
        return await answers.deny(self.log, id, by=by, option=option, reason=reason)

    async def withdraw(self, id: str, *, by: str = "", reason: str = "") -> ApprovalRecord:
        """Withdraw a request for approval; its call is cancelled."""
        return await answers.withdraw(self.log, id, by=by, reason=reason)

    async def cancel(self, id: str, *, by: str = "", reason: str = "") -> CallRecord:
        return await cancel_call(self.log, id, by=by, reason=reason)

    async def wait(self, id: str, timeout: float | None = None) -> CallRecord:
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

    async def snapshot(self, session: str, *, limit: int = ALL, before: int = ALL) -> Snapshot:
        return await self.log.snapshot(session, limit=limit, before=before)

    async def events(self, session: str, after: int = 0, upto: int | None = None) -> AsyncGenerator[Event]:
        await self._require_session(session)
        async for event in self.log.events(session, after, upto):
            yield event

    async def follow(self, session: str, after: int = 0) -> AsyncGenerator[Event]:
        await self._require_session(session)
        async with contextlib.aclosing(self.log.follow(session, after)) as events:
            async for event in events:
                yield event

    async def _require_session(self, name: str) -> None:
        if await self.log.get_session(name) is None:
            raise NotFoundError(f"no session {name!r}")

    async def entry(self, call: str) -> ToolCall | None:
        return await load_call_entry(self.log, await find.find_call(self.log, call))

    def frames(self, session: str, format: str = "entries", after: int | None = None) -> AsyncGenerator[Frame]:
        return follow_frames(self.log, session, format, after)

    async def export(self, session: str, format: str, *, at: int | None = None) -> bytes:
        return b"".join([chunk async for chunk in self.export_chunks(session, format, at=at)])

    def export_chunks(self, session: str, format: str, *, at: int | None = None) -> AsyncGenerator[bytes]:
        return export_session(self.log, session, format, at)

    def export_turn(self, session: str, format: str, *, turn: str = "", at: int | None = None) -> AsyncGenerator[bytes]:
        return export_turn(self.log, session, format, at, turn)

    async def blob(self, hash: str) -> bytes:
        return await self.log.blob(hash)

    # Maintenance

    async def prune(self, keep_seconds: float) -> int:
        """Delete events older than this from every session, and return how many."""
        return await self.log.prune(keep_seconds)

    async def delete(self, session: str) -> None:
        """Delete a session with everything in it."""
        await self.log.delete(session)


async def open_log(url: str, settings: Settings | None = None, *, create: bool = True) -> EventLog:
    """Open the event log of a database, creating it if needed. Without `create` a server must have its tables."""
    from callslip.store.open import open_store

    settings = settings or Settings()
    log = EventLog(await open_store(url, settings, create=create), settings)
    await log.start()
    return log


async def open_ledger(url: str, settings: Settings | None = None, *, create: bool = True) -> LocalLedger:
    """Open a ledger by the URL of its database, creating it if needed. Without `create` a server must have it."""
    return LocalLedger(await open_log(url, settings, create=create))


L = TypeVar("L", bound="Ledger")


class OpenLedger(Generic[L]):
    """A ledger to be opened: await it, or use it with `async with`, which also closes it."""

    def __init__(self, opener: Callable[[], Awaitable[L]]) -> None:
        self._opener = opener
        self._ledger: L | None = None

    def __await__(self) -> Generator[Any, None, L]:
        return self._opener().__await__()

    async def __aenter__(self) -> L:
        self._ledger = await self._opener()
        return self._ledger

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._ledger is not None:
            await self._ledger.close()
