"""Read a message of Chat Completions, complete or a delta of one. Only functions, no state."""

from __future__ import annotations

from typing import Any

from callslip.formats.base import DeltaType
from callslip.formats.json_fields import (
    Fields,
    as_dict,
    as_list,
    as_str,
    has_other_content,
    identifier,
    parse_arguments,
    text_digest,
)
from callslip.formats.providers.content import join_texts
from callslip.formats.providers.conversation import ModelCall
from callslip.model import events as ev

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

# The field and the event of a part of content by its type.
_PARTS: dict[str, tuple[str, DeltaType]] = {
    "text": ("text", ev.MessageDelta),
    "refusal": ("refusal", ev.MessageDelta),
    "thinking": ("thinking", ev.ThoughtDelta),
}


# Texts


def answer_texts(message: Fields) -> list[tuple[DeltaType, str]]:
    """Return the thoughts and texts of the model, in this order. Servers may send a thought under two names."""
    thought = as_str(message.get("reasoning_content")) or as_str(message.get("reasoning"))
    content = message.get("content")
    texts: list[tuple[DeltaType, str]] = [(ev.ThoughtDelta, thought), (ev.MessageDelta, as_str(content))]
    for part in map(as_dict, as_list(content)):
        kind = as_str(part.get("type"))
        if kind in _PARTS:
            field, delta_type = _PARTS[kind]
            inner_texts = (as_str(as_dict(inner).get("text")) for inner in as_list(part.get(field)))
            texts.append((delta_type, as_str(part.get(field)) or "".join(inner_texts)))
    texts.append((ev.MessageDelta, as_str(message.get("refusal"))))
    return [(delta_type, text) for delta_type, text in texts if text]


# Calls


def read_calls(message: Fields) -> list[ModelCall]:
    """Return the calls of a full message. The older API had at most one, without an id."""
    old = [{"function": message["function_call"]}] if isinstance(message.get("function_call"), dict) else []
    calls: list[ModelCall] = []
    for call in [as_dict(item) for item in [*as_list(message.get("tool_calls")), *old] if isinstance(item, dict)]:
        custom = as_dict(call.get("custom"))
        function = custom or as_dict(call.get("function"))
        arguments = as_str(function.get("input")) if custom else parse_arguments(function.get("arguments"))
        calls.append(ModelCall(id=identifier(call.get("id")), name=as_str(function.get("name")), input=arguments))
    return calls


def answer_needs_raw(message: Fields) -> bool:
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
