"""A session as an exchange with a model: what people said, and the rounds of the model, each with its calls.

Texts come before the calls of their round, results after it. Which calls were asked for together is known by their
round; where that was not recorded, calls belong together that stand side by side, none of which had ended before.
"""

from __future__ import annotations

import math
from typing import Any, cast

import msgspec

from callslip.formats.base import Source, snapshot_of
from callslip.model.entries import Message, ToolCall

EMPTY = "(empty message)"
SHORT = 200


class Prompt(msgspec.Struct, frozen=True):
    """What a person said. There is always something."""

    text: str


class Round(msgspec.Struct, frozen=True):
    """One answer of the model: what it said, "" for nothing, and its calls. One of both is there."""

    text: str
    calls: list[ToolCall]


def rounds(source: Source) -> list[Prompt | Round]:
    """A session's exchange, from its state, a snapshot of it, or its rendered entries."""
    telling = _Telling()
    for entry in snapshot_of(source).entries:
        if isinstance(entry, ToolCall):
            telling.call(entry)
        elif isinstance(entry, Message) and entry.role == "user":
            telling.prompt(entry)
        elif isinstance(entry, Message) and entry.content.strip():
            telling.texts.append(entry.content.strip())
    return telling.end()


class _Telling:
    """The exchange so far. `texts` wait for the calls that they may belong to.

    Of the round under way: what was said, its calls, and until when one of them had not ended.
    """

    def __init__(self) -> None:
        self.texts: list[str] = []
        self._told: list[Prompt | Round] = []
        self._said: list[str] = []
        self._calls: list[ToolCall] = []
        self._until = 0.0

    def prompt(self, entry: Message) -> None:
        self._flush()
        self._told.append(Prompt(_prompt_text(entry)))

    def call(self, entry: ToolCall) -> None:
        texts, self.texts = self.texts, []
        if not self._goes_on(entry, bool(texts)):
            self._flush()
        self._said += texts
        self._calls.append(entry)
        self._until = max(self._until, entry.end or math.inf)

    def _goes_on(self, entry: ToolCall, spoken: bool) -> bool:
        """Whether a call belongs to the round of the calls before it. `spoken`: there is text between them."""
        if not self._calls:
            return False
        last = self._calls[-1]
        if min(last.iteration, entry.iteration) >= 0:
            return (last.turn, last.iteration) == (entry.turn, entry.iteration)
        return last.turn == entry.turn and not spoken and self._until >= entry.id

    def end(self) -> list[Prompt | Round]:
        self._flush()
        return self._told

    def _flush(self) -> None:
        if self._calls:
            self._told.append(Round("\n\n".join(self._said), self._calls))
        if self.texts:
            self._told.append(Round("\n\n".join(self.texts), []))
        self.texts, self._said, self._calls, self._until = [], [], [], 0.0


# What people said


def _prompt_text(entry: Message) -> str:
    """The text, and what was sent with it by name: whether a model can look at it is not known here."""
    blocks = cast("list[Any]", entry.blocks) if isinstance(entry.blocks, list) else []
    mentions = [_mention(cast("dict[str, Any]", block)) for block in blocks if isinstance(block, dict)]
    return "\n".join(part for part in (entry.content.strip(), *mentions) if part) or EMPTY


def _mention(block: dict[str, Any]) -> str:
    """A block that is no text: what it is, what it is called, and the text inside of it if there is one."""
    kind = block.get("type")
    if not isinstance(kind, str) or kind in ("text", "input_text"):
        return ""  # The texts among the blocks are the message's own text.
    inner: Any = block.get("resource")
    told = cast("dict[str, Any]", inner) if isinstance(inner, dict) else block
    name = next((told[key] for key in ("name", "title", "uri", "filename", "mimeType") if _is_short(told.get(key))), "")
    body = told.get("text")
    return f"[{kind[:SHORT]}{': ' if name else ''}{name}]" + (f"\n{body}" if isinstance(body, str) and body else "")


def _is_short(value: Any) -> bool:
    return isinstance(value, str) and 0 < len(value) <= SHORT
