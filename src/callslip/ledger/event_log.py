"""The event log over one store: the only way to write, and the reads that everything above is built on.

Every write goes through `append` or `transact_drafts`: drafts are validated, decided inside the store's transaction,
made durable, and only then published to followers.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from typing import Any, TypeVar

from msgspec import structs

from callslip.errors import CallslipError, InvalidInputError, NotFoundError, SlowReaderError, StoreError
from callslip.ledger import checkpoint, liveness, queries
from callslip.ledger.aio import cancel_all, run_off_loop
from callslip.ledger.feed import Feed
from callslip.ledger.release_timer import ReleaseTimer
from callslip.ledger.search_index import SearchIndex
from callslip.ledger.summaries import Summaries
from callslip.ledger.validation import DraftValidator, has_many_values
from callslip.ledger.write import AnswerCheck, WriteContext, write_chunk, write_events
from callslip.model.entries import Patch, Snapshot
from callslip.model.events import CHUNKS, Draft, Event, TurnEnded, decode_event, may_be_large
from callslip.model.names import check_id, check_session_name
from callslip.model.records import CallRecord, OwnerRecord, SessionRecord
from callslip.rules.fold import SessionFold
from callslip.rules.redaction import make_redactor
from callslip.settings import Settings
from callslip.store.protocol import Store, StoredEvent, Touched
from callslip.store.unit_of_work import UnitOfWork

T = TypeVar("T")
Blobs = dict[str, tuple[bytes, str]]
MAX_CHECKED_NAMES = 10_000
RETRY_S = 1.0
"""How soon a process tries to renew its leases again after an error."""


class EventLog:
    """Append to and read from one store. One per process and database is enough for any number of sessions."""

    def __init__(self, store: Store, settings: Settings) -> None:
        self.store = store
        self.settings = settings
        self.owner = liveness.new_owner()
        self.required_tools = settings.requires_validation
        self.redactor = make_redactor(settings.redact, settings.secret_patterns)
        self.feed = Feed(store, settings)
        self.summaries = Summaries(store)
        self.search_index = SearchIndex(store)
        self._validator = DraftValidator(settings, self.redactor)
        self._contexts: dict[tuple[str, str, bool], WriteContext] = {}
        self._reaper = liveness.Reaper(store, self.write_context(source="callslip", strict=True), settings)
        self._release_timer = ReleaseTimer(store, self.write_context(source="callslip"), settings.text_hold)
        self._checkpoint_every = max(1, settings.checkpoint_every)
        self._checkpoints_to_skip: dict[str, int] = {}
        self._checkpointing: dict[str, asyncio.Task[None]] = {}
        self._checkpoint_again: set[str] = set()
        self._tasks: list[asyncio.Task[None]] = []
        self._owner_leases: dict[str, float] = {}
        self._closed = False
        self._closers: list[Callable[[], Awaitable[None]]] = []
        self._checked_names: set[str] = set()
        store.on_commit(self._note_events)

    async def start(self) -> None:
        """End what dead processes left open, then keep watching."""
        if not self.store.read_only:
            await self._reaper.reap(only_dead=True)
            await self._reaper.expire_overdue(only_queued=not self.store.was_unused)
            await self._reaper.forget_owners()
            self._tasks.append(asyncio.create_task(self._maintain()))

    def keep_searchable(self) -> None:
        """Add new entries to the search index in the background, so that searches do not wait for it."""
        if not self.store.read_only:
            self._tasks.append(asyncio.create_task(self.search_index.keep_current()))

    # Writing

    def write_context(self, *, source: str = "", owner: str = "", strict: bool = False) -> WriteContext:
        """Return the context of writes by a source and an owner under these settings."""
        key = (source, owner, strict)
        context = self._contexts.get(key)
        if context is None:
            for name, field in ((source, "source"), (owner, "owner")):
                if name != "":
                    check_id(name, field)
            context = self._contexts[key] = WriteContext(
                redactor=self.redactor,
                source=source,
                owner=owner,
                strict=strict,
                ingest_lease=self.settings.ingest_lease,
                turn_grace=self.settings.turn_grace,
                text_hold=self.settings.text_hold,
            )
        return context

    async def append(
        self,
        session: str,
        drafts: Sequence[Event | Draft],
        *,
        source: str = "",
        owner: str = "",
        strict: bool = False,
        caller: str | None = None,
        check_answer: AnswerCheck | None = None,
    ) -> list[Event]:
        """Append drafts to a session, all or none, and return their events once they are durable.

        With `strict` an impossible step raises InvalidTransitionError; without it the step is recorded as illegal.
        `caller` and `check_answer` are for drafts that a caller of a server posted.
        """
        if session not in self._checked_names:
            if len(self._checked_names) >= MAX_CHECKED_NAMES:
                self._checked_names.clear()
            self._checked_names.add(check_session_name(session))
        if len(drafts) == 1 and isinstance(drafts[0], CHUNKS) and not (drafts[0].key or owner or caller is not None):
            context = self.write_context(source=source, strict=strict)
            chunk = self._validate_all(drafts)[0].event
            return await self.store.transact(
                lambda unit: write_chunk(unit, session, chunk, context), Touched((session,))
            )
        return await self.transact_drafts(
            session,
            drafts,
            lambda unit, valid, context: write_events(unit, session, valid, context),
            source=source,
            owner=owner,
            strict=strict,
            caller=caller,
            check_answer=check_answer,
        )

    def transact_drafts(
        self,
        session: str,
        drafts: Sequence[Event | Draft],
        work: Callable[[UnitOfWork, list[Draft], WriteContext], T],
        *,
        source: str,
        owner: str = "",
        strict: bool = True,
        caller: str | None = None,
        check_answer: AnswerCheck | None = None,
        queue: str = "",
    ) -> Awaitable[T]:
        """Validate drafts for a session and return the result of `work` over them, decided in one transaction."""
        context = self._contexts.get((source, owner, strict)) or self.write_context(
            source=source, owner=owner, strict=strict
        )
        if caller is not None:
            context = structs.replace(context, caller=caller, check_answer=check_answer)
        if has_many_values(drafts):
            return self._transact_many_values(session, drafts, work, context, queue)
        valid = self._validate_all(drafts)
        if owner or [draft for draft in valid if may_be_large(draft.event)]:
            return self._transact_prepared(session, valid, work, context, queue)
        return self.store.transact(lambda unit: work(unit, valid, context), Touched((session,), valid, (), queue))

    def _validate_all(self, drafts: Sequence[Event | Draft]) -> list[Draft]:
        validate = self._validator.validate
        valid: list[Draft] = []
        try:
            for draft in drafts:
                valid.append(validate(draft))
        except InvalidInputError as error:
            error.position = len(valid) - len(drafts)
            raise
        return valid

    async def _transact_many_values(
        self,
        session: str,
        drafts: Sequence[Event | Draft],
        work: Callable[[UnitOfWork, list[Draft], WriteContext], T],
        context: WriteContext,
        queue: str,
    ) -> T:
        valid = await run_off_loop(True, self._validate_all, drafts)
        return await self._transact_prepared(session, valid, work, context, queue)

    async def _transact_prepared(
        self,
        session: str,
        valid: list[Draft],
        work: Callable[[UnitOfWork, list[Draft], WriteContext], T],
        context: WriteContext,
        queue: str,
    ) -> T:
        """Store large values as blobs and give the owner a lease before the transaction."""
        blobs: Blobs = {}
        for number, draft in enumerate(valid):
            if may_be_large(draft.event):
                try:
                    valid[number] = await self._store_large_value(draft, blobs)
                except InvalidInputError as error:
                    error.position = number - len(valid)
                    raise
        if context.owner and self._owner_leases.get(context.owner, -math.inf) < time.monotonic():
            await self._renew(context.owner)
        touched = Touched((session,), valid, (), queue)
        if blobs:
            return await self._transact_with_blobs(lambda unit: work(unit, valid, context), blobs, touched)
        return await self.store.transact(lambda unit: work(unit, valid, context), touched)

    async def _transact_with_blobs(self, write: Callable[[UnitOfWork], T], blobs: Blobs, touched: Touched) -> T:
        """Write events that refer to blobs; store again what a sweep removed before any event referred to it."""

        def write_if_stored(unit: UnitOfWork) -> T | None:
            return write(unit) if all(unit.has_blob(blob) for blob in blobs) else None

        while True:
            result = await self.store.transact(write_if_stored, touched)
            if result is not None:
                return result
            for data, media_type in blobs.values():
                await self.store.put_blob(data, media_type)

    async def _store_large_value(self, draft: Draft, blobs: Blobs) -> Draft:
        large = self._validator.large_value(draft.event)
        if large is None:
            return draft
        hash = await self.store.put_blob(large.data, large.media_type)
        blobs[hash] = (large.data, large.media_type)
        event = self._validator.with_blob(draft.event, large, hash)
        return structs.replace(draft, event=event)

    async def close_owner(self, owner: str, reason: str) -> int:
        """End the calls and turns of a closed connection, and return how many."""
        context = self.write_context(source="callslip")
        try:
            count = await self.store.transact(
                lambda unit: liveness.close_owner(unit, owner, reason, context), Touched(owner=owner)
            )
        finally:
            for key in [key for key in self._contexts if key[1] == owner]:
                del self._contexts[key]
        if self._owner_leases.pop(owner, None) is not None:
            await self.store.drop_owner(owner)
        return count

    # Reading

    async def snapshot(self, session: str, *, limit: int = checkpoint.ALL, before: int = checkpoint.ALL) -> Snapshot:
        """Return a session's newest entries."""
        return await queries.snapshot(self.store, session, limit=limit, before=before)

    async def state_at(self, session: str, seq: int | None = None) -> SessionFold:
        """Return the whole state of a session after one of its events, or after the last."""
        return await checkpoint.state_at(self.store, session, seq)

    async def events(self, session: str, after: int = 0, upto: int | None = None) -> AsyncIterator[Event]:
        """Yield the recorded events of a session in order, and stop at the last."""
        record = await self.store.session(session)
        last = record.last_seq if record and upto is None else (upto or 0)
        while after < last:
            limit = min(self.settings.read_page, last - after)
            rows = await self.store.events(session, after, limit, self.settings.read_page_bytes)
            if not rows:
                return
            for _, body in rows:
                yield decode_event(body)
            after = rows[-1][0]

    def batches(self, session: str, after: int = 0, session_id: int = 0) -> AsyncGenerator[list[StoredEvent]]:
        """Yield the events of a session after a cursor, then new ones as they are written, in batches.

        With the id of the session that the cursor is of, another one of the same name raises CursorExpiredError.
        """
        return self.feed.subscribe(session, after, session_id)

    async def follow(self, session: str, after: int = 0) -> AsyncGenerator[Event]:
        """Yield the events of a session after a cursor, then new ones as they are written."""
        while True:
            try:
                async with contextlib.aclosing(self.feed.subscribe(session, after)) as batches:
                    async for batch in batches:
                        for stored in batch:
                            after = stored.event.seq
                            yield stored.event
                return
            except SlowReaderError as error:
                after = error.cursor

    async def patches(self, session: str, after: int = 0) -> AsyncIterator[tuple[int, list[Patch]]]:
        """Yield the seq and the patches of every event after a cursor."""
        state = await queries.state_after(self.store, session, after) if after else SessionFold(session)
        async for batch in self.feed.subscribe(session, after):
            for stored in batch:
                yield stored.event.seq, state.apply(stored.event)

    async def ending_event(self, record: CallRecord) -> Event | None:
        """Return the event that ended a call, or None if the call is open."""
        return await self.event_at(record.session, record.end) if record.end else None

    async def event_at(self, session: str, seq: int) -> Event | None:
        """Return an event of a session, or None if retention removed it."""
        rows = await self.store.events(session, seq - 1, 1)
        return decode_event(rows[0][1]) if rows and rows[0][0] == seq else None

    async def get_session(self, session: str) -> SessionRecord | None:
        """Return a session by its whole name."""
        return await self.store.session(session)

    async def get_call(self, call: str) -> CallRecord | None:
        """Return a call by its whole id."""
        return await self.store.call(call)

    async def wait_ended(self, session: str, call: str) -> None:
        """Wait until a call has ended."""
        await self.feed.until_ended(session, call)

    async def approval_deadline(self) -> int:
        """Return when an approval requested now expires, in ms since the epoch."""
        return await self.store.clock() + int(self.settings.approval_expiry * 1000)

    def restore_secrets(self, edited: Any, original: Any) -> Any:
        """Put the original values back in place of redacted ones in edited arguments."""
        return self.redactor.restore_secrets(edited, original)

    @contextlib.asynccontextmanager
    async def keep_alive(self, call: str) -> AsyncGenerator[None]:
        """Do nothing: a call of this process lives as long as its owner, whose lease is renewed for all its calls."""
        yield

    async def blob(self, hash: str) -> bytes:
        """Return a value that was too large to be stored in its event."""
        blob = await self.store.blob(hash)
        if blob is None:
            raise NotFoundError(f"no blob {hash}")
        return blob[0]

    # Maintenance

    async def prune(self, keep_seconds: float) -> int:
        """Delete events older than this from every session, and return how many; also posted input and ended rules."""
        before = await self.store.clock() - int(keep_seconds * 1000)
        await self.store.drop_conversations(before)
        await self.store.drop_ended_rules(before)
        removed = sum(
            [await checkpoint.prune(self.store, row.name, before) async for row in queries.all_sessions(self.store)]
        )
        await self.store.drop_unused_blobs()
        return removed

    async def delete(self, session: str) -> None:
        """Delete a session with everything in it."""
        if not await self.store.delete(session):
            raise NotFoundError(f"no session {session!r}")
        self._skip_checkpoints(session, 0)
        self.feed.check_session(session)

    async def project(self, session: str) -> None:
        """Bring a session's checkpoint up to its last event."""
        while await checkpoint.project(self.store, session) is None:
            pass

    def on_close(self, closer: Callable[[], Awaitable[None]]) -> Callable[[], None]:
        """Register `closer` to run before the log closes. Return a function that unregisters it."""
        self._closers.append(closer)
        return lambda: self._closers.remove(closer)

    async def close(self) -> None:
        """End the calls and turns that this process owns, stop, and close the store."""
        if self._closed:
            return
        self._closed = True
        for closer in list(self._closers):
            await closer()
        await cancel_all(*self._tasks, *self._checkpointing.values())
        await self._release_timer.close()
        await self.feed.close()
        with contextlib.suppress(StoreError):
            for owner in list(self._owner_leases):
                await self.close_owner(owner, "the process that ran this call closed its ledger")
        await self.store.close()

    # In the background

    def _note_events(self, events: list[StoredEvent]) -> None:
        """Advance a session's checkpoint after every `checkpoint_every` events, and at the end of a turn."""
        every = self._checkpoint_every
        due: set[str] = set()
        for stored in events:
            session = stored.session
            if type(stored.event) is TurnEnded:
                due.add(session)
            elif stored.event.seq % every == 0:
                if count := self._checkpoints_to_skip.get(session, 0):
                    self._skip_checkpoints(session, count - 1)
                else:
                    due.add(session)
        for session in due:
            self._schedule_checkpoint(session)

    def _skip_checkpoints(self, session: str, count: int) -> None:
        if count:
            self._checkpoints_to_skip[session] = count
        else:
            self._checkpoints_to_skip.pop(session, None)

    def _schedule_checkpoint(self, session: str) -> None:
        if self._closed:
            return
        if session in self._checkpointing:
            self._checkpoint_again.add(session)
            return
        task = asyncio.ensure_future(self._checkpoint(session))
        self._checkpointing[session] = task
        task.add_done_callback(lambda _: self._end_checkpoint(session))

    def _end_checkpoint(self, session: str) -> None:
        self._checkpointing.pop(session, None)
        if session in self._checkpoint_again:  # Since the task looked for the last time.
            self._checkpoint_again.discard(session)
            self._schedule_checkpoint(session)

    async def _checkpoint(self, session: str) -> None:
        with contextlib.suppress(CallslipError):  # A checkpoint is derived data: the next checkpoint includes it.
            is_complete = False
            while not is_complete:
                self._checkpoint_again.discard(session)
                open_count = await checkpoint.project(self.store, session)
                # Open entries are written again with every checkpoint, so many of them make checkpoints rarer.
                self._skip_checkpoints(session, (open_count or 0) // self._checkpoint_every)
                is_complete = session not in self._checkpoint_again

    async def _maintain(self) -> None:
        """Renew the leases of this process, then run the reaper. After an error both are soon tried again."""
        interval, lease = self.settings.reaper_interval, self.settings.owner_lease
        pause, next_round, has_failed = min(interval, lease / 3), time.monotonic() + interval, False
        while True:
            await asyncio.sleep(min(pause, RETRY_S) if has_failed else pause)
            started = time.monotonic()
            try:
                soon = started + lease * 2 / 3
                await self._renew(*[owner for owner, until in self._owner_leases.items() if until < soon])
                self._reaper.reset_if_late(started)
                if time.monotonic() >= next_round:
                    await self._reaper.reap()
                    next_round = time.monotonic() + interval
                has_failed = False
            except StoreError:
                has_failed = True
                self._reaper.reset()
            except CallslipError:
                pass

    async def _renew(self, *owners: str) -> None:
        if not owners:
            return
        known = [owner for owner in owners if owner in self._owner_leases]
        lease = self.settings.owner_lease
        lease_end = time.monotonic() + lease

        def renew(unit: UnitOfWork) -> None:
            for owner in owners:
                unit.put_owner(OwnerRecord(owner, unit.now + int(lease * 1000)))

        await self.store.transact(renew)
        closed = [owner for owner in known if owner not in self._owner_leases]
        self._owner_leases.update({owner: lease_end for owner in owners if owner not in closed})
        for owner in closed:  # Its connection was closed meanwhile.
            await self.store.drop_owner(owner)
