"""Lose the connection of a write to PostgreSQL at its commit: before the server runs it, or before the answer."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Generator
from typing import Any
from unittest import mock

import asyncpg
import msgspec

from callslip.errors import StoreError
from callslip.store.postgres_database import LostConnectionError
from callslip.store.postgres_writer import Lane
from tests.support import engines

COMMITS = ("COMMIT", "SELECT reason")
"""The start of the statements that commit: of a transaction, and of a group, which is one statement."""
OMITTED_TABLES = ("lanes",)
OMITTED_COLUMNS = {
    ("sessions", "id"),
    ("calls", "change"),
    ("conversations", "id"),
    ("inputs", "conversation"),
    ("search_rows", "id"),
    ("search_rows", "words"),
    ("deleted_sessions", "deleted_at"),
}
"""The columns that differ between equal ledgers: numbers of rows, sessions and transactions, and times."""
COLUMNS = """
SELECT c.relname::text, a.attname::text, format_type(a.atttypid, NULL) FROM pg_attribute a
JOIN pg_class c ON c.oid = a.attrelid WHERE c.relkind = 'r' AND c.relnamespace = current_schema()::regnamespace
AND a.attnum > 0 ORDER BY c.relname, a.attnum
"""
ORDERED_IDS = """
SELECT r.id FROM (
  SELECT 1 AS kind, c.id, c.session, c.entry FROM calls c UNION ALL
  SELECT 2, a.id, a.session, a.entry FROM approvals a) r
JOIN sessions s ON s.id = r.session ORDER BY r.kind, s.name, r.entry
"""
_IDENTITY = re.compile(r"(exec|appr|tok|rule)_[0-9a-f]{12}")


class LostAnswer:
    """The loss of the connection at one commit, the first one if `number` is 1; 0 loses none and counts all.

    `is_done`: the server has committed. `is_unreachable`: no new connection is possible afterwards, so that the
    outcome of the commit stays unknown to the writer. Nothing happens while the fault is not armed.
    """

    def __init__(self, number: int, *, is_done: bool = True, is_unreachable: bool = False) -> None:
        self.number = number
        self.is_done = is_done
        self.is_unreachable = is_unreachable
        self.count = 0
        self.is_armed = False

    @property
    def has_happened(self) -> bool:
        return 0 < self.number <= self.count

    @property
    def is_down(self) -> bool:
        """Whether the server cannot be reached now."""
        return self.is_armed and self.has_happened and self.is_unreachable

    @contextlib.contextmanager
    def injected(self) -> Generator[None]:
        """Apply this to the connections that write."""
        connect, is_committed = Lane.connect, Lane.is_committed
        fault, is_resolving = self, False

        async def connect_faulty(lane: Lane) -> Any:
            if fault.is_down:
                lane.drop()
                # Only the search for the outcome may try again, so that no test waits for the deadline of a write.
                kind = LostConnectionError if is_resolving else StoreError
                raise kind("the server cannot be reached")
            return _Connection(await connect(lane), fault)

        async def resolve(lane: Lane, until: float) -> bool:
            nonlocal is_resolving
            is_resolving = True
            try:
                return await is_committed(lane, 0.0 if fault.is_down else until)  # At 0 its time is over.
            finally:
                is_resolving = False

        with mock.patch.object(Lane, "connect", connect_faulty), mock.patch.object(Lane, "is_committed", resolve):
            yield


class _Connection:
    """A connection that is lost at the chosen commit."""

    def __init__(self, connection: Any, fault: LostAnswer) -> None:
        self._connection = connection
        self._fault = fault

    def __getattr__(self, name: str) -> Any:
        return getattr(self._connection, name)

    async def fetch(self, sql: str, *values: Any, **options: Any) -> Any:
        return await self._run(self._connection.fetch, sql, *values, **options)

    async def execute(self, sql: str, *values: Any, **options: Any) -> Any:
        return await self._run(self._connection.execute, sql, *values, **options)

    async def _run(self, run: Any, sql: str, *values: Any, **options: Any) -> Any:
        fault = self._fault
        if not fault.is_armed or not sql.startswith(COMMITS):
            return await run(sql, *values, **options)
        fault.count += 1
        if fault.count != fault.number:
            return await run(sql, *values, **options)
        if fault.is_done:
            await run(sql, *values, **options)
        self._connection.terminate()
        if fault.is_done:
            raise ConnectionResetError("connection lost")
        # What the driver raises if the server has ended the connection before the statement was sent.
        raise asyncpg.InternalClientError("cannot switch to state 12; another operation (2) is in progress")


# Comparing ledgers


class Tables:
    """The rows of all tables of a database, to compare two ledgers in it."""

    def __init__(self, url: str) -> None:
        self._url = url
        columns = engines.fetch_rows(url, COLUMNS)
        self._names = sorted({table for table, _, _ in columns})
        self._selects = [
            f"SELECT '{name}', row({', '.join(_expression(*column) for column in columns if column[0] == name)})::text "
            f"FROM {name} t"
            for name in self._names
            if name not in OMITTED_TABLES
        ]

    def clear(self) -> None:
        """Delete all rows but those that say which schema the tables have."""
        deletions = [f"DELETE FROM {name}" for name in self._names if name != "meta"]
        engines.change_rows(self._url, "; ".join(deletions))

    def read(self) -> list[str]:
        """Return all rows as texts, with generated ids replaced by names that are the same for equal ledgers."""
        known = {id: f"#{number}" for number, (id,) in enumerate(engines.fetch_rows(self._url, ORDERED_IDS))}
        rows = engines.fetch_rows(self._url, " UNION ALL ".join(self._selects))
        return sorted(f"{table} {hide_ids(text, known)}" for table, text in rows)


def _expression(table: str, column: str, kind: str) -> str:
    if (table, column) in OMITTED_COLUMNS:
        return "''"
    if column == "session" and kind == "bigint":
        return "(SELECT s.name FROM sessions s WHERE s.id = t.session)"
    return f"encode(t.{column}, 'escape')" if kind == "bytea" else f"t.{column}"


def hide_ids(text: str, known: dict[str, str] | None = None) -> str:
    """Replace generated ids in a text by known names, others by the order in which they appear."""
    names = dict(known or {})
    return _IDENTITY.sub(lambda match: names.setdefault(match[0], f"new {match[1]} {len(names)}"), text)


def describe(value: object) -> str:
    """Return a result, or the error of an operation, as a text that is the same for equal ledgers."""
    if isinstance(value, Exception):
        return hide_ids(f"{type(value).__name__}: {value}")
    return hide_ids(msgspec.json.encode(value).decode())
