"""Operations on whole databases: migrate a schema explicitly."""

from __future__ import annotations

from callslip.settings import Settings
from callslip.store import open as databases


async def migrate(url: str) -> tuple[int, int]:
    """Create or migrate the schema of a database; return its version before, 0 for none, and after.

    Opening a ledger does the same, so this is for those who want to see it done, or allow it only once.
    """
    return await databases.migrate(url, Settings())
