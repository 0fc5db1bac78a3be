"""What stands in a message of Chat Completions, whole or a delta of one. Pure reading: no state, no order."""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import UNSET

from callslip.formats.json_fields import arguments, as_dict, as_list, as_str, identifier, leaves, mark
from callslip.model import events as ev
from callslip.model.events import Event

FORMAT = "openai"
ASSISTANT, USER, SYSTEM, RESULT = "assistant", "user", ("system", "developer"), ("tool", "function")

# Why the model stopped, in the words of `turn.ended`. A stop for calls that never came is an end like any other.
REASONS = {
    "stop": "end_turn",
    "length": "max_tokens",
    "content_filter": "refusal",
    "tool_calls": "end_turn",
    "function_call": "end_turn",
}

# What is taken over, or says nothing about the conversation.
ABOUT = {"object", "created", "model", "system_fingerprint", "service_tier", "obfuscation", "provider"}
RESPONSE = {"id", "choices", "usage", *ABOUT}
CHOICE = {"index", "delta", "message", "finish_reason", "native_finish_reason", "stop_reason"}
MESSAGE = {"role", "content", "refusal", "reasoning", "reasoning_content", "tool_calls", "function_call"}
CALL = {"index", "id", "type", "function", "custom"}
FUNCTION = {"name", "arguments", "input"}
RESULTS = {"role", "content", "tool_call_id", "name"}
PROMPT = {"role", "content"}

Said = tuple[type[ev.MessageDelta] | type[ev.ThoughtDelta], str]

# What a part of a content says, and where.
_PARTS: dict[str, tuple[str, type[ev.MessageDelta] | type[ev.ThoughtDelta]]] = {
    "text": ("text", ev.MessageDelta),
    "refusal": ("refusal", ev.MessageDelta),
    "thinking": ("thinking", ev.ThoughtDelta),
}


# Speech


def spoken(message: dict[str, Any]) -> list[Said]:
    """What the model thinks and says, in this order. Servers have two names for a thought, and some send both."""
    thought = as_str(message.get("reasoning_content")) or as_str(message.get("reasoning"))
    said: list[Said] = [(ev.ThoughtDelta, thought), *_content(message.get("content"))]
    said.append((ev.MessageDelta, as_str(message.get("refusal"))))
    return [(cls, piece) for cls, piece in said if piece]


def _content(content: Any) -> list[Said]:
    if isinstance(content, str):
        return [(ev.MessageDelta, content)]
    parts = [(as_dict(part), _PARTS.get(as_str(as_dict(part).get("type")))) for part in as_list(content)]
    return [(rule[1], _text_in(part.get(rule[0]))) for part, rule in parts if rule]


def _text_in(value: Any) -> str:
    """A text, or the texts of parts within a part."""
    return as_str(value) or "".join(as_str(as_dict(part).get("text")) for part in as_list(value))


def is_plain(content: Any) -> bool:
    """Whether a content is text and nothing else."""
    return content is None or isinstance(content, str) or _texts(content) is not None


def _texts(content: Any) -> list[str] | None:
    found = [as_dict(part).get("text") if as_dict(part).get("type") == "text" else None for part in as_list(content)]
    texts = [one for one in found if isinstance(one, str)]
    return texts if isinstance(content, list) and len(texts) == len(found) else None


def joined(content: Any) -> str:
    """The text of a content; its parts stand on lines of their own."""
    found = [as_str(as_dict(part).get("text")) for part in as_list(content) if as_dict(part).get("type") == "text"]
    return as_str(content) or "\n".join(found)


def prompt(message: dict[str, Any]) -> Event:
    """What a person said; the parts too if there was more to it than text."""
    content = message.get("content")
    return ev.MessageUser(text=joined(content), content=UNSET if is_plain(content) else content)


def output(message: dict[str, Any]) -> Any:
    """What a tool gave: its text, or its parts if they are not all text."""
    content = message.get("content")
    return joined(content) if is_plain(content) else content


# Calls


class ProposedCall(msgspec.Struct, frozen=True):
    """A call as a whole message has it."""

    given: str
    name: str
    input: Any


def wanted(message: dict[str, Any]) -> list[ProposedCall]:
    """The calls of a whole message. The older API had one at most, without an id."""
    old = [{"function": message["function_call"]}] if isinstance(message.get("function_call"), dict) else []
    return [_wanted(as_dict(call)) for call in [*as_list(message.get("tool_calls")), *old] if isinstance(call, dict)]


def _wanted(call: dict[str, Any]) -> ProposedCall:
    custom = as_dict(call.get("custom"))
    function = custom or as_dict(call.get("function"))
    given = as_str(function.get("input")) if custom else arguments(function.get("arguments"))
    return ProposedCall(identifier(call.get("id")), as_str(function.get("name")), given)


def message_leaves(message: dict[str, Any]) -> bool:
    """Whether the model's message, or a delta of it, says more than is taken of it."""
    content = message.get("content")
    odd = any(as_str(as_dict(part).get("type")) not in _PARTS for part in as_list(content))
    return odd or leaves(message, MESSAGE) or any(_call_leaves(call) for call in as_list(message.get("tool_calls")))


def _call_leaves(call: Any) -> bool:
    inner = as_dict(as_dict(call).get("function")) | as_dict(as_dict(call).get("custom"))
    return not isinstance(call, dict) or leaves(as_dict(call), CALL) or leaves(inner, FUNCTION)


# Marks


def answer_mark(calls: list[tuple[str, str]], said: str) -> str:
    """An answer is known by the ids of its calls, else by their names and its text: (id, name) of each call."""
    if calls and all(given for given, _ in calls):
        return mark(ASSISTANT, *(given for given, _ in calls))
    return mark(ASSISTANT, *(name for _, name in calls), said)


def message_mark(body: Any) -> str:
    """What a message is known by, whoever sends it again. Instructions may change and are still the instructions."""
    message = as_dict(body)
    role = message.get("role")
    if role == ASSISTANT:
        said = "".join(piece for cls, piece in spoken(message) if cls is ev.MessageDelta)
        return answer_mark([(call.given, call.name) for call in wanted(message)], said)
    if role in SYSTEM:
        return mark("system")
    given = identifier(message.get("tool_call_id"))
    if role in RESULT:
        return mark("tool", given or joined(message.get("content")))
    return mark(str(role), joined(message.get("content")), str(len(as_list(message.get("content"))) or 1))
