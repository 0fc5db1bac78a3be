"""What a chat client posts, read into one shape: the prompt, or the person's answers to calls that wait."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
from msgspec import UNSET

from callslip.errors import InvalidInputError
from callslip.formats.json_fields import as_dict, as_list, as_str, identifier
from callslip.model import codec


class Decision(msgspec.Struct):
    """A person's answer to a request for approval, perhaps with other arguments."""

    approval: str
    approved: bool
    reason: str = ""
    input: Any = UNSET


class Result(msgspec.Struct):
    """What a tool that runs in the client came to."""

    call: str
    output: Any = None
    error: str = ""


class ChatRequest(msgspec.Struct):
    """One request to go on with a chat.

    `name` is how the same prompt is known when it comes twice; `again` asks for another answer to one that was
    answered. A client that cannot say so `repeats`: the same prompt after the answer means that it wants another.
    """

    chat: str
    messages: list[Any]
    message: dict[str, Any] = {}
    prompt: str = ""
    content: Any = UNSET
    run: str = ""
    name: str = ""
    again: bool = False
    repeats: bool = False
    decisions: list[Decision] = []
    results: list[Result] = []

    @property
    def asks(self) -> bool:
        """Whether a person said something that is to be answered."""
        return self.message.get("role") == "user" and not self.decisions

    @property
    def said(self) -> str:
        """The id of the person's message, as the client gave it."""
        return identifier(self.message.get("id"))


def read(format: str, body: Any) -> ChatRequest:
    """A request in a format, or Refused with what is missing."""
    return READ[format](as_dict(body))


def _begun(told: dict[str, Any], name: str) -> ChatRequest:
    """The chat, its messages, and the last of them if a person said it."""
    chat, messages = told.get(name), told.get("messages")
    if not isinstance(chat, str) or not chat:
        raise InvalidInputError(name, "names no chat")
    if not isinstance(messages, list) or not messages:
        raise InvalidInputError("messages", "is no list of messages")
    last = as_dict(as_list(told.get("messages"))[-1])
    if last.get("role") not in _ROLES:
        raise InvalidInputError("messages", f"ends with a message of the role {as_str(last.get('role'))!r}")
    posted = ChatRequest(chat, as_list(told.get("messages")), last)
    if posted.asks:
        posted.prompt, posted.content = _text(last), _content(last)
    return posted


_ROLES = ("user", "assistant", "tool", "reasoning")


def _text(message: dict[str, Any]) -> str:
    """The text of a message: of its parts, or of its content, whether that is a text or a list of parts."""
    parts = [as_dict(part) for part in as_list(message.get("parts") or message.get("content"))]
    texts = [part["text"] for part in parts if part.get("type") == "text" and isinstance(part.get("text"), str)]
    return "\n".join(texts) if texts else as_str(message.get("content"))


def _content(message: dict[str, Any]) -> Any:
    """The parts of a message, if there is more than text among them."""
    parts = [
        *as_list(message.get("parts") or message.get("content")),
        *as_list(message.get("experimental_attachments")),
    ]
    more = any(as_dict(part).get("type") != "text" for part in parts)
    return [_block(as_dict(part)) for part in parts] if more else UNSET


def _block(part: dict[str, Any]) -> dict[str, Any]:
    """A part; a file that comes inside its address as every format tells it."""
    media, url = part.get("mediaType") or part.get("contentType"), as_str(part.get("url"))
    head, found, data = url.partition(";base64,")
    if not isinstance(media, str) or not found or not head.startswith("data:"):
        return part
    name = as_str(part.get("filename") or part.get("name"))
    return {"type": "file", "mimeType": media, "data": data, **({"name": name} if name else {})}


# The AI SDK


def _named(posted: ChatRequest) -> ChatRequest:
    """Known by what was said: under the same id there may be other words, when it was changed."""
    said = [posted.message.get("id"), posted.prompt, None if posted.content is UNSET else posted.content]
    posted.name = codec.digest(codec.encode(said))
    return posted


def _ui(told: dict[str, Any]) -> ChatRequest:
    posted = _begun(told, "id")
    posted.again = told.get("trigger") == "regenerate-message"
    if posted.asks:
        return _named(posted)
    for part in map(as_dict, as_list(posted.message.get("parts"))):
        _answer(part, posted)
    return posted


def _answer(part: dict[str, Any], posted: ChatRequest) -> None:
    """A call in the client's last message that the person decided on, or whose tool ran in the client."""
    approval = as_dict(part.get("approval"))
    state, call = part.get("state"), as_str(part.get("toolCallId"))
    if state == "approval-responded" and isinstance(approval.get("approved"), bool):
        posted.decisions.append(
            Decision(as_str(approval.get("id")), approval["approved"], as_str(approval.get("reason")))
        )
    elif state == "output-available" and not part.get("preliminary") and call:
        posted.results.append(Result(call, part.get("output")))
    elif state == "output-error" and call:
        posted.results.append(Result(call, error=as_str(part.get("errorText")) or "the tool failed"))


def _v4(told: dict[str, Any]) -> ChatRequest:
    """Version 4 sends no ids unless it is told to, and asks for another answer with the same request."""
    posted = _begun(told, "id")
    posted.repeats = True
    if posted.asks:
        return _named(posted)
    for part in map(as_dict, as_list(posted.message.get("parts"))):
        tool = as_dict(part.get("toolInvocation"))
        if tool.get("state") == "result" and as_str(tool.get("toolCallId")):
            posted.results.append(Result(as_str(tool.get("toolCallId")), tool.get("result")))
    return posted


# AG-UI


def _ag_ui(told: dict[str, Any]) -> ChatRequest:
    """Every request is a run with a name of its own."""
    posted = _begun(told, "threadId")
    posted.name = posted.run = identifier(told.get("runId"))
    for entry in map(as_dict, as_list(told.get("resume"))):
        payload = as_dict(entry.get("payload"))
        approved = entry.get("status") == "resolved" and payload.get("approved") is not False
        edited = payload.get("editedArgs", UNSET)
        posted.decisions.append(
            Decision(as_str(entry.get("interruptId")), approved, as_str(payload.get("reason")), edited)
        )
    for message in map(as_dict, reversed(posted.messages)):
        if message.get("role") != "tool":
            break
        call, error = as_str(message.get("toolCallId")), as_str(message.get("error"))
        posted.results.append(Result(call, message.get("content"), error))
    return posted


READ: dict[str, Callable[[dict[str, Any]], ChatRequest]] = {
    "ui-v5": _ui,
    "ui-v6": _ui,
    "ui-v7": _ui,
    "vercel-v4": _v4,
    "ag-ui": _ag_ui,
}
