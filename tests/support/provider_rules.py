"""What OpenAI's Chat Completions and Responses and Anthropic's Messages accept as a history, as rules; and their SDKs.

Written from the APIs' side and without a look at the encoders: each function goes through the messages once and gives
every rule that is broken, in words. An empty list is a history that is accepted. At the end: reading into memory.
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
from tests.support.strategies import Desk

NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")
ANTHROPIC_ID = re.compile(r"[a-zA-Z0-9_-]{1,64}")
BLOCKS = {
    "text": {"type", "text"},
    "tool_use": {"type", "id", "name", "input"},
    "tool_result": {"type", "tool_use_id", "content", "is_error"},
}
OPENAI_ID_LENGTH = 40
RESPONSES_ID_LENGTH = 64


# Chat Completions


def check_openai(messages: Any) -> list[str]:
    """What the API would refuse in these messages."""
    if not isinstance(messages, list):
        return ["the messages are not a list"]
    wrong: list[str] = []
    owed: list[str] = []
    used: set[str] = set()
    for number, message in enumerate(messages):
        role = message.get("role")
        if role == "tool":
            wrong += [f"{number}: {problem}" for problem in _openai_result(message, owed)]
            continue
        if owed:
            wrong.append(f"{number}: {role} comes before the results of {owed}")
            owed = []
        if role == "assistant":
            wrong += [f"{number}: {problem}" for problem in _openai_answer(message, used)]
            owed = [call.get("id") for call in message.get("tool_calls") or []]
        elif role in ("user", "system", "developer"):
            found = [*_only(message, {"role", "content"}), *_text(message.get("content"), "content")]
            wrong += [f"{number}: {problem}" for problem in found]
        else:
            wrong.append(f"{number}: nobody has the role {role!r}")
    return wrong + ([f"the results of {owed} are missing"] if owed else []) + _json(messages)


def _openai_result(message: dict[str, Any], owed: list[str]) -> Iterator[str]:
    identity = message.get("tool_call_id")
    yield from _only(message, {"role", "tool_call_id", "content"})
    if identity in owed:
        owed.remove(identity)
    else:
        yield f"a result for {identity!r}, which no call directly before it waits for"
    yield from _text(message.get("content"), "result")


def _openai_answer(message: dict[str, Any], used: set[str]) -> Iterator[str]:
    calls, content = message.get("tool_calls"), message.get("content")
    yield from _only(message, {"role", "content", "tool_calls"})
    if "tool_calls" in message and not calls:
        yield "an empty list of calls"
    if content is not None or not calls:
        yield from _text(content, "content")
    for call in calls or []:
        yield from _only(call, {"id", "type", "function"})
        yield from _identity(call.get("id"), used, OPENAI_ID_LENGTH)
        function = call.get("function")
        if call.get("type") != "function" or not isinstance(function, dict):
            yield "a call that is no function"
            continue
        yield from _only(function, {"name", "arguments"})
        yield from _name(function.get("name"))
        yield from _arguments(function.get("arguments"))


def _arguments(text: Any) -> Iterator[str]:
    try:
        value = json.loads(text, parse_constant=_no_constant)
    except (TypeError, ValueError):
        yield f"arguments that are no JSON text: {text!r}"
        return
    if not isinstance(value, dict):
        yield f"arguments that are no object: {text}"


def _no_constant(word: str) -> Any:
    raise ValueError(f"{word} is not JSON")


# Responses


def check_responses(items: Any) -> list[str]:
    """What the API would refuse in these input items."""
    if not isinstance(items, list):
        return ["the items are not a list"]
    wrong: list[str] = []
    used: set[str] = set()
    owed: list[str] = []
    answered = False
    for number, item in enumerate(items):
        kind = item.get("type", "message")
        rule = _ITEMS.get(kind)
        if owed and (kind not in ("function_call", "function_call_output") or (kind == "function_call" and answered)):
            wrong.append(f"{number}: {kind} comes before the results of {owed}")
            owed = []
        found = rule(item, owed, used) if rule else [f"an item of the kind {kind!r}"]
        wrong += [f"{number}: {problem}" for problem in found]
        answered = kind == "function_call_output"
    return wrong + ([f"the results of {owed} are missing"] if owed else []) + _json(items)


def _item_message(item: dict[str, Any], owed: list[str], used: set[str]) -> Iterator[str]:
    role, content = item.get("role"), item.get("content")
    if role not in ("user", "assistant", "system", "developer"):
        yield f"nobody has the role {role!r}"
    yield from _only(item, {"type", "role", "content"})
    yield from _text(content, "content")


def _item_call(item: dict[str, Any], owed: list[str], used: set[str]) -> Iterator[str]:
    yield from _only(item, {"type", "call_id", "name", "arguments"})
    yield from _identity(item.get("call_id"), used, RESPONSES_ID_LENGTH)
    yield from _name(item.get("name"))
    yield from _arguments(item.get("arguments"))
    owed.append(item.get("call_id", ""))


def _item_result(item: dict[str, Any], owed: list[str], used: set[str]) -> Iterator[str]:
    identity = item.get("call_id")
    yield from _only(item, {"type", "call_id", "output"})
    if identity in owed:
        owed.remove(identity)
    else:
        yield f"a result for {identity!r}, which no call directly before it waits for"
    yield from _text(item.get("output"), "result")


_ITEMS = {"message": _item_message, "function_call": _item_call, "function_call_output": _item_result}


# Messages


def check_anthropic(messages: Any) -> list[str]:
    """What the API would refuse in these messages."""
    if not isinstance(messages, list):
        return ["the messages are not a list"]
    wrong: list[str] = []
    used: set[str] = set()
    owed: list[str] = []
    for number, message in enumerate(messages):
        role, expected = message.get("role"), "assistant" if number % 2 else "user"
        if role != expected:
            wrong.append(f"{number}: {role} speaks where it is for the {expected} to speak")
        blocks = message.get("content")
        wrong += [f"{number}: {problem}" for problem in _only(message, {"role", "content"})]
        if not isinstance(blocks, list):
            wrong += [f"{number}: {problem}" for problem in _text(blocks, "content")]
            blocks = []
        elif not blocks:
            wrong.append(f"{number}: no content")
        wrong += [f"{number}: {problem}" for problem in _results_first(blocks, owed)]
        wrong += [f"{number}: {problem}" for block in blocks for problem in _block(block, role, used)]
        owed = [block.get("id") for block in blocks if block.get("type") == "tool_use"]
    if owed:
        wrong.append(f"the results of {owed} are missing")
    return wrong + _last(messages) + _json(messages)


def _results_first(blocks: list[Any], owed: list[str]) -> Iterator[str]:
    """The results of all calls of the message before, each once, and nothing in front of them."""
    kinds = [block.get("type") for block in blocks]
    given = [block.get("tool_use_id") for block in blocks if block.get("type") == "tool_result"]
    if sorted(map(str, given)) != sorted(map(str, owed)):
        yield f"results of {given} after calls {owed}"
    if "tool_result" in kinds[len(given) :]:
        yield "something stands before a result"


def _block(block: dict[str, Any], role: Any, used: set[str]) -> Iterator[str]:
    kind = block.get("type")
    yield from _only(block, BLOCKS.get(str(kind), set(block)))
    if kind == "text":
        yield from _text(block.get("text"), "text")
    elif kind == "tool_use":
        yield from [] if role == "assistant" else ["a call by a person"]
        yield from _identity(block.get("id"), used, 64)
        yield from [] if ANTHROPIC_ID.fullmatch(str(block.get("id"))) else ["an id in letters that are not allowed"]
        yield from _name(block.get("name"))
        yield from [] if isinstance(block.get("input"), dict) else ["an input that is no object"]
    elif kind == "tool_result":
        yield from [] if role == "user" else ["a result by the model"]
        yield from _text(block.get("content"), "result")
        yield from [] if isinstance(block.get("is_error", False), bool) else ["is_error is neither true nor false"]
    else:
        yield f"a block of the kind {kind!r}"


def _last(messages: list[Any]) -> list[str]:
    """What the model is to go on from may not end in space."""
    if not messages or messages[-1].get("role") != "assistant" or not isinstance(messages[-1].get("content"), list):
        return []
    said = messages[-1]["content"][-1].get("text", "") if messages[-1]["content"] else ""
    return ["the last message ends in space"] if said != said.rstrip() else []


# All of them


def _only(said: dict[str, Any], known: set[str]) -> Iterator[str]:
    """An API refuses parameters that it does not know; ids that it did not give itself are among them."""
    yield from (f"an unknown parameter {name!r}" for name in said if name not in known)


def _text(value: Any, what: str) -> Iterator[str]:
    if not isinstance(value, str):
        yield f"{what} that is no text: {value!r}"
    elif not value.strip():
        yield f"{what} that is blank"


def _identity(identity: Any, used: set[str], longest: int) -> Iterator[str]:
    if not isinstance(identity, str) or not 0 < len(identity) <= longest:
        yield f"an id of the wrong length: {identity!r}"
    elif identity in used:
        yield f"the id {identity!r} a second time"
    used.add(str(identity))


def _name(name: Any) -> Iterator[str]:
    if not isinstance(name, str) or not NAME.fullmatch(name):
        yield f"the name {name!r}"


def _json(messages: list[Any]) -> list[str]:
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


def typed_openai(messages: list[Any]) -> list[str]:
    """What the types of the SDK `openai` say against these messages."""
    return _against(_openai_types(), messages)


def typed_responses(items: list[Any]) -> list[str]:
    """What the types of the SDK `openai` say against these input items."""
    return _against(_responses_types(), items)


def typed_anthropic(messages: list[Any]) -> list[str]:
    """What the types of the SDK `anthropic` say against these messages."""
    return _against(_anthropic_types(), messages)


def _against(types: TypeAdapter[Any], messages: list[Any]) -> list[str]:
    try:
        _walk(types.validate_python(messages))
    except ValidationError as error:
        return [str(problem) for problem in error.errors()]
    return []


def _walk(value: Any) -> None:
    """Look at everything: what an SDK declares as iterable is only checked when somebody goes through it."""
    if isinstance(value, dict):
        for member in value.values():
            _walk(member)
    elif not isinstance(value, str | bytes | int | float | None):
        for item in value:
            _walk(item)


# Reading, without a store


def desk_of(format: str, messages: Iterable[Any], *, close: str = "", **options: Any) -> Desk:
    """What a ledger makes of messages of a format, read one after the other."""
    desk, decoder = Desk(redact=False), registry.decoder(format, **options)
    for message in messages:
        desk.write(*decoder.feed(message))
    desk.write(*(decoder.close(close) if close else []))
    return desk


def shown(desk: Desk) -> list[Any]:
    """The entries on a desk."""
    return desk.state.snapshot().entries


def calls_on(desk: Desk) -> list[ToolCall]:
    """The calls on a desk."""
    return [entry for entry in shown(desk) if isinstance(entry, ToolCall)]
