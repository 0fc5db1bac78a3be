"""Open the store that a URL names, and read facts about its database without changing it.

`postgresql://` and `postgres://` name a database on a server. Everything else is a SQLite file: `sqlite:///FILE`, or
its path. The modules of an engine are imported only if a URL names it.
"""

from __future__ import annotations

from importlib import import_module
from types import ModuleType
from typing import Any

from callslip.errors import StoreError
from callslip.model.database_url import is_server_url, mask_password
from callslip.settings import Settings
from callslip.store.copying import CopySource, CopyTarget
from callslip.store.protocol import Store

READ_ONLY = "read only"


async def open_store(url: str, settings: Settings, *, create: bool = True) -> Store:
    """Open a store, creating or migrating its database if needed.

    Without `create` the tables must exist on a server. Whether a file exists is known before it is opened.
    """
    if is_server_url(url):
        return await _import_postgres("postgres", url).PostgresStore.open(url, settings, create=create)
    from callslip.store.sqlite import SqliteStore

    return SqliteStore(url, settings)


async def open_incomplete(url: str, settings: Settings) -> Store:
    """Open a store that is the target of a copy which has not finished, to check it."""
    if is_server_url(url):
        return await _import_postgres("postgres", url).PostgresStore.open(url, settings, allows_incomplete=True)
    from callslip.store.sqlite import SqliteStore

    return SqliteStore(url, settings, allows_incomplete=True)


async def open_copy_source(url: str, settings: Settings) -> CopySource:
    """Open a snapshot of a database to copy it. The database is not changed."""
    if is_server_url(url):
        return await _import_postgres("postgres_copy", url).PostgresCopySource.open(url, settings)
    from callslip.store import sqlite_copy, sqlite_open

    return sqlite_copy.SqliteCopySource(sqlite_open.path_of(url), settings)


async def open_copy_target(url: str, settings: Settings) -> CopyTarget:
    """Open a database to fill it, and create its tables if needed."""
    if is_server_url(url):
        return await _import_postgres("postgres_copy", url).PostgresCopyTarget.open(url, settings)
    from callslip.store import sqlite_copy, sqlite_open

    return sqlite_copy.SqliteCopyTarget(sqlite_open.path_of(url), settings)


async def migrate(url: str, settings: Settings) -> tuple[int, int]:
    """Create or migrate the schema of a database; return its version before, 0 for none, and after."""
    if is_server_url(url):
        return await _import_postgres("postgres_database", url).migrate(url, settings)
    from callslip.store import sqlite_open

    return sqlite_open.migrate(sqlite_open.path_of(url), settings)


async def read_facts(url: str) -> dict[str, Any]:
    """Return the schema version of a database and the counts of what is in it.

    `schema` has `version`, `newest` and `oldestReader`. The counts are `sessions`, `events`, `calls` by state, and
    `blobs` with `count` and `bytes`; `newest` is the time of the last write. A server adds `access`, which is "read and
    write" or "read only", and may add `versions` by name and facts about the server as `database`. NotFoundError means
    that its database contains no ledger.
    """
    if is_server_url(url):
        return await _import_postgres("postgres_facts", url).read_facts(url)
    from callslip.store import sqlite_facts, sqlite_open

    return sqlite_facts.read_facts(sqlite_open.path_of(url))


def read_file_facts(url: str) -> dict[str, Any]:
    """Return whether a database exists and, of a file, its size, its locks and the free space of its disk.

    Whether a database on a server exists is known only after a connection, so it counts as existing.
    """
    if is_server_url(url):
        return {"exists": True}
    from callslip.store import sqlite_facts, sqlite_open

    path = sqlite_open.path_of(url)
    if not sqlite_facts.exists(path):
        return {"exists": False}
    return {"exists": True, **sqlite_facts.read_file_facts(path)}


async def is_writable(url: str) -> bool:
    """Return whether this user may write a database."""
    if is_server_url(url):
        return (await read_facts(url)).get("access") != READ_ONLY
    from callslip.store import sqlite_open

    return sqlite_open.is_writable(sqlite_open.path_of(url))


def database_version(url: str) -> tuple[str, str]:
    """Return the name and the version of the library that reads a database; the version is "" if it is missing."""
    if is_server_url(url):
        try:
            return "asyncpg", import_module("asyncpg").__version__
        except ModuleNotFoundError:
            return "asyncpg", ""
    from callslip.store import sqlite_facts

    return "sqlite", sqlite_facts.sqlite_version()


def _import_postgres(module: str, url: str) -> ModuleType:
    name = f"callslip.store.{module}"
    try:
        return import_module(name)
    except ModuleNotFoundError as error:
        if error.name == "asyncpg":
            raise StoreError(
                f"{mask_password(url)}: PostgreSQL needs the package asyncpg; install callslip[postgres]"
            ) from error
        if error.name == name:
            raise StoreError("PostgreSQL is not supported by this version yet; use sqlite:///FILE") from error
        raise
