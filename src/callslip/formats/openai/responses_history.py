"""`responses` out: a session as input items that OpenAI's Responses always accepts.

Messages, calls and their results are items of their own; the results of an answer's calls stand directly after them.
What the model thought is not sent: this API takes a thought back only under the id that it gave it itself, next to the
very item that it led to, and a log keeps neither. Items have no ids for the same reason: a call is known by its
`call_id`, on both sides.
"""

from __future__ import annotations

from typing import Any

from callslip.formats.providers.results import Ids, arguments_of, name_of, result_of
from callslip.formats.providers.rounds import Prompt, Round, Source, rounds
from callslip.model.entries import ToolCall

MAX_ID_CHARS = 64

Item = dict[str, Any]


def responses_history(source: Source) -> list[Item]:
    """A session's items, oldest first. Instructions are not among them; they are whoever asks's to add."""
    ids = Ids(MAX_ID_CHARS)
    return [item for one in rounds(source) for item in _items(one, ids)]


def _items(one: Prompt | Round, ids: Ids) -> list[Item]:
    if isinstance(one, Prompt):
        return [_message("user", one.text)]
    named = ids.named(one.calls)
    said = [_message("assistant", one.text)] if one.text else []
    return [
        *said,
        *(_call(identity, call) for identity, call in named),
        *(_result(identity, call) for identity, call in named),
    ]


def _message(role: str, text: str) -> Item:
    return {"type": "message", "role": role, "content": text}


def _call(identity: str, call: ToolCall) -> Item:
    return {"type": "function_call", "call_id": identity, "name": name_of(call), "arguments": arguments_of(call)}


def _result(identity: str, call: ToolCall) -> Item:
    return {"type": "function_call_output", "call_id": identity, "output": result_of(call).text}
