"""What one update says of its call: absent says nothing, null clears (C10).

A tool's name is what the agent calls the tool; a kind or a title is not a name. Output is looked for wherever agents
put it: in `rawOutput`, in the content, in the metadata.
"""

from __future__ import annotations

from typing import Any

from msgspec import UNSET

from callslip.formats.acp.wire import leaves as more_than
from callslip.formats.json_fields import as_dict, as_list
from callslip.model import events as ev
from callslip.model.events import CallEnd

ENDING: dict[str, type[CallEnd]] = {
    "completed": ev.CallCompleted,
    "failed": ev.CallFailed,
    "cancelled": ev.CallCancelled,  # draft 2
}
WORDS = {"pending", "in_progress", *ENDING}
DRAFT = 2
"""The protocol version whose draft is read beside version 1."""

# Where agents put an exit status, within rawOutput.
EXITS = (("exit_code",), ("exitCode",), ("metadata", "exit"))
PRINTED = ("terminal_output_delta", "terminal_output")

TEXTS = {"title": "title", "kind": "kind"}
VALUES = {"rawInput": "input", "content": "content", "locations": "locations"}
KNOWN_FIELDS = {"sessionUpdate", "toolCallId", "name", "status", "rawOutput", "_meta", *TEXTS, *VALUES}


def told(update: dict[str, Any]) -> dict[str, Any]:
    """What an update mentions of its call."""
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
    return any(as_dict(block).get("type") != "terminal" for block in as_list(update.get("content")))


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
    found = [as_dict(_meta(update).get(name)).get("data") for name in PRINTED]
    return "".join(text for text in found if isinstance(text, str))


def status_of(update: dict[str, Any], version: int = 0) -> str:
    """The status word, "" for none. In draft 2 any other word is a way of being at work."""
    status = update.get("status")
    if not isinstance(status, str):
        return ""
    return "in_progress" if version >= DRAFT and status not in WORDS else status


def response(update: dict[str, Any]) -> Any:
    """The tool's own result in the metadata, which may come without any status."""
    return _claude(update).get("toolResponse", UNSET)


def leaves(update: dict[str, Any], version: int = 0) -> bool:
    """Whether an update says more than was taken over, so that it is to be kept whole."""
    odd = [name for name in (*TEXTS, "name") if not isinstance(update.get(name), str | None)]
    # In draft 2 null takes these back, which neither a state nor a name can be.
    reset = version >= DRAFT and any(update.get(name, "") is None for name in ("status", "name"))
    return bool(
        odd
        or reset
        or update.get("status", "pending") not in (None, *WORDS)
        or more_than(update, KNOWN_FIELDS)
        or _meta_leaves(update.get("_meta"))
    )


def _meta_leaves(meta: Any) -> bool:
    if not isinstance(meta, dict):
        return meta is not None
    members = as_dict(meta)
    known = {"claudeCode", "terminal_exit", *PRINTED}
    return bool(set(members) - known or set(as_dict(members.get("claudeCode"))) - {"toolName"})


def _meta(update: dict[str, Any]) -> dict[str, Any]:
    return as_dict(update.get("_meta"))


def _claude(update: dict[str, Any]) -> dict[str, Any]:
    return as_dict(_meta(update).get("claudeCode"))


def _exit_status(update: dict[str, Any]) -> dict[str, Any]:
    ended = exited(as_dict(_meta(update).get("terminal_exit")), "exit_code")
    if ended is not UNSET:
        return {"exit_status": ended}
    for path in EXITS:
        found: Any = update.get("rawOutput")
        for name in path:
            found = as_dict(found).get(name)
        if type(found) is int:
            return {"exit_status": found}
    return {}


def exited(status: dict[str, Any], code: str = "exitCode") -> Any:
    """An exit status: a number, or the signal if there is none; UNSET if there is neither."""
    if type(status.get(code)) is int:
        return status[code]
    signal = status.get("signal")
    return {"signal": signal} if isinstance(signal, str) else UNSET
