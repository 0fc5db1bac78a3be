"""`anthropic` out: a session as messages that the Messages API always accepts.

Roles alternate, and a person speaks first. The results of an answer's calls stand first in the message after it, all of
them. What the model thought is not sent: the API takes thoughts back only with signatures that a log does not keep.
"""

from __future__ import annotations

from typing import Any

from callslip.formats.providers.results import Ids, input_of, name_of, result_of
from callslip.formats.providers.rounds import Prompt, Round, Source, rounds
from callslip.model.entries import ToolCall

MAX_ID_CHARS = 64
FIRST = "(the conversation begins with the answer)"

Message = dict[str, Any]
Block = dict[str, Any]


def anthropic_history(source: Source) -> list[Message]:
    """A session's messages, oldest first. Instructions are not among them; they are whoever asks's to add."""
    ids = Ids(MAX_ID_CHARS)
    messages: list[Message] = []
    for one in rounds(source):
        if isinstance(one, Prompt):
            _add(messages, "user", [_text(one.text)])
            continue
        if not messages:
            _add(messages, "user", [_text(FIRST)])
        _answer(messages, one, ids)
    return messages


def _answer(messages: list[Message], one: Round, ids: Ids) -> None:
    named = [(ids.next(call), call) for call in one.calls]
    _add(messages, "assistant", [*_said(one.text), *(_call(identity, call) for identity, call in named)])
    if named:
        _add(messages, "user", [_result(identity, call) for identity, call in named])


def _add(messages: list[Message], role: str, blocks: list[Block]) -> None:
    """Add blocks to the conversation; who goes on speaking has one message for it."""
    if messages and messages[-1]["role"] == role:
        messages[-1]["content"] += blocks
    else:
        messages.append({"role": role, "content": blocks})


def _said(text: str) -> list[Block]:
    """A text; one that is empty is refused, so that it is left out."""
    return [_text(text)] if text else []


def _text(text: str) -> Block:
    return {"type": "text", "text": text}


def _call(identity: str, call: ToolCall) -> Block:
    return {"type": "tool_use", "id": identity, "name": name_of(call), "input": input_of(call)}


def _result(identity: str, call: ToolCall) -> Block:
    result = result_of(call)
    told: Block = {"type": "tool_result", "tool_use_id": identity, "content": result.text}
    return {**told, "is_error": True} if result.error else told
