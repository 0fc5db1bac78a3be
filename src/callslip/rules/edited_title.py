"""The title of a call whose arguments were edited: a title often repeats arguments, and must not name the old ones."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, TypeGuard, cast

MIN_PREFIX_CHARS = 8
"""How much of an argument a title must begin with to count as a shortened form of it."""


def retitle(title: str, before: Any, after: Any) -> str:
    """Return the title with the edited values instead of those before. Values that it does not contain are ignored."""
    for old, new in sorted(_changed_texts(before, after), key=lambda pair: -len(pair[0])):
        shortened = title.rstrip(".… ")
        if len(shortened) >= MIN_PREFIX_CHARS and old.startswith(shortened):
            return new
        title = re.sub(rf"(?<!\w){re.escape(old)}(?!\w)", lambda _, new=new: new, title)
    return title


def _changed_texts(before: Any, after: Any) -> Iterator[tuple[str, str]]:
    """Yield the texts and numbers that differ at the same place of two JSON values, old and new."""
    if isinstance(before, dict) and isinstance(after, dict):
        fields, edited = cast("dict[str, Any]", before), cast("dict[str, Any]", after)
        for name in fields.keys() & edited.keys():
            yield from _changed_texts(fields[name], edited[name])
    elif isinstance(before, list) and isinstance(after, list):
        for old, new in zip(cast("list[Any]", before), cast("list[Any]", after), strict=False):
            yield from _changed_texts(old, new)
    elif _is_text(before) and _is_text(after) and before != after and str(before):
        yield str(before), str(after)


def _is_text(value: Any) -> TypeGuard[str | int | float]:
    return isinstance(value, str | int | float) and not isinstance(value, bool)
