"""The blocks of messages: texts, calls and results. Only functions, no state."""

from __future__ import annotations

from typing import Any

from callslip.formats.base import DeltaType
from callslip.formats.json_fields import Fields, as_dict, as_list, as_str, has_other_content, identifier, text_digest
from callslip.formats.providers.content import plain_output
from callslip.model import events as ev
from callslip.model.events import CallEnd

FORMAT = "anthropic"
ASSISTANT, USER, SYSTEM = "assistant", "user", "system"

# Kinds of text blocks with their field.
TEXTS: dict[str, tuple[DeltaType, str]] = {"text": (ev.MessageDelta, "text"), "thinking": (ev.ThoughtDelta, "thinking")}
TEXT_DELTAS = {f"{kind}_delta": rule for kind, rule in TEXTS.items()}

# Kinds of calls, and whether the provider runs them.
CALLS = {"tool_use": False, "server_tool_use": True, "mcp_tool_use": True}

# The reasons of `turn.ended` for the model's stop reasons. The next request continues a paused turn.
REASONS = {
    "end_turn": "end_turn",
    "stop_sequence": "end_turn",
    "tool_use": "end_turn",
    "max_tokens": "max_tokens",
    "model_context_window_exceeded": "max_tokens",
    "refusal": "refusal",
}
PAUSED = "pause_turn"

# Fields that events carry, or that are irrelevant for the conversation.
RESPONSE_FIELDS = {"id", "type", "role", "model", "content", "stop_reason", "stop_sequence", "usage"}
MESSAGE_FIELDS = {"role", "content"}
_BLOCK_FIELDS = {"type", "cache_control", "caller"}
_CALL_FIELDS = {*_BLOCK_FIELDS, "id", "name", "input", "server_name", "toolset_name"}
_RESULT_FIELDS = {*_BLOCK_FIELDS, "tool_use_id", "content", "is_error", "toolset_name"}


def kind_of(block: Any) -> str:
    return as_str(as_dict(block).get("type"))


def is_result(block: Any) -> bool:
    """Return whether a block is the result of a call; the provider's own tools have result kinds of their own."""
    return kind_of(block).endswith("tool_result")


def blocks_of(message: Fields) -> list[Any]:
    """Return the blocks of a message; a string becomes a text block."""
    content = message.get("content")
    return [{"type": "text", "text": content}] if isinstance(content, str) else as_list(content)


def block_needs_raw(block: Any) -> bool:
    """Return whether a block has an unknown kind or more than its events carry."""
    kind, fields = kind_of(block), as_dict(block)
    if kind in TEXTS:
        return has_other_content(fields, {*_BLOCK_FIELDS, TEXTS[kind][1]})
    if kind in CALLS:
        return has_other_content(fields, _CALL_FIELDS)
    return not is_result(block) or has_other_content(fields, _RESULT_FIELDS)


# Calls


def call_fields(block: Fields) -> Fields:
    """Return the tool of a call; the title of an MCP tool includes its server."""
    name, server = as_str(block.get("name")), as_str(block.get("server_name"))
    fields: Fields = {"tool_name": name} if name else {}
    return {**fields, "title": f"{server}: {name}"} if server and name else fields


def result_of(block: Fields) -> tuple[type[CallEnd], Fields]:
    """Return the end of a call and its fields from a result."""
    content = block.get("content")
    inner, output = as_dict(content), plain_output(content)
    if block.get("is_error") is True or kind_of(inner).endswith("_error"):
        return ev.CallFailed, {"error": as_str(inner.get("error_code")) or output}
    status = inner.get("return_code")
    return ev.CallCompleted, {"output": output, **({"exit_status": status} if type(status) is int else {})}


# Digests


def answer_digest(call_ids: list[str], text: str) -> str:
    """Return what identifies an answer: the ids of its calls, else its text."""
    return text_digest(ASSISTANT, *call_ids) if call_ids and all(call_ids) else text_digest(ASSISTANT, text)


def message_digest(body: Any) -> str:
    """Return what identifies a repeated message. All system messages are the same one, even if they change."""
    message = as_dict(body)
    role, blocks = as_str(message.get("role")), blocks_of(message)
    text = "".join(as_str(as_dict(block).get("text")) for block in blocks)
    if role == ASSISTANT:
        call_ids = [identifier(as_dict(block).get("id")) for block in blocks if kind_of(block) in CALLS]
        return answer_digest(call_ids, text)
    if role == SYSTEM:
        return text_digest(SYSTEM)
    results = [identifier(as_dict(block).get("tool_use_id")) for block in blocks if is_result(block)]
    return text_digest("results", *results) if results else text_digest(role, text, str(len(blocks)))
