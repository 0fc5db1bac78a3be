"""The ledger straight from its file, for commands that do one thing at a time: its loop runs while they wait for it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Generator
from typing import Any, TypeVar

import msgspec

from callslip.api.cancel import cancel_call
from callslip.api.commands import DEFAULT_QUEUE, CommandQueue
from callslip.api.ledger import Ledger
from callslip.api.sync import SyncLedger
from callslip.cli import ids, pieces
from callslip.cli.reach import Json, News, Session
from callslip.cli.rows import approval_json, call_json
from callslip.errors import ConflictError, CursorExpiredError, SlowReaderError
from callslip.ledger.call_entry import call_entry
from callslip.ledger.queries import state_after
from callslip.model.records import ApprovalRecord, CallRecord
from callslip.rules.fold import SessionFold
from callslip.store.protocol import StoredEvent

T = TypeVar("T")
SOURCE = "cli"
encode = msgspec.json.encode


@contextlib.contextmanager
def opened(url: str, flags: str) -> Generator[OnFile]:
    """The ledger of a file, open as long as the block lasts. Its loop runs apart: Ctrl-C never meets it."""
    with SyncLedger(url) as door:
        reach = OnFile(door, flags)
        try:
            yield reach
        finally:
            reach.close()


class OnFile:
    """Reads and writes the file itself."""

    names_answerer = True

    def __init__(self, door: SyncLedger, flags: str) -> None:
        self.flags = flags
        self._run = door.run
        self._ledger = door.ledger
        self._commands = CommandQueue(door.ledger.log)

    def close(self) -> None:
        """Stop what watches the commands."""
        self._run(self._commands.close())

    def _each(self, items: AsyncGenerator[T]) -> Generator[T]:
        """What an async generator gives, one by one."""
        stepping: list[asyncio.Task[Any] | None] = []

        async def step() -> list[T]:
            stepping[:] = [asyncio.current_task()]
            return [item] if (item := await anext(items, None)) is not None else []

        async def close() -> None:
            for task in stepping:  # After Ctrl-C it may still be on its way.
                if task is not None and not task.done():
                    task.cancel()
                    await asyncio.wait([task])
            await items.aclose()

        try:
            while got := self._run(step()):
                yield got[0]
        finally:
            self._run(close())

    # Finding

    def session(self, given: str) -> Session:
        row = self._run(self._ledger.find_session(given))
        return Session(row.name, row.last_seq, row.turn)

    def call(self, given: str, session: str = "") -> Json:
        return call_json(self._run(ids.find_call(self._ledger, given, session)))

    def approval(self, given: str) -> Json:
        return approval_json(self._run(ids.find_approval(self._ledger, given)))

    def blob(self, identity: str) -> bytes:
        return self._run(self._ledger.blob(identity))

    # Doing

    def answer(self, approval: Json, answer: Json, by: str) -> Json:
        try:
            return approval_json(self._run(self._answered(approval["approval"], answer, by)))
        except ConflictError as error:
            if isinstance(error.winner, ApprovalRecord):
                raise ConflictError(str(error), approval_json(error.winner)) from error
            raise

    async def _answered(self, identity: str, answer: Json, by: str) -> ApprovalRecord:
        option, reason = answer.get("option", ""), answer.get("reason", "")
        if answer["decision"] == "deny":
            reason = reason or f"denied by {by}"
            return await self._ledger.deny(identity, by=by, option=option, reason=reason)
        given = answer.get("input", msgspec.UNSET)
        return await self._ledger.approve(identity, by=by, option=option, input=given, reason=reason)

    def cancel(self, call: str, reason: str, by: str) -> Json:
        return self._run(self._cancelled(call, reason, by))

    async def _cancelled(self, call: str, reason: str, by: str) -> Json:
        try:
            record = await cancel_call(self._ledger.log, call, by=by, reason=reason, source=SOURCE)
        except ConflictError as error:
            if not isinstance(error.winner, CallRecord):
                raise
            record = error.winner
        return await self._shown(record)

    def submit(self, order: Json) -> Json:
        fields = {name: value for name, value in order.items() if name not in ("client", "approve")}
        queue, approval = order.get("client", DEFAULT_QUEUE), bool(order.get("approve"))
        made = self._run(self._commands.submit(**fields, queue=queue, approval=approval))
        return {"status": "queued", "correlation_id": made.correlation_id}

    def command(self, call: str) -> Json:
        return msgspec.to_builtins(self._run(self._commands.get(call)))

    def commands(self, client: str, limit: int) -> Json:
        return msgspec.to_builtins(self._run(self._listed(client, limit)))

    async def _listed(self, client: str, limit: int) -> Json:
        commands = self._commands
        lists = {"pending": commands.pending, "completed": commands.completed, "failed": commands.failed}
        return {name: await found(client, limit) for name, found in lists.items()}

    def wait(self, call: str, timeout: float | None) -> Json:
        return self._run(self._waited(call, timeout))

    async def _waited(self, call: str, timeout: float | None) -> Json:
        return await self._shown(await self._ledger.wait(call, timeout))

    async def _shown(self, row: Any) -> Json:
        return {**call_json(row), "toolCall": await call_entry(self._ledger.log, row)}

    # Whole sessions

    def export(self, session: Session, format: str, at: int | None) -> Generator[bytes]:
        return self._each(pieces.whole(self._ledger, session.name, format, at))

    def turn(self, session: Session, format: str, at: int | None, turn: str) -> Generator[bytes]:
        return self._each(pieces.turn(self._ledger, session.name, format, at, turn))

    def follow(self, session: str, format: str, after: int | None) -> Generator[News]:
        for batch in self._each(_follow(self._ledger, session, format, after)):
            yield from batch


async def _follow(ledger: Ledger, session: str, format: str, after: int | None) -> AsyncGenerator[list[News]]:
    """What a server streams, from the log itself. Who falls behind, or what retention overtakes, begins anew."""
    begun = False
    while True:
        try:
            async with contextlib.aclosing(_FOLLOWED[format](ledger, session, after)) as batches:
                async for batch in batches:
                    begun, after = True, batch[-1].seq
                    yield batch
        except SlowReaderError as slow:
            after = slow.cursor
        except CursorExpiredError:
            if format != "entries" or not begun:
                raise
            await ledger.find_session(session)  # It may be deleted.
            after = None


async def _events(ledger: Ledger, session: str, after: int | None) -> AsyncGenerator[list[News]]:
    if after is None:
        row = await ledger.find_session(session)
        after = row.pruned_seq
    async with contextlib.aclosing(ledger.log.batches(session, after)) as batches:
        async for batch in batches:
            yield [News("event", stored.event.seq, stored.body) for stored in batch]


async def _entries(ledger: Ledger, session: str, after: int | None) -> AsyncGenerator[list[News]]:
    if after is None:
        snapshot = await ledger.snapshot(session)
        yield [News("snapshot", snapshot.seq, encode(snapshot))]
        after = snapshot.seq
    async with contextlib.aclosing(ledger.log.batches(session, after)) as batches:
        state: SessionFold | None = None
        async for batch in batches:
            if state is None:
                state = await state_after(ledger.log.store, session, after) if after else SessionFold(session)
            yield [_patches(state, stored) for stored in batch]


def _patches(state: SessionFold, stored: StoredEvent) -> News:
    seq = stored.event.seq
    return News("patches", seq, encode({"seq": seq, "patches": state.apply(stored.event)}))


_FOLLOWED = {"events": _events, "entries": _entries}
