"""Define the messages of the AI SDK 4, as the client of npm `ai` 4.3.19 reads them.

`createdAt` is a text in JSON. Fields that are UNSET are left out.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import msgspec
from msgspec import UNSET, Raw, UnsetType, field

from callslip.model import codec


class _Part(msgspec.Struct, gc=False, tag_field="type", rename="camel"): ...


class StepStart(_Part, tag="step-start", gc=False):
    """The client adds this part where a step begins in the stream."""


class Text(_Part, tag="text", gc=False):
    text: str | Raw


class Reasoning(_Part, tag="reasoning", gc=False):
    """The client reads `details`, pages show `reasoning`."""

    reasoning: str | Raw
    details: list[Text]


class Invocation(msgspec.Struct, gc=False, rename="camel"):
    """A call. `step` is the number of its step in the message. A `partial-call` has no arguments yet."""

    state: str
    step: int
    tool_call_id: str
    tool_name: str
    args: Any = UNSET
    result: Any = UNSET


class ToolInvocation(_Part, tag="tool-invocation", gc=False):
    tool_invocation: Invocation


class CallNote(msgspec.Struct, gc=False, rename="camel"):
    """The annotation of a call. All fields but the first three are optional."""

    tool_call_id: str
    validated: str
    is_complete: bool
    approval_id: str | UnsetType = UNSET
    exit_status: Any = UNSET
    truncated: bool | UnsetType = UNSET
    size: int | UnsetType = UNSET
    blob: str | UnsetType = UNSET


class MessageNote(msgspec.Struct, gc=False, rename="camel"):
    message_id: str
    is_complete: bool


Part: TypeAlias = StepStart | Text | Reasoning | ToolInvocation
Note: TypeAlias = CallNote | MessageNote


class Attachment(msgspec.Struct, gc=False, rename="camel"):
    """A file of a user message, as a data URL."""

    content_type: str
    url: str


class Message(msgspec.Struct, gc=False, rename="camel"):
    id: str
    role: str
    created_at: str | None
    content: str | Raw
    parts: list[Part]
    annotations: list[Note]
    attachments: list[Attachment] | UnsetType = field(name="experimental_attachments", default=UNSET)


def plain(messages: list[Message]) -> list[dict[str, Any]]:
    """Return messages as JSON values that share nothing with their sources."""
    try:
        return _builtins(messages)
    except (RecursionError, TypeError, ValueError):  # arguments or results that are not JSON: too deep, keys not text
        for call in [part.tool_invocation for m in messages for part in m.parts if isinstance(part, ToolInvocation)]:
            call.args = codec.to_json(call.args)
            call.result = call.result if call.result is UNSET else codec.to_json(call.result)
        return _builtins(messages)


def _builtins(messages: list[Message]) -> list[dict[str, Any]]:
    return msgspec.to_builtins(messages, str_keys=True, enc_hook=codec.to_json)
