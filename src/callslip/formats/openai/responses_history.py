"""Encode `responses`: a session as input items that OpenAI's Responses API always accepts.

Messages, calls and results are separate items; the results of an answer's calls follow directly after them. Thoughts
are not sent: this API accepts one only with its original id next to the item that it led to, and a log stores neither.
Items have no ids for the same reason: the `call_id` connects a call with its result.
"""

from __future__ import annotations

from typing import Any

from callslip.formats.providers.results import Ids, arguments_of, name_of, result_of
from callslip.formats.providers.rounds import Prompt, Round, Source, rounds
from callslip.model.entries import ToolCall

MAX_ID_CHARS = 64

Item = dict[str, Any]


def responses_history(source: Source) -> list[Item]:
    """Return the items of a session, oldest first, without instructions, which the caller adds."""
    ids = Ids(MAX_ID_CHARS)
    return [item for exchange in rounds(source) for item in _items(exchange, ids)]


def _items(exchange: Prompt | Round, ids: Ids) -> list[Item]:
    if isinstance(exchange, Prompt):
        return [_message("user", exchange.text)]
    calls = ids.named(exchange.calls)
    text = [_message("assistant", exchange.text)] if exchange.text else []
    return [
        *text,
        *(_call(call_id, call) for call_id, call in calls),
        *(_result(call_id, call) for call_id, call in calls),
    ]


def _message(role: str, text: str) -> Item:
    return {"type": "message", "role": role, "content": text}


def _call(call_id: str, call: ToolCall) -> Item:
    return {"type": "function_call", "call_id": call_id, "name": name_of(call), "arguments": arguments_of(call)}


def _result(call_id: str, call: ToolCall) -> Item:
    return {"type": "function_call_output", "call_id": call_id, "output": result_of(call).text}
