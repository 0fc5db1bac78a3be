"""The command line of a version with one more migration, which only adds.

It creates a table, which only one process can do, and adds columns to tables that all versions write.
"""

from __future__ import annotations

from callslip.cli import main
from callslip.store import postgres_database, sql, sqlite_open

TABLES = ("sessions", "events", "calls", "approvals")
"""The tables that get a column."""
FURTHER = "\n".join(
    [
        "CREATE TABLE added_later (name text);",
        *(f"ALTER TABLE {table} ADD COLUMN added_later text NOT NULL DEFAULT 'none';" for table in TABLES),
        "CREATE INDEX calls_by_added_later ON calls (added_later);",
    ]
)


def migrations(engine: str) -> list[tuple[int, str]]:
    found = sql.migrations(engine)
    return [*found, (found[-1][0] + 1, FURTHER)]


if __name__ == "__main__":
    postgres_database.migrations = sqlite_open.migrations = migrations
    main()
