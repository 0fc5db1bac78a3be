"""Encode `anthropic`: a session as messages that the Messages API always accepts.

Roles alternate, and the user has the first message. The results of an answer's calls are first in the message after it,
all of them. Thoughts are not sent: the API accepts them only with signatures that a log does not store.
"""

from __future__ import annotations

from callslip.formats.json_fields import Fields
from callslip.formats.providers.results import input_of, name_of, result_of
from callslip.formats.providers.rounds import Prompt, Source, rounds

MAX_ID_CHARS = 64
FIRST = "(the conversation begins with the answer)"


def anthropic_history(source: Source) -> list[Fields]:
    """Return the messages of a session, oldest first, without a system prompt, which the caller adds."""
    messages: list[Fields] = []
    for item in rounds(source, MAX_ID_CHARS):
        if isinstance(item, Prompt):
            _add(messages, "user", [_text(item.text)])
            continue
        if not messages:
            _add(messages, "user", [_text(FIRST)])
        blocks = [_text(item.text)] if item.text else []  # The API rejects an empty text.
        results: list[Fields] = []
        for call_id, call in item.calls:
            blocks.append({"type": "tool_use", "id": call_id, "name": name_of(call), "input": input_of(call)})
            result = result_of(call)
            error = {"is_error": True} if result.error else {}
            results.append({"type": "tool_result", "tool_use_id": call_id, "content": result.text, **error})
        _add(messages, "assistant", blocks)
        if results:
            _add(messages, "user", results)
    return messages


def _add(messages: list[Fields], role: str, blocks: list[Fields]) -> None:
    """Add blocks to the last message if it has the same role, else as a new message."""
    if messages and messages[-1]["role"] == role:
        messages[-1]["content"] += blocks
    else:
        messages.append({"role": role, "content": blocks})


def _text(text: str) -> Fields:
    return {"type": "text", "text": text}
