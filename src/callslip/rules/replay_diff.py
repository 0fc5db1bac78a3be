"""Where an agent's own replay of a session tells otherwise than what was recorded live (S2.11).

A replay never changes an entry: what of it was known stands in the log with the verdict `witness`, between two ends of
messages; what was news is applied, as news is. Compared here are the newest replay and the entries that were there
before it. What a replay does not mention of a call it does not deny (C10); a call or a message that it leaves out
altogether is told as null.
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

# What an event may tell of a call, and what the entry and the wire call it.
_TOLD = (("title", "title", "title"), ("kind", "kind", "kind"), ("input", "raw_input", "rawInput"))
_SHOWN = (
    ("locations", "locations", "locations"),
    ("content", "content", "content"),
    ("exit_status", "exit_status", "exitStatus"),
)
_SPOKEN: dict[type[ev.MessageUser | ev.MessageDelta | ev.ThoughtDelta], str] = {
    ev.MessageUser: "user",
    ev.MessageDelta: "assistant",
    ev.ThoughtDelta: "thought",
}


class ReplayDifference(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """One field of an entry, as it was recorded and as event `seq` replays it.

    Entry 0: nothing was recorded. Event 0: nothing is replayed.
    """

    entry: int
    type: str
    call_id: str | None
    field: str
    recorded: Any
    replayed: Any
    seq: int


def newest_replay(log: Iterable[Event]) -> list[Event]:
    """What the last replay in a log tells that was known already, with the two events that it stands between."""
    witnesses = [event for event in log if event.verdict == "witness"]
    edges = [at for at, event in enumerate(witnesses) if isinstance(event, ev.MessageEnded)]
    return witnesses[edges[-2] : edges[-1] + 1] if len(edges) > 1 else []


def diff_replay(entries: Sequence[Entry], replay: Sequence[Event]) -> list[ReplayDifference]:
    """Everything that a replay tells otherwise, in the order of the entries; what nobody recorded comes last."""
    if not replay:
        return []
    before = [entry for entry in entries if entry.id < replay[0].seq]
    found = [*_calls(before, replay), *_texts(before, replay)]
    return sorted(found, key=lambda one: (not one.entry, one.entry))


# Calls


def _calls(entries: list[Entry], replay: Sequence[Event]) -> Iterator[ReplayDifference]:
    told = {event.call: event for event in replay if isinstance(event, ev.CallEnd)}
    for entry in entries:
        if isinstance(entry, ToolCall):
            event = told.get(entry.call_id)
            yield from _call(entry, event) if event is not None else [_about(entry, "status", entry.status, None, 0)]


def _call(entry: ToolCall, event: ev.CallEnd) -> Iterator[ReplayDifference]:
    for field, recorded, replayed in _compared(entry, event):
        if replayed is not UNSET and codec.encode(recorded) != codec.encode(replayed):
            yield _about(entry, field, recorded, replayed, event.seq)


def _compared(entry: ToolCall, event: ev.CallEnd) -> Iterator[tuple[str, Any, Any]]:
    """Pairs to compare. An agent's own report of a refusal or a stop is no other end, nor is its output one."""
    name = strip_mcp_prefix(event.tool_name) if isinstance(event.tool_name, str) else UNSET
    yield "toolName", entry.tool_name, name
    for told, field, wire in _TOLD:
        yield wire, getattr(entry, field), getattr(event, told)
    if classify_event(CallRecord(entry.call_id, "", entry.id, state=entry.status), event) == "duplicate":
        return
    yield "status", entry.status, UNSET if event.reason == RESULT_UNKNOWN else next_state("queued", event)
    for told, field, wire in _SHOWN:
        yield wire, getattr(entry, field), getattr(event, told)
    same = entry.blob is not None and event.blob is not None and entry.blob.hash == event.blob.hash
    yield "output", _output(entry), UNSET if same else event.output


def _output(entry: ToolCall) -> Any:
    return entry.output if entry.output is not None else entry.output_text or None


def _about(entry: ToolCall, field: str, recorded: Any, replayed: Any, seq: int) -> ReplayDifference:
    return ReplayDifference(
        entry=entry.id,
        type="tool_call",
        call_id=entry.call_id,
        field=field,
        recorded=recorded,
        replayed=replayed,
        seq=seq,
    )


# Messages and thoughts


class _Said(msgspec.Struct):
    """A message: the entry or event it begins with, and its text."""

    at: int
    text: str


def _texts(entries: list[Entry], replay: Sequence[Event]) -> Iterator[ReplayDifference]:
    for spoken, who in _SPOKEN.items():
        recorded = _recorded(entries, who)
        replayed = [_Said(event.seq, event.text) for event in replay if isinstance(event, spoken)]
        for left, right in _unequal(recorded, replayed):
            yield ReplayDifference(
                entry=left.at if left else 0,
                type="thought" if who == "thought" else "message",
                call_id=None,
                field="content",
                recorded=left.text if left else None,
                replayed=right.text if right else None,
                seq=right.at if right else 0,
            )


def _recorded(entries: list[Entry], who: str) -> list[_Said]:
    """What somebody said. A message that calls stand in between of is one, if it has an id to be known by."""
    said: list[_Said] = []
    known: dict[str, _Said] = {}
    for entry in entries:
        if not isinstance(entry, Message | Thought) or _who(entry) != who:
            continue
        if entry.message_id in known:
            known[entry.message_id].text += entry.content
            continue
        said.append(_Said(entry.id, entry.content))
        if entry.message_id:
            known[entry.message_id] = said[-1]
    return said


def _who(entry: Message | Thought) -> str:
    return entry.role if isinstance(entry, Message) else "thought"


def _unequal(recorded: list[_Said], replayed: list[_Said]) -> Iterator[tuple[_Said | None, _Said | None]]:
    """Few agents replay ids, so that texts are paired by their order, around those that are equal.

    In a long session what is said again and again pairs nothing by itself: to try it all would take minutes.
    """
    texts = [one.text for one in recorded], [one.text for one in replayed]
    for how, i, j, k, m in SequenceMatcher(None, *texts).get_opcodes():
        if how != "equal":
            pairs = zip_longest(recorded[i:j], replayed[k:m])
            yield from ((left, right) for left, right in pairs if not (left and right and left.text == right.text))
