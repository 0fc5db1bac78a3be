"""What may happen to a session, as Hypothesis draws it: drafts of every kind, in any order, about calls that share ids.

A draft names a call by a foreign id of a small pool, or as `#2`: the third call of the session so far. `Desk` resolves
that and runs the ledger's own write path in memory: the door, the decisions, the rows; there is no store below.
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
STEP = 10
START = 1_000_000


def canonical(value: Any) -> bytes:
    """JSON with sorted keys: equal values give equal bytes, and 1, 1.0 and true stay apart."""
    return msgspec.json.encode(value, order="sorted")


def snapshot(state: SessionFold) -> bytes:
    """A state as its readers see it."""
    return canonical(state.snapshot())


def either(*strategies: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """One of them, each as likely as it is often named: `one_of` would count what is inside of each."""
    return st.sampled_from(strategies).flatmap(lambda chosen: chosen)


# Values

astral = st.sampled_from(["😀", "👩‍👧", "e\u0301", "é", "日本", "\u202e", "\U0001f1fa\U0001f1e6", "ﬁ", "\u200d", "𝒳"])
plain = st.text(st.characters(exclude_categories=("Cs",)), max_size=6)
secretive = st.sampled_from(["s", " sk", "sk-", "ghp_", " a", "sk-ant-api03-abcdefghij0123456789", "Bearer ", "AKIA"])
words = st.sampled_from(["ha", "1", "0", "I", "I'll", "I'll check", " the", "\n", " ", "a", "aa", "x" * 30])
pieces = either(words, words, astral, secretive, plain)
json_values = st.recursive(
    st.one_of(st.none(), st.booleans(), st.sampled_from([-1, 0, 1, 1.0, 2**53, 0.5, -0.0]), pieces),
    lambda inside: st.lists(inside, max_size=2) | st.dictionaries(st.sampled_from(["a", "b"]), inside, max_size=2),
    max_leaves=4,
)


def maybe(values: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """Absent, null, or a value (C10)."""
    return st.one_of(st.just(UNSET), st.just(UNSET), st.none(), values)


sources = st.sampled_from(["agent", "agent", "other"])
message_ids = st.sampled_from(["", "", "", "m1", "m2"])
aliases = st.sampled_from([Alias("acp", "1"), Alias("acp", "2"), Alias("acp", "3"), Alias("shell", "1")])
calls = st.sampled_from(["", "#0", "#1", "#2"])
names = st.sampled_from(["bash", "Read", "mcp__acp__Read", "mcp__x"])

# What a draft about a call may say, field by field; an event takes those it has.
TOLD: dict[str, st.SearchStrategy[Any]] = {
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
    "deadline": st.sampled_from([0, 0, START]),
    "idempotent": st.booleans(),
    "attempt": st.sampled_from([0, 1, 2]),
    "worker": st.sampled_from(["", "w1"]),
    "text": pieces,
    "approval": st.sampled_from(["", "#0", "#1"]),
    "description": st.sampled_from(["", "may I?"]),
    "options": st.sampled_from([[], [{"optionId": "yes", "kind": "allow_once"}]]),
    "expires_at": st.sampled_from([0, START]),
    "option": st.sampled_from(["", "yes", "no"]),
    "by": st.sampled_from(["", "ann"]),
}
SPARSE = ("deadline", "idempotent", "scope", "expires_at")
CALL_TYPES = [cls for cls in ev.EVENT_TYPES.values() if issubclass(cls, ev.CallEvent)]
ANSWERS = (ev.ApprovalGranted, ev.ApprovalRefused, ev.ApprovalWithdrawn)


@st.composite
def call_events(
    draw: st.DrawFn, types: Sequence[type[Event]] = CALL_TYPES, names_call: dict[str, Any] | None = None
) -> Event:
    """Anything about some call."""
    cls = draw(st.sampled_from(types))
    told = [name for name in cls.__struct_fields__ if name in TOLD]
    chosen = draw(st.sets(st.sampled_from(told), max_size=4)) if told else set()
    chosen |= {"text"} & set(told)
    if issubclass(cls, ev.ApprovalAnswer):
        chosen |= {"approval"}
    elif cls is ev.ApprovalRequested:
        chosen -= {"approval"}
    fields = {name: draw(TOLD[name]) for name in sorted(chosen)}
    return cls(**fields, **(draw(who) if names_call is None else names_call), source=draw(sources))


who = st.one_of(
    aliases.map(lambda alias: {"aliases": (alias,)}),
    aliases.map(lambda alias: {"aliases": (alias,)}),
    st.sets(aliases, min_size=2, max_size=2).map(lambda two: {"aliases": tuple(sorted(two, key=tuple_of))}),
    calls.map(lambda call: {"call": call}),
)


def tuple_of(alias: Alias) -> tuple[str, str]:
    return alias.ns, alias.id


LIVES: list[list[type[Event]]] = [
    [ev.CallProposed, ev.CallStarted, ev.CallProgress, ev.CallProgress, ev.CallCompleted, ev.CallProgress],
    [ev.CallProposed, ev.CallInputDelta, ev.CallInputDelta, ev.CallInput, ev.CallStarted, ev.CallFailed],
    [ev.CallInputDelta, ev.CallInput, ev.CallInputDelta, ev.CallStarted, ev.CallRequeued, ev.CallStarted, ev.CallLost],
    [ev.ApprovalRequested, ev.ApprovalGranted, ev.CallStarted, ev.CallProgress, ev.CallCompleted, ev.CallCompleted],
    [ev.CallProposed, ev.ApprovalRequested, ev.ApprovalRequested, ev.ApprovalRefused, ev.CallFailed],
    [ev.CallStarted, ev.ApprovalRequested, ev.CallProgress, ev.ApprovalWithdrawn, ev.CallStarted],
    [ev.CallCompleted, ev.CallStarted, ev.CallCancelled],
]


@st.composite
def lives(draw: st.DrawFn) -> list[Event]:
    """A call as calls usually go, under one foreign id, cut off anywhere."""
    alias = draw(aliases)
    kinds = draw(st.sampled_from(LIVES))
    kinds = kinds[: draw(st.integers(1, len(kinds)))]
    made = [draw(call_events([kind], {"aliases": (alias,)})) for kind in kinds]
    return [structs.replace(e, approval="") if isinstance(e, ev.ApprovalAnswer) else e for e in made]


CHUNKS = {ev.MessageDelta: "message", ev.ThoughtDelta: "thought"}


@st.composite
def talks(draw: st.DrawFn, policies: Sequence[str] = ("auto", "auto", "delta", "cumulative", "dedupe")) -> list[Event]:
    """A run of chunks: a text split anyhow, a text that grows, or anything."""
    cls = draw(st.sampled_from(list(CHUNKS)))
    told = {"message_id": draw(message_ids), "source": draw(sources), "chunks": draw(st.sampled_from(policies))}
    parts = draw(st.lists(pieces, min_size=1, max_size=6))
    if draw(st.booleans()):
        parts = ["".join(parts[: n + 1]) for n in range(len(parts))]
    made: list[Event] = [cls(text=part, **told) for part in parts]
    return made + [ev.MessageEnded(message_id=draw(message_ids))] * draw(st.integers(0, 1))


chunk_soup = st.builds(
    lambda cls, **told: cls(**told),
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
facts = st.one_of(
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
any_event = either(call_events(), chunk_soup, turns, facts)
singles = either(call_events(), call_events(), call_events(), turns, chunk_soup, facts).map(lambda one: [one])
threads = either(singles, lives(), talks(), lives())


@st.composite
def scripts(draw: st.DrawFn, least: int = 7, most: int = 14) -> list[Event]:
    """A session: lives of calls, texts and loose events, interleaved."""
    made = draw(st.lists(threads, min_size=least, max_size=most))
    return interleaved(made, draw(st.lists(st.integers(0, 5), min_size=2 * least, max_size=4 * most)))


def interleaved(threads: list[list[Event]], picks: list[int]) -> list[Event]:
    """The threads as one, each in its own order; where nothing is picked, the first goes on."""
    made: list[Event] = []
    picks = picks[::-1]
    threads = [list(thread) for thread in threads]
    while threads:
        at = picks.pop() % len(threads) if picks else 0
        made.append(threads[at].pop(0))
        if not threads[at]:
            del threads[at]
    return made


# Running them


class Nothing:
    """What a unit of work reads from a store that is empty."""

    def __init__(self, now: int = START) -> None:
        self._now = now

    def now(self) -> int:
        return self._now

    def session(self, name: str) -> SessionRecord | None: ...
    def call(self, call: str) -> CallRecord | None: ...
    def approval(self, approval: str) -> ApprovalRecord | None: ...
    def alias(self, session: str, ns: str, identity: str) -> str | None: ...
    def key(self, session: str, key: str) -> KeyRecord | None: ...
    def event(self, session: str, seq: int) -> Event | None: ...

    def has_alias(self, session: str, identity: str) -> bool:
        return False

    def open_calls(self, session: str) -> list[CallRecord]:
        return []

    def owned_calls(self, owner: str) -> list[CallRecord]:
        return []


class Names:
    """The calls and approvals of a session in the order they came to be."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.approvals: list[str] = []

    def see(self, events: Sequence[Event]) -> None:
        for event in events:
            if isinstance(event, ev.CallEvent) and event.verdict == "applied":
                if event.call not in self.calls:
                    self.calls.append(event.call)
                if isinstance(event, ev.ApprovalRequested) and event.approval not in self.approvals:
                    self.approvals.append(event.approval)

    def resolve(self, event: Event) -> Event:
        """The event with real ids in place of `#n`; where there is none yet, with none."""
        changes: dict[str, str] = {}
        for field, known in (("call", self.calls), ("approval", self.approvals)):
            given = getattr(event, field, "")
            if given.startswith("#"):
                changes[field] = known[int(given[1:]) % len(known)] if known else ""
        return structs.replace(event, **changes) if changes else event


class Desk:
    """A ledger's write path over an empty store."""

    def __init__(self, *, redact: bool = True, strict: bool = False) -> None:
        redactor = Redactor() if redact else Redactor(())
        self.intake = DraftValidator(Settings(), redactor)
        self.unit = UnitOfWork(Nothing())
        self.how = WriteContext(redactor=redactor, source="desk", strict=strict)
        self.names = Names()
        self.time = START

    def write(self, *drafts: Event | Draft) -> list[Event]:
        """Append drafts, each a step later than the last; a refused write leaves no trace."""
        admitted = [self.intake.validate(self._timed(draft)) for draft in drafts]
        unit = self._copied()
        done = write_events(unit, SESSION, admitted, self.how)
        self.names.see([stored.event for stored in unit.events[len(self.unit.events) :]])
        self.unit = unit
        return done

    def _copied(self) -> UnitOfWork:
        unit = UnitOfWork(Nothing())
        for table in ("calls", "approvals", "aliases", "keys", "owners", "events"):
            setattr(unit, table, copy(getattr(self.unit, table)))
        unit.sessions = {name: structs.replace(row) for name, row in self.unit.sessions.items()}
        return unit

    def _timed(self, draft: Event | Draft) -> Draft:
        draft = draft if isinstance(draft, Draft) else Draft(draft)
        self.time += STEP
        event = self.names.resolve(draft.event)
        return structs.replace(draft, event=structs.replace(event, at=event.at or self.time))

    @property
    def log(self) -> list[Event]:
        """Every event so far."""
        return [stored.event for stored in self.unit.events]

    @property
    def state(self) -> SessionFold:
        """The log, folded."""
        state = SessionFold(SESSION)
        state.fold(self.log)
        return state


def written(script: Sequence[Event], *, redact: bool = True) -> Desk:
    """A desk on which a script was written, one draft at a time."""
    desk = Desk(redact=redact)
    for event in script:
        desk.write(event)
    return desk


logs = scripts().map(lambda script: written(script).log)
