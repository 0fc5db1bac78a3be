"""Copy a complete ledger to another database, of the same engine or another one.

Each table of the target is made equal to that of a snapshot of the source: both are read in the order of their keys,
rows that differ are replaced, and rows that are missing are added. So a copy that was interrupted continues where it
is, also if the source has changed meanwhile. Then all rows are compared again, and the target is verified.
"""

from __future__ import annotations

import secrets
import time
from collections import deque
from collections.abc import Callable

import msgspec
from msgspec.structs import replace

from callslip.errors import InvalidInputError, StoreError
from callslip.ledger.event_log import EventLog
from callslip.ledger.verify import Problem, verify
from callslip.settings import Settings
from callslip.store import open as databases
from callslip.store.copying import (
    CALLS,
    EVENTS,
    OWNERS,
    SESSIONS,
    TABLES,
    CopyMark,
    CopySide,
    CopySource,
    CopyTarget,
    Key,
    Row,
    Table,
)

COPYING, COMPARING, VERIFYING = "copying", "comparing", "verifying"
STOPPED_OWNER = "copied:"
"""Before the name of an owner in the copy of a ledger in use: no process on any machine keeps alive what it owns."""


class CopyProgress(msgspec.Struct, frozen=True):
    """How far a copy is: the step, the table, and how many of its rows were read. `total` is 0 if it is not known."""

    step: str
    table: str
    rows: int
    total: int


class CopyReport(msgspec.Struct, frozen=True):
    """What a copy did: the rows of each table, how many were written, and the problems that `verify` found.

    `completed_at` is the time of an earlier run that had copied everything, in ms since the epoch, 0 if there was none.
    `is_resumed`: an earlier run was interrupted.
    """

    rows: dict[str, int]
    written: int
    problems: list[Problem]
    is_resumed: bool = False
    completed_at: int = 0


Listener = Callable[[CopyProgress], None]


async def copy_ledger(
    source_url: str, target_url: str, settings: Settings, *, snapshot: bool = False, listener: Listener | None = None
) -> CopyReport:
    """Copy a ledger to an empty database, or continue a copy.

    A source that another process may write to is refused, unless a `snapshot` of it is wanted.
    """
    source = await databases.open_copy_source(source_url, settings)
    try:
        if not snapshot and (users := await source.describe_users()):
            advice = "Stop what uses it, or copy its current state with --snapshot."
            raise StoreError(f"{source.display_name} is in use: {users}. {advice}")
        target = await databases.open_copy_target(target_url, settings)
        try:
            return await _Copy(source, target, target_url, settings, snapshot, listener).run()
        finally:
            await target.close()
    finally:
        await source.close()


class _Copy:
    """One run of a copy."""

    def __init__(
        self,
        source: CopySource,
        target: CopyTarget,
        target_url: str,
        settings: Settings,
        snapshot: bool,
        listener: Listener | None,
    ) -> None:
        self._source = source
        self._target = target
        self._target_url = target_url
        self._settings = settings
        self._snapshot = snapshot
        self._listener = listener
        self._event_count = 0

    async def run(self) -> CopyReport:
        """Copy what is missing, check the result, and complete the copy."""
        earlier = await self._find_earlier_copy()
        if earlier is not None and earlier.completed_at:
            return CopyReport({}, 0, [], completed_at=earlier.completed_at)
        mark = CopyMark(self._source.identity, self._source.display_name, secrets.token_hex(8))
        await self._target.begin(mark)
        self._event_count = await self._source.count_events()
        written = 0
        for table in TABLES:
            _, changed = await self._read_both(table, COPYING)
            written += changed
        rows: dict[str, int] = {}
        for table in TABLES:
            rows[table.name], changed = await self._read_both(table, COMPARING)
            if changed:
                raise StoreError(f"{self._target.display_name}: {changed} rows of {table.name} differ after the copy")
        if not self._snapshot and await self._source.has_changed():
            raise StoreError(
                f"{self._source.display_name} was written during the copy. Stop what uses it, then run this again."
            )
        await self._target.finish(await self._source.counters())
        self._report(VERIFYING)
        problems = await self._verify()
        await self._target.complete(replace(mark, completed_at=int(time.time() * 1000)))
        return CopyReport(rows, written, problems, is_resumed=earlier is not None)

    async def _find_earlier_copy(self) -> CopyMark | None:
        """Return the mark of an earlier copy of this source, or raise if the target has something else."""
        if self._source.identity == self._target.identity:
            raise InvalidInputError("TO", "is the same database as FROM")
        name = self._target.display_name
        mark = await self._target.mark()
        if mark is not None and mark.source == self._source.identity:
            return mark
        if mark is not None and not mark.completed_at:
            raise StoreError(f"{name} is an incomplete copy of {mark.name}. Finish that copy, or use another database.")
        if not await self._target.is_empty():
            raise StoreError(f"{name} already contains a ledger. Use an empty database or another file.")
        return None

    async def _read_both(self, table: Table, step: str) -> tuple[int, int]:
        """Compare a table in both databases; when copying, write what differs. Return its rows and how many differ.

        In memory are a page of each database and the rows to write, for any size of the table.
        """
        source = _Rows(self._source, table, _stop_owner if self._snapshot else None)
        target = _Rows(self._target, table)
        count = changed = 0
        while True:
            await source.fill()
            await target.fill()
            if not source.rows and not target.rows:
                return count, changed
            removed, added, equal = _compare(table, source, target)
            if step == COPYING and (removed or added):
                await self._target.write(table, removed, added)
            count += equal + len(added)
            changed += max(len(removed), len(added))
            self._report(step, table, count)

    def _report(self, step: str, table: Table | None = None, rows: int = 0) -> None:
        if self._listener is not None:
            total = self._event_count if table is EVENTS else 0
            self._listener(CopyProgress(step, table.name if table else "", rows, total))

    async def _verify(self) -> list[Problem]:
        """Derive the records of the target again from its log, as `callslip verify` does."""
        store = await databases.open_incomplete(self._target_url, self._settings)
        try:
            return await verify(EventLog(store, self._settings))
        finally:
            await store.close()


class _Rows:
    """The rows of a table in order, of which a page is read at a time."""

    def __init__(self, side: CopySide, table: Table, convert: Callable[[Table, Row], Row] | None = None) -> None:
        self.rows: deque[Row] = deque()
        self.has_ended = False
        self._side = side
        self._table = table
        self._convert = convert
        self._last: Key | None = None

    async def fill(self) -> None:
        """Read the next page if all rows of the last one were taken."""
        if self.rows or self.has_ended:
            return
        page = await self._side.read(self._table, self._last)
        self.has_ended = not page
        if page:
            self._last = self._table.key(page[-1])
            self.rows.extend(page if self._convert is None else [self._convert(self._table, row) for row in page])


def _compare(table: Table, source: _Rows, target: _Rows) -> tuple[list[Key], list[Row], int]:
    """Take rows until a page ends; return the keys to remove from the target, the rows to add, and how many are equal.

    A row that differs is removed and added.
    """
    removed: list[Key] = []
    added: list[Row] = []
    equal = 0
    while True:
        if source.rows and target.rows:
            wanted, found = table.key(source.rows[0]), table.key(target.rows[0])
            if wanted < found:
                added.append(source.rows.popleft())
            elif wanted > found:
                target.rows.popleft()
                removed.append(found)
            elif (row := source.rows.popleft()) == target.rows.popleft():
                equal += 1
            else:
                removed.append(found)
                added.append(row)
        elif source.rows and target.has_ended:
            added.append(source.rows.popleft())
        elif target.rows and source.has_ended:
            removed.append(table.key(target.rows.popleft()))
        else:
            return removed, added, equal


def _stop_owner(table: Table, row: Row) -> Row:
    """Return a row in which the owner of a call or turn has another name.

    Its process keeps alive what it owns in the source, not in the copy. There it ends after a lease, like any other
    call whose process stopped.
    """
    if table is OWNERS:
        return (STOPPED_OWNER + row[0], *row[1:])
    if table is SESSIONS and row[-1].turn_owner:
        return (*row[:-1], replace(row[-1], turn_owner=STOPPED_OWNER + row[-1].turn_owner))
    if table is CALLS and row[-1].owner:
        return (*row[:-1], replace(row[-1], owner=STOPPED_OWNER + row[-1].owner))
    return row
