"""The store in normal operation: one suite for every engine, then tests of SQLite files and of listeners."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator
from pathlib import Path

import apsw
import msgspec
import pytest
from msgspec import UNSET

import callslip
from callslip.api.ledger import LocalLedger
from callslip.cli.commands.ls import session_json
from callslip.errors import (
    AmbiguousIdError,
    ConflictError,
    CursorExpiredError,
    InvalidInputError,
    NotFoundError,
    ReadOnlyStoreError,
    StoreError,
)
from callslip.http.schemas import session_view
from callslip.ledger.liveness import new_owner
from callslip.ledger.verify import verify
from callslip.model import events as ev
from callslip.model import ids
from callslip.model.entries import Set
from callslip.model.events import Alias, Draft, decode_event, encode_event
from callslip.model.records import CallRecord, ListedSession, OwnerRecord, TokenRecord
from callslip.rules.fold import SessionFold
from callslip.settings import Settings
from callslip.store import sqlite_open
from callslip.store.protocol import Checkpoint, Progress, StoredEvent
from callslip.store.sql import migrations
from tests.support import engines
from tests.support.invariants import find_faults, open_with_settings, read_events
from tests.support.tasks import TIMEOUT_S


def messages(*texts: str) -> list[ev.Event]:
    return [ev.MessageUser(text=text) for text in texts]


def _turn_names(stored: list[ev.Event]) -> list[str]:
    return [event.turn for event in stored if isinstance(event, ev.TurnStarted | ev.TurnEnded)]


class StoreSuite:
    """The tests of every engine. A subclass has a fixture `engine` with its name."""

    pytestmark = pytest.mark.anyio

    @pytest.fixture
    def url(self, db: str) -> str:
        return db

    @pytest.fixture
    async def ledger(self, url: str) -> AsyncIterator[LocalLedger]:
        ledger = await callslip.open(url, Settings(read_page=3))
        try:
            yield ledger
        finally:
            await ledger.close()

    # Order

    async def test_each_session_numbers_its_events_from_1(self, ledger: LocalLedger) -> None:
        """C8: seq is 1, 2, 3 ... in each session, independent of the others."""
        for number in range(1, 6):
            for session in ("a", "b"):
                (event,) = await ledger.log.append(session, messages(f"{session}{number}"))
                assert event.seq == number

    async def test_concurrent_writers_leave_no_gap_in_the_log(self, ledger: LocalLedger) -> None:
        """C8: 64 writers to one session each get seqs of their own, and together all of them."""
        stored = await asyncio.gather(*(ledger.log.append("a", messages(f"{n}", f"{n}!")) for n in range(64)))
        assert sorted(event.seq for batch in stored for event in batch) == list(range(1, 129))
        assert all(second.seq == first.seq + 1 for first, second in stored)
        assert {event.seq: event for event in await read_events(ledger, "a")} == {
            e.seq: e for batch in stored for e in batch
        }

    async def test_a_clock_running_backwards_does_not_change_the_event_order(
        self, ledger: LocalLedger, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """C8: the order of events does not depend on clocks."""
        for number, now in enumerate((5000.0, 3000.0, 4000.0)):
            monkeypatch.setattr(time, "time", lambda now=now: now)
            await ledger.log.append("a", messages(str(number)))
        assert [event.text for event in await read_events(ledger, "a")] == ["0", "1", "2"]

    # Writing

    async def test_append_returns_the_events_as_they_are_read(self, ledger: LocalLedger) -> None:
        """C9: an event is the same to its writer, to a reader, and after a reopening."""
        drafts = [
            ev.TurnStarted(),
            *messages("hello \u00e4 \U0001f600 \x00"),
            ev.PlanUpdated(entries=[{"content": "x"}]),
        ]
        stored = await ledger.log.append("a", drafts, source="test")
        assert await read_events(ledger, "a") == stored
        assert [(event.source, event.verdict) for event in stored] == [("test", "applied")] * 3

    async def test_the_log_is_read_in_pages(self, ledger: LocalLedger) -> None:
        """A log longer than a page is read completely, from any cursor and up to any seq."""
        await ledger.log.append("a", messages(*"abcdefgh"))
        assert "".join(event.text for event in await read_events(ledger, "a")) == "abcdefgh"
        assert "".join(event.text for event in await read_events(ledger, "a", 5)) == "fgh"
        assert "".join([event.text async for event in ledger.events("a", 1, 4)]) == "bcd"
        assert await read_events(ledger, "a", 8) == [] and await read_events(ledger, "nothing") == []

    async def test_a_repeated_key_returns_the_first_result(self, ledger: LocalLedger) -> None:
        """C7: sending again under a key appends nothing and answers as before."""
        (first,) = await ledger.log.append("a", [Draft(ev.MessageUser(text="once"), key="k")])
        (repeated,) = await ledger.log.append("a", [Draft(ev.MessageUser(text="once"), key="k")])
        assert repeated == first and len(await read_events(ledger, "a")) == 1

    async def test_a_key_repeated_in_a_batch_is_a_single_event(self, ledger: LocalLedger) -> None:
        """C7: also where the first has not been written yet."""
        draft = Draft(ev.MessageUser(text="once"), key="k")
        first, repeated = await ledger.log.append("a", [draft, draft])
        assert first == repeated and len(await read_events(ledger, "a")) == 1

    async def test_concurrent_writes_with_the_same_key_are_a_single_event(self, ledger: LocalLedger) -> None:
        """C7: concurrent writers of the same draft all get the same event."""
        draft = Draft(ev.MessageUser(text="once"), key="k")
        stored = await asyncio.gather(*(ledger.log.append("a", [draft]) for _ in range(20)))
        assert all(batch == stored[0] for batch in stored) and len(await read_events(ledger, "a")) == 1

    async def test_the_same_key_with_another_body_is_a_conflict(self, ledger: LocalLedger) -> None:
        """C7: the second is refused with the first as winner, and nothing of its batch is written."""
        (first,) = await ledger.log.append("a", [Draft(ev.MessageUser(text="one"), key="k")])
        with pytest.raises(ConflictError) as refusal:
            await ledger.log.append("a", [*messages("before"), Draft(ev.MessageUser(text="two"), key="k")])
        assert refusal.value.current == first and len(await read_events(ledger, "a")) == 1

    async def test_a_key_is_unique_only_within_its_session(self, ledger: LocalLedger) -> None:
        """C7: another session may use the same key for something else."""
        for session in ("a", "b"):
            await ledger.log.append(session, [Draft(ev.MessageUser(text=session), key="k")])
        assert [event.text for event in await read_events(ledger, "b")] == ["b"]

    async def test_a_batch_is_written_completely_or_not_at_all(self, ledger: LocalLedger) -> None:
        """An invalid transition fails its whole batch, but not concurrent writes."""
        proposed = ev.CallProposed(tool_name="t")
        orphan = ev.CallRequeued(call="exec_000000000000")
        (started,) = await ledger.log.append("a", [proposed])
        invalid = [*messages("first"), ev.CallRequeued(call=started.call), *messages("last")]
        results = await asyncio.gather(
            ledger.log.append("a", messages("left")),
            ledger.log.append("a", invalid, strict=True),
            ledger.log.append("a", messages("right")),
            return_exceptions=True,
        )
        assert [isinstance(result, list) for result in results] == [True, False, True]
        assert [getattr(event, "text", "") for event in await read_events(ledger, "a")] == ["", "left", "right"]
        assert (await ledger.log.append("a", [orphan]))[0].verdict == "orphan"

    async def test_appending_no_events_creates_no_session(self, ledger: LocalLedger) -> None:
        """A session exists from its first event on."""
        assert await ledger.log.append("a", []) == []
        assert await ledger.log.store.session("a") is None

    async def test_a_cancelled_append_does_not_affect_other_writers(self, ledger: LocalLedger) -> None:
        """A cancelled append is written completely or not at all, and later ones work."""
        tasks = [asyncio.create_task(ledger.log.append("a", messages(f"{n}", f"{n}"))) for n in range(20)]
        await asyncio.sleep(0)
        for task in tasks[::2]:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await ledger.log.append("a", messages("end", "end"))
        texts = [event.text for event in await read_events(ledger, "a")]
        assert texts[-1] == "end" and texts[::2] == texts[1::2]
        assert {str(n) for n in range(1, 20, 2)} <= set(texts)

    async def test_listeners_get_each_durable_event_once_in_order(self, ledger: LocalLedger) -> None:
        """C6: listeners get durable events, all of them, in order and once."""
        received: list[StoredEvent] = []
        ledger.log.store.on_commit(received.extend)
        stored = await asyncio.gather(*(ledger.log.append("a", messages(str(n))) for n in range(10)))
        assert [stored.event.seq for stored in received] == list(range(1, 11))
        assert [stored.event for stored in received] == sorted((b[0] for b in stored), key=lambda event: event.seq)
        bodies = await ledger.log.store.events("a", 0, 100)
        assert bodies == [(stored.event.seq, stored.body) for stored in received]

    async def test_changes_by_another_ledger_are_detected(self, ledger: LocalLedger, url: str) -> None:
        """A reader learns that another process may have written, also if it wrote before the reader waits."""
        async with await callslip.open(url) as other, asyncio.timeout(TIMEOUT_S):
            for number in range(1, 4):
                await other.log.append("a", messages(str(number)))
                changes = await ledger.log.store.wait_changes()
                while changes.sessions is not None and changes.sessions["a"] < number:  # Of an earlier write.
                    changes = await ledger.log.store.wait_changes()
                assert changes.sessions is None or changes.sessions["a"] == number
                assert len(await read_events(ledger, "a")) == number

    async def test_changed_commands_are_read_after_a_cursor(self, ledger: LocalLedger, url: str) -> None:
        """Those of other processes, as they are now, in pages; `change` grows with each write."""
        store = ledger.log.store
        async with await callslip.open(url) as other:
            before = await other.commands.submit("before")
            cursor = await store.change_cursor()
            page, cursor = await store.commands_changed(cursor, 10)
            assert {record.id for record in page} <= {before.correlation_id}  # At least once: it may be read again.
            await ledger.commands.submit("own")
            names = {(await other.commands.submit(f"a{number}")).correlation_id for number in range(5)}
            await other.commands.cancel(before.correlation_id)
            found: dict[str, CallRecord] = {}
            while not found or len(page) == 2:
                page, cursor = await store.commands_changed(cursor, 2)
                found |= {record.id: record for record in page}
            assert names | {before.correlation_id} <= set(found) and found[before.correlation_id].state == "cancelled"
            await other.commands.cancel(min(names))
            page, _ = await store.commands_changed(cursor, 10)
            (cancelled,) = (record for record in page if record.id == min(names))
            assert cancelled.change > found[min(names)].change

    async def test_two_ledgers_write_the_same_session_without_gaps(self, ledger: LocalLedger, url: str) -> None:
        """C8: the store sets the order, however many ledgers write."""
        async with await callslip.open(url) as other:
            await asyncio.gather(*((ledger, other)[n % 2].log.append("a", messages(str(n))) for n in range(60)))
            assert sorted(int(event.text) for event in await read_events(ledger, "a")) == list(range(60))
            assert not await find_faults(ledger)

    # Sessions

    async def test_sessions_are_listed_last_written_first(self, ledger: LocalLedger) -> None:
        """Pages of any size together list every session once."""
        for number in range(7):
            await ledger.log.append(f"s{number}", messages("x"))
        await ledger.log.append("s0", messages("again"))
        names: list[str] = []
        cursor = ""
        while True:
            page = await ledger.sessions(limit=3, cursor=cursor)
            names += [row.name for row in page.items]
            cursor = page.cursor
            if not cursor:
                break
        assert sorted(names) == [f"s{number}" for number in range(7)]
        assert (await ledger.sessions(limit=1)).items[0].updated_at >= (await ledger.sessions()).items[-1].updated_at

    async def test_a_session_is_found_by_name_prefix_or_last(self, ledger: LocalLedger) -> None:
        """An ambiguous prefix is refused with the matching names; an exact name is never ambiguous."""
        for name in ("thread", "thread-1", "thread-2", "other"):
            await ledger.log.append(name, messages("x"))
            await asyncio.sleep(0.002)
        assert (await ledger.find_session("thread")).name == "thread"
        assert (await ledger.find_session("oth")).name == "other"
        assert (await ledger.find_session("@last")).name == "other"
        with pytest.raises(AmbiguousIdError, match="thread-1"):
            await ledger.find_session("thread-")
        with pytest.raises(NotFoundError, match="nobody"):
            await ledger.find_session("nobody")

    async def test_any_valid_name_can_be_a_session(self, ledger: LocalLedger) -> None:
        """Names that look like SQL, patterns or other scripts are only names."""
        names = [
            "'; DROP TABLE events;--",
            "%",
            "_",
            "a b",
            "\u00e9",
            "\u65e5\u672c",
            "\U0001f600",
            "A",
            "a",
            "x" * 200,
            "\U0010ffff" * 50,
        ]
        for name in names:
            await ledger.log.append(name, messages(name))
        for name in names:
            assert [event.text for event in await read_events(ledger, name)] == [name]
        assert {row.name for row in (await ledger.sessions()).items} == set(names)

    async def test_deleting_a_session_removes_all_its_data(self, ledger: LocalLedger) -> None:
        """Deleting removes events, calls, foreign ids, keys and approvals; the name can start again at 1."""
        proposed = ev.CallProposed(tool_name="t", aliases=(Alias("acp", "c1"),))
        await ledger.log.append("a", [Draft(proposed, key="k"), ev.ApprovalRequested(aliases=(Alias("acp", "c1"),))])
        await ledger.log.append("b", messages("stays"))
        call = await ledger.find_call("c1")
        await ledger.delete("a")
        with pytest.raises(NotFoundError):
            await ledger.delete("a")
        assert await ledger.log.store.call(call.id) is None and await ledger.log.store.alias("c1") == []
        assert await ledger.approvals() == [] and await read_events(ledger, "a") == []
        (event,) = await ledger.log.append("a", [Draft(ev.MessageUser(text="another body"), key="k")])
        assert event.seq == 1 and not await find_faults(ledger)

    # Calls

    async def test_a_call_is_found_by_id_prefix_alias_or_last(self, ledger: LocalLedger) -> None:
        """C1: a call is found by each of its ids."""
        (stored,) = await ledger.log.append("a", [ev.CallProposed(tool_name="t", aliases=(Alias("acp", "toolu_1"),))])
        assert ids.CALL.fullmatch(stored.call)
        for id_or_prefix in (stored.call, stored.call[:9], "toolu_1", "@last"):
            assert (await ledger.find_call(id_or_prefix)).id == stored.call
        with pytest.raises(NotFoundError):
            await ledger.find_call("toolu_2")

    async def test_an_ambiguous_alias_lists_its_candidates(self, ledger: LocalLedger) -> None:
        """C1: the same foreign id in two sessions is resolved by the session."""
        stored = [
            (await ledger.log.append(session, [ev.CallProposed(tool_name="t", aliases=(Alias("acp", "c"),))]))[0].call
            for session in ("a", "b")
        ]
        with pytest.raises(AmbiguousIdError) as refusal:
            await ledger.find_call("c")
        assert sorted(call.id for call in refusal.value.current) == sorted(stored)  # type: ignore[attr-defined]
        assert (await ledger.find_call("c", "b")).id == stored[1]

    async def test_a_call_id_that_is_taken_is_generated_again(
        self, ledger: LocalLedger, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """C1: after a collision of random ids another id is generated."""
        generated = iter(["exec_00000000000a", "exec_00000000000a", "exec_00000000000a", "exec_00000000000b"])
        monkeypatch.setattr(ids, "call_id", lambda: next(generated))
        (first,) = await ledger.log.append("a", [ev.CallProposed(tool_name="t")])
        (second,) = await ledger.log.append("b", [ev.CallProposed(tool_name="t")])
        assert (first.call, second.call) == ("exec_00000000000a", "exec_00000000000b")

    async def test_an_event_for_a_call_of_another_session_is_refused(self, ledger: LocalLedger) -> None:
        """C1: an execution id is unique in the ledger, so it cannot name a call of another session."""
        (stored,) = await ledger.log.append("a", [ev.CallProposed(tool_name="t")])
        with pytest.raises(InvalidInputError, match="another session"):
            await ledger.log.append("b", [ev.CallCompleted(call=stored.call)])

    async def test_calls_are_listed_newest_first_by_state_and_session(self, ledger: LocalLedger) -> None:
        """Pages of any size together list every call once."""
        for number in range(8):
            session = f"s{number % 2}"
            (stored,) = await ledger.log.append(session, [ev.CallProposed(tool_name=f"t{number}")])
            if number % 3 == 0:
                await ledger.log.append(session, [ev.CallCompleted(call=stored.call)])
            await asyncio.sleep(0.002)
        tools: list[str] = []
        cursor = ""
        while True:
            page = await ledger.calls(limit=3, cursor=cursor)
            tools += [row.tool for row in page.items]
            cursor = page.cursor
            if not cursor:
                break
        assert tools == [f"t{number}" for number in range(7, -1, -1)]
        assert {row.tool for row in (await ledger.calls(states=["completed"])).items} == {"t0", "t3", "t6"}
        assert {row.tool for row in (await ledger.calls(session="s1", states=["queued"])).items} == {"t1", "t5", "t7"}

    async def test_call_rows_match_the_events_of_the_log(self, ledger: LocalLedger) -> None:
        """C4: a call's row has the state that its events lead to, with its times and its end."""
        alias = (Alias("acp", "c"),)
        await ledger.log.append("a", [ev.TurnStarted(), ev.CallProposed(tool_name="mcp__x__read", aliases=alias)])
        await ledger.log.append("a", [ev.CallStarted(aliases=alias, attempt=2, worker="w")])
        row = await ledger.find_call("c")
        assert (row.state, row.tool, row.attempt, row.worker, row.turn) == ("running", "read", 2, "w", "t1")
        (ended,) = await ledger.log.append("a", [ev.CallFailed(aliases=alias, error="no", reason="broken")])
        row = await ledger.find_call("c")
        assert (row.state, row.end, row.reason, row.ended_at) == ("failed", ended.seq, "broken", ended.at)
        assert await ledger.log.ending_event(row) == ended
        assert await ledger.log.store.open_calls() == []

    # Blobs, checkpoints, retention, owners of calls

    async def test_blobs_are_stored_once_per_content(self, ledger: LocalLedger) -> None:
        """S2.8: a value of any size is read back completely, and the same value is stored once."""
        data = os.urandom(3 * 2**20 + 17)
        first = await ledger.log.store.put_blob(data, "application/octet-stream")
        assert await ledger.log.store.put_blob(data, "application/octet-stream") == first
        assert await ledger.log.store.blob(first) == (data, "application/octet-stream")
        assert await ledger.blob(await ledger.log.store.put_blob(b"", "text/plain")) == b""
        with pytest.raises(NotFoundError):
            await ledger.blob("00")

    async def test_retention_deletes_unused_blobs_after_a_day(self, ledger: LocalLedger, url: str) -> None:
        """S2.8: also if it removes no event. A newer one may belong to an event that is about to be written."""
        store = ledger.log.store
        await ledger.log.append("a", [ev.CallCompleted(output="used " * 50_000)])
        (event,) = await read_events(ledger, "a")
        old, new = [await store.put_blob(os.urandom(2 * 2**20), "") for _ in range(2)]
        engines.change_rows(url, "UPDATE blobs SET created_at = 1000 WHERE hash <> ?", new)
        assert await ledger.prune(3600) == 0
        assert await store.blob(old) is None and await store.blob_piece(old, 1) == b""
        assert await store.blob(new) is not None and await store.blob(event.blob.hash) is not None
        assert not await find_faults(ledger)

    async def test_a_stale_checkpoint_is_not_saved(self, ledger: LocalLedger) -> None:
        """Of two concurrent projectors the second one changes nothing."""
        await ledger.log.append("a", messages("x", "y"))
        await ledger.log.project("a")
        stale = Progress("a", 1, Checkpoint(9, 1, b"{}"), [], [], [], [])
        assert not await ledger.log.store.save_progress(stale)
        at = await ledger.log.store.checkpoint("a")
        assert at is not None and at.seq == 2
        assert not await ledger.log.store.save_progress(Progress("nobody", 0, Checkpoint(9, 1, b"{}"), [], [], [], []))

    async def test_retention_removes_old_events_and_raises_pruned_seq(self, ledger: LocalLedger) -> None:
        """Retention removes events with their keys; later events stay and read as before."""
        await ledger.log.append("a", [ev.MessageUser(text=str(n), at=1000 + n) for n in range(5)])
        await ledger.log.append("a", messages("now"))
        before = await ledger.snapshot("a")
        assert await ledger.prune(3600) == 5
        row = await ledger.log.store.session("a")
        assert row is not None and (row.pruned_seq, row.last_seq) == (5, 6)
        assert [event.text for event in await read_events(ledger, "a")] == ["now"]
        assert (await ledger.snapshot("a")).entries == before.entries[5:]
        with pytest.raises(CursorExpiredError):
            await ledger.log.state_at("a", 3)
        assert (await ledger.log.append("a", messages("more")))[0].seq == 7
        assert not await find_faults(ledger)

    async def test_owners_are_added_renewed_and_removed(self, ledger: LocalLedger) -> None:
        """C5: every process can read the owners that keep calls alive."""
        await ledger.log.store.transact(lambda unit: unit.put_owner(OwnerRecord("someone", 5)))
        await ledger.log.store.transact(lambda unit: unit.put_owner(OwnerRecord("someone", 7)))
        assert [(row.id, row.until) for row in await ledger.log.store.owners() if row.id == "someone"] == [
            ("someone", 7)
        ]
        await ledger.log.store.drop_owner("someone")
        assert "someone" not in [row.id for row in await ledger.log.store.owners()]

    async def test_owners_of_open_calls_and_turns_are_listed_with_their_leases(self, ledger: LocalLedger) -> None:
        """HOST3: each once, with 0 in place of a missing lease; their calls and turns are read by owner."""
        store = ledger.log.store
        assert await store.open_owners() == [] and await store.calls_of_owners([]) == []
        started: list[str] = []
        for owner, session in (("b", "s1"), ("a", "s1"), ("a", "s2"), ("", "s2"), ("ended", "s3"), ('x"\\é', "s4")):
            (call,) = await ledger.log.append(session, [ev.CallStarted(tool_name=owner or "none")], owner=owner)
            assert isinstance(call, ev.CallStarted)
            started.append(call.call)
        await ledger.log.append("s3", [ev.CallCompleted(call=started[4])])
        for owner, session in (("turn", "t1"), ("a", "t2"), ("", "t3"), ("ended", "t4")):
            await ledger.log.append(session, [ev.TurnStarted()], owner=owner)
        await ledger.log.append("t4", [ev.TurnEnded()])
        await store.transact(lambda unit: unit.put_owner(OwnerRecord("a", 7)))
        await store.drop_owner("b")
        leases = {row.id: row.until for row in await store.open_owners()}
        assert len(await store.open_owners()) == 4 and leases.keys() == {"a", "b", "turn", 'x"\\é'}
        assert (leases["a"], leases["b"]) == (7, 0) and leases["turn"] > 7
        found = await store.calls_of_owners(["a", 'x"\\é', "ended", "turn", "nobody", ""])
        assert sorted((row.session, row.id, row.owner) for row in found) == [
            ("s1", started[1], "a"),
            ("s2", started[2], "a"),
            ("s4", started[5], 'x"\\é'),
        ]
        turns = await store.turns_of_owners(["a", "b", "ended", "nobody", ""])
        assert [(row.name, row.turn, row.turn_owner) for row in turns] == [("t2", "t1", "a")]
        assert await store.calls_due(2**62) == [row for row in await store.open_calls() if row.id == started[3]]

    # Owners of sessions

    async def test_the_first_owner_of_a_session_is_kept(self, ledger: LocalLedger) -> None:
        """The owner of a session never changes, and an empty name is not an owner."""
        drafts = [ev.SessionInfo(owner=name) for name in ("", "ann", "bob")]
        owners: list[str] = []
        for event in drafts:
            await ledger.log.append("a", [event])
            row = await ledger.log.store.session("a")
            assert row is not None and row.owner == (await ledger.snapshot("a")).info.owner
            owners.append(row.owner)
        assert owners == ["", "ann", "ann"] and not await find_faults(ledger)
        assert [row.owner for row in (await ledger.sessions()).items] == ["ann"]

    async def test_the_latest_labels_of_a_session_are_used(self, ledger: LocalLedger) -> None:
        """Labels are any JSON; absent keeps them, null removes them."""
        nested = {"team": ["\u65e5\u672c", {"n": 1.5, "": None}], "nul": "\x00"}
        labels: list[object] = []
        for event in (
            ev.SessionInfo(labels=nested),
            ev.SessionInfo(title="x"),
            ev.SessionInfo(labels=""),
            ev.SessionInfo(labels=0),
            ev.SessionInfo(labels=None),
        ):
            await ledger.log.append("a", [event])
            row = await ledger.log.store.session("a")
            assert row is not None and row.labels == (await ledger.snapshot("a")).info.labels
            assert not await find_faults(ledger)
            labels.append(row.labels)
        assert labels == [nested, nested, "", 0, None]

    async def test_owner_and_labels_survive_retention(self, ledger: LocalLedger) -> None:
        """Retention may remove the events that set them, but not owner and labels."""
        await ledger.log.append("a", [ev.SessionInfo(owner="ann", labels={"a": 1}, at=1000)])
        await ledger.log.append("a", messages("now"))
        assert await ledger.prune(3600) == 1
        await ledger.log.append("a", [ev.SessionInfo(owner="bob")])
        row = await ledger.log.store.session("a")
        assert row is not None and (row.pruned_seq, row.owner, row.labels) == (1, "ann", {"a": 1})
        assert (await ledger.snapshot("a")).info.owner == "ann" and not await find_faults(ledger)

    async def test_a_blob_belongs_to_every_session_that_references_it(self, url: str) -> None:
        """Access to a session gives access to the blobs of its events; other blobs have no session."""
        async with await open_with_settings(url, inline_limit=100) as ledger:
            for name in ("b", "a"):
                for _ in range(2):
                    await ledger.log.append(name, [ev.CallCompleted(output="z" * 500)])
            blob_hash = (await read_events(ledger, "a"))[-1].blob.hash
            unreferenced = await ledger.log.store.put_blob(b"loose", "text/plain")
            assert await ledger.log.store.sessions_with_blob(blob_hash) == ["a", "b"]
            assert await ledger.log.store.sessions_with_blob(unreferenced) == []
            assert await ledger.log.store.sessions_with_blob("nothing") == []
            await ledger.delete("a")
            assert await ledger.log.store.sessions_with_blob(blob_hash) == ["b"]

    async def test_tokens_are_found_by_their_hash(self, ledger: LocalLedger) -> None:
        """A token is read back as it was put, until it is dropped, which works once."""
        rows = [
            TokenRecord("tok_1", "aa", "ci", "a", ("read", "approve"), 5, 9),
            TokenRecord("tok_2", "bb", "", "", ("read",), 6),
        ]
        for row in rows:
            await ledger.log.store.put_token(row)
        assert await ledger.log.store.tokens() == rows
        assert [await ledger.log.store.token(digest) for digest in ("aa", "bb", "cc", "\ud800")] == [*rows, None, None]
        with pytest.raises(StoreError):
            await ledger.log.store.put_token(TokenRecord("tok_3", "aa", "", "", ("write",), 7))
        assert await ledger.log.store.drop_token("tok_1") and not await ledger.log.store.drop_token("tok_1")
        assert await ledger.log.store.tokens() == rows[1:]

    async def test_a_token_that_is_stored_twice_is_one_token(self, ledger: LocalLedger) -> None:
        """A caller that does not know whether a token was stored may repeat it. Another one with its id is refused."""
        row = TokenRecord("tok_1", "aa", "", "", ("read",), 5)
        for _ in range(2):
            await ledger.log.store.put_token(row)
        with pytest.raises(StoreError):
            await ledger.log.store.put_token(TokenRecord("tok_1", "bb", "", "", ("read",), 5))
        assert await ledger.log.store.tokens() == [row]

    async def test_deleting_a_session_deletes_its_tokens(self, ledger: LocalLedger) -> None:
        """A token does not give access to a later session of the same name."""
        await ledger.log.append("a", messages("x"))
        for number, session in enumerate(("a", "b", "")):
            await ledger.log.store.put_token(TokenRecord(f"tok_{number}", str(number), "", session, ("read",), 1))
        await ledger.delete("a")
        assert [row.session for row in await ledger.log.store.tokens()] == ["b", ""]

    async def test_all_data_survives_reopening_the_ledger(self, url: str) -> None:
        """C9: events, rows, keys, approvals and blobs outlive the process."""
        async with await open_with_settings(url, inline_limit=100) as ledger:
            key = Draft(ev.CallProposed(tool_name="t", aliases=(Alias("acp", "c"),)), key="k")
            stored = await ledger.log.append("a", [key, ev.ApprovalRequested(aliases=(Alias("acp", "c"),))])
            await ledger.log.append("a", [ev.CallCompleted(aliases=(Alias("acp", "d"),), output="z" * 500)])
            await ledger.log.append("a", [ev.SessionInfo(owner="ann", labels=["x"])])
            await ledger.log.store.put_token(TokenRecord("tok_1", "aa", "", "a", ("read",), 1))
            before = (
                await ledger.snapshot("a"),
                await ledger.calls(),
                await ledger.approvals(),
                await read_events(ledger, "a"),
                await ledger.log.store.session("a"),
                await ledger.log.store.tokens(),
            )
        async with await open_with_settings(url, inline_limit=100) as ledger:
            after = (
                await ledger.snapshot("a"),
                await ledger.calls(),
                await ledger.approvals(),
                await read_events(ledger, "a"),
                await ledger.log.store.session("a"),
                await ledger.log.store.tokens(),
            )
            assert after == before
            assert await ledger.log.append("a", [key]) == stored[:1]
            assert await ledger.blob((await read_events(ledger, "a"))[-2].blob.hash) == b"z" * 500
            assert not await find_faults(ledger)

    # Turns

    async def test_a_repeated_turn_name_gets_a_unique_suffix(self, ledger: LocalLedger) -> None:
        """If a source restarts its count, or names all turns the same, each turn still gets its own name."""
        names: list[str] = []
        for turn in ("again", "again", "again", "", "t6", "", "again.8", "again"):
            names += _turn_names(await ledger.log.append("a", [ev.TurnStarted(turn=turn), ev.TurnEnded()]))
        expected = ["again", "again.2", "again.3", "t4", "t6", "t6.6", "again.8", "again.8.8"]
        assert names[::2] == names[1::2] == expected
        assert _turn_names(await ledger.log.append("b", [ev.TurnStarted(turn="again")])) == ["again"]
        assert not await find_faults(ledger)

    async def test_a_renamed_turn_can_be_ended_by_its_original_name(self, ledger: LocalLedger) -> None:
        """A source can end a renamed turn by its own name; an ended turn does not match."""
        await ledger.log.append("a", [ev.TurnStarted(turn="x"), ev.TurnEnded(turn="x"), ev.TurnStarted(turn="x")])
        more = [ev.TurnStarted(turn="x"), ev.TurnStarted(turn="x.2"), ev.TurnEnded(turn="y"), ev.TurnEnded(turn="x")]
        stored = await ledger.log.append("a", [*more, ev.TurnEnded(turn="x"), ev.TurnEnded(turn="x.2")])
        verdicts = ["duplicate", "duplicate", "orphan", "applied", "orphan", "orphan"]
        assert [event.verdict for event in stored] == verdicts and stored[3].turn == "x.2"  # type: ignore[attr-defined]
        row = await ledger.log.store.session("a")
        assert row is not None and (row.turn, row.turns) == ("", 2) and not await find_faults(ledger)

    async def test_a_superseded_turn_ends_under_its_own_name(self, ledger: LocalLedger) -> None:
        """The next turn of the same name is another one, with calls of its own."""
        for name in ("x", "y", "x", "y"):
            await ledger.log.append("a", [ev.TurnStarted(turn=name), ev.CallProposed(tool_name=name)])
        log = [(ev.type_of(event), event.turn) for event in await read_events(ledger, "a") if hasattr(event, "turn")]
        ends, begins = "turn.ended", "turn.started"
        assert log == [
            *((begins, "x"), (ends, "x"), (begins, "y"), (ends, "y")),
            *((begins, "x.3"), (ends, "x.3"), (begins, "y.4")),
        ]
        assert [row.turn for row in (await ledger.calls()).items] == ["y.4", "x.3", "y", "x"]
        assert not await find_faults(ledger)

    async def test_a_log_with_renamed_turns_is_copied_unchanged(self, ledger: LocalLedger) -> None:
        """A copy has the same names, and copying it again changes nothing (C7)."""
        for _ in range(3):
            await ledger.log.append("a", [ev.TurnStarted(turn="x"), *messages("hi"), ev.TurnEnded(turn="x")])
        log = await read_events(ledger, "a")
        drafts = [Draft(event, key=f"copy:{event.seq}") for event in log]
        first = await ledger.log.append("b", drafts)
        assert _turn_names(first) == _turn_names(log) and [event.verdict for event in first] == ["applied"] * 9
        assert await ledger.log.append("b", drafts) == first and len(await read_events(ledger, "b")) == 9
        assert not await find_faults(ledger)

    async def test_the_name_of_a_pruned_turn_is_not_reused(self, ledger: LocalLedger) -> None:
        """The name of an old turn never refers to another one."""
        await ledger.log.append(
            "a", [ev.TurnStarted(turn="x", at=1), ev.TurnEnded(at=2), ev.TurnStarted(turn="y", at=3)]
        )
        await ledger.log.append("a", messages("now"))
        assert await ledger.prune(3600) == 3 and not await find_faults(ledger)
        stored = await ledger.log.append(
            "a", [ev.TurnEnded(turn="y"), ev.TurnStarted(turn="x"), ev.TurnStarted(turn="y")]
        )
        assert _turn_names(stored) == ["y", "x.3", "y.4"] and not await find_faults(ledger)

    # Limits of the row of a session

    async def test_labels_and_owner_have_size_limits(self, ledger: LocalLedger) -> None:
        """Every event writes the row of the session again, so that it must not contain large values."""
        await ledger.log.append("a", [ev.SessionInfo(owner="ann", labels={"k": "v" * 16_000})])
        for wrong, field in (
            (ev.SessionInfo(labels={"k": "v" * 17_000}), "labels"),
            (ev.SessionInfo(labels=["\U0001f600"] * 3000), "labels"),
            (ev.SessionInfo(owner="a" * 501), "owner"),
            (ev.SessionInfo(owner="a\nb"), "owner"),
        ):
            with pytest.raises(InvalidInputError) as refusal:
                await ledger.log.append("b", [wrong])
            assert refusal.value.field == field
        assert await ledger.log.store.session("b") is None

    async def test_writing_to_a_closed_ledger_raises_an_error(self, url: str) -> None:
        """Writing to a closed ledger raises an error instead of blocking; closing twice is allowed."""
        ledger = await callslip.open(url)
        await ledger.log.append("a", messages("x"))
        await ledger.close()
        await ledger.close()
        with pytest.raises(StoreError, match="closed"):
            await ledger.log.append("a", messages("y"))

    async def test_closing_the_ledger_completes_submitted_writes(self, url: str) -> None:
        """C6: what was submitted before the close is either durable or refused, never left hanging."""
        ledger = await callslip.open(url)
        tasks = [asyncio.create_task(ledger.log.append("a", messages(str(n)))) for n in range(50)]
        await asyncio.sleep(0)
        await ledger.close()
        async with asyncio.timeout(60):
            stored = await asyncio.gather(*tasks)
        async with await callslip.open(url) as reopened:
            assert len(await read_events(reopened, "a")) == len(stored) == 50


class TestSqlite(StoreSuite):
    """A file on the disk."""

    @pytest.fixture
    def engine(self) -> str:
        return engines.SQLITE


@pytest.mark.postgres
class TestPostgres(StoreSuite):
    """A database of a server."""

    @pytest.fixture
    def engine(self) -> str:
        return engines.POSTGRES


def test_listed_sessions_include_owner_and_labels() -> None:
    """`ls --json` has the same fields for a session as the server."""
    row = ListedSession("a", last_seq=1, owner="ann", labels={"team": 1}, turn_owner="a process of ours")
    listed = session_json(row, 0)
    assert listed["owner"] == "ann" and listed["labels"] == {"team": 1} and "a process of ours" not in str(listed)
    assert msgspec.to_builtins(session_view(row)).items() <= listed.items()


def test_only_the_first_owner_gives_a_patch() -> None:
    """Only the first owner gives a patch; an empty owner gives none."""
    state = SessionFold("a")
    patches = [
        state.apply(ev.SessionInfo(seq=seq, owner=owner, labels=labels))
        for seq, (owner, labels) in enumerate([("", UNSET), ("ann", UNSET), ("bob", UNSET), ("eve", [1])], 1)
    ]
    assert patches == [[], [Set(0, {"owner": "ann"})], [], [Set(0, {"labels": [1]})]]
    assert (state.info.owner, state.info.labels) == ("ann", [1])


def create_first_schema(path: Path) -> None:
    """Create a file of the first version: labels in a log, after retention and in a base; turns of the same name."""
    connection = apsw.Connection(str(path))
    connection.execute(migrations("sqlite")[0][1])
    connection.execute("INSERT INTO meta VALUES ('oldest_reader', '1')")
    connection.execute(f"PRAGMA application_id = {sqlite_open.APPLICATION_ID}; PRAGMA user_version = 1")
    logs: dict[str, list[ev.Event]] = {
        "log": [ev.SessionInfo(labels={"a": 1}), ev.SessionInfo(title="t"), ev.SessionInfo(labels=[2], verdict="late")],
        "cleared": [ev.SessionInfo(labels={"a": 1}), ev.SessionInfo(labels=None)],
        "cut": [ev.MessageUser(text="labels"), ev.SessionInfo(title="t")],
        "bare": messages("x"),
        "turns": [
            *(ev.TurnStarted(turn="t1"), ev.TurnEnded(turn="t1"), ev.TurnStarted(turn="same")),
            *(ev.TurnEnded(turn="same"), ev.TurnStarted(turn="same"), ev.TurnStarted(turn="same", verdict="duplicate")),
        ],
    }
    for number, (name, log) in enumerate(logs.items(), 1):
        low = 4 if name == "cut" else 0
        title = "t" if name in ("log", "cut") else ""
        sql = "INSERT INTO sessions (id, name, head, low, title, created_at, updated_at) VALUES (?, ?, ?, ?, ?, 1, 1)"
        connection.execute(sql, (number, name, low + len(log), low, title))
        for seq, event in enumerate(log, low + 1):
            body = encode_event(msgspec.structs.replace(event, seq=seq))
            connection.execute("INSERT INTO events VALUES (?, ?, ?)", (number, seq, body))
    connection.execute("UPDATE sessions SET turn = 'same', turns = 3 WHERE name = 'turns'")
    base = b'{"kept":{"seq":4,"info":{"labels":"kept"}},"texts":[]}'
    connection.execute("INSERT INTO bases VALUES (3, 4, ?)", (base,))
    connection.close()


@pytest.mark.anyio
async def test_migration_fills_labels_from_the_log(tmp_path: Path, db: str) -> None:
    """S1.7: a migration fills new columns from the log, also after retention."""
    create_first_schema(tmp_path / "ledger.db")
    async with await callslip.open(db) as ledger:
        rows = {row.name: row for row in (await ledger.sessions()).items}
        owners_and_labels = {name: (row.owner, row.labels) for name, row in rows.items()}
        expected = {"log": ("", {"a": 1}), "cleared": ("", None), "cut": ("", "kept")}
        assert owners_and_labels == expected | dict.fromkeys(("bare", "turns"), ("", None))
        assert await ledger.log.store.tokens() == [] and not await find_faults(ledger)


@pytest.mark.anyio
async def test_migration_keeps_the_turn_names_of_an_older_file(tmp_path: Path, db: str) -> None:
    """S1.7: a new turn does not get the name of a turn from before names were stored."""
    create_first_schema(tmp_path / "ledger.db")
    async with await callslip.open(db) as ledger:
        turn_names = [row.id for row in await ledger.log.store.aliases("turns", None, 100)]
        assert turn_names == ["same", "t1"] and not await find_faults(ledger)
        drafts = [ev.TurnEnded(turn="same"), ev.TurnStarted(turn="same"), ev.TurnStarted(turn="t1")]
        stored = await ledger.log.append("turns", drafts)
        assert [event.turn for event in stored] == ["same", "same.4", "t1.5"]  # type: ignore[attr-defined]
        assert not await find_faults(ledger)


@pytest.mark.anyio
async def test_an_older_file_with_damage_is_migrated_and_reported(tmp_path: Path, db: str) -> None:
    """C11, S1.7: `verify` reports an event or a base that is not JSON, and the file is still migrated."""
    create_first_schema(tmp_path / "ledger.db")
    connection = apsw.Connection(str(tmp_path / "ledger.db"))
    connection.execute("UPDATE events SET body = substr(body, 1, 25) WHERE session IN (1, 5) AND seq IN (1, 3)")
    connection.execute("UPDATE bases SET state = CAST('{' AS BLOB)")
    connection.close()
    async with await callslip.open(db) as ledger:
        assert len((await ledger.sessions()).items) == 5
        assert {fault.partition(":")[0] for fault in map(str, await verify(ledger.log))} == {"log", "cut", "turns"}


@pytest.mark.anyio
async def test_a_failed_migration_leaves_the_file_unchanged(
    tmp_path: Path, db: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S1.7: the next start can migrate it, and the older version can still use it."""
    create_first_schema(tmp_path / "ledger.db")
    all_migrations = migrations("sqlite")
    with monkeypatch.context() as patch:
        failing = [
            *all_migrations[:-1],
            (all_migrations[-1][0], all_migrations[-1][1] + "INSERT INTO no_such_table VALUES (1);"),
        ]
        patch.setattr(sqlite_open, "migrations", lambda engine: failing)
        with pytest.raises(StoreError, match="no_such_table"):
            await callslip.open(db)
    connection = apsw.Connection(str(tmp_path / "ledger.db"))
    assert connection.execute("PRAGMA user_version").fetchall() == [(1,)]
    assert len(connection.execute("SELECT * FROM pragma_table_info('sessions')").fetchall()) == 12
    assert connection.execute("SELECT count(*) FROM aliases").fetchall() == [(0,)]
    connection.close()
    async with await callslip.open(db) as ledger:
        assert not await find_faults(ledger)


@pytest.mark.anyio
async def test_later_writes_by_the_first_version_are_valid(tmp_path: Path, db: str) -> None:
    """S1.7: a turn that it ends or begins in a file of ours is no fault, and its end is not reported repeatedly."""
    dead_owner = (
        new_owner().rpartition(" ")[0].rpartition(" ")[0] + " 1 1"
    )  # The pid of this process with another start time.
    async with await callslip.open(db) as ledger:
        await ledger.log.append("a", [ev.TurnStarted(turn="one")], owner=dead_owner)
        connection = apsw.Connection(str(tmp_path / "ledger.db"))
        events = [ev.TurnEnded(turn="one", seq=2), ev.TurnStarted(turn="t2", seq=3), ev.TurnEnded(turn="t2", seq=4)]
        connection.executemany("INSERT INTO events VALUES (1, ?, ?)", [(e.seq, encode_event(e)) for e in events])
        connection.execute("UPDATE sessions SET head = 4, turn = '', turns = 2")
        connection.close()
        assert not await find_faults(ledger)
    for _ in range(2):
        async with await callslip.open(db) as ledger:
            row = await ledger.log.store.session("a")
            assert row is not None and row.last_seq == 4


@pytest.mark.anyio
async def test_an_older_read_only_file_is_read_without_migration(
    tmp_path: Path, db: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S1.7: no byte of the file changes."""
    create_first_schema(tmp_path / "ledger.db")
    before = (tmp_path / "ledger.db").read_bytes()
    monkeypatch.setattr(sqlite_open, "is_writable", lambda path: False)
    async with await callslip.open(db) as ledger:
        assert {row.name for row in (await ledger.sessions()).items} == {"log", "cleared", "cut", "bare", "turns"}
        assert len((await ledger.snapshot("bare")).entries) == 1 and await ledger.log.store.tokens() == []
        assert await ledger.log.store.token("x") is None and (await ledger.calls()).items == []
        async with ledger.log.store.read_snapshot() as store:
            assert await store.session("log") is not None
        with pytest.raises(ReadOnlyStoreError):
            await ledger.log.store.put_token(TokenRecord("tok_1", "aa", "", "", ("read",), 1))
    assert (tmp_path / "ledger.db").read_bytes() == before


@pytest.mark.anyio
async def test_the_first_version_can_read_and_write_a_migrated_file(tmp_path: Path, db: str) -> None:
    """S1.7: its SQL statements find no ambiguous column."""
    async with await callslip.open(db) as ledger:
        await ledger.log.append("a", [ev.SessionInfo(owner="ann"), ev.CallProposed(tool_name="t")])
    connection = apsw.Connection(str(tmp_path / "ledger.db"))
    query = "SELECT c.id, s.name, entry, state, reason, owner, lease FROM calls c JOIN sessions s ON s.id = c.session"
    assert len(connection.execute(query).fetchall()) == 1
    columns = "name, head, low, turn, turns, title, calls, message, carry, created_at, updated_at"
    connection.execute(f"INSERT INTO sessions ({columns}) VALUES ('b', 0, 0, '', 0, '', 0, '', NULL, 1, 1)")
    connection.close()
    async with await callslip.open(db) as ledger:
        row = await ledger.log.store.session("b")
        assert row is not None and (row.owner, row.labels) == ("", None) and not await find_faults(ledger)


@pytest.mark.anyio
async def test_damaged_labels_are_reported_and_do_not_break_lists(tmp_path: Path, db: str) -> None:
    """Damage to one session's labels is found by `verify`, and the other sessions are still listed."""
    async with await callslip.open(db) as ledger:
        await ledger.log.append("a", [ev.SessionInfo(labels={"x": 1})])
        await ledger.log.append("b", messages("x"))
        connection = apsw.Connection(str(tmp_path / "ledger.db"))
        connection.execute("UPDATE sessions SET labels = '{' WHERE name = 'a'")
        connection.close()
        assert {row.name for row in (await ledger.sessions()).items} == {"a", "b"}
        assert ["labels is '{'" in fault for fault in await find_faults(ledger)] == [True]


@pytest.mark.anyio
async def test_an_in_memory_ledger_works_and_creates_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`sqlite:///:memory:` leaves no file, and two of them share nothing."""
    monkeypatch.chdir(tmp_path)
    async with await callslip.open("sqlite:///:memory:") as first, await callslip.open("sqlite:///:memory:") as second:
        await asyncio.gather(*(first.log.append("a", messages(str(n))) for n in range(100)))
        assert len(await read_events(first, "a")) == 100 and await read_events(second, "a") == []
        assert not await find_faults(first)
    assert os.listdir(tmp_path) == []


@pytest.mark.anyio
async def test_an_in_memory_ledger_can_be_read_during_writes() -> None:
    """Readers of a ledger in memory never fail because of a lock."""
    async with await callslip.open("sqlite:///:memory:") as ledger:
        await ledger.log.append("a", messages("x"))
        tasks = [asyncio.create_task(ledger.log.append("a", messages(str(n)))) for n in range(300)]
        while not all(task.done() for task in tasks):
            assert (await ledger.snapshot("a")).entries
            await asyncio.sleep(0)
        await asyncio.gather(*tasks)
        assert len(await read_events(ledger, "a")) == 301


@pytest.mark.anyio
@pytest.mark.parametrize(
    "name", ["with space.db", "per%20cent?x=1#y.db", "\u65e5\u672c.db", "no-suffix", "deep/er/x.db"]
)
async def test_a_ledger_file_can_have_any_name(tmp_path: Path, name: str) -> None:
    """The path is used unchanged; missing folders are created."""
    url = f"sqlite:///{tmp_path / name}"
    async with await callslip.open(url) as ledger:
        await ledger.log.append("a", messages("x"))
    assert (tmp_path / name).is_file()
    async with await callslip.open(url) as ledger:
        assert len(await read_events(ledger, "a")) == 1


@pytest.mark.anyio
async def test_relative_and_home_paths_are_resolved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, home: Path
) -> None:
    """`sqlite:///agent.db` is in the working folder, `~` is the home, and a bare path works too."""
    monkeypatch.chdir(tmp_path)
    for url in ("sqlite:///agent.db", "sqlite:///~/agent.db", "bare.db"):
        async with await callslip.open(url) as ledger:
            await ledger.log.append("a", messages("x"))
    assert (tmp_path / "agent.db").is_file() and (home / "agent.db").is_file() and (tmp_path / "bare.db").is_file()


@pytest.mark.anyio
async def test_a_closed_ledger_leaves_no_wal_file(tmp_path: Path, db: str) -> None:
    """After the last ledger is closed, no WAL is left, so that the file can be copied."""
    async with await callslip.open(db) as ledger, await callslip.open(db) as other:
        await ledger.log.append("a", messages("x"))
        await other.log.append("a", messages("y"))
    files = {path.name for path in tmp_path.iterdir()}
    assert "ledger.db" in files and not files & {"ledger.db-wal", "ledger.db-shm", "ledger.db-journal"}


@pytest.mark.anyio
async def test_event_bodies_are_stored_as_json(db: str) -> None:
    """Other tools can read the events as plain JSON."""
    async with await callslip.open(db) as ledger:
        (stored,) = await ledger.log.append("a", messages("x"))
        ((seq, body),) = await ledger.log.store.events("a", 0, 10)
    assert (
        seq == 1 and isinstance(body, bytes) and decode_event(body) == stored and body.startswith(b'{"type":"message')
    )


@pytest.mark.anyio
async def test_a_failing_listener_does_not_block_writers(db: str) -> None:
    """A durable write is acknowledged even if a listener fails."""
    errors: list[dict[str, object]] = []
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: errors.append(context))
    async with await callslip.open(db) as ledger:

        def raise_error(stored: list[StoredEvent]) -> None:
            raise RuntimeError("a listener broke")

        ledger.log.store.on_commit(raise_error)
        async with asyncio.timeout(60):
            await ledger.log.append("a", messages("x"))
    assert "a listener broke" in str(errors[0]["exception"])


@pytest.mark.anyio
async def test_a_failing_listener_hides_no_events_from_other_listeners(db: str) -> None:
    """Also when one write of the batch was refused: the first listener gets the events of all the others."""
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: None)
    texts: list[str] = []

    def collect_texts(stored: list[StoredEvent]) -> None:
        texts.extend(event.event.text for event in stored if isinstance(event.event, ev.MessageUser))

    def raise_error(stored: list[StoredEvent]) -> None:
        raise RuntimeError("a listener broke")

    async with await callslip.open(db) as ledger:
        ledger.log.store.on_commit(collect_texts)
        ledger.log.store.on_commit(raise_error)
        await asyncio.gather(
            *(ledger.log.append(name, [ev.MessageUser(text=name)]) for name in ("s1", "s2")),
            ledger.log.append("s1", [ev.CallRequeued(call="exec_000000000000")], strict=True),
            *(ledger.log.append(name, [ev.MessageUser(text=name)]) for name in ("s3", "s4")),
            return_exceptions=True,
        )
    assert sorted(texts) == ["s1", "s2", "s3", "s4"]
