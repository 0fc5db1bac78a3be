"""A blob is whole if its bytes have the size that its event says and the digest that is its name."""

from __future__ import annotations

import hashlib

from callslip.errors import CallslipError
from callslip.model.events import Blob
from callslip.store.protocol import Store


async def fault(store: Store, blob: Blob) -> str:
    """What is wrong with a blob. It is read piece by piece: it may be a large one."""
    digest, size, number = hashlib.blake2b(digest_size=32), 0, 0
    try:
        while data := await store.blob_piece(blob.hash, number):
            digest.update(data)
            size, number = size + len(data), number + 1
    except CallslipError as error:
        return str(error)
    if not number:
        return "is not there"
    if size != blob.size:
        return f"has {size} bytes, should have {blob.size}"
    return "" if digest.hexdigest() == blob.hash else "has another content than its name says"
