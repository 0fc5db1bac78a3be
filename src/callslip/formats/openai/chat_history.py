"""`openai` out: a session as messages that Chat Completions always accepts.

Every call has exactly one result, directly after the message that calls. Ids are those of the session, but for such as
the API refuses or a request cannot hold twice. What the model thought is not sent: this API has no place for it.
"""

from __future__ import annotations

from typing import Any

from callslip.formats.providers.results import Ids, arguments_of, name_of, result_of
from callslip.formats.providers.rounds import Prompt, Round, Source, rounds
from callslip.model.entries import ToolCall

MAX_ID_CHARS = 40

Message = dict[str, Any]


def chat_history(source: Source) -> list[Message]:
    """A session's messages, oldest first. Instructions are not among them; they are whoever asks's to add."""
    ids = Ids(MAX_ID_CHARS)
    return [message for one in rounds(source) for message in _messages(one, ids)]


def _messages(one: Prompt | Round, ids: Ids) -> list[Message]:
    if isinstance(one, Prompt):
        return [{"role": "user", "content": one.text}]
    answer: Message = {"role": "assistant", "content": one.text or None}
    if not one.calls:
        return [answer]
    named = ids.named(one.calls)
    answer["tool_calls"] = [_call(identity, call) for identity, call in named]
    return [answer, *(_result(identity, call) for identity, call in named)]


def _call(identity: str, call: ToolCall) -> Message:
    function = {"name": name_of(call), "arguments": arguments_of(call)}
    return {"id": identity, "type": "function", "function": function}


def _result(identity: str, call: ToolCall) -> Message:
    return {"role": "tool", "tool_call_id": identity, "content": result_of(call).text}
