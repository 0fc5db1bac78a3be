"""Opening a SQLite file: what it must be, which version it has, and what each failure means to a person.

apsw brings its own SQLite, newer than the system's, whose WAL had a bug that could lose a commit on reset.
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
from callslip.settings import Settings
from callslip.store.sql import Connection, migrations
from callslip.store.write_lock import WriteLock

APPLICATION = 0x43536C70
OLDEST_READER = 1
_memories = count(1)


def path_of(url: str) -> str:
    """The file that a URL such as `sqlite:///agent.db` names ("" for one in memory)."""
    path = url.removeprefix("sqlite:///")
    if not path or "://" in path:
        raise StoreError(f"{url!r} names no database; use sqlite:///file.db")
    return "" if path == ":memory:" else os.path.expanduser(path)


def memory_name() -> str:
    """A database that several connections of this process share."""
    return f"file:/callslip-{os.getpid()}-{next(_memories)}?vfs=memdb"


@contextmanager
def plain_errors(path: str) -> Generator[None]:
    """SQLite's errors as ours, in words that say what to do."""
    name = path or "the database in memory"
    try:
        yield
    except apsw.FullError as error:
        raise DiskFullError(f"no room left on the disk that holds {name}; nothing of this write was kept") from error
    except (apsw.ReadOnlyError, apsw.PermissionsError) as error:
        raise ReadOnlyStoreError(f"{name} cannot be written ({error})") from error
    except apsw.NotADBError as error:
        raise InvalidDatabaseError(f"{name} is not a SQLite database") from error
    except apsw.CorruptError as error:
        raise InvalidDatabaseError(f"{name} is damaged: {error}") from error
    except apsw.CantOpenError as error:
        raise StoreError(f"{name} cannot be opened: {error}") from error
    except apsw.IOError as error:
        raise StoreError(f"the disk failed under {name}: {error}") from error
    except apsw.Error as error:
        raise StoreError(f"{name}: {error}") from error
    except OSError as error:
        kind = ReadOnlyStoreError if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS) else StoreError
        raise kind(f"{name} cannot be opened or made: {error.strerror}") from error


def _connection(name: str, settings: Settings, flags: int | None = None) -> Connection:
    """One connection, with the busy timeout set before anything is asked of it."""
    made = apsw.Connection(name) if flags is None else apsw.Connection(name, flags=flags)
    made.set_busy_timeout(int(settings.busy_timeout * 1000))
    # A plan does not depend on what is bound: else each new value prepares its statement anew, 35 us for a join.
    made.config(apsw.SQLITE_DBCONFIG_ENABLE_QPSG, 1)
    return cast(Any, made)


def connect(path: str, memory: str, settings: Settings, *, read_only: bool = False) -> Connection:
    """A connection to a file that is ours, or to a database in memory."""
    if not path:
        flags = apsw.SQLITE_OPEN_READWRITE | apsw.SQLITE_OPEN_CREATE | apsw.SQLITE_OPEN_URI
        connection = _connection(memory, settings, flags)
    elif read_only:
        connection = _read_only(path, settings)
    else:
        connection = _connection(path, settings)
    connection.execute(f"PRAGMA synchronous = {settings.synchronous}")
    connection.execute("PRAGMA temp_store = MEMORY")
    if path and read_only:
        _stand_in(connection)
    connection.execute("PRAGMA secure_delete = ON")  # What is deleted is gone from the file, not only from the tables.
    return connection


def _uri(path: str) -> str:
    escaped = os.path.abspath(path).replace("%", "%25").replace("?", "%3f").replace("#", "%23")
    return f"file:{escaped}?mode=ro"


_LOOK = apsw.SQLITE_OPEN_READONLY | apsw.SQLITE_OPEN_URI


def _read_only(path: str, settings: Settings) -> Connection:
    connection = _connection(_uri(path), settings, _LOOK)
    try:
        connection.execute("SELECT count(*) FROM sqlite_schema").fetchall()
    except (apsw.CantOpenError, apsw.ReadOnlyError):
        connection.close()
        connection = _as_it_lies(path, settings)
    return connection


def _as_it_lies(path: str, settings: Settings) -> Connection:
    """A folder that cannot be written has no place for the shared-memory file that a WAL needs.

    Where a process that died left a WAL, it is read from a copy: without it the newest events would be missing.
    """
    if not os.path.exists(path + "-wal") or not os.path.getsize(path + "-wal"):
        return _connection(_uri(path) + "&immutable=1", settings, _LOOK)
    with tempfile.TemporaryDirectory(prefix="callslip-", ignore_cleanup_errors=True) as folder:
        copied = os.path.join(folder, "ledger.db")
        for suffix in ("", "-wal"):
            shutil.copyfile(path + suffix, copied + suffix)
        connection = _connection(copied, settings)
        connection.execute("SELECT count(*) FROM sqlite_schema").fetchall()
        return connection


# What a migration added, for a file of an older schema that may only be read: seen by this connection alone.
_ADDED: dict[int, str] = {
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
}


def _stand_in(connection: Connection) -> None:
    version = _version(connection)
    for number, sql in _ADDED.items():
        if 0 < version < number:
            connection.execute(sql)
    connection.execute("PRAGMA query_only = ON")


def examine(path: str, settings: Settings) -> None:
    """Refuse what is not ours before anything is written, be it only a lock beside it."""
    if not os.path.exists(path):
        return
    if not os.path.isfile(path):
        raise InvalidDatabaseError(f"{path} is not a file")
    if not os.access(path, os.R_OK):
        raise StoreError(f"{path} may not be read by this user")
    with open(path, "rb") as file:
        header = file.read(100)
    if not header or int.from_bytes(header[68:72], "big") == APPLICATION:
        return
    if os.path.exists(path + "-journal"):  # A write was cut short, perhaps the very first: SQLite undoes it first.
        return
    if not header.startswith(b"SQLite format 3\0") or len(header) < 100:
        raise InvalidDatabaseError(f"{path} is not a SQLite database")
    connection = _connection(_uri(path), settings, _LOOK)  # What says that it is ours may still be in the WAL.
    try:
        _check(connection, path)
    except (apsw.NotADBError, apsw.CorruptError):
        raise
    except apsw.Error:  # One that must be recovered first: whoever opens it for writing will see.
        pass
    finally:
        connection.close()


def may_write(path: str) -> bool:
    """Whether this process may write the file and beside it."""
    folder = os.path.dirname(os.path.abspath(path))
    return os.access(path, os.W_OK) and os.access(folder, os.W_OK) if os.path.exists(path) else True


def prepare(connection: Connection, path: str, turnstile: WriteLock, *, read_only: bool) -> None:
    """Check that the file is ours and readable by this version; make or migrate it if it may be written."""
    _check(connection, path)
    if read_only:
        return
    if path:
        _journal(connection, path)
    newest = migrations("sqlite")[-1][0]
    if _version(connection) >= newest:
        return
    with turnstile.turn():
        connection.execute("BEGIN IMMEDIATE")
        try:
            for number, sql in migrations("sqlite"):
                if number > _version(connection):
                    connection.execute(sql)
                    connection.execute(f"PRAGMA user_version = {number}")
            connection.execute("INSERT OR REPLACE INTO meta VALUES ('oldest_reader', ?)", (str(OLDEST_READER),))
            connection.execute(f"PRAGMA application_id = {APPLICATION}")
        except BaseException:
            connection.execute("ROLLBACK")
            raise
        connection.execute("COMMIT")


def _journal(connection: Connection, path: str) -> None:
    mode = connection.execute("PRAGMA journal_mode = WAL").fetchall()[0][0]
    if mode != "wal":
        raise StoreError(f"{path}: this file system does not allow a write-ahead log (journal mode {mode})")


def _version(connection: Connection) -> int:
    return connection.execute("PRAGMA user_version").fetchall()[0][0]


def _check(connection: Connection, path: str) -> None:
    tables = connection.execute("SELECT count(*) FROM sqlite_schema").fetchall()[0][0]
    application = connection.execute("PRAGMA application_id").fetchall()[0][0]
    if tables and application != APPLICATION:
        raise InvalidDatabaseError(f"{path} is a SQLite database of another program; name another file with --db")
    newest = migrations("sqlite")[-1][0]
    if tables and _version(connection) > newest:
        rows = connection.execute("SELECT value FROM meta WHERE name = 'oldest_reader'").fetchall()
        oldest = int(rows[0][0]) if rows else _version(connection)
        if oldest > newest:
            raise UnsupportedVersionError(
                f"{path} has schema {_version(connection)} and needs a Callslip that knows schema {oldest}; "
                f"this one knows {newest}. Upgrade Callslip"
            )
