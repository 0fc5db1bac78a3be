"""What is said: blocks of content as text. Blocks that are not text are kept as they are.

Version 1 streams messages in chunks and does not say whether these are deltas. Draft 2 says that they are, and may tell
a message anew as a whole.
"""

from __future__ import annotations

from typing import Any

from msgspec import UNSET

from callslip.formats.acp.growing import Growing
from callslip.formats.acp.update import DRAFT
from callslip.formats.acp.wire import Message, kept
from callslip.formats.acp.wire import leaves as more_than
from callslip.formats.json_fields import as_dict, as_list, identifier
from callslip.model import events as ev
from callslip.model.events import Event

USER, AGENT, THOUGHT = "user", "agent", "thought"
CHUNKS = {"user_message_chunk": USER, "agent_message_chunk": AGENT, "agent_thought_chunk": THOUGHT}
WHOLE = {"user_message": USER, "agent_message": AGENT, "agent_thought": THOUGHT}
KNOWN_FIELDS = {"sessionUpdate", "content", "messageId"}
PLAIN = {"type", "text"}


def text_of(block: Any) -> str | None:
    """The text of a text block; None for any other block."""
    said = as_dict(block).get("text") if as_dict(block).get("type") == "text" else None
    return said if isinstance(said, str) else None


def joined(blocks: list[Any]) -> str:
    """The texts of a prompt. Neighbours stand on lines of their own; around a mention of something the line goes on."""
    text, after_text = "", False
    for said in map(text_of, blocks):
        text += ("\n" if after_text else "") + said if said is not None else ""
        after_text = said is not None
    return text


def user_message(text: str, blocks: list[Any], message_id: str = "") -> ev.MessageUser:
    """What a person said; `blocks` if there was more to it than its text."""
    return ev.MessageUser(text=text, message_id=message_id, content=blocks or UNSET)


def prompted(params: dict[str, Any]) -> ev.MessageUser:
    """The prompt of a turn."""
    blocks = as_list(params.get("prompt"))
    plain = len(blocks) == 1 and text_of(blocks[0]) is not None
    return user_message(joined(blocks), [] if plain else blocks, identifier(params.get("messageId")))


def delta(who: str, text: str, message_id: str, chunks: ev.Chunks) -> Event:
    """Some of what the agent says or thinks."""
    cls = ev.MessageDelta if who == AGENT else ev.ThoughtDelta
    return cls(text=text, message_id=message_id, chunks=chunks)


def leaves(update: dict[str, Any]) -> bool:
    """Whether a chunk says more than its text, so that it is to be kept whole."""
    return more_than(update, KNOWN_FIELDS) or more_than(as_dict(update.get("content")), PLAIN)


def leaves_whole(update: dict[str, Any]) -> bool:
    """Whether a message that is told as a whole says more than its text."""
    more = [
        block for block in as_list(update.get("content")) if text_of(block) is None or more_than(as_dict(block), PLAIN)
    ]
    return bool(more) or more_than(update, KNOWN_FIELDS)


def item_text(item: Any) -> str | None:
    """The text of an item of a call's content; None for any other item."""
    return text_of(as_dict(item).get("content")) if as_dict(item).get("type") == "content" else None


def leaves_item(item: Any) -> bool:
    """Whether an item of a call's content that is text says more than that; any other is told whole."""
    more = more_than(as_dict(item), {"type", "content"}) or more_than(as_dict(as_dict(item).get("content")), PLAIN)
    return item_text(item) is not None and more


def policy(declared: ev.Chunks | None, version: int) -> ev.Chunks:
    """How chunks are joined (S2.4)."""
    return declared or ("delta" if version >= DRAFT else "auto")


class Speech:
    """All messages of one conversation. `_heard` is what was passed on of those that may be told anew."""

    def __init__(self, chunks: ev.Chunks | None) -> None:
        self._chunks: ev.Chunks | None = chunks
        self._heard: dict[tuple[str, str], Growing] = {}

    def chunk(self, update: dict[str, Any], read: Message) -> list[Event]:
        """A piece of a message. Any other content than text is kept as it came."""
        who, text = CHUNKS[update["sessionUpdate"]], text_of(update.get("content"))
        identity = identifier(update.get("messageId"))
        if text is not None and identity and read.version != 1:
            self._heard.setdefault((who, identity), Growing()).add(text)
        if who == USER:
            said = user_message(text or "", [update.get("content")] if text is None else [], identity)
        elif text is not None:
            said = delta(who, text, identity, policy(self._chunks, read.version))
        else:
            return []
        return [said, *kept(leaves(update), read)]

    def whole(self, update: dict[str, Any], read: Message) -> list[Event]:
        """Draft 2: a message anew. Mostly it is what its chunks have said, or has only grown since."""
        who, identity = WHOLE[update["sessionUpdate"]], identifier(update.get("messageId"))
        if not identity or not isinstance(update.get("content", ...), list | None):
            return []
        blocks = as_list(update["content"])
        told, replaced = self._anew(who, identity, blocks)
        return told + kept(told and (replaced or leaves_whole(update)), read)

    def _anew(self, who: str, identity: str, blocks: list[Any]) -> tuple[list[Event], bool]:
        """What there is to tell, and whether it is told instead of something else."""
        heard, text = self._heard.setdefault((who, identity), Growing()), whole_text(blocks)
        began, rest = bool(heard), heard.become(text)
        if rest is None:
            self._heard[who, identity] = Growing(text)
        if who == USER:
            rich = any(text_of(block) is None for block in blocks)
            news = rest != "" or (rich and not began)
            return [user_message(text, blocks if rich else [], identity)] if news else [], rest is None
        if rest is not None:
            return [delta(who, rest, identity, "delta")] if rest else [], False
        # A text that became empty cannot be shown; what comes next stands for itself.
        return [delta(who, text, identity, "cumulative") if text else ev.MessageEnded(message_id=identity)], True


def whole_text(blocks: list[Any]) -> str:
    """The text of a message that is told as a whole: its pieces as they would have come."""
    return "".join(text_of(block) or "" for block in blocks)
