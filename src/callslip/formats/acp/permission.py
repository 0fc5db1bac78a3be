"""Permission requests: what they ask about, and what an answer means.

In version 1 a request is about a call. In draft 2 it has its own text and is about a call, a command, or a subject that
the protocol does not name.
"""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import UNSET

from callslip.formats.acp import update as updates
from callslip.formats.acp.wire import Message
from callslip.formats.json_fields import as_dict, as_list, as_str, has_other_fields
from callslip.model import codec
from callslip.model import events as ev
from callslip.model.events import Alias, Event
from callslip.rules.approval_options import option_allows, option_ids

MAX_ID = 2**53 - 1
"""The largest number that every reader of JSON holds exactly."""
KNOWN_FIELDS = {"sessionId", "toolCall", "options", "title", "description", "subject"}


class Question(msgspec.Struct, frozen=True, kw_only=True):
    """What a request asks. `update` describes the call, `new_call` adds to it if the call was unknown before.

    `is_standalone`: the request is about no call, so the request itself is recorded as one.
    """

    update: dict[str, Any]
    options: list[Any]
    new_call: dict[str, Any] = {}
    description: str = ""
    terminal: Any = None
    is_standalone: bool = False
    needs_raw: bool = False


class PendingPermission(msgspec.Struct, frozen=True):
    """A request without an answer yet."""

    call: str
    options: list[Any]
    is_standalone: bool = False


def read_question(message: Message) -> Question | None:
    """Return what a request asks; None if it cannot be answered."""
    params, options = message.params, message.params.get("options")
    if not isinstance(options, list) or not message.key:
        return None
    needs_raw = has_other_fields(params, KNOWN_FIELDS)
    if isinstance(params.get("toolCall"), dict):
        update = as_dict(params["toolCall"])
        needs_raw = needs_raw or any(params.get(name) is not None for name in ("title", "subject"))
        description = as_str(params.get("description"))
        return Question(
            update=update,
            options=as_list(options),
            description=description,
            needs_raw=needs_raw or _needs_raw(update) or (not description and params.get("description") is not None),
        )
    if not isinstance(params.get("title"), str):
        return None
    return _read_draft_question(params, needs_raw)


def request_id(value: Any) -> str | int:
    """Return the id of a request as it was sent; JSON for an id that is not a text or a usual number."""
    if isinstance(value, str) or (type(value) is int and abs(value) <= MAX_ID):
        return value
    return codec.encode(value).decode()


def _read_draft_question(params: dict[str, Any], needs_raw: bool) -> Question:
    """Return a question of draft 2. Its title is not the title of a call."""
    parts = [part for part in (params["title"], params.get("description")) if isinstance(part, str) and part]
    fields: dict[str, Any] = {"options": as_list(params["options"]), "description": "\n".join(parts)}
    subject = as_dict(params.get("subject"))
    if subject.get("type") == "tool_call" and isinstance(subject.get("toolCall"), dict):
        update = as_dict(subject["toolCall"])
        needs_raw = needs_raw or len(subject) > 2 or _needs_raw(update, updates.DRAFT)
        return Question(update=update, needs_raw=needs_raw, **fields)
    if subject.get("type") == "command" and isinstance(subject.get("command"), str):
        command = {name: subject[name] for name in ("command", "cwd") if subject.get(name) is not None}
        return Question(
            update={"toolCallId": subject.get("toolCallId")},
            new_call={"title": subject["command"], "kind": "execute", "rawInput": command},
            terminal=subject.get("terminalId"),
            needs_raw=True,
            **fields,
        )
    needs_raw = needs_raw or params.get("subject") is not None
    new_call = {"title": params["title"]}
    return Question(update={}, new_call=new_call, is_standalone=True, needs_raw=needs_raw, **fields)


def _needs_raw(update: dict[str, Any], version: int = 0) -> bool:
    """Return whether events do not carry all of a call that needs permission: it is pending, not in another status."""
    return updates.needs_raw(update, version) or updates.status_of(update) not in ("", "pending")


def read_answer(request: PendingPermission, message: Message, aliases: tuple[Alias, ...]) -> Event | None:
    """Return the event of the client's answer; None if only the agent can interpret it."""
    if message.error is not UNSET:
        reason = as_str(as_dict(message.error).get("message"))
        return ev.ApprovalWithdrawn(aliases=aliases, by="client", reason=reason)
    outcome = as_dict(as_dict(message.result).get("outcome"))
    if outcome.get("outcome") == "cancelled":
        return ev.ApprovalWithdrawn(aliases=aliases, by="client")
    option = outcome.get("optionId")
    if outcome.get("outcome") != "selected" or not isinstance(option, str):
        return None
    allows = option_allows(request.options, option)
    if message.version >= updates.DRAFT and option not in option_ids(request.options):
        allows = False  # By draft 2 an unknown option approves nothing; version 1 leaves that to the agent.
    if allows is None:
        return None
    kind = ev.ApprovalGranted if allows else ev.ApprovalRefused
    return kind(aliases=aliases, option=option, by="client")
