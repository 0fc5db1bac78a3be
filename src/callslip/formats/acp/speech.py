"""What is said: blocks of content as text. Blocks that are not text are kept as they are."""

from __future__ import annotations

from typing import Any

from msgspec import UNSET

from callslip import events as ev
from callslip.events import Event
from callslip.formats.acp.wire import fields, identifier, items

SPEAKS = ("user_message_chunk", "agent_message_chunk", "agent_thought_chunk")
TAKEN = {"sessionUpdate", "content", "messageId"}
ANNOTATED = {"type", "text"}


def text_of(block: Any) -> str | None:
    """The text of a text block; None for any other block."""
    said = fields(block).get("text") if fields(block).get("type") == "text" else None
    return said if isinstance(said, str) else None


def joined(blocks: list[Any]) -> str:
    """The texts of a prompt. Neighbours stand on lines of their own; around a mention of something the line goes on."""
    text, after_text = "", False
    for said in map(text_of, blocks):
        text += ("\n" if after_text else "") + said if said is not None else ""
        after_text = said is not None
    return text


def user_message(text: str, blocks: list[Any], message_id: str = "") -> Event:
    """What a person said; `blocks` if there was more to it than its text."""
    return ev.MessageUser(text=text, message_id=message_id, content=blocks or UNSET)


def prompted(params: dict[str, Any]) -> Event:
    """The prompt of a turn."""
    blocks = items(params.get("prompt"))
    plain = len(blocks) == 1 and text_of(blocks[0]) is not None
    return user_message(joined(blocks), [] if plain else blocks, identifier(params.get("messageId")))


def spoken(kind: str, update: dict[str, Any], chunks: ev.Chunks) -> Event | None:
    """A chunk of text; None for any other content."""
    text, identity = text_of(update.get("content")), identifier(update.get("messageId"))
    if kind == "user_message_chunk":
        return user_message(text or "", [update.get("content")] if text is None else [], identity)
    if text is None:
        return None
    cls = ev.MessageDelta if kind == "agent_message_chunk" else ev.ThoughtDelta
    return cls(text=text, message_id=identity, chunks=chunks)


def leaves(update: dict[str, Any]) -> bool:
    """Whether a chunk says more than its text, so that it is to be kept whole."""
    more = {**update, **fields(update.get("content"))}
    return any(value is not None for name, value in more.items() if name not in TAKEN | ANNOTATED)
