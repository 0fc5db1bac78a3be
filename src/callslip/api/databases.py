"""Operations on whole databases: migrate a schema explicitly, and copy a ledger to another database."""

from __future__ import annotations

from callslip.ledger.copy import CopyProgress, CopyReport, Listener
from callslip.ledger.copy import copy_ledger as _copy_ledger
from callslip.settings import Settings
from callslip.store import open as databases

__all__ = ["CopyProgress", "CopyReport", "copy_ledger", "migrate"]


async def migrate(url: str) -> tuple[int, int]:
    """Create or migrate the schema of a database; return its version before, 0 for none, and after.

    Opening a ledger does the same, so this is for those who want to see it done, or allow it only once.
    """
    return await databases.migrate(url, Settings())


async def copy_ledger(
    source: str, target: str, *, snapshot: bool = False, listener: Listener | None = None
) -> CopyReport:
    """Copy the ledger of a database to an empty database, or continue a copy.

    A source that another process may write to is refused, unless a `snapshot` of it is wanted.
    """
    return await _copy_ledger(source, target, Settings(), snapshot=snapshot, listener=listener)
