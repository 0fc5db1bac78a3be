"""Decide which option of a permission request allows a call and which one rejects it.

An option is an object with `optionId` and `kind`, as in the Agent Client Protocol. Malformed options are ignored.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, cast

KINDS = {"allow_once": True, "allow_always": True, "reject_once": False, "reject_always": False}
"""Whether an option of this kind allows the call."""


def _offered(options: Iterable[Any]) -> Iterator[tuple[str, str]]:
    """Yield the id and the kind of each option that can be chosen; an unknown kind is ""."""
    for option in options:
        fields = cast("dict[str, Any]", option) if isinstance(option, dict) else {}
        option_id, kind = fields.get("optionId"), fields.get("kind")
        if isinstance(option_id, str) and option_id:
            yield option_id, kind if isinstance(kind, str) else ""


def option_ids(options: Iterable[Any]) -> list[str]:
    """Return the ids of the options that can be chosen."""
    return [option_id for option_id, _ in _offered(options)]


def choose_option(options: Iterable[Any], allow: bool, durations: Iterable[str] = ("once", "always")) -> str:
    """Return the id of an option that allows or rejects, or "" if there is none; earlier durations are preferred."""
    ids: dict[str, str] = {}
    for option_id, kind in _offered(options):
        ids.setdefault(kind, option_id)
    verb = "allow" if allow else "reject"
    return next((ids[kind] for duration in durations if (kind := f"{verb}_{duration}") in ids), "")


def option_allows(options: Iterable[Any], option_id: str) -> bool | None:
    """Return whether an option allows the call; None if it is not offered or its kind is not known."""
    return next((KINDS.get(kind) for other, kind in _offered(options) if other == option_id), None)
