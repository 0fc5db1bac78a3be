"""Entries as JSON values, with outputs that are stored outside the log."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import msgspec

Json = dict[str, Any]


def entries_json(entries: Iterable[Any], load_blob: Callable[[str], bytes] | None = None) -> list[Json]:
    """Return entries as they are sent; with `load_blob`, with the outputs that are stored outside the log."""
    values: list[Json] = msgspec.json.decode(msgspec.json.encode(list(entries)))
    for value in values:
        if load_blob is not None and value.get("blob"):
            data = load_blob(value["blob"]["hash"])
            is_json = value["blob"].get("media") == "application/json"
            value["output"] = msgspec.json.decode(data) if is_json else data.decode("utf-8", "replace")
            value.pop("truncated", None)
    return values
