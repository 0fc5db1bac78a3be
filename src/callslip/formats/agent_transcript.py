"""What the decoders of agents' transcripts share: drafts with keys, links to sub-agents, and times.

Agents copy their history into new files when a session is resumed, forked or compacted. So the key of a draft is made
of the ids of its message, never of its file or its place. What was written first under a key is kept.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any

from callslip.formats.json_fields import as_str, text_digest
from callslip.model import events as ev
from callslip.model.events import Alias, Draft, Event

CALL_NAMESPACE = "acp"
"""The alias namespace of calls: their ids are those of the agent's traffic over the Agent Client Protocol."""
SUBAGENT_NAMESPACE = "subagent"
"""The alias namespace by which a call is also found: the agent's own id of the sub-agent that the call started."""
MAX_KEY_CHARS = 120
COPY = "copy"
"""The mark of all drafts: another event under the same key is a copy of the message, perhaps of another version."""

_HAS_PARENT = (ev.CallUpdate, ev.MessageUser, ev.MessageDelta, ev.ThoughtDelta, ev.UsageReported)


def key_of(*parts: str) -> str:
    """Return the key of a draft from what identifies its message."""
    key = ":".join(parts)
    return key if len(key) <= MAX_KEY_CHARS and key.isprintable() else f"{parts[0]}:{text_digest(*parts)}"


def keyed_draft(event: Event, key: str, parent: Alias | None = None) -> Draft:
    """Return an event as a draft with its key. With a parent, a sub-agent made it."""
    if parent is not None and isinstance(event, _HAS_PARENT):
        return Draft(event, key=key, mark=COPY, parent=parent)
    return Draft(event, key=key, mark=COPY)


def call_alias(call_id: str) -> Alias:
    """Return the alias of a call."""
    return Alias(CALL_NAMESPACE, call_id)


def subagent_alias(agent: str) -> Alias:
    """Return the alias of the call that started a sub-agent."""
    return Alias(SUBAGENT_NAMESPACE, agent)


def iso_to_ms(value: Any) -> int:
    """Return an ISO 8601 time in ms since the epoch; 0 for anything else."""
    try:
        moment = datetime.fromisoformat(as_str(value))
        return max(0, int(moment.timestamp() * 1000 + 0.5)) if moment.tzinfo is not None else 0
    except (ValueError, OverflowError):
        return 0


def epoch_ms(value: Any) -> int:
    """Return a time in ms since the epoch; 0 for anything else."""
    return int(value) if isinstance(value, int | float) and value is not True and 0 < value < 10**14 else 0


def as_count(value: Any) -> int:
    """Return a number of tokens; 0 for anything else."""
    return int(value) if isinstance(value, int | float) and value is not True and 0 < value < 10**15 else 0
