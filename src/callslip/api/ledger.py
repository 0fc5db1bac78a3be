"""A ledger: the one way to write, and every way to read, over one store.

Everything that writes, whoever it is, goes through `append`: admitted at the door, decided inside the store's
transaction, durable, and only then published.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from types import TracebackType
from typing import Any, TypeVar

from callslip.api.session import Session
from callslip.errors import AmbiguousIdError, CallslipError, NotFoundError, SlowReaderError, StoreError
from callslip.ledger import checkpoint, liveness, queries
from callslip.ledger.feed import Feed
from callslip.ledger.validation import DraftValidator
from callslip.ledger.write import WriteContext, write_events
from callslip.model.entries import Patch, Snapshot
from callslip.model.events import MAY_BE_LARGE, Blob, Draft, Event, TurnEnded, decode_event
from callslip.model.names import check_id, check_session_name
from callslip.model.records import ApprovalRecord, CallRecord, OwnerRecord, SessionRecord
from callslip.rules.fold import SessionFold
from callslip.rules.lifecycle import TERMINAL_STATES
from callslip.rules.redaction import make_redactor
from callslip.settings import Settings
from callslip.store.protocol import Page, Store, StoredEvent
from callslip.store.unit_of_work import UnitOfWork

T = TypeVar("T")
MANY = 10_000


class Ledger:
    """Opened by `callslip.open`. One per process and database is enough for any number of sessions."""

    def __init__(self, store: Store, settings: Settings) -> None:
        self.store = store
        self.settings = settings
        self.owner = liveness.new_owner()
        self.redactor = make_redactor(settings.redact, settings.secret_patterns)
        self.feed = Feed(store, settings)
        self._intake = DraftValidator(settings, self.redactor)
        self._hows: dict[tuple[str, str, bool], WriteContext] = {}
        self._reaper = liveness.Reaper(store, self.write_context(source="callslip", strict=True), settings)
        self._since: dict[str, int] = {}
        self._projecting: dict[str, asyncio.Task[None]] = {}
        self._tasks: list[asyncio.Task[None]] = []
        self._owned: dict[str, float] = {}
        self._closed = False
        self._closers: list[Callable[[], Awaitable[None]]] = []
        self._names: set[str] = set()
        store.on_commit(self._count)

    async def start(self) -> None:
        """End what dead processes left open, then watch."""
        if not self.store.read_only:
            await self._reaper.reap(only_dead=True)
            await self._reaper.forget_owners()
            self._tasks.append(asyncio.create_task(self._watch()))

    async def __aenter__(self) -> Ledger:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def session(self, name: str) -> Session:
        """A session by name. It comes to be with its first event."""
        return Session(self, check_session_name(name))

    # Writing

    def write_context(self, *, source: str = "", owner: str = "", strict: bool = False) -> WriteContext:
        """Who writes, by this ledger's settings."""
        key = (source, owner, strict)
        known = self._hows.get(key)
        if known is None:
            for name, field in ((source, "source"), (owner, "owner")):
                if name != "":
                    check_id(name, field)
            known = self._hows[key] = WriteContext(
                redactor=self.redactor,
                source=source,
                owner=owner,
                strict=strict,
                ingest_lease=self.settings.ingest_lease,
                turn_grace=self.settings.turn_grace,
            )
        return known

    async def append(
        self,
        session: str,
        drafts: Sequence[Event | Draft],
        *,
        source: str = "",
        owner: str = "",
        strict: bool = False,
    ) -> list[Event]:
        """Append drafts to a session, all or none, and give their events once they are durable.

        With `strict` an impossible step raises Illegal instead of being recorded as a foreign source's oddity.
        """
        if session not in self._names:
            if len(self._names) >= MANY:
                self._names.clear()
            self._names.add(check_session_name(session))
        return await self.transact_drafts(
            drafts,
            lambda unit, admitted, how: write_events(unit, session, admitted, how),
            source=source,
            owner=owner,
            strict=strict,
        )

    def transact_drafts(
        self,
        drafts: Sequence[Event | Draft],
        work: Callable[[UnitOfWork, list[Draft], WriteContext], T],
        *,
        source: str,
        owner: str = "",
        strict: bool = True,
    ) -> Awaitable[T]:
        """What a decision over some drafts, once they are admitted, came to. It is made in one transaction."""
        admit = self._intake.validate
        admitted = [admit(draft) for draft in drafts]
        how = self._hows.get((source, owner, strict)) or self.write_context(source=source, owner=owner, strict=strict)
        if owner or [draft for draft in admitted if type(draft.event) in MAY_BE_LARGE]:
            return self._prepared(admitted, work, how)
        return self.store.transact(lambda unit: work(unit, admitted, how))

    async def _prepared(
        self, admitted: list[Draft], work: Callable[[UnitOfWork, list[Draft], WriteContext], T], how: WriteContext
    ) -> T:
        """The same, once what is large is kept and the owner has a lease."""
        large: dict[str, tuple[bytes, str]] = {}
        for number, draft in enumerate(admitted):
            if type(draft.event) in MAY_BE_LARGE:
                admitted[number] = await self._with_blobs(draft, large)
        if how.owner and self._owned.get(how.owner, -math.inf) < time.monotonic():
            await self._renew(how.owner)
        if large:
            return await self._with_large(lambda unit: work(unit, admitted, how), large)
        return await self.store.transact(lambda unit: work(unit, admitted, how))

    async def _with_large(self, write: Callable[[UnitOfWork], T], large: dict[str, tuple[bytes, str]]) -> T:
        """Write events that name blobs; put again what was swept away since nobody named it yet."""

        def checked(unit: UnitOfWork) -> T | None:
            return write(unit) if all(unit.has_blob(identity) for identity in large) else None

        while True:
            done = await self.store.transact(checked)
            if done is not None:
                return done
            for data, media in large.values():
                await self.store.put_blob(data, media)

    async def _with_blobs(self, draft: Draft, kept: dict[str, tuple[bytes, str]]) -> Draft:
        large = self._intake.large(draft.event)
        if large is None:
            return draft
        field, data, media = large
        blob = Blob(await self.store.put_blob(data, media), len(data), media)
        kept[blob.hash] = (data, media)
        return Draft(self._intake.with_blob(draft.event, field, data, blob), draft.key, draft.mark, draft.witness)

    async def close_owner(self, owner: str, reason: str) -> int:
        """A connection ended: so do the calls and turns that lived by it."""
        how = self.write_context(source="callslip")
        ended = await self.store.transact(lambda unit: liveness.close_owner(unit, owner, reason, how))
        if self._owned.pop(owner, None) is not None:
            await self.store.drop_owner(owner)
        return ended

    async def end_turn(self, session: str, reason: str = "end_turn", detail: str = "") -> Event:
        """Say that the agent stopped working on the prompt."""
        return (await self.append(session, [TurnEnded(reason=reason, detail=detail)]))[0]

    # Reading

    async def sessions(self, *, limit: int = 100, cursor: str = "", prefix: str = "") -> Page:
        """Sessions, the last written first."""
        return await self.store.sessions(limit=limit, cursor=cursor, prefix=prefix)

    async def calls(self, *, session: str = "", states: Sequence[str] = (), limit: int = 100, cursor: str = "") -> Page:
        """Calls, newest first."""
        return await self.store.calls(session=session, states=states, limit=limit, cursor=cursor)

    async def approvals(self, *, session: str = "", state: str = "pending", limit: int = 100) -> list[ApprovalRecord]:
        """Requests for approval, oldest first."""
        return await self.store.approvals(session=session, state=state, limit=limit)

    async def find_session(self, given: str) -> SessionRecord:
        """A session by its name, by a prefix that fits only one, or `@last` for the last written."""
        if given == "@last":
            page = await self.store.sessions(limit=1)
            return _only(page.items, "session", given)
        exact = await self.store.session(given)
        if exact is not None:
            return exact
        page = await self.store.sessions(limit=10, prefix=given)
        return _only(page.items, "session", given)

    async def find_call(self, given: str, session: str = "") -> CallRecord:
        """A call by its id, a prefix of it, a foreign id, or `@last` for the newest."""
        if given == "@last":
            page = await self.store.calls(session=session, limit=1)
            return _only(page.items, "call", given)
        exact = await self.store.call(given)
        if exact is not None:
            return exact
        foreign = await self.store.alias(given, session)
        if foreign:
            return _only(foreign, "call", given)
        page = (
            await self.store.calls(session=session, prefix=given, limit=10) if given.startswith("exec_") else Page([])
        )
        return _only(page.items, "call", given)

    async def snapshot(self, session: str, *, limit: int = checkpoint.ALL, before: int = checkpoint.ALL) -> Snapshot:
        """A session's newest entries, rendered."""
        return await queries.snapshot(self.store, session, limit=limit, before=before)

    async def state_at(self, session: str, seq: int | None = None) -> SessionFold:
        """The whole state of a session after any of its events."""
        return await checkpoint.state_at(self.store, session, seq)

    async def events(self, session: str, after: int = 0, upto: int | None = None) -> AsyncIterator[Event]:
        """The log of a session as it stands, in order."""
        row = await self.store.session(session)
        last = row.last_seq if row and upto is None else (upto or 0)
        while after < last:
            rows = await self.store.events(session, after, min(self.settings.read_page, last - after))
            if not rows:
                return
            for _, body in rows:
                yield decode_event(body)
            after = rows[-1][0]

    def follow(self, session: str, after: int = 0) -> AsyncGenerator[list[StoredEvent]]:
        """The log of a session from a cursor on, and everything that comes."""
        return self.feed.subscribe(session, after)

    async def patches(self, session: str, after: int = 0) -> AsyncIterator[tuple[int, list[Patch]]]:
        """What every event after a cursor changes: its seq and its patches, for ever."""
        state = await queries.state_after(self.store, session, after) if after else SessionFold(session)
        async for batch in self.feed.subscribe(session, after):
            for stored in batch:
                yield stored.event.seq, state.apply(stored.event)

    async def wait(self, call: str, timeout: float | None = None) -> CallRecord:
        """The call once it has ended; TimeoutError if it takes longer."""
        row = await self.find_call(call)
        if row.state not in TERMINAL_STATES:
            async with asyncio.timeout(timeout):
                await self.feed.until_ended(row.session, row.id)
            row = await self.find_call(row.id)
        return row

    async def wait_for_turn(self, session: str, turn: str, after: int) -> TurnEnded:
        """How a turn that began after a cursor was ended, once anybody has, in any process."""
        while True:
            try:
                async with contextlib.aclosing(self.follow(session, after)) as batches:
                    async for batch in batches:
                        for event in (stored.event for stored in batch):
                            if isinstance(event, TurnEnded) and (event.turn, event.verdict) == (turn, "applied"):
                                return event
                        after = batch[-1].event.seq
            except SlowReaderError as error:
                after = error.cursor

    async def ending(self, row: CallRecord) -> Event | None:
        """The event that ended a call: its output, its error, its reason."""
        rows = await self.store.events(row.session, row.end - 1, 1) if row.end else []
        return decode_event(rows[0][1]) if rows else None

    async def blob(self, identity: str) -> bytes:
        """A value that was too large to stand in its event."""
        found = await self.store.blob(identity)
        if found is None:
            raise NotFoundError(f"no blob {identity}")
        return found[0]

    # Keeping house

    async def prune(self, keep_seconds: float) -> int:
        """Forget events older than this, in every session. How many were forgotten."""
        before = await self.store.clock() - int(keep_seconds * 1000)
        removed, cursor = 0, ""
        while True:
            page = await self.store.sessions(limit=100, cursor=cursor)
            for row in page.items:
                removed += await checkpoint.prune(self.store, row.name, before)
            cursor = page.cursor
            if not cursor:
                return removed

    async def delete(self, session: str) -> None:
        """Forget a session altogether."""
        if await self.store.session(session) is None or not await self.store.delete(session):
            raise NotFoundError(f"no session {session!r}")

    async def project(self, session: str) -> None:
        """Bring a session's checkpoint up to its head."""
        while await checkpoint.project(self.store, session) is None:
            pass

    def on_close(self, closer: Callable[[], Awaitable[None]]) -> Callable[[], None]:
        """What works over this ledger is told before it closes, unless what this gives was called."""
        self._closers.append(closer)
        return lambda: self._closers.remove(closer)

    async def close(self) -> None:
        """End the calls and turns that this process owns, stop, and close the store."""
        if self._closed:
            return
        self._closed = True
        for closer in list(self._closers):
            await closer()
        running = [*self._tasks, *self._projecting.values()]
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
        await self.feed.close()
        with contextlib.suppress(StoreError):
            for owner in list(self._owned):
                await self.close_owner(owner, "the process that ran this call closed its ledger")
        await self.store.close()

    # In the background

    def _count(self, made: list[StoredEvent]) -> None:
        """Move a session's checkpoint on when enough has come, and when a turn ends."""
        counts, every = self._since, self.settings.checkpoint_every
        for stored in made:
            session = stored.session
            counts[session] = since = counts.get(session, 0) + 1
            if since >= every or type(stored.event) is TurnEnded:
                self._project_soon(session)

    def _project_soon(self, session: str) -> None:
        if self._closed or session in self._projecting:
            return
        self._since[session] = 0
        task = asyncio.ensure_future(self._project(session))
        self._projecting[session] = task
        task.add_done_callback(lambda _: self._projecting.pop(session, None))

    async def _project(self, session: str) -> None:
        with contextlib.suppress(CallslipError):  # It can be derived at any time; the next one will do.
            opened = await checkpoint.project(self.store, session)
            self._since[session] = -(opened or 0)  # What is open is written anew each time: C12.

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(self.settings.reaper_interval)
            with contextlib.suppress(CallslipError):
                soon = time.monotonic() + self.settings.owner_lease * 2 / 3
                await self._renew(*[owner for owner, until in self._owned.items() if until < soon])
                await self._reaper.reap()

    async def _renew(self, *owners: str) -> None:
        if not owners:
            return
        lease = self.settings.owner_lease
        until = await self.store.clock() + int(lease * 1000)
        stands = time.monotonic() + lease
        await self.store.transact(lambda unit: [unit.put_owner(OwnerRecord(owner, until)) for owner in owners])
        self._owned.update(dict.fromkeys(owners, stands))


def _only(found: list[Any], kind: str, given: str) -> Any:
    if not found:
        raise NotFoundError(f"no {kind} {given!r}")
    if len(found) > 1:
        names = [getattr(item, "name", "") or item.id for item in found]
        raise AmbiguousIdError(f"{given!r} fits several: {', '.join(names)}", names)
    return found[0]


async def open_ledger(url: str, settings: Settings | None = None) -> Ledger:
    """Open a ledger, made if need be: `sqlite:///file.db`, or `sqlite:///:memory:`."""
    from callslip.store.sqlite import SqliteStore

    settings = settings or Settings()
    if url.startswith(("postgresql:", "postgres:")):
        raise StoreError("PostgreSQL is not supported by this version yet; use sqlite:///file.db")
    ledger = Ledger(SqliteStore(url, settings), settings)
    await ledger.start()
    return ledger
