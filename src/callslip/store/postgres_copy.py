"""Read a PostgreSQL database for a copy, and fill one.

A database is in use if it has other connections of Callslip, which have its name. A pooler may hide them, so what was
written meanwhile is noticed by the lanes of writers: every write changes one.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any, Self

import asyncpg  # pyright: ignore[reportMissingTypeStubs]
from msgspec.structs import replace

from callslip.errors import NotFoundError, ReadOnlyStoreError, StoreError, UnsupportedVersionError
from callslip.settings import Settings
from callslip.store.copying import (
    DATA_TABLES,
    MARK,
    PAGE_BYTES,
    PAGE_ROWS,
    TABLES,
    CopyMark,
    Counters,
    Key,
    Row,
    Table,
    encode_mark,
    read_mark,
    require_complete,
)
from callslip.store.postgres_database import (
    APPLICATION_NAME,
    Connection,
    Database,
    close_connection,
    is_read_only,
    prepare,
    read_copy_mark,
    require_tables,
    schema_version,
    translate_errors,
)
from callslip.store.postgres_rows import (
    approval_body,
    approval_record,
    call_body,
    call_record,
    session_body,
    session_record,
)
from callslip.store.sql import migrations, statements

SQL = statements("postgres.sql")
STATEMENT_S = 600.0
"""How long one statement of a copy may take."""
LEAVE_S = 5.0
"""How long connections of processes that have ended may take to disappear."""
LEAVE_POLL_S = 0.1
TRANSACTION = """
SET LOCAL enable_seqscan = off; SET LOCAL enable_sort = off; SET LOCAL enable_bitmapscan = off;
SET LOCAL idle_in_transaction_session_timeout = 0; SET LOCAL statement_timeout = 0
"""
"""Settings of transactions: pages are read in the order of an index, also if the server has no statistics yet."""


def _read_session(row: Sequence[Any]) -> Row:
    return row[0], session_record(row)


def _read_call(row: Sequence[Any]) -> Row:
    return row[0], row[1], call_record(("", 0, row[2]))


def _read_approval(row: Sequence[Any]) -> Row:
    return row[0], row[1], approval_record(("", row[2]))


_RECORD_READERS: dict[str, Callable[[Sequence[Any]], Row]] = {
    "sessions": _read_session,
    "calls": _read_call,
    "approvals": _read_approval,
}
_SESSION_COLUMNS = ("id", "name", "rev", "head", "low", "updated_at", "turn_owner", "record")


def _select(table: Table, is_first: bool, where: str) -> str:
    """Return a query for a page: up to PAGE_ROWS rows and PAGE_BYTES bytes, but at least one row."""
    keys = ", ".join(table.key_names)
    names = _SESSION_COLUMNS if table.name == "sessions" else table.names
    columns = ", ".join(names)
    conditions = [where] if where else []
    if not is_first:
        values = ", ".join(f"${number}" for number in range(1, table.key_columns + 1))
        conditions.append(f"({keys}) > ({values})")
    where = f"WHERE {' AND '.join(conditions)} " if conditions else ""
    rows = f"FROM {table.name} t {where}ORDER BY {keys} LIMIT {PAGE_ROWS}"
    if not table.large_columns:
        return f"SELECT {columns} {rows}"
    size = " + ".join(f"octet_length({name})" for name in table.large_columns)
    return f"""
        SELECT {columns} FROM (
          SELECT r.*, sum(r.row_bytes) OVER before AS page_bytes, row_number() OVER before AS page_row
          FROM (SELECT {columns}, {size} AS row_bytes {rows}) r
          WINDOW before AS (ORDER BY {keys} ROWS UNBOUNDED PRECEDING)) p
        WHERE page_bytes <= {PAGE_BYTES} OR page_row = 1 ORDER BY {keys}
    """


class _Side:
    """A database that a copy reads with one connection."""

    def __init__(self, database: Database, connection: Connection, identity: str) -> None:
        self.identity = identity
        self.display_name = database.name
        self._database = database
        self._connection = connection

    async def read(self, table: Table, after: Key | None) -> list[Row]:
        """Return the next rows of a table after a key, at least one; none at the end."""
        convert = _RECORD_READERS.get(table.name, tuple)
        with translate_errors(self.display_name):
            rows = await self._fetch(_select(table, after is None, self._where(table)), *(after or ()))
        return [convert(row) for row in rows]

    def _where(self, table: Table) -> str:
        return ""

    async def _fetch(self, sql: str, *values: Any) -> list[Sequence[Any]]:
        return await self._connection.fetch(sql, *values, timeout=STATEMENT_S)

    async def _execute(self, sql: str, *values: Any) -> None:
        await self._connection.execute(sql, *values, timeout=STATEMENT_S)

    async def close(self) -> None:
        await close_connection(self._connection)


class PostgresCopySource(_Side):
    """A snapshot of a database; see `CopySource`."""

    def __init__(self, database: Database, connection: Connection, identity: str) -> None:
        super().__init__(database, connection, identity)
        self._lanes: Sequence[Any] = ()
        self._is_standby = False

    @classmethod
    async def open(cls, url: str, settings: Settings) -> Self:
        """Connect and begin the snapshot."""
        database, connection = await _connect(url, settings)
        try:
            with translate_errors(database.name):
                await _require_ledger(connection, database.name)
                source = cls(database, connection, await _identity(connection))
                await source._begin()
        except BaseException:
            connection.terminate()
            raise
        return source

    async def _begin(self) -> None:
        self._is_standby = (await self._fetch("SELECT pg_is_in_recovery()"))[0][0]
        await self._execute(f"BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY; {TRANSACTION}")
        self._lanes = (await self._fetch(SQL["lanes_used"]))[0]  # The first read starts the snapshot.

    def _where(self, table: Table) -> str:
        return table.where

    async def describe_users(self) -> str:
        """Return which other processes may write to the database now, "" if there are none."""
        if self._is_standby:
            return "it is a standby, and its primary server may be in use"
        return await _describe_users(self._database)

    async def has_changed(self) -> bool:
        """Return whether the database was written since the snapshot began."""
        connection = await self._database.connect()
        try:
            with translate_errors(self.display_name):
                await connection.execute(f"BEGIN; {TRANSACTION}")
                rows = await connection.fetch(SQL["lanes_used"], timeout=STATEMENT_S)
                return tuple(rows[0]) != tuple(self._lanes)
        finally:
            await close_connection(connection)

    async def counters(self) -> Counters:
        """Return the last ids of sessions and conversations."""
        with translate_errors(self.display_name):
            return Counters(*(await self._fetch(SQL["last_ids"]))[0])

    async def count_events(self) -> int:
        """Return about how many events there are."""
        with translate_errors(self.display_name):
            return (await self._fetch("SELECT coalesce(sum(head - low), 0)::bigint FROM sessions"))[0][0]


class PostgresCopyTarget(_Side):
    """A database that a copy fills; see `CopyTarget`."""

    def __init__(self, database: Database, connection: Connection, identity: str, *, is_new: bool) -> None:
        super().__init__(database, connection, identity)
        self._is_new = is_new
        self._mark = ""

    @classmethod
    async def open(cls, url: str, settings: Settings) -> Self:
        """Connect, and create the tables if needed."""
        database, connection = await _connect(url, settings)
        try:
            with translate_errors(database.name):
                if await is_read_only(connection):
                    raise ReadOnlyStoreError(f"{database.name} can only be read")
                version = await prepare(connection, database.name, migrate=True)
                if version > _newest():
                    raise UnsupportedVersionError(
                        f"{database.name} has schema {version}, this version writes schema {_newest()}"
                    )
                await _require_rights(connection, database.name)
                return cls(database, connection, await _identity(connection), is_new=not version)
        except BaseException:
            connection.terminate()
            raise

    async def read(self, table: Table, after: Key | None) -> list[Row]:
        """Return the next rows of a table after a key, at least one; none at the end."""
        async with self._transaction():
            return await super().read(table, after)

    async def mark(self) -> CopyMark | None:
        """Return the mark of an earlier copy."""
        with translate_errors(self.display_name):
            return read_mark(await read_copy_mark(self._connection))

    async def is_empty(self) -> bool:
        """Return whether the database has no data."""
        exists = " OR ".join(f"EXISTS (SELECT 1 FROM {name})" for name in DATA_TABLES)
        with translate_errors(self.display_name):
            return not (await self._fetch(f"SELECT {exists}"))[0][0]

    async def begin(self, mark: CopyMark) -> None:
        """Store the mark. Earlier runs of this copy cannot write any more."""
        is_new_copy = await self.mark() is None
        async with self._transaction():
            await self._execute(SQL["put_meta"], MARK, encode_mark(mark))
        self._mark = encode_mark(mark)
        if is_new_copy and not self._is_new and (users := await _describe_users(self._database)):
            async with self._transaction(is_begun=True):  # They may have opened it before it had the mark.
                await self._execute("DELETE FROM meta WHERE name = $1", MARK)
            raise StoreError(f"{self.display_name} is in use: {users}. Stop them first.")

    @asynccontextmanager
    async def _transaction(self, *, is_begun: bool = False, is_durable: bool = True) -> AsyncGenerator[None]:
        """Run a transaction. If the copy is begun, another process must not have replaced its mark."""
        with translate_errors(self.display_name):
            durability = "" if is_durable else "; SET LOCAL synchronous_commit = off"
            await self._execute(f"BEGIN; {TRANSACTION}{durability}")
            try:
                if is_begun:
                    rows = await self._fetch("SELECT value FROM meta WHERE name = $1 FOR UPDATE", MARK)
                    if [row[0] for row in rows] != [self._mark]:
                        raise StoreError(f"{self.display_name}: another process continues this copy")
                yield
                await self._execute("COMMIT")
            except BaseException:
                if not self._connection.is_closed():
                    await self._execute("ROLLBACK")
                raise

    async def write(self, table: Table, removed: list[Key], added: list[Row]) -> None:
        """Remove and add rows in one transaction; see `CopyTarget`.

        An operating system that fails may undo it, but not parts of it.
        """
        try:
            async with self._transaction(is_begun=True, is_durable=False):
                if removed:
                    keys = table.columns[: table.key_columns]
                    await self._execute(_delete(table, keys), *_columns(removed))
                if added and table.unique:
                    values = list(map(table.unique_values, added))
                    await self._execute(_delete(table, [(name, "text") for name in table.unique]), *_columns(values))
                if added:
                    await self._add(table, added)
        except StoreError as error:
            if not isinstance(error.__cause__, asyncpg.DataError):
                raise
            problem = f"{self.display_name}: a row of {table.name} cannot be stored: {error.__cause__}"
            raise StoreError(problem) from error

    async def _add(self, table: Table, rows: list[Row]) -> None:
        match table.name:
            case "sessions":
                await self._execute(SQL["copy_sessions"], *_columns([_session_values(record) for _, record in rows]))
            case "calls":
                await self._execute(SQL["copy_calls"], *_columns([_call_values(*row) for row in rows]))
            case "approvals":
                await self._execute(SQL["copy_approvals"], *_columns([_approval_values(*row) for row in rows]))
            case _:
                await self._execute(_insert(table), *_columns(rows))

    async def finish(self, counters: Counters) -> None:
        """Count the pending commands of each queue, keep ids from being given again, and collect statistics."""
        async with self._transaction(is_begun=True):
            await self._execute("DELETE FROM queues")
            await self._execute(SQL["count_queues"])
            await self._fetch(SQL["keep_ids"], counters.sessions, counters.conversations)
        for table in TABLES:
            async with self._transaction(is_begun=True):
                await self._execute(f"ANALYZE {table.name}")

    async def complete(self, mark: CopyMark) -> None:
        """Replace the mark: from now on the database is a ledger. All that was written is durable."""
        async with self._transaction(is_begun=True):
            await self._execute(SQL["put_meta"], MARK, encode_mark(mark))
        self._mark = encode_mark(mark)


def _newest() -> int:
    return migrations("postgres")[-1][0]


async def _connect(url: str, settings: Settings) -> tuple[Database, Connection]:
    """Open a connection whose name differs from those of other copies."""
    database = Database(url, settings)
    database.application_name = f"{APPLICATION_NAME} copy {secrets.token_hex(4)}"
    connection = await database.connect_first()
    if database.has_pooler:
        await close_connection(connection)
        connection = await database.connect()
    return database, connection


async def _require_ledger(connection: Connection, name: str) -> None:
    """Raise an error unless the database has a complete ledger of the newest schema."""
    version = await schema_version(connection)
    if not version:
        raise NotFoundError(f"{name} contains no ledger")
    if version > _newest():
        raise UnsupportedVersionError(
            f"{name} has schema {version}, this version copies schema {_newest()}. Upgrade Callslip."
        )
    if version < _newest():
        raise StoreError(f"{name} has schema {version}. Migrate it first: callslip admin migrate --db {name}")
    await require_tables(connection, name, version)
    require_complete(await read_copy_mark(connection), name)


async def _require_rights(connection: Connection, name: str) -> None:
    """Raise an error if a user may not fill a database. Only the end of a copy would else find out."""
    tables = [*(table.name for table in TABLES), "meta", "queues"]
    missing = [row[0] for row in await connection.fetch(SQL["missing_rights"], tables)]
    if missing:
        others = f", and {len(missing) - 3} others" if len(missing) > 3 else ""
        raise ReadOnlyStoreError(
            f"{name}: a copy needs rights that this user does not have: {', '.join(missing[:3])}{others}. "
            "Use the owner of the tables."
        )


async def _identity(connection: Connection) -> str:
    return f"postgresql:{(await connection.fetch(SQL['identity']))[0][0]}"


async def _describe_users(database: Database) -> str:
    """Return the connections of other processes to a database, "" if there are none within LEAVE_S."""
    connection = await database.connect()
    until = time.monotonic() + LEAVE_S
    try:
        with translate_errors(database.name):
            while True:
                rows = await connection.fetch(SQL["users"], APPLICATION_NAME, database.application_name)
                if not rows or time.monotonic() > until:
                    break
                await asyncio.sleep(LEAVE_POLL_S)
    finally:
        await close_connection(connection)
    places = [f"{count} from {place}" for place, count in rows]
    return f"it has connections of Callslip ({', '.join(places)})" if places else ""


def _columns(rows: Sequence[Sequence[Any]]) -> list[list[Any]]:
    return [list(column) for column in zip(*rows, strict=True)]


def _unnest(columns: Sequence[tuple[str, str]]) -> str:
    arrays = ", ".join(f"${number}::{kind}[]" for number, (_, kind) in enumerate(columns, 1))
    return f"unnest({arrays}) AS u({', '.join(name for name, _ in columns)})"


def _insert(table: Table) -> str:
    names = [*table.names, *(name for name, _ in table.constants)]
    values = [*(f"u.{name}" for name in table.names), *(value for _, value in table.constants)]
    system = " OVERRIDING SYSTEM VALUE" if table.name == "conversations" else ""
    source = _unnest(table.columns)
    return f"INSERT INTO {table.name} ({', '.join(names)}){system} SELECT {', '.join(values)} FROM {source}"


def _delete(table: Table, columns: Sequence[tuple[str, str]]) -> str:
    where = " AND ".join(f"t.{name} = u.{name}" for name, _ in columns)
    return f"DELETE FROM {table.name} t USING {_unnest(columns)} WHERE {where}"


def _session_values(record: Any) -> tuple[Any, ...]:
    """Return a row of the statement that adds sessions. The column `record` does not have the other columns."""
    return (
        *(record.id, record.name, record.last_seq, record.pruned_seq, record.updated_at, record.turn_owner),
        *(record.release_at, session_body(record)),
    )


def _call_values(identity: str, session: int, record: Any) -> tuple[Any, ...]:
    return (
        *(identity, session, record.entry, record.state, record.client_call_id, record.tool, record.title),
        *(record.deadline, record.created_at, record.ended_at, record.end, record.owner, record.lease, record.client),
        call_body(replace(record, session="")),
    )


def _approval_values(identity: str, session: int, record: Any) -> tuple[Any, ...]:
    return (
        *(identity, session, record.call, record.entry, record.state, record.expires_at, record.created_at),
        approval_body(record),
    )
