"""A state machine test by Hypothesis: all operations on a ledger in a real file or on a real server, in any order.

The machine also holds the full log in memory and one live fold of it. After every step the log has no gap and no call
has ended twice. The rule `check_stored_view`, which also runs at the end, compares everything stored with the log.
"""

from __future__ import annotations

import asyncio
import contextlib
import tempfile
import time
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, TypeVar

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, initialize, invariant, precondition, rule
from msgspec import structs

import callslip
from callslip.api.ledger import LocalLedger
from callslip.errors import ConflictError, CursorExpiredError, InvalidTransitionError, NotFoundError
from callslip.ledger import checkpoint
from callslip.ledger.liveness import Reaper
from callslip.ledger.verify import verify
from callslip.model import events as ev
from callslip.model.entries import Entry, ToolCall
from callslip.model.events import Draft, Event
from callslip.model.records import CallRecord
from callslip.rules.fold import SessionFold
from callslip.rules.lifecycle import OPEN_STATES, TERMINAL_STATES, is_terminal
from callslip.settings import Settings
from tests.conftest import LONG
from tests.support import engines
from tests.support.paths import find_memory_folder
from tests.support.strategies import (
    KnownIds,
    any_event,
    call_events,
    call_sequences,
    canonical_json,
    interleave,
    text_sequences,
    weighted_choice,
)

T = TypeVar("T")
SETTINGS = Settings(synchronous="NORMAL", reaper_interval=10**6, text_hold=10**6, checkpoint_every=10**9, read_page=7)
REASONS = ["end_turn", "cancelled", "error", "eof", "max_tokens"]


class Clock:
    """The clock of the store."""

    def __init__(self) -> None:
        self.now = 1_700_000_000.0

    def time(self) -> float:
        return self.now

    def __getattr__(self, name: str) -> Any:
        return getattr(time, name)


class ExpectedSession:
    """The expected state of one session, from all its events."""

    def __init__(self, name: str) -> None:
        self.log: list[Event] = []
        self.state = SessionFold(name)
        self.known_ids = KnownIds()
        self.ended: set[str] = set()
        self.pruned_seq = 0
        self.open_entry_ids: set[int] = set()

    def add_events(self, events: list[Event]) -> None:
        for event in events:
            assert event.seq == len(self.log) + 1  # C8
            if isinstance(event, ev.CallEvent) and event.verdict == "applied" and is_terminal(event):
                assert event.call not in self.ended  # C4
                self.ended.add(event.call)
            self.log.append(event)
            self.state.apply(event)
        self.known_ids.add_events(events)

    def prune(self, pruned_seq: int) -> None:
        """Remove what retention removes: everything up to `pruned_seq` that is not open."""
        pruned = SessionFold()
        pruned.fold(self.log[:pruned_seq])
        pruned.take_finished()
        self.pruned_seq, self.open_entry_ids = pruned_seq, set(pruned.entries)
        removed_calls = {
            entry.call_id
            for entry in self.state.entries.values()
            if isinstance(entry, ToolCall) and not self.is_kept(entry)
        }
        self.ended -= removed_calls

    def has_event(self, seq: int, key: str) -> bool:
        """Return whether the event with this key was neither pruned nor deleted."""
        return self.pruned_seq < seq <= len(self.log) and self.log[seq - 1].key == key

    def is_kept(self, entry: Entry) -> bool:
        return entry.id > self.pruned_seq or entry.id in self.open_entry_ids

    def snapshot(self, name: str) -> bytes:
        snapshot = self.state.snapshot()
        entries = [entry for entry in snapshot.entries if self.is_kept(entry)]
        return canonical_json({"session": name, "seq": snapshot.seq, "info": snapshot.info, "entries": entries})


class Machine(RuleBasedStateMachine):
    """Two sessions of one ledger."""

    engine = engines.SQLITE

    keyed = Bundle("keyed")
    sessions = st.sampled_from(["a", "a", "a", "b"])
    picks = st.lists(st.integers(0, 3), min_size=4, max_size=20)

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.resources = contextlib.ExitStack()
        folder = self.resources.enter_context(tempfile.TemporaryDirectory(dir=find_memory_folder()))
        self.url = self.resources.enter_context(engines.new_database(self.engine, Path(folder) / "ledger.db"))
        self.clock = Clock()
        for patch in engines.list_clock_patches(self.engine, self.clock):
            self.resources.enter_context(patch)
        self.keys = 0
        self.session_models = {name: ExpectedSession(name) for name in ("a", "b")}
        self.ledger: LocalLedger
        self.reaper: Reaper

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        return self.loop.run_until_complete(coroutine)

    @initialize()
    def open(self) -> None:
        self.ledger = self.run(callslip.open(self.url, SETTINGS))
        context = self.ledger.log.write_context(source="callslip", strict=True)
        self.reaper = Reaper(self.ledger.log.store, context, SETTINGS, monotonic=self.clock.time)

    def teardown(self) -> None:
        try:
            if hasattr(self, "ledger"):
                self.check_stored_view()
                self.run(self.ledger.close())
        finally:
            self.loop.close()
            self.resources.close()

    # Writing

    def append(self, session: str, *drafts: Event | Draft, **options: Any) -> list[Event]:
        self.clock.now += 0.01
        stored = self.run(self.ledger.log.append(session, drafts, **options))
        self.catch_up()
        return stored

    def catch_up(self) -> None:
        for name, session_model in self.session_models.items():
            session_model.add_events(self.run(self.events_after(name, len(session_model.log))))

    async def events_after(self, session: str, after: int) -> list[Event]:
        return [event async for event in self.ledger.log.events(session, after)]

    def resolve(self, session: str, event: Event) -> Event:
        return self.session_models[session].known_ids.resolve(event)

    @rule(session=sessions, events=st.lists(any_event, min_size=1, max_size=6))
    def append_events(self, session: str, events: list[Event]) -> None:
        for event in events:
            self.append(session, self.resolve(session, event))

    @rule(
        session=sessions,
        sequences=st.lists(weighted_choice(call_sequences(), text_sequences()), min_size=2, max_size=4),
        picks=picks,
    )
    def append_one_by_one(self, session: str, sequences: list[list[Event]], picks: list[int]) -> None:
        for event in interleave(sequences, picks):
            self.append(session, event)

    @rule(
        session=sessions,
        sequences=st.lists(weighted_choice(call_sequences(), text_sequences()), min_size=2, max_size=4),
        picks=picks,
    )
    def append_at_once(self, session: str, sequences: list[list[Event]], picks: list[int]) -> None:
        self.append(session, *interleave(sequences, picks))

    @rule(session=sessions, event=call_events(), is_owned=st.booleans())
    def append_strictly(self, session: str, event: Event, is_owned: bool) -> None:
        """Strict: an invalid transition raises and nothing is appended."""
        last_seq = len(self.session_models[session].log)
        try:
            (stored,) = self.append(
                session, self.resolve(session, event), strict=True, owner=self.ledger.log.owner if is_owned else ""
            )
        except (InvalidTransitionError, ConflictError):
            self.catch_up()
            assert len(self.session_models[session].log) == last_seq
        else:
            assert stored.verdict != "illegal"

    @rule(target=keyed, session=sessions, event=any_event)
    def append_with_key(self, session: str, event: Event) -> tuple[str, Draft, int]:
        self.keys += 1
        draft = Draft(self.resolve(session, event), key=f"key-{self.keys}")
        (stored,) = self.append(session, draft)
        return session, draft, stored.seq

    @rule(sent=keyed)
    def retry_with_key(self, sent: tuple[str, Draft, int]) -> None:
        """C7: a retry gets the first result and appends nothing."""
        session, draft, seq = sent
        session_model = self.session_models[session]
        if not session_model.has_event(seq, draft.key):
            return
        last_seq, first = len(session_model.log), session_model.log[seq - 1]
        assert self.append(session, draft) == [first]
        assert len(session_model.log) == last_seq

    @rule(sent=consumes(keyed), event=any_event)
    def reuse_key(self, sent: tuple[str, Draft, int], event: Event) -> None:
        """C7: another body under the key is refused, with all other drafts of the write."""
        session, draft, seq = sent
        session_model = self.session_models[session]
        if not session_model.has_event(seq, draft.key):
            return
        last_seq = len(session_model.log)
        other = structs.replace(draft, event=structs.replace(draft.event, at=12345))
        with pytest.raises(ConflictError):
            self.append(session, self.resolve(session, event), other)
        self.catch_up()
        assert len(session_model.log) == last_seq

    # Calls

    def open_calls(self) -> list[CallRecord]:
        return self.run(self.ledger.log.store.open_calls())

    @rule(
        which=st.integers(0, 9), event=call_events([ev.CallStarted, ev.CallCompleted, ev.CallFailed, ev.CallCancelled])
    )
    def continue_call(self, which: int, event: Event) -> None:
        rows = self.open_calls()
        if rows:
            row = rows[which % len(rows)]
            (stored,) = self.append(row.session, structs.replace(event, call=row.id, aliases=()))
            assert stored.verdict == "applied" or (row.state, type(stored)) == ("awaiting_approval", ev.CallStarted)

    @rule(which=st.integers(0, 9), answer=st.sampled_from(["approve", "deny", "withdraw"]))
    def answer(self, which: int, answer: str) -> None:
        """S2.7: a pending approval is answered once; the second answer gets an error."""
        pending = self.run(self.ledger.approvals())
        if not pending:
            return
        row = pending[which % len(pending)]
        verbs = {"approve": self.ledger.approve, "deny": self.ledger.deny, "withdraw": self.ledger.withdraw}
        answered = self.run(verbs[answer](row.id, by="ann", reason="because"))
        self.catch_up()
        assert answered.state == {"approve": "granted", "deny": "refused", "withdraw": "withdrawn"}[answer]
        with pytest.raises(ConflictError):
            self.run(self.ledger.deny(row.id, by="bob"))

    @rule(seconds=st.sampled_from([1, 3, 400, 10_000]))
    def time_passes(self, seconds: int) -> None:
        """C5: only calls that are not renewed end."""
        before = {row.id: row for row in self.open_calls()}
        self.run(self.reaper.reap())
        self.clock.now += seconds
        self.run(self.reaper.reap())
        self.catch_up()
        now = self.clock.now * 1000
        for call in before.keys() - {row.id for row in self.open_calls()}:
            row = before[call]
            is_pending = row.state == "awaiting_approval"
            assert is_pending or 0 < row.lease <= now or 0 < row.deadline <= now
        if seconds >= 10_000:
            assert not [row for row in self.open_calls() if not row.owner]

    # Turns

    @rule(session=sessions)
    def begin_turn(self, session: str) -> None:
        self.append(session, ev.TurnStarted())

    @rule(session=sessions, reason=st.sampled_from(REASONS))
    def end_turn(self, session: str, reason: str) -> None:
        """C5: an interrupted turn leaves none of its calls open."""
        (stored,) = self.append(session, ev.TurnEnded(reason=reason))
        if stored.verdict == "applied" and reason in ("cancelled", "error", "eof"):
            assert not [row for row in self.open_calls() if row.session == session and row.scope == "turn"]

    # Maintenance

    @rule()
    def reopen(self) -> None:
        """C5: the calls of this process end with it; nothing else changes."""
        owned_calls = [row.id for row in self.open_calls() if row.owner]
        self.run(self.ledger.close())
        self.open()
        self.catch_up()
        for call in owned_calls:
            row = self.run(self.ledger.log.store.call(call))
            assert row is not None and row.state == "lost"

    @rule(session=sessions)
    def make_checkpoint(self, session: str) -> None:
        self.run(self.ledger.log.project(session))

    @precondition(lambda self: any(len(session_model.log) > 10 for session_model in self.session_models.values()))
    @rule(session=sessions, fraction=st.floats(0, 1))
    def prune_session(self, session: str, fraction: float) -> None:
        """Retention: the remaining part reads as before, and an older cursor raises an error."""
        session_model = self.session_models[session]
        if not session_model.log:
            return
        before = session_model.log[int(fraction * (len(session_model.log) - 1))].at + 1
        removed = self.run(checkpoint.prune(self.ledger.log.store, session, before))
        row = self.run(self.ledger.log.store.session(session))
        assert row is not None and row.pruned_seq == session_model.pruned_seq + removed
        if removed:
            session_model.prune(row.pruned_seq)
            with pytest.raises(CursorExpiredError):
                self.run(self.ledger.log.state_at(session, row.pruned_seq - 1))

    @precondition(lambda self: any(len(session_model.log) > 60 for session_model in self.session_models.values()))
    @rule(session=sessions)
    def delete_session(self, session: str) -> None:
        if self.session_models[session].log:
            self.run(self.ledger.delete(session))
            self.session_models[session] = ExpectedSession(session)
            with pytest.raises(NotFoundError):
                self.run(self.ledger.snapshot(session))

    @rule()
    def check_stored_view(self) -> None:
        """C9: after any operations the stored view is the fold of the log, and rebuilding gives the same."""
        assert self.run(verify(self.ledger.log)) == []
        for name, session_model in self.session_models.items():
            if session_model.log:
                expected = session_model.snapshot(name)
                assert canonical_json(self.run(self.ledger.snapshot(name))) == expected
                assert canonical_json(self.run(self.ledger.log.state_at(name)).snapshot()) == expected

    @invariant()
    def rows_match_entries(self) -> None:
        """The state of every call is the same in its row and in its entry."""
        if not hasattr(self, "ledger"):
            return
        rows = {row.id: row.state for row in self.open_calls()}
        open_in_folds = {
            entry.call_id: entry.status
            for session_model in self.session_models.values()
            for entry in session_model.state.calls.values()
        }
        assert rows == open_in_folds
        assert set(rows.values()) <= OPEN_STATES and not set(rows.values()) & TERMINAL_STATES


class PostgresMachine(Machine):
    """The same on PostgreSQL."""

    engine = engines.POSTGRES


TestMachine = Machine.TestCase
TestMachine.settings = settings(stateful_step_count=30)
TestPostgresMachine = pytest.mark.postgres(PostgresMachine.TestCase)
TestPostgresMachine.settings = settings(
    stateful_step_count=30, max_examples=settings().max_examples // (1 if LONG else engines.POSTGRES_SHARE)
)
