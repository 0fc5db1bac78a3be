"""Tool calls and permission requests of one conversation: what each message about them says, as events.

Which call an id means, and what a message is worth to it, the ledger decides. Decided here is only what a message *is*:
a `tool_call` opens, a `tool_call_update` tells more and never opens a call that has ended. A tool's name is what the
agent calls the tool; a kind or a title is not a name.
"""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import UNSET

from callslip import codec
from callslip import events as ev
from callslip.events import Alias, CallEnd, Event
from callslip.formats.acp.wire import Message, fields, identifier, items
from callslip.lifecycle import TURN_CLOSES

NS = "acp"

ENDING: dict[str, type[CallEnd]] = {
    "completed": ev.CallCompleted,
    "failed": ev.CallFailed,
    "cancelled": ev.CallCancelled,  # draft 2
}
ANSWERS: dict[str, type[ev.ApprovalAnswer]] = {
    "allow_once": ev.ApprovalGranted,
    "allow_always": ev.ApprovalGranted,
    "reject_once": ev.ApprovalRefused,
    "reject_always": ev.ApprovalRefused,
}
WORDS = {"pending", "in_progress", *ENDING}

# Where agents put an exit status, within rawOutput.
EXITS = (("exit_code",), ("exitCode",), ("metadata", "exit"))
PRINTED = ("terminal_output_delta", "terminal_output")

TEXTS = {"title": "title", "kind": "kind"}
VALUES = {"rawInput": "input", "content": "content", "locations": "locations"}
TAKEN = {"sessionUpdate", "toolCallId", "name", "status", "rawOutput", "_meta", *TEXTS, *VALUES}


# Reading an update


def told(update: dict[str, Any]) -> dict[str, Any]:
    """What an update mentions of its call: absent says nothing, null clears (C10)."""
    said = {field: update[name] for name, field in VALUES.items() if name in update}
    for name, field in TEXTS.items():
        if name in update and isinstance(update[name], str | None):
            said[field] = update[name]
    tool = update.get("name") or _claude(update).get("toolName")
    if tool and isinstance(tool, str):
        said["tool_name"] = tool
    return said


def came_out(update: dict[str, Any], otherwise: Any = UNSET) -> dict[str, Any]:
    """The output and exit status of a call that ended; `otherwise` is the output if nothing else is."""
    if "rawOutput" in update:
        return {"output": update["rawOutput"], **_exit_status(update)}
    found = {} if otherwise is UNSET or _shows(update) else {"output": otherwise}
    return {**found, **_exit_status(update)}


def _shows(update: dict[str, Any]) -> bool:
    """Whether there is content to look at; a terminal is only a place where output was printed."""
    return any(fields(block).get("type") != "terminal" for block in items(update.get("content")))


def meanwhile(update: dict[str, Any]) -> dict[str, Any]:
    """What a call that goes on has brought: printed text, output so far, an exit status ahead of the end."""
    text = printed(update)
    return {
        **({"text": text} if text else {}),
        **({"progress": update["rawOutput"]} if "rawOutput" in update else {}),
        **_exit_status(update),
    }


def printed(update: dict[str, Any]) -> str:
    """Terminal output that stands only in the metadata."""
    found = [fields(_meta(update).get(name)).get("data") for name in PRINTED]
    return "".join(text for text in found if isinstance(text, str))


def status_of(update: dict[str, Any]) -> str:
    """The status word, "" for none."""
    status = update.get("status")
    return status if isinstance(status, str) else ""


def response(update: dict[str, Any]) -> Any:
    """The tool's own result in the metadata, which may come without any status."""
    return _claude(update).get("toolResponse", UNSET)


def leaves(update: dict[str, Any]) -> bool:
    """Whether an update says more than was taken over, so that it is to be kept whole."""
    odd = [name for name in (*TEXTS, "name") if not isinstance(update.get(name), str | None)]
    return bool(
        odd
        or update.get("status", "pending") not in (None, *WORDS)
        or any(value is not None for name, value in update.items() if name not in TAKEN)
        or _meta_leaves(update.get("_meta"))
    )


def _meta_leaves(meta: Any) -> bool:
    if not isinstance(meta, dict):
        return meta is not None
    members = fields(meta)
    known = {"claudeCode", "terminal_exit", *PRINTED}
    return bool(set(members) - known or set(fields(members.get("claudeCode"))) - {"toolName"})


def _meta(update: dict[str, Any]) -> dict[str, Any]:
    return fields(update.get("_meta"))


def _claude(update: dict[str, Any]) -> dict[str, Any]:
    return fields(_meta(update).get("claudeCode"))


def _exit_status(update: dict[str, Any]) -> dict[str, Any]:
    ended = fields(_meta(update).get("terminal_exit"))
    if type(ended.get("exit_code")) is int:
        return {"exit_status": ended["exit_code"]}
    if isinstance(ended.get("signal"), str):
        return {"exit_status": {"signal": ended["signal"]}}
    for path in EXITS:
        found: Any = update.get("rawOutput")
        for name in path:
            found = fields(found).get(name)
        if type(found) is int:
            return {"exit_status": found}
    return {}


# Following calls


class Known(msgspec.Struct):
    """A call as this conversation told of it. `asked` is the request for it that waits for an answer."""

    turn: int
    opening: str = ""
    ended: bool = False
    asked: str = ""
    response: Any = UNSET


class Asked(msgspec.Struct, frozen=True):
    """A permission request: the call it is about, and what each option means."""

    call: str
    kinds: dict[str, str]


class Calls:
    """All calls of one conversation."""

    def __init__(self) -> None:
        self._known: dict[str, Known] = {}
        self._open: set[str] = set()
        self._asked: dict[str, Asked] = {}
        self._turn = 0

    def turn_started(self) -> None:
        self._turn += 1

    def turn_ended(self, reason: str) -> None:
        """What comes after the end belongs to no turn. The ledger closes what is open when a turn ends badly."""
        self._turn += 1
        if reason in TURN_CLOSES:
            for identity in list(self._open):
                self._end(identity)

    def line_ended(self, reason: str) -> None:
        """No answer will come any more."""
        self._asked.clear()
        self.turn_ended(reason)

    def opened(self, update: dict[str, Any]) -> list[Event]:
        """A `tool_call`: it opens the call, or tells anew of an open one (S2.6)."""
        identity, status = identifier(update.get("toolCallId")), status_of(update)
        if not identity:
            return [_nameless(update, status)]
        mark = codec.digest(codec.encode(update))
        known = self._known.get(identity)
        again = known is not None and known.ended and known.turn == self._turn and known.opening == mark
        if known is None or known.turn != self._turn or (known.ended and not again):
            known = self._begin(identity, mark)
        more = meanwhile(update)
        made: list[Event] = [ev.CallProposed(aliases=alias(identity), **told(update))]
        if status in ENDING or (status == "in_progress" and not again):
            return made + self._stand(identity, known, status, {}, update)
        return [*made, ev.CallProgress(aliases=alias(identity), **more)] if more else made

    def updated(self, update: dict[str, Any]) -> list[Event]:
        """A `tool_call_update`. Of an unknown call it is the first that is heard (S2.6)."""
        identity, status = identifier(update.get("toolCallId")), status_of(update)
        if not identity:
            return []
        known = self._known.get(identity) or self._begin(identity)
        if status == "in_progress" and (known.ended or known.turn != self._turn):
            status = ""  # A start would open a new call; this only comes late.
        return self._stand(identity, known, status, told(update), update)

    def _stand(
        self, identity: str, known: Known, status: str, said: dict[str, Any], update: dict[str, Any]
    ) -> list[Event]:
        """Where an update says that its call stands; an end is one event with all that is said of it."""
        aliases, more = alias(identity), meanwhile(update)
        if response(update) is not UNSET:
            known.response = response(update)
        if status in ENDING:
            text: list[Event] = [ev.CallProgress(aliases=aliases, text=more["text"])] if "text" in more else []
            out = came_out(update, known.response)
            self._end(identity)
            return [*text, ENDING[status](aliases=aliases, **said, **out)]
        if status != "in_progress":
            return [ev.CallProgress(aliases=aliases, **said, **more)]
        made = [*self._granted(identity, known), ev.CallStarted(aliases=aliases, **said)]
        return [*made, ev.CallProgress(aliases=aliases, **more)] if more else made

    def _granted(self, identity: str, known: Known) -> list[Event]:
        """An agent that starts a call has its answer, whoever gave it."""
        asked, known.asked = known.asked, ""
        return [ev.ApprovalGranted(aliases=alias(identity), by="agent")] if asked else []

    def _begin(self, identity: str, opening: str = "") -> Known:
        known = self._known[identity] = Known(turn=self._turn, opening=opening)
        self._open.add(identity)
        return known

    def _end(self, identity: str) -> None:
        known = self._known[identity]
        known.ended, known.asked, known.response = True, "", UNSET
        self._open.discard(identity)

    # Permission

    def requested(self, message: Message) -> list[Event]:
        """A permission request. What it says of the call is an update of the call (S2.6)."""
        call, options = message.params.get("toolCall"), message.params.get("options")
        if not isinstance(call, dict) or not isinstance(options, list) or not message.key:
            return []
        update = fields(call)
        identity = identifier(update.get("toolCallId")) or f"request:{message.key}"
        known = self._known.get(identity)
        if known is None or known.ended:
            known = self._begin(identity)
        known.asked = message.key
        offered = [fields(option) for option in items(options)]
        kinds = {str(option.get("optionId")): str(option.get("kind")) for option in offered}
        self._asked[message.key] = Asked(identity, kinds)
        return [ev.ApprovalRequested(aliases=alias(identity), options=items(options), **told(update))]

    def answered(self, message: Message) -> list[Event]:
        """The client's answer, if the request still waits for one."""
        asked = self._asked.pop(message.key, None)
        known = self._known.get(asked.call) if asked else None
        if asked is None or known is None or known.asked != message.key:
            return []
        event = _answer(asked, message)
        if event is None:
            return []
        known.asked = ""
        if not isinstance(event, ev.ApprovalGranted):
            self._end(asked.call)
        return [event]


def alias(identity: str) -> tuple[Alias, ...]:
    return (Alias(NS, identity),)


def _nameless(update: dict[str, Any], status: str) -> Event:
    """A call without an id is heard of once: all that is known of it is in one message (C2)."""
    if status in ("completed", "failed"):
        return ENDING[status](**told(update), **came_out(update, response(update)))
    if status == "in_progress":
        return ev.CallStarted(**told(update))
    return ev.CallProposed(**told(update))


def _answer(asked: Asked, message: Message) -> Event | None:
    aliases = alias(asked.call)
    if message.error is not UNSET:
        why = fields(message.error).get("message")
        return ev.ApprovalWithdrawn(aliases=aliases, by="client", reason=why if isinstance(why, str) else "")
    outcome = fields(fields(message.result).get("outcome"))
    if outcome.get("outcome") == "cancelled":
        return ev.ApprovalWithdrawn(aliases=aliases, by="client")
    option = outcome.get("optionId")
    if outcome.get("outcome") != "selected" or not isinstance(option, str):
        return None
    chosen = ANSWERS.get(asked.kinds.get(option, ""))
    return chosen(aliases=aliases, option=option, by="client") if chosen else None
