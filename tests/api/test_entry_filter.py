"""The server's filter: all entries of a session, with counts, pages, blobs and rights."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import callslip
from callslip.api.entry_filter import filter_entries
from callslip.api.ledger import LocalLedger
from callslip.errors import InvalidInputError, NotFoundError
from callslip.ledger import entry_matches
from callslip.ledger.checkpoint import project
from callslip.model import events as ev
from callslip.model.entries import Entry, ToolCall
from callslip.rules.entry_filter import MAX_FILTER_CHARS, EntryFilter, MatchCounts
from tests.http.test_http import HidingAuthorizer
from tests.support.live_server import fetch, serving_ledger
from tests.web.test_filters import ENTRIES, FILTERED_IDS, NOW

anyio = pytest.mark.anyio


@pytest.fixture
async def ledger(db: str) -> AsyncIterator[LocalLedger]:
    async with await callslip.open(db) as ledger:
        yield ledger


def count_matches(typed: str, order: list[int] | None = None) -> MatchCounts:
    """Return the counts of the sample entries, added in some order."""
    filter = EntryFilter(typed)
    counts = MatchCounts(filter)
    for index in order or range(len(ENTRIES)):
        counts.add(ENTRIES[index], filter.test(ENTRIES[index], NOW))
    counts.finish()
    return counts


async def add_calls(ledger: LocalLedger, session: str, first: int, count: int) -> None:
    """Add calls that have ended. Every thousandth prints a rare word."""
    drafts: list[ev.Event] = []
    for number in range(first, first + count):
        text = "a needle" if number % 1000 == 7 else "hay"
        call = f"new:{number}"
        drafts.append(ev.CallProposed(call=call, tool_name="bash", title=f"step {number}"))
        drafts.append(ev.CallStarted(call=call))
        drafts.append(ev.CallCompleted(call=call, output=text))
    await ledger.session(session).append(*drafts)


def titles_of(entries: list[Entry]) -> list[str]:
    return [str(entry.title) for entry in entries if isinstance(entry, ToolCall)]


# Terms


@pytest.mark.parametrize(("typed", "expected"), FILTERED_IDS)
def test_the_server_finds_what_the_page_finds_in_a_file(typed: str, expected: list[int]) -> None:
    """The page filters an exported file itself, with the same rules. VIEW1"""
    assert count_matches(typed).ids == expected


@given(st.permutations(range(len(ENTRIES))), st.sampled_from([typed for typed, _ in FILTERED_IDS]))
def test_a_call_and_its_requests_match_together_in_any_order(order: list[int], typed: str) -> None:
    counts, usual = count_matches(typed, order), count_matches(typed)
    assert (counts.ids, counts.facets, counts.calls) == (usual.ids, usual.facets, usual.calls)


def test_facet_counts_ignore_the_facets_own_term() -> None:
    """A count is the number of calls that another choice would select."""
    chosen, text = count_matches("tool:bash"), count_matches("file")
    assert chosen.facets["tool"] == {"": 1, "bash": 1, "Read": 1}
    assert chosen.facets["status"] == {"completed": 1}
    assert text.facets["tool"] == {"Read": 1}
    assert count_matches("-type:approval").facets["tool"] == {"": 1, "bash": 1, "Read": 1}


@given(st.text(alphabet='-:",* <>=5smtoolid\nx', max_size=60))
def test_any_text_is_a_filter(typed: str) -> None:
    assert set(count_matches(typed).ids) <= {entry.id for entry in ENTRIES}


# Sessions


@anyio
async def test_a_filter_covers_all_calls_of_a_long_session(ledger: LocalLedger) -> None:
    """5,000 calls are counted, and the five that match are found, wherever they are. VIEW1, C16"""
    for first in range(0, 5000, 500):
        await add_calls(ledger, "s", first, 500)
    found = await filter_entries(ledger.log, "s", "needle")
    assert titles_of(found.entries) == [f"step {number}" for number in (7, 1007, 2007, 3007, 4007)]
    assert (found.matched, found.total, found.calls, found.cursor) == (5, 5000, {"completed": 5000}, "")
    assert found.facets == {"tool": {"bash": 5}, "status": {"completed": 5}, "kind": {"": 5}}


@anyio
async def test_matches_are_read_in_pages(ledger: LocalLedger) -> None:
    """Every page has the counts of the whole session, and all pages together every match once. VIEW2"""
    await add_calls(ledger, "s", 0, 25)
    titles, cursor, pages = list[str](), "", 0
    while pages == 0 or cursor:
        page = await filter_entries(ledger.log, "s", "tool:bash", limit=10, cursor=cursor)
        titles, cursor, pages = titles_of(page.entries) + titles, page.cursor, pages + 1
        assert (page.matched, page.total) == (25, 25)
    assert (titles, pages) == ([f"step {number}" for number in range(25)], 3)
    assert (await filter_entries(ledger.log, "s", limit=0)).entries == []


@anyio
async def test_an_extended_result_is_that_of_a_new_one(ledger: LocalLedger) -> None:
    """Calls end in any order, checkpoints move, and texts grow between two reads of the same filter. VIEW2"""
    queries = ["", "status:completed", "hay", "status:granted", "-type:approval type:call", "done"]
    session = ledger.session("s")
    open_calls: list[str] = []

    async def compare() -> None:
        for query in queries:
            kept = await filter_entries(ledger.log, "s", query)
            fresh = await entry_matches.EntryMatcher(ledger.log.store).find("s", query, 100, 10**9)
            assert (kept.entries, kept.total, kept.calls) == (fresh.entries, fresh.counts.total, fresh.counts.calls)
            whole = {entry.id: entry for entry in (await ledger.log.snapshot("s")).entries}
            assert (kept.total, [whole[entry.id] for entry in kept.entries]) == (len(whole), kept.entries)

    for step in range(8):
        started = await session.append(ev.CallProposed(call=f"new:{step}", tool_name="bash", title=f"open {step}"))
        assert isinstance(started[0], ev.CallProposed)
        open_calls.append(started[0].call)
        if step % 3 == 1:
            request = ev.ApprovalRequested(call=open_calls[-1], approval=f"appr_{step:012d}")
            await session.append(request)
        await add_calls(ledger, "s", step * 10, 3)
        if step % 2:
            await project(ledger.log.store, "s")
        await compare()
        if step > 3:
            call = open_calls.pop(0)
            await session.append(ev.CallCompleted(call=call, output="done"))
            await compare()
            late = await session.append(ev.CallCompleted(call=call, output="late"))
            assert late[0].verdict == "late"
            await compare()


@anyio
async def test_a_second_read_costs_what_has_changed(ledger: LocalLedger, monkeypatch: pytest.MonkeyPatch) -> None:
    """A filter on a growing session does not read the session again. VIEW2"""
    await add_calls(ledger, "s", 0, 600)
    await project(ledger.log.store, "s")
    await filter_entries(ledger.log, "s", "needle")
    await add_calls(ledger, "s", 600, 3)
    read: list[int] = []
    store_type: Any = type(ledger.log.store)
    entries_from = store_type.entries_from

    async def count_rows(store: Any, *args: Any) -> list[tuple[int, bytes]]:
        rows = await entries_from(store, *args)
        read.append(len(rows))
        return rows

    monkeypatch.setattr(store_type, "entries_from", count_rows)
    assert (await filter_entries(ledger.log, "s", "needle")).total == 603
    assert sum(read) <= 10


@anyio
async def test_outputs_outside_the_log_are_searched(ledger: LocalLedger) -> None:
    """The preview of a large output lacks its end, which the filter finds, also across two pieces. VIEW2"""
    async with ledger.session("s").call("bash") as call:
        call.complete("x" * 3_000_000 + "The End\nof it")
    async with ledger.session("s").call("json") as call:
        call.complete({"rows": ["y" * 100_000, 'a "quoted" word\nline']})
    find = [await filter_entries(ledger.log, "s", text) for text in ('"the end"', '"word\nline"', "absent", "-xxthe")]
    assert [[getattr(entry, "tool_name", "") for entry in found.entries] for found in find] == [
        ["bash"],
        ["json"],
        [],
        ["json"],
    ]


@pytest.mark.parametrize("size", [2**20 - 3, 2**20 - 1])
def test_text_is_found_across_pieces(size: int) -> None:
    search = entry_matches._TextSearch([(1, "the end")])  # pyright: ignore[reportPrivateUsage]
    data = b"\xc3\xa9" * (size // 2) + b"The END"
    for start in range(0, len(data), 2**20):
        search.read(data[start : start + 2**20])
    assert search.found == 1


@anyio
async def test_a_past_moment_is_filtered_as_it_was(ledger: LocalLedger) -> None:
    await add_calls(ledger, "s", 0, 2)
    then = await filter_entries(ledger.log, "s", "status:completed", at=3)
    assert (then.matched, then.total, then.seq) == (1, 1, 3)
    assert (await filter_entries(ledger.log, "s", "status:completed")).matched == 2


@anyio
async def test_bad_filters_are_refused(ledger: LocalLedger) -> None:
    await add_calls(ledger, "s", 0, 1)
    with pytest.raises(InvalidInputError, match="2000 characters"):
        await filter_entries(ledger.log, "s", "x" * (MAX_FILTER_CHARS + 1))
    with pytest.raises(InvalidInputError, match="cursor"):
        await filter_entries(ledger.log, "s", cursor="x")
    with pytest.raises(InvalidInputError, match="at"):
        await filter_entries(ledger.log, "s", at=10_000)
    with pytest.raises(NotFoundError):
        await filter_entries(ledger.log, "absent")


# Over HTTP


@anyio
async def test_the_route_filters_what_the_caller_may_read(ledger: LocalLedger) -> None:
    """The counts and entries are those of the operation; a hidden session is not found. VIEW1, VIEW2"""
    for name in ("open", "hidden-1"):
        await add_calls(ledger, name, 0, 9)
    async with serving_ledger(ledger, gate=HidingAuthorizer()) as url:
        reply = await fetch(f"{url}/v1/sessions/open/entries?q=needle&limit=5")
        body = json.loads(reply.body)
        assert (reply.status, body["matched"], body["total"], body["calls"]) == (200, 1, 9, {"completed": 9})
        assert body["entries"][0]["output"] == "a needle"
        assert body["facets"]["tool"] == [{"value": "bash", "count": 1}]
        assert (await fetch(f"{url}/v1/sessions/hidden-1/entries?q=needle")).status == 404
        assert (await fetch(f"{url}/v1/sessions/open/entries?limit=-1")).status == 400
