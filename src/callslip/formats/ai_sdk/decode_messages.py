"""Whole messages: as they are stored, and as the client posts them. Each is read as the stream that would make it.

So a message that was streamed before, or stored before with less in it, tells only what is new.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from msgspec import UNSET

from callslip.formats.ai_sdk import decode_calls as calls
from callslip.formats.ai_sdk.reading import leaves
from callslip.formats.ai_sdk.wire import Chunk, Part, UIMessage
from callslip.formats.json_fields import as_dict, as_list, as_str, identifier
from callslip.model import events as ev
from callslip.model.events import Alias, Event

SPOKEN: dict[str, type[ev.MessageDelta] | type[ev.ThoughtDelta]] = {
    "text": ev.MessageDelta,
    "reasoning": ev.ThoughtDelta,
}
RESULT_UNKNOWN = "the history does not tell how this call ended"
MESSAGE = {"id", "role", "parts"}


def is_message(value: Any) -> bool:
    """Whether a value is a message as the client keeps it."""
    said = as_dict(value)
    return said.get("role") in ("user", "assistant") and isinstance(said.get("parts"), list)


def messages_in(value: Any) -> list[UIMessage]:
    """The messages of a list, of a document or of a posted body; a body may hold only the newest."""
    if isinstance(value, list):
        return [as_dict(item) for item in as_list(value) if is_message(item)]
    said = as_dict(value)
    found = [as_dict(item) for item in as_list(said.get("messages")) if is_message(item)]
    return found or [as_dict(item) for item in (said.get("message"),) if is_message(item)]


# What a person said


def user_message(message: UIMessage, identity: str) -> Event:
    """Its texts, one a line; all its parts if there was more to it than one text."""
    parts = as_list(message.get("parts"))
    texts = [as_str(as_dict(part).get("text")) for part in parts if as_dict(part).get("type") == "text"]
    plain = len(parts) == len(texts) == 1
    return ev.MessageUser(text="\n".join(texts), message_id=identity, content=UNSET if plain else parts)


# What the agent said and did


def chunks_of(message: UIMessage) -> list[Chunk]:
    """The chunks that would make the parts of a message; of parts that are only kept, none."""
    made: list[Chunk] = []
    for number, part in enumerate(map(as_dict, as_list(message.get("parts")))):
        kind = as_str(part.get("type"))
        rule = _PARTS.get(kind) or (_call if is_call(kind) else _itself if kind.startswith("data-") else None)
        made += rule(part, f"{number}") if rule else []
    return made


def says_more(message: UIMessage) -> bool:
    """Whether a message is to be kept whole beside what was made of it."""
    return leaves(message, MESSAGE) or any(map(_says_more, map(as_dict, as_list(message.get("parts")))))


def _says_more(part: Part) -> bool:
    kind = as_str(part.get("type"))
    if is_call(kind):
        return leaves(part, _CALL) or any(map(calls.says_more, _call(part, "")))
    return leaves(part, _SAID) or kind not in _PARTS


def is_call(kind: str) -> bool:
    """Whether a part of this type is a tool call; the type of a tool that the client knows has its name in it."""
    return kind.startswith("tool-") or kind == "dynamic-tool"


def _step(part: Part, name: str) -> list[Chunk]:
    return [{"type": "start-step"}]


def _itself(part: Part, name: str) -> list[Chunk]:
    return [part]


def _text(part: Part, name: str) -> list[Chunk]:
    kind, metadata = part["type"], {"providerMetadata": part.get("providerMetadata")}
    begun: list[Chunk] = [{"type": f"{kind}-start", "id": name}]
    begun += [{"type": f"{kind}-delta", "id": name, "delta": part["text"]}] if as_str(part.get("text")) else []
    return begun if part.get("state") == "streaming" else [*begun, {"type": f"{kind}-end", "id": name, **metadata}]


_SAID = {"type", "id", "text", "state", "parts"}
_CALL = {
    *("type", "toolCallId", "toolName", "title", "state", "toolMetadata", "input", "rawInput", "inputEncoding"),
    *("output", "preliminary", "errorText", "approval"),
}
_KEPT = ("toolCallId", "title", "toolMetadata", "providerExecuted")
_METADATA = {"callProviderMetadata": "providerMetadata", "inputEncoding": "inputEncoding"}


def _call(part: Part, name: str) -> list[Chunk]:
    """A call, from its arguments to its end, as far as it came."""
    kept = {key: part[key] for key in _KEPT if part.get(key) is not None}
    kept |= {new: part[old] for old, new in _METADATA.items() if part.get(old) is not None}
    kept["toolName"] = part.get("toolName") or part["type"].removeprefix("tool-")
    state = part.get("state")
    if state == "input-streaming":
        return _streaming(part, kept)
    given = {"input": part["input"]} if part.get("input") is not None else {}
    if not given and "rawInput" in part:
        given = {"input": part["rawInput"]}  # what the model wrote, where the tool does not take it
    ended = _ENDS.get(as_str(state))
    return [
        {**kept, **given, "type": "tool-input-available"},
        *_asked(part, kept),
        *([{**kept, **ended(part)}] if ended else []),
    ]


def _streaming(part: Part, kept: Chunk) -> list[Chunk]:
    so_far = part.get("rawInput")
    begun: list[Chunk] = [{**kept, "type": "tool-input-start"}]
    if not isinstance(so_far, str) or not so_far:
        return begun
    return [*begun, {"type": "tool-input-delta", "toolCallId": kept.get("toolCallId"), "inputTextDelta": so_far}]


_QUESTION = {"descriptor": "approvalDescriptor", "requestReason": "reason", "signature": "signature"}


def _asked(part: Part, kept: Chunk) -> Iterator[Chunk]:
    """The request for approval that a part remembers, and its answer."""
    approval, named = as_dict(part.get("approval")), {"toolCallId": kept.get("toolCallId")}
    if not approval:
        return
    named["approvalId"] = approval.get("id")
    told = {new: approval[old] for old, new in _QUESTION.items() if old in approval}
    yield {**named, **told, "type": "tool-approval-request"}
    if isinstance(approval.get("approved"), bool):
        answer = {name: approval[name] for name in ("approved", "reason", "isAutomatic") if name in approval}
        yield {**named, **answer, "type": "tool-approval-response"}


def _came_out(part: Part) -> Chunk:
    told = {key: part[key] for key in ("output", "preliminary") if key in part}
    return {"type": "tool-output-available", **told}


_ENDS: dict[str, Callable[[Part], Chunk]] = {
    "output-available": _came_out,
    "output-error": lambda part: {"type": "tool-output-error", "errorText": part.get("errorText")},
    "output-denied": lambda part: {"type": "tool-output-denied"},
}
_PARTS: dict[str, Callable[[Part, str], list[Chunk]]] = {
    **dict.fromkeys(SPOKEN, _text),
    "step-start": _step,
    "steering-message": _itself,
}


# What is only remembered


def remembered(message: UIMessage, format: str) -> list[Event]:
    """A message of a history that nobody streamed: texts without ids, each call as one event.

    The ledger takes it over if it knows nothing yet (S2.11); ids would make news of texts that it has under others.
    """
    if message.get("role") == "user":
        return [user_message(message, "")]
    made: list[Event] = []
    for part in map(as_dict, as_list(message.get("parts"))):
        kind, text = as_str(part.get("type")), as_str(part.get("text"))
        if kind in SPOKEN and text:
            made += [SPOKEN[kind](text=text, chunks="delta"), ev.MessageEnded()]
        elif is_call(kind) and (identity := identifier(part.get("toolCallId"))):
            made.append(_over(part, (Alias(format, identity),)))
    return made


def _over(part: Part, aliases: tuple[Alias, ...]) -> Event:
    """A call of the past, however it ended: nobody goes on with it."""
    said = calls.told(_call(part, "")[0])
    if part.get("state") == "output-available":
        return ev.CallCompleted(aliases=aliases, **said, output=part.get("output", UNSET))
    if part.get("state") == "output-error":
        return ev.CallFailed(aliases=aliases, **said, error=part.get("errorText", UNSET))
    refused = as_dict(part.get("approval")).get("approved") is False
    return ev.CallFailed(aliases=aliases, **said, reason="denied" if refused else RESULT_UNKNOWN)


def turn_of(messages: list[UIMessage]) -> str:
    """The id of the newest prompt, by which its turn is known to whoever reads on."""
    prompts = [identifier(message.get("id")) for message in messages if message.get("role") == "user"]
    return prompts[-1] if prompts else ""
