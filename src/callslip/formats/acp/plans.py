"""Plans: complete lists of entries. Newer agents name their plans and may send one as text or as a file."""

from __future__ import annotations

from typing import Any

from callslip.formats.acp.wire import Message, raw_message_if
from callslip.formats.json_fields import as_dict, as_list, has_other_fields, identifier
from callslip.model import events as ev
from callslip.model.events import Event

# The field that replaces the entries, by the type of plan.
TEXT_FIELDS = {"markdown": "content", "file": "uri"}


def plan_entries(update: dict[str, Any]) -> list[Any] | None:
    """Return the entries of a plan, one for a plan that is a text; None if an update has none."""
    if update.get("sessionUpdate") == "plan":
        entries = update.get("entries")
        return as_list(entries) if isinstance(entries, list) else None
    plan = as_dict(update.get("plan"))
    if plan.get("type") == "items" and isinstance(plan.get("entries"), list):
        return as_list(plan["entries"])
    text = plan.get(TEXT_FIELDS.get(str(plan.get("type")), ""))
    return [{"content": text}] if isinstance(text, str) else None


class Plans:
    """The plans of one conversation. `_current` is the id of the plan that was updated last."""

    def __init__(self) -> None:
        self._current = ""

    def update(self, update: dict[str, Any], message: Message) -> list[Event]:
        """Read `plan` or `plan_update`. The raw message is stored too: only it names the plan."""
        entries = plan_entries(update)
        if entries is None:
            return []
        self._current = identifier(as_dict(update.get("plan")).get("planId"))
        needs_raw = has_other_fields(update, {"sessionUpdate", "entries"})
        return [ev.PlanUpdated(entries=entries), *raw_message_if(needs_raw, message)]

    def remove(self, update: dict[str, Any], message: Message) -> list[Event]:
        """Read `plan_removed`: clear the plan if it is the current one."""
        if not self._current or identifier(update.get("planId")) != self._current:
            return []
        self._current = ""
        return [ev.PlanUpdated(entries=[]), *raw_message_if(True, message)]
