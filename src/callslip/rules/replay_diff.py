"""Compare the replay of a session by its agent with what was recorded live.

A replay never changes an entry: its events get the verdict `witness` and are between two `message.ended` events in the
log, except for the turns that it adds. This compares the newest replay with the entries before it. A field that a
replay does not have is no difference; a call or message that only one side has is null on the other.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from difflib import SequenceMatcher
from itertools import zip_longest
from typing import Any

import msgspec
from msgspec import UNSET

from callslip.model import codec
from callslip.model import events as ev
from callslip.model.entries import Entry, Message, Thought, ToolCall
from callslip.model.events import Event
from callslip.model.records import CallRecord
from callslip.rules.lifecycle import classify_event, next_state, strip_mcp_prefix

RESULT_UNKNOWN = "the agent's replay does not tell how this call ended"
"""The reason of a replayed call without a result. It is stored in logs and must not change."""

# Names of a field in the event, in the entry and in JSON.
_CALL_FIELDS = (("title", "title", "title"), ("kind", "kind", "kind"), ("input", "raw_input", "rawInput"))
_RESULT_FIELDS = (
    ("locations", "locations", "locations"),
    ("content", "content", "content"),
    ("exit_status", "exit_status", "exitStatus"),
)
_ROLES: dict[type[ev.MessageUser | ev.MessageDelta | ev.ThoughtDelta], str] = {
    ev.MessageUser: "user",
    ev.MessageDelta: "assistant",
    ev.ThoughtDelta: "thought",
}


class ReplayDifference(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A field that differs between the recorded entry and the replayed event `seq`.

    Entry 0 means that nothing was recorded, seq 0 that nothing was replayed.
    """

    entry: int
    type: str
    call_id: str | None
    field: str
    recorded: Any
    replayed: Any
    seq: int


def newest_replay(log: Iterable[Event]) -> list[Event]:
    """Return the events of the last replay in a log that it did not add, with the two events around them."""
    replayed = [event for event in log if event.verdict == "witness"]
    edges = [index for index, event in enumerate(replayed) if isinstance(event, ev.MessageEnded)]
    return replayed[edges[-2] : edges[-1] + 1] if len(edges) > 1 else []


def diff_replay(entries: Sequence[Entry], replay: Sequence[Event]) -> list[ReplayDifference]:
    """Return the differences between entries and a replay, in the order of the entries; unrecorded items are last."""
    if not replay:
        return []
    before = [entry for entry in entries if entry.id < replay[0].seq]
    differences = [*_diff_calls(before, replay), *_diff_texts(before, replay)]
    return sorted(differences, key=lambda one: (not one.entry, one.entry or one.seq))


# Calls


def _diff_calls(entries: list[Entry], replay: Sequence[Event]) -> Iterator[ReplayDifference]:
    ends = {event.call: event for event in replay if isinstance(event, ev.CallEnd)}
    for entry in entries:
        if isinstance(entry, ToolCall):
            event = ends.get(entry.call_id)
            pairs = _call_pairs(entry, event) if event is not None else [("status", entry.status, None)]
            for field, recorded, replayed in pairs:
                if replayed is not UNSET and codec.encode(recorded) != codec.encode(replayed):
                    yield ReplayDifference(
                        entry=entry.id,
                        type="tool_call",
                        call_id=entry.call_id,
                        field=field,
                        recorded=recorded,
                        replayed=replayed,
                        seq=event.seq if event is not None else 0,
                    )
    for event in replay:
        if isinstance(event, ev.CallEnd) and not event.call:
            for field, replayed in (("title", event.title), ("status", next_state("queued", event))):
                if replayed is not UNSET:
                    yield ReplayDifference(
                        entry=0,
                        type="tool_call",
                        call_id=event.aliases[0].id if event.aliases else None,
                        field=field,
                        recorded=None,
                        replayed=replayed,
                        seq=event.seq,
                    )


def _call_pairs(entry: ToolCall, event: ev.CallEnd) -> Iterator[tuple[str, Any, Any]]:
    """Yield field, recorded and replayed value. The report of a refusal or cancellation by the agent has no result.

    A name that is also the title was only derived from it, so the title is compared.
    """
    has_name = isinstance(event.tool_name, str) and event.tool_name != event.title
    yield "toolName", entry.tool_name, strip_mcp_prefix(str(event.tool_name)) if has_name else UNSET
    for name, field, json_name in _CALL_FIELDS:
        yield json_name, getattr(entry, field), getattr(event, name)
    if classify_event(CallRecord(entry.call_id, "", entry.id, state=entry.status), event) == "duplicate":
        return
    yield "status", entry.status, UNSET if event.reason == RESULT_UNKNOWN else next_state("queued", event)
    for name, field, json_name in _RESULT_FIELDS:
        yield json_name, getattr(entry, field), getattr(event, name)
    output = entry.output if entry.output is not None else entry.output_text or None
    same = entry.blob is not None and event.blob is not None and entry.blob.hash == event.blob.hash
    yield "output", output, UNSET if same else event.output


# Messages and thoughts


class _Text(msgspec.Struct):
    """A message or thought: its first entry or event, and its text."""

    start: int
    text: str


def _diff_texts(entries: list[Entry], replay: Sequence[Event]) -> Iterator[ReplayDifference]:
    for event_type, role in _ROLES.items():
        recorded = _recorded_texts(entries, role)
        replayed = [_Text(event.seq, event.text) for event in replay if isinstance(event, event_type)]
        for left, right in _unequal(recorded, replayed):
            yield ReplayDifference(
                entry=left.start if left else 0,
                type="thought" if role == "thought" else "message",
                call_id=None,
                field="content",
                recorded=left.text if left else None,
                replayed=right.text if right else None,
                seq=right.start if right else 0,
            )


def _recorded_texts(entries: list[Entry], role: str) -> list[_Text]:
    """Return the recorded texts of a role. Entries with the same message id are one text, even with calls between."""
    texts: list[_Text] = []
    by_message: dict[str, _Text] = {}
    for entry in entries:
        if not isinstance(entry, Message | Thought) or getattr(entry, "role", "thought") != role:
            continue
        if entry.message_id in by_message:
            by_message[entry.message_id].text += entry.content
            continue
        texts.append(_Text(entry.id, entry.content))
        if entry.message_id:
            by_message[entry.message_id] = texts[-1]
    return texts


def _unequal(recorded: list[_Text], replayed: list[_Text]) -> Iterator[tuple[_Text | None, _Text | None]]:
    """Yield pairs of texts that differ. Few agents replay ids, so texts are paired by order around the equal ones.

    SequenceMatcher ignores frequent texts of a long session, which would otherwise take minutes.
    """
    texts = [text.text for text in recorded], [text.text for text in replayed]
    for tag, i, j, k, m in SequenceMatcher(None, *texts).get_opcodes():
        if tag != "equal":
            pairs = zip_longest(recorded[i:j], replayed[k:m])
            yield from ((left, right) for left, right in pairs if not (left and right and left.text == right.text))
