"""Read a SQLite file for a copy, and fill one.

A file is in use if another process holds the lock of users (`write_lock`). A process of a version without that lock is
noticed by what it writes.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Sequence
from typing import Any

from msgspec.structs import astuple, replace

from callslip.errors import NotFoundError, StoreError, UnsupportedVersionError
from callslip.settings import Settings
from callslip.store import sqlite_open
from callslip.store.copying import (
    DATA_TABLES,
    MARK,
    PAGE_BYTES,
    PAGE_ROWS,
    CopyMark,
    Counters,
    Key,
    Row,
    Table,
    encode_mark,
    read_mark,
    row_bytes,
)
from callslip.store.ledger_files import create_database
from callslip.store.shared_rows import first_value
from callslip.store.sql import Connection, migrations
from callslip.store.sqlite_rows import (
    SQL,
    approval_row,
    approval_values,
    call_row,
    number_changes,
    put_many,
    session_row,
    session_values,
)
from callslip.store.write_lock import WriteLock, is_used

IDS = ("sessions", "conversations")
"""The tables whose ids are never given again."""


def _read_session(row: Row) -> Row:
    record = session_row(row)
    return record.id, record


def _read_call(row: Row) -> Row:
    return row[1], row[0], replace(call_row(row[1:]), change=0)


def _read_approval(row: Row) -> Row:
    return row[1], row[0], approval_row(row[1:])


_RECORD_READERS: dict[str, Callable[[Row], Row]] = {
    "sessions": _read_session,
    "calls": _read_call,
    "approvals": _read_approval,
}


def _select(table: Table, is_first: bool, where: str) -> str:
    if table.is_of_records:
        return SQL[f"copy_{table.name}" if is_first else f"copy_{table.name}_after"]
    keys = ", ".join(table.key_names)
    columns = ", ".join(
        f"CAST({name} AS BLOB)" if (name, kind) == ("text", "bytea") else name for name, kind in table.columns
    )
    conditions = [where] if where else []
    if not is_first:
        conditions.append(f"({keys}) > ({', '.join('?' * table.key_columns)})")
    where = f"WHERE {' AND '.join(conditions)} " if conditions else ""
    return f"SELECT {columns} FROM {table.name} t {where}ORDER BY {keys} LIMIT ?"


class _Side:
    """A file that a copy reads."""

    def __init__(self, path: str, connection: Connection) -> None:
        self.path = self.display_name = path
        self.identity = _identity(path)
        self._connection = connection

    async def read(self, table: Table, after: Key | None) -> list[Row]:
        """Return the next rows of a table after a key, at least one; none at the end."""
        convert = _RECORD_READERS.get(table.name, tuple)
        rows: list[Row] = []
        left = PAGE_BYTES
        with sqlite_open.translate_errors(self.path):
            cursor = self._connection.execute(
                _select(table, after is None, self._where(table)), (*(after or ()), PAGE_ROWS)
            )
            for row in cursor:
                left -= row_bytes(row)
                if left < 0 and rows:
                    break
                rows.append(convert(row))
            cursor.close()
        return rows

    def _where(self, table: Table) -> str:
        return ""

    def _all(self, sql: str, *values: Any) -> list[Row]:
        with sqlite_open.translate_errors(self.path):
            return self._connection.execute(sql, values).fetchall()


class SqliteCopySource(_Side):
    """A snapshot of a file; see `CopySource`."""

    def __init__(self, path: str, settings: Settings) -> None:
        if not os.path.exists(path):
            raise NotFoundError(f"no ledger at {path}")
        with sqlite_open.translate_errors(path):
            sqlite_open.check_file(path, settings)
            # Sees the commits of others; the other connection keeps its snapshot.
            self._watch = sqlite_open.connect(path, "", settings, read_only=True)
            try:
                connection = sqlite_open.connect(path, "", settings, read_only=True)
            except BaseException:
                self._watch.close()
                raise
        super().__init__(path, connection)
        try:
            self._begin()
        except BaseException:
            self._close()
            raise

    def _begin(self) -> None:
        with sqlite_open.translate_errors(self.path):
            write_lock = WriteLock()
            version = sqlite_open.prepare(self._connection, self.path, write_lock, read_only=True)
            newest = migrations("sqlite")[-1][0]
            if not version:
                raise NotFoundError(f"no ledger at {self.path}: the file is empty")
            if version < newest:
                raise StoreError(
                    f"{self.path} has schema {version}. Migrate it first: callslip admin migrate --db {self.path}"
                )
            if version > newest:
                raise UnsupportedVersionError(
                    f"{self.path} has schema {version}, this version copies schema {newest}. Upgrade Callslip."
                )
            self._version = self._data_version()
            self._connection.execute("BEGIN")
            self._connection.execute("SELECT count(*) FROM meta").fetchall()  # The first read starts the snapshot.

    def _where(self, table: Table) -> str:
        return table.where

    def _data_version(self) -> int:
        return self._watch.execute("PRAGMA data_version").fetchall()[0][0]

    async def describe_users(self) -> str:
        """Return which other processes may write to the file now, "" if there are none."""
        return "another process has it open" if is_used(self.path) else ""

    async def has_changed(self) -> bool:
        """Return whether the file was written since the snapshot began."""
        with sqlite_open.translate_errors(self.path):
            return self._data_version() != self._version

    async def counters(self) -> Counters:
        """Return the last ids of sessions and conversations."""
        return Counters(*(first_value(self._all("SELECT seq FROM sqlite_sequence WHERE name = ?", n), 0) for n in IDS))

    async def count_events(self) -> int:
        """Return about how many events there are."""
        return first_value(self._all("SELECT coalesce(sum(head - low), 0) FROM sessions"))

    async def close(self) -> None:
        self._close()

    def _close(self) -> None:
        self._connection.close()
        self._watch.close()


class SqliteCopyTarget(_Side):
    """A file that a copy fills; see `CopyTarget`."""

    def __init__(self, path: str, settings: Settings) -> None:
        self._write_lock = WriteLock()
        self._mark = ""
        with contextlib.ExitStack() as stack, sqlite_open.translate_errors(path):
            sqlite_open.check_file(path, settings)
            os.makedirs(os.path.dirname(os.path.abspath(path)), exist_ok=True)
            self._write_lock.open(path)
            stack.callback(self._write_lock.close)
            create_database(path)
            connection = sqlite_open.connect(path, "", settings)
            stack.callback(connection.close)
            version = sqlite_open.prepare(connection, path, self._write_lock, read_only=False, allows_incomplete=True)
            newest = migrations("sqlite")[-1][0]
            if version > newest:
                raise UnsupportedVersionError(f"{path} has schema {version}, this version writes schema {newest}")
            super().__init__(path, connection)
            stack.pop_all()

    async def mark(self) -> CopyMark | None:
        """Return the mark of an earlier copy."""
        return read_mark(first_value(self._all("SELECT value FROM meta WHERE name = ?", MARK)))

    async def is_empty(self) -> bool:
        """Return whether the file has no data."""
        return not any(self._all(f"SELECT 1 FROM {name} LIMIT 1") for name in DATA_TABLES)

    async def begin(self, mark: CopyMark) -> None:
        """Store the mark. Older versions, which do not know it, cannot open the file either."""
        if is_used(self.path, self._write_lock):
            raise StoreError(f"{self.path} is in use: another process has it open. Stop it first.")
        is_new = await self.mark() is None

        def begin() -> None:
            self._put_mark(mark)
            self._put_oldest_reader(migrations("sqlite")[-1][0])

        def undo() -> None:
            self._all("DELETE FROM meta WHERE name = ?", MARK)
            self._put_oldest_reader(sqlite_open.OLDEST_READER)

        self._transact(begin, is_begun=False)
        self._mark = encode_mark(mark)
        if is_used(self.path, self._write_lock):  # It may have opened the file before it had the mark.
            if is_new:
                self._transact(undo)
            raise StoreError(f"{self.path} is in use: another process has opened it. Stop it, then run this again.")
        self._all("PRAGMA synchronous = NORMAL")

    def _put_mark(self, mark: CopyMark) -> None:
        self._all("INSERT OR REPLACE INTO meta (name, value) VALUES (?, ?)", MARK, encode_mark(mark))

    def _put_oldest_reader(self, version: int) -> None:
        self._all("INSERT OR REPLACE INTO meta (name, value) VALUES ('oldest_reader', ?)", str(version))

    def _transact(self, work: Callable[[], None], *, is_begun: bool = True) -> None:
        with sqlite_open.translate_errors(self.path), self._write_lock.turn():
            self._connection.execute("BEGIN IMMEDIATE")
            try:
                if is_begun and self._all("SELECT value FROM meta WHERE name = ?", MARK) != [(self._mark,)]:
                    raise StoreError(f"{self.display_name}: another process continues this copy")
                work()
            except BaseException:
                self._connection.execute("ROLLBACK")
                raise
            self._connection.execute("COMMIT")

    async def write(self, table: Table, removed: list[Key], added: list[Row]) -> None:
        """Remove and add rows in one transaction; see `CopyTarget`."""

        def write() -> None:
            if removed:
                self._connection.executemany(_delete(table, table.key_names), removed)
            if added and table.unique:
                self._connection.executemany(_delete(table, table.unique), map(table.unique_values, added))
            if added:
                self._add(table, added)

        self._transact(write)

    def _add(self, table: Table, rows: list[Row]) -> None:
        match table.name:
            case "sessions":
                put_many(self._connection, "put_session", [session_values(record) for _, record in rows])
            case "calls":
                records = [replace(record, session=session) for _, session, record in rows]
                number_changes(self._connection, [record for record in records if record.client])
                put_many(self._connection, "put_call", [astuple(record) for record in records])
            case "approvals":
                put_many(
                    self._connection, "put_approval", [approval_values(session, record) for _, session, record in rows]
                )
            case _:
                self._connection.executemany(_insert(table), rows)

    async def finish(self, counters: Counters) -> None:
        """Keep the ids of deleted sessions and conversations from being given again."""

        def finish() -> None:
            for name, last in zip(IDS, (counters.sessions, counters.conversations), strict=True):
                if not self._all("SELECT 1 FROM sqlite_sequence WHERE name = ?", name):
                    self._all("INSERT INTO sqlite_sequence (name, seq) VALUES (?, 0)", name)
                self._all("UPDATE sqlite_sequence SET seq = max(seq, ?) WHERE name = ?", last, name)

        self._transact(finish)

    async def complete(self, mark: CopyMark) -> None:
        """Replace the mark: from now on the file is a ledger. All that was written is durable."""

        def complete() -> None:
            self._put_mark(mark)
            self._put_oldest_reader(sqlite_open.OLDEST_READER)

        self._all("PRAGMA synchronous = FULL")
        self._transact(complete)
        self._mark = encode_mark(mark)

    async def close(self) -> None:
        self._connection.close()
        self._write_lock.close()


def _delete(table: Table, names: Sequence[str]) -> str:
    return f"DELETE FROM {table.name} WHERE {' AND '.join(f'{name} = ?' for name in names)}"


def _insert(table: Table) -> str:
    names = [*table.names, *(name for name, _ in table.constants)]
    values = ["CAST(? AS TEXT)" if name == "text" else "?" for name in table.names]
    values += [value for _, value in table.constants]
    return f"INSERT INTO {table.name} ({', '.join(names)}) VALUES ({', '.join(values)})"


def _identity(path: str) -> str:
    return f"sqlite:{os.path.realpath(path)}"
