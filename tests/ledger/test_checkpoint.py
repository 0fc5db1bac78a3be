"""Checkpoints: the cost of a read does not grow with the session, and the result always equals the fold of the log."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

import callslip
from callslip.api.ledger import LocalLedger
from callslip.errors import CursorExpiredError, InvalidInputError, NotFoundError
from callslip.ingest.conversations import Connection
from callslip.ledger import checkpoint
from callslip.ledger.verify import verify
from callslip.model import events as ev
from callslip.model.events import Alias, Draft, Event
from callslip.rules import fold
from callslip.rules.fold import SessionFold
from callslip.settings import Settings
from tests.support.engines import new_database, runs_example
from tests.support.strategies import SESSION, KnownIds, canonical_json, scripts

pytestmark = pytest.mark.anyio

SETTINGS = Settings(synchronous="NORMAL", checkpoint_every=10**9, reaper_interval=10**6, redact=False)
ONE, TWO = (Alias("acp", "1"),), (Alias("acp", "2"),)


@pytest.fixture
async def ledger(db: str) -> AsyncIterator[LocalLedger]:
    async with await callslip.open(db, SETTINGS) as instance:
        yield instance


def delta(text: str, **fields: Any) -> ev.MessageDelta:
    return ev.MessageDelta(text=text, chunks="delta", **fields)


async def fold_json(ledger: LocalLedger, seq: int | None = None) -> bytes:
    """Return the snapshot from the fold of the log, as JSON."""
    return canonical_json((await ledger.log.state_at(SESSION, seq)).snapshot())


async def stored_json(ledger: LocalLedger) -> bytes:
    """Return the snapshot from the stored rows and the fold of later events, as JSON."""
    return canonical_json(await ledger.snapshot(SESSION))


def trace_statements(ledger: LocalLedger) -> list[tuple[str, Any]]:
    """Return a list that receives every later SQL statement of the writer with its values."""
    statements: list[tuple[str, Any]] = []

    def trace(_: object, sql: str, values: Any) -> bool:
        statements.append((sql, values))
        return True

    ledger.log.store._writing.exec_trace = trace
    return statements


# Reading


async def test_pages_from_the_end_have_every_entry_once(ledger: LocalLedger) -> None:
    """Stored entries and those of the tail, in order and without gaps."""
    await ledger.log.append(SESSION, [ev.MessageUser(text=str(n)) for n in range(10)])
    await ledger.log.project(SESSION)
    await ledger.log.append(SESSION, [ev.MessageUser(text=str(n)) for n in range(10, 15)])
    all_ids = [entry.id for entry in (await ledger.snapshot(SESSION)).entries]
    assert all_ids == list(range(1, 16))
    for size in (1, 3, 4, 7, 15, 20):
        pages, before = list[int](), checkpoint.ALL
        while page := [entry.id for entry in (await ledger.snapshot(SESSION, limit=size, before=before)).entries]:
            assert len(page) <= size
            pages, before = page + pages, page[0]
        assert pages == all_ids
    assert (await ledger.snapshot(SESSION, limit=0)).entries == []


async def test_an_open_call_keeps_its_position_in_every_page(ledger: LocalLedger) -> None:
    """It is ordered among the stored entries by its id."""
    await ledger.log.append(SESSION, [ev.MessageUser(text="a"), ev.CallStarted(aliases=ONE), ev.MessageUser(text="b")])
    await ledger.log.project(SESSION)
    assert [entry.id for entry in (await ledger.snapshot(SESSION)).entries] == [1, 2, 3]
    assert [entry.id for entry in (await ledger.snapshot(SESSION, limit=2)).entries] == [2, 3]
    assert [entry.id for entry in (await ledger.snapshot(SESSION, limit=1, before=3)).entries] == [2]


async def test_reading_a_long_session_reads_only_its_tail(ledger: LocalLedger, monkeypatch: pytest.MonkeyPatch) -> None:
    """C12: with a checkpoint at the head the newest entries are read without any event."""
    await ledger.log.append(SESSION, [ev.MessageUser(text=str(n)) for n in range(3000)])
    await ledger.log.project(SESSION)
    await ledger.log.append(SESSION, [ev.MessageUser(text="tail")])
    requested = list[tuple[int, int]]()
    events = ledger.log.store.events

    async def counting_events(session: str, after: int, *limits: int) -> list[tuple[int, bytes]]:
        rows = await events(session, after, *limits)
        requested.append((after, len(rows)))
        return rows

    monkeypatch.setattr(ledger.log.store, "events", counting_events)
    assert len((await ledger.snapshot(SESSION, limit=50)).entries) == 50
    assert requested == [(3000, 1)]


async def test_a_late_event_is_noted_on_a_stored_entry(ledger: LocalLedger) -> None:
    """C4: before the checkpoint, in the tail, and after the next checkpoint."""
    await ledger.log.append(SESSION, [ev.CallCompleted(aliases=ONE, output="x")])
    await ledger.log.project(SESSION)
    for seq in (2, 3):
        await ledger.log.append(SESSION, [ev.CallProgress(aliases=ONE, text="late")])
        for _ in range(2):
            (entry,) = (await ledger.snapshot(SESSION)).entries
            assert (entry.late, entry.output) == (seq, "x")
            assert await stored_json(ledger) == await fold_json(ledger)
            await ledger.log.project(SESSION)
    assert await verify(ledger.log) == []


async def test_a_checkpoint_between_two_reads_loses_no_entry(
    ledger: LocalLedger, monkeypatch: pytest.MonkeyPatch
) -> None:
    """C9: rows that a projector moves between two reads are neither repeated nor missed."""
    await ledger.log.append(SESSION, [ev.MessageUser(text="a"), delta("one "), ev.CallStarted(aliases=ONE)])
    await ledger.log.project(SESSION)
    await ledger.log.append(SESSION, [ev.CallProgress(aliases=ONE, text="out")])
    for name in ("session", "checkpoint", "pieces", "events", "entries"):
        await ledger.log.append(
            SESSION, [ev.MessageUser(text=name), delta("more "), ev.CallProgress(aliases=ONE, text="!")]
        )
        read, has_moved = getattr(ledger.log.store, name), list[bool]()

        async def read_then_move(*args: Any, read: Any = read, has_moved: list[bool] = has_moved, **named: Any) -> Any:
            rows = await read(*args, **named)
            if not has_moved:
                has_moved.append(True)
                await ledger.log.append(SESSION, [ev.CallCompleted(aliases=TWO)])
                await ledger.log.project(SESSION)
            return rows

        monkeypatch.setattr(ledger.log.store, name, read_then_move)
        snapshot = await ledger.snapshot(SESSION)
        monkeypatch.undo()
        assert has_moved
        assert canonical_json(snapshot) == await fold_json(ledger, snapshot.seq)


# Projectors


async def test_a_repeated_checkpoint_changes_nothing(ledger: LocalLedger) -> None:
    """The same events give the same rows: nothing is written a second time."""
    await ledger.log.append(SESSION, [ev.MessageUser(text="a"), delta("b"), ev.CallStarted(aliases=ONE)])
    await ledger.log.project(SESSION)
    before, statements = await stored_json(ledger), trace_statements(ledger)
    assert await checkpoint.project(ledger.log.store, SESSION) is not None
    assert await checkpoint.project(ledger.log.store, "nobody") is not None
    assert statements == [] and await stored_json(ledger) == before


async def test_concurrent_projectors_write_one_checkpoint(db: str) -> None:
    """The second one writes nothing, and the session reads the same, for any order of the two."""
    async with await callslip.open(db, SETTINGS) as first, await callslip.open(db, SETTINGS) as second:
        for number in range(20):
            alias = (Alias("acp", str(number)),)
            await first.log.append(SESSION, [ev.CallStarted(aliases=alias), delta("x")])
            await second.log.append(SESSION, [ev.CallProgress(aliases=alias, text="y"), delta(f"{number}")])
            if number % 2:
                await first.log.append(SESSION, [ev.CallCompleted(aliases=alias), ev.MessageEnded()])
            await asyncio.gather(*(ledger.log.project(SESSION) for ledger in (first, second, first)))
            assert await stored_json(first) == await stored_json(second) == await fold_json(first)
        assert await verify(first.log) == []


async def test_a_delayed_projector_does_not_overwrite_a_newer_checkpoint(
    ledger: LocalLedger, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A projector that started before another and finishes after it writes nothing."""
    save = ledger.log.store.save_progress
    for first in (True, False):  # Without a checkpoint, and with one.
        await ledger.log.append(SESSION, [delta(f"a{first}"), ev.MessageUser(text="b"), delta("c")])

        async def save_late(progress: Any) -> bool:
            monkeypatch.undo()
            await ledger.log.append(SESSION, [delta("d"), ev.MessageUser(text="e")])
            await ledger.log.project(SESSION)
            return await save(progress)

        monkeypatch.setattr(ledger.log.store, "save_progress", save_late)
        assert await checkpoint.project(ledger.log.store, SESSION) is None
        assert await stored_json(ledger) == await fold_json(ledger)
        assert await verify(ledger.log) == []


async def test_a_projector_of_a_deleted_session_writes_nothing(
    ledger: LocalLedger, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A projector that started before the deletion does not write into a new session of the same name."""
    await ledger.log.append(SESSION, [ev.MessageUser(text="old"), delta("old")])
    save = ledger.log.store.save_progress

    async def save_late(progress: Any) -> bool:
        monkeypatch.undo()
        await ledger.delete(SESSION)
        await ledger.log.append(SESSION, [ev.MessageUser(text="new")])
        return await save(progress)

    monkeypatch.setattr(ledger.log.store, "save_progress", save_late)
    assert await checkpoint.project(ledger.log.store, SESSION) is None
    assert [entry.content for entry in (await ledger.snapshot(SESSION)).entries] == ["new"]
    assert await verify(ledger.log) == []


async def test_each_checkpoint_stores_only_new_text(ledger: LocalLedger) -> None:
    """C12: so all checkpoints together write a long text once."""
    await ledger.log.append(SESSION, [ev.CallStarted(aliases=ONE)])
    await ledger.log.project(SESSION)
    statements, sent_chars = trace_statements(ledger), 0
    for number in range(40):
        text = f"{number:100}é😀"
        sent_chars += 2 * len(text)
        await ledger.log.append(SESSION, [ev.CallProgress(aliases=ONE, text=text), delta(text)])
        await ledger.log.project(SESSION)
    texts = [values[4] for sql, values in statements if "INTO pieces" in sql]
    assert sum(map(len, texts)) == sent_chars
    assert not [sql for sql, _ in statements if "DELETE FROM pieces" in sql]
    states = [len(values[3]) for sql, values in statements if "INTO checkpoints" in sql]
    assert max(states) < min(states) + 100
    assert await stored_json(ledger) == await fold_json(ledger)
    await ledger.log.append(SESSION, [ev.CallCompleted(aliases=ONE), ev.MessageEnded()])
    await ledger.log.project(SESSION)
    assert (await ledger.log.store.row_counts(SESSION)).texts == 0
    assert await stored_json(ledger) == await fold_json(ledger)


@pytest.mark.parametrize("policy", ["delta", "auto"])
async def test_a_checkpoint_of_deltas_does_not_read_stored_text(
    ledger: LocalLedger, monkeypatch: pytest.MonkeyPatch, policy: Any
) -> None:
    """C12: declared or proven deltas are appended by the length of the text alone."""
    await ledger.log.append(SESSION, [ev.MessageDelta(text="one"), ev.MessageDelta(text=" two"), ev.MessageEnded()])
    await ledger.log.append(SESSION, [ev.MessageDelta(text="begun", chunks=policy)])
    await ledger.log.project(SESSION)
    read_entries = list[int]()
    pieces = ledger.log.store.pieces

    async def counting_pieces(session: str, entry: int, field: str) -> str:
        read_entries.append(entry)
        return await pieces(session, entry, field)

    with monkeypatch.context() as patch:
        patch.setattr(ledger.log.store, "pieces", counting_pieces)
        for number in range(5):
            await ledger.log.append(SESSION, [ev.MessageDelta(text=f" {number}", chunks=policy)])
            await ledger.log.project(SESSION)
    assert read_entries == []
    assert (await ledger.snapshot(SESSION)).entries[-1].content == "begun 0 1 2 3 4"
    assert await stored_json(ledger) == await fold_json(ledger)


TEXT_EVENTS: dict[str, list[Event]] = {
    "full arguments replace streamed ones": [
        ev.CallInputDelta(aliases=ONE, text="abc"),
        ev.CallInput(aliases=ONE, input={"a": 1}),
        ev.CallInputDelta(aliases=ONE, text="xyz123"),
        ev.CallStarted(aliases=ONE),
    ],
    "deltas, then a cumulative chunk": [delta("Hello "), ev.MessageDelta(text="Hello world", chunks="cumulative")],
    "deltas, then a literal repeat": [delta("Hello "), ev.MessageDelta(text="lo ", chunks="dedupe")],
    "a repaired text": [ev.MessageDelta(text="x" * n) for n in (1, 5, 20, 30, 31)],
    "a text repaired at its end": [*(ev.MessageDelta(text="x" * n) for n in (1, 2, 3)), ev.MessageEnded()],
    "a text that was replaced": [ev.MessageDelta(text=text, chunks="cumulative") for text in ("abc", "abd", "abde")],
    "a source that is proven": [
        *(ev.MessageDelta(text="x" * n) for n in (1, 5, 20, 30)),
        ev.MessageEnded(),
        *(ev.MessageDelta(text="y" * n) for n in (3, 4, 2, 9)),
    ],
    "an id on a later chunk": [delta("a"), delta("b", message_id="m"), delta("c", message_id="m"), delta("d")],
    "characters of two units": [delta("😀"), delta("e\u0301"), delta("👩‍👧"), delta("x"), ev.MessageEnded()],
    "a superseded request": [
        ev.ApprovalRequested(aliases=ONE, input=1),
        ev.ApprovalRequested(aliases=ONE, input=True),
        ev.ApprovalGranted(aliases=ONE, input=1.0),
    ],
}


@pytest.mark.parametrize("name", TEXT_EVENTS)
@pytest.mark.parametrize("interval", [1, 2, 3])
async def test_a_text_continues_after_a_checkpoint(ledger: LocalLedger, name: str, interval: int) -> None:
    """C9: the entries are the same as without the checkpoint."""
    for number, event in enumerate(TEXT_EVENTS[name]):
        await ledger.log.append(SESSION, [event])
        if number % interval == 0:
            await ledger.log.project(SESSION)
        assert await stored_json(ledger) == await fold_json(ledger)
    await ledger.log.project(SESSION)
    assert await stored_json(ledger) == await fold_json(ledger)
    assert await verify(ledger.log) == []


async def test_a_new_fold_version_rebuilds_the_checkpoint(ledger: LocalLedger, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows of an older version are ignored, and replaced by the next checkpoint."""
    await ledger.log.append(SESSION, [ev.MessageUser(text="a"), delta("b"), ev.CallCompleted(aliases=ONE), delta("c")])
    await ledger.log.project(SESSION)
    monkeypatch.setattr(checkpoint, "VERSION", fold.VERSION + 1)
    requested = list[str]()
    entries = ledger.log.store.entries

    async def counting_entries(session: str, before: int, limit: int) -> list[tuple[int, bytes]]:
        requested.append(session)
        return await entries(session, before, limit)

    monkeypatch.setattr(ledger.log.store, "entries", counting_entries)
    assert await stored_json(ledger) == await fold_json(ledger) and not requested
    await ledger.log.append(SESSION, [delta("d")])
    await ledger.log.project(SESSION)
    saved = await ledger.log.store.checkpoint(SESSION)
    assert saved is not None and (saved.seq, saved.version) == (5, fold.VERSION + 1)
    assert await stored_json(ledger) == await fold_json(ledger) and requested


async def test_checkpoints_of_two_versions_are_not_mixed(ledger: LocalLedger, monkeypatch: pytest.MonkeyPatch) -> None:
    """An older process does not extend a checkpoint that a newer one has made."""
    await ledger.log.append(SESSION, [ev.MessageUser(text="a"), delta("b")])
    await ledger.log.project(SESSION)
    save, newer = ledger.log.store.save_progress, list[Any]()

    async def defer_save(progress: Any) -> bool:
        newer.append(progress)
        return True

    async def save_after_newer(progress: Any) -> bool:
        assert await save(newer[0])
        return await save(progress)

    with monkeypatch.context() as patch:
        patch.setattr(checkpoint, "VERSION", fold.VERSION + 1)
        patch.setattr(ledger.log.store, "save_progress", defer_save)
        await checkpoint.project(ledger.log.store, SESSION)
    await ledger.log.append(SESSION, [delta("more"), ev.MessageUser(text="c")])
    monkeypatch.setattr(ledger.log.store, "save_progress", save_after_newer)
    assert await checkpoint.project(ledger.log.store, SESSION) is None
    saved = await ledger.log.store.checkpoint(SESSION)
    assert saved is not None and (saved.seq, saved.version) == (2, fold.VERSION + 1)
    assert await stored_json(ledger) == await fold_json(ledger)


# When a checkpoint is made, and what a process remembers


async def checkpoints_end(ledger: LocalLedger) -> None:
    """Wait until no checkpoint is being made."""
    async with asyncio.timeout(60):
        while ledger.log._checkpointing:
            await asyncio.sleep(0.002)


async def last_checkpoint(ledger: LocalLedger, session: str = SESSION) -> int:
    await checkpoints_end(ledger)
    saved = await ledger.log.store.checkpoint(session)
    return saved.seq if saved is not None else 0


async def test_a_checkpoint_is_made_after_some_events_and_at_the_end_of_a_turn(db: str) -> None:
    """With many open entries, which each checkpoint stores again, checkpoints are rarer."""
    async with await callslip.open(db, Settings(checkpoint_every=4, reaper_interval=10**6)) as ledger:
        found = list[int]()
        for number in range(1, 9):
            await ledger.log.append(SESSION, [ev.MessageUser(text=str(number))])
            found.append(await last_checkpoint(ledger))
        assert found == [0, 0, 0, 4, 4, 4, 4, 8]
        await ledger.log.append(SESSION, [ev.TurnStarted(), ev.TurnEnded()])
        assert await last_checkpoint(ledger) == 10
        await ledger.log.append(SESSION, [ev.CallStarted(aliases=(Alias("acp", str(n)),)) for n in range(10)])
        assert await last_checkpoint(ledger) == 20
        found.clear()
        for number in range(21, 33):
            await ledger.log.append(SESSION, [ev.MessageUser(text=str(number))])
            found.append(await last_checkpoint(ledger))
        assert found == [20] * 11 + [32]


def kept_counts(ledger: LocalLedger) -> dict[str, int]:
    """Return how much is in each collection of the log, but for the checked names, which have a limit."""
    collections = {name: value for name, value in vars(ledger.log).items() if isinstance(value, dict | set | list)}
    del collections["_checked_names"]
    return {name: len(value) for name, value in collections.items()}


async def test_a_process_remembers_nothing_of_sessions_and_connections_that_have_ended(db: str) -> None:
    """However many sessions it has written, and however many connections were closed."""
    async with await callslip.open(db, Settings(checkpoint_every=4, reaper_interval=10**6)) as ledger:
        await ledger.log.append("first", [ev.MessageUser(text="Go.")])
        await ledger.log.append("first", [ev.MessageUser(text="Go.")], source="acp")
        before = kept_counts(ledger)
        for number in range(50):
            connection = Connection(ledger.log, "acp")
            name = f"s{number}"
            await connection.append(name, [Draft(ev.TurnStarted()), Draft(ev.CallStarted(aliases=ONE))])
            await ledger.log.append(name, [ev.MessageUser(text=str(n)) for n in range(number % 4)])
            await connection.close("closed")
        await checkpoints_end(ledger)
        assert kept_counts(ledger) == before
        assert not await ledger.log.store.open_calls()


# Past states


async def test_any_past_state_can_be_read(ledger: LocalLedger) -> None:
    """The state after N is the fold of N events; a position beyond the log is an error."""
    await ledger.log.append(SESSION, [ev.MessageUser(text=str(n)) for n in range(5)])
    for seq in range(6):
        assert len((await ledger.log.state_at(SESSION, seq)).entries) == seq
    for invalid_seq in (-1, 6):
        with pytest.raises(InvalidInputError):
            await ledger.log.state_at(SESSION, invalid_seq)
    with pytest.raises(NotFoundError):
        await ledger.log.state_at("nobody")
    with pytest.raises(NotFoundError):
        await ledger.snapshot("nobody")


# Retention


def with_times(*events: Event) -> list[Event]:
    """Return events with the times 1 ms, 2 ms, and so on."""
    return [structs.replace(event, at=number) for number, event in enumerate(events, 1)]


OLD_EVENTS = with_times(
    ev.TurnStarted(),
    ev.CallCompleted(aliases=ONE, output="old"),
    ev.CallStarted(aliases=TWO, title="long"),
    ev.ApprovalRequested(aliases=TWO),
    ev.CallProgress(aliases=TWO, text="some "),
    ev.MessageUser(text="and then"),
    delta("begun "),
    delta("and not ended"),
)


async def test_retention_keeps_open_calls_requests_and_texts(ledger: LocalLedger) -> None:
    """They continue; events and ended entries before the cut are removed."""
    await ledger.log.append(SESSION, OLD_EVENTS)
    before = (await ledger.snapshot(SESSION)).entries
    assert await checkpoint.prune(ledger.log.store, SESSION, 8) == 7
    row = await ledger.log.store.session(SESSION)
    assert row is not None and (row.pruned_seq, row.last_seq) == (7, 8)
    expected = [entry for entry in before if entry.id in (3, 4, 7)]
    assert (await ledger.snapshot(SESSION)).entries == expected
    assert await ledger.log.store.alias("1", SESSION) == []
    (call,) = await ledger.log.store.alias("2", SESSION)
    assert (call.state, call.title) == ("awaiting_approval", "long")
    assert len(await ledger.approvals()) == 1
    await ledger.log.append(
        SESSION, [ev.ApprovalGranted(aliases=TWO), ev.CallStarted(aliases=TWO), delta(", or is it")]
    )
    await ledger.log.append(SESSION, [ev.CallProgress(aliases=TWO, text="more"), ev.CallCompleted(aliases=TWO)])
    for _ in range(2):
        call_entry, requested, message = (await ledger.snapshot(SESSION)).entries
        assert (call_entry.status, call_entry.output_text, requested.state) == ("completed", "some more", "granted")
        assert message.content == "begun and not ended, or is it"
        assert await stored_json(ledger) == await fold_json(ledger)
        await ledger.log.project(SESSION)
    assert await verify(ledger.log) == []


async def test_an_answered_call_verifies_after_retention(ledger: LocalLedger) -> None:
    """Neither the base row nor the call record of an open call has a request, since none is pending."""
    answered: list[Event] = [
        ev.ApprovalRequested(aliases=ONE),
        ev.ApprovalGranted(aliases=ONE),
        ev.CallStarted(aliases=ONE),
        ev.MessageUser(text="x"),
    ]
    await ledger.log.append(SESSION, with_times(*answered))
    assert await checkpoint.prune(ledger.log.store, SESSION, 100) == 5
    assert [call.approval for call in await ledger.log.store.open_calls()] == [""]
    assert await verify(ledger.log) == []


async def test_a_position_before_the_retention_cut_is_an_error(ledger: LocalLedger) -> None:
    """The error has the first position of the log."""
    await ledger.log.append(SESSION, OLD_EVENTS)
    await checkpoint.prune(ledger.log.store, SESSION, 6)
    with pytest.raises(CursorExpiredError) as error:
        await ledger.log.state_at(SESSION, 4)
    assert (error.value.cursor, error.value.pruned_seq) == (4, 5)
    with pytest.raises(CursorExpiredError):
        await anext(aiter(ledger.log.batches(SESSION, 4)))
    assert (await ledger.log.state_at(SESSION, 5)).seq == 5


async def test_a_new_fold_version_rebuilds_a_pruned_session_from_its_base(
    ledger: LocalLedger, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No text loses its beginning."""
    await ledger.log.append(SESSION, OLD_EVENTS)
    await checkpoint.prune(ledger.log.store, SESSION, 8)
    before = await stored_json(ledger)
    for version in (fold.VERSION + 1, fold.VERSION + 2):
        monkeypatch.setattr(checkpoint, "VERSION", version)
        assert await stored_json(ledger) == before == await fold_json(ledger)
        await ledger.log.project(SESSION)
        assert await stored_json(ledger) == before


async def test_retention_without_old_events_changes_nothing(ledger: LocalLedger) -> None:
    """A second cut at the same position removes nothing."""
    await ledger.log.append(SESSION, OLD_EVENTS)
    assert await checkpoint.prune(ledger.log.store, SESSION, 1) == 0
    assert await checkpoint.prune(ledger.log.store, SESSION, 5) == 4
    before = await stored_json(ledger)
    assert await checkpoint.prune(ledger.log.store, SESSION, 5) == 0
    assert await stored_json(ledger) == before
    with pytest.raises(NotFoundError):
        await checkpoint.prune(ledger.log.store, "nobody", 5)


async def test_a_session_without_events_continues_its_numbering(ledger: LocalLedger) -> None:
    """C8: after retention has removed all events."""
    await ledger.log.append(SESSION, [*OLD_EVENTS, structs.replace(ev.MessageEnded(), at=9)])
    assert await checkpoint.prune(ledger.log.store, SESSION, 100) == 9
    assert [type(entry).__name__ for entry in (await ledger.snapshot(SESSION)).entries] == [
        "ToolCall",
        "PermissionRequest",
    ]
    (event,) = await ledger.log.append(SESSION, [ev.MessageUser(text="more")])
    assert event.seq == 10
    assert await verify(ledger.log) == []


def fold_log(log: list[Event]) -> SessionFold:
    state = SessionFold(SESSION)
    state.fold(log)
    return state


def open_entries(log: list[Event]) -> set[int]:
    state = fold_log(log)
    state.take_finished()
    return set(state.entries)


async def check_retention(url: str, script: list[Event], cuts: list[int]) -> None:
    known_ids, log, pruned_seq, open_ids = KnownIds(), list[Event](), 0, set[int]()
    async with await callslip.open(url, SETTINGS) as ledger:
        for number, event in enumerate(script):
            await ledger.log.append(SESSION, [structs.replace(known_ids.resolve(event), at=1000 + number)])
            log += [stored_event async for stored_event in ledger.events(SESSION, after=len(log))]
            known_ids.add_events(log)
            if number not in cuts:
                continue
            if removed := await checkpoint.prune(ledger.log.store, SESSION, 1000 + number - number % 3):
                pruned_seq += removed
                open_ids = open_entries(log[:pruned_seq])
            expected_state, snapshot = fold_log(log).snapshot(), await ledger.snapshot(SESSION)
            expected = [
                canonical_json(entry)
                for entry in expected_state.entries
                if entry.id > pruned_seq or entry.id in open_ids
            ]
            assert [canonical_json(entry) for entry in snapshot.entries] == expected
            assert canonical_json(snapshot.info) == canonical_json(expected_state.info)
            assert canonical_json(snapshot) == await fold_json(ledger)
        assert await verify(ledger.log) == []


@given(scripts(), st.lists(st.integers(0, 30), min_size=1, max_size=3))
def test_entries_after_retention_equal_those_of_the_full_log(engine: str, script: list[Event], cuts: list[int]) -> None:
    """For any cut, also after later events."""
    if runs_example(engine, script, cuts):
        with new_database(engine) as url:
            asyncio.run(check_retention(url, script, cuts))


async def test_deleting_a_session_removes_all_its_data(ledger: LocalLedger, db: str) -> None:
    """A new session of the same name starts at 1, without the earlier calls, ids and keys."""
    await ledger.log.append(SESSION, OLD_EVENTS)
    await ledger.log.append("other", [ev.CallStarted(aliases=ONE)])
    await checkpoint.prune(ledger.log.store, SESSION, 3)
    await ledger.log.project(SESSION)
    await ledger.delete(SESSION)
    for operation in (
        ledger.snapshot(SESSION),
        ledger.log.state_at(SESSION),
        ledger.delete(SESSION),
        verify(ledger.log, SESSION),
    ):
        with pytest.raises(NotFoundError):
            await operation
    (event,) = await ledger.log.append(SESSION, [ev.CallCompleted(aliases=TWO)])
    assert event.seq == 1
    assert len((await ledger.calls()).items) == 2
    assert await verify(ledger.log) == []
