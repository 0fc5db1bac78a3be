"""Connections to a PostgreSQL server: open, check and migrate the schema, read with a deadline, and know its clock.

Every wait for the server has a timeout. A read whose connection is lost is repeated on another one, because the server
may have been restarted; a write is resolved by the writer.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import ssl
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Generator, Sequence
from copy import copy
from types import TracebackType
from typing import Any, Protocol, Self, TypeVar
from urllib.parse import parse_qs, urlsplit

import asyncpg  # pyright: ignore[reportMissingTypeStubs]

from callslip.errors import (
    DatabaseUnavailableError,
    DiskFullError,
    InvalidDatabaseError,
    NotFoundError,
    ReadOnlyStoreError,
    StoreError,
    UnsupportedVersionError,
)
from callslip.model.database_url import mask_password
from callslip.settings import Settings
from callslip.store.copying import MARK, require_complete
from callslip.store.postgres_schema import (
    CURRENT_SCHEMA,
    EXISTING_TABLES,
    HAS_META,
    MISSING,
    created_names,
    find_path_problem,
)
from callslip.store.sql import migrations

T = TypeVar("T")
_driver: Any = asyncpg
OLDEST_READER = 1
CONNECT_TIMEOUT_S = 5.0
CLOCK_ATTEMPTS = 3
MAX_CORRECTION_MS = 1000
"""By how much the known time may be too late without going back: it stands still instead until it is right."""
MAX_CLOCK_AGE_S = 1.0
"""How old the last reading of the server's clock may be when a caller needs the time exactly."""
RETRY_DELAYS_S = (0.02, 0.05, 0.1, 0.2, 0.5, 1.0)
APPLICATION_NAME = "callslip"
MIGRATION_LOCK = 0x43536C70
MIGRATION_S = 600.0
"""How long a migration may take, or the wait for that of another process."""
FORGET_LANES = "DELETE FROM lanes WHERE used_at < callslip_clock() - 86400000"
"""Remove the rows of write connections whose process was killed, after a day."""
LOCK_TIMEOUT_S = 5.0
"""How long a statement waits for a lock. The server ends the wait also if this process is gone."""
WRITE_LOCK_TIMEOUT_S = 0.5
"""The same for a write, which other writes of the process may have to wait for. It is tried again later."""
SERVER_TIMEOUT_S = 1.0
"""How much longer than this process the server lets a statement run. It ends those of processes that are gone."""
DRIVER_ERRORS = (asyncpg.PostgresError, asyncpg.InterfaceError, asyncpg.InternalClientError, OSError)
"""What the driver raises. TimeoutError is an OSError."""
BEGIN = "BEGIN ISOLATION LEVEL READ COMMITTED"
BEGIN_SNAPSHOT = "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY; SET LOCAL idle_in_transaction_session_timeout = 0"
LOST_STATES = ("08", "57P", "53300")
"""The start of the SQL states of a server that stops, starts or has no free connection. The connection is gone."""


class Connection(Protocol):
    """The methods of a connection that the store uses. The annotations of asyncpg leave values unknown."""

    def fetch(
        self, query: str, *values: Any, timeout: float | None = ...
    ) -> Coroutine[Any, Any, list[Sequence[Any]]]: ...
    async def execute(self, query: str, *values: Any, timeout: float | None = ...) -> str: ...
    async def executemany(self, command: str, args: Any, *, timeout: float | None = ...) -> None: ...
    def add_listener(self, channel: str, callback: Callable[..., None]) -> Coroutine[Any, Any, None]: ...
    async def close(self, *, timeout: float | None = ...) -> None: ...
    def add_termination_listener(self, callback: Callable[..., None]) -> None: ...
    def terminate(self) -> None: ...
    def is_closed(self) -> bool: ...
    def get_server_pid(self) -> int: ...


class LostConnectionError(DatabaseUnavailableError):
    """The connection to the server was lost, or the server did not answer in time."""


def _parameter(url: str, name: str) -> str:
    """Return a parameter of a URL, "" if it has none."""
    return "".join(parse_qs(urlsplit(url).query).get(name, [])[-1:])


def _application_name(url: str) -> str:
    """Return the name of this program's connections, by which a copy finds them. It begins with APPLICATION_NAME."""
    return f"{APPLICATION_NAME} {_parameter(url, 'application_name')}".strip()


def is_lost(error: BaseException) -> bool:
    """Return whether an error means that the connection is gone, and so what it did last may be unknown."""
    if isinstance(error, asyncpg.PostgresError):
        return str(getattr(error, "sqlstate", "")).startswith(LOST_STATES)
    if isinstance(error, asyncpg.InterfaceError):  # Others are faults of the caller.
        return any(word in str(error) for word in ("closed", "terminated", "released back to the pool"))
    return isinstance(error, OSError | asyncpg.InternalClientError)  # TimeoutError is an OSError.


async def finish(query: Coroutine[Any, Any, T]) -> T:
    """Wait for a query also if the caller is cancelled, and raise the cancellation after that.

    A query that is cancelled leaves a connection that cannot be used, and a request to the server to stop. Each query
    has a timeout, and most take a millisecond.
    """
    task = asyncio.ensure_future(query)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        while not task.done():
            with contextlib.suppress(asyncio.CancelledError):  # Closing cancels what a timeout has cancelled before.
                await asyncio.wait([task])
        if not task.cancelled():
            task.exception()  # Mark it as retrieved.
        raise


@contextlib.contextmanager
def translate_errors(name: str) -> Generator[None]:
    """Translate errors of PostgreSQL and of the network to those of Callslip."""
    try:
        yield
    except asyncpg.DiskFullError as error:
        raise DiskFullError(f"{name}: disk full; nothing was written") from error
    except (asyncpg.ReadOnlySQLTransactionError, asyncpg.InsufficientPrivilegeError) as error:
        raise ReadOnlyStoreError(f"{name} cannot be written ({error})") from error
    except asyncpg.TooManyConnectionsError as error:
        raise LostConnectionError(f"{name}: the server has no free connection ({error})") from error
    except (asyncpg.UndefinedTableError, asyncpg.UndefinedColumnError, asyncpg.UndefinedFunctionError) as error:
        raise InvalidDatabaseError(f"{name} is not a ledger, or an incomplete one: {error}") from error
    except asyncpg.InvalidCatalogNameError as error:
        raise StoreError(f"{name}: {error}. Create it on the server first.") from error
    except asyncpg.InvalidAuthorizationSpecificationError as error:
        raise StoreError(f"{name}: the server refuses this user ({error})") from error
    except TimeoutError as error:
        raise LostConnectionError(f"{name}: the server did not answer in time") from error
    except DRIVER_ERRORS as error:
        kind = LostConnectionError if is_lost(error) else StoreError
        raise kind(f"{name}: {error}") from error


def _describe_failure(error: OSError) -> str:
    """Return why no connection could be opened, without the numbers of the operating system."""
    # The numbers of unknown host names are negative, and those of TLS have other meanings.
    is_numbered = error.errno is not None and error.errno > 0 and not isinstance(error, ssl.SSLError)
    return os.strerror(error.errno or 0) if is_numbered else error.strerror or str(error)


class Database:
    """A PostgreSQL database with the schema of Callslip. `clock_shift_ms` is added to its clock, for tests."""

    def __init__(self, url: str, settings: Settings) -> None:
        self.url = url
        self.name = mask_password(url)
        self.settings = settings
        self.read_only = False
        self.schema = 0
        self.has_pooler = False
        """Whether a pooler gives each transaction another connection of the server."""
        self.application_name = _application_name(url)
        self.clock_shift_ms = 0
        self._schema = ""
        """The identifier of the schema that all connections use, as the first one has found it."""
        self._has_session_timeouts = True
        """Whether connections may have settings of their own. A pooler may refuse them."""
        self._caches_statements = False
        self._clock_offset_ms = time.time() * 1000 - time.monotonic() * 1000
        self._clock_read_at = float("-inf")
        self._latest_ms = 0
        """The latest time that was returned."""
        self._pool: Any = None
        self._only: Connection | None = None
        self._closed = False

    @classmethod
    async def open(
        cls,
        url: str,
        settings: Settings,
        *,
        migrate: bool = True,
        create: bool = True,
        allows_incomplete: bool = False,
    ) -> Self:
        """Connect, and create or migrate the schema if needed. Without `create` there must be one.

        The target of a copy that has not finished is refused, unless the copy `allows_incomplete`.
        """
        database = cls(url, settings)
        with translate_errors(database.name):
            connection = await database.connect_first()
            try:
                database._caches_statements = not database.has_pooler
                database.read_only = await is_read_only(connection)
                if not create and not await schema_version(connection):
                    raise NotFoundError(f"no ledger in {database.name}")
                await prepare(connection, database.name, migrate=migrate and not database.read_only)
                database.schema = await schema_version(connection)
                if not allows_incomplete:
                    require_complete(await read_copy_mark(connection), database.name)
                if not database.read_only:
                    database.read_only = not await can_write(connection)
                if not database.read_only:
                    await connection.execute(FORGET_LANES)
                await database._read_clock(connection)
            finally:
                await close_connection(connection)
            database._pool = _driver.create_pool(
                **database._connect_options(),
                min_size=0,
                max_size=settings.read_connections,
                reset=_keep_state,
            )
            await database._pool
        return database

    async def connect_first(self) -> Connection:
        """Connect to a server that may be starting, and find out whether connections may have settings."""
        until = time.monotonic() + self.settings.database_timeout
        while True:
            try:
                return await self.connect()
            except LostConnectionError as error:
                if isinstance(error.__cause__, asyncpg.ProtocolViolationError) and self._has_session_timeouts:
                    self._has_session_timeouts = False  # PgBouncer: "unsupported startup parameter"
                    continue
                # A server that does not answer at all is reported at once: its address may be wrong.
                is_starting = isinstance(error.__cause__, asyncpg.CannotConnectNowError)
                if not is_starting or time.monotonic() > until:
                    raise
            await asyncio.sleep(RETRY_DELAYS_S[-1])

    def _session_timeouts(self, seconds: float, lock_s: float) -> dict[str, str]:
        """Return the settings that end on the server what this process does not wait for any more."""
        return {
            "statement_timeout": f"{round((seconds + SERVER_TIMEOUT_S) * 1000)}",
            "lock_timeout": f"{round(lock_s * 1000)}",
            "idle_in_transaction_session_timeout": f"{round((seconds + SERVER_TIMEOUT_S) * 1000)}",
        }

    def begin(self, seconds: float | None = None) -> str:
        """Return the statement that begins a transaction of a writer.

        `seconds` is how long each statement in it may take, if that is longer than usual.
        """
        if self._has_session_timeouts and not self.has_pooler and seconds is None:
            return BEGIN
        lock_s = WRITE_LOCK_TIMEOUT_S if seconds is None else LOCK_TIMEOUT_S
        timeouts = self._session_timeouts(seconds or self.settings.statement_timeout, lock_s)
        return "; ".join([BEGIN, *(f"SET LOCAL {name} = {value}" for name, value in timeouts.items())])

    def _connect_options(self, lock_s: float = LOCK_TIMEOUT_S) -> dict[str, Any]:
        server_settings = {"application_name": self.application_name}
        if self._has_session_timeouts and not self.has_pooler:
            server_settings |= self._session_timeouts(self.settings.statement_timeout, lock_s)
            server_settings["default_transaction_isolation"] = "read committed"  # What the statements are made for.
            # Read pages in the order of an index. Else a large session among small ones is read and sorted each time.
            server_settings["enable_bitmapscan"] = "off"
            if self._schema:
                server_settings["search_path"] = self._schema
        return {
            "dsn": self.url,
            "server_settings": server_settings,
            "timeout": CONNECT_TIMEOUT_S,
            "command_timeout": self.settings.statement_timeout,
            # A cached statement has a name, and behind a pooler another process may have used it on the connection.
            "statement_cache_size": 100 if self._caches_statements else 0,
            "max_cacheable_statement_size": 2**17,
            "max_cached_statement_lifetime": 0,
        }

    async def connect(self, lock_s: float = LOCK_TIMEOUT_S) -> Connection:
        """Open a connection that the caller closes. Its statements wait `lock_s` for a lock, at most."""
        connections: list[Connection] = []

        async def connect() -> None:
            try:
                connections.append(await _driver.connect(**self._connect_options(lock_s)))
            except TimeoutError:
                raise
            except OSError as error:
                message = f"{self.name}: the server cannot be reached ({_describe_failure(error)})"
                raise LostConnectionError(message) from error
            if not self._schema:
                await self._use_schema(connections[0])

        with translate_errors(self.name):
            try:
                await finish(connect())
            except BaseException:
                for connection in connections:
                    connection.terminate()
                raise
        return connections[0]

    async def _use_schema(self, connection: Connection) -> None:
        """Find the schema of the ledger, and let this connection and all later ones use no other one.

        Connections behind a pooler are shared with other programs, so they keep the search_path that they have.
        """
        process, schema, identifier, path, user = (await connection.fetch(CURRENT_SCHEMA, timeout=CONNECT_TIMEOUT_S))[0]
        self.has_pooler = process != connection.get_server_pid()
        problem = find_path_problem(path, _parameter(self.url, "search_path"), schema, user)
        if problem:
            raise StoreError(f"{self.name}: {problem}")
        if self._has_session_timeouts and not self.has_pooler:
            await connection.execute(f"SET search_path = {identifier}", timeout=CONNECT_TIMEOUT_S)
        self._schema = identifier

    # Reading

    async def fetch(self, sql: str, *values: Any) -> list[Sequence[Any]]:
        """Return the rows of a query. After a lost connection it is repeated, until the time for reads is over."""
        if self._only is not None:
            with translate_errors(self.name):
                return await self._only.fetch(sql, *values)
        return await self.retry(lambda: finish(self._fetch_pooled(sql, values)))

    async def _fetch_pooled(self, sql: str, values: tuple[Any, ...]) -> list[Sequence[Any]]:
        if self._closed:
            raise StoreError("the ledger is closed")
        pool = self._pool  # Closing waits for this read.
        with translate_errors(self.name):
            try:
                connection = await pool.acquire(timeout=self.settings.statement_timeout)
            except TimeoutError as error:
                if pool.get_size() < pool.get_max_size():
                    raise
                message = f"{self.name}: all {self.settings.read_connections} connections for reads are in use"
                raise StoreError(message) from error
            try:
                return await connection.fetch(sql, *values)
            except BaseException as error:
                if is_lost(error):
                    with contextlib.suppress(asyncpg.InterfaceError):  # The pool has released a closed one already.
                        connection.terminate()  # Its state is not known.
                raise
            finally:
                await pool.release(connection)

    async def retry(self, attempt: Callable[[], Awaitable[T]]) -> T:
        """Repeat an attempt that can be repeated, while the server cannot be reached and there is time."""
        until = time.monotonic() + self.settings.database_timeout
        number = 0
        while True:
            try:
                return await attempt()
            except LostConnectionError:
                delay_s = RETRY_DELAYS_S[min(number, len(RETRY_DELAYS_S) - 1)]
                if self._closed or time.monotonic() + delay_s >= until:
                    raise
                number += 1
                await asyncio.sleep(delay_s)

    @contextlib.asynccontextmanager
    async def snapshot(self) -> AsyncGenerator[Database]:
        """Return a view that reads the current state, which later writes do not change."""
        view = copy(self)
        view._only = connection = await self.connect()
        try:
            with translate_errors(self.name):
                await connection.execute(BEGIN_SNAPSHOT)
                await connection.fetch("SELECT 1")  # The first read starts the snapshot.
            yield view
        finally:
            await close_connection(connection)

    # The clock of the server, which all leases and deadlines use

    def time_ms(self) -> int:
        """Return the time of the server as this process knows it, without asking. Corrections do not set it back."""
        now = int(time.monotonic() * 1000 + self._clock_offset_ms) + self.clock_shift_ms
        if not self._latest_ms - MAX_CORRECTION_MS < now < self._latest_ms:
            self._latest_ms = now
        return self._latest_ms

    async def clock(self) -> int:
        """Return the time of the server in ms, read not more than a second ago."""
        if time.monotonic() - self._clock_read_at > MAX_CLOCK_AGE_S:
            for _ in range(CLOCK_ATTEMPTS):
                sent_at = time.monotonic()
                rows = await self.fetch("SELECT callslip_clock()")
                self.note_clock(rows[0][0], sent_at)
                if time.monotonic() - sent_at < MAX_CLOCK_AGE_S:  # It waited for the server, or for a connection.
                    break
        return self.time_ms()

    async def _read_clock(self, connection: Connection) -> None:
        sent_at = time.monotonic()
        rows = await connection.fetch("SELECT callslip_clock()")
        self.note_clock(rows[0][0], sent_at)

    def note_clock(self, clock_ms: int, sent_at: float) -> None:
        """Take over the time of the server from an answer to a request that was sent at a monotonic time.

        The server read its clock between the request and the answer. While the known offset is possible, it stays, so
        that the time does not go back and forth with the speed of answers.
        """
        now = time.monotonic()
        least, most = clock_ms - now * 1000, clock_ms + 1 - sent_at * 1000
        if not least <= self._clock_offset_ms <= most:
            self._clock_offset_ms = (least + most) / 2
        self._clock_read_at = now

    async def close(self) -> None:
        """Close all connections."""
        self._closed = True
        if self._pool is not None:
            pool, self._pool = self._pool, None
            try:
                async with asyncio.timeout(CONNECT_TIMEOUT_S):
                    await pool.close()
            except DRIVER_ERRORS:
                pool.terminate()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()


async def _keep_state(connection: Any) -> None:
    """Do nothing when a connection returns to the pool: reads leave no state, and a reset takes a round trip."""


async def close_connection(connection: Connection) -> None:
    """Close a connection, without waiting for a server that does not answer."""
    try:
        await connection.close(timeout=1.0)
    except DRIVER_ERRORS:
        connection.terminate()


async def is_read_only(connection: Connection) -> bool:
    """Return whether the server is a standby, or lets this user only read."""
    rows = await connection.fetch("SELECT pg_is_in_recovery() OR current_setting('transaction_read_only') = 'on'")
    return rows[0][0]


async def can_write(connection: Connection) -> bool:
    """Return whether this user may write the tables of a ledger."""
    return (await connection.fetch("SELECT has_table_privilege('events', 'INSERT')"))[0][0]


# The schema


async def schema_version(connection: Connection) -> int:
    """Return the version of the schema, 0 if there is none."""
    if not (await connection.fetch(HAS_META))[0][0]:
        return 0
    rows = await connection.fetch("SELECT value FROM meta WHERE name = 'schema'")
    return int(rows[0][0]) if rows else 0


async def require_tables(connection: Connection, name: str, version: int) -> None:
    """Raise an error unless all tables and functions of a version are in the schema of the ledger."""
    missing = [row[0] for row in await connection.fetch(MISSING, *created_names(version))]
    if missing:
        others = f" and {len(missing) - 3} more" if len(missing) > 3 else ""
        raise InvalidDatabaseError(
            f"{name} is an incomplete ledger: its schema does not have {', '.join(missing[:3])}{others}"
        )


async def read_copy_mark(connection: Connection) -> str | None:
    """Return what the target of a copy stores about it."""
    rows = await connection.fetch("SELECT value FROM meta WHERE name = $1", MARK)
    return rows[0][0] if rows else None


async def migrate(url: str, settings: Settings) -> tuple[int, int]:
    """Create or migrate the schema; return its version before and after. Concurrent calls are safe.

    Of several concurrent calls only the one that changed the schema returns two different versions.
    """
    database = Database(url, settings)
    newest = migrations("postgres")[-1][0]
    connection = await database.connect_first()
    try:
        with translate_errors(database.name):
            if await is_read_only(connection) and await schema_version(connection) < newest:
                raise ReadOnlyStoreError(f"{database.name} can only be read, so its schema cannot be migrated")
            found = await prepare(connection, database.name, migrate=True)
            require_complete(await read_copy_mark(connection), database.name)
    finally:
        await close_connection(connection)
    return found, max(found, newest)


async def prepare(connection: Connection, name: str, *, migrate: bool) -> int:
    """Check that this version can use the database, and create or migrate its schema. Concurrent calls are safe.

    Return the version that was found, 0 for none. Of several concurrent calls only one finds an older version.
    """
    newest = migrations("postgres")[-1][0]
    version = await schema_version(connection)
    if version:
        await require_tables(connection, name, version)
    if version > newest:
        oldest = await oldest_reader(connection, version)
        if oldest > newest:
            raise UnsupportedVersionError(
                f"{name}: schema {version} needs a Callslip that supports schema {oldest}, "
                f"this one supports {newest}. Upgrade Callslip."
            )
        return version
    if version == newest:
        return version
    if not migrate:
        if not version:
            raise InvalidDatabaseError(f"{name} is not a ledger")
        return version
    # Another process may migrate for longer than a lock or a statement may take.
    await connection.execute("BEGIN; SET LOCAL lock_timeout = 0; SET LOCAL statement_timeout = 0")
    try:
        await connection.fetch("SELECT pg_advisory_xact_lock($1)", MIGRATION_LOCK, timeout=MIGRATION_S)
        version = await schema_version(connection)
        if not version:
            await _refuse_other_tables(connection, name)
        for number, sql in migrations("postgres"):
            if number > version:
                await connection.execute(sql, timeout=MIGRATION_S)
        put = "INSERT INTO meta VALUES ($1, $2) ON CONFLICT (name) DO UPDATE SET value = excluded.value"
        await connection.execute(put, "schema", str(max(version, newest)))
        await connection.execute(put, "oldest_reader", str(OLDEST_READER))
        await connection.execute("COMMIT")
    except BaseException:
        if not connection.is_closed():
            with contextlib.suppress(*DRIVER_ERRORS):
                await connection.execute("ROLLBACK")
        raise
    return version


async def _refuse_other_tables(connection: Connection, name: str) -> None:
    """Raise an error if the database has tables with the names of those of a ledger, but no ledger."""
    ours, _ = created_names()
    rows = await connection.fetch(EXISTING_TABLES, ours)
    if rows:
        tables = ", ".join(row[0] for row in rows)
        raise InvalidDatabaseError(f"{name} has tables of another program ({tables}). Use another database or schema.")


async def oldest_reader(connection: Connection, version: int) -> int:
    """Return the oldest schema version that a program must support to read this database."""
    rows = await connection.fetch("SELECT value FROM meta WHERE name = 'oldest_reader'")
    return int(rows[0][0]) if rows else version
