"""Open a SQLite file: check that it is a ledger, migrate it, and translate errors.

apsw has a newer SQLite than the system, whose WAL had a bug that could lose a commit on reset.
"""

from __future__ import annotations

import errno
import os
import shutil
import tempfile
from collections.abc import Generator
from contextlib import contextmanager
from itertools import count
from typing import Any, cast

import apsw

from callslip.errors import DiskFullError, InvalidDatabaseError, ReadOnlyStoreError, StoreError, UnsupportedVersionError
from callslip.model.database_url import mask_password
from callslip.settings import Settings
from callslip.store.copying import MARK, require_complete
from callslip.store.ledger_files import create_database
from callslip.store.sql import Connection, migrations
from callslip.store.write_lock import WriteLock

APPLICATION_ID = 0x43536C70
OLDEST_READER = 1
_memories = count(1)


def path_of(url: str) -> str:
    """Return the path in a URL such as `sqlite:///agent.db`, "" for a database in memory."""
    path = url.removeprefix("sqlite:///")
    if not path or "://" in path:
        raise StoreError(f"{mask_password(url)!r} is not a database URL. Use sqlite:///file.db.")
    return "" if path == ":memory:" else os.path.expanduser(path)


def memory_name() -> str:
    """Return the name of a database in memory that the connections of this process can share."""
    return f"file:/callslip-{os.getpid()}-{next(_memories)}?vfs=memdb"


@contextmanager
def translate_errors(path: str) -> Generator[None]:
    """Translate errors of SQLite and the operating system to those of Callslip."""
    name = path or "the database in memory"
    try:
        yield
    except apsw.FullError as error:
        raise DiskFullError(f"{name}: disk full; nothing was written") from error
    except (apsw.ReadOnlyError, apsw.PermissionsError) as error:
        raise ReadOnlyStoreError(f"{name} cannot be written ({error})") from error
    except apsw.NotADBError as error:
        raise InvalidDatabaseError(f"{name} is not a SQLite database") from error
    except apsw.CorruptError as error:
        raise InvalidDatabaseError(f"{name} is damaged: {error}") from error
    except apsw.CantOpenError as error:
        raise StoreError(f"{name} cannot be opened: {error}") from error
    except apsw.ConnectionClosedError as error:
        raise StoreError(f"{name}: the ledger is closed") from error
    except apsw.IOError as error:
        raise StoreError(f"{name}: disk error: {error}") from error
    except apsw.Error as error:
        raise StoreError(f"{name}: {error}") from error
    except OSError as error:
        kind = ReadOnlyStoreError if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS) else StoreError
        raise kind(f"{name} cannot be opened or created: {error.strerror}") from error


def _connection(name: str, settings: Settings, flags: int | None = None) -> Connection:
    """Open a connection and set its busy timeout first."""
    connection = apsw.Connection(name) if flags is None else apsw.Connection(name, flags=flags)
    connection.set_busy_timeout(int(settings.busy_timeout * 1000))
    # Query plans do not depend on bound values: else each new value prepares the statement again, 35 us for a join.
    connection.config(apsw.SQLITE_DBCONFIG_ENABLE_QPSG, 1)
    return cast(Any, connection)


def connect(path: str, memory: str, settings: Settings, *, read_only: bool = False) -> Connection:
    """Open a connection to a ledger file or to a database in memory."""
    if not path:
        flags = apsw.SQLITE_OPEN_READWRITE | apsw.SQLITE_OPEN_CREATE | apsw.SQLITE_OPEN_URI
        connection = _connection(memory, settings, flags)
    elif read_only:
        connection = _read_only(path, settings)
    else:
        connection = _connection(path, settings, apsw.SQLITE_OPEN_READWRITE)
    connection.execute(f"PRAGMA synchronous = {settings.synchronous}")
    connection.execute("PRAGMA temp_store = MEMORY")
    if path and read_only:
        _add_missing_columns(connection)
    connection.execute("PRAGMA secure_delete = ON")  # Overwrites deleted data in the file.
    return connection


def empty_wal(connection: Connection) -> bool:
    """Copy the WAL into the file and empty it. Return False if another connection still reads from it."""
    timeout_ms = connection.execute("PRAGMA busy_timeout").fetchall()[0][0]
    connection.set_busy_timeout(0)
    try:
        return connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()[0][0] == 0
    finally:
        connection.set_busy_timeout(timeout_ms)


def _uri(path: str) -> str:
    escaped = os.path.abspath(path).replace("%", "%25").replace("?", "%3f").replace("#", "%23")
    return f"file:{escaped}?mode=ro"


_READ_ONLY_URI = apsw.SQLITE_OPEN_READONLY | apsw.SQLITE_OPEN_URI


def _read_only(path: str, settings: Settings) -> Connection:
    connection = _connection(_uri(path), settings, _READ_ONLY_URI)
    try:
        connection.execute("SELECT count(*) FROM sqlite_schema").fetchall()
    except (apsw.CantOpenError, apsw.ReadOnlyError):
        connection.close()
        connection = _read_immutable(path, settings)
    return connection


def _read_immutable(path: str, settings: Settings) -> Connection:
    """Open a file in a read-only folder, where SQLite cannot create the shared-memory file of a WAL.

    If a dead process left a WAL, a copy is read, as without the WAL the newest events would be missing.
    """
    if not os.path.exists(path + "-wal") or not os.path.getsize(path + "-wal"):
        return _connection(_uri(path) + "&immutable=1", settings, _READ_ONLY_URI)
    with tempfile.TemporaryDirectory(prefix="callslip-", ignore_cleanup_errors=True) as folder:
        copied = os.path.join(folder, "ledger.db")
        for suffix in ("", "-wal"):
            shutil.copyfile(path + suffix, copied + suffix)
        connection = _connection(copied, settings)
        connection.execute("SELECT count(*) FROM sqlite_schema").fetchall()
        return connection


NEVER_SUMMARIZED = """
  SELECT id AS session, 0 AS seq, 0 AS version, iif(turn = '', 'idle', 'running') AS state, title, '' AS agent,
    '' AS model, '' AS project, '' AS branch, '' AS labels, calls, 0 AS open_calls, 0 AS pending, 0 AS failed,
    0 AS tokens, 0 AS has_responses, created_at AS started_at, updated_at AS active_at, x'7b7d' AS body
  FROM main.sessions
"""
"""What lists show of a session without a summary."""

# Views for this connection with what each migration added, to read a read-only file of an older schema.
_MIGRATED_VIEWS: dict[int, str] = {
    2: """
    CREATE TEMP VIEW sessions AS SELECT *, '' AS owned_by, '' AS labels, '' AS turn_owner FROM main.sessions;
    CREATE TEMP VIEW tokens AS SELECT '' AS id, '' AS hash, '' AS label, '' AS session, '' AS verbs, 0 AS created_at,
      0 AS expires_at WHERE 0;
    """,
    3: """
    CREATE TEMP VIEW calls AS SELECT *, '' AS client, 0 AS timeout, 0 AS change FROM main.calls;
    CREATE TEMP VIEW sealed AS SELECT '' AS call, 0 AS session, x'' AS input WHERE 0;
    CREATE TEMP VIEW executors AS SELECT '' AS client, 0 AS asked_at WHERE 0;
    """,
    6: f"""
    CREATE TEMP VIEW summaries AS {NEVER_SUMMARIZED};
    CREATE TEMP VIEW usage AS SELECT 0 AS session, '' AS id, 0 AS seq, 0 AS at, '' AS turn, '' AS parent, '' AS model,
      0 AS input_tokens, 0 AS output_tokens, 0 AS cached_tokens, 0 AS cache_write_tokens, 0 AS reasoning_tokens,
      NULL AS cost, '' AS currency, 0 AS incomplete, 0 AS of_turn WHERE 0;
    """,
    8: """
    CREATE TEMP VIEW search_places AS SELECT 0 AS session, 0 AS seq, 0 AS version, 0 AS fold, x'' AS body WHERE 0;
    """,
    9: """
    CREATE TEMP VIEW rules AS SELECT '' AS id, '' AS action, x'' AS filters, '' AS reason, '' AS scope,
      '' AS scope_value, 0 AS expires_at, 0 AS uses_left, 0 AS created_at, '' AS created_by, 0 AS used_at,
      0 AS uses WHERE 0;
    """,
}


def _add_missing_columns(connection: Connection) -> None:
    version = _version(connection)
    for number, sql in _MIGRATED_VIEWS.items():
        if 0 < version < number:
            connection.execute(sql)
    connection.execute("PRAGMA query_only = ON")


def check_file(path: str, settings: Settings) -> None:
    """Raise an error if the file is not a ledger, before anything is written, even a lock file."""
    if not os.path.exists(path):
        return
    if not os.path.isfile(path):
        raise InvalidDatabaseError(f"{path} is not a file")
    if not os.access(path, os.R_OK):
        raise StoreError(f"{path} cannot be read by this user")
    header = _read_header(path)
    if not header or int.from_bytes(header[68:72], "big") == APPLICATION_ID:
        return
    if os.path.exists(path + "-journal"):  # A write was interrupted, perhaps the first one; SQLite rolls it back.
        return
    if not header.startswith(b"SQLite format 3\0") or len(header) < 100:
        raise InvalidDatabaseError(f"{path} is not a SQLite database")
    connection = _connection(_uri(path), settings, _READ_ONLY_URI)  # The application id may still be in the WAL.
    try:
        _check(connection, path)
    except (apsw.NotADBError, apsw.CorruptError):
        raise
    except apsw.Error:  # It needs recovery; opening it for writing reports other errors.
        pass
    finally:
        connection.close()


def _read_header(path: str) -> bytes:
    """Return the first 100 bytes of a file.

    SQLite reads them: if this process closed the file itself, all its locks on that file would be released, and another
    process could delete the WAL that an open connection still writes to.
    """
    size = os.path.getsize(path)
    if not size:
        return b""
    file = apsw.VFSFile("", path, [apsw.SQLITE_OPEN_MAIN_DB | apsw.SQLITE_OPEN_READONLY, 0])
    try:
        return file.xRead(min(100, size), 0)
    finally:
        file.xClose()


def is_writable(path: str) -> bool:
    """Return whether this process can write the file and its folder."""
    folder = os.path.dirname(os.path.abspath(path))
    return os.access(path, os.W_OK) and os.access(folder, os.W_OK) if os.path.exists(path) else True


def migrate(path: str, settings: Settings) -> tuple[int, int]:
    """Create or migrate a ledger file; return the version of its schema before and after. Concurrent calls are safe.

    Of several concurrent calls only the one that changed the schema returns two different versions.
    """
    newest = migrations("sqlite")[-1][0]
    write_lock = WriteLock()
    with translate_errors(path):
        check_file(path, settings)
        is_read_only = not is_writable(path)
        if not is_read_only:
            os.makedirs(os.path.dirname(os.path.abspath(path)), exist_ok=True)
            write_lock.open(path)
        try:
            if not is_read_only:
                create_database(path)
            connection = connect(path, "", settings, read_only=is_read_only)
            try:
                found = prepare(connection, path, write_lock, read_only=is_read_only)
            finally:
                connection.close()
        finally:
            write_lock.close()
    if is_read_only and found < newest:
        raise ReadOnlyStoreError(f"{path} can only be read, so its schema cannot be migrated")
    return found, max(found, newest)


def prepare(
    connection: Connection, path: str, write_lock: WriteLock, *, read_only: bool, allows_incomplete: bool = False
) -> int:
    """Check that this version can read the ledger, and create or migrate it if it is writable.

    The target of a copy that has not finished is refused, unless the copy `allows_incomplete`.

    Return the version that was found, 0 for none. Of several concurrent calls only one finds an older version.
    """
    _check(connection, path)
    if not allows_incomplete:
        require_complete_copy(connection, path)
    if read_only:
        return _version(connection)
    if path:
        mode = connection.execute("PRAGMA journal_mode = WAL").fetchall()[0][0]
        if mode != "wal":
            raise StoreError(f"{path}: this file system does not allow a write-ahead log (journal mode {mode})")
    newest = migrations("sqlite")[-1][0]
    found = _version(connection)
    if found >= newest:
        return found
    with write_lock.turn():
        connection.execute("BEGIN IMMEDIATE")
        try:
            found = _version(connection)
            for number, sql in migrations("sqlite"):
                if number > found:
                    connection.execute(sql)
                    connection.execute(f"PRAGMA user_version = {number}")
            connection.execute("INSERT OR REPLACE INTO meta VALUES ('oldest_reader', ?)", (str(OLDEST_READER),))
            connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        except BaseException:
            connection.execute("ROLLBACK")
            raise
        connection.execute("COMMIT")
    return found


def require_complete_copy(connection: Connection, path: str) -> None:
    """Raise IncompleteCopyError if the file is the target of a copy that has not finished."""
    if _version(connection):
        rows = connection.execute("SELECT value FROM meta WHERE name = ?", (MARK,)).fetchall()
        require_complete(rows[0][0] if rows else None, path)


def _version(connection: Connection) -> int:
    return connection.execute("PRAGMA user_version").fetchall()[0][0]


def oldest_reader(connection: Connection) -> int:
    """Return the oldest schema version that a program must support to read this file."""
    rows = connection.execute("SELECT value FROM meta WHERE name = 'oldest_reader'").fetchall()
    return int(rows[0][0]) if rows else _version(connection)


def _check(connection: Connection, path: str) -> None:
    tables = connection.execute("SELECT count(*) FROM sqlite_schema").fetchall()[0][0]
    application = connection.execute("PRAGMA application_id").fetchall()[0][0]
    if tables and application != APPLICATION_ID:
        raise InvalidDatabaseError(f"{path} is a SQLite database of another program. Use another file with --db.")
    newest = migrations("sqlite")[-1][0]
    if tables and _version(connection) > newest:
        oldest = oldest_reader(connection)
        if oldest > newest:
            raise UnsupportedVersionError(
                f"{path}: schema {_version(connection)} needs a Callslip that supports schema {oldest}, "
                f"this one supports {newest}. Upgrade Callslip."
            )
