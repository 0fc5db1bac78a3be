"""Read what one update states about its call: an absent field changes nothing, null clears.

The tool name is what the agent calls the tool; a kind or a title is not a name. Agents put output into `rawOutput`,
the content or the metadata.
"""

from __future__ import annotations

from typing import Any

from msgspec import UNSET

from callslip.formats.json_fields import as_dict, as_list, has_other_fields
from callslip.model import events as ev
from callslip.model.events import CallEnd

ENDING: dict[str, type[CallEnd]] = {
    "completed": ev.CallCompleted,
    "failed": ev.CallFailed,
    "cancelled": ev.CallCancelled,  # draft 2
}
STATUSES = {"pending", "in_progress", *ENDING}
DRAFT = 2
"""The protocol version whose draft is read in addition to version 1."""

# Where agents put an exit status within rawOutput.
EXIT_STATUS_PATHS = (("exit_code",), ("exitCode",), ("metadata", "exit"))
PRINTED_FIELDS = ("terminal_output_delta", "terminal_output")

TEXTS = {"title": "title", "kind": "kind"}
VALUES = {"rawInput": "input", "content": "content", "locations": "locations"}
KNOWN_FIELDS = {"sessionUpdate", "toolCallId", "name", "status", "rawOutput", "_meta", *TEXTS, *VALUES}


def call_fields(update: dict[str, Any]) -> dict[str, Any]:
    """Return the fields of a call event that an update contains."""
    fields = {field: update[name] for name, field in VALUES.items() if name in update}
    for name, field in TEXTS.items():
        if name in update and isinstance(update[name], str | None):
            fields[field] = update[name]
    tool = update.get("name") or _claude_meta(update).get("toolName")
    if tool and isinstance(tool, str):
        fields["tool_name"] = tool
    return fields


def result_fields(update: dict[str, Any], default: Any = UNSET) -> dict[str, Any]:
    """Return the output and exit status of a call that ended; `default` is the output if there is no other."""
    if "rawOutput" in update:
        return {"output": update["rawOutput"], **_exit_status_field(update)}
    output = {} if default is UNSET or _has_content(update) else {"output": default}
    return {**output, **_exit_status_field(update)}


def _has_content(update: dict[str, Any]) -> bool:
    """Return whether there is content besides terminals, which only show output."""
    return any(as_dict(block).get("type") != "terminal" for block in as_list(update.get("content")))


def progress_fields(update: dict[str, Any]) -> dict[str, Any]:
    """Return the progress of an open call: printed text, output so far, an early exit status."""
    text = printed_text(update)
    return {
        **({"text": text} if text else {}),
        **({"progress": update["rawOutput"]} if "rawOutput" in update else {}),
        **_exit_status_field(update),
    }


def printed_text(update: dict[str, Any]) -> str:
    """Return terminal output that is only in the metadata."""
    texts = [as_dict(_meta(update).get(name)).get("data") for name in PRINTED_FIELDS]
    return "".join(text for text in texts if isinstance(text, str))


def status_of(update: dict[str, Any], version: int = 0) -> str:
    """Return the status, "" for none. In draft 2 an unknown status means that the call is running."""
    status = update.get("status")
    if not isinstance(status, str):
        return ""
    return "in_progress" if version >= DRAFT and status not in STATUSES else status


def tool_response(update: dict[str, Any]) -> Any:
    """Return the tool's result in the metadata, which may arrive without a status; UNSET if there is none."""
    return _claude_meta(update).get("toolResponse", UNSET)


def needs_raw(update: dict[str, Any], version: int = 0) -> bool:
    """Return whether an update has content that its events do not carry."""
    has_odd_type = any(not isinstance(update.get(name), str | None) for name in (*TEXTS, "name"))
    # In draft 2 null clears these, which neither a state nor a name can express.
    is_reset = version >= DRAFT and any(update.get(name, "") is None for name in ("status", "name"))
    return (
        has_odd_type
        or is_reset
        or update.get("status", "pending") not in (None, *STATUSES)
        or has_other_fields(update, KNOWN_FIELDS)
        or _meta_needs_raw(update.get("_meta"))
    )


def _meta_needs_raw(meta: Any) -> bool:
    if not isinstance(meta, dict):
        return meta is not None
    fields = as_dict(meta)
    known = {"claudeCode", "terminal_exit", *PRINTED_FIELDS}
    return bool(set(fields) - known or set(as_dict(fields.get("claudeCode"))) - {"toolName"})


def _meta(update: dict[str, Any]) -> dict[str, Any]:
    return as_dict(update.get("_meta"))


def _claude_meta(update: dict[str, Any]) -> dict[str, Any]:
    return as_dict(_meta(update).get("claudeCode"))


def _exit_status_field(update: dict[str, Any]) -> dict[str, Any]:
    status = exit_status(as_dict(_meta(update).get("terminal_exit")), "exit_code")
    if status is not UNSET:
        return {"exit_status": status}
    for path in EXIT_STATUS_PATHS:
        value: Any = update.get("rawOutput")
        for name in path:
            value = as_dict(value).get(name)
        if type(value) is int:
            return {"exit_status": value}
    return {}


def exit_status(fields: dict[str, Any], code: str = "exitCode") -> Any:
    """Return an exit status: a number, or the signal if there is none; UNSET if there is neither."""
    if type(fields.get(code)) is int:
        return fields[code]
    signal = fields.get("signal")
    return {"signal": signal} if isinstance(signal, str) else UNSET
