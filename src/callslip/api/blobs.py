"""Read values that are too large to be stored in their events."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from typing import NamedTuple

from callslip.api.access import FULL_ACCESS, Access
from callslip.errors import NotFoundError
from callslip.ledger.event_log import EventLog

HASH = re.compile(r"[0-9a-f]{64}")


class BlobInfo(NamedTuple):
    """The size in bytes and the media type of a blob."""

    size: int
    media_type: str


async def find_blob(log: EventLog, hash: str, *, access: Access = FULL_ACCESS) -> BlobInfo:
    """Return a blob that a session refers to which the caller may read."""
    if HASH.fullmatch(hash):
        for session in await log.store.sessions_with_blob(hash):
            info = await log.store.blob_size(hash) if await access.may(session, "read") else None
            if info is not None:
                return BlobInfo(*info)
    await access.require_identity()
    raise NotFoundError(f"no blob {hash!r}")


async def read_blob(log: EventLog, hash: str, start: int, end: int) -> AsyncIterator[bytes]:
    """Yield the bytes of a blob from `start` to `end`; fewer if retention removes it meanwhile."""
    length = len(await log.store.blob_piece(hash, 0)) or 1  # All pieces but the last are as long as the first.
    while start < end:
        piece = await log.store.blob_piece(hash, start // length)
        part = piece[start % length :][: end - start]
        if not part:
            return
        yield part
        start += len(part)
