"""Read what `callslip doctor` needs from a database, without a migration and without ending calls of dead owners."""

from __future__ import annotations

from typing import Any, NamedTuple

from callslip.model.records import ApprovalRecord, CallRecord, OwnerRecord
from callslip.settings import Settings
from callslip.store import sqlite_facts, sqlite_open
from callslip.store.sqlite import SqliteStore

MAX_APPROVALS = 10_000


class OpenWork(NamedTuple):
    """What is open in a database, with the owners of calls and the last time each queue's workers asked for work."""

    now: int
    calls: list[CallRecord]
    approvals: list[ApprovalRecord]
    owners: dict[str, OwnerRecord]
    failed_commands: list[CallRecord]
    workers: dict[str, int]


def database_version() -> str:
    """Return the version of the database library."""
    return sqlite_facts.sqlite_version()


def is_writable(path: str) -> bool:
    """Return whether this user may write a database."""
    return sqlite_open.is_writable(path)


def read_facts(path: str) -> dict[str, Any]:
    """Return the schema version of a database and the counts of what is in it."""
    return sqlite_facts.read_facts(path)


async def read_open_work(url: str) -> OpenWork:
    """Return what is open in a database of the current schema version."""
    settings = Settings()
    store = SqliteStore(url, settings)
    try:
        return OpenWork(
            await store.clock(),
            await store.open_calls(),
            await store.approvals(state="pending", limit=MAX_APPROVALS),
            {owner.id: owner for owner in await store.owners()},
            await store.failed_commands("", settings.failed_window),
            await store.executors(),
        )
    finally:
        await store.close()
