"""Values that are too large to be stored in their events: read them, and check references to them."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from typing import NamedTuple

from msgspec import structs

from callslip.api.access import FULL_ACCESS, Access
from callslip.errors import InvalidInputError, NotFoundError
from callslip.ledger.event_log import EventLog
from callslip.model.events import Blob, Draft, blob_of

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


async def check_blobs(log: EventLog, session: str, drafts: list[Draft]) -> list[Draft]:
    """Return posted drafts whose blobs are stored for their session, or raise InvalidInputError.

    A blob is readable with each session that refers to it, so another reference would give access to it. The size and
    the media type are those of the stored value.
    """
    checked: list[Draft] = []
    for draft in drafts:
        blob = blob_of(draft.event)
        if blob is not None:
            is_own = HASH.fullmatch(blob.hash) and session in await log.store.sessions_with_blob(blob.hash)
            info = await log.store.blob_size(blob.hash) if is_own else None
            if info is None:
                problem = f"session {session!r} has no blob {blob.hash[:64]!r}. Post the full value instead."
                raise InvalidInputError("blob", problem)
            draft = structs.replace(draft, event=structs.replace(draft.event, blob=Blob(blob.hash, *info, blob.fields)))
        checked.append(draft)
    return checked


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
