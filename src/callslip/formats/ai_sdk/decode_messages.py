"""Full messages: as they are stored, and as the client posts them. Each is read as the stream that would create it.

So a message that was streamed before, or stored before with less content, gives only what is new.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from msgspec import UNSET

from callslip.formats.ai_sdk import decode_calls as calls
from callslip.formats.ai_sdk.wire import Chunk, Part, UIMessage
from callslip.formats.base import DeltaType
from callslip.formats.call_tracker import RESULT_UNKNOWN
from callslip.formats.json_fields import as_dict, as_list, as_str, has_other_fields, identifier
from callslip.formats.providers.content import join_texts
from callslip.formats.usage import read_usage
from callslip.model import events as ev
from callslip.model.events import Alias, Event

DELTA_TYPES: dict[str, DeltaType] = {"text": ev.MessageDelta, "reasoning": ev.ThoughtDelta}
MESSAGE_FIELDS = {"id", "role", "parts"}


def is_message(value: Any) -> bool:
    """Return whether a value is a message as the client stores it."""
    fields = as_dict(value)
    return fields.get("role") in ("user", "assistant") and isinstance(fields.get("parts"), list)


def messages_in(value: Any) -> list[UIMessage]:
    """Return the messages of a list, a document or a posted body, which may contain only the newest."""
    if isinstance(value, list):
        return [as_dict(item) for item in as_list(value) if is_message(item)]
    fields = as_dict(value)
    messages = [as_dict(item) for item in as_list(fields.get("messages")) if is_message(item)]
    return messages or [as_dict(item) for item in (fields.get("message"),) if is_message(item)]


# Messages of the user


def user_message(message: UIMessage, message_id: str) -> Event:
    """Return the event of a user's message: its texts as lines, and all its parts if it has more than one text."""
    parts = as_list(message.get("parts"))
    is_plain = len(parts) == 1 and as_dict(parts[0]).get("type") == "text"
    return ev.MessageUser(text=join_texts(parts), message_id=message_id, content=UNSET if is_plain else parts)


# Messages of the agent


def chunks_of(message: UIMessage) -> list[Chunk]:
    """Return the chunks that would create the parts of a message; none for parts that are only stored raw."""
    chunks: list[Chunk] = []
    for number, part in enumerate(map(as_dict, as_list(message.get("parts")))):
        kind = as_str(part.get("type"))
        convert = _PARTS.get(kind) or (_call if is_call(kind) else _same if kind.startswith("data-") else None)
        chunks += convert(part, f"{number}") if convert else []
    return chunks


def read_metadata(value: Any, message_id: str) -> list[Event]:
    """Return the usage in the metadata of a message, where the AI SDK's own examples put it."""
    metadata = as_dict(value)
    usage = metadata.get("totalUsage") or metadata.get("usage")
    return read_usage(usage, id=message_id, model=metadata.get("model"), of_turn=True)


def needs_raw(message: UIMessage) -> bool:
    """Return whether a message has more than its events carry."""
    parts = map(as_dict, as_list(message.get("parts")))
    return has_other_fields(message, MESSAGE_FIELDS) or any(map(_part_needs_raw, parts))


def _part_needs_raw(part: Part) -> bool:
    kind = as_str(part.get("type"))
    if is_call(kind):
        return has_other_fields(part, _CALL_FIELDS) or any(map(calls.needs_raw, _call(part, "")))
    return has_other_fields(part, _TEXT_FIELDS) or kind not in _PARTS


def is_call(kind: str) -> bool:
    """Return whether a part of this type is a tool call; the type may contain the name of the tool."""
    return kind.startswith("tool-") or kind == "dynamic-tool"


def _same(part: Part, name: str) -> list[Chunk]:
    return [part]


def _text(part: Part, name: str) -> list[Chunk]:
    kind, metadata = part["type"], {"providerMetadata": part.get("providerMetadata")}
    chunks: list[Chunk] = [{"type": f"{kind}-start", "id": name}]
    chunks += [{"type": f"{kind}-delta", "id": name, "delta": part["text"]}] if as_str(part.get("text")) else []
    return chunks if part.get("state") == "streaming" else [*chunks, {"type": f"{kind}-end", "id": name, **metadata}]


_TEXT_FIELDS = {"type", "id", "text", "state", "parts"}
_CALL_FIELDS = {
    *("type", "toolCallId", "toolName", "title", "state", "toolMetadata", "input", "rawInput", "inputEncoding"),
    *("output", "preliminary", "errorText", "approval"),
}
_COPIED_FIELDS = ("toolCallId", "title", "toolMetadata", "providerExecuted")
_RENAMED_FIELDS = {"callProviderMetadata": "providerMetadata", "inputEncoding": "inputEncoding"}


def _call(part: Part, name: str) -> list[Chunk]:
    """Return the chunks of a call, from its arguments to its current state."""
    base = {key: part[key] for key in _COPIED_FIELDS if part.get(key) is not None}
    base |= {new: part[old] for old, new in _RENAMED_FIELDS.items() if part.get(old) is not None}
    base["toolName"] = part.get("toolName") or part["type"].removeprefix("tool-")
    state = part.get("state")
    if state == "input-streaming":
        return _streamed_input(part, base)
    arguments = {"input": part["input"]} if part.get("input") is not None else {}
    if not arguments and "rawInput" in part:
        arguments = {"input": part["rawInput"]}  # The arguments of the model that the tool rejects.
    end = _ENDS.get(as_str(state))
    return [
        {**base, **arguments, "type": "tool-input-available"},
        *_approval(part, base),
        *([{**base, **end(part)}] if end else []),
    ]


def _streamed_input(part: Part, base: Chunk) -> list[Chunk]:
    text = part.get("rawInput")
    chunks: list[Chunk] = [{**base, "type": "tool-input-start"}]
    if not isinstance(text, str) or not text:
        return chunks
    return [*chunks, {"type": "tool-input-delta", "toolCallId": base.get("toolCallId"), "inputTextDelta": text}]


_REQUEST_FIELDS = {"descriptor": "approvalDescriptor", "requestReason": "reason", "signature": "signature"}


def _approval(part: Part, base: Chunk) -> Iterator[Chunk]:
    """Yield the approval request of a part and its answer."""
    approval, ids = as_dict(part.get("approval")), {"toolCallId": base.get("toolCallId")}
    if not approval:
        return
    ids["approvalId"] = approval.get("id")
    request = {new: approval[old] for old, new in _REQUEST_FIELDS.items() if old in approval}
    yield {**ids, **request, "type": "tool-approval-request"}
    if isinstance(approval.get("approved"), bool):
        answer = {name: approval[name] for name in ("approved", "reason", "isAutomatic") if name in approval}
        yield {**ids, **answer, "type": "tool-approval-response"}


_OUTPUT_FIELDS = ("output", "preliminary")
_ENDS: dict[str, Callable[[Part], Chunk]] = {
    "output-available": lambda part: {
        "type": "tool-output-available",
        **{key: part[key] for key in _OUTPUT_FIELDS if key in part},
    },
    "output-error": lambda part: {"type": "tool-output-error", "errorText": part.get("errorText")},
    "output-denied": lambda part: {"type": "tool-output-denied"},
}
_PARTS: dict[str, Callable[[Part, str], list[Chunk]]] = {
    **dict.fromkeys(DELTA_TYPES, _text),
    "step-start": lambda part, name: [{"type": "start-step"}],
    "steering-message": _same,
}


# History


def history_events(message: UIMessage, format: str) -> list[Event]:
    """Return the events of a message of a history that was not streamed: texts without ids, each call as one event.

    The ledger takes it over if its session is empty; ids would make texts look new that it has under other ids.
    """
    if message.get("role") == "user":
        return [user_message(message, "")]
    events: list[Event] = []
    for part in map(as_dict, as_list(message.get("parts"))):
        kind, text = as_str(part.get("type")), as_str(part.get("text"))
        if kind in DELTA_TYPES and text:
            events += [DELTA_TYPES[kind](text=text, chunks="delta"), ev.MessageEnded()]
        elif is_call(kind) and (call_id := identifier(part.get("toolCallId"))):
            events.append(_ended_call(part, (Alias(format, call_id),)))
    return events


def _ended_call(part: Part, aliases: tuple[Alias, ...]) -> Event:
    """Return a call of the history, which has ended: no process continues it."""
    fields = calls.call_fields(_call(part, "")[0])
    if part.get("state") == "output-available":
        return ev.CallCompleted(aliases=aliases, **fields, output=part.get("output", UNSET))
    if part.get("state") == "output-error":
        return ev.CallFailed(aliases=aliases, **fields, error=part.get("errorText", UNSET))
    is_refused = as_dict(part.get("approval")).get("approved") is False
    return ev.CallFailed(aliases=aliases, **fields, reason="denied" if is_refused else RESULT_UNKNOWN)


def turn_of(messages: list[UIMessage]) -> str:
    """Return the id of the newest prompt, which identifies its turn for later readers."""
    prompts = [identifier(message.get("id")) for message in messages if message.get("role") == "user"]
    return prompts[-1] if prompts else ""
