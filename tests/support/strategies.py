"""Hypothesis strategies for the events of a session: drafts of every kind, in any order, about calls that share ids.

A draft names a call by a foreign id of a small pool, or as `#2`, the third call of the session so far. `MemoryLedger`
resolves that and runs the write path of the ledger without a store.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from typing import Any

import msgspec
from hypothesis import strategies as st
from msgspec import UNSET, structs

from callslip.ledger.validation import DraftValidator
from callslip.ledger.write import WriteContext, write_events
from callslip.model import events as ev
from callslip.model.events import Alias, Draft, Event
from callslip.model.records import ApprovalRecord, CallRecord, KeyRecord, SessionRecord
from callslip.rules.fold import SessionFold
from callslip.rules.redaction import Redactor
from callslip.settings import Settings
from callslip.store.unit_of_work import UnitOfWork

SESSION = "s"
STEP_MS = 10
START_MS = 1_000_000


def canonical_json(value: Any) -> bytes:
    """Return JSON with sorted keys: equal values give equal bytes, and 1, 1.0 and true differ."""
    return msgspec.json.encode(value, order="sorted")


def snapshot_json(state: SessionFold) -> bytes:
    """Return the snapshot of a state as JSON."""
    return canonical_json(state.snapshot())


def weighted_choice(*strategies: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """Draw from one of the strategies. A strategy that is named twice is twice as likely, unlike with `one_of`."""
    return st.sampled_from(strategies).flatmap(lambda selected: selected)


# Values

astral = st.sampled_from(["😀", "👩‍👧", "e\u0301", "é", "日本", "\u202e", "\U0001f1fa\U0001f1e6", "ﬁ", "\u200d", "𝒳"])
plain = st.text(st.characters(exclude_categories=("Cs",)), max_size=6)
secret_parts = st.sampled_from(
    ["s", " sk", "sk-", "ghp_", " a", "sk-ant-api03-abcdefghij0123456789", "Bearer ", "AKIA"]
)
words = st.sampled_from(["ha", "1", "0", "I", "I'll", "I'll check", " the", "\n", " ", "a", "aa", "x" * 30])
pieces = weighted_choice(words, words, astral, secret_parts, plain)
json_values = st.recursive(
    st.one_of(st.none(), st.booleans(), st.sampled_from([-1, 0, 1, 1.0, 2**53, 0.5, -0.0]), pieces),
    lambda inside: st.lists(inside, max_size=2) | st.dictionaries(st.sampled_from(["a", "b"]), inside, max_size=2),
    max_leaves=4,
)


def maybe(values: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """Draw absent, null, or a value (C10)."""
    return st.one_of(st.just(UNSET), st.just(UNSET), st.none(), values)


sources = st.sampled_from(["agent", "agent", "other"])
message_ids = st.sampled_from(["", "", "", "m1", "m2"])
aliases = st.sampled_from([Alias("acp", "1"), Alias("acp", "2"), Alias("acp", "3"), Alias("shell", "1")])
calls = st.sampled_from(["", "#0", "#1", "#2"])
names = st.sampled_from(["bash", "Read", "mcp__acp__Read", "mcp__x"])

# Values for the fields of events about calls; an event uses those it has.
CALL_FIELDS: dict[str, st.SearchStrategy[Any]] = {
    "tool_name": maybe(names),
    "raw_tool_name": maybe(names),
    "title": maybe(pieces),
    "kind": maybe(st.sampled_from(["read", "execute"])),
    "input": maybe(json_values),
    "content": maybe(json_values),
    "locations": maybe(json_values),
    "progress": maybe(json_values),
    "exit_status": maybe(st.sampled_from([-1, 0, 3])),
    "output": maybe(json_values),
    "error": maybe(json_values),
    "reason": st.sampled_from(["", "because"]),
    "iteration": st.sampled_from([-1, -1, 0, 1]),
    "index": st.sampled_from([-1, 0, 1]),
    "scope": st.sampled_from(["turn", "turn", "detached"]),
    "deadline": st.sampled_from([0, 0, START_MS]),
    "idempotent": st.booleans(),
    "attempt": st.sampled_from([0, 1, 2]),
    "worker": st.sampled_from(["", "w1"]),
    "text": pieces,
    "approval": st.sampled_from(["", "#0", "#1"]),
    "description": st.sampled_from(["", "may I?"]),
    "options": st.sampled_from([[], [{"optionId": "yes", "kind": "allow_once"}]]),
    "expires_at": st.sampled_from([0, START_MS]),
    "option": st.sampled_from(["", "yes", "no"]),
    "by": st.sampled_from(["", "ann"]),
}
SPARSE = ("deadline", "idempotent", "scope", "expires_at")
CALL_TYPES = [cls for cls in ev.EVENT_TYPES.values() if issubclass(cls, ev.CallEvent)]
ANSWERS = (ev.ApprovalGranted, ev.ApprovalRefused, ev.ApprovalWithdrawn)


@st.composite
def call_events(
    draw: st.DrawFn, types: Sequence[type[Event]] = CALL_TYPES, reference: dict[str, Any] | None = None
) -> Event:
    """Draw an event about a call."""
    cls = draw(st.sampled_from(types))
    possible_names = [name for name in cls.__struct_fields__ if name in CALL_FIELDS]
    field_names = draw(st.sets(st.sampled_from(possible_names), max_size=4)) if possible_names else set()
    field_names |= {"text"} & set(possible_names)
    if issubclass(cls, ev.ApprovalAnswer):
        field_names |= {"approval"}
    elif cls is ev.ApprovalRequested:
        field_names -= {"approval"}
    fields = {name: draw(CALL_FIELDS[name]) for name in sorted(field_names)}
    return cls(**fields, **(draw(call_references) if reference is None else reference), source=draw(sources))


call_references = st.one_of(
    aliases.map(lambda alias: {"aliases": (alias,)}),
    aliases.map(lambda alias: {"aliases": (alias,)}),
    st.sets(aliases, min_size=2, max_size=2).map(lambda two: {"aliases": tuple(sorted(two, key=alias_key))}),
    calls.map(lambda call: {"call": call}),
)


def alias_key(alias: Alias) -> tuple[str, str]:
    return alias.ns, alias.id


CALL_SEQUENCES: list[list[type[Event]]] = [
    [ev.CallProposed, ev.CallStarted, ev.CallProgress, ev.CallProgress, ev.CallCompleted, ev.CallProgress],
    [ev.CallProposed, ev.CallInputDelta, ev.CallInputDelta, ev.CallInput, ev.CallStarted, ev.CallFailed],
    [ev.CallInputDelta, ev.CallInput, ev.CallInputDelta, ev.CallStarted, ev.CallRequeued, ev.CallStarted, ev.CallLost],
    [ev.ApprovalRequested, ev.ApprovalGranted, ev.CallStarted, ev.CallProgress, ev.CallCompleted, ev.CallCompleted],
    [ev.CallProposed, ev.ApprovalRequested, ev.ApprovalRequested, ev.ApprovalRefused, ev.CallFailed],
    [ev.CallStarted, ev.ApprovalRequested, ev.CallProgress, ev.ApprovalWithdrawn, ev.CallStarted],
    [ev.CallCompleted, ev.CallStarted, ev.CallCancelled],
]


@st.composite
def call_sequences(draw: st.DrawFn) -> list[Event]:
    """Draw a typical sequence of events of a call with one foreign id, cut anywhere."""
    alias = draw(aliases)
    kinds = draw(st.sampled_from(CALL_SEQUENCES))
    kinds = kinds[: draw(st.integers(1, len(kinds)))]
    events = [draw(call_events([kind], {"aliases": (alias,)})) for kind in kinds]
    return [structs.replace(e, approval="") if isinstance(e, ev.ApprovalAnswer) else e for e in events]


CHUNKS = {ev.MessageDelta: "message", ev.ThoughtDelta: "thought"}


@st.composite
def text_sequences(
    draw: st.DrawFn, policies: Sequence[str] = ("auto", "auto", "delta", "cumulative", "dedupe")
) -> list[Event]:
    """Draw the chunks of a text: deltas, cumulative, or arbitrary."""
    cls = draw(st.sampled_from(list(CHUNKS)))
    fields = {"message_id": draw(message_ids), "source": draw(sources), "chunks": draw(st.sampled_from(policies))}
    parts = draw(st.lists(pieces, min_size=1, max_size=6))
    if draw(st.booleans()):
        parts = ["".join(parts[: n + 1]) for n in range(len(parts))]
    events: list[Event] = [cls(text=part, **fields) for part in parts]
    return events + [ev.MessageEnded(message_id=draw(message_ids))] * draw(st.integers(0, 1))


random_chunks = st.builds(
    lambda cls, **fields: cls(**fields),
    st.sampled_from(list(CHUNKS)),
    text=pieces | st.just(""),
    message_id=message_ids,
    source=sources,
    chunks=st.sampled_from(["auto", "delta", "cumulative", "dedupe"]),
)
turns = st.one_of(
    st.builds(ev.TurnStarted, turn=st.sampled_from(["", "", "t1", "t9"])),
    st.builds(
        ev.TurnEnded,
        turn=st.sampled_from(["", "", "", "t1"]),
        reason=st.sampled_from(["end_turn", "cancelled", "error", "eof", "max_tokens"]),
        detail=st.sampled_from(["", "gone"]),
    ),
)
session_events = st.one_of(
    st.builds(
        ev.SessionCapabilities,
        modes=st.sampled_from([[], ["ask"]]),
        current_mode=st.sampled_from(["", "ask", "code"]),
        options=st.lists(json_values, max_size=1),
    ),
    st.builds(ev.SessionCommands, commands=st.lists(json_values, max_size=2)),
    st.builds(ev.SessionMode, mode=st.sampled_from(["ask", "code"])),
    st.builds(
        ev.SessionInfo,
        title=maybe(pieces),
        usage=maybe(json_values),
        options=maybe(json_values),
        notice=maybe(json_values),
        labels=maybe(json_values),
    ),
    st.builds(ev.MessageUser, text=pieces, message_id=message_ids, content=maybe(json_values)),
    st.builds(ev.MessageEnded, message_id=message_ids),
    st.builds(ev.PlanUpdated, entries=st.lists(json_values, max_size=2)),
    st.builds(ev.Raw, format=st.just("acp"), body=json_values),
)
any_event = weighted_choice(call_events(), random_chunks, turns, session_events)
single_events = weighted_choice(call_events(), call_events(), call_events(), turns, random_chunks, session_events).map(
    lambda one: [one]
)
sequences = weighted_choice(single_events, call_sequences(), text_sequences(), call_sequences())


@st.composite
def scripts(draw: st.DrawFn, min_sequences: int = 7, max_sequences: int = 14) -> list[Event]:
    """Draw a session: sequences of calls, texts and single events, interleaved."""
    parts = draw(st.lists(sequences, min_size=min_sequences, max_size=max_sequences))
    return interleave(parts, draw(st.lists(st.integers(0, 5), min_size=2 * min_sequences, max_size=4 * max_sequences)))


def interleave(sequences: list[list[Event]], picks: list[int]) -> list[Event]:
    """Merge sequences, each in its own order, by `picks`; without picks left, take the first sequence."""
    merged: list[Event] = []
    picks = picks[::-1]
    sequences = [list(sequence) for sequence in sequences]
    while sequences:
        index = picks.pop() % len(sequences) if picks else 0
        merged.append(sequences[index].pop(0))
        if not sequences[index]:
            del sequences[index]
    return merged


# Writing them


class EmptyStore:
    """An empty store for a unit of work."""

    def __init__(self, now: int = START_MS) -> None:
        self._now = now

    def now(self) -> int:
        return self._now

    def is_taken(self, identity: str) -> bool:
        return False

    def session(self, name: str) -> SessionRecord | None: ...
    def call(self, call: str) -> CallRecord | None: ...
    def approval(self, approval: str) -> ApprovalRecord | None: ...
    def alias(self, session: str, ns: str, identity: str) -> str | None: ...
    def key(self, session: str, key: str) -> KeyRecord | None: ...
    def event(self, session: str, seq: int) -> Event | None: ...

    def user_messages(self, session: str) -> list[Event]:
        return []

    def has_alias(self, session: str, identity: str) -> bool:
        return False

    def open_calls(self, session: str) -> list[CallRecord]:
        return []

    def owned_calls(self, owner: str) -> list[CallRecord]:
        return []


class KnownIds:
    """The ids of calls and approvals of a session in the order of their creation."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.approvals: list[str] = []

    def add_events(self, events: Sequence[Event]) -> None:
        for event in events:
            if isinstance(event, ev.CallEvent) and event.verdict == "applied":
                if event.call not in self.calls:
                    self.calls.append(event.call)
                if isinstance(event, ev.ApprovalRequested) and event.approval not in self.approvals:
                    self.approvals.append(event.approval)

    def resolve(self, event: Event) -> Event:
        """Return the event with real ids in place of `#n`, or without an id if there is none yet."""
        changes: dict[str, str] = {}
        for field, ids in (("call", self.calls), ("approval", self.approvals)):
            reference = getattr(event, field, "")
            if reference.startswith("#"):
                changes[field] = ids[int(reference[1:]) % len(ids)] if ids else ""
        return structs.replace(event, **changes) if changes else event


class MemoryLedger:
    """The write path of a ledger over an empty store."""

    def __init__(self, *, redact: bool = True, strict: bool = False) -> None:
        redactor = Redactor() if redact else Redactor(())
        self.validator = DraftValidator(Settings(), redactor)
        self.unit = UnitOfWork(EmptyStore())
        self.context = WriteContext(redactor=redactor, source="test", strict=strict)
        self.known_ids = KnownIds()
        self.time = START_MS

    def write(self, *drafts: Event | Draft) -> list[Event]:
        """Append drafts, each a step later than the last; a rejected write changes nothing."""
        admitted = [self.validator.validate(self._set_time(draft)) for draft in drafts]
        unit = self._copy_unit()
        stored = write_events(unit, SESSION, admitted, self.context)
        self.known_ids.add_events([row.event for row in unit.events[len(self.unit.events) :]])
        self.unit = unit
        return stored

    def _copy_unit(self) -> UnitOfWork:
        unit = UnitOfWork(EmptyStore())
        for table in ("calls", "approvals", "aliases", "keys", "owners", "events"):
            setattr(unit, table, copy(getattr(self.unit, table)))
        unit.sessions = {name: structs.replace(row) for name, row in self.unit.sessions.items()}
        return unit

    def _set_time(self, draft: Event | Draft) -> Draft:
        draft = draft if isinstance(draft, Draft) else Draft(draft)
        self.time += STEP_MS
        event = self.known_ids.resolve(draft.event)
        return structs.replace(draft, event=structs.replace(event, at=event.at or self.time))

    @property
    def log(self) -> list[Event]:
        """Return all events."""
        return [row.event for row in self.unit.events]

    @property
    def state(self) -> SessionFold:
        """Return the fold of all events."""
        state = SessionFold(SESSION)
        state.fold(self.log)
        return state


def write_script(script: Sequence[Event], *, redact: bool = True) -> MemoryLedger:
    """Write a script, one draft at a time."""
    memory = MemoryLedger(redact=redact)
    for event in script:
        memory.write(event)
    return memory


logs = scripts().map(lambda script: write_script(script).log)
