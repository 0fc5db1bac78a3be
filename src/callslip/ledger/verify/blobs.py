"""Check blobs: their size is in the event, and their digest is their name."""

from __future__ import annotations

import hashlib

from callslip.errors import CallslipError, DatabaseUnavailableError
from callslip.model.events import Blob
from callslip.store.protocol import Store


async def find_blob_fault(store: Store, blob: Blob) -> str:
    """Return what is wrong with a blob, or "". It is read in pieces, because it may be large."""
    digest, size, number = hashlib.blake2b(digest_size=32), 0, 0
    try:
        while data := await store.blob_piece(blob.hash, number):
            digest.update(data)
            size, number = size + len(data), number + 1
    except DatabaseUnavailableError:  # That says nothing about the blob.
        raise
    except CallslipError as error:
        return str(error)
    if not number:
        return "is missing"
    if size != blob.size:
        return f"has {size} bytes, should have {blob.size}"
    return "" if digest.hexdigest() == blob.hash else "has content with another digest"
