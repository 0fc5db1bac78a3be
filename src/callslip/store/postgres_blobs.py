"""Write and delete blobs on PostgreSQL, each step in a transaction of its own.

An event that names a blob locks the row of the blob, and so does the deletion of a blob. A blob is deleted only if a
statement that begins after that lock finds no event that uses it.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from callslip.store.postgres_database import Connection
from callslip.store.shared_rows import CHUNK_BYTES, DAY_MS
from callslip.store.sql import statements

SQL = statements("postgres.sql")
KEPT_MS = DAY_MS // 2
"""A blob that nothing uses is kept for a day. If it is older than this, the day starts again before it is used."""
PIECES_PER_READ = 8
DELETION_S = 600.0
"""How long one statement of a deletion may take: a session may have millions of rows and large blobs."""
NEVER_MS = 2**62
PAGE_ROWS = 200
"""How many blobs one statement looks for events of. Each may take a read of the disk."""
MAX_UPLOADS = 3
"""How often an upload begins again because the blob was deleted meanwhile."""


class NewBlob(msgspec.Struct, frozen=True):
    """A blob to store. All pieces but the last have the same size; an empty blob has one empty piece."""

    hash: str
    data: bytes
    media: str
    created_at: int

    @property
    def pieces(self) -> int:
        """The number of pieces."""
        return max(1, -(-len(self.data) // CHUNK_BYTES))


async def put_piece(connection: Connection, blob: NewBlob, number: int) -> bool:
    """Store a piece. The last one completes the blob; return False if earlier pieces are missing then."""
    data = blob.data[number * CHUNK_BYTES : (number + 1) * CHUNK_BYTES]
    row = blob.hash, len(blob.data), blob.media, blob.created_at
    await connection.execute(SQL["put_blob_piece"], *row, number, data)
    return number < blob.pieces - 1 or bool(await connection.fetch(SQL["finish_blob"], blob.hash, blob.pieces))


async def drop_unused_blobs(connection: Connection, hashes: Iterable[str], before: int = NEVER_MS) -> None:
    """Delete those of these blobs that no event uses, and that are older than `before`."""
    rows = await connection.fetch(SQL["lock_blobs"], sorted(set(hashes)), before, timeout=DELETION_S)
    locked = [row[0] for row in rows]
    rows = await connection.fetch(SQL["unused_blobs"], locked, timeout=DELETION_S) if locked else []
    unused = [row[0] for row in rows]
    if unused:
        await connection.execute(SQL["drop_blob_pieces"], unused, timeout=DELETION_S)
        await connection.execute(SQL["drop_blobs"], unused, timeout=DELETION_S)
