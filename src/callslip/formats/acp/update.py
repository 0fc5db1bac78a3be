"""Read what one update states about its call: an absent field changes nothing, null clears.

The tool name is what the agent calls the tool: in `name`, `toolName` or the metadata. A kind or a title is not a name,
except a title that is the full name of an MCP tool. Agents put output into `rawOutput`, the content or the metadata.
"""

from __future__ import annotations

from typing import Any

from msgspec import UNSET

from callslip.formats.json_fields import as_dict, as_list, has_other_fields, identifier
from callslip.model import events as ev
from callslip.model.events import CallEnd
from callslip.rules.call_content import content_text
from callslip.rules.lifecycle import strip_mcp_prefix

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
NAMES = ("name", "toolName")
KNOWN_FIELDS = {"sessionUpdate", "toolCallId", "status", "rawOutput", "_meta", *NAMES, *TEXTS, *VALUES}


def call_fields(update: dict[str, Any], known_name: str = "") -> dict[str, Any]:
    """Return the fields of a call event that an update contains. `known_name` is the tool name of the call so far.

    A title that is the full name of an MCP tool gives an unnamed call its name, and is shown without the prefix.
    """
    fields = declared_fields(update)
    title = fields.get("title")
    if not isinstance(title, str) or len(title.split()) != 1 or (plain := strip_mcp_prefix(title)) == title:
        return fields
    name = fields.get("tool_name") or known_name or fields.setdefault("tool_name", title)
    if strip_mcp_prefix(name) == plain:
        fields["title"] = plain
        if fields.get("tool_name") == plain:
            fields["raw_tool_name"] = title
    return fields


def declared_fields(update: dict[str, Any]) -> dict[str, Any]:
    """Return the fields of a call event that an update contains, with a tool name only if it is declared as one."""
    fields = {field: update[name] for name, field in VALUES.items() if name in update}
    for name, field in TEXTS.items():
        if name in update and isinstance(update[name], str | None):
            fields[field] = update[name]
    tool = _tool_name(update)
    return {**fields, "tool_name": tool} if tool else fields


def _tool_name(update: dict[str, Any]) -> str:
    """Return the first name of the tool: a field of the update, of its metadata or of an agent's part of these."""
    meta = _meta(update)
    values = [*(update.get(name) for name in NAMES), _claude_meta(update).get("toolName"), meta.get("toolName")]
    values += [as_dict(part).get("toolName") for part in meta.values() if isinstance(part, dict)]
    return next((value for value in values if isinstance(value, str) and value), "")


def result_fields(update: dict[str, Any], default: Any = UNSET) -> dict[str, Any]:
    """Return the output and exit status of a call that ended; `default` is the output if there is no other.

    Without `rawOutput` the text of the content is the output, except in updates of this package, which have both.
    """
    if "rawOutput" in update:
        return {"output": update["rawOutput"], **_exit_status_field(update)}
    if not _has_content(update):
        return {**({} if default is UNSET else {"output": default}), **_exit_status_field(update)}
    has_result = status_of(update) in ("completed", "failed") and "callslip" not in _meta(update)
    text = content_text(update["content"]) if has_result and not _has_terminal(update) else ""
    return {**({"output": text} if text else {}), **_exit_status_field(update)}


def _has_content(update: dict[str, Any]) -> bool:
    """Return whether there is content besides terminals, which only show output."""
    return any(as_dict(block).get("type") != "terminal" for block in as_list(update.get("content")))


def _has_terminal(update: dict[str, Any]) -> bool:
    return any(as_dict(block).get("type") == "terminal" for block in as_list(update.get("content")))


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
    has_odd_type = any(not isinstance(update.get(name), str | None) for name in (*TEXTS, *NAMES))
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
    return bool(set(fields) - known or set(as_dict(fields.get("claudeCode"))) - {"toolName", "parentToolUseId"})


def _meta(update: dict[str, Any]) -> dict[str, Any]:
    return as_dict(update.get("_meta"))


def _claude_meta(update: dict[str, Any]) -> dict[str, Any]:
    return as_dict(_meta(update).get("claudeCode"))


def parent_of(update: dict[str, Any]) -> str:
    """Return the id of the call whose sub-agent an update comes from, "" for the agent itself."""
    return identifier(_claude_meta(update).get("parentToolUseId"))


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
