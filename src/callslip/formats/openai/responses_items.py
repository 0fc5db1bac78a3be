"""The items of a conversation over Responses: calls, results and texts.

Only tables and functions, no state. The provider runs some tools; then the status of the item is that of the call.
"""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import UNSET

from callslip.formats.json_fields import (
    as_dict,
    as_list,
    as_str,
    has_other_content,
    identifier,
    parse_arguments,
    text_digest,
)
from callslip.model import events as ev
from callslip.model.events import CallEnd

FORMAT = "responses"

Item = dict[str, Any]


class Kind(msgspec.Struct, frozen=True):
    """A kind of call: its tool, the fields of its arguments and output, and whether the provider runs it.

    `streamed_field` is the field that is sent in pieces; `is_text`: it is not JSON.
    """

    tool: str = ""
    input_fields: tuple[str, ...] = ()
    output_field: str = ""
    is_served: bool = False
    streamed_field: str = ""
    is_text: bool = False


CALLS: dict[str, Kind] = {
    "function_call": Kind(streamed_field="arguments"),
    "custom_tool_call": Kind(streamed_field="input", is_text=True),
    "mcp_call": Kind(streamed_field="arguments", output_field="output", is_served=True),
    "web_search_call": Kind("web_search", ("action",), is_served=True),
    "file_search_call": Kind("file_search", ("queries",), "results", is_served=True),
    "code_interpreter_call": Kind("code_interpreter", ("code", "container_id"), "outputs", is_served=True),
    "image_generation_call": Kind("image_generation", ("prompt", "revised_prompt"), "result", is_served=True),
    "tool_search_call": Kind("tool_search", ("arguments",), is_served=True),
    "program": Kind("program", ("code",), is_served=True),
    "computer_call": Kind("computer", ("action", "actions", "pending_safety_checks")),
    "local_shell_call": Kind("local_shell", ("action",)),
    "shell_call": Kind("shell", ("action", "environment")),
    "apply_patch_call": Kind("apply_patch", ("operation",)),
}
RESULTS = {
    "function_call_output": "output",
    "custom_tool_call_output": "output",
    "computer_call_output": "output",
    "local_shell_call_output": "output",
    "shell_call_output": "output",
    "apply_patch_call_output": "output",
    "program_output": "result",
    "tool_search_output": "tools",
}
REQUEST, ANSWER = "mcp_approval_request", "mcp_approval_response"

RUNNING = {"in_progress", "searching", "interpreting", "generating", "calling"}
ENDING: dict[str, type[CallEnd]] = {
    "completed": ev.CallCompleted,
    "failed": ev.CallFailed,
    "incomplete": ev.CallFailed,
}

# The reasons of `turn.ended` for an incomplete response.
REASONS = {"max_output_tokens": "max_tokens", "content_filter": "refusal"}

# Fields that events carry, or that are irrelevant: ids, kinds, and the status of an item, not that of its call.
ABOUT_FIELDS = {"id", "type", "call_id", "status", "name", "caller", "created_by", "namespace", "execution"}
MCP_FIELDS = {"server_label", "approval_request_id", "error"}
MESSAGE_FIELDS = {"id", "type", "role", "content", "status", "phase"}
PART_FIELDS = {"type", "text", "refusal", "logprobs"}
REASONING_FIELDS = {"id", "type", "summary", "content", "status"}


def kind_of(item: Item) -> str:
    """Return the kind of an item, which a message may omit."""
    return as_str(item.get("type")) or ("message" if isinstance(item.get("role"), str) else "")


def call_id(item: Item) -> str:
    """Return the id that connects a call with its result, else the item's own id."""
    return identifier(item.get("call_id")) or identifier(item.get("id"))


# Calls


def name_of(item: Item) -> str:
    return as_str(item.get("name")) or CALLS[kind_of(item)].tool


def title_field(item: Item) -> dict[str, Any]:
    """Return the title of an MCP tool, which includes its server."""
    label, name = as_str(item.get("server_label")), as_str(item.get("name"))
    return {"title": f"{label}: {name}"} if label and name else {}


def input_of(item: Item) -> Any:
    """Return the arguments of a complete item; UNSET if it has none."""
    kind = CALLS[kind_of(item)]
    if kind.streamed_field:
        return streamed_input(kind, item.get(kind.streamed_field))
    fields = {name: item[name] for name in kind.input_fields if item.get(name) is not None}
    return fields.get("arguments", fields) if fields else UNSET


def streamed_input(kind: Kind, text: Any) -> Any:
    """Return the arguments of a field that may be streamed."""
    return as_str(text) if kind.is_text else parse_arguments(text)


def end_of(item: Item) -> type[CallEnd] | None:
    """Return how a call of the provider ended, None if it is open. Without a status a complete item is a result."""
    kind = CALLS[kind_of(item)]
    if not kind.is_served or kind_of(item) == "program" or item.get("execution") == "client":
        return None
    if item.get("error") is not None:
        return ev.CallFailed
    return ENDING.get(as_str(item.get("status")) or "completed")


def end_fields(item: Item) -> dict[str, Any]:
    """Return the result of a call of the provider."""
    output_field, status = CALLS[kind_of(item)].output_field, as_str(item.get("status"))
    has_output = output_field and item.get(output_field) is not None
    fields: dict[str, Any] = {"output": item[output_field]} if has_output else {}
    if item.get("error") is not None:
        return {**fields, "error": item["error"]}
    return {**fields, "reason": status} if status == "incomplete" else fields


# Results


def result_of(item: Item) -> tuple[type[CallEnd], dict[str, Any]]:
    """Return the end of a call and its fields from a result."""
    kind = kind_of(item)
    output, status = _plain_output(item.get(RESULTS[kind])), as_str(item.get("status"))
    if status == "failed" or (kind, status) == ("program_output", "incomplete"):
        return ev.CallFailed, {"error": output} if output is not None else {"reason": status}
    return ev.CallCompleted, {"output": output, **_exit_status_field(output)}


def _plain_output(output: Any) -> Any:
    """Return the text of parts that are all text, any other output as it is."""
    parts = [as_dict(part) for part in as_list(output)]
    texts = [part["text"] for part in parts if as_str(part.get("type")).endswith("_text") and "text" in part]
    return "\n".join(map(str, texts)) if parts and len(texts) == len(parts) else output


def _exit_status_field(output: Any) -> dict[str, Any]:
    """Return the exit status; of several commands that of the first failure."""
    outcomes = [as_dict(as_dict(part).get("outcome")) for part in as_list(output)]
    codes = [outcome["exit_code"] for outcome in outcomes if type(outcome.get("exit_code")) is int]
    return {"exit_status": next((code for code in codes if code), 0)} if codes else {}


# Texts


def texts_of(item: Item) -> list[tuple[str, int, str]]:
    """Return the texts of a message or thought with their fields and indexes."""
    if isinstance(item.get("content"), str):
        return [("content", 0, item["content"])]
    parts = [
        (name, index, as_dict(part))
        for name in ("summary", "content")
        for index, part in enumerate(as_list(item.get(name)))
    ]
    return [(name, index, as_str(part.get("text")) or as_str(part.get("refusal"))) for name, index, part in parts]


def join_texts(item: Item) -> str:
    return "\n".join(text for _, _, text in texts_of(item) if text)


def is_refusal(item: Item) -> bool:
    return any(as_dict(part).get("type") == "refusal" for part in as_list(item.get("content")))


def is_plain(item: Item) -> bool:
    """Return whether a message is only text."""
    kinds = [as_dict(part).get("type") for part in as_list(item.get("content"))]
    return all(kind in ("input_text", "output_text", "text", "refusal") for kind in kinds)


def needs_raw(item: Item) -> bool:
    """Return whether an item has more than its events carry."""
    kind = kind_of(item)
    if kind in CALLS:
        call = CALLS[kind]
        known = {*ABOUT_FIELDS, *MCP_FIELDS, call.streamed_field, call.output_field, *call.input_fields}
        return has_other_content(item, known)
    if kind in RESULTS:
        return has_other_content(item, {*ABOUT_FIELDS, RESULTS[kind], "max_output_length"})
    if kind == "message":
        has_rich_parts = any(has_other_content(as_dict(part), PART_FIELDS) for part in as_list(item.get("content")))
        return has_rich_parts or not is_plain(item) or has_other_content(item, MESSAGE_FIELDS)
    return kind == "reasoning" and has_other_content(item, REASONING_FIELDS)


# Digests


def item_digest(body: Any) -> str:
    """Return what identifies a repeated item: its id, which clients keep, or its text, which they may trim."""
    item = as_dict(body)
    kind = kind_of(item)
    if kind in CALLS:
        return text_digest("call", call_id(item) or name_of(item))
    if kind in RESULTS:
        return text_digest("result", call_id(item))
    if kind != "message":
        return text_digest(kind, identifier(item.get("id")) or identifier(item.get("approval_request_id")))
    role = as_str(item.get("role"))
    return text_digest("system") if role in ("system", "developer") else text_digest(role, join_texts(item))
