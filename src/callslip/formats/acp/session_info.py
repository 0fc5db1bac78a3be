"""Facts about the session itself: title, usage, notices, modes, options, commands."""

from __future__ import annotations

from typing import Any

from msgspec import UNSET

from callslip.formats.acp import offers
from callslip.formats.acp.wire import Message, kept, leaves
from callslip.formats.json_fields import as_dict, as_list
from callslip.model import events as ev
from callslip.model.events import Event


class Facts:
    """What is told of one conversation."""

    def __init__(self) -> None:
        self._cost: Any = None
        self._offered: list[Event] = []

    def opened(self, read: Message) -> list[Event]:
        """A session was begun, or taken up again: what the agent offers for it. RULE 7"""
        result = as_dict(read.result)
        told = offers.offered(result)
        if told == self._offered:
            return []  # Taken up again on the same line, with the same offers: nothing new.
        self._offered = told or self._offered
        return told + kept(told and leaves(result, offers.KNOWN_FIELDS), read)

    def usage(self, update: dict[str, Any], read: Message) -> list[Event]:
        """The cost is a sum: where an update does not mention it, it stays (C10)."""
        said = _bare(update)
        self._cost = said.get("cost", self._cost)
        return [ev.SessionInfo(usage={**said, "cost": self._cost} if self._cost is not None else said)]

    def notice(self, update: dict[str, Any], read: Message) -> list[Event]:
        return [ev.SessionInfo(notice=_bare(update))]

    def info(self, update: dict[str, Any], read: Message) -> list[Event]:
        if "title" not in update or not isinstance(update["title"], str | None):
            return []
        return [ev.SessionInfo(title=update["title"]), *kept(leaves(update, {"sessionUpdate", "title"}), read)]

    def retitled(self, read: Message) -> list[Event]:
        """The title as the agent keeps it, which need not be the one that was asked for."""
        result = as_dict(read.result)
        title = result.get("title")
        return [ev.SessionInfo(title=title), *kept(leaves(result, {"title"}), read)] if isinstance(title, str) else []

    def commands(self, update: dict[str, Any], read: Message) -> list[Event]:
        commands = update.get("availableCommands")
        if not isinstance(commands, list):
            return []
        told = ev.SessionCommands(commands=as_list(commands))
        return [told, *kept(leaves(update, {"sessionUpdate", "availableCommands"}), read)]

    def mode(self, update: dict[str, Any], read: Message) -> list[Event]:
        mode = update.get("currentModeId")
        if not isinstance(mode, str):
            return []
        return [ev.SessionMode(mode=mode), *kept(leaves(update, {"sessionUpdate", "currentModeId"}), read)]

    def mode_set(self, read: Message) -> list[Event]:
        """A person chose a mode, and the agent did not refuse it."""
        mode = read.params.get("modeId")
        if not isinstance(mode, str) or not mode or read.error is not UNSET:
            return []
        return [ev.SessionMode(mode=mode), *kept(leaves(as_dict(read.result), set()), read)]

    def options(self, update: dict[str, Any], read: Message) -> list[Event]:
        told = offers.reconfigured(update.get("configOptions"))
        return told + kept(told and leaves(update, {"sessionUpdate", "configOptions"}), read)

    def option_set(self, read: Message) -> list[Event]:
        result = as_dict(read.result)
        told = offers.reconfigured(result.get("configOptions"))
        return told + kept(told and leaves(result, {"configOptions"}), read)


def _bare(update: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in update.items() if name != "sessionUpdate"}
