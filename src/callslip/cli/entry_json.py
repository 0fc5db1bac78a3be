"""Entries as JSON values, with outputs and content that are stored outside the log."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import msgspec

from callslip.model.events import Blob, read_blob
from callslip.rules.call_content import read_output

Json = dict[str, Any]


def entries_json(entries: Iterable[Any], load_blob: Callable[[str], bytes] | None = None) -> list[Json]:
    """Return entries as they are sent; with `load_blob`, with all that is stored outside the log."""
    values: list[Json] = msgspec.json.decode(msgspec.json.encode(list(entries)))
    if load_blob is not None:
        for value in values:
            _load_full_values(value, load_blob)
    return values


def _load_full_values(entry: Json, load_blob: Callable[[str], bytes]) -> None:
    """Replace the previews of the output and of the content."""
    blobs = {name: msgspec.convert(entry[name], Blob) for name in ("blob", "contentBlob") if entry.get(name)}
    data = {hash: load_blob(hash) for hash in {blob.hash for blob in blobs.values()}}
    if blob := blobs.get("blob"):
        if blob != blobs.get("contentBlob") or entry.get("output") is not None:
            entry["output"] = read_output(blob, data[blob.hash])
        entry.pop("truncated", None)
    if blob := blobs.get("contentBlob"):
        entry["content"] = read_blob(blob, data[blob.hash]).get("content")
