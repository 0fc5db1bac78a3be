"""Entries as JSON values, with outputs that are stored outside the log."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import msgspec

from callslip.model.events import Blob, read_blob
from callslip.rules.call_content import content_text

Json = dict[str, Any]


def entries_json(entries: Iterable[Any], load_blob: Callable[[str], bytes] | None = None) -> list[Json]:
    """Return entries as they are sent; with `load_blob`, with the outputs that are stored outside the log."""
    values: list[Json] = msgspec.json.decode(msgspec.json.encode(list(entries)))
    for value in values:
        if load_blob is not None and value.get("blob"):
            blob = msgspec.convert(value["blob"], Blob)
            loaded = read_blob(blob, load_blob(blob.hash))
            if "content" in loaded and value.get("output") == content_text(value.get("content")):
                loaded.setdefault("output", content_text(loaded["content"]))
            value.update(loaded)
            value.pop("truncated", None)
    return values
