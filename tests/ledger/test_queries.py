"""Read with a checkpoint: pages, a turn, from a cursor. The result equals the fold of the log."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import callslip
from callslip.api.ledger import LocalLedger, open_ledger
from callslip.errors import CallslipError, InvalidInputError, NotFoundError
from callslip.formats import registry
from callslip.formats.turn_scope import Turn
from callslip.ledger import queries
from callslip.model import codec
from callslip.model import events as ev
from callslip.model.entries import Snapshot
from callslip.model.events import Alias, Event
from callslip.rules.entry_blocks import split_blocks
from callslip.settings import Settings
from tests.support import scenarios
from tests.support.engines import DatabaseFactory, new_database, runs_example
from tests.support.strategies import SESSION, KnownIds, canonical_json, scripts

pytestmark = pytest.mark.anyio

SETTINGS = Settings(synchronous="NORMAL", checkpoint_every=10**9, reaper_interval=10**6, redact=False)
PAGED = sorted(name for name, entry in registry.FORMATS.items() if entry.paged)
ONE = (Alias("acp", "1"),)


@pytest.fixture
async def ledger(db: str) -> AsyncIterator[LocalLedger]:
    async with await callslip.open(db, SETTINGS) as instance:
        yield instance


def encode_ids(source: Snapshot) -> list[Any]:
    """Encode each entry as one message, its id."""
    return [entry.id for entry in source.entries]


async def read_pages(ledger: LocalLedger, encode: Any, limit: int, *, newest_first: bool = False) -> list[list[Any]]:
    """Return all pages, the newest first."""
    pages: list[list[Any]] = []
    cursor = ""
    while True:
        page = await queries.messages(
            ledger.log.store, SESSION, encode, limit=limit, cursor=cursor, newest_first=newest_first
        )
        pages.append(page.messages)
        assert len(page.messages) <= limit
        if not page.cursor:
            return pages
        assert len(page.messages) == limit
        cursor = page.cursor


@given(scripts(), st.sets(st.integers(0, 30)), st.integers(1, 5), st.sampled_from(PAGED))
def test_pages_of_any_size_give_the_full_history(
    engine: str, script: list[Event], checkpoints_at: set[int], limit: int, format: str
) -> None:
    """S4.5: for any log and checkpoints, the pages have every message of the history once and in order."""
    if runs_example(engine, script, checkpoints_at, limit):
        with new_database(engine) as url:
            asyncio.run(check_pages(url, script, checkpoints_at, limit, format))


async def check_pages(url: str, script: list[Event], checkpoints_at: set[int], limit: int, format: str) -> None:
    encode, newest_first = registry.encoder(format), registry.find(format).newest_first
    async with await open_ledger(url, SETTINGS) as ledger:
        if not await write_log(ledger, script, checkpoints_at):
            return
        expected = encode(await ledger.log.state_at(SESSION))
        pages = await read_pages(ledger, encode, limit, newest_first=newest_first)
        ordered = pages if newest_first else pages[::-1]
        assert canonical_json([message for page in ordered for message in page]) == canonical_json(expected)


async def write_log(ledger: LocalLedger, script: Sequence[Event], checkpoints_at: set[int]) -> list[Event]:
    """Write a script to a ledger with checkpoints after some events, and return the log."""
    known_ids = KnownIds()
    for number, event in enumerate(script):
        with contextlib.suppress(CallslipError):
            known_ids.add_events(await ledger.log.append(SESSION, [known_ids.resolve(event)]))
        if number in checkpoints_at:
            await ledger.log.project(SESSION)
    return [event async for event in ledger.events(SESSION)]


@pytest.mark.parametrize("format", PAGED)
@pytest.mark.parametrize("name", scenarios.NAMES)
def test_a_history_is_made_block_by_block(name: str, format: str) -> None:
    """S4.5: no message spans two turns, so a call is never separated from its result."""
    from tests.support.stream_checks import fold_log

    entries = fold_log(scenarios.load_events(name)).snapshot().entries
    encode, newest_first = registry.encoder(format), registry.find(format).newest_first
    encoded = [encode(block) for block in split_blocks(entries)]
    encoded = encoded[::-1] if newest_first else encoded
    assert canonical_json([message for block in encoded for message in block]) == canonical_json(encode(entries))


async def append_turn(ledger: LocalLedger, number: int) -> None:
    """Append a turn with a question, a call and an answer."""
    await ledger.log.append(
        SESSION,
        [
            ev.TurnStarted(),
            ev.MessageUser(text=f"Question {number}"),
            ev.CallStarted(aliases=ONE, tool_name="look", input={"n": number}),
            ev.CallCompleted(aliases=ONE, output=number),
            ev.MessageDelta(text=f"Answer {number}", chunks="delta"),
            ev.TurnEnded(),
        ],
    )


async def test_a_cursor_stays_valid_while_the_session_grows(ledger: LocalLedger) -> None:
    """S4.5: a reader that pages back receives every message once."""
    for number in range(6):
        await append_turn(ledger, number)
    before = [message for page in (await read_pages(ledger, encode_ids, 4))[::-1] for message in page]
    messages: list[Any] = []
    cursor = ""
    for number in range(100):
        page = await queries.messages(ledger.log.store, SESSION, encode_ids, limit=4, cursor=cursor)
        messages = page.messages + messages
        if not page.cursor:
            break
        cursor = page.cursor
        await append_turn(ledger, 10 + number)
        if number % 2:
            await ledger.log.project(SESSION)
    assert messages == before


@pytest.mark.parametrize(
    "cursor", ["x", "[]", "[1]", '["1",2]', "[1,2,3]", "[1,-1]", "[4,1]", "[-3,1]", "[99999,1]", "{}", "[1e3,1]"]
)
async def test_an_invalid_cursor_is_refused(ledger: LocalLedger, cursor: str) -> None:
    """A list never silently starts again."""
    await append_turn(ledger, 1)
    with pytest.raises(InvalidInputError):
        await queries.messages(ledger.log.store, SESSION, encode_ids, limit=4, cursor=cursor)


async def test_a_page_of_an_unknown_session_is_not_found(ledger: LocalLedger) -> None:
    """It is an error and not an empty page."""
    with pytest.raises(NotFoundError):
        await queries.messages(ledger.log.store, "none", encode_ids, limit=4)


class CountingStore:
    """A store that counts the rows it returns."""

    def __init__(self, store: Any) -> None:
        self._store = store
        self.rows = 0

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._store, name)
        if name not in ("events", "entries", "entries_from"):
            return method

        async def counting_method(*args: Any) -> Any:
            rows = await method(*args)
            self.rows += len(rows)
            return rows

        return counting_method


async def test_the_cost_of_a_page_does_not_grow_with_the_session(new_db: DatabaseFactory) -> None:
    """C12: a page reads as many rows of a long session as of a short one, also after a restart."""
    costs_by_length: list[list[int]] = []
    for turns in (200, 1000):
        url = new_db()
        async with await callslip.open(url, SETTINGS) as ledger:
            for number in range(turns):
                await append_turn(ledger, number)
            await ledger.log.project(SESSION)
            await ledger.log.append(SESSION, [ev.TurnStarted(), ev.MessageUser(text="The last")])
        async with await callslip.open(url, SETTINGS) as ledger:
            costs_by_length.append(await measure_costs(ledger))
    assert costs_by_length[0] == costs_by_length[1]
    assert max(costs_by_length[0]) < 1500


async def measure_costs(ledger: LocalLedger) -> list[int]:
    """Return the rows read so far after the first page, the second, the last turn, a resumed state and a snapshot."""
    row_counts: list[int] = []
    store = CountingStore(ledger.log.store)
    first = await queries.messages(store, SESSION, encode_ids, limit=50)
    row_counts.append(store.rows)
    await queries.messages(store, SESSION, encode_ids, limit=50, cursor=first.cursor)
    row_counts.append(store.rows)
    await queries.load_turn(store, SESSION)
    row_counts.append(store.rows)
    row = await ledger.log.store.session(SESSION)
    assert row is not None
    await queries.state_after(store, SESSION, row.last_seq)
    row_counts.append(store.rows)
    await queries.snapshot(store, SESSION, limit=50)
    row_counts.append(store.rows)
    return row_counts


@given(scripts(), st.sets(st.integers(0, 30)), st.integers(0, 40))
def test_a_state_resumed_at_any_cursor_gives_the_same_patches(
    engine: str, script: list[Event], checkpoints_at: set[int], after: int
) -> None:
    """C9: as a reader from the beginning receives."""
    if runs_example(engine, script, checkpoints_at, after):
        with new_database(engine) as url:
            asyncio.run(check_resumed_state(url, script, checkpoints_at, after))


async def check_resumed_state(url: str, script: list[Event], checkpoints_at: set[int], after: int) -> None:
    async with await open_ledger(url, SETTINGS) as ledger:
        log = await write_log(ledger, script, checkpoints_at)
        if not log or after > len(log):
            return
        resumed = await queries.state_after(ledger.log.store, SESSION, after)
        expected = await ledger.log.state_at(SESSION, after)
        assert resumed.seq == expected.seq == after
        for event in log[after:]:
            assert canonical_json(resumed.apply(event)) == canonical_json(expected.apply(event))


@given(scripts(), st.sets(st.integers(0, 30)), st.booleans())
def test_a_loaded_turn_has_all_its_entries(
    engine: str, script: list[Event], checkpoints_at: set[int], by_name: bool
) -> None:
    """C9, STR2: for any position of the checkpoint, in turns and outside, and later events give the same patches."""
    if runs_example(engine, script, checkpoints_at, by_name):
        with new_database(engine) as url:
            asyncio.run(check_turn(url, script, checkpoints_at, by_name))


async def check_turn(url: str, script: list[Event], checkpoints_at: set[int], by_name: bool) -> None:
    async with await open_ledger(url, SETTINGS) as ledger:
        if not await write_log(ledger, script, checkpoints_at):
            return
        state = await ledger.log.state_at(SESSION)
        turns = list(dict.fromkeys(entry.turn or f"msg-{entry.id}" for entry in state.entries.values()))
        for name in turns if by_name else [""]:
            loaded = Turn(await queries.load_turn(ledger.log.store, SESSION, name), name)
            expected = Turn(await ledger.log.state_at(SESSION), name)
            assert (loaded.name, loaded.ended) == (expected.name, expected.ended)
            assert canonical_json(loaded.entries()) == canonical_json(expected.entries())
            assert canonical_json(loaded.apply(next_delta(state.seq))) == canonical_json(
                expected.apply(next_delta(state.seq))
            )


def next_delta(seq: int) -> Event:
    return ev.MessageDelta(text="more", chunks="delta", seq=seq + 1, at=5)


def test_a_page_cursor_is_json() -> None:
    """So it can be part of a URL."""
    assert queries.read_cursor(codec.encode([12, 3]).decode(), int, int) == [12, 3]


async def test_the_turn_before_the_open_turn_is_loaded(ledger: LocalLedger) -> None:
    """Its entries are stored before those of the open turn."""
    await append_turn(ledger, 1)
    await ledger.log.append(SESSION, [ev.TurnStarted(), ev.MessageUser(text="more"), ev.MessageUser(text="and more")])
    await ledger.log.project(SESSION)
    loaded = Turn(await queries.load_turn(ledger.log.store, SESSION, "t1"), "t1")
    assert len(loaded.entries()) == 3
