"""Turn drafts into events: find the call of each, decide its verdict, and append what follows from it.

This runs inside the store's transaction, reads only records, and changes only the unit of work. The rules about states,
texts and matching are in `lifecycle`, `redaction` and `projection`. What several sources recorded of a session is
compared in `merged_session`.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Sequence
from copy import copy
from itertools import groupby, pairwise
from typing import Any, NamedTuple, TypeVar, cast

import msgspec
from msgspec import structs

from callslip.errors import ConflictError, InvalidInputError, InvalidTransitionError, PermissionDeniedError
from callslip.ledger.merged_session import MergedSession
from callslip.ledger.unnamed_calls import with_place
from callslip.model import codec, ids
from callslip.model import events as ev
from callslip.model.events import Draft, Event, Verdict, encode_event
from callslip.model.names import (
    NEW_CALL_PREFIX,
    SOURCE_LEDGER,
    SOURCE_PYTHON,
    SUBAGENT_NAMESPACE,
    TRANSCRIPT_SOURCES,
    UNNAMED_NAMESPACE,
)
from callslip.model.records import ApprovalRecord, CallRecord, KeyRecord, SessionRecord, hold_text
from callslip.rules.agent_report import report_text
from callslip.rules.edited_title import retitle
from callslip.rules.lifecycle import (
    TERMINAL_STATES,
    TURN_CLOSES,
    CallMatch,
    classify_answer,
    classify_event,
    may_be_posted,
    proposal_of,
    repeats_refusal,
    resolve_call,
)
from callslip.rules.projection import (
    MESSAGE_NAMESPACE,
    TRANSCRIPT_READ,
    TURN_NAMESPACE,
    apply_event,
    input_mark,
)
from callslip.rules.redaction import Redactor
from callslip.rules.redaction_stream import (
    TEXT_STREAM,
    continues_text,
    hold_back,
    release_text,
    remember_release,
    stream_of,
    streams_closed_by,
    streams_of,
)
from callslip.rules.replayed_turns import (
    ReplayDecision,
    ReplayedTurn,
    TurnEvidence,
    comparable_prompt,
    decide_turns,
    left_out_notice,
    split_turns,
)
from callslip.rules.streamed_text import ends_text
from callslip.store.unit_of_work import UnitOfWork

E = TypeVar("E", bound=Event)
MS = 1000


class PostedAnswer(NamedTuple):
    """An answer in a posted message, with what it answers. The request is None if retention has removed it."""

    answer: ev.ApprovalAnswer
    approval: ApprovalRecord
    request: ev.ApprovalRequested | None
    call: CallRecord


AnswerCheck = Callable[[PostedAnswer], ev.ApprovalAnswer]
"""Return the answer to write for a posted one, or raise an error."""


class WriteContext(msgspec.Struct, frozen=True, kw_only=True):
    """The source and owner of a write, and its settings. With `strict` an impossible step raises an error.

    A write for a caller of a server has the caller's id and a check of the answers to requests for approval. `caller`
    is None for local writes.
    """

    redactor: Redactor
    source: str = ""
    owner: str = ""
    strict: bool = False
    caller: str | None = None
    check_answer: AnswerCheck | None = None
    ingest_lease: float = 600.0
    turn_grace: float = 2.0
    text_hold: float = 1.0


class WriteOperation:
    """One write to one session. `blank` is whether the session was empty when a replay began.

    `merged` knows what other sources have recorded of the session. `new_key` is one that is not stored, as the caller
    knows.
    """

    __slots__ = (
        "blank",
        "context",
        "merged",
        "named",
        "new_key",
        "now",
        "replaying",
        "session",
        "unit",
    )

    def __init__(self, unit: UnitOfWork, session: str, context: WriteContext) -> None:
        self.unit = unit
        self.context = context
        self.session: SessionRecord = unit.session_to_write(session)
        self.now = unit.now
        self.named: dict[str, str] = {}
        self.replaying = self.blank = False
        self.new_key = ""
        is_posted = context.caller is not None
        self.merged = MergedSession(unit, self.session, context.source, context.redactor, is_posted=is_posted)

    def run(self, drafts: Sequence[Draft]) -> list[Event]:
        """Write drafts and return their events in order; for a known key, the event that was written for it."""
        if not any(draft.adds == "turns" for draft in drafts):
            return self._write_drafts(drafts)
        events: list[Event] = []
        for is_replay, group in groupby(drafts, lambda draft: draft.adds == "turns"):
            part = list(group)
            events += self._write_replay(part) if is_replay else map(self._write_draft, part)
        return events

    def _write_drafts(self, drafts: Sequence[Draft]) -> list[Event]:
        events: list[Event] = []
        for draft, following in pairwise(drafts):
            if type(draft.event) is ev.TurnStarted and type(following.event) is ev.MessageUser:
                is_old = draft.witness or (bool(draft.key) and self._find_key(draft.key) is not None)
                self.merged.is_repeated = not is_old and self.merged.repeats_turn(draft.event, following.event)
            events.append(self._write_draft(draft))
        if drafts:
            events.append(self._write_draft(drafts[-1]))
        return events

    def _write_draft(self, draft: Draft) -> Event:
        event = draft.event
        if event.key and not draft.key:
            draft = structs.replace(draft, key=event.key)
        if draft.parent is not None:
            event = structs.replace(event, parent=self._find_parent(draft.parent))
        if draft.witness != self.replaying:
            self.replaying = draft.witness
            self.blank = not (self.session.turns or self.session.calls or self.session.message)
        if not draft.key and not draft.witness and isinstance(event, ev.CHUNKS):
            return self._write_chunk(event)
        if draft.key:
            earlier = self._find_by_key(draft)
            if earlier is not None:
                return earlier
            event = structs.replace(event, key=draft.key)
        done = self._write_event(event, draft.witness, adds_nothing=draft.adds == "nothing")
        if draft.key:
            mark = draft.mark or _digest(draft.event)
            self.unit.put_key(KeyRecord(self.session.name, draft.key, mark, done.seq))
        return done

    def _find_parent(self, alias: ev.Alias) -> str:
        """Return the call that a foreign id names; the foreign id itself if no call of the session has it."""
        return self.unit.alias(self.session.name, alias.ns, alias.id) or alias.id

    def _find_key(self, key: str) -> KeyRecord | None:
        return self.unit.key(self.session.name, key) if key != self.new_key else None

    def _find_by_key(self, draft: Draft) -> Event | None:
        """Return the event that was written for a key; refuse the key with another body."""
        record = self._find_key(draft.key)
        if record is None:
            return None
        event = self.unit.event(self.session.name, record.seq)
        if record.mark != (draft.mark or _digest(draft.event)):
            raise ConflictError(f"key {draft.key!r} was used before with another body", event)
        if event is None:
            raise ConflictError(f"key {draft.key!r} was used before; retention removed its event")
        return event

    def _write_event(self, event: Event, witness: bool = False, *, adds_nothing: bool = False) -> Event:
        if isinstance(event, ev.CallEvent):
            return self._write_call_event(event, witness, adds_nothing=adds_nothing)
        if witness and (adds_nothing or not self._is_unrecorded(event)):
            return self._append(event, "witness")
        if isinstance(event, ev.CHUNKS):
            return self._write_chunk(event)
        if isinstance(event, ev.MessageUser):
            return self._write_prompt(event)
        if isinstance(event, ev.MessageEnded) and self.merged.repeats_text(event):
            return self._append(event, "witness")  # The live text ends by its own source.
        if ends_text(event, known=False):
            self._release(TEXT_STREAM, remember=self.merged.is_of_transcript(event))  # The live text may continue.
        if isinstance(event, ev.TurnStarted):
            return self._start_turn(event)
        if isinstance(event, ev.TurnEnded):
            return self._end_turn(event)
        return self._append(event)

    # A session that was recorded live and read from the agent's session file

    def _write_chunk(self, event: ev.MessageDelta | ev.ThoughtDelta) -> Event:
        if self.merged.repeats_message(event):
            missing = self.merged.find_missing(event) if self.merged.is_whole(event) else ""
            return self._continue_text(event, missing) if missing else self._append(event, "witness")
        if self.merged.is_whole(event):
            return self._write_whole_text(structs.replace(event, text=self.context.redactor.text(event.text)))
        if self.session.carry and not event.message_id:
            found = self.merged.match_expected(event)
            if found is None:
                return self._append(event, "witness")
            event = found
        return self._append(self._hold_back(event))

    def _write_whole_text(self, event: ev.MessageDelta | ev.ThoughtDelta) -> Event:
        """Write a text of the session file, unless it was recorded live without an id."""
        if event.parent or not self.merged.has_live_prompts():
            self._release(TEXT_STREAM)
            return self._append(event)
        live = self.merged.find_live_texts()
        missing = live.match(type(event), event.text) if live is not None else None
        if missing == "":
            self.merged.repeated_message = event.message_id
            return self._append(event, "witness")
        if missing:
            done = self._continue_text(event, missing)
        else:
            if live is not None and live.is_open:  # Without an id of its own, the fold would continue that text.
                self._write_event(ev.MessageEnded(at=event.at, source=SOURCE_LEDGER))
            self._release(TEXT_STREAM)
            done = self._append(event)
        self.merged.expect(type(event), done.seq)
        return done

    def _continue_text(self, event: ev.MessageDelta | ev.ThoughtDelta, missing: str) -> Event:
        """Append the end of a text that was recorded live. What else of the message arrives live is a repetition."""
        held_text = self.session.carry.get(TEXT_STREAM)
        if held_text is not None and continues_text(held_text, event):
            hold_text(self.session, TEXT_STREAM, None)  # It is the beginning of what is missing.
        self._release(TEXT_STREAM)
        return self._append(structs.replace(event, text=missing, chunks="delta"))

    def _write_prompt(self, prompt: ev.MessageUser) -> Event:
        is_repeated, self.merged.is_repeated = self.merged.is_repeated, None
        if is_repeated is None:
            is_repeated = self.merged.repeats_prompt(prompt)
        if is_repeated:
            return self._append(prompt, "witness")
        if not (prompt.message_id or self.merged.is_of_transcript(prompt)):
            self.merged.expect_nothing()
        self._release(TEXT_STREAM, remember=self.merged.is_of_transcript(prompt))
        return self._append(prompt)

    def _append(self, event: Event, verdict: Verdict = "applied", *, source: str | None = None) -> Event:
        if verdict != "applied" and isinstance(event, ev.STREAMED):
            event = structs.replace(event, text=self.context.redactor.text(event.text))
        source = event.source or self.context.source if source is None else source
        return _append_event(self.unit, self.session, event, source=source, verdict=verdict)

    # Text that may begin a secret is held back until more of it arrives, its text ends, or its time is over.

    def _hold_back(self, event: ev.Streamed) -> ev.Streamed:
        redactor, held_texts = self.context.redactor, self.session.carry
        stream = stream_of(event) if held_texts else ""
        if isinstance(event, ev.CHUNKS) and (event.partial or event.rest):
            # From the copy of a log, which has split and redacted the text already.
            self._release(stream)
            return structs.replace(event, text=redactor.text(event.text))
        held_text = held_texts.get(stream)
        if held_text is None:
            out, tail = redactor.feed("", event.text)
            if not tail:
                return event if out is event.text else structs.replace(event, text=out)
            stream = stream_of(event)
        elif not event.text:
            return event
        timed = structs.replace(event, at=event.at or self.now, source=event.source or self.context.source)
        chunk = hold_back(redactor, held_text, timed, self.now + int(self.context.text_hold * MS))
        if chunk.first:
            self._release(stream)
        hold_text(self.session, stream, chunk.held)
        return chunk.event

    def release_due(self, until: int) -> None:
        """Append the held texts that are due by then, and remember them: the rest of a secret may follow."""
        due = [stream for stream, held_text in self.session.carry.items() if 0 < held_text.due <= until]
        self._release(*due, remember=True)

    def _release(self, *streams: str, remember: bool = False) -> None:
        """Append the held text of streams that have ended."""
        for stream in streams:
            held_text = self.session.carry.get(stream)
            if held_text is None:
                continue
            hold_text(self.session, stream, remember_release(self.context.redactor, held_text) if remember else None)
            event = release_text(self.context.redactor, held_text)
            if isinstance(event, ev.CallEvent):
                record = self.unit.call(event.call)
                verdict = classify_event(record, event)
                self._append(self._with_call(event, record, verdict), verdict, source=event.source)
            elif event is not None:
                self._append(event, source=event.source)  # The source of the text, not of its release.

    # Turns

    def _start_turn(self, event: ev.TurnStarted) -> Event:
        is_read = self.merged.is_of_transcript(event)
        if (self.merged.is_repeated and self.merged.is_same_turn) or (is_read and self.merged.has_live_turn()):
            return self._append(event, "witness")
        if is_read and self.merged.is_repeated is None and self.merged.is_within_live_turn(event):
            return self._append(event, "witness")
        if event.turn and self._is_open_turn(event.turn):
            return self._append(event, "duplicate")
        if self.session.turn:
            self._end_turn(ev.TurnEnded(reason="superseded", at=event.at, source=event.source))
        name, number = event.turn, self.session.turns + 1
        name = name or f"t{number}"
        while self.unit.alias(self.session.name, TURN_NAMESPACE, name) is not None:  # The name of an earlier turn.
            name += f".{number}"
        self.session.turn_owner = self.context.owner
        return self._append(structs.replace(event, turn=name))

    def _is_open_turn(self, name: str) -> bool:
        """Return whether the open turn was started with this name."""
        opened, number = self.session.turn, self.session.turns
        while len(name) < len(opened):
            name += f".{number}"
        return name == opened

    def _end_turn(self, event: ev.TurnEnded) -> Event:
        """End a turn. End calls that cannot finish without it now; start the grace period of the others."""
        is_read = self.merged.is_of_transcript(event)
        if not is_read:
            self.merged.expect_nothing()
        if not self.session.turn or (event.turn and not self._is_open_turn(event.turn)):
            return self._append(event, "witness" if is_read or self.merged.is_known(TRANSCRIPT_READ) else "orphan")
        end_class = TURN_CLOSES.get(event.reason)
        for call in self.unit.open_calls(self.session.name):
            if call.scope != "turn":
                continue
            if end_class is None:
                self._set_lease(call, owner="", lease=self.now + int(self.context.turn_grace * MS))
            else:
                self._release(*streams_of(call.id))
                reason = event.detail or f"the turn ended ({event.reason}) before the call did"
                self._append(end_class(call=call.id, reason=reason, at=event.at, source=event.source))
        self.session.turn_owner = ""
        return self._append(structs.replace(event, turn=self.session.turn))

    # Calls

    def _write_call_event(self, event: ev.CallEvent, witness: bool, *, adds_nothing: bool = False) -> Event:
        if isinstance(event, ev.ApprovalAnswer):
            return self._write_answer(event)
        event = with_place(self.unit, self.session.name, event, event.source or self.context.source)
        name = event.call if event.call.startswith(NEW_CALL_PREFIX) else ""
        if name:
            event = structs.replace(event, call=self.named.get(name, ""))
        record, match = self._find_call(event)
        if witness and (adds_nothing or record is not None):
            return self._append(self._with_call(event, record, "witness"), "witness")
        if match == "new":
            record = None
        verdict: Verdict = "duplicate" if match == "duplicate" else classify_event(record, event)
        other = self.merged.judge_repetition(event, record) if verdict != "applied" and record is not None else None
        if other is not None:
            event, verdict = other, "applied" if isinstance(other, ev.CallReported) else "witness"
        is_posted = self.context.caller is not None
        if verdict == "applied" and is_posted and record is not None and not may_be_posted(record, event):
            verdict = "illegal"
        if record is None and isinstance(event, ev.ApprovalRequested):
            proposal = cast(ev.CallProposed, self._write_event(proposal_of(event)))
            event = structs.replace(event, call=proposal.call, aliases=())
            record, verdict = self.unit.call(proposal.call), "applied"
        if verdict == "illegal" and self.context.strict:
            state = record.state if record else "none"
            raise InvalidTransitionError(
                f"{ev.type_of(event)} is not possible while call {event.call or '?'} is {state}"
            )
        if verdict == "applied":
            if is_posted and isinstance(event, ev.ApprovalRequested) and record is not None:
                self._check_requester(record)
            event = self._with_identity(event, record)
        else:
            event = self._with_call(event, record, verdict)
        if verdict == "applied":
            if self.session.carry:
                self._release(*(TEXT_STREAM,) * ends_text(event, known=record is not None), *streams_closed_by(event))
            if isinstance(event, ev.CallInputDelta | ev.CallProgress) and event.text:
                event = cast(ev.CallEvent, self._hold_back(event))
        done = cast(ev.CallEvent, self._append(event, verdict))
        if name:
            self.named[name] = done.call
        if verdict == "applied":
            self._renew_lease(done)
        return done

    def _find_call(self, event: ev.CallEvent) -> tuple[CallRecord | None, CallMatch]:
        """Find the call of an event: by execution id, or the newest call with the same foreign id, or a new one."""
        for alias in event.aliases:
            if alias.ns == SOURCE_LEDGER:
                return self._find_copy(event, alias.id)
        aliased = self._find_by_alias(event)
        if aliased is not None:
            return aliased, resolve_call(aliased, event, self.session.turn, self.context.source)
        record = self.unit.call(event.call) if event.call else None
        if record is None:
            return None, "new"
        if record.session != self.session.name:
            if event.aliases:
                return None, "new"
            raise InvalidInputError("call", f"{event.call} belongs to another session")
        return record, "same"

    def _find_copy(self, event: ev.CallEvent, original: str) -> tuple[CallRecord | None, CallMatch]:
        """Find the copy of a call. A repeated foreign id does not open a new call: the original log decided that."""
        call = self.unit.alias(self.session.name, SOURCE_LEDGER, original)
        record = self.unit.call(call) if call else None
        if record is None:
            return None, "new"
        is_repeated = len(event.aliases) > 1 and resolve_call(record, event, self.session.turn) == "duplicate"
        return record, "duplicate" if is_repeated else "same"

    def _find_by_alias(self, event: ev.CallEvent) -> CallRecord | None:
        for alias in event.aliases:
            call = self.unit.alias(self.session.name, alias.ns, alias.id)
            if call:
                return self.unit.call(call)
        return None

    def _with_identity(self, event: ev.CallEvent, record: CallRecord | None) -> ev.CallEvent:
        """Return an event to apply with the id of its call, a new id for a new call."""
        session = self.session.name
        if self.context.caller is not None:
            event = structs.replace(event, aliases=tuple(filter(self._is_free_alias, event.aliases)))
        if isinstance(event, ev.ApprovalRequested):
            approval = self._new_approval_id(event.approval)
            event = structs.replace(event, approval=approval, requested_by=self.context.caller or "")
        if record is not None:
            if isinstance(event, ev.CallReported):
                named = tuple(alias for alias in event.aliases if alias.ns == SUBAGENT_NAMESPACE)
                return structs.replace(event, call=record.id, aliases=named, entry=record.entry)
            known = (self.unit.alias(session, alias.ns, alias.id) == record.id for alias in event.aliases)
            new = tuple(
                alias
                for alias, is_known in zip(event.aliases, known, strict=True)
                if not is_known or alias.ns == UNNAMED_NAMESPACE
            )
            return structs.replace(event, call=record.id, aliases=new)
        if event.call and not ids.CALL.match(event.call):
            raise InvalidInputError("call", f"{event.call!r} is not an execution id. Pass foreign ids as aliases.")
        call = event.call
        if not call or self.unit.call(call) is not None:
            call = self.unit.new_call_id()
        named = (alias.id for alias in event.aliases if alias.ns != UNNAMED_NAMESPACE)
        reused = any(self.unit.has_alias(session, identity) for identity in named)
        return structs.replace(event, call=call, reused=reused)

    def _is_free_alias(self, alias: ev.Alias) -> bool:
        """Return whether a posted event may set an alias: not the id of a command that exists."""
        call = self.unit.alias(self.session.name, alias.ns, alias.id)
        record = self.unit.call(call) if call else None
        return record is None or not record.client

    def _with_call(self, event: E, record: CallRecord | None, verdict: Verdict) -> E:
        """Return an event with the id of its call; a late one or a report also with the entry that notes it."""
        if record is None or not isinstance(event, ev.CallEvent):
            return event
        is_report = isinstance(event, ev.CallEnd) and repeats_refusal(record, event) and bool(report_text(event))
        is_noted = verdict == "late" or (verdict == "duplicate" and is_report)
        return cast(E, structs.replace(event, call=record.id, entry=record.entry if is_noted else 0))

    def _write_answer(self, event: ev.ApprovalAnswer) -> Event:
        """Write an answer to a request. The first one counts; a later one raises ConflictError if strict."""
        if isinstance(event, ev.ApprovalReleased) and self.context.caller is not None:
            raise PermissionDeniedError("approval.released: only the program that waits for an answer can release it")
        approval = self.unit.approval(event.approval)
        if approval is not None and approval.session != self.session.name and event.aliases:
            approval = self.unit.approval(self._copied_approval_id(event.approval))
        if approval is None:
            record, _ = self._find_call(event)
            approval = self.unit.approval(record.approval) if record and record.approval else None
        if approval is not None and approval.session != self.session.name:
            if self.context.caller is None:
                raise InvalidInputError("approval", f"{approval.id} belongs to another session")
            approval = None  # The caller must not learn that it exists.
        record = self.unit.call(approval.call) if approval else None
        verdict = classify_answer(record, approval, event)
        if verdict != "applied" and self.context.strict:
            raise ConflictError(f"approval {event.approval} is not pending", approval)
        if approval is not None and record is not None and verdict == "applied":
            if self.context.check_answer is not None:
                posted = PostedAnswer(event, approval, self._find_request(approval), record)
                event = self.context.check_answer(posted)
            if isinstance(event, ev.ApprovalGranted):
                self._check_unchanged(approval, record)
                event = structs.replace(event, title=self._edited_title(event.input, approval, record))
        if approval is not None:
            event = structs.replace(event, approval=approval.id, aliases=())
        event = self._with_call(event, record, verdict)
        if verdict == "applied":
            self._release(*streams_closed_by(event))
        done = self._append(event, verdict)
        if verdict == "applied":
            self._renew_lease(event)
        return done

    def _find_request(self, approval: ApprovalRecord) -> ev.ApprovalRequested | None:
        event = self.unit.event(self.session.name, approval.entry)
        return event if isinstance(event, ev.ApprovalRequested) else None

    def _check_requester(self, record: CallRecord) -> None:
        """Refuse a posted request that would replace the pending request of another caller."""
        approval = self.unit.approval(record.approval) if record.approval else None
        request = self._find_request(approval) if approval and approval.state == "pending" else None
        if request is not None and (not self.context.caller or request.requested_by != self.context.caller):
            raise PermissionDeniedError(f"call {record.id} waits for the answer to a request of another caller")

    def _edited_title(self, input: Any, approval: ApprovalRecord, record: CallRecord) -> str | msgspec.UnsetType:
        """Return the title of a call with edited arguments; UNSET if it stays the same."""
        if input is msgspec.UNSET or not record.title or input_mark(input) == record.input_mark:
            return msgspec.UNSET
        events = (self._find_request(approval), self.unit.event(self.session.name, record.entry))
        inputs = [event.input for event in events if isinstance(event, ev.CallUpdate)]
        known = [before for before in inputs if input_mark(before) == record.input_mark]
        title = retitle(record.title, known[0], input) if known else ""  # Without a title, views show the arguments.
        return title if title != record.title else msgspec.UNSET

    def _check_unchanged(self, approval: ApprovalRecord, record: CallRecord | None) -> None:
        """Refuse an approval of changed arguments, except for a call that an external agent runs in any case."""
        is_checked = self.context.strict or self.context.check_answer is not None
        if not is_checked or record is None or record.input_mark == approval.input_mark:
            return
        request = self._find_request(approval)
        if request is None or request.source == SOURCE_PYTHON or record.client:
            raise ConflictError(
                f"the arguments of call {record.id} changed since approval {approval.id} was requested", approval
            )

    def _new_approval_id(self, preferred: str) -> str:
        """Return the preferred id if it is free; in a copy of a session, an id that its answers can derive."""
        for approval in (preferred, self._copied_approval_id(preferred)) if preferred else ():
            if self.unit.approval(approval) is None:
                return approval
        return self.unit.new_approval_id()

    def _copied_approval_id(self, approval: str) -> str:
        """Return the id that an approval of another session has in this copy."""
        return "appr_" + codec.digest(f"{self.session.name}\n{approval}".encode())[:12]

    # Leases

    def _renew_lease(self, event: ev.CallEvent) -> None:
        """Extend the life of a call: its owner keeps it alive, or without an owner each event about it."""
        record = self.unit.call(event.call)
        if record is None or record.state in TERMINAL_STATES:
            return
        if record.client:  # A command lives until its deadline, and while it runs, until its worker's lease ends.
            return self._set_lease(record, owner="", lease=record.lease if record.state == "running" else 0)
        is_new = record.entry == event.seq
        has_turn_ended = record.scope == "turn" and record.turn != self.session.turn
        lease = self.context.turn_grace if has_turn_ended and not is_new else self.context.ingest_lease
        owner = self.context.owner if is_new else record.owner
        self._set_lease(record, owner=owner, lease=0 if owner else self.now + int(lease * MS))

    def hold(self, record: CallRecord, seconds: float) -> int:
        """Give a command a lease, and return its end in ms since the epoch."""
        lease = self.now + int(seconds * MS)
        self._set_lease(record, owner="", lease=lease)
        return lease

    def _set_lease(self, record: CallRecord, *, owner: str, lease: int) -> None:
        if record.owner != owner or record.lease != lease:
            record = copy(record)
            record.owner, record.lease = owner, lease
            self.unit.put_call(record)

    # Replays

    def _write_replay(self, drafts: list[Draft]) -> list[Event]:
        """Write the replay of an agent: add the turns that are not recorded, if they follow everything recorded."""
        turns = split_turns([draft.event for draft in drafts])
        added: frozenset[int] = frozenset()
        notice: Draft | None = None
        # The drafts of an import that is repeated have keys, and events.
        if not any(draft.key and self.unit.key(self.session.name, draft.key) for draft in drafts):
            decision = self._decide_turns(turns)
            added = decision.unrecorded if decision.enters else added
            notice = self._left_out_notice(turns, decision, drafts[-1].event.at)
        events: list[Event] = []
        for number, turn in enumerate(turns):
            events += self._write_witnesses(drafts[len(events) : turn.start])
            write = self._add_turn if number in added else self._write_witnesses
            events += write(drafts[turn.start : turn.end])
        events += self._write_witnesses(drafts[len(events) :])
        if notice is not None:
            self._write_draft(notice)
        return events

    def _write_witnesses(self, drafts: list[Draft]) -> list[Event]:
        return [self._write_draft(structs.replace(draft, adds="nothing")) for draft in drafts]

    def _add_turn(self, drafts: list[Draft]) -> list[Event]:
        at = drafts[0].event.at
        self._write_event(ev.TurnStarted(at=at))
        events = [self._add_replayed(structs.replace(draft, witness=False, adds="events")) for draft in drafts]
        self._write_event(ev.TurnEnded(at=at))
        return events

    def _add_replayed(self, draft: Draft) -> Event:
        """Write an event of an added turn. Its call is new even if an earlier one had the same foreign id."""
        event = draft.event
        if isinstance(event, ev.CallEnd) and self._find_by_alias(event) is not None:
            names = ("at", "aliases", "tool_name", "title", "kind", "input")
            self._write_event(ev.CallProposed(**{name: getattr(event, name) for name in names}))
        return self._write_draft(draft)

    def _decide_turns(self, turns: list[ReplayedTurn]) -> ReplayDecision:
        """Compare the turns of a replay with the log. While a turn is open, what follows it is not known."""
        session = self.session
        prompts = [event for event in self.unit.user_messages(session.name) if not event.parent]
        decision = decide_turns(
            self._turn_evidence(turns, [prompt.seq for prompt in prompts]),
            [comparable_prompt(prompt.text) for prompt in prompts],
            is_blank=not (prompts or session.turns or session.calls or session.message),
            is_pruned=session.pruned_seq > 0,
        )
        return structs.replace(decision, enters=decision.enters and not session.turn)

    def _turn_evidence(self, turns: list[ReplayedTurn], starts: list[int]) -> list[TurnEvidence]:
        """Return what is recorded of each turn. The id of a call is no evidence if several turns have it."""
        uses = Counter(alias for turn in turns for alias in set(turn.calls))
        newest = self.session.message
        found: list[TurnEvidence] = []
        for turn in turns:
            records = [self._find_aliased(alias) for alias in turn.calls if uses[alias] == 1]
            entries = [record.entry for record in records if record is not None]
            known = [self._is_known_message(message) for message in turn.messages]
            evidence = TurnEvidence(
                None if turn.prompt is None else comparable_prompt(turn.prompt),
                bisect_left(starts, min(entries)) - 1 if entries else None,
                has_known_message=any(known),
                has_newest_message=bool(newest) and newest in turn.messages,
                has_only_new_messages=bool(known) and not any(known),
            )
            found.append(evidence)
        return found

    def _left_out_notice(self, turns: list[ReplayedTurn], decision: ReplayDecision, at: int) -> Draft | None:
        """Return a notice that counts what is only in the replay and is not added; None if it was counted before."""
        left_out = [] if decision.enters else [turns[number] for number in sorted(decision.unrecorded)]
        recorded = [turns[number] for number in range(decision.first, len(turns)) if number not in decision.unrecorded]
        calls = [alias for turn in recorded for alias in turn.calls if self._find_aliased(alias) is None]
        mark = codec.digest(codec.encode([[turn.prompt for turn in left_out], [alias.id for alias in calls]]))
        key = f"{SOURCE_LEDGER}.replay.{mark}"
        if not (left_out or calls) or self.unit.key(self.session.name, key) is not None:
            return None
        notice = ev.SessionInfo(notice=left_out_notice(len(left_out), len(calls)), source=SOURCE_LEDGER, at=at)
        return Draft(notice, key=key, mark=mark)

    def _find_aliased(self, alias: ev.Alias) -> CallRecord | None:
        call = self.unit.alias(self.session.name, alias.ns, alias.id)
        return self.unit.call(call) if call else None

    def _is_known_message(self, message_id: str) -> bool:
        live = self.unit.alias(self.session.name, MESSAGE_NAMESPACE, message_id)
        return live is not None or self.merged.is_known(message_id)

    def _is_unrecorded(self, event: Event) -> bool:
        """Return whether a replayed event is not in the log: by its id, or because the session was empty."""
        if isinstance(event, ev.PlanUpdated):
            return self.blank
        message_id = getattr(event, "message_id", None)
        if message_id:
            return not self._is_known_message(message_id)
        return message_id is None or self.blank


def _append_event(unit: UnitOfWork, session: SessionRecord, event: E, **fields: Any) -> E:
    """Append an event with these fields and the next seq. Without a time it gets that of the transaction."""
    session.updated_at = unit.now
    event = structs.replace(event, seq=session.last_seq + 1, at=event.at or unit.now, **fields)
    apply_event(unit, session, event)
    unit.add_event(session.name, event)
    return event


def _digest(event: Event) -> str:
    return codec.digest(encode_event(event))


def write_events(unit: UnitOfWork, session: str, drafts: Sequence[Draft], context: WriteContext) -> list[Event]:
    """Write drafts to a session, and return their events in order."""
    return WriteOperation(unit, session, context).run(drafts)


def write_chunk(unit: UnitOfWork, session: str, event: Event, context: WriteContext) -> list[Event]:
    """Write one chunk of text without a key, as `write_events` does, but in fewer steps: most events are chunks."""
    assert isinstance(event, ev.CHUNKS)
    record = unit.session_to_write(session)
    source = event.source or context.source
    may_repeat = event.message_id not in ("", record.message) or source in TRANSCRIPT_SOURCES
    if not (may_repeat or record.carry or event.partial or event.rest):
        text, held = context.redactor.feed("", event.text)
        if not held:
            return [_append_event(unit, record, event, source=source, text=text)]
    return write_events(unit, session, [Draft(event)], context)


def release_held_text(unit: UnitOfWork, session: str, until: int, context: WriteContext) -> None:
    """Append the texts of a session that are held back until a time in ms or until now, unless others came first."""
    if unit.session(session) is not None:
        WriteOperation(unit, session, context).release_due(max(until, unit.now))
