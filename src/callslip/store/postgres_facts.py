"""Facts about a PostgreSQL database, read without changing it."""

from __future__ import annotations

from typing import Any

from callslip.errors import NotFoundError
from callslip.settings import Settings
from callslip.store.copying import require_complete
from callslip.store.postgres_database import (
    Connection,
    Database,
    can_write,
    is_read_only,
    oldest_reader,
    read_copy_mark,
    require_tables,
    schema_version,
    translate_errors,
)
from callslip.store.sql import migrations

_COUNTS = {
    "sessions": "SELECT count(*) FROM sessions",
    "events": "SELECT coalesce(sum(head - low), 0)::bigint FROM sessions",
    "newest": "SELECT coalesce(max(updated_at), 0) FROM sessions",
}
_SERVER = """
SELECT current_setting('server_version'), pg_database_size(current_database()),
  current_setting('synchronous_commit'), current_setting('fsync'), current_setting('full_page_writes'),
  pg_is_in_recovery(),
  (SELECT coalesce(sum(numbackends), 0)::int FROM pg_stat_database),
  current_setting('max_connections')::int, callslip_clock()
"""
_SETTINGS = ("synchronous_commit", "fsync", "full_page_writes")


async def read_facts(url: str, settings: Settings | None = None) -> dict[str, Any]:
    """Return the schema version and the counts of a database, and what matters of its server.

    The schema is not migrated. `synchronous_commit`, `fsync` and `full_page_writes` must be on, else a crash of the
    server may lose or damage what was acknowledged.
    """
    database = Database(url, settings or Settings())
    connection = await database.connect_first()
    try:
        with translate_errors(database.name):
            return await _read(connection, database.name)
    finally:
        connection.terminate()


async def _read(connection: Connection, name: str) -> dict[str, Any]:
    version = await schema_version(connection)
    if not version:
        raise NotFoundError(f"{name} contains no ledger")
    await require_tables(connection, name, version)
    require_complete(await read_copy_mark(connection), name)
    is_writable = not await is_read_only(connection) and await can_write(connection)
    facts: dict[str, Any] = {
        "access": "read and write" if is_writable else "read only",
        "schema": {
            "version": version,
            "newest": migrations("postgres")[-1][0],
            "oldestReader": await oldest_reader(connection, version),
        },
    }
    for key, sql in _COUNTS.items():
        facts[key] = (await connection.fetch(sql))[0][0]
    calls = await connection.fetch("SELECT state, count(*) FROM calls GROUP BY state ORDER BY 2 DESC")
    facts["calls"] = {row[0]: row[1] for row in calls}
    count, stored = (await connection.fetch("SELECT count(*), coalesce(sum(size), 0)::bigint FROM blobs"))[0]
    facts["blobs"] = {"count": count, "bytes": stored}
    server, size, *values, is_standby, used, most, clock = (await connection.fetch(_SERVER))[0]
    facts["versions"] = {"postgresql": server}
    facts["database"] = {
        "bytes": size,
        "clock": clock,
        "isStandby": is_standby,
        "settings": dict(zip(_SETTINGS, values, strict=True)),
        "connections": {"used": used, "max": most},
    }
    return facts
