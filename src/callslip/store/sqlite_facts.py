"""Facts about a SQLite database, read without changing it."""

from __future__ import annotations

import os
import shutil
from typing import Any

import apsw

from callslip.errors import InvalidDatabaseError
from callslip.settings import Settings
from callslip.store import sqlite_open
from callslip.store.sql import migrations

try:
    import fcntl
except ImportError:  # As in `write_lock`: without flock there are no locks to check.
    fcntl = None

DATA_SUFFIXES = ("-wal", "-shm")
LOCK_SUFFIXES = ("-queue", "-work")
_COUNTS = {
    "sessions": "SELECT count(*) FROM sessions",
    "events": "SELECT coalesce(sum(head - low), 0) FROM sessions",
    "newest": "SELECT coalesce(max(updated_at), 0) FROM sessions",
}


def sqlite_version() -> str:
    """Return the version of the SQLite library."""
    return apsw.sqlite_lib_version()


def exists(path: str) -> bool:
    """Return whether there is a file with content. A database in memory does not exist for other processes."""
    return bool(path) and os.path.isfile(path) and os.path.getsize(path) > 0


def read_file_facts(path: str) -> dict[str, Any]:
    """Return the sizes of the files of a database, the states of its lock files, and the free space of its disk."""
    sizes = {"db": os.path.getsize(path)}
    for suffix in DATA_SUFFIXES:
        if os.path.exists(path + suffix):
            sizes[suffix[1:]] = os.path.getsize(path + suffix)
    locks = {suffix[1:]: _lock_state(path + suffix) for suffix in LOCK_SUFFIXES}
    free = shutil.disk_usage(os.path.dirname(os.path.abspath(path))).free
    return {"files": sizes, "locks": locks, "freeBytes": free}


def _lock_state(path: str) -> str:
    """Return whether a lock file exists, and whether a writer holds it now."""
    if not os.path.exists(path):
        return "absent"
    if fcntl is None:
        return "present"
    try:
        lock = os.open(path, os.O_RDONLY)
    except OSError:
        return "unreadable"
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return "free"
    except OSError:
        return "held"
    finally:
        os.close(lock)


def read_facts(path: str) -> dict[str, Any]:
    """Return the schema version and the counts of a database.

    The connection is read-only: opening the store would migrate an old file.
    """
    with sqlite_open.translate_errors(path):
        connection = sqlite_open.connect(path, "", Settings(), read_only=True)
        try:
            run = connection.execute
            if run("PRAGMA application_id").fetchall()[0][0] != sqlite_open.APPLICATION_ID:
                raise InvalidDatabaseError(f"{path} is a SQLite database of another program")
            sqlite_open.require_complete_copy(connection, path)
            facts: dict[str, Any] = {
                "schema": {
                    "version": run("PRAGMA user_version").fetchall()[0][0],
                    "newest": migrations("sqlite")[-1][0],
                    "oldestReader": sqlite_open.oldest_reader(connection),
                    "journal": run("PRAGMA journal_mode").fetchall()[0][0],
                }
            }
            for name, sql in _COUNTS.items():
                facts[name] = run(sql).fetchall()[0][0]
            facts["calls"] = dict(run("SELECT state, count(*) FROM calls GROUP BY state ORDER BY 2 DESC").fetchall())
            count, stored = run("SELECT count(*), coalesce(sum(size), 0) FROM blobs").fetchall()[0]
            facts["blobs"] = {"count": count, "bytes": stored}
            return facts
        finally:
            connection.close()
