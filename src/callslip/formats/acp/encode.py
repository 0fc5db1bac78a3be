"""`acp` out: a session as the updates that an agent sends when it is asked to load one, in version 1 of the protocol.

Every entry is told once, as it stands: a call is one `tool_call` with its status, what came out, and how it ended.
Texts are whole and have ids, so that no client joins two of them. What the protocol has no word for stands under
`_meta.callslip`. What the agent offers now comes last, and only a state or a snapshot knows it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

from callslip.formats.acp import blocks
from callslip.formats.acp.outcome import call_update
from callslip.formats.base import Source, snapshot_of
from callslip.formats.json_fields import as_dict
from callslip.model.entries import Entry, Info, Message, Meta, ModeChange, Plan, Thought, ToolCall

Update: TypeAlias = dict[str, Any]

PRIORITIES = ("high", "medium", "low")
STATUSES = ("pending", "in_progress", "completed")


def history(source: Source) -> list[dict[str, Any]]:
    """A session's `session/update` notifications, oldest first, from its state, a snapshot, or rendered entries."""
    snapshot = snapshot_of(source)
    told = [_noted(entry, update) for entry in snapshot.entries for update in _updates(entry)]
    return [_notification(snapshot.session, update) for update in [*told, *_offers(snapshot.info)]]


def _notification(session: str, update: Update) -> dict[str, Any]:
    params = {"sessionId": session, "update": update}
    return {"jsonrpc": "2.0", "method": "session/update", "params": params}


def _noted(entry: Entry, update: Update) -> Update:
    """An update with where and when its entry was made."""
    where = {"entry": entry.id, "at": entry.at, "turn": entry.turn}
    more = as_dict(as_dict(update.get("_meta")).get("callslip"))
    return {**update, "_meta": {"callslip": {**{name: value for name, value in where.items() if value}, **more}}}


def _updates(entry: Entry) -> list[Update]:
    rule = _RULES.get(type(entry))
    return rule(entry) if rule else []


# Texts


def _message(entry: Message) -> list[Update]:
    if entry.role != "user":
        return [_chunk("agent_message_chunk", entry, blocks.text(entry.content))]
    others = [blocks.block(one) for one in blocks.listed(entry.blocks) if not blocks.is_text(one)]
    said = [blocks.text(entry.content)] if entry.content or not others else []
    return [_chunk("user_message_chunk", entry, block) for block in [*said, *others]]


def _thought(entry: Thought) -> list[Update]:
    return [_chunk("agent_thought_chunk", entry, blocks.text(entry.content))]


def _chunk(kind: str, entry: Message | Thought, block: blocks.Block) -> Update:
    return {"sessionUpdate": kind, "messageId": entry.message_id or f"entry-{entry.id}", "content": block}


# Plans and modes


def _plan(entry: Plan) -> list[Update]:
    return [{"sessionUpdate": "plan", "entries": [_step(step) for step in entry.entries]}]


def _step(step: Any) -> dict[str, Any]:
    """A step of a plan; whoever does not say how urgent it is, or how far, is taken at the protocol's mildest word."""
    told = as_dict(step)
    content = told.get("content")
    return {
        "content": content if isinstance(content, str) else blocks.plain(step),
        "priority": _word(told.get("priority"), PRIORITIES, "medium"),
        "status": _word(told.get("status"), STATUSES, "pending"),
    }


def _word(value: Any, known: tuple[str, ...], otherwise: str) -> str:
    return value if value in known else otherwise


def _mode(entry: ModeChange) -> list[Update]:
    return [{"sessionUpdate": "current_mode_update", "currentModeId": entry.new_mode_id}]


def _meta(entry: Meta) -> list[Update]:
    """Of what an agent offers anew, an update can only tell the mode."""
    mode = entry.current_mode_id
    return [{"sessionUpdate": "current_mode_update", "currentModeId": mode}] if mode else []


_RULES: dict[type[Entry], Callable[[Any], list[Update]]] = {
    Message: _message,
    Thought: _thought,
    ToolCall: lambda entry: [call_update(entry)],
    Plan: _plan,
    ModeChange: _mode,
    Meta: _meta,
}


# What holds for the session now


def _offers(info: Info) -> list[Update]:
    commands = [command for one in info.available_commands if (command := _command(as_dict(one)))]
    told: list[Update] = []
    if commands:
        told.append({"sessionUpdate": "available_commands_update", "availableCommands": commands})
    if info.title:
        told.append({"sessionUpdate": "session_info_update", "title": info.title})
    return told


def _command(told: dict[str, Any]) -> dict[str, Any] | None:
    """A command that a person may type: it has a name at least."""
    name, about, hint = told.get("name"), told.get("description"), as_dict(told.get("input")).get("hint")
    if not isinstance(name, str) or not name:
        return None
    made: dict[str, Any] = {"name": name, "description": about if isinstance(about, str) else ""}
    return {**made, "input": {"hint": hint}} if isinstance(hint, str) else made
