"""The blocks that messages are made of: which say something, which are calls, which are results. Pure reading."""

from __future__ import annotations

from typing import Any, cast

from msgspec import UNSET

from callslip.formats.json_fields import as_dict, as_list, as_str, identifier, leaves, mark
from callslip.model import events as ev
from callslip.model.events import CallEnd, Event

FORMAT = "anthropic"
ASSISTANT, USER, SYSTEM = "assistant", "user", "system"

Speech = type[ev.MessageDelta] | type[ev.ThoughtDelta]

SPEECH: dict[str, tuple[Speech, str]] = {"text": (ev.MessageDelta, "text"), "thinking": (ev.ThoughtDelta, "thinking")}

# Kinds of calls, and whether the provider runs them.
CALLS = {"tool_use": False, "server_tool_use": True, "mcp_tool_use": True}

# Why the model stopped, in the words of `turn.ended`. A paused turn goes on with the next request.
REASONS = {
    "end_turn": "end_turn",
    "stop_sequence": "end_turn",
    "tool_use": "end_turn",
    "max_tokens": "max_tokens",
    "model_context_window_exceeded": "max_tokens",
    "refusal": "refusal",
}
PAUSED = "pause_turn"

# What is taken over, or says nothing about the conversation.
MESSAGE = {"id", "type", "role", "model", "content", "stop_reason", "stop_sequence", "usage"}
PARAM = {"role", "content"}
_ABOUT = {"type", "cache_control", "caller"}
_CALL = {*_ABOUT, "id", "name", "input", "server_name", "toolset_name"}
_RESULT = {*_ABOUT, "tool_use_id", "content", "is_error", "toolset_name"}


def kind_of(block: Any) -> str:
    return as_str(as_dict(block).get("type"))


def is_result(block: Any) -> bool:
    """Whether a block is the result of a call; those of the provider's own tools are each of a kind of their own."""
    return kind_of(block).endswith("tool_result")


def blocks_of(message: dict[str, Any]) -> list[Any]:
    """A message's blocks; a text by itself is a block of text."""
    content = message.get("content")
    return [{"type": "text", "text": content}] if isinstance(content, str) else as_list(content)


def block_leaves(block: Any) -> bool:
    """Whether a block says more than is taken of it, or is of a kind that is not known."""
    kind, told = kind_of(block), as_dict(block)
    if kind in SPEECH:
        return leaves(told, {*_ABOUT, SPEECH[kind][1]})
    return leaves(told, _CALL) if kind in CALLS else leaves(told, _RESULT) if is_result(block) else True


# Calls


def told_of(call: dict[str, Any]) -> dict[str, Any]:
    """The tool of a call; one of an MCP server is shown with it."""
    name, server = as_str(call.get("name")), as_str(call.get("server_name"))
    told: dict[str, Any] = {"tool_name": name} if name else {}
    return {**told, "title": f"{server}: {name}"} if server and name else told


def result_of(block: dict[str, Any]) -> tuple[type[CallEnd], dict[str, Any]]:
    """How a result ends its call."""
    content = block.get("content")
    inner = as_dict(content)
    output = _plain(content)
    if block.get("is_error") is True or kind_of(inner).endswith("_error"):
        return ev.CallFailed, {"error": as_str(inner.get("error_code")) or output}
    status = inner.get("return_code")
    return ev.CallCompleted, {"output": output, **({"exit_status": status} if type(status) is int else {})}


def _plain(content: Any) -> Any:
    """A content; blocks that are all text are that text, and none at all are no text."""
    blocks = [as_dict(block) for block in as_list(content)]
    texts = [block["text"] for block in blocks if block.get("type") == "text" and isinstance(block.get("text"), str)]
    only_text = len(texts) == len(blocks) and isinstance(content, list | None)
    return "\n".join(texts) if only_text else cast(Any, content)


# What people say


def prompt(blocks: list[Any]) -> Event:
    """What a person said; the blocks too if there was more to it than text."""
    said = [as_str(as_dict(block).get("text")) for block in blocks if kind_of(block) == "text"]
    plain = len(said) == len(blocks)
    return ev.MessageUser(text="\n".join(said), content=UNSET if plain else blocks)


# Marks


def answer_mark(calls: list[str], said: str) -> str:
    """An answer is known by the ids of its calls, else by its text."""
    return mark(ASSISTANT, *calls) if calls and all(calls) else mark(ASSISTANT, said)


def message_mark(body: Any) -> str:
    """What a message is known by, whoever sends it again. Instructions may change and are still the instructions."""
    message = as_dict(body)
    role, blocks = as_str(message.get("role")), blocks_of(message)
    said = "".join(as_str(as_dict(block).get("text")) for block in blocks)
    if role == ASSISTANT:
        return answer_mark([identifier(as_dict(block).get("id")) for block in blocks if kind_of(block) in CALLS], said)
    if role == SYSTEM:
        return mark(SYSTEM)
    results = [identifier(as_dict(block).get("tool_use_id")) for block in blocks if is_result(block)]
    return mark("results", *results) if results else mark(role, said, str(len(blocks)))
