"""Assign the ids that calls have in one message of a format whose producers start their ids again in every turn."""

from __future__ import annotations

from collections.abc import Callable

from callslip.model.entries import ToolCall


class MessageIds:
    """The ids of the calls in one message: the producer's own, or the call's id if an earlier call has that id.

    Calls must be passed in the order of their entries.
    """

    def __init__(self, own_id: Callable[[ToolCall], str]) -> None:
        self._own_id = own_id
        self._owners: dict[str, int] = {}

    def of(self, entry: ToolCall) -> str:
        """Return the id of a call."""
        own = self._own_id(entry)
        return own if self._owners.setdefault(own, entry.id) == entry.id else entry.call_id


def foreign_id(entry: ToolCall, namespace: str) -> str:
    """Return the id that the producer gave a call in a namespace, or ""."""
    return (entry.foreign_ids or {}).get(namespace, "")
