"""What the decoders of agents' own session files share.

A session file may repeat what is recorded already: a fork copies lines, and a wrapped agent was recorded while it wrote
the file. So the drafts of a message follow these rules:

- A draft with a known key is left out, with the drafts after it that have no key. So the first draft of a message has
  its id as the key, also in a copy, and what may be added to a message later has a key of its own. Without a key, the
  message is identified by its content.
- What a decoder remembers is limited. It may return a draft again, with its key, for what it no longer remembers.
- A call has the alias that it has in the ACP traffic of the same agent, and is only opened once: no id is used again.
- A turn starts with `turn.started` directly before its prompt, and has the name of that message. The prompt has a
  message id, and so has each text of the agent.
- A call of a sub-agent is `detached`, as it may outlive the turn.
- Times are those of the messages. The import gives an event without one the time of the event before it, and ends the
  last text that was read.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import Any, ClassVar

from callslip.formats.json_fields import text_digest, value_digest
from callslip.model import events as ev
from callslip.model.events import Alias, Draft, Event
from callslip.model.names import SUBAGENT_NAMESPACE

CALL_NAMESPACE = "acp"
MAX_KEY_CHARS = 120
MAX_REMEMBERED = 300
MARK = "message"
"""The mark of all keys: a message that was written again in another form is still the same."""
MAX_EPOCH_MS = 10**14


def call_aliases(call_id: str) -> tuple[Alias, ...]:
    """Return the alias of a call, which is that of its ACP traffic."""
    return (Alias(CALL_NAMESPACE, call_id),)


def message_drafts(events: Iterable[Event], key: str, parent: Alias | None = None) -> list[Draft]:
    """Return the drafts of one message. With a parent they are those of the sub-agent that this call started."""
    drafts = [Draft(event, parent=parent if hasattr(event, "parent") else None) for event in events]
    if drafts and key:
        first = drafts[0]
        drafts[0] = Draft(first.event, key, MARK, parent=first.parent)
    return drafts


def time_ms(text: Any) -> int:
    """Return an ISO 8601 time in ms since the epoch; 0 if it is none."""
    if not isinstance(text, str) or not text:
        return 0
    try:
        return max(0, int(datetime.fromisoformat(text).timestamp() * 1000))
    except (ValueError, OverflowError):
        return 0


def epoch_ms(value: Any) -> int:
    """Return a time in ms since the epoch; 0 for anything else."""
    return int(value) if isinstance(value, int | float) and value is not True and 0 < value < MAX_EPOCH_MS else 0


def token_count(value: Any) -> int:
    """Return a number of tokens; 0 for anything else."""
    return int(value) if isinstance(value, int | float) and value is not True and 0 < value < 10**15 else 0


def key_of(*parts: str) -> str:
    """Return a key from what identifies a message, if it has no id of its own."""
    key = ":".join(parts)
    return key if len(key) <= MAX_KEY_CHARS and key.isprintable() else f"{parts[0]}:{text_digest(*parts)}"


def keyed_draft(event: Event, key: str, parent: Alias | None = None) -> Draft:
    """Return a draft with a key of its own. With a parent it is of the sub-agent that this call started."""
    return Draft(event, key, MARK, parent=parent if parent is not None and hasattr(event, "parent") else None)


def start_call(call: dict[str, Any], key: str, parent: Alias | None = None) -> list[Draft]:
    """Return the start of a call with these fields of `call.started`. That of a sub-agent may outlive the turn."""
    started = ev.CallStarted(**call)
    if parent is None:
        return [keyed_draft(started, key)]
    proposed = ev.CallProposed(scope="detached", **call)
    begun = ev.CallStarted(aliases=started.aliases, at=started.at)
    return [keyed_draft(proposed, key, parent), keyed_draft(begun, f"{key}:start", parent)]


def remember(table: dict[str, str], key: str, value: str) -> None:
    """Add an entry to a table of limited size: what a decoder remembers is stored after each piece that is read."""
    table.pop(key, None)
    table[key] = value
    if len(table) > MAX_REMEMBERED:
        del table[next(iter(table))]


def subagent_alias(agent: str) -> Alias:
    """Return the alias of the call that started a sub-agent."""
    return Alias(SUBAGENT_NAMESPACE, agent)


class TranscriptDecoder:
    """What the decoders of several agents have in common.

    `_parent` is the call that started the sub-agent of this transcript, `_turn_name` the turn that has started and not
    ended. Texts are whole, and messages have their times, so `chunks` and `started` have no effect.
    """

    format: ClassVar[str]

    def __init__(self, *, chunks: ev.Chunks | None = None, started: int = 0) -> None:
        del chunks, started
        self._parent: Alias | None = None
        self._turn_name = ""

    def close(self, reason: str) -> list[Draft]:
        name, self._turn_name = self._turn_name, ""
        return [Draft(ev.TurnEnded(turn=name, reason=reason))] if name else []

    def holds_input(self) -> bool:
        return False

    def _draft(self, event: Event, *key: str) -> Draft:
        """Return a draft with a key of these parts."""
        return keyed_draft(event, key_of(self.format, *key), self._parent)

    def _raw(self, message: Any, at: int = 0) -> list[Draft]:
        """Return a message that is not understood."""
        key = key_of(self.format, "raw", value_digest(message))
        return [keyed_draft(ev.Raw(format=self.format, body=message, at=at), key)]
