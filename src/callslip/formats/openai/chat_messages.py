"""Read a message of Chat Completions, complete or a delta of one. Only functions, no state."""

from __future__ import annotations

from typing import Any

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
from callslip.formats.providers.conversation import ModelCall
from callslip.model import events as ev
from callslip.model.events import Event

FORMAT = "openai"
ASSISTANT, USER, SYSTEM, RESULT = "assistant", "user", ("system", "developer"), ("tool", "function")

# The reasons of `turn.ended` for the model's stop reasons. A stop for calls without calls ends the turn too.
REASONS = {
    "stop": "end_turn",
    "length": "max_tokens",
    "content_filter": "refusal",
    "tool_calls": "end_turn",
    "function_call": "end_turn",
}

# Fields that events carry, or that are irrelevant for the conversation.
_ABOUT_FIELDS = {"object", "created", "model", "system_fingerprint", "service_tier", "obfuscation", "provider"}
RESPONSE_FIELDS = {"id", "choices", "usage", *_ABOUT_FIELDS}
CHOICE_FIELDS = {"index", "delta", "message", "finish_reason", "native_finish_reason", "stop_reason"}
_ANSWER_FIELDS = {"role", "content", "refusal", "reasoning", "reasoning_content", "tool_calls", "function_call"}
_CALL_FIELDS = {"index", "id", "type", "function", "custom"}
_FUNCTION_FIELDS = {"name", "arguments", "input"}
RESULT_FIELDS = {"role", "content", "tool_call_id", "name"}
PROMPT_FIELDS = {"role", "content"}

DeltaType = type[ev.MessageDelta] | type[ev.ThoughtDelta]

# The field and the event of a part of content by its type.
_PARTS: dict[str, tuple[str, DeltaType]] = {
    "text": ("text", ev.MessageDelta),
    "refusal": ("refusal", ev.MessageDelta),
    "thinking": ("thinking", ev.ThoughtDelta),
}


# Texts


def answer_texts(message: dict[str, Any]) -> list[tuple[DeltaType, str]]:
    """Return the thoughts and texts of the model, in this order. Servers may send a thought under two names."""
    thought = as_str(message.get("reasoning_content")) or as_str(message.get("reasoning"))
    texts: list[tuple[DeltaType, str]] = [(ev.ThoughtDelta, thought), *_content_texts(message.get("content"))]
    texts.append((ev.MessageDelta, as_str(message.get("refusal"))))
    return [(delta_type, text) for delta_type, text in texts if text]


def _content_texts(content: Any) -> list[tuple[DeltaType, str]]:
    if isinstance(content, str):
        return [(ev.MessageDelta, content)]
    parts = [(part, _PARTS.get(as_str(part.get("type")))) for part in map(as_dict, as_list(content))]
    return [(rule[1], _part_text(part.get(rule[0]))) for part, rule in parts if rule]


def _part_text(value: Any) -> str:
    """Return a text, or the texts of parts within a part."""
    return as_str(value) or "".join(as_str(as_dict(part).get("text")) for part in as_list(value))


def is_plain(content: Any) -> bool:
    """Return whether content is only text."""
    if isinstance(content, list):
        parts = map(as_dict, as_list(content))
        return all(part.get("type") == "text" and isinstance(part.get("text"), str) for part in parts)
    return content is None or isinstance(content, str)


def join_texts(content: Any) -> str:
    """Return the text of content, its parts as lines."""
    texts = [as_str(as_dict(part).get("text")) for part in as_list(content) if as_dict(part).get("type") == "text"]
    return as_str(content) or "\n".join(texts)


def user_message(message: dict[str, Any]) -> Event:
    """Return the event of a user's message, with its parts if it has more than text."""
    content = message.get("content")
    return ev.MessageUser(text=join_texts(content), content=UNSET if is_plain(content) else content)


def result_output(message: dict[str, Any]) -> Any:
    """Return the output of a tool: its text, or its parts if they are not all text."""
    content = message.get("content")
    return join_texts(content) if is_plain(content) else content


# Calls


def read_calls(message: dict[str, Any]) -> list[ModelCall]:
    """Return the calls of a full message. The older API had at most one, without an id."""
    old = [{"function": message["function_call"]}] if isinstance(message.get("function_call"), dict) else []
    return [_read_call(as_dict(call)) for call in [*as_list(message.get("tool_calls")), *old] if isinstance(call, dict)]


def _read_call(call: dict[str, Any]) -> ModelCall:
    custom = as_dict(call.get("custom"))
    function = custom or as_dict(call.get("function"))
    arguments = as_str(function.get("input")) if custom else parse_arguments(function.get("arguments"))
    return ModelCall(id=identifier(call.get("id")), name=as_str(function.get("name")), input=arguments)


def answer_needs_raw(message: dict[str, Any]) -> bool:
    """Return whether the model's message, or a delta of it, has more than its events carry."""
    parts, calls = as_list(message.get("content")), as_list(message.get("tool_calls"))
    has_odd_parts = any(as_str(as_dict(part).get("type")) not in _PARTS for part in parts)
    return has_odd_parts or has_other_content(message, _ANSWER_FIELDS) or any(map(_call_needs_raw, calls))


def _call_needs_raw(call: Any) -> bool:
    fields = as_dict(call)
    inner = as_dict(fields.get("function")) | as_dict(fields.get("custom"))
    has_more = has_other_content(fields, _CALL_FIELDS) or has_other_content(inner, _FUNCTION_FIELDS)
    return not isinstance(call, dict) or has_more


# Digests


def answer_digest(calls: list[ModelCall], text: str) -> str:
    """Return what identifies an answer: the ids of its calls, else their names and its text."""
    if calls and all(call.id for call in calls):
        return text_digest(ASSISTANT, *(call.id for call in calls))
    return text_digest(ASSISTANT, *(call.name for call in calls), text)


def message_digest(body: Any) -> str:
    """Return what identifies a repeated message. All system messages are the same one, even if they change."""
    message = as_dict(body)
    role, content = message.get("role"), message.get("content")
    if role == ASSISTANT:
        texts = [text for delta_type, text in answer_texts(message) if delta_type is ev.MessageDelta]
        return answer_digest(read_calls(message), "".join(texts))
    if role in SYSTEM:
        return text_digest("system")
    if role in RESULT:
        return text_digest("tool", identifier(message.get("tool_call_id")) or join_texts(content))
    return text_digest(str(role), join_texts(content), str(len(as_list(content)) or 1))
