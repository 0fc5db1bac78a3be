"""Parse the requests of chat clients: a prompt, or the user's answers to calls that wait."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
from msgspec import UNSET

from callslip.errors import InvalidInputError
from callslip.formats.json_fields import as_dict, as_list, as_str, identifier
from callslip.model import codec


class Decision(msgspec.Struct):
    """A user's answer to an approval, perhaps with edited arguments."""

    approval: str
    approved: bool
    reason: str = ""
    input: Any = UNSET


class Result(msgspec.Struct):
    """The result of a tool that ran in the client."""

    call: str
    output: Any = None
    error: str = ""


class ChatRequest(msgspec.Struct):
    """A request to continue a chat.

    `name` identifies a prompt that is posted twice. `regenerate` requests another answer to an answered prompt. A
    client that cannot send it `regenerates_by_repeat`: it posts the prompt again after its answer.
    """

    chat: str
    messages: list[Any]
    message: dict[str, Any] = {}
    prompt: str = ""
    content: Any = UNSET
    run: str = ""
    name: str = ""
    regenerate: bool = False
    regenerates_by_repeat: bool = False
    decisions: list[Decision] = []
    results: list[Result] = []

    @property
    def has_prompt(self) -> bool:
        """Whether the last message is a user's prompt."""
        return self.message.get("role") == "user" and not self.decisions

    @property
    def message_id(self) -> str:
        """The client's id of the user's message."""
        return identifier(self.message.get("id"))


def parse(format: str, body: Any) -> ChatRequest:
    """Return a request of a format, or raise InvalidInputError with what is missing."""
    return PARSERS[format](as_dict(body))


def _parse_messages(body: dict[str, Any], id_field: str) -> ChatRequest:
    """Return the chat, its messages, and the last one if it is a user's."""
    chat, messages = body.get(id_field), body.get("messages")
    if not isinstance(chat, str) or not chat:
        raise InvalidInputError(id_field, "must be the id of a chat")
    if not isinstance(messages, list) or not messages:
        raise InvalidInputError("messages", "must be a list with at least one message")
    last = as_dict(as_list(body.get("messages"))[-1])
    if last.get("role") not in _ROLES:
        raise InvalidInputError("messages", f"unknown role {as_str(last.get('role'))!r} in the last message")
    request = ChatRequest(chat, as_list(body.get("messages")), last)
    if request.has_prompt:
        request.prompt, request.content = _text(last), _content(last)
    return request


_ROLES = ("user", "assistant", "tool", "reasoning")


def _text(message: dict[str, Any]) -> str:
    """Return the text of a message, from its parts or its content, which may be a text or a list of parts."""
    parts = [as_dict(part) for part in as_list(message.get("parts") or message.get("content"))]
    texts = [part["text"] for part in parts if part.get("type") == "text" and isinstance(part.get("text"), str)]
    return "\n".join(texts) if texts else as_str(message.get("content"))


def _content(message: dict[str, Any]) -> Any:
    """Return the parts of a message if not all of them are text."""
    parts = [
        *as_list(message.get("parts") or message.get("content")),
        *as_list(message.get("experimental_attachments")),
    ]
    is_text = all(as_dict(part).get("type") == "text" for part in parts)
    return UNSET if is_text else [_block(as_dict(part)) for part in parts]


def _block(part: dict[str, Any]) -> dict[str, Any]:
    """Return a part; a file in a data URL becomes a block that every format knows."""
    media, url = part.get("mediaType") or part.get("contentType"), as_str(part.get("url"))
    head, separator, data = url.partition(";base64,")
    if not isinstance(media, str) or not separator or not head.startswith("data:"):
        return part
    name = as_str(part.get("filename") or part.get("name"))
    return {"type": "file", "mimeType": media, "data": data, **({"name": name} if name else {})}


# The AI SDK


def _set_name(request: ChatRequest) -> ChatRequest:
    """Identify a prompt by its id and content: an edited message keeps its id."""
    content = None if request.content is UNSET else request.content
    request.name = codec.digest(codec.encode([request.message.get("id"), request.prompt, content]))
    return request


def _parse_ui(body: dict[str, Any]) -> ChatRequest:
    request = _parse_messages(body, "id")
    request.regenerate = body.get("trigger") == "regenerate-message"
    if request.has_prompt:
        return _set_name(request)
    for part in map(as_dict, as_list(request.message.get("parts"))):
        _add_answer(part, request)
    return request


def _add_answer(part: dict[str, Any], request: ChatRequest) -> None:
    """Add the decision or the result of a call in the client's last message."""
    approval = as_dict(part.get("approval"))
    state, call = part.get("state"), as_str(part.get("toolCallId"))
    if state == "approval-responded" and isinstance(approval.get("approved"), bool):
        request.decisions.append(
            Decision(as_str(approval.get("id")), approval["approved"], as_str(approval.get("reason")))
        )
    elif state == "output-available" and not part.get("preliminary") and call:
        request.results.append(Result(call, part.get("output")))
    elif state == "output-error" and call:
        request.results.append(Result(call, error=as_str(part.get("errorText")) or "the tool failed"))


def _parse_v4(body: dict[str, Any]) -> ChatRequest:
    """Parse a request of version 4, which by default sends no ids and repeats a request to get another answer."""
    request = _parse_messages(body, "id")
    request.regenerates_by_repeat = True
    if request.has_prompt:
        return _set_name(request)
    for part in map(as_dict, as_list(request.message.get("parts"))):
        tool = as_dict(part.get("toolInvocation"))
        if tool.get("state") == "result" and as_str(tool.get("toolCallId")):
            request.results.append(Result(as_str(tool.get("toolCallId")), tool.get("result")))
    return request


# AG-UI


def _parse_ag_ui(body: dict[str, Any]) -> ChatRequest:
    """Parse an AG-UI request. Each one is a run with its own id."""
    request = _parse_messages(body, "threadId")
    request.name = request.run = identifier(body.get("runId"))
    for entry in map(as_dict, as_list(body.get("resume"))):
        payload = as_dict(entry.get("payload"))
        approved = entry.get("status") == "resolved" and payload.get("approved") is not False
        edited = payload.get("editedArgs", UNSET)
        request.decisions.append(
            Decision(as_str(entry.get("interruptId")), approved, as_str(payload.get("reason")), edited)
        )
    for message in map(as_dict, reversed(request.messages)):
        if message.get("role") != "tool":
            break
        call, error = as_str(message.get("toolCallId")), as_str(message.get("error"))
        request.results.append(Result(call, message.get("content"), error))
    return request


PARSERS: dict[str, Callable[[dict[str, Any]], ChatRequest]] = {
    "ui-v5": _parse_ui,
    "ui-v6": _parse_ui,
    "ui-v7": _parse_ui,
    "vercel-v4": _parse_v4,
    "ag-ui": _parse_ag_ui,
}
