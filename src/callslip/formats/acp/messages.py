"""Messages: blocks of content as text. Blocks that are not text are stored as they are.

Version 1 streams messages in chunks and does not define whether these are deltas. Draft 2 defines that they are, and
may send a full message again.
"""

from __future__ import annotations

from typing import Any

from msgspec import UNSET

from callslip.formats.acp.growing_text import GrowingText
from callslip.formats.acp.update import DRAFT, parent_of
from callslip.formats.acp.wire import Message, raw_message_if
from callslip.formats.json_fields import as_dict, as_list, has_other_fields, identifier
from callslip.model import events as ev
from callslip.model.events import Event

USER, AGENT, THOUGHT = "user", "agent", "thought"
CHUNKS = {"user_message_chunk": USER, "agent_message_chunk": AGENT, "agent_thought_chunk": THOUGHT}
FULL_MESSAGES = {"user_message": USER, "agent_message": AGENT, "agent_thought": THOUGHT}
KNOWN_FIELDS = {"sessionUpdate", "content", "messageId"}
TEXT_FIELDS = {"type", "text"}


def block_text(block: Any) -> str | None:
    """Return the text of a text block; None for any other block."""
    text = as_dict(block).get("text") if as_dict(block).get("type") == "text" else None
    return text if isinstance(text, str) else None


def join_texts(blocks: list[Any]) -> str:
    """Return the text of a prompt. A line break separates adjacent texts; other blocks are part of the line."""
    joined, is_after_text = "", False
    for text in map(block_text, blocks):
        joined += ("\n" if is_after_text else "") + text if text is not None else ""
        is_after_text = text is not None
    return joined


def message_text(blocks: list[Any]) -> str:
    """Return the text of a full message: its pieces joined as chunks would be."""
    return "".join(block_text(block) or "" for block in blocks)


def user_message(text: str, blocks: list[Any], message_id: str = "") -> ev.MessageUser:
    """Return a message of the user, with `blocks` if it has more than text."""
    return ev.MessageUser(text=text, message_id=message_id, content=blocks or UNSET)


def rich_blocks(blocks: list[Any]) -> list[Any]:
    """Return the blocks of a message that has more than text, else []."""
    return blocks if any(block_text(block) is None for block in blocks) else []


def prompt_message(params: dict[str, Any]) -> ev.MessageUser:
    """Return the prompt of a turn."""
    blocks = as_list(params.get("prompt"))
    is_plain = len(blocks) == 1 and block_text(blocks[0]) is not None
    return user_message(join_texts(blocks), [] if is_plain else blocks, identifier(params.get("messageId")))


def agent_delta(sender: str, text: str, message_id: str, chunks: ev.Chunks) -> Event:
    """Return a piece of a message or thought of the agent."""
    event_type = ev.MessageDelta if sender == AGENT else ev.ThoughtDelta
    return event_type(text=text, message_id=message_id, chunks=chunks)


def chunk_needs_raw(update: dict[str, Any]) -> bool:
    """Return whether a chunk has more than its text."""
    return has_other_fields(update, _known_fields(update)) or has_other_fields(
        as_dict(update.get("content")), TEXT_FIELDS
    )


def _known_fields(update: dict[str, Any]) -> set[str]:
    """Return the fields that events carry: metadata only if it is nothing but the parent of a sub-agent."""
    parent = parent_of(update)
    is_parent = bool(parent) and update.get("_meta") == {"claudeCode": {"parentToolUseId": parent}}
    return KNOWN_FIELDS | {"_meta"} if is_parent else KNOWN_FIELDS


def message_needs_raw(update: dict[str, Any]) -> bool:
    """Return whether a full message has more than its text."""
    return has_other_fields(update, KNOWN_FIELDS) or any(
        block_text(block) is None or has_other_fields(as_dict(block), TEXT_FIELDS)
        for block in as_list(update.get("content"))
    )


def item_text(item: Any) -> str | None:
    """Return the text of an item of a call's content; None for any other item."""
    return block_text(as_dict(item).get("content")) if as_dict(item).get("type") == "content" else None


def item_needs_raw(item: Any) -> bool:
    """Return whether a text item of a call's content has more than its text; events carry any other item in full."""
    fields = as_dict(item)
    has_more = has_other_fields(fields, {"type", "content"}) or has_other_fields(
        as_dict(fields.get("content")), TEXT_FIELDS
    )
    return item_text(item) is not None and has_more


def end(update: dict[str, Any], message: Message) -> list[Event]:
    """Read the end of a message, which some agents send."""
    return [ev.MessageEnded(message_id=identifier(update.get("messageId")))]


def chunk_policy(declared: ev.Chunks | None, version: int) -> ev.Chunks:
    """Return how chunks are joined."""
    return declared or ("delta" if version >= DRAFT else "auto")


class Messages:
    """All messages of one conversation. `_sent` is what was passed on of those that may be sent again in full."""

    def __init__(self, chunks: ev.Chunks | None) -> None:
        self._chunks: ev.Chunks | None = chunks
        self._sent: dict[tuple[str, str], GrowingText] = {}

    def chunk(self, update: dict[str, Any], message: Message) -> list[Event]:
        """Read a piece of a message. Content other than text is stored as it is."""
        sender, text = CHUNKS[update["sessionUpdate"]], block_text(update.get("content"))
        message_id = identifier(update.get("messageId"))
        if text is not None and message_id and message.version != 1:
            self._sent.setdefault((sender, message_id), GrowingText()).add(text)
        if sender == USER:
            event: Event = user_message(text or "", [update.get("content")] if text is None else [], message_id)
        elif text is not None:
            event = agent_delta(sender, text, message_id, chunk_policy(self._chunks, message.version))
        else:
            return []
        return [event, *raw_message_if(chunk_needs_raw(update), message)]

    def full_message(self, update: dict[str, Any], message: Message) -> list[Event]:
        """Read a full message of draft 2. Usually it equals its chunks or only extends them."""
        sender, message_id = FULL_MESSAGES[update["sessionUpdate"]], identifier(update.get("messageId"))
        if not message_id or not isinstance(update.get("content", ...), list | None):
            return []
        blocks = as_list(update["content"])
        events, is_replaced = self._update_message(sender, message_id, blocks)
        return events + raw_message_if(events and (is_replaced or message_needs_raw(update)), message)

    def _update_message(self, sender: str, message_id: str, blocks: list[Any]) -> tuple[list[Event], bool]:
        """Return the events of a full message and whether it replaces a different text."""
        sent, text = self._sent.setdefault((sender, message_id), GrowingText()), message_text(blocks)
        had_text, rest = bool(sent), sent.extend_to(text)
        if rest is None:
            self._sent[sender, message_id] = GrowingText(text)
        if sender == USER:
            rich = rich_blocks(blocks)
            is_new = rest != "" or (bool(rich) and not had_text)
            return [user_message(text, rich, message_id)] if is_new else [], rest is None
        if rest is not None:
            return [agent_delta(sender, rest, message_id, "delta")] if rest else [], False
        # An empty text cannot be shown; the next message is a new one.
        replacement = agent_delta(sender, text, message_id, "cumulative") if text else None
        return [replacement or ev.MessageEnded(message_id=message_id)], True
