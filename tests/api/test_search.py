"""The search: what is found, in which order, by whom, and what deletion, retention and older versions leave of it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from typing import Any
from unittest import mock

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import callslip
from callslip.api import search as search_api
from callslip.api.access import FullAccess
from callslip.api.ledger import LocalLedger
from callslip.api.search import MAX_RESULTS, search
from callslip.errors import InvalidInputError
from callslip.ledger import search_index
from callslip.ledger.verify import verify
from callslip.model import events as ev
from callslip.model.entries import ToolCall
from callslip.model.search import SearchResult, SearchResults, split_excerpt
from callslip.rules.search_text import MAX_TEXT_CHARS
from callslip.rules.search_words import GAP, MAX_QUERY_CHARS
from callslip.settings import Settings
from tests.support.engines import change_rows, fetch_rows, is_postgres

pytestmark = pytest.mark.anyio

SETTINGS = Settings(synchronous="NORMAL", checkpoint_every=10**9, reaper_interval=3600, inline_limit=2000)
DAY_MS = 86_400_000
SCRIPT: list[ev.Event] = [
    ev.SessionInfo(title="Repair the parser", project="/home/ann/parser"),
    ev.TurnStarted(),
    ev.MessageUser(text='Fix src/app.py: readFileSync fails with "foo:bar" AND rm -rf, see snake_case_name'),
    ev.ThoughtDelta(text="The émigré file names are 設定ファイル and 한국어 문서", chunks="delta"),
    ev.CallProposed(call="new:1", tool_name="bash", input={"command": "grep -rn TimeoutError2 src"}),
    ev.CallStarted(call="new:1"),
    ev.CallCompleted(call="new:1", output="src/net.py:41: raise TimeoutError2"),
    ev.ApprovalRequested(call="new:2", tool_name="deploy", description="Deploys to staging", input={"host": "web-7"}),
    ev.MessageDelta(text="The answer is fort", chunks="delta"),
    ev.MessageDelta(text="y-two.", chunks="delta"),
    ev.TurnEnded(),
]


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a search wait for the index, however busy the machine is."""
    monkeypatch.setattr(search_index, "READ_S", 600.0)


@pytest.fixture
async def ledger(db: str) -> AsyncIterator[LocalLedger]:
    async with await callslip.open(db, SETTINGS) as instance:
        await instance.log.append("parser", SCRIPT)
        yield instance


class Rights(FullAccess):
    """The rights of a caller that may read some sessions."""

    def __init__(self, *names: str) -> None:
        self.names = names
        self.checked: list[str] = []

    async def may(self, session: str, verb: str) -> bool:
        self.checked.append(session)
        return session in self.names


def found_in(results: SearchResults) -> list[tuple[str, int]]:
    return [(result.session, result.entry) for result in results.results]


def highlights(result: SearchResult) -> list[str]:
    return [text for text, is_found in split_excerpt(result) if is_found]


async def count_rows(db: str) -> int:
    return fetch_rows(db, "SELECT count(*) FROM search_rows")[0][0]


# What is found


FOUND: list[tuple[str, int, list[str]]] = [
    ("fix", 3, ["Fix"]),
    ("src/app.py", 3, ["src/app.py"]),
    ("app.py", 3, ["app.py"]),
    ("foo:bar", 3, ["foo:bar"]),
    ("rm -rf", 3, ["rm", "rf"]),
    ("AND", 3, ["AND"]),
    ('"foo bar', 3, ["foo", "bar"]),
    ('"fails with"', 3, ["fails with"]),
    ("readFileSync", 3, ["readFileSync"]),
    ("readfilesync", 3, ["readFileSync"]),
    ("read_file_sync", 3, ["readFileSync"]),
    ("snakeCaseName", 3, ["snake_case_name"]),
    ("case", 3, ["case"]),
    ("EMIGRE", 4, ["émigré"]),
    ("設定", 4, ["設定"]),
    ("定", 4, ["定"]),
    ("ファイル", 4, ["ファイル"]),
    ("문서", 4, ["문서"]),
    ("timeouterror2 net.py", 5, ["net.py", "TimeoutError2"]),
    ("TimeoutError2 grep", 5, ["grep", "TimeoutError2"]),
    ("staging", 9, ["staging"]),
    ("forty-two", 10, ["forty-two"]),
    ("repair parser", 0, ["Repair", "parser"]),
]
"""Queries, with the id of an entry that each finds and what is highlighted there."""


async def test_an_entry_is_found_by_its_words(ledger: LocalLedger) -> None:
    """Paths, identifiers and their parts, words in any case, and text without spaces. SRCH1 SRCH2"""
    for query, entry, words in FOUND:
        results = (await search(ledger.log, query)).results
        assert entry in [result.entry for result in results], query
        assert next(highlights(result) for result in results if result.entry == entry) == words, query


async def test_the_arguments_of_a_request_are_found_once(ledger: LocalLedger) -> None:
    """As those of its call. SRCH1"""
    assert [result.type for result in (await search(ledger.log, "web-7")).results] == ["tool_call"]


async def test_other_words_or_another_order_find_nothing(ledger: LocalLedger) -> None:
    """All words must occur; words that are joined must follow one another."""
    for query in ("timeou", "src/py", '"with fails"', "fix nothing", "settei", "ポイル", "app.pysrc", "設ル"):
        assert (await search(ledger.log, query)).results == [], query
    assert [result.entry for result in (await search(ledger.log, "app.py src")).results] == [3]


async def test_a_query_without_letters_finds_nothing(ledger: LocalLedger) -> None:
    """No character has a meaning for the engines. SRCH2"""
    for query in ("", "  ", "*", '"', '"" \'', "--- ||", GAP, "%_", "\0", f"{GAP}s1"):
        results = await search(ledger.log, query)
        assert (results.results, results.words) == ([], ["s1"] if "s1" in query else []), query


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(st.text(max_size=30) | st.text("\"'*()^:-+&|!<>~\\ANDORNEARab設定_0{}", max_size=30))
async def test_any_query_is_answered(ledger: LocalLedger, query: str) -> None:
    """Quotes, operators, NUL and lone surrogates are ordinary text. SRCH2"""
    results = await search(ledger.log, query)
    assert all(result.session == "parser" for result in results.results)


async def test_a_query_that_is_too_long_is_refused(ledger: LocalLedger) -> None:
    """Of characters, and of words."""
    for query in ("a" * (MAX_QUERY_CHARS + 1), " ".join(f"w{number}" for number in range(60))):
        with pytest.raises(InvalidInputError) as caught:
            await search(ledger.log, query)
        assert caught.value.field == "q"


async def test_highlights_are_ranges_of_the_stored_text(ledger: LocalLedger) -> None:
    """In UTF-16 code units, as patches count, also after characters outside of the BMP. SRCH3"""
    text = f"{'🙂 ' * 200}\nthe <b>needle</b> is 🙂 needle\n{'x ' * 500}"
    await ledger.log.append("far", [ev.MessageUser(text=text)])
    (result,) = (await search(ledger.log, "needle")).results
    units = text.encode("utf-16-le")
    assert (result.field, len(result.ranges)) == ("content", 2)
    for start, end in result.ranges:
        at = 2 * (result.offset + start)
        assert units[at : at + 2 * (end - start)].decode("utf-16-le") == "needle"
    assert result.excerpt.startswith("the <b>needle</b>")


async def test_a_text_is_found_while_it_grows_and_after_its_end(ledger: LocalLedger) -> None:
    """Open entries are indexed by what they have. SRCH4"""
    await ledger.log.append("live", [ev.CallStarted(call="new:1", tool_name="bash", input={"command": "make all"})])
    (result,) = (await search(ledger.log, "make all")).results
    assert result.state == "running"
    await ledger.log.append("live", [ev.CallProgress(call=result.call, text="compiling widgets")])
    assert found_in(await search(ledger.log, "widgets")) == [("live", result.entry)]
    await ledger.log.append("live", [ev.CallFailed(call=result.call, error="segmentation fault")])
    (ended,) = (await search(ledger.log, "segmentation")).results
    assert (ended.entry, ended.state) == (result.entry, "failed")
    assert len((await search(ledger.log, "make")).results) == 1


async def test_what_an_agent_reports_after_the_end_is_found(ledger: LocalLedger) -> None:
    """Its entry was indexed before. SRCH4"""
    (call,) = [entry for entry in (await ledger.snapshot("parser")).entries if isinstance(entry, ToolCall)][:1]
    await search(ledger.log, "x")
    await ledger.log.append("parser", [ev.CallReported(call=call.call_id, text="exited abnormally")])
    assert found_in(await search(ledger.log, "abnormally")) == [("parser", call.id)]
    assert await verify(ledger.log) == []


async def test_the_beginning_of_a_large_output_is_found(ledger: LocalLedger) -> None:
    """It is stored as a blob; what is behind the limit is not found. SRCH5"""
    output = "early " + "filler " * (MAX_TEXT_CHARS // 7) + " tardy"
    await ledger.log.append("big", [ev.CallStarted(call="new:1"), ev.CallCompleted(call="new:1", output=output)])
    (result,) = (await search(ledger.log, "early")).results
    assert (result.field, highlights(result)) == ("output", ["early"])
    assert (await search(ledger.log, "tardy")).results == []


async def test_the_entries_of_a_sub_agent_are_marked(ledger: LocalLedger) -> None:
    """With the call whose sub-agent wrote them. SRCH1"""
    (event, *_) = await ledger.log.append("deep", [ev.CallStarted(call="new:1", tool_name="task")])
    call = event.call  # type: ignore[attr-defined]
    await ledger.log.append("deep", [ev.MessageUser(text="look for walruses", parent=call)])
    (result,) = (await search(ledger.log, "walruses")).results
    assert (result.parent, result.role) == (call, "user")


async def test_redacted_text_is_not_found(ledger: LocalLedger) -> None:
    """The index has what is stored."""
    await ledger.log.append("keys", [ev.MessageUser(text="password=hunter2hunter2 PASSWORD=swordfish99")])
    assert (await search(ledger.log, "swordfish99")).results == []
    assert len((await search(ledger.log, "password")).results) == 1


# Filters, order and pages


async def test_filters_narrow_a_search(ledger: LocalLedger) -> None:
    """By session, project, tool, state and time. SRCH6"""
    log = ledger.log
    await log.append("other", [ev.MessageUser(text="fix src too")])
    now = await log.store.clock()

    async def sessions(**filters: Any) -> set[str]:
        return {result.session for result in (await ledger.search("src", **filters)).results}

    assert await sessions() == {"parser", "other"}
    assert await sessions(session="other") == {"other"}
    assert await sessions(session="oth") == set()
    assert await sessions(project="/home/ann/parser") == {"parser"}
    assert await sessions(project="/work") == set()
    assert await sessions(project="/home/ann/parser", session="other") == set()
    assert await sessions(tool="BASH") == {"parser"}
    assert await sessions(tool="bas") == set()
    assert await sessions(states=["completed", "failed"]) == {"parser"}
    assert await sessions(states=["failed"]) == set()
    assert await sessions(since=now - DAY_MS, until=now + DAY_MS) == {"parser", "other"}
    assert await sessions(since=now - 400 * DAY_MS, until=now + 1) == {"parser", "other"}
    assert await sessions(since=now + DAY_MS) == set()
    assert await sessions(until=now - DAY_MS) == set()
    assert await sessions(since=now + 1, until=now) == set()
    for bad in ({"states": ["finished"]}, {"since": -1}, {"until": 2**63}):
        with pytest.raises(InvalidInputError):
            await sessions(**bad)
    with pytest.raises(TypeError):
        await sessions(agent="x")


async def test_what_people_wrote_and_short_texts_come_first(ledger: LocalLedger) -> None:
    """Then the newest. SRCH7"""
    await ledger.log.append("otters", [ev.MessageUser(text="one")])
    long = "about otters " + "and more " * 200
    drafts = [ev.MessageUser(text=long), ev.MessageUser(text="otters 1"), ev.MessageUser(text="otters 2")]
    await ledger.log.append("zoo", [*drafts, ev.ThoughtDelta(text="otters"), ev.MessageDelta(text="otters it is")])
    results = await search(ledger.log, "otters")
    assert found_in(results) == [("otters", 0), ("zoo", 3), ("zoo", 2), ("zoo", 5), ("zoo", 1), ("zoo", 4)]


async def test_pages_give_every_result_once(ledger: LocalLedger) -> None:
    """Also if the session of the last result was deleted, or others were added. SRCH7"""
    for number in range(12):
        await ledger.log.append(f"s{number:02}", [ev.MessageUser(text=f"walrus number {number}")])
    whole = found_in(await search(ledger.log, "walrus", limit=MAX_RESULTS))
    assert len(whole) == 12
    pages: list[tuple[str, int]] = []
    cursor = ""
    while True:
        page = await search(ledger.log, "walrus", limit=5, cursor=cursor)
        pages += found_in(page)
        cursor = page.cursor
        if not cursor:
            break
        await ledger.delete(page.results[-1].session)
    assert pages == whole
    for bad in ("nonsense", "[1]", '["a",1,"s",1]'):
        with pytest.raises(InvalidInputError):
            await search(ledger.log, "walrus", cursor=bad)
    with pytest.raises(InvalidInputError):
        await search(ledger.log, "walrus", limit=0)


async def test_only_the_newest_matches_are_compared(ledger: LocalLedger, monkeypatch: pytest.MonkeyPatch) -> None:
    """The answer says so. SRCH8"""
    monkeypatch.setattr(search_api, "MAX_RANKED", 5)
    for number in range(3):
        await ledger.log.append("many", [ev.MessageUser(text=f"walrus {number} {part}") for part in range(3)])
        assert (await search(ledger.log, "walrus")).limited == (number > 0)
    results = await search(ledger.log, "walrus")
    assert sorted(result.entry for result in results.results) == [5, 6, 7, 8, 9]
    assert (await search(ledger.log, "walrus", {"session": "many"})).limited
    assert not (await search(ledger.log, "walrus 0")).limited


# Rights


async def test_hidden_sessions_change_nothing(ledger: LocalLedger, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not the results, their pages, the limit of matches, or whether the index is behind. SRCH9"""
    monkeypatch.setattr(search_api, "MAX_RANKED", 4)
    await ledger.log.append("seen", [ev.MessageUser(text=f"walrus {number}") for number in range(3)])
    access = Rights("seen")

    async def read_all() -> list[SearchResults]:
        pages = [await search(ledger.log, "walrus", limit=2, access=access)]
        while pages[-1].cursor:
            pages.append(await search(ledger.log, "walrus", limit=2, cursor=pages[-1].cursor, access=access))
        return pages

    before = await read_all()
    assert [found_in(page) for page in before] == [[("seen", 3), ("seen", 2)], [("seen", 1)]]
    for number in range(6):
        await ledger.log.append(f"hidden{number}", [ev.MessageUser(text=f"walrus {part}") for part in range(3)])
    assert await read_all() == before
    hidden = {"session": "hidden1"}
    assert (await search(ledger.log, "walrus", hidden, access=access)).results == []
    assert (await search(ledger.log, "walrus", hidden)).results != []
    with mock.patch.object(search_index.SearchIndex, "refresh", side_effect=[False, False]):
        await ledger.log.append("hidden9", [ev.MessageUser(text="walrus")])
        assert not (await search(ledger.log, "walrus", access=access)).behind
        assert (await search(ledger.log, "walrus")).behind


async def test_each_session_is_checked_once(ledger: LocalLedger) -> None:
    """However many of its entries match. SRCH9"""
    await ledger.log.append("seen", [ev.MessageUser(text=f"walrus {number}") for number in range(50)])
    access = Rights("seen")
    await search(ledger.log, "walrus", access=access)
    assert access.checked == ["seen"]


# Deletion, retention, and other processes


async def test_a_deleted_session_leaves_nothing_in_the_index(ledger: LocalLedger, db: str) -> None:
    """SRCH10"""
    await search(ledger.log, "x")
    assert await count_rows(db) > 0
    await ledger.delete("parser")
    assert await count_rows(db) == 0
    assert (await search(ledger.log, "readFileSync")).results == []
    if not is_postgres(db):
        assert fetch_rows(db, "SELECT count(*) FROM search_index_content") == [(0,)]
    await ledger.log.append("parser", [ev.MessageUser(text="a new beginning")])
    assert found_in(await search(ledger.log, "beginning")) == [("parser", 1)]
    assert (await search(ledger.log, "staging")).results == []


async def test_retention_removes_entries_from_the_index(ledger: LocalLedger, db: str) -> None:
    """Open entries stay, whether they were indexed before or not. SRCH10"""
    await ledger.log.append("s", [ev.MessageUser(text="old walrus"), ev.CallStarted(call="new:1", tool_name="otter")])
    await search(ledger.log, "x")
    await ledger.log.append("s", [ev.MessageUser(text="walrus that no index has")])
    await ledger.prune(-60)  # Events of this very millisecond, too.
    assert (await search(ledger.log, "walrus")).results == []
    assert found_in(await search(ledger.log, "otter")) == [("s", 2)]
    assert await verify(ledger.log) == []


async def test_events_of_another_process_are_found(ledger: LocalLedger, db: str) -> None:
    """The process that searches adds them. SRCH4"""
    await search(ledger.log, "x")
    async with await callslip.open(db, SETTINGS) as other:
        await other.log.append("theirs", [ev.MessageUser(text="a walrus")])
        await other.log.append("parser", [ev.MessageUser(text="another walrus")])
    assert sorted(found_in(await search(ledger.log, "walrus"))) == [("parser", 13), ("theirs", 1)]


async def test_two_processes_index_the_same_rows(ledger: LocalLedger, db: str) -> None:
    """Whichever is first. SRCH4"""
    async with await callslip.open(db, SETTINGS) as other:
        for number in range(5):
            await ledger.log.append("both", [ev.MessageUser(text=f"walrus {number}")])
            await ledger.log.search_index.refresh()
            await other.log.append("both", [ev.MessageDelta(text=f"otter {number}"), ev.MessageEnded()])
            await other.log.search_index.refresh()
        assert len((await search(other.log, "walrus")).results) == 5
        assert len((await search(ledger.log, "otter")).results) == 5
    assert await verify(ledger.log) == []


async def test_searches_wait_for_the_index_at_the_same_time(
    ledger: LocalLedger, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SRCH4: those that have waited for another one do not add more, one after another."""
    is_adding, may_end = asyncio.Event(), asyncio.Event()
    refreshed: list[float] = []

    async def refresh(index: search_index.SearchIndex, until: float) -> bool:
        refreshed.append(until)
        is_adding.set()
        await may_end.wait()
        return False

    monkeypatch.setattr(search_index.SearchIndex, "_refresh", refresh)
    index = ledger.log.search_index
    first = asyncio.create_task(index.refresh(0.0))
    await is_adding.wait()
    began = time.monotonic()
    others = [asyncio.create_task(index.refresh(seconds)) for seconds in (0.0, 0.0, 600.0, 0.0)]
    await asyncio.sleep(0)  # Now each of them waits.
    ended = time.monotonic()
    may_end.set()
    assert await asyncio.gather(first, *others) == [False] * 5
    assert len(refreshed) == 2 and began <= refreshed[1] - 600.0 <= ended


async def test_a_long_session_is_added_in_parts(ledger: LocalLedger) -> None:
    """Until it is complete, the answer says that the index is behind. Entries that end meanwhile are not lost. SRCH4"""
    with mock.patch.object(search_index, "PAGE_ROWS", 3):
        (opened, *_) = await ledger.log.append("long", [ev.CallStarted(call="new:1", tool_name="walrus")])
        await ledger.log.append("long", [ev.MessageUser(text=f"step {number}") for number in range(20)])
        rounds = 0
        while not await ledger.log.search_index.refresh(0.0):
            rounds += 1
            call = opened.call  # type: ignore[attr-defined]
            if rounds == 2:
                await ledger.log.append("long", [ev.CallCompleted(call=call, output="finally")])
            assert rounds < 50
    assert rounds > 5
    assert found_in(await search(ledger.log, "finally")) == [("long", 1)]
    assert len((await search(ledger.log, "step", limit=50)).results) == 20
    assert await verify(ledger.log) == []


async def test_another_version_of_the_words_is_replaced(ledger: LocalLedger, db: str) -> None:
    """The whole index is derived again. SRCH4"""
    await search(ledger.log, "x")
    before = await count_rows(db)
    change_rows(db, "UPDATE search_places SET version = 0")
    change_rows(db, "DELETE FROM search_rows WHERE entry = 3")
    async with await callslip.open(db, SETTINGS) as other:
        assert found_in(await search(other.log, "readFileSync")) == [("parser", 3)]
    assert await count_rows(db) == before


async def test_an_index_whose_entries_were_replaced_is_derived_again(ledger: LocalLedger, db: str) -> None:
    """A process with another version of the fold does that. SRCH4"""
    await search(ledger.log, "x")
    with mock.patch("callslip.ledger.checkpoint.VERSION", 10**6):
        async with await callslip.open(db, SETTINGS) as other:
            await other.log.append("parser", [ev.MessageUser(text="walrus")])
            await other.log.project("parser")
    assert found_in(await search(ledger.log, "walrus")) == [("parser", 13)]
    assert found_in(await search(ledger.log, "readFileSync")) == [("parser", 3)]
    assert await verify(ledger.log) == []


@pytest.mark.parametrize(
    "damage",
    [
        "DELETE FROM search_rows WHERE entry = 3",
        "UPDATE search_rows SET entry = 4000 WHERE entry = 3",
        "UPDATE search_rows SET rank = 9 WHERE entry = 3",
        "DELETE FROM search_places",
    ],
)
async def test_verify_compares_the_index_with_the_log(ledger: LocalLedger, db: str, damage: str) -> None:
    """SRCH11"""
    await search(ledger.log, "x")
    assert await verify(ledger.log) == []
    change_rows(db, damage)
    problems = await verify(ledger.log)
    assert problems and {problem.what for problem in problems} == {"search"}


async def test_verify_finds_other_words(ledger: LocalLedger, db: str) -> None:
    """In both engines the words themselves are compared. SRCH11"""
    await search(ledger.log, "x")
    if is_postgres(db):
        change_rows(db, "UPDATE search_rows SET words = words || 'walrus'::tsvector WHERE entry = 3")
    else:
        change_rows(db, "UPDATE search_index SET words = 'walrus' WHERE words LIKE 'fix%'")
    assert [problem.what for problem in await verify(ledger.log)] == ["search"]


async def test_a_ledger_that_cannot_be_written_is_searched_as_it_is(ledger: LocalLedger) -> None:
    """The answer says that newer entries are missing. SRCH12"""
    await search(ledger.log, "x")
    await ledger.log.append("late", [ev.MessageUser(text="fix this, too")])
    async with ledger.log.store.read_snapshot() as store:
        ledger.log.search_index._store = store  # pyright: ignore[reportPrivateUsage]
        results = await search(ledger.log, "fix")
        assert (found_in(results), results.behind) == ([("parser", 3)], True)


async def test_every_ledger_searches_alike(ledger: LocalLedger, db: str) -> None:
    """In this process, behind a server, and without an event loop. SRCH13"""
    from tests.support.live_server import serving_ledger

    local = await ledger.search("src", limit=2, states=["completed"], tool="bash")
    async with serving_ledger(ledger) as url, callslip.connect(url) as remote:
        assert await remote.search("src", limit=2, states=["completed"], tool="bash") == local
        with pytest.raises(InvalidInputError):
            await remote.search("src", states=["finished"])
        with pytest.raises(InvalidInputError):
            await remote.search("src", limit=0)
    assert [result.type for result in local.results] == ["tool_call"]
