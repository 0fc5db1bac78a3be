"""Encode `openai` and `responses`: a session as messages of Chat Completions, or as input items of Responses.

The API always accepts them: every call has exactly one result, directly after the calls of its answer, and ids are
those of the session unless the API rejects one or it occurs twice. Thoughts are not sent: Chat Completions has no field
for them, and Responses accepts one only with its original id next to the item that it led to. A log stores neither, so
items have no ids, and the `call_id` connects a call with its result.
"""

from __future__ import annotations

from callslip.formats.json_fields import Fields
from callslip.formats.providers.results import arguments_of, name_of, result_of
from callslip.formats.providers.rounds import Prompt, Source, rounds

MAX_CHAT_ID_CHARS, MAX_ITEM_ID_CHARS = 40, 64


def chat_history(source: Source) -> list[Fields]:
    """Return the messages of a session, oldest first, without a system prompt, which the caller adds."""
    messages: list[Fields] = []
    for item in rounds(source, MAX_CHAT_ID_CHARS):
        if isinstance(item, Prompt):
            messages.append({"role": "user", "content": item.text})
            continue
        calls: list[Fields] = []
        results: list[Fields] = []
        for call_id, call in item.calls:
            function = {"name": name_of(call), "arguments": arguments_of(call)}
            calls.append({"id": call_id, "type": "function", "function": function})
            results.append({"role": "tool", "tool_call_id": call_id, "content": result_of(call).text})
        answer = {"role": "assistant", "content": item.text or None}
        messages += [{**answer, "tool_calls": calls} if calls else answer, *results]
    return messages


def responses_history(source: Source) -> list[Fields]:
    """Return the items of a session, oldest first, without instructions, which the caller adds."""
    items: list[Fields] = []
    for exchange in rounds(source, MAX_ITEM_ID_CHARS):
        is_prompt = isinstance(exchange, Prompt)
        if exchange.text:
            role = "user" if is_prompt else "assistant"
            items.append({"type": "message", "role": role, "content": exchange.text})
        calls = [] if is_prompt else exchange.calls
        for call_id, call in calls:
            fields = {"call_id": call_id, "name": name_of(call), "arguments": arguments_of(call)}
            items.append({"type": "function_call", **fields})
        for call_id, call in calls:
            items.append({"type": "function_call_output", "call_id": call_id, "output": result_of(call).text})
    return items
