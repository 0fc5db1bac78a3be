"""Plans: a list of entries that comes whole. Newer agents name their plans, and may give one as text or as a file."""

from __future__ import annotations

from typing import Any

from callslip.formats.acp.wire import Message, kept, leaves
from callslip.formats.json_fields import as_dict, as_list, identifier
from callslip.model import events as ev
from callslip.model.events import Event

# What stands for the entries of a plan that has none.
TEXTS = {"markdown": "content", "file": "uri"}


def entries_of(update: dict[str, Any]) -> list[Any] | None:
    """The entries that an update gives, one for a whole text; None if it gives none."""
    if update.get("sessionUpdate") == "plan":
        given = update.get("entries")
        return as_list(given) if isinstance(given, list) else None
    plan = as_dict(update.get("plan"))
    if plan.get("type") == "items" and isinstance(plan.get("entries"), list):
        return as_list(plan["entries"])
    text = plan.get(TEXTS.get(str(plan.get("type")), ""))
    return [{"content": text}] if isinstance(text, str) else None


class Plans:
    """The plans of one conversation. `_shown` is the id of the one that was told last."""

    def __init__(self) -> None:
        self._shown = ""

    def updated(self, update: dict[str, Any], read: Message) -> list[Event]:
        """`plan` or `plan_update`; which of several plans it is, only the message itself can say."""
        entries = entries_of(update)
        if entries is None:
            return []
        self._shown = identifier(as_dict(update.get("plan")).get("planId"))
        return [ev.PlanUpdated(entries=entries), *kept(leaves(update, {"sessionUpdate", "entries"}), read)]

    def removed(self, update: dict[str, Any], read: Message) -> list[Event]:
        """`plan_removed`: nothing is planned any more, if it is the plan that was told last."""
        if not self._shown or identifier(update.get("planId")) != self._shown:
            return []
        self._shown = ""
        return [ev.PlanUpdated(entries=[]), *kept(True, read)]
