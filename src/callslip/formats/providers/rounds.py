"""A session as an exchange with a model: messages of the user and rounds of the model, each with its calls.

Texts precede the calls of their round, results follow it. Calls with the same recorded round belong together; without a
recorded round, adjacent calls belong together if none of them had ended before the next began.
"""

from __future__ import annotations

import math

import msgspec

from callslip.formats.base import Source, conversation_of
from callslip.formats.json_fields import Fields, as_dict, as_list, as_str
from callslip.formats.providers.results import Ids
from callslip.model.entries import Message, ToolCall

EMPTY = "(empty message)"
MAX_NAME_CHARS = 200


class Prompt(msgspec.Struct, frozen=True):
    """A message of the user, never empty."""

    text: str


class Round(msgspec.Struct, frozen=True):
    """One answer of the model: its text and its calls with their ids. At least one of them is not empty."""

    text: str
    calls: list[tuple[str, ToolCall]]


def rounds(source: Source, max_id_chars: int) -> list[Prompt | Round]:
    """Return a session as prompts and rounds. The ids of calls have at most `max_id_chars` characters."""
    exchange = _Exchange(Ids(max_id_chars))
    for entry in conversation_of(source).entries:
        if isinstance(entry, ToolCall):
            exchange.add_call(entry)
        elif isinstance(entry, Message) and entry.role == "user":
            exchange.add_prompt(entry)
        elif isinstance(entry, Message) and entry.content.strip():
            exchange.texts.append(entry.content.strip())
    return exchange.end()


class _Exchange:
    """The exchange so far. `texts` may belong to the calls that follow.

    `_round_texts` and `_calls` belong to the current round, which has an open call until `_open_until`.
    """

    def __init__(self, ids: Ids) -> None:
        self.texts: list[str] = []
        self._ids = ids
        self._items: list[Prompt | Round] = []
        self._round_texts: list[str] = []
        self._calls: list[ToolCall] = []
        self._open_until = 0.0

    def add_prompt(self, entry: Message) -> None:
        self._flush()
        # Whether the model supports attachments is unknown here, so they are only named.
        blocks = [as_dict(block) for block in as_list(entry.blocks)]
        parts = (entry.content.strip(), *map(_mention, blocks))
        self._items.append(Prompt("\n".join(part for part in parts if part) or EMPTY))

    def add_call(self, entry: ToolCall) -> None:
        texts, self.texts = self.texts, []
        if not self._is_same_round(entry, bool(texts)):
            self._flush()
        self._round_texts += texts
        self._calls.append(entry)
        self._open_until = max(self._open_until, entry.end or math.inf)

    def _is_same_round(self, entry: ToolCall, has_text: bool) -> bool:
        """Return whether a call belongs to the current round. `has_text`: there is text before it."""
        if not self._calls:
            return False
        last = self._calls[-1]
        if min(last.iteration, entry.iteration) >= 0:
            return (last.turn, last.iteration) == (entry.turn, entry.iteration)
        return last.turn == entry.turn and not has_text and self._open_until >= entry.id

    def end(self) -> list[Prompt | Round]:
        self._flush()
        return self._items

    def _flush(self) -> None:
        if self._calls:
            calls = [(self._ids.next(call), call) for call in self._calls]
            self._items.append(Round("\n\n".join(self._round_texts), calls))
        if self.texts:
            self._items.append(Round("\n\n".join(self.texts), []))
        self.texts, self._round_texts, self._calls, self._open_until = [], [], [], 0.0


def _mention(block: Fields) -> str:
    """Return the kind and name of a block that is not text, and the text inside of it."""
    kind = block.get("type")
    if not isinstance(kind, str) or kind in ("text", "input_text"):
        return ""  # The text of the message includes it.
    fields = as_dict(block["resource"]) if isinstance(block.get("resource"), dict) else block
    names = [as_str(fields.get(key)) for key in ("name", "title", "uri", "filename", "mimeType")]
    name = next((name for name in names if 0 < len(name) <= MAX_NAME_CHARS), "")
    body = as_str(fields.get("text"))
    return f"[{kind[:MAX_NAME_CHARS]}{': ' if name else ''}{name}]" + (f"\n{body}" if body else "")
