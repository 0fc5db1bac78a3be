"""Facts about the session itself: title, usage, notices, modes, options, commands."""

from __future__ import annotations

from typing import Any

from msgspec import UNSET

from callslip.formats.acp import capabilities
from callslip.formats.acp.wire import Message, raw_message_if
from callslip.formats.json_fields import as_dict, as_list, as_str, has_other_fields
from callslip.formats.usage import read_cost
from callslip.model import events as ev
from callslip.model.events import Event

Json = dict[str, Any]
COST = "session:cost"
"""The id of the report of what a session has cost so far."""


class SessionFacts:
    """The facts of one conversation."""

    def __init__(self) -> None:
        self._cost: Any = None
        self._capabilities: list[Event] = []
        self._known: Json = {}

    def session_opened(self, message: Message) -> list[Event]:
        """Read who works where in a new or resumed session, and its capabilities."""
        about = self._about(message)
        events = self._read_capabilities(message)
        return [*(events or raw_message_if(True, message)), *about] if about else events

    def _about(self, message: Message) -> list[Event]:
        """Return the agent and the folder of a session, if they are new."""
        agent, version = message.agent
        fields: Json = {"agent": agent, "agent_version": version, "project": as_str(message.params.get("cwd"))}
        fields = {name: value for name, value in fields.items() if value and message.error is UNSET}
        if fields == self._known:
            return []
        self._known = fields
        return [ev.SessionInfo(**fields)]

    def _read_capabilities(self, message: Message) -> list[Event]:
        result = as_dict(message.result)
        events = capabilities.read_capabilities(result)
        if events == self._capabilities:
            return []  # Resumed over the same connection with the same capabilities: nothing new.
        self._capabilities = events or self._capabilities
        needs_raw = events and has_other_fields(result, capabilities.KNOWN_FIELDS)
        return events + raw_message_if(needs_raw, message)

    def usage(self, update: Json, message: Message) -> list[Event]:
        """Read the usage. The cost is a sum: it stays if an update does not contain it."""
        fields = _without_kind(update)
        self._cost = fields.get("cost", self._cost)
        info = ev.SessionInfo(usage={**fields, "cost": self._cost} if self._cost is not None else fields)
        cost, currency = read_cost(fields.get("cost"))
        return [info] if cost is None else [info, ev.UsageReported(id=COST, cost=cost, currency=currency, of_turn=True)]

    def notice(self, update: Json, message: Message) -> list[Event]:
        return [ev.SessionInfo(notice=_without_kind(update))]

    def info(self, update: Json, message: Message) -> list[Event]:
        if "title" not in update or not isinstance(update["title"], str | None):
            return []
        return _event_and_raw(ev.SessionInfo(title=update["title"]), update, {"sessionUpdate", "title"}, message)

    def title_set(self, message: Message) -> list[Event]:
        """Read the title that the agent stored, which may differ from the requested one."""
        result = as_dict(message.result)
        title = result.get("title")
        return _event_and_raw(ev.SessionInfo(title=title), result, {"title"}, message) if isinstance(title, str) else []

    def commands(self, update: Json, message: Message) -> list[Event]:
        commands = update.get("availableCommands")
        if not isinstance(commands, list):
            return []
        event = ev.SessionCommands(commands=as_list(commands))
        return _event_and_raw(event, update, {"sessionUpdate", "availableCommands"}, message)

    def mode(self, update: Json, message: Message) -> list[Event]:
        mode = update.get("currentModeId")
        if not isinstance(mode, str):
            return []
        return _event_and_raw(ev.SessionMode(mode=mode), update, {"sessionUpdate", "currentModeId"}, message)

    def mode_set(self, message: Message) -> list[Event]:
        """Read a mode that the user chose and the agent accepted."""
        mode = message.params.get("modeId")
        if not isinstance(mode, str) or not mode or message.error is not UNSET:
            return []
        return _event_and_raw(ev.SessionMode(mode=mode), as_dict(message.result), set(), message)

    def options(self, update: Json, message: Message) -> list[Event]:
        return _options(update, {"sessionUpdate", "configOptions"}, message)

    def option_set(self, message: Message) -> list[Event]:
        return _options(as_dict(message.result), {"configOptions"}, message)


def _options(fields: Json, known: set[str], message: Message) -> list[Event]:
    events = capabilities.read_options(fields.get("configOptions"))
    return events + raw_message_if(events and has_other_fields(fields, known), message)


def _event_and_raw(event: Event, fields: Json, known: set[str], message: Message) -> list[Event]:
    return [event, *raw_message_if(has_other_fields(fields, known), message)]


def _without_kind(update: Json) -> Json:
    return {name: value for name, value in update.items() if name != "sessionUpdate"}
