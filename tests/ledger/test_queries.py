"""Reading by the checkpoint: pages, a turn, from a cursor. It gives what the fold of the log gives, at its own cost."""

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
from tests.support.strategies import SESSION, KnownIds, canonical_json, scripts

pytestmark = pytest.mark.anyio

SETTINGS = Settings(synchronous="NORMAL", checkpoint_every=10**9, reaper_interval=10**6, redact=False)
PAGED = sorted(name for name, entry in registry.FORMATS.items() if entry.paged)
ONE = (Alias("acp", "1"),)


@pytest.fixture
async def ledger(db: str) -> AsyncIterator[LocalLedger]:
    async with await callslip.open(db, SETTINGS) as opened:
        yield opened


def ids(source: Snapshot) -> list[Any]:
    """A format of the simplest kind: a message for each entry."""
    return [entry.id for entry in source.entries]


async def all_pages(ledger: LocalLedger, encode: Any, limit: int, *, newest_first: bool = False) -> list[list[Any]]:
    """Every page, the newest first."""
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
def test_pages_of_any_size_give_the_full_history(script: list[Event], kept: set[int], limit: int, format: str) -> None:
    """S4.5: for any log and checkpoints, pages hold every message once, in order, as the history has it."""
    asyncio.run(check_pages(script, kept, limit, format))


async def check_pages(script: list[Event], kept: set[int], limit: int, format: str) -> None:
    encode, newest_first = registry.encoder(format), registry.find(format).newest_first
    async with await open_ledger("sqlite:///:memory:", SETTINGS) as ledger:
        if not await rewritten(ledger, script, kept):
            return
        whole = encode(await ledger.log.state_at(SESSION))
        pages = await all_pages(ledger, encode, limit, newest_first=newest_first)
        ordered = pages if newest_first else pages[::-1]
        assert canonical_json([message for page in ordered for message in page]) == canonical_json(whole)


async def rewritten(ledger: LocalLedger, script: Sequence[Event], kept: set[int]) -> list[Event]:
    """The log that a script makes in this ledger, with checkpoints where they are asked for."""
    names = KnownIds()
    for number, event in enumerate(script):
        with contextlib.suppress(CallslipError):
            names.add_events(await ledger.log.append(SESSION, [names.resolve(event)]))
        if number in kept:
            await ledger.log.project(SESSION)
    return [event async for event in ledger.events(SESSION)]


@pytest.mark.parametrize("format", PAGED)
@pytest.mark.parametrize("name", scenarios.NAMES)
def test_a_history_is_made_block_by_block(name: str, format: str) -> None:
    """S4.5: no message spans two turns, so a call is never separated from its result."""
    from tests.support.stream_checks import folded

    entries = folded(scenarios.load_events(name)).snapshot().entries
    encode, newest_first = registry.encoder(format), registry.find(format).newest_first
    encoded = [encode(block) for block in split_blocks(entries)]
    encoded = encoded[::-1] if newest_first else encoded
    assert canonical_json([message for block in encoded for message in block]) == canonical_json(encode(entries))


async def turn(ledger: LocalLedger, number: int) -> None:
    """A turn with a question, a call and an answer."""
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
        await turn(ledger, number)
    before = [message for page in (await all_pages(ledger, ids, 4))[::-1] for message in page]
    seen: list[Any] = []
    cursor = ""
    for number in range(100):
        page = await queries.messages(ledger.log.store, SESSION, ids, limit=4, cursor=cursor)
        seen = page.messages + seen
        if not page.cursor:
            break
        cursor = page.cursor
        await turn(ledger, 10 + number)
        if number % 2:
            await ledger.log.project(SESSION)
    assert seen == before


@pytest.mark.parametrize(
    "cursor", ["x", "[]", "[1]", '["1",2]', "[1,2,3]", "[1,-1]", "[4,1]", "[-3,1]", "[99999,1]", "{}", "[1e3,1]"]
)
async def test_an_invalid_cursor_is_refused(ledger: LocalLedger, cursor: str) -> None:
    """A list never silently starts again."""
    await turn(ledger, 1)
    with pytest.raises(InvalidInputError):
        await queries.messages(ledger.log.store, SESSION, ids, limit=4, cursor=cursor)


async def test_a_page_of_an_unknown_session_is_not_found(ledger: LocalLedger) -> None:
    """It is an error and not an empty page."""
    with pytest.raises(NotFoundError):
        await queries.messages(ledger.log.store, "none", ids, limit=4)


class Counted:
    """A store that counts the rows it gives."""

    def __init__(self, store: Any) -> None:
        self._store = store
        self.rows = 0

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._store, name)
        if name not in ("events", "entries", "entries_from"):
            return method

        async def counted(*args: Any) -> Any:
            found = await method(*args)
            self.rows += len(found)
            return found

        return counted


async def test_the_cost_of_a_page_does_not_grow_with_the_session(db: str) -> None:
    """C12: a page reads as many rows of a long session as of a short one, also after a restart."""
    read: list[list[int]] = []
    for turns in (200, 1000):
        url = db + str(turns)
        async with await callslip.open(url, SETTINGS) as ledger:
            for number in range(turns):
                await turn(ledger, number)
            await ledger.log.project(SESSION)
            await ledger.log.append(SESSION, [ev.TurnStarted(), ev.MessageUser(text="The last")])
        async with await callslip.open(url, SETTINGS) as ledger:
            read.append(await costs(ledger))
    assert read[0] == read[1]
    assert max(read[0]) < 1500


async def costs(ledger: LocalLedger) -> list[int]:
    """How many rows the first page, one in the middle, the last turn and a resumed state take."""
    counted: list[int] = []
    store = Counted(ledger.log.store)
    first = await queries.messages(store, SESSION, ids, limit=50)
    counted.append(store.rows)
    await queries.messages(store, SESSION, ids, limit=50, cursor=first.cursor)
    counted.append(store.rows)
    await queries.load_turn(store, SESSION)
    counted.append(store.rows)
    row = await ledger.log.store.session(SESSION)
    assert row is not None
    await queries.state_after(store, SESSION, row.last_seq)
    counted.append(store.rows)
    await queries.snapshot(store, SESSION, limit=50)
    counted.append(store.rows)
    return counted


@given(scripts(), st.sets(st.integers(0, 30)), st.integers(0, 40))
def test_a_state_resumed_at_any_cursor_gives_the_same_patches(script: list[Event], kept: set[int], after: int) -> None:
    """C9: as a reader from the beginning receives."""
    asyncio.run(check_resumed(script, kept, after))


async def check_resumed(script: list[Event], kept: set[int], after: int) -> None:
    async with await open_ledger("sqlite:///:memory:", SETTINGS) as ledger:
        log = await rewritten(ledger, script, kept)
        if not log or after > len(log):
            return
        resumed = await queries.state_after(ledger.log.store, SESSION, after)
        whole = await ledger.log.state_at(SESSION, after)
        assert resumed.seq == whole.seq == after
        for event in log[after:]:
            assert canonical_json(resumed.apply(event)) == canonical_json(whole.apply(event))


@given(scripts(), st.sets(st.integers(0, 30)), st.booleans())
def test_a_loaded_turn_has_all_its_entries(script: list[Event], kept: set[int], named: bool) -> None:
    """C9: for any position of the checkpoint, and later events give the same patches."""
    asyncio.run(check_turn(script, kept, named))


async def check_turn(script: list[Event], kept: set[int], named: bool) -> None:
    async with await open_ledger("sqlite:///:memory:", SETTINGS) as ledger:
        if not await rewritten(ledger, script, kept):
            return
        whole = await ledger.log.state_at(SESSION)
        turns = list(dict.fromkeys(entry.turn for entry in whole.entries.values() if entry.turn))
        for name in turns if named else [""]:
            read = Turn(await queries.load_turn(ledger.log.store, SESSION, name), name)
            expected = Turn(await ledger.log.state_at(SESSION), name)
            assert read.name == expected.name
            assert canonical_json(read.entries()) == canonical_json(expected.entries())
            assert canonical_json(read.apply(late(whole.seq))) == canonical_json(expected.apply(late(whole.seq)))


def late(seq: int) -> Event:
    return ev.MessageDelta(text="more", chunks="delta", seq=seq + 1, at=5)


def test_a_page_cursor_is_json() -> None:
    """So it can be part of a URL."""
    assert queries.read_cursor(codec.encode([12, 3]).decode(), int, int) == [12, 3]


async def test_the_turn_before_the_open_turn_is_loaded(ledger: LocalLedger) -> None:
    """Its entries are stored before those of the open turn."""
    await turn(ledger, 1)
    await ledger.log.append(SESSION, [ev.TurnStarted(), ev.MessageUser(text="more"), ev.MessageUser(text="and more")])
    await ledger.log.project(SESSION)
    found = Turn(await queries.load_turn(ledger.log.store, SESSION, "t1"), "t1")
    assert len(found.entries()) == 3
