"""Check histories against the rules of OpenAI Chat Completions, OpenAI Responses and Anthropic Messages.

The rules come from the APIs, not from our encoders. Each check returns a line for every broken rule; an accepted
history gives an empty list. The last part decodes messages into a ledger in memory.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from functools import cache
from typing import Any

from pydantic import TypeAdapter, ValidationError

from callslip.formats import registry
from callslip.model.entries import ToolCall
from tests.support.strategies import MemoryLedger

NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")
ANTHROPIC_ID = re.compile(r"[a-zA-Z0-9_-]{1,64}")
BLOCKS = {
    "text": {"type", "text"},
    "tool_use": {"type", "id", "name", "input"},
    "tool_result": {"type", "tool_use_id", "content", "is_error"},
}
OPENAI_ID_CHARS = 40
RESPONSES_ID_CHARS = 64


# Chat Completions


def check_openai(messages: Any) -> list[str]:
    """Return what the API would reject in these messages."""
    if not isinstance(messages, list):
        return ["the messages are not a list"]
    problems: list[str] = []
    unanswered: list[str] = []
    used_ids: set[str] = set()
    for number, message in enumerate(messages):
        role = message.get("role")
        if role == "tool":
            problems += [f"{number}: {problem}" for problem in _check_openai_result(message, unanswered)]
            continue
        if unanswered:
            problems.append(f"{number}: {role} comes before the results of {unanswered}")
            unanswered = []
        if role == "assistant":
            problems += [f"{number}: {problem}" for problem in _check_openai_answer(message, used_ids)]
            unanswered = [call.get("id") for call in message.get("tool_calls") or []]
        elif role in ("user", "system", "developer"):
            new_problems = [
                *_check_names(message, {"role", "content"}),
                *_check_text(message.get("content"), "content"),
            ]
            problems += [f"{number}: {problem}" for problem in new_problems]
        else:
            problems.append(f"{number}: unknown role {role!r}")
    return problems + ([f"the results of {unanswered} are missing"] if unanswered else []) + _check_json(messages)


def _check_openai_result(message: dict[str, Any], unanswered: list[str]) -> Iterator[str]:
    call_id = message.get("tool_call_id")
    yield from _check_names(message, {"role", "tool_call_id", "content"})
    if call_id in unanswered:
        unanswered.remove(call_id)
    else:
        yield f"a result for {call_id!r}, which no call directly before it waits for"
    yield from _check_text(message.get("content"), "result")


def _check_openai_answer(message: dict[str, Any], used_ids: set[str]) -> Iterator[str]:
    calls, content = message.get("tool_calls"), message.get("content")
    yield from _check_names(message, {"role", "content", "tool_calls"})
    if "tool_calls" in message and not calls:
        yield "an empty list of calls"
    if content is not None or not calls:
        yield from _check_text(content, "content")
    for call in calls or []:
        yield from _check_names(call, {"id", "type", "function"})
        yield from _check_id(call.get("id"), used_ids, OPENAI_ID_CHARS)
        function = call.get("function")
        if call.get("type") != "function" or not isinstance(function, dict):
            yield "a call that is not a function"
            continue
        yield from _check_names(function, {"name", "arguments"})
        yield from _check_name(function.get("name"))
        yield from _check_arguments(function.get("arguments"))


def _check_arguments(text: Any) -> Iterator[str]:
    try:
        value = json.loads(text, parse_constant=_reject_constant)
    except (TypeError, ValueError):
        yield f"arguments that are not JSON: {text!r}"
        return
    if not isinstance(value, dict):
        yield f"arguments that are not an object: {text}"


def _reject_constant(word: str) -> Any:
    raise ValueError(f"{word} is not JSON")


# Responses


def check_responses(items: Any) -> list[str]:
    """Return what the API would reject in these input items."""
    if not isinstance(items, list):
        return ["the items are not a list"]
    problems: list[str] = []
    used_ids: set[str] = set()
    unanswered: list[str] = []
    after_result = False
    for number, item in enumerate(items):
        kind = item.get("type", "message")
        check = _ITEM_CHECKS.get(kind)
        if unanswered and (
            kind not in ("function_call", "function_call_output") or (kind == "function_call" and after_result)
        ):
            problems.append(f"{number}: {kind} comes before the results of {unanswered}")
            unanswered = []
        new_problems = check(item, unanswered, used_ids) if check else [f"an item of the kind {kind!r}"]
        problems += [f"{number}: {problem}" for problem in new_problems]
        after_result = kind == "function_call_output"
    return problems + ([f"the results of {unanswered} are missing"] if unanswered else []) + _check_json(items)


def _check_message_item(item: dict[str, Any], unanswered: list[str], used_ids: set[str]) -> Iterator[str]:
    role, content = item.get("role"), item.get("content")
    if role not in ("user", "assistant", "system", "developer"):
        yield f"unknown role {role!r}"
    yield from _check_names(item, {"type", "role", "content"})
    yield from _check_text(content, "content")


def _check_call_item(item: dict[str, Any], unanswered: list[str], used_ids: set[str]) -> Iterator[str]:
    yield from _check_names(item, {"type", "call_id", "name", "arguments"})
    yield from _check_id(item.get("call_id"), used_ids, RESPONSES_ID_CHARS)
    yield from _check_name(item.get("name"))
    yield from _check_arguments(item.get("arguments"))
    unanswered.append(item.get("call_id", ""))


def _check_result_item(item: dict[str, Any], unanswered: list[str], used_ids: set[str]) -> Iterator[str]:
    call_id = item.get("call_id")
    yield from _check_names(item, {"type", "call_id", "output"})
    if call_id in unanswered:
        unanswered.remove(call_id)
    else:
        yield f"a result for {call_id!r}, which no call directly before it waits for"
    yield from _check_text(item.get("output"), "result")


_ITEM_CHECKS = {
    "message": _check_message_item,
    "function_call": _check_call_item,
    "function_call_output": _check_result_item,
}


# Messages


def check_anthropic(messages: Any) -> list[str]:
    """Return what the API would reject in these messages."""
    if not isinstance(messages, list):
        return ["the messages are not a list"]
    problems: list[str] = []
    used_ids: set[str] = set()
    unanswered: list[str] = []
    for number, message in enumerate(messages):
        role, expected = message.get("role"), "assistant" if number % 2 else "user"
        if role != expected:
            problems.append(f"{number}: the role is {role} instead of {expected}")
        blocks = message.get("content")
        problems += [f"{number}: {problem}" for problem in _check_names(message, {"role", "content"})]
        if not isinstance(blocks, list):
            problems += [f"{number}: {problem}" for problem in _check_text(blocks, "content")]
            blocks = []
        elif not blocks:
            problems.append(f"{number}: no content")
        problems += [f"{number}: {problem}" for problem in _check_results_first(blocks, unanswered)]
        problems += [f"{number}: {problem}" for block in blocks for problem in _check_block(block, role, used_ids)]
        unanswered = [block.get("id") for block in blocks if block.get("type") == "tool_use"]
    if unanswered:
        problems.append(f"the results of {unanswered} are missing")
    return problems + _check_last(messages) + _check_json(messages)


def _check_results_first(blocks: list[Any], unanswered: list[str]) -> Iterator[str]:
    """Check that the results of all calls of the previous message come first, each once."""
    kinds = [block.get("type") for block in blocks]
    result_ids = [block.get("tool_use_id") for block in blocks if block.get("type") == "tool_result"]
    if sorted(map(str, result_ids)) != sorted(map(str, unanswered)):
        yield f"results of {result_ids} after calls {unanswered}"
    if "tool_result" in kinds[len(result_ids) :]:
        yield "content before a result"


def _check_block(block: dict[str, Any], role: Any, used_ids: set[str]) -> Iterator[str]:
    kind = block.get("type")
    yield from _check_names(block, BLOCKS.get(str(kind), set(block)))
    if kind == "text":
        yield from _check_text(block.get("text"), "text")
    elif kind == "tool_use":
        yield from [] if role == "assistant" else ["a call in a user message"]
        yield from _check_id(block.get("id"), used_ids, 64)
        yield from [] if ANTHROPIC_ID.fullmatch(str(block.get("id"))) else ["an id with forbidden characters"]
        yield from _check_name(block.get("name"))
        yield from [] if isinstance(block.get("input"), dict) else ["an input that is not an object"]
    elif kind == "tool_result":
        yield from [] if role == "user" else ["a result in an assistant message"]
        yield from _check_text(block.get("content"), "result")
        yield from [] if isinstance(block.get("is_error", False), bool) else ["is_error is neither true nor false"]
    else:
        yield f"a block of the kind {kind!r}"


def _check_last(messages: list[Any]) -> list[str]:
    """Check that a message for the model to continue does not end in whitespace."""
    if not messages or messages[-1].get("role") != "assistant" or not isinstance(messages[-1].get("content"), list):
        return []
    text = messages[-1]["content"][-1].get("text", "") if messages[-1]["content"] else ""
    return ["the last message ends in whitespace"] if text != text.rstrip() else []


# Shared checks


def _check_names(value: dict[str, Any], allowed: set[str]) -> Iterator[str]:
    """Check for parameters that the API does not accept, such as ids that it did not generate."""
    yield from (f"an unknown parameter {name!r}" for name in value if name not in allowed)


def _check_text(value: Any, field_name: str) -> Iterator[str]:
    if not isinstance(value, str):
        yield f"{field_name} is not text: {value!r}"
    elif not value.strip():
        yield f"{field_name} is blank"


def _check_id(call_id: Any, used_ids: set[str], max_chars: int) -> Iterator[str]:
    if not isinstance(call_id, str) or not 0 < len(call_id) <= max_chars:
        yield f"an id of the wrong length: {call_id!r}"
    elif call_id in used_ids:
        yield f"the id {call_id!r} a second time"
    used_ids.add(str(call_id))


def _check_name(name: Any) -> Iterator[str]:
    if not isinstance(name, str) or not NAME.fullmatch(name):
        yield f"invalid name {name!r}"


def _check_json(messages: list[Any]) -> list[str]:
    try:
        json.dumps(messages, allow_nan=False, ensure_ascii=False).encode()
    except (TypeError, ValueError, RecursionError) as error:
        return [f"not JSON: {error}"]
    return []


# The SDKs' own types


@cache
def _openai_types() -> TypeAdapter[Any]:
    from openai.types.chat import ChatCompletionMessageParam

    return TypeAdapter(list[ChatCompletionMessageParam])


@cache
def _responses_types() -> TypeAdapter[Any]:
    from openai.types.responses import ResponseInputParam

    return TypeAdapter(ResponseInputParam)


@cache
def _anthropic_types() -> TypeAdapter[Any]:
    from anthropic.types import MessageParam

    return TypeAdapter(list[MessageParam])


def openai_type_errors(messages: list[Any]) -> list[str]:
    """Return the errors of the types of the SDK `openai` for these messages."""
    return _validate(_openai_types(), messages)


def responses_type_errors(items: list[Any]) -> list[str]:
    """Return the errors of the types of the SDK `openai` for these input items."""
    return _validate(_responses_types(), items)


def anthropic_type_errors(messages: list[Any]) -> list[str]:
    """Return the errors of the types of the SDK `anthropic` for these messages."""
    return _validate(_anthropic_types(), messages)


def _validate(types: TypeAdapter[Any], messages: list[Any]) -> list[str]:
    try:
        _visit_all(types.validate_python(messages))
    except ValidationError as error:
        return [str(problem) for problem in error.errors()]
    return []


def _visit_all(value: Any) -> None:
    """Visit every value, since pydantic checks iterables only while they are iterated."""
    if isinstance(value, dict):
        for member in value.values():
            _visit_all(member)
    elif not isinstance(value, str | bytes | int | float | None):
        for item in value:
            _visit_all(item)


# Decoding without a store


def decode_messages(format: str, messages: Iterable[Any], *, close: str = "", **options: Any) -> MemoryLedger:
    """Decode messages of a format into a ledger in memory."""
    memory, decoder = MemoryLedger(redact=False), registry.decoder(format, **options)
    for message in messages:
        memory.write(*decoder.feed(message))
    memory.write(*(decoder.close(close) if close else []))
    return memory


def list_entries(memory: MemoryLedger) -> list[Any]:
    """Return the entries."""
    return memory.state.snapshot().entries


def list_calls(memory: MemoryLedger) -> list[ToolCall]:
    """Return the calls."""
    return [entry for entry in list_entries(memory) if isinstance(entry, ToolCall)]
