"""A session as an exchange with a model: messages of the user and rounds of the model, each with its calls.

Texts precede the calls of their round, results follow it. Calls with the same recorded round belong together; without a
recorded round, adjacent calls belong together if none of them had ended before the next began.
"""

from __future__ import annotations

import math
from typing import Any, cast

import msgspec

from callslip.formats.base import Source, snapshot_of
from callslip.model.entries import Message, ToolCall

EMPTY = "(empty message)"
MAX_NAME_CHARS = 200


class Prompt(msgspec.Struct, frozen=True):
    """A message of the user, never empty."""

    text: str


class Round(msgspec.Struct, frozen=True):
    """One answer of the model: its text and its calls. At least one of them is not empty."""

    text: str
    calls: list[ToolCall]


def rounds(source: Source) -> list[Prompt | Round]:
    """Return a session as prompts and rounds."""
    exchange = _Exchange()
    for entry in snapshot_of(source).entries:
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

    def __init__(self) -> None:
        self.texts: list[str] = []
        self._items: list[Prompt | Round] = []
        self._round_texts: list[str] = []
        self._calls: list[ToolCall] = []
        self._open_until = 0.0

    def add_prompt(self, entry: Message) -> None:
        self._flush()
        self._items.append(Prompt(_prompt_text(entry)))

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
            self._items.append(Round("\n\n".join(self._round_texts), self._calls))
        if self.texts:
            self._items.append(Round("\n\n".join(self.texts), []))
        self.texts, self._round_texts, self._calls, self._open_until = [], [], [], 0.0


# Messages of the user


def _prompt_text(entry: Message) -> str:
    """Return the text and the names of attachments: whether the model supports them is unknown here."""
    blocks = cast("list[Any]", entry.blocks) if isinstance(entry.blocks, list) else []
    mentions = [_mention(cast("dict[str, Any]", block)) for block in blocks if isinstance(block, dict)]
    return "\n".join(part for part in (entry.content.strip(), *mentions) if part) or EMPTY


def _mention(block: dict[str, Any]) -> str:
    """Return the kind and name of a block that is not text, and the text inside of it."""
    kind = block.get("type")
    if not isinstance(kind, str) or kind in ("text", "input_text"):
        return ""  # The text of the message includes it.
    inner: Any = block.get("resource")
    fields = cast("dict[str, Any]", inner) if isinstance(inner, dict) else block
    keys = ("name", "title", "uri", "filename", "mimeType")
    name = next((fields[key] for key in keys if _is_short(fields.get(key))), "")
    body = fields.get("text")
    return f"[{kind[:MAX_NAME_CHARS]}{': ' if name else ''}{name}]" + (
        f"\n{body}" if isinstance(body, str) and body else ""
    )


def _is_short(value: Any) -> bool:
    return isinstance(value, str) and 0 < len(value) <= MAX_NAME_CHARS
