"""Compare what the clients of a ledger recorded during a run with what its database contains at the end.

The laws are those of `check`. A client records an operation with its outcome: acknowledged, refused, or unknown if the
answer was lost. It gives each event a text that is unique in the run, by which the event is found.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from typing import Any, Literal

import msgspec

from callslip.api.ledger import LocalLedger
from callslip.ledger.liveness import is_dead
from callslip.model import events as ev
from callslip.rules.lifecycle import OPEN_STATES, TERMINAL_STATES
from tests.support.invariants import read_events

MAX_SHOWN = 20
"""How many faults of a report are printed."""
ANSWERS = {"approval.granted": "granted", "approval.refused": "refused", "approval.withdrawn": "withdrawn"}
ENDS = {str(kind.__struct_config__.tag): str(kind.__struct_config__.tag).removeprefix("call.") for kind in ev.TERMINAL}
ENDS["approval.refused"] = "denied"
"""The state of a call by the type of the event that ended it."""
UNANSWERED = ("pending", "moot")
"""The states of an approval without an answer. The call of a moot one has ended before."""


class Operation(msgspec.Struct, kw_only=True):
    """What a client did. Times are those of `time.monotonic`, which all processes of a machine share.

    `id` is the text of an event, the call of an end, the correlation id of a command and of its observed result, and
    the approval of an answer. `state` is the acknowledged state, if there is one. With a `key` a lost answer was
    repeated until it was acknowledged.
    """

    kind: Literal["event", "end", "command", "result", "answer"]
    id: str
    outcome: Literal["acknowledged", "refused", "unknown"] = "acknowledged"
    session: str = ""
    seq: int = 0
    state: str = ""
    key: bool = False
    started: float = 0.0
    ended: float = 0.0


class Reader(msgspec.Struct, kw_only=True):
    """The events that one reader received, over all of its connections. `is_complete`: it read to the end."""

    session: str
    seqs: list[int] = []
    is_complete: bool = True


class StoredEvent(msgspec.Struct, kw_only=True):
    """An event of the database."""

    session: str
    seq: int
    type: str
    text: str = ""
    call: str = ""
    approval: str = ""
    verdict: str = "applied"


class StoredCall(msgspec.Struct, kw_only=True):
    """A call of the database. `has_owner`: a process that lives, a lease or a deadline will end it."""

    id: str
    session: str
    state: str
    correlation_id: str = ""
    is_command: bool = False
    has_owner: bool = False


class Content(msgspec.Struct, kw_only=True):
    """What a database contains: the last seq of each session, its events, and calls and approvals by state."""

    heads: dict[str, int] = {}
    events: list[StoredEvent] = []
    calls: list[StoredCall] = []
    approvals: dict[str, str] = {}


class Report(msgspec.Struct):
    """What a check counted, and what is wrong."""

    counts: dict[str, int]
    faults: list[str]

    def __str__(self) -> str:
        counts = ", ".join(f"{name} {count}" for name, count in self.counts.items())
        left = len(self.faults) - MAX_SHOWN
        lines = [counts, *self.faults[:MAX_SHOWN], *([f"and {left} more faults"] if left > 0 else [])]
        return "\n".join(lines)


def check(operations: Iterable[Operation], readers: Iterable[Reader], content: Content) -> Report:
    """Return the counts of a run and every law that it breaks.

    - An acknowledged event is stored once, at its seq; an unknown one at most once, a refused one never.
    - The seqs of a session are 1 to its last one. An event that was acknowledged before another one was sent has the
      lower seq.
    - A call has one applied end if its state is final, else none. An acknowledged end is the one that is stored.
    - No call is open without a process, a lease or a deadline that ends it.
    - A reader has received 1 to N, once each and in this order.
    - A command that was acknowledged exists once and has ended. Everyone who saw its result saw the stored one.
    - An approval has at most one applied answer, which is the acknowledged one.
    """
    operations, readers = list(operations), list(readers)
    faults = [
        *_check_sessions(content),
        *_check_events(operations, content),
        *_check_order(operations),
        *_check_calls(operations, content),
        *_check_commands(operations, content),
        *_check_answers(operations, content),
        *_check_readers(readers, content),
    ]
    return Report(_count(operations, readers, content), faults)


def _count(operations: list[Operation], readers: list[Reader], content: Content) -> dict[str, int]:
    counts: Counter[str] = Counter({"sessions": len(content.heads), "events": len(content.events)})
    counts["calls"] = len(content.calls)
    counts["commands"] = sum(call.is_command for call in content.calls)
    counts["approvals"] = len(content.approvals)
    counts["operations"] = len(operations)
    for outcome in ("acknowledged", "refused", "unknown"):
        counts[outcome] = sum(operation.outcome == outcome for operation in operations)
    counts["with key"] = sum(operation.key for operation in operations)
    counts["readers"] = len(readers)
    counts["read"] = sum(len(reader.seqs) for reader in readers)
    for call in content.calls:
        counts[f"calls {call.state}"] += 1
    return dict(counts)


def _check_sessions(content: Content) -> list[str]:
    seqs: dict[str, list[int]] = {name: [] for name in content.heads}
    for event in content.events:
        seqs.setdefault(event.session, []).append(event.seq)
    return [
        f"session {name}: must have the events 1 to {content.heads.get(name, 0)}, {_describe_seqs(found)}"
        for name, found in seqs.items()
        if sorted(found) != list(range(1, content.heads.get(name, 0) + 1))
    ]


def _describe_seqs(seqs: list[int]) -> str:
    if not seqs:
        return "has none"
    repeated = sorted(seq for seq, count in Counter(seqs).items() if count > 1)
    missing = sorted(set(range(1, max(seqs) + 1)) - set(seqs))
    return f"has {len(seqs)} up to {max(seqs)}, repeated {repeated[:5]}, missing {missing[:5]}"


def _check_events(operations: list[Operation], content: Content) -> list[str]:
    stored: dict[tuple[str, str], list[int]] = defaultdict(list)
    for event in content.events:
        if event.text:
            stored[event.session, event.text].append(event.seq)
    faults: list[str] = []
    for operation in operations:
        if operation.kind != "event":
            continue
        seqs = stored[operation.session, operation.id]
        name = f"event {operation.id!r} of session {operation.session}"
        if operation.outcome == "acknowledged" and not seqs:
            faults.append(f"{name}: acknowledged as {operation.seq}, and lost")
        elif operation.outcome == "acknowledged" and operation.seq and operation.seq not in seqs:
            faults.append(f"{name}: acknowledged as {operation.seq}, and stored as {seqs}")
        elif operation.outcome == "refused" and seqs:
            faults.append(f"{name}: refused, and stored as {seqs}")
        if len(seqs) > 1:
            faults.append(f"{name}: stored {len(seqs)} times, as {seqs}")
    return faults


def _check_order(operations: list[Operation]) -> list[str]:
    """Find an event that was acknowledged before another one was sent, and has the higher seq."""
    faults: list[str] = []
    by_session: dict[str, list[Operation]] = defaultdict(list)
    for operation in operations:
        if operation.kind == "event" and operation.outcome == "acknowledged" and operation.seq:
            by_session[operation.session].append(operation)
    for name, found in by_session.items():
        ended = iter(sorted(found, key=lambda operation: operation.ended))
        following, highest = next(ended, None), 0
        for operation in sorted(found, key=lambda operation: operation.started):
            while following is not None and following.ended < operation.started:
                highest = max(highest, following.seq)
                following = next(ended, None)
            if operation.seq < highest:
                faults.append(f"session {name}: event {operation.seq} was sent after {highest} was acknowledged")
    return faults


def _check_calls(operations: list[Operation], content: Content) -> list[str]:
    ends: dict[str, list[str]] = defaultdict(list)
    for event in content.events:
        if event.type in ENDS and event.verdict == "applied":
            ends[event.call].append(ENDS[event.type])
    calls = {call.id: call for call in content.calls}
    faults = [f"call {call}: has the ends {found}, and no record" for call, found in ends.items() if call not in calls]
    for call in content.calls:
        found = ends[call.id]
        if found != ([call.state] if call.state in TERMINAL_STATES else []):
            faults.append(f"call {call.id}: is {call.state}, and has the applied ends {found}")
        if call.state in OPEN_STATES and not call.has_owner:
            faults.append(f"call {call.id}: is {call.state}, and nothing will end it")
    for operation in operations:
        if operation.kind == "end" and operation.outcome == "acknowledged":
            state = calls[operation.id].state if operation.id in calls else "lost with its session"
            if state != operation.state:
                faults.append(f"call {operation.id}: acknowledged as {operation.state}, and is {state}")
    return faults


def _check_commands(operations: list[Operation], content: Content) -> list[str]:
    stored: dict[str, list[StoredCall]] = defaultdict(list)
    for call in content.calls:
        if call.is_command:
            stored[call.correlation_id].append(call)
    faults = [
        f"command {name}: exists {len(found)} times, as {[call.id for call in found]}"
        for name, found in stored.items()
        if len(found) > 1
    ]
    faults += [
        f"command {name}: is {call.state} at the end"
        for name, found in stored.items()
        for call in found
        if call.state not in TERMINAL_STATES
    ]
    for operation in operations:
        states = [call.state for call in stored[operation.id]] if operation.kind in ("command", "result") else []
        if operation.kind == "command" and operation.outcome == "acknowledged" and not states:
            faults.append(f"command {operation.id}: acknowledged, and lost")
        elif operation.kind == "command" and operation.outcome == "refused" and states:
            faults.append(f"command {operation.id}: refused, and stored")
        elif operation.kind == "result" and operation.state not in states:
            faults.append(f"command {operation.id}: a client saw {operation.state}, and the end is {states}")
    return faults


def _check_answers(operations: list[Operation], content: Content) -> list[str]:
    answers: dict[str, list[str]] = defaultdict(list)
    for event in content.events:
        if event.type in ANSWERS and event.verdict == "applied":
            answers[event.approval].append(ANSWERS[event.type])
    faults = [
        f"approval {name}: is {state}, and has the applied answers {answers[name]}"
        for name, state in content.approvals.items()
        if answers[name] != ([] if state in UNANSWERED else [state])
    ]
    for operation in operations:
        if operation.kind == "answer" and operation.outcome == "acknowledged":
            state = content.approvals.get(operation.id, "lost")
            if state != operation.state:
                faults.append(f"approval {operation.id}: acknowledged as {operation.state}, and is {state}")
    return faults


def _check_readers(readers: list[Reader], content: Content) -> list[str]:
    faults: list[str] = []
    for number, reader in enumerate(readers):
        head = content.heads.get(reader.session, 0)
        name = f"reader {number} of session {reader.session}"
        if reader.seqs != list(range(1, len(reader.seqs) + 1)):
            faults.append(f"{name}: must receive 1 to N in order, {_describe_seqs(reader.seqs)}")
        elif len(reader.seqs) > head or (reader.is_complete and len(reader.seqs) < head):
            faults.append(f"{name}: received {len(reader.seqs)} events of {head}")
    return faults


# Reading a database


async def read_content(ledger: LocalLedger) -> Content:
    """Return what a ledger contains."""
    content = Content()
    store = ledger.log.store
    now = await store.clock()
    owners = {row.id: row.until for row in await store.owners()}
    sessions = [row async for row in _every_session(ledger)]
    for session in sessions:
        content.heads[session.name] = session.last_seq
        content.events += [_stored_event(session.name, event) for event in await read_events(ledger, session.name)]
        content.approvals |= {row.id: row.state for row in await store.approvals(session=session.name, limit=100_000)}
        cursor = ""
        while True:
            page = await store.calls(session=session.name, limit=1000, cursor=cursor)
            for row in page.items:
                is_owned = bool(row.owner) and not is_dead(row.owner) and owners.get(row.owner, 0) > now
                content.calls.append(
                    StoredCall(
                        id=row.id,
                        session=row.session,
                        state=row.state,
                        correlation_id=row.client_call_id,
                        is_command=bool(row.client),
                        has_owner=is_owned or row.lease > now or row.deadline > now,
                    )
                )
            cursor = page.cursor
            if not cursor:
                break
    return content


async def _every_session(ledger: LocalLedger) -> Any:
    cursor = ""
    while True:
        page = await ledger.sessions(limit=1000, cursor=cursor)
        for row in page.items:
            yield row
        cursor = page.cursor
        if not cursor:
            return


def _stored_event(session: str, event: ev.Event) -> StoredEvent:
    text = getattr(event, "text", "") or getattr(event, "output", "")
    return StoredEvent(
        session=session,
        seq=event.seq,
        type=str(event.__struct_config__.tag),
        text=text if isinstance(text, str) else "",
        call=getattr(event, "call", ""),
        approval=getattr(event, "approval", ""),
        verdict=event.verdict,
    )
