"""Follow a session: a reader receives stored and live events without gap or repeat, for any writer and any cursor."""

from __future__ import annotations

import asyncio
import contextlib
import random
import subprocess
import time
from collections.abc import AsyncIterator

import msgspec
import pytest

import callslip
from callslip.api.ledger import LocalLedger
from callslip.errors import CursorExpiredError, InvalidInputError, NotFoundError, SlowReaderError, StoreError
from callslip.model import events as ev
from callslip.model.entries import Append, Put, Set
from callslip.store.protocol import StoredEvent
from tests.support.invariants import open_with_settings, read_events, start_program
from tests.support.tasks import until_in

READER_WAITS = "_wait_for"

pytestmark = pytest.mark.anyio


@pytest.fixture
async def ledger(db: str) -> AsyncIterator[LocalLedger]:
    instance = await callslip.open(db)
    try:
        yield instance
    finally:
        await instance.close()


def user_messages(*texts: object) -> list[ev.Event]:
    return [ev.MessageUser(text=str(text)) for text in texts]


async def follow_events(ledger: LocalLedger, session: str, count: int, after: int = 0) -> list[StoredEvent]:
    """Return at least this many events after a cursor, waiting for them if necessary."""
    received: list[StoredEvent] = []
    async with contextlib.aclosing(ledger.log.batches(session, after)) as batches, asyncio.timeout(120):
        async for batch in batches:
            received += batch
            if len(received) >= count:
                return received
    raise AssertionError("the feed ended")


def list_seqs(events: list[StoredEvent]) -> list[int]:
    return [item.event.seq for item in events]


class OtherProcess:
    """Another process that writes after `start`."""

    def __init__(self, db: str, session: str, count: int, batch: int = 1) -> None:
        self.process = start_program("stream", db, session, count, batch, stdin=subprocess.PIPE)

    async def wait_until_ready(self) -> None:
        assert self.process.stdout is not None
        assert await asyncio.to_thread(self.process.stdout.readline) == "ready\n"

    def start(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()

    async def wait_until_done(self) -> None:
        out, errors = await asyncio.to_thread(self.process.communicate)
        assert (out, errors, self.process.returncode) == ("done\n", "", 0)


# No gap, no repeat


async def test_a_reader_catches_up_and_then_follows_live(db: str) -> None:
    """C6: stored and new events arrive in one order, each once, as they are stored."""
    async with await open_with_settings(db, read_page=10) as ledger:
        await ledger.log.append("a", user_messages(*range(35)))
        reading = asyncio.create_task(follow_events(ledger, "a", 60))
        await until_in(READER_WAITS, reading)
        for number in range(35, 60):
            await ledger.log.append("a", user_messages(number))
        received = await reading
        assert list_seqs(received) == list(range(1, 61))
        assert [(item.event.seq, item.body) for item in received] == await ledger.log.store.events("a", 0, 100)


async def test_a_reader_can_follow_a_session_before_it_exists(ledger: LocalLedger) -> None:
    """It receives the first event when the session is created."""
    reading = asyncio.create_task(follow_events(ledger, "a", 2))
    await until_in(READER_WAITS, reading)
    await ledger.log.append("b", user_messages("elsewhere"))
    await ledger.log.append("a", user_messages("first", "second"))
    assert list_seqs(await reading) == [1, 2]


async def test_a_reader_can_follow_a_future_session_of_another_process(ledger: LocalLedger, db: str) -> None:
    """Also when another process creates it."""
    other = OtherProcess(db, "a", 3)
    await other.wait_until_ready()
    reading = asyncio.create_task(follow_events(ledger, "a", 3))
    await until_in(READER_WAITS, reading)
    other.start()
    assert list_seqs(await reading) == [1, 2, 3]
    await other.wait_until_done()


@pytest.mark.chaos
async def test_readers_at_random_cursors_miss_no_event(db: str, scale: int) -> None:
    """C6: while this and another process write, a reader receives every event after its cursor once."""
    rng = random.Random(8)
    count = 400 * min(scale, 10)
    async with await open_with_settings(db, read_page=7, feed_length=16_384) as ledger:
        other = OtherProcess(db, "a", count)
        await other.wait_until_ready()
        other.start()
        readers: list[tuple[int, asyncio.Task[list[StoredEvent]]]] = []
        for number in range(count):
            (event,) = await ledger.log.append("a", user_messages(f"ours {number}"))
            if rng.random() < 20 / count and event.seq < 2 * count:
                after = rng.choice((0, event.seq, event.seq - 1, rng.randrange(event.seq)))
                readers.append((after, asyncio.create_task(follow_events(ledger, "a", 2 * count - after, after))))
            await asyncio.sleep(0)
        await other.wait_until_done()
        assert readers
        for after, reading in readers:
            assert list_seqs(await reading) == list(range(after + 1, 2 * count + 1))
        texts = [event.text for event in await read_events(ledger, "a")]
        assert [text for text in texts if text.startswith("theirs")] == [f"theirs {n}" for n in range(count)]


async def test_readers_of_a_session_share_one_channel(ledger: LocalLedger) -> None:
    """All of them receive the same events, and the channel is closed with the last one."""
    readers = [asyncio.create_task(follow_events(ledger, "a", 50)) for _ in range(50)]
    await until_in(READER_WAITS, *readers)
    for number in range(50):
        await ledger.log.append("a", user_messages(number))
    received = await asyncio.gather(*readers)
    assert all(list_seqs(item) == list(range(1, 51)) for item in received)
    assert all(first is second for first, second in zip(received[0], received[49], strict=True))
    assert not ledger.log.feed._channels and ledger.log.feed._poller is None


async def test_cancelling_a_reader_does_not_affect_others(ledger: LocalLedger) -> None:
    """Also if both follow the same session."""
    staying = asyncio.create_task(follow_events(ledger, "a", 3))
    leaving = asyncio.create_task(follow_events(ledger, "a", 3))
    await until_in(READER_WAITS, staying, leaving)
    await ledger.log.append("a", user_messages(1))
    leaving.cancel()
    await asyncio.gather(leaving, return_exceptions=True)
    await ledger.log.append("a", user_messages(2, 3))
    assert list_seqs(await staying) == [1, 2, 3]


async def test_a_delivered_event_is_already_stored(ledger: LocalLedger, db: str) -> None:
    """C6: at delivery another connection finds the event in the store."""
    async with await callslip.open(db) as other:

        async def check_stored() -> None:
            count = 0
            async for batch in ledger.log.batches("a"):
                last = batch[-1].event.seq
                row = await other.log.store.session("a")
                assert row is not None and row.last_seq >= last
                assert [seq for seq, _ in await other.log.store.events("a", last - 1, 1)] == [last]
                count += len(batch)
                if count == 300:
                    return

        checking = asyncio.create_task(check_stored())
        await until_in(READER_WAITS, checking)
        await asyncio.gather(*(ledger.log.append("a", user_messages(number)) for number in range(300)))
        async with asyncio.timeout(10):
            await checking


async def test_events_of_another_process_arrive(ledger: LocalLedger, db: str) -> None:
    """Without a write in this process."""
    other = OtherProcess(db, "a", 40)
    await other.wait_until_ready()
    reading = asyncio.create_task(follow_events(ledger, "a", 40))
    await until_in(READER_WAITS, reading)
    started = time.monotonic()
    other.start()
    assert list_seqs(await reading) == list(range(1, 41))
    print(f"\n40 events of another process, one by one, arrived within {(time.monotonic() - started) * 1000:.0f} ms")
    await other.wait_until_done()


# Cursors


@pytest.mark.parametrize("after", [-1, 4, 10**9])
async def test_a_cursor_beyond_the_last_event_is_refused(ledger: LocalLedger, after: int) -> None:
    """An invalid cursor never silently restarts the feed."""
    await ledger.log.append("a", user_messages(1, 2, 3))
    with pytest.raises(InvalidInputError, match=r"^after: must be .*last event \(3\)"):
        await follow_events(ledger, "a", 1, after)


async def test_a_cursor_before_the_retention_cut_is_expired(ledger: LocalLedger) -> None:
    """The error has the cut; the reader continues from a snapshot and its seq."""
    await ledger.log.append("a", [ev.MessageUser(text=str(n), at=1000 + n) for n in range(5)])
    await ledger.log.append("a", user_messages("kept"))
    assert await ledger.prune(60) == 5
    for after in (0, 4):
        with pytest.raises(CursorExpiredError) as error:
            await follow_events(ledger, "a", 1, after)
        assert (error.value.cursor, error.value.pruned_seq) == (after, 5)
    assert list_seqs(await follow_events(ledger, "a", 1, 5)) == [6]
    snapshot = await ledger.snapshot("a")
    await ledger.log.append("a", user_messages("new"))
    assert list_seqs(await follow_events(ledger, "a", 1, snapshot.seq)) == [7]


async def test_retention_during_catch_up_raises(db: str) -> None:
    """A reader never skips events that were removed meanwhile."""
    async with await open_with_settings(db, read_page=5) as ledger:
        await ledger.log.append("a", [ev.MessageUser(text=str(n), at=1000 + n) for n in range(30)])
        await ledger.log.append("a", user_messages("kept"))
        async with contextlib.aclosing(ledger.log.batches("a")) as batches:
            assert list_seqs(await anext(batches)) == [1, 2, 3, 4, 5]
            await ledger.prune(60)
            with pytest.raises(CursorExpiredError) as error:
                await anext(batches)
            assert (error.value.cursor, error.value.pruned_seq) == (5, 30)


async def test_deleting_a_session_ends_its_readers(ledger: LocalLedger, db: str) -> None:
    """A later session of the same name is another one, and no reader continues there."""
    await ledger.log.append("a", [*user_messages(1, 2), ev.CallStarted()])
    reading = asyncio.create_task(follow_events(ledger, "a", 100))
    waiting = asyncio.create_task(ledger.wait("@last"))
    await until_in(READER_WAITS, reading, waiting)
    async with await callslip.open(db) as other:
        await other.delete("a")
        await other.log.append("a", user_messages(*range(10)))
    async with asyncio.timeout(60):
        with pytest.raises(CursorExpiredError):
            await reading
        with pytest.raises((CursorExpiredError, NotFoundError)):
            await waiting
    assert list_seqs(await follow_events(ledger, "a", 10)) == list(range(1, 11))


# Slow readers


async def test_a_slow_reader_is_dropped_and_resumes_without_loss(db: str) -> None:
    """The error has the cursor from which it can continue."""
    async with await open_with_settings(db, feed_length=10) as ledger:
        await ledger.log.append("a", user_messages(0))
        batches = ledger.log.batches("a")
        received = list_seqs(await anext(batches))
        waiting = asyncio.create_task(anext(batches))
        await until_in(READER_WAITS, waiting)
        await ledger.log.append("a", user_messages(1))
        received += list_seqs(await waiting)
        for number in range(2, 40):
            await ledger.log.append("a", user_messages(number))
        with pytest.raises(SlowReaderError) as slow:
            await anext(batches)
        assert slow.value.cursor == received[-1] == 2
        received += list_seqs(await follow_events(ledger, "a", 38, slow.value.cursor))
        assert received == list(range(1, 41))


async def test_a_burst_over_the_channel_size_drops_no_waiting_reader(db: str) -> None:
    """A reader that was up to date is not slow because a process wrote many events at once."""
    async with await open_with_settings(db, feed_length=10, read_page=8) as ledger:
        reading = asyncio.create_task(follow_events(ledger, "a", 200))
        await until_in(READER_WAITS, reading)
        await ledger.log.append("a", user_messages(*range(100)))
        other = OtherProcess(db, "a", 100, 100)
        await other.wait_until_ready()
        other.start()
        assert list_seqs(await reading) == list(range(1, 201))
        await other.wait_until_done()


async def test_a_slow_reader_blocks_no_writer_and_no_other_reader(db: str) -> None:
    """They continue while one reader does not read."""
    async with await open_with_settings(db, feed_length=10) as ledger:
        await ledger.log.append("a", user_messages(0))
        slow_reader = ledger.log.batches("a")
        await anext(slow_reader)
        other_reader = asyncio.create_task(follow_events(ledger, "a", 101))
        for number in range(1, 101):
            await ledger.log.append("a", user_messages(number))
            await asyncio.sleep(0)
        assert list_seqs(await other_reader) == list(range(1, 102))
        await slow_reader.aclose()


# Close, errors and idle cost


async def test_closing_the_ledger_ends_its_readers(db: str) -> None:
    """A reader of a closed ledger gets an error instead of waiting forever."""
    ledger = await callslip.open(db)
    (appended,) = await ledger.log.append("a", [ev.CallStarted()])
    reading = asyncio.create_task(follow_events(ledger, "a", 100))
    waiting = asyncio.create_task(ledger.wait(appended.call))
    await until_in(READER_WAITS, reading, waiting)
    await ledger.close()
    async with asyncio.timeout(60):
        for task in (reading, waiting):
            with pytest.raises(StoreError, match="closed"):
                await task
    with pytest.raises(StoreError):
        await follow_events(ledger, "a", 1)


async def test_readers_survive_a_temporary_disk_error(
    ledger: LocalLedger, db: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """New events arrive when the disk works again."""
    reading = asyncio.create_task(follow_events(ledger, "a", 4))
    await until_in(READER_WAITS, reading)

    def fail(*_: object) -> object:
        raise StoreError("the disk failed")

    async with await callslip.open(db) as other:
        for method in ("wait_changes", "events"):
            with monkeypatch.context() as patch:
                patch.setattr(ledger.log.store, method, fail)
                await other.log.append("a", user_messages(method, method))
                await asyncio.sleep(0.1)
        assert list_seqs(await reading) == [1, 2, 3, 4]


async def test_idle_readers_use_little_processor_time(ledger: LocalLedger) -> None:
    """Print the processor time of forty followed sessions without events in two seconds."""
    for number in range(40):
        await ledger.log.append(f"s{number}", user_messages(1))
    readers = [asyncio.create_task(follow_events(ledger, f"s{number}", 99)) for number in range(40)]
    await until_in(READER_WAITS, *readers)
    started, cpu_seconds = time.monotonic(), time.process_time()
    await asyncio.sleep(2)
    cpu_seconds, elapsed = time.process_time() - cpu_seconds, time.monotonic() - started
    print(f"\nidle with 40 readers: {cpu_seconds / elapsed * 100:.2f} % of one processor")
    for task in readers:
        task.cancel()
    await asyncio.gather(*readers, return_exceptions=True)
    assert cpu_seconds < elapsed / 2


# Patches


async def test_patches_after_a_snapshot_give_the_state(ledger: LocalLedger) -> None:
    """C9: a snapshot at N and the patches after N make the same entries as a new snapshot, for every N."""
    session = ledger.session("a")
    await session.start_turn("what is the weather?")
    await session.say("Let me ")
    first = await ledger.snapshot("a")
    entries = {entry.id: msgspec.to_builtins(entry) for entry in first.entries}
    await session.say("look.")
    async with session.call("weather", {"city": "Paris"}) as call:
        await call.progress("asking\n")
        call.complete({"sky": "blue"})
    await session.say("It is blue.")
    await session.end_turn()
    last = await ledger.snapshot("a")
    async with asyncio.timeout(60), contextlib.aclosing(ledger.log.patches("a", first.seq)) as changes:
        async for seq, patches in changes:
            for patch in patches:
                apply_patch(entries, patch)
            if seq == last.seq:
                break
    assert list(entries.values()) == [msgspec.to_builtins(entry) for entry in last.entries]


def apply_patch(entries: dict[int, dict[str, object]], patch: Put | Set | Append) -> None:
    """Apply a patch to entries, like a browser."""
    if isinstance(patch, Put):
        entries[patch.entry.id] = msgspec.to_builtins(patch.entry)
    elif isinstance(patch, Append):
        entry = entries[patch.id]
        entry[patch.field] = str(entry.get(patch.field, "")) + patch.text
    elif patch.id:
        changed = entries[patch.id] | msgspec.to_builtins(patch.fields)
        entries[patch.id] = {name: value for name, value in changed.items() if value is not None}
