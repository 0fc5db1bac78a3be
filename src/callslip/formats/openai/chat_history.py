"""Encode `openai`: a session as messages that Chat Completions always accepts.

Every call has exactly one result, directly after the message with the call. Ids are those of the session unless the API
rejects one or it occurs twice. Thoughts are not sent: this API has no field for them.
"""

from __future__ import annotations

from typing import Any

from callslip.formats.providers.results import Ids, arguments_of, name_of, result_of
from callslip.formats.providers.rounds import Prompt, Round, Source, rounds
from callslip.model.entries import ToolCall

MAX_ID_CHARS = 40

Message = dict[str, Any]


def chat_history(source: Source) -> list[Message]:
    """Return the messages of a session, oldest first, without a system prompt, which the caller adds."""
    ids = Ids(MAX_ID_CHARS)
    return [message for item in rounds(source) for message in _messages(item, ids)]


def _messages(item: Prompt | Round, ids: Ids) -> list[Message]:
    if isinstance(item, Prompt):
        return [{"role": "user", "content": item.text}]
    answer: Message = {"role": "assistant", "content": item.text or None}
    if not item.calls:
        return [answer]
    calls = ids.named(item.calls)
    answer["tool_calls"] = [_call(call_id, call) for call_id, call in calls]
    return [answer, *(_result(call_id, call) for call_id, call in calls)]


def _call(call_id: str, call: ToolCall) -> Message:
    function = {"name": name_of(call), "arguments": arguments_of(call)}
    return {"id": call_id, "type": "function", "function": function}


def _result(call_id: str, call: ToolCall) -> Message:
    return {"role": "tool", "tool_call_id": call_id, "content": result_of(call).text}
