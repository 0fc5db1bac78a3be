"""What is written while a read waits for the store is neither missed nor mixed with what was read."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Collection
from contextlib import aclosing

import pytest

import callslip
from callslip.api.ledger import LocalLedger
from callslip.api.sessions import check_same_session, read_entries, read_events, read_messages
from callslip.errors import CursorExpiredError, NotFoundError, StoreError
from callslip.ledger import checkpoint, queries
from callslip.ledger.entry_matches import EntryMatcher
from callslip.model import events as ev
from callslip.model.records import SessionRecord
from callslip.rules.entry_filter import EntryFilter
from callslip.settings import Settings
from callslip.store.protocol import Changes, Store
from callslip.store.sqlite import SqliteStore
from tests.support import slow_store
from tests.support.slow_store import pause_read
from tests.support.tasks import TIMEOUT_S, until_in

pytestmark = pytest.mark.anyio

READER_WAITS = "_wait_for"
NEVER_S = 1e6
UNNOTICED = Settings(notice_interval=NEVER_S, reaper_interval=NEVER_S)
"""Settings of a ledger that does not find out what other processes write."""


@pytest.fixture
async def ledger(db: str) -> AsyncIterator[LocalLedger]:
    async with await callslip.open(db, UNNOTICED) as instance:
        yield instance


def user_messages(*texts: object) -> list[ev.Event]:
    return [ev.MessageUser(text=str(text)) for text in texts]


async def read_seqs(ledger: LocalLedger, session: str, upto: int, after: int = 0) -> list[int]:
    """Return the seqs that a reader receives up to one."""
    seqs: list[int] = []
    async with aclosing(ledger.log.batches(session, after)) as batches, asyncio.timeout(TIMEOUT_S):
        async for batch in batches:
            seqs += [stored.event.seq for stored in batch]
            if seqs[-1] >= upto:
                return seqs
    raise AssertionError("the feed ended")


async def load_record(ledger: LocalLedger, session: str) -> SessionRecord:
    record = await ledger.log.get_session(session)
    assert record is not None
    return record


async def replace_session(ledger: LocalLedger, session: str) -> None:
    """Delete a session, and create another one of the same name."""
    await ledger.delete(session)
    await ledger.log.append(session, user_messages("other 1", "other 2", "other 3", "other 4"))


def test_every_read_of_a_store_is_slowed_down() -> None:
    """A new read of the interface is slow too, and the stores are as before after the block."""
    assert {*slow_store.WRITES, *slow_store.WAITS} <= set(vars(Store)) and "session" in slow_store.READS
    before = {name: getattr(SqliteStore, name) for name in slow_store.READS}
    with slow_store.slow_reads():
        assert all(getattr(SqliteStore, name) is not before[name] for name in slow_store.READS)
    assert before == {name: getattr(SqliteStore, name) for name in slow_store.READS}


# Following


async def test_an_end_at_any_moment_of_the_wait_for_it_is_noticed(ledger: LocalLedger) -> None:
    """Without a poll: the waiter is registered before it reads the call."""

    async def wait_for_end(number: int) -> str:
        (started,) = await ledger.log.append(f"s{number}", [ev.CallStarted(tool_name="t")])
        waiting = asyncio.create_task(ledger.log.wait_ended(f"s{number}", started.call))
        await asyncio.sleep(number * slow_store.READ_DELAY_S / 2)
        await ledger.log.append(f"s{number}", [ev.CallCompleted(call=started.call)])
        await waiting
        return (await ledger.find_call(started.call)).state

    with slow_store.slow_reads():
        async with asyncio.timeout(TIMEOUT_S):
            assert set(await asyncio.gather(*map(wait_for_end, range(12)))) == {"completed"}


async def test_the_wait_for_a_call_that_retention_removed_ends(ledger: LocalLedger) -> None:
    """A removed call has ended."""
    (started,) = await ledger.log.append("a", [ev.CallStarted(tool_name="t")])
    with pause_read(ledger.log.store, "session") as paused:
        waiting = asyncio.create_task(ledger.log.wait_ended("a", started.call))
        await paused.reached.wait()
        await ledger.log.append("a", [ev.CallCompleted(call=started.call), *user_messages("later")])
        await ledger.prune(-60)
        paused.resume.set()
        async with asyncio.timeout(TIMEOUT_S):
            await waiting


async def test_events_at_any_moment_of_the_start_of_a_reader_arrive(ledger: LocalLedger) -> None:
    """C6: without a poll, and each once."""

    async def follow(number: int) -> list[int]:
        session = f"s{number}"
        await ledger.log.append(session, user_messages("before"))
        reading = asyncio.create_task(read_seqs(ledger, session, 6))
        await asyncio.sleep(number * slow_store.READ_DELAY_S / 2)
        for text in range(5):
            await ledger.log.append(session, user_messages(text))
        return await reading

    with slow_store.slow_reads():
        assert await asyncio.gather(*map(follow, range(12))) == [[1, 2, 3, 4, 5, 6]] * 12


async def test_the_first_event_of_a_session_arrives_while_its_reader_starts(ledger: LocalLedger) -> None:
    """The read that found no session does not hide the session that was created meanwhile."""
    with pause_read(ledger.log.store, "session") as paused:
        reading = asyncio.create_task(read_seqs(ledger, "a", 2))
        await paused.reached.wait()
        await ledger.log.append("a", user_messages(1, 2))
        paused.resume.set()
        assert await reading == [1, 2]


async def test_a_reader_joins_a_channel_that_another_one_opened(ledger: LocalLedger) -> None:
    """An older read of one reader does not close what a newer read of another reader opened."""
    await ledger.log.append("a", user_messages(1))
    with pause_read(ledger.log.store, "session") as paused:
        first = asyncio.create_task(read_seqs(ledger, "a", 5))
        await paused.reached.wait()
        await replace_session(ledger, "a")
        second = asyncio.create_task(read_seqs(ledger, "a", 5))
        await until_in(READER_WAITS, second)
        paused.resume.set()
        await until_in(READER_WAITS, first)
        await ledger.log.append("a", user_messages("last"))
        assert await first == await second == [1, 2, 3, 4, 5]


async def test_events_written_while_a_channel_is_filled_are_read_once(
    ledger: LocalLedger, db: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They wait for those of another process, and are not read from the store again."""
    Hints(ledger, monkeypatch)
    await ledger.log.append("a", user_messages(1))
    reading = asyncio.create_task(read_seqs(ledger, "a", 5))
    await until_in(READER_WAITS, reading)
    async with await callslip.open(db) as other:
        await other.log.append("a", user_messages(2))
    with pause_read(ledger.log.store, "events") as paused:
        await ledger.log.append("a", user_messages(3))
        await paused.reached.wait()
        await ledger.log.append("a", user_messages(4))
        await ledger.log.append("a", user_messages(5))
        paused.resume.set()
        assert await reading == [1, 2, 3, 4, 5] and paused.calls == 1


async def test_a_cursor_of_a_deleted_session_is_not_used_in_a_new_one(ledger: LocalLedger) -> None:
    """The new session of the same name may belong to another user."""
    await ledger.log.append("a", user_messages(1, 2))
    record = await load_record(ledger, "a")
    await replace_session(ledger, "a")
    with pytest.raises(CursorExpiredError):
        await anext(ledger.log.batches("a", 1, record.id))
    await anext(ledger.log.batches("a", 1, (await load_record(ledger, "a")).id))


async def test_deleting_a_session_ends_its_readers_without_a_poll(ledger: LocalLedger) -> None:
    """A store need not report the writes of its own process."""
    await ledger.log.append("a", user_messages(1))
    reading = asyncio.create_task(read_seqs(ledger, "a", 9))
    await until_in(READER_WAITS, reading)
    await ledger.delete("a")
    with pytest.raises(CursorExpiredError):
        await reading


async def test_a_live_reader_gets_no_event_of_the_session_that_replaced_its_own(ledger: LocalLedger) -> None:
    """The new session has the event after the reader's last one before the channel notices that it is another one."""
    await ledger.log.append("a", user_messages(1, 2))
    reading = asyncio.create_task(read_seqs(ledger, "a", 3))
    await until_in(READER_WAITS, reading)
    with pause_read(ledger.log.store, "session") as paused:
        ledger.log.feed.check_session("a")
        await paused.reached.wait()
        await replace_session(ledger, "a")
        paused.resume.set()
        with pytest.raises(CursorExpiredError):
            await reading


# Hints about changes


class Hints:
    """What a store reports about other processes."""

    def __init__(self, ledger: LocalLedger, monkeypatch: pytest.MonkeyPatch) -> None:
        self._changes: asyncio.Queue[Changes | StoreError] = asyncio.Queue()
        self.send = self._changes.put_nowait
        monkeypatch.setattr(ledger.log.store, "wait_changes", self._wait)

    async def _wait(self) -> Changes:
        change = await self._changes.get()
        if isinstance(change, StoreError):
            raise change
        return change


async def test_a_hint_fills_only_the_channels_that_lack_its_events(
    ledger: LocalLedger, db: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A hint names sessions and their last events; without names all channels are filled."""
    hints = Hints(ledger, monkeypatch)
    readers = {name: asyncio.create_task(read_seqs(ledger, name, 1)) for name in ("a", "b", "c")}
    await until_in(READER_WAITS, *readers.values())
    filled: list[str] = []
    real_fill = ledger.log.feed._fill_soon
    monkeypatch.setattr(
        ledger.log.feed, "_fill_soon", lambda channel: (filled.append(channel.session), real_fill(channel))
    )
    async with await callslip.open(db) as other:
        for name in readers:
            await other.log.append(name, user_messages(1))
    hints.send(Changes({"a": 1, "elsewhere": 7, "b": 0}, commands=False))
    assert await readers["a"] == [1] and filled == ["a"]
    hints.send(Changes())
    assert await readers["b"] == await readers["c"] == [1]


async def test_a_hint_without_names_reads_only_the_sessions_that_have_changed(
    ledger: LocalLedger, db: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """PGS8: one query finds them, however many are followed."""
    hints = Hints(ledger, monkeypatch)
    readers = {f"s{number}": asyncio.create_task(read_seqs(ledger, f"s{number}", 1)) for number in range(50)}
    await until_in(READER_WAITS, *readers.values())
    async with await callslip.open(db) as other:
        await other.log.append("s7", user_messages(1))
    reads: list[str] = []
    store = ledger.log.store
    read_session, read_heads = store.session, store.heads

    async def session(name: str) -> SessionRecord | None:
        reads.append(name)
        return await read_session(name)

    async def heads(names: Collection[str]) -> dict[str, tuple[int, int]]:
        reads.append("heads")
        return await read_heads(names)

    monkeypatch.setattr(store, "session", session)
    monkeypatch.setattr(store, "heads", heads)
    hints.send(Changes())
    assert await readers["s7"] == [1]
    assert reads[0] == "heads" and set(reads[1:]) == {"s7"}
    for reader in readers.values():
        reader.cancel()
    await asyncio.gather(*readers.values(), return_exceptions=True)


async def test_only_hints_about_commands_wake_those_who_wait_for_them(
    ledger: LocalLedger, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A hint about sessions wakes only those who wait for any change."""
    hints = Hints(ledger, monkeypatch)
    feed = ledger.log.feed
    with feed.watch():
        waiting = asyncio.create_task(feed.wait_external_change(feed.external_changes))
        await until_in(READER_WAITS, waiting)
        for expected, changes in enumerate([Changes({"a": 1}, commands=False), Changes({}, commands=True), Changes()]):
            seen = feed.changes
            hints.send(changes)
            await feed.wait_change(seen)
            assert feed.external_changes == expected
        await waiting
        await feed.wait_external_change(1)  # The third one was not missed.


async def test_a_failed_read_of_new_events_is_repeated(db: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also if no other change is noticed."""
    async with await callslip.open(db, Settings(notice_interval=0.001, reaper_interval=NEVER_S)) as ledger:
        hints = Hints(ledger, monkeypatch)
        reading = asyncio.create_task(read_seqs(ledger, "a", 1))
        await until_in(READER_WAITS, reading)
        async with await callslip.open(db) as other:
            await other.log.append("a", user_messages(1))
        failures = 0
        read = ledger.log.store.events

        async def fail_twice(*args: object) -> object:
            nonlocal failures
            failures += 1
            if failures <= 2:
                raise StoreError("the disk failed")
            return await read(*args)

        monkeypatch.setattr(ledger.log.store, "events", fail_twice)
        hints.send(StoreError("the disk failed"))
        hints.send(Changes({"a": 1}, commands=False))
        assert await reading == [1] and failures == 3


# Reading


async def test_a_session_that_is_replaced_during_a_read_is_not_mixed(ledger: LocalLedger) -> None:
    """The state of a session has the events of one session only."""
    await ledger.log.append("a", user_messages(1, 2, 3, 4))
    with pause_read(ledger.log.store, "events") as paused:
        reading = asyncio.create_task(ledger.log.state_at("a", 4))
        await paused.reached.wait()
        await replace_session(ledger, "a")
        paused.resume.set()
        state = await reading
    assert [entry.content for entry in state.entries.values()] == ["other 1", "other 2", "other 3", "other 4"]


@pytest.mark.parametrize("read", [read_events, read_entries, read_messages])
async def test_a_reader_of_a_session_does_not_get_its_successor(ledger: LocalLedger, read: object) -> None:
    """A caller with the right to read a session may not be allowed to read the next one of its name."""
    await ledger.log.append("a", user_messages("own"))
    record = await load_record(ledger, "a")
    await replace_session(ledger, "a")
    arguments = (ledger.log, record, "openai") if read is read_messages else (ledger.log, record)
    with pytest.raises(NotFoundError):
        await read(*arguments)
    await check_same_session(ledger.log, "a", (await load_record(ledger, "a")).id)


async def test_retention_does_not_touch_a_session_that_replaced_the_read_one(ledger: LocalLedger) -> None:
    """Nor one that another process has pruned meanwhile: the computed state is of other events."""
    await ledger.log.append("a", [ev.MessageUser(text=str(number), at=1000 + number) for number in range(6)])
    record = await load_record(ledger, "a")
    store = ledger.log.store
    base = checkpoint.freeze(await ledger.log.state_at("a", 2))
    assert await checkpoint.prune(store, "a", 1004) == 4
    assert await store.prune(record, 2, base, {}) == 0
    assert (await load_record(ledger, "a")).pruned_seq == 4
    record = await load_record(ledger, "a")
    await replace_session(ledger, "a")
    assert await store.prune(record, 2, base, {}) == 0
    assert [seq for seq, _ in await store.events("a", 0, 10)] == [1, 2, 3, 4]


async def test_an_older_read_does_not_remove_an_open_entry_from_a_filter(ledger: LocalLedger) -> None:
    """The kept result of a filter counts the entry when it is finished."""
    store = ledger.log.store
    await ledger.log.append("a", user_messages("x"))
    await ledger.log.project("a")
    older = await queries.load_current(store, "a")
    (started,) = await ledger.log.append("a", [ev.CallStarted(tool_name="t", title="x")])
    await ledger.log.append("a", user_messages("x"))
    await ledger.log.project("a")
    newer = await queries.load_current(store, "a")
    matcher = EntryMatcher(store)
    kept = matcher._stored(newer, "x", EntryFilter("x"))
    for head in (newer, older):
        await kept.update(head)
    await ledger.log.append("a", [ev.CallCompleted(call=started.call)])
    await ledger.log.project("a")
    assert (await matcher.find("a", "x", 10, 2**62)).counts.ids == [1, 2, 3]


async def test_a_turn_that_ends_during_a_checkpoint_gets_its_own(ledger: LocalLedger) -> None:
    """The next checkpoint need not wait for hundreds of events."""
    store = ledger.log.store
    turn = [ev.TurnStarted(), *user_messages("x"), ev.TurnEnded()]
    with pause_read(store, "checkpoint") as paused:
        await ledger.log.append("a", turn)
        await paused.reached.wait()
        await ledger.log.append("a", turn)
        paused.resume.set()
        async with asyncio.timeout(TIMEOUT_S):
            while (saved := await store.checkpoint("a")) is None or saved.seq < 6:
                await asyncio.sleep(0.001)


async def test_an_owner_that_is_closed_while_its_lease_is_renewed_stays_closed(ledger: LocalLedger) -> None:
    """Its lease is not renewed for ever."""
    log = ledger.log
    await log.append("a", [ev.CallStarted(tool_name="t")], owner="mine")
    with pause_read(log.store, "transact") as paused:
        renewing = asyncio.create_task(log._renew("mine"))
        await paused.reached.wait()
        assert await log.close_owner("mine", "closed") == 1
        paused.resume.set()
        await renewing
    assert "mine" not in log._owner_leases and "mine" not in {owner.id for owner in await log.store.owners()}
