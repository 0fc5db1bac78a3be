"""What the session file of an agent adds to a message that was recorded live until its recorder was killed."""

from __future__ import annotations

from collections.abc import Sequence

from callslip.model import events as ev
from callslip.model.entries import Message, Thought
from callslip.rules.fold import SessionFold

UNFINISHED = ("eof", "error", "superseded")
"""The reasons of the end of a turn with which a text may be incomplete."""


def starts_before(event: ev.Event, message: str) -> bool:
    """Return whether an event is older than everything of the newest live message."""
    if isinstance(event, ev.CHUNKS):
        return not event.parent and event.message_id != message
    return isinstance(event, ev.TurnStarted) or (isinstance(event, ev.MessageUser) and not event.parent)


def is_unfinished(event: ev.Event) -> bool:
    """Return whether a text is not known to be complete although this event ended it."""
    return isinstance(event, ev.TurnEnded) and event.reason in UNFINISHED


def find_missing_text(parts: Sequence[ev.Event], kind: type[ev.Event], text: str) -> str:
    """Return the end of a text that was not recorded live, "" if nothing is missing or if that is not known.

    `parts` are the recorded chunks of the message, and the events that ended its texts. A message has its thoughts
    before its texts, so a thought is complete when a text follows.
    """
    chunks = [part for part in parts if isinstance(part, ev.CHUNKS)]
    if not parts or not chunks:
        return ""
    last = max(number for number, part in enumerate(parts) if isinstance(part, ev.CHUNKS))
    own = [chunk for chunk in chunks if type(chunk) is kind]
    is_next = not own and kind is ev.MessageDelta
    if not all(map(is_unfinished, parts[last + 1 :])) or not (is_next or type(chunks[-1]) is kind):
        return ""
    fold = SessionFold()
    fold.fold([part if type(part) is kind else ev.MessageEnded(seq=part.seq) for part in parts])
    texts = [entry.content for entry in fold.snapshot().entries if isinstance(entry, Message | Thought)]
    recorded = texts[-1] if texts else ""
    if any(before.startswith(text) for before in texts) or not text.startswith(recorded):
        return ""
    missing = text[len(recorded) :]
    return missing if missing.strip() else ""
