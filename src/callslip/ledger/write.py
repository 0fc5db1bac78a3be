"""From drafts to events: which call is meant, what the event is worth, what else must be appended with it.

Runs inside the store's transaction, on rows alone, with no effect but on the unit of work. Nothing here is a rule about
states, texts or pairing: those are asked of `lifecycle.py`, `redact.py` and `project.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from typing import TypeVar, cast

import msgspec
from msgspec import structs

from callslip.errors import ConflictError, InvalidInputError, InvalidTransitionError
from callslip.model import codec, ids
from callslip.model import events as ev
from callslip.model.events import Draft, Event, Verdict, encode_event
from callslip.model.names import NEW_CALL_PREFIX, SOURCE_LEDGER, SOURCE_PYTHON
from callslip.model.records import ApprovalRecord, CallRecord, HeldText, KeyRecord, SessionRecord
from callslip.rules.lifecycle import (
    TERMINAL_STATES,
    TURN_CLOSES,
    Meant,
    classify_answer,
    classify_event,
    proposal_of,
    resolve_call,
)
from callslip.rules.projection import MESSAGE, TURN, apply_event
from callslip.rules.redaction import Redactor
from callslip.rules.redaction_stream import TEXT, hold_back, release_text, stream_of, streams_closed_by, streams_of
from callslip.rules.streamed_text import ends_text
from callslip.store.unit_of_work import UnitOfWork

E = TypeVar("E", bound=Event)
MS = 1000


class WriteContext(msgspec.Struct, frozen=True, kw_only=True):
    """Who writes, and by which settings. `strict` raises where a foreign source's oddity would be recorded."""

    redactor: Redactor
    source: str = ""
    owner: str = ""
    strict: bool = False
    ingest_lease: float = 600.0
    turn_grace: float = 2.0


class WriteOperation:
    """One write to one session."""

    __slots__ = ("blank", "how", "named", "now", "replaying", "session", "unit")

    def __init__(self, unit: UnitOfWork, session: str, how: WriteContext) -> None:
        self.unit = unit
        self.how = how
        self.session: SessionRecord = unit.session_to_write(session)
        self.now = unit.now
        self.named: dict[str, str] = {}
        self.replaying = self.blank = False

    def run(self, drafts: Sequence[Draft]) -> list[Event]:
        """Every draft's event, in order; for a key that was seen before, the event it made then."""
        return [self._draft(draft) for draft in drafts]

    def _draft(self, draft: Draft) -> Event:
        event = draft.event
        if event.key and not draft.key:
            draft = structs.replace(draft, key=event.key)
        if draft.witness != self.replaying:
            self.replaying = draft.witness
            self.blank = not (self.session.turns or self.session.calls or self.session.message)
        if not draft.key and not draft.witness and isinstance(event, ev.CHUNKS):
            return self._append(self._hold_back(event))
        if draft.key:
            before = self._seen(draft)
            if before is not None:
                return before
            event = structs.replace(event, key=draft.key)
        done = self._event(event, draft.witness)
        if draft.key:
            mark = draft.mark or _mark(draft.event)
            self.unit.put_key(KeyRecord(self.session.name, draft.key, mark, done.seq))
        return done

    def _seen(self, draft: Draft) -> Event | None:
        """C7: the same key and body give the first result, another body is refused."""
        row = self.unit.key(self.session.name, draft.key)
        if row is None:
            return None
        event = self.unit.event(self.session.name, row.seq)
        if row.mark != (draft.mark or _mark(draft.event)):
            raise ConflictError(f"key {draft.key!r} was used before with another body", event)
        if event is None:
            raise ConflictError(f"key {draft.key!r} was used before; retention removed its event")
        return event

    def _event(self, event: Event, witness: bool = False) -> Event:
        if isinstance(event, ev.CallEvent):
            return self._call_event(event, witness)
        if witness and not self._is_news(event):
            return self._append(event, "witness")
        if isinstance(event, ev.CHUNKS):
            return self._append(self._hold_back(event))
        if ends_text(event, known=False):
            self._release(TEXT)
        if isinstance(event, ev.TurnStarted):
            return self._turn_started(event)
        if isinstance(event, ev.TurnEnded):
            return self._turn_ended(event)
        return self._append(event)

    def _append(self, event: Event, verdict: Verdict = "applied") -> Event:
        session = self.session
        session.updated_at = self.now
        if verdict != "applied" and isinstance(event, ev.STREAMED):
            event = structs.replace(event, text=self.how.redactor.text(event.text))
        event = structs.replace(
            event,
            seq=session.last_seq + 1,
            at=event.at or self.now,
            source=event.source or self.how.source,
            verdict=verdict,
        )
        apply_event(self.unit, session, event)
        self.unit.add_event(session.name, event)
        return event

    # Text that may begin a secret waits for what comes next.

    def _hold_back(self, event: ev.Streamed) -> ev.Streamed:
        redactor, waiting = self.how.redactor, self.session.carry
        stream = stream_of(event) if waiting else ""
        carry = waiting.get(stream)
        if carry is None:
            out, tail = redactor.feed("", event.text)
            if not tail:
                return event if out is event.text else structs.replace(event, text=out)
            stream = stream_of(event)
        elif not event.text:
            return event
        timed = structs.replace(event, at=event.at or self.now, source=event.source or self.how.source)
        held = hold_back(redactor, carry, timed)
        if held.first:
            self._release(stream)
        self._wait(stream, held.carry)
        return held.event

    def _wait(self, stream: str, carry: HeldText | None) -> None:
        others = {name: other for name, other in self.session.carry.items() if name != stream}
        self.session.carry = {**others, stream: carry} if carry is not None else others

    def _release(self, *streams: str) -> None:
        """Append what was held back of these streams: they go on no further."""
        for stream in streams:
            carry = self.session.carry.get(stream)
            if carry is None:
                continue
            self._wait(stream, None)
            event = release_text(self.how.redactor, carry)
            if isinstance(event, ev.CallEvent):
                row = self.unit.call(event.call)
                verdict = classify_event(row, event)
                self._append(self._about(event, row, verdict), verdict)
            elif event is not None:
                self._append(event)

    # Turns

    def _turn_started(self, event: ev.TurnStarted) -> Event:
        if event.turn and self._is_open(event.turn):
            return self._append(event, "duplicate")
        if self.session.turn:
            self._turn_ended(ev.TurnEnded(reason="superseded", at=event.at, source=event.source))
        name, number = event.turn, self.session.turns + 1
        name = name or f"t{number}"
        while self.unit.alias(self.session.name, TURN, name) is not None:  # Two turns are never taken for one.
            name += f".{number}"
        self.session.turn_owner = self.how.owner
        return self._append(structs.replace(event, turn=name))

    def _is_open(self, name: str) -> bool:
        """Whether the open turn is the one that began under this name."""
        opened, number = self.session.turn, self.session.turns
        while len(name) < len(opened):
            name += f".{number}"
        return name == opened

    def _turn_ended(self, event: ev.TurnEnded) -> Event:
        """Closes at once the turn's calls that nobody will finish; gives the others a moment."""
        if not self.session.turn or (event.turn and not self._is_open(event.turn)):
            return self._append(event, "orphan")
        closing = TURN_CLOSES.get(event.reason)
        for row in self.unit.open_calls(self.session.name):
            if row.scope != "turn":
                continue
            if closing is None:
                self._keep(row, owner="", lease=self.now + int(self.how.turn_grace * MS))
            else:
                self._release(*streams_of(row.id))
                reason = event.detail or f"the turn ended ({event.reason}) before the call did"
                self._append(closing(call=row.id, reason=reason, at=event.at, source=event.source))
        self.session.turn_owner = ""
        return self._append(structs.replace(event, turn=self.session.turn))

    # Calls

    def _call_event(self, event: ev.CallEvent, witness: bool) -> Event:
        if isinstance(event, ev.ApprovalAnswer):
            return self._answer(event)
        name = event.call if event.call.startswith(NEW_CALL_PREFIX) else ""
        if name:
            event = structs.replace(event, call=self.named.get(name, ""))
        row, meant = self._find(event)
        if witness and row is not None:
            return self._append(self._about(event, row, "witness"), "witness")
        if meant == "new":
            row = None
        verdict: Verdict = "duplicate" if meant == "duplicate" else classify_event(row, event)
        if row is None and isinstance(event, ev.ApprovalRequested):
            made = cast(ev.CallProposed, self._event(proposal_of(event)))
            event = structs.replace(event, call=made.call, aliases=())
            row, verdict = self.unit.call(made.call), "applied"
        if verdict == "illegal" and self.how.strict:
            state = row.state if row else "none"
            raise InvalidTransitionError(
                f"{ev.type_of(event)} is not possible while call {event.call or '?'} is {state}"
            )
        if verdict == "applied":
            event = self._applicable(event, row)
        else:
            event = self._about(event, row, verdict)
        if verdict == "applied":
            if self.session.carry:
                self._release(*(TEXT,) * ends_text(event, known=row is not None), *streams_closed_by(event))
            if isinstance(event, ev.CallInputDelta | ev.CallProgress) and event.text:
                event = cast(ev.CallEvent, self._hold_back(event))
        done = cast(ev.CallEvent, self._append(event, verdict))
        if name:
            self.named[name] = done.call
        if verdict == "applied":
            self._renew(done)
        return done

    def _find(self, event: ev.CallEvent) -> tuple[CallRecord | None, Meant]:
        """C1, C2: an execution id means itself; a foreign id means the newest call that bears it, or a new one."""
        for alias in event.aliases:
            if alias.ns == SOURCE_LEDGER:
                return self._find_copy(event, alias.id)
        aliased = self._by_alias(event)
        if aliased is not None:
            return aliased, resolve_call(aliased, event, self.session.turn)
        row = self.unit.call(event.call) if event.call else None
        if row is None:
            return None, "new"
        if row.session != self.session.name:
            if event.aliases:
                return None, "new"
            raise InvalidInputError("call", f"{event.call} belongs to another session")
        return row, "same"

    def _find_copy(self, event: ev.CallEvent, original: str) -> tuple[CallRecord | None, Meant]:
        """The copy of a call. An execution id never reopens; that a foreign one came again was decided before."""
        call = self.unit.alias(self.session.name, SOURCE_LEDGER, original)
        row = self.unit.call(call) if call else None
        if row is None:
            return None, "new"
        again = len(event.aliases) > 1 and resolve_call(row, event, self.session.turn) == "duplicate"
        return row, "duplicate" if again else "same"

    def _by_alias(self, event: ev.CallEvent) -> CallRecord | None:
        for alias in event.aliases:
            call = self.unit.alias(self.session.name, alias.ns, alias.id)
            if call:
                return self.unit.call(call)
        return None

    def _applicable(self, event: ev.CallEvent, row: CallRecord | None) -> ev.CallEvent:
        """The event with the identity of its call, minted when it makes one."""
        name = self.session.name
        if isinstance(event, ev.ApprovalRequested):
            event = structs.replace(event, approval=self._new_approval(event.approval))
        if row is not None:
            new = tuple(a for a in event.aliases if self.unit.alias(name, a.ns, a.id) != row.id)
            return structs.replace(event, call=row.id, aliases=new)
        if event.call and not ids.CALL.match(event.call):
            raise InvalidInputError("call", f"{event.call!r} is not an execution id; foreign ids are aliases")
        call = event.call or ids.call_id()
        while self.unit.call(call) is not None:
            call = ids.call_id()
        reused = any(self.unit.alias_known(name, alias.id) for alias in event.aliases)
        return structs.replace(event, call=call, reused=reused)

    def _about(self, event: E, row: CallRecord | None, verdict: Verdict) -> E:
        """An event that changes nothing, with what it was about; a late one says where its note goes."""
        if row is None or not isinstance(event, ev.CallEvent):
            return event
        return cast(E, structs.replace(event, call=row.id, entry=row.entry if verdict == "late" else 0))

    def _answer(self, event: ev.ApprovalAnswer) -> Event:
        """C7, S2.7: the first answer counts; in our own process a second one is told who won."""
        approval = self.unit.approval(event.approval)
        if approval is not None and approval.session != self.session.name and event.aliases:
            approval = self.unit.approval(self._copied(event.approval))
        if approval is None:
            row, _ = self._find(event)
            approval = self.unit.approval(row.approval) if row and row.approval else None
        if approval is not None and approval.session != self.session.name:
            raise InvalidInputError("approval", f"{approval.id} belongs to another session")
        row = self.unit.call(approval.call) if approval else None
        verdict = classify_answer(row, approval, event)
        if verdict != "applied" and self.how.strict:
            raise ConflictError(f"approval {event.approval} is not pending", approval)
        if approval is not None and isinstance(event, ev.ApprovalGranted) and verdict == "applied":
            self._check_unchanged(approval, row)
        if approval is not None:
            event = structs.replace(event, approval=approval.id, aliases=())
        event = self._about(event, row, verdict)
        if verdict == "applied":
            self._release(*streams_closed_by(event))
        done = self._append(event, verdict)
        if verdict == "applied":
            self._renew(event)
        return done

    def _check_unchanged(self, approval: ApprovalRecord, row: CallRecord | None) -> None:
        """S2.7: what a person saw is what runs. A foreign agent runs its call whatever we think of it."""
        if not self.how.strict or row is None or row.input_mark == approval.input_mark:
            return
        asked = self.unit.event(self.session.name, approval.entry)
        if asked is None or asked.source == SOURCE_PYTHON or row.client:
            raise ConflictError(
                f"the arguments of call {row.id} changed since approval {approval.id} was asked for", approval
            )

    def _new_approval(self, asked: str) -> str:
        """The id that is asked for if it is free; in a copy of a session one by which answers find it."""
        approval = asked or ids.approval_id()
        if self.unit.approval(approval) is not None:
            approval = self._copied(approval)
        while self.unit.approval(approval) is not None:
            approval = ids.approval_id()
        return approval

    def _copied(self, approval: str) -> str:
        """What an approval of another session is called in this one."""
        return "appr_" + codec.digest(f"{self.session.name}\n{approval}".encode())[:12]

    # Leases

    def _renew(self, event: ev.CallEvent) -> None:
        """A call lives by its owner; one that came without a connection lives by what is heard of it."""
        row = self.unit.call(event.call)
        if row is None or row.state in TERMINAL_STATES:
            return
        if row.client:  # A command lives until its deadline, and while it runs by its worker's lease.
            return self._keep(row, owner="", lease=row.lease if row.state == "running" else 0)
        fresh = row.entry == event.seq
        over = row.scope == "turn" and row.turn != self.session.turn
        lease = self.how.turn_grace if over and not fresh else self.how.ingest_lease
        owner = self.how.owner if fresh else row.owner
        self._keep(row, owner=owner, lease=0 if owner else self.now + int(lease * MS))

    def hold(self, row: CallRecord, seconds: float) -> int:
        """A worker holds a command for so long. Until when, in ms."""
        lease = self.now + int(seconds * MS)
        self._keep(row, owner="", lease=lease)
        return lease

    def _keep(self, row: CallRecord, *, owner: str, lease: int) -> None:
        if row.owner != owner or row.lease != lease:
            row = copy(row)
            row.owner, row.lease = owner, lease
            self.unit.put_call(row)

    # Replays

    def _is_news(self, event: Event) -> bool:
        """S2.11: what an agent replays is news only if nobody recorded it: by its id, or in a session still empty."""
        if isinstance(event, ev.PlanUpdated):
            return self.blank
        identity = getattr(event, "message_id", None)
        if identity:
            return self.unit.alias(self.session.name, MESSAGE, identity) is None
        return identity is None or self.blank


def _mark(event: Event) -> str:
    return codec.digest(encode_event(event))


def write_events(unit: UnitOfWork, session: str, drafts: Sequence[Draft], how: WriteContext) -> list[Event]:
    """Decide one write: the events it made, in the order of its drafts."""
    return WriteOperation(unit, session, how).run(drafts)
