"""Read what `callslip doctor` needs from a database, without a migration and without ending calls of dead owners."""

from __future__ import annotations

from typing import Any, NamedTuple

from callslip.model.records import ApprovalRecord, CallRecord, OwnerRecord
from callslip.settings import Settings
from callslip.store import open as databases

MAX_APPROVALS = 10_000


class OpenWork(NamedTuple):
    """What is open in a database, with the owners of calls and the last time each queue's workers asked for work."""

    now: int
    calls: list[CallRecord]
    approvals: list[ApprovalRecord]
    owners: dict[str, OwnerRecord]
    failed_commands: list[CallRecord]
    workers: dict[str, int]


def database_version(url: str) -> tuple[str, str]:
    """Return the name and the version of the library that reads a database; the version is "" if it is missing."""
    return databases.database_version(url)


async def is_writable(url: str) -> bool:
    """Return whether this user may write a database."""
    return await databases.is_writable(url)


def read_file_facts(url: str) -> dict[str, Any]:
    """Return whether a database exists and, of a file, its size, its locks and the free space of its disk."""
    return databases.read_file_facts(url)


async def read_facts(url: str) -> dict[str, Any]:
    """Return the schema version of a database and the counts of what is in it."""
    return await databases.read_facts(url)


async def read_open_work(url: str) -> OpenWork:
    """Return what is open in a database of the current schema version."""
    settings = Settings()
    store = await databases.open_store(url, settings)
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
