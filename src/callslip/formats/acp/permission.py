"""Requests for permission: what is asked about, and what an answer means.

In version 1 the question is about a call. In draft 2 it has a text of its own and is about a call, about a command, or
about nothing that has a name in the protocol.
"""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import UNSET

from callslip.formats.acp import update as updates
from callslip.formats.acp.wire import Message, leaves
from callslip.formats.json_fields import as_dict, as_list
from callslip.model import events as ev
from callslip.model.events import Alias, Event
from callslip.rules.approval_options import option_allows, option_ids

KNOWN_FIELDS = {"sessionId", "toolCall", "options", "title", "description", "subject"}


class Question(msgspec.Struct, frozen=True, kw_only=True):
    """What is asked. `update` tells of the call, `fresh` what can be said of one that nobody told of before.

    `only` says that there is no call but the question itself.
    """

    update: dict[str, Any]
    options: list[Any]
    fresh: dict[str, Any] = {}
    description: str = ""
    terminal: Any = None
    only: bool = False
    leaves: bool = False


class PendingPermission(msgspec.Struct, frozen=True):
    """A request without an answer yet. `only` is true if it is about no call but itself."""

    call: str
    options: list[Any]
    only: bool = False


def question(message: Message) -> Question | None:
    """What a request asks; None if it is none that can be answered."""
    params, options = message.params, message.params.get("options")
    if not isinstance(options, list) or not message.key:
        return None
    more = leaves(params, KNOWN_FIELDS)
    if isinstance(params.get("toolCall"), dict):
        update = as_dict(params["toolCall"])
        more = more or any(params.get(name) is not None for name in ("title", "description", "subject"))
        return Question(update=update, options=as_list(options), leaves=more or _leaves(update))
    if not isinstance(params.get("title"), str):
        return None
    return _drafted(message, more)


def _drafted(message: Message, more: bool) -> Question:
    """A question as draft 2 puts it. Its title is the question's own and no title of a call."""
    params = message.params
    parts = [part for part in (params["title"], params.get("description")) if isinstance(part, str) and part]
    said: dict[str, Any] = {"options": as_list(params["options"]), "description": "\n".join(parts)}
    subject = as_dict(params.get("subject"))
    if subject.get("type") == "tool_call" and isinstance(subject.get("toolCall"), dict):
        update = as_dict(subject["toolCall"])
        more = more or len(subject) > 2 or _leaves(update, updates.DRAFT)
        return Question(update=update, leaves=more, **said)
    if subject.get("type") == "command" and isinstance(subject.get("command"), str):
        return Question(
            update={"toolCallId": subject.get("toolCallId")},
            fresh=_command(subject),
            terminal=subject.get("terminalId"),
            leaves=True,
            **said,
        )
    more = more or params.get("subject") is not None
    return Question(update={}, fresh={"title": params["title"]}, only=True, leaves=more, **said)


def _command(subject: dict[str, Any]) -> dict[str, Any]:
    given = {name: subject[name] for name in ("command", "cwd") if subject.get(name) is not None}
    return {"title": subject["command"], "kind": "execute", "rawInput": given}


def _leaves(update: dict[str, Any], version: int = 0) -> bool:
    """A call that is asked about waits, whatever else is said of its status."""
    return updates.leaves(update, version) or updates.status_of(update) not in ("", "pending")


def asked(about: Question, call: str) -> PendingPermission:
    """What is remembered of a request until it is answered."""
    return PendingPermission(call, about.options, about.only)


def answer(request: PendingPermission, message: Message, aliases: tuple[Alias, ...]) -> Event | None:
    """What the client's answer means; None if only the agent knows."""
    if message.error is not UNSET:
        why = as_dict(message.error).get("message")
        return ev.ApprovalWithdrawn(aliases=aliases, by="client", reason=why if isinstance(why, str) else "")
    outcome = as_dict(as_dict(message.result).get("outcome"))
    if outcome.get("outcome") == "cancelled":
        return ev.ApprovalWithdrawn(aliases=aliases, by="client")
    option = outcome.get("optionId")
    if outcome.get("outcome") != "selected" or not isinstance(option, str):
        return None
    allows = option_allows(request.options, option)
    if message.version >= updates.DRAFT and option not in option_ids(request.options):
        allows = False  # Draft 2 says that such an option approves nothing; version 1 leaves that to the agent.
    if allows is None:
        return None
    kind = ev.ApprovalGranted if allows else ev.ApprovalRefused
    return kind(aliases=aliases, option=option, by="client")
