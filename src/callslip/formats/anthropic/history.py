"""Encode `anthropic`: a session as messages that the Messages API always accepts.

Roles alternate, and the user has the first message. The results of an answer's calls are first in the message after it,
all of them. Thoughts are not sent: the API accepts them only with signatures that a log does not store.
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
    """Return the messages of a session, oldest first, without a system prompt, which the caller adds."""
    ids = Ids(MAX_ID_CHARS)
    messages: list[Message] = []
    for item in rounds(source):
        if isinstance(item, Prompt):
            _add(messages, "user", [_text(item.text)])
            continue
        if not messages:
            _add(messages, "user", [_text(FIRST)])
        _add_round(messages, item, ids)
    return messages


def _add_round(messages: list[Message], item: Round, ids: Ids) -> None:
    calls = ids.named(item.calls)
    text = [_text(item.text)] if item.text else []  # The API rejects an empty text.
    _add(messages, "assistant", [*text, *(_call(call_id, call) for call_id, call in calls)])
    if calls:
        _add(messages, "user", [_result(call_id, call) for call_id, call in calls])


def _add(messages: list[Message], role: str, blocks: list[Block]) -> None:
    """Add blocks to the last message if it has the same role, else as a new message."""
    if messages and messages[-1]["role"] == role:
        messages[-1]["content"] += blocks
    else:
        messages.append({"role": role, "content": blocks})


def _text(text: str) -> Block:
    return {"type": "text", "text": text}


def _call(call_id: str, call: ToolCall) -> Block:
    return {"type": "tool_use", "id": call_id, "name": name_of(call), "input": input_of(call)}


def _result(call_id: str, call: ToolCall) -> Block:
    result = result_of(call)
    block: Block = {"type": "tool_result", "tool_use_id": call_id, "content": result.text}
    return {**block, "is_error": True} if result.error else block
