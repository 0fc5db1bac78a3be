"""The command line of a version with one more migration, which creates a table that only one process can create."""

from __future__ import annotations

from callslip.cli import main
from callslip.store import postgres_database, sql, sqlite_open


def migrations(engine: str) -> list[tuple[int, str]]:
    found = sql.migrations(engine)
    return [*found, (found[-1][0] + 1, "CREATE TABLE added_later (name text)")]


if __name__ == "__main__":
    postgres_database.migrations = sqlite_open.migrations = migrations
    main()
