"""Lists of sessions and sums of usage are derived from the log, whichever process wrote it, and cost little."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any
from unittest import mock

import pytest

import callslip
from callslip.api.ledger import LocalLedger
from callslip.api.session_list import SessionFilters, session_query
from callslip.api.usage import UsageGroup
from callslip.errors import DiskFullError, InvalidInputError
from callslip.ledger import summaries
from callslip.ledger.verify import verify
from callslip.model import events as ev
from callslip.model.events import MAX_TOKENS, Alias, Draft
from callslip.model.records import ListedSession
from callslip.rules import session_summary
from callslip.settings import Settings
from tests.support.engines import change_rows, fetch_rows, is_postgres, read_only_url

pytestmark = pytest.mark.anyio

SETTINGS = Settings(synchronous="NORMAL", checkpoint_every=10**9, reaper_interval=3600)
DAY_MS = 86_400_000
NOON = 20_000 * DAY_MS + DAY_MS // 2
"""A time on 2024-10-04."""


@pytest.fixture
async def ledger(db: str) -> AsyncIterator[LocalLedger]:
    async with await callslip.open(db, SETTINGS) as instance:
        yield instance


def used(id: str, tokens: int, **fields: Any) -> ev.UsageReported:
    """Return a report of a response with as many tokens of input, and one of output."""
    return ev.UsageReported(id=id, input_tokens=tokens, output_tokens=1, **fields)


def session_events(number: int, *more: ev.Event) -> list[ev.Event]:
    """Return the events of a small session, each later than those of the one before."""
    info = ev.SessionInfo(agent=f"agent {number % 2}", project=f"/home/ann/{number % 3}", branch="main")
    turn = [ev.TurnStarted(at=NOON + number), ev.MessageUser(text=f"Prompt {number}\nmore"), ev.TurnEnded()]
    used_tokens = used(f"r{number}", 10 * number, model="m", at=NOON + number)
    return [info, *turn, used_tokens, ev.SessionInfo(ended=True, at=NOON + number), *more]


async def get(ledger: LocalLedger, name: str) -> ListedSession:
    (record,) = (await ledger.sessions(name=name)).items
    return record


async def names(ledger: LocalLedger, **filters: Any) -> list[str]:
    return [record.name for record in (await ledger.sessions(**filters)).items]


# Sessions


async def test_a_session_has_what_people_recognize(ledger: LocalLedger) -> None:
    """LIST1: the first prompt without a title, project, branch, agent, model, calls, failures, usage and times."""
    facts = ev.SessionInfo(agent="Claude Code", agent_version="2.1", project="/home/ann/shop", branch="fix", at=NOON)
    one, two = ((Alias("acp", name),) for name in "12")
    await ledger.log.append("s", [facts, ev.TurnStarted(), ev.MessageUser(text="\n Fix  the cart \nplease", at=NOON)])
    await ledger.log.append("s", [ev.MessageUser(text="and this"), used("r", 7, model="large", at=NOON + 5000)])
    await ledger.log.append("s", [ev.CallFailed(aliases=one), ev.CallCompleted(aliases=two)])
    await ledger.log.append("s", [ev.CallReported(aliases=two, exit_status=1), ev.TurnEnded(at=NOON + 9000)])
    record = await get(ledger, "s")
    assert (record.prompt, record.title, record.agent, record.agent_version) == (
        "Fix the cart",
        "",
        "Claude Code",
        "2.1",
    )
    assert (record.project, record.branch, record.model, record.calls, record.failed) == (
        "/home/ann/shop",
        "fix",
        "large",
        2,
        2,
    )
    assert (record.usage.responses, record.usage.input_tokens, record.started_at) == (1, 7, NOON)
    assert record.active_at >= NOON + 9000
    await ledger.log.append("s", [ev.SessionInfo(title="The cart", project=None)])
    record = await get(ledger, "s")
    assert (record.title, record.prompt, record.project) == ("The cart", "Fix the cart", "")


async def test_the_state_is_what_the_session_does_now(ledger: LocalLedger) -> None:
    """LIST1: running, waiting for an approval, idle and ended; an open call runs without a turn, too."""
    call = (Alias("acp", "1"),)

    async def state_after(*events: ev.Event) -> str:
        await ledger.log.append("s", list(events))
        return (await get(ledger, "s")).state

    assert await state_after(ev.MessageUser(text="x")) == "idle"
    assert await state_after(ev.TurnStarted()) == "running"
    assert await state_after(ev.ApprovalRequested(aliases=call, tool_name="rm")) == "waiting"
    assert (await get(ledger, "s")).pending == (await get(ledger, "s")).open_calls == 1
    assert await state_after(ev.ApprovalGranted(aliases=call)) == "running"
    assert await state_after(ev.CallCompleted(aliases=call), ev.TurnEnded()) == "idle"
    detached = ev.CallProposed(aliases=(Alias("acp", "2"),), tool_name="build", scope="detached")
    assert await state_after(detached) == "running"
    assert await state_after(ev.CallCompleted(aliases=(Alias("acp", "2"),))) == "idle"
    assert await state_after(ev.SessionInfo(ended=True)) == "ended"
    assert await state_after(ev.TurnStarted()) == "running"
    assert await state_after(ev.TurnEnded()) == "idle"


async def test_sessions_are_filtered_and_sorted(ledger: LocalLedger) -> None:
    """LIST2: by each fact, in each order in both directions, in pages."""
    for number in range(1, 7):
        await ledger.log.append(f"s{number}", session_events(number))
    await ledger.log.append(
        "s2", [ev.TurnStarted(at=NOON + 2), ev.CallFailed(aliases=(Alias("acp", "1"),), at=NOON + 2)]
    )
    await ledger.log.append(
        "s3", [ev.SessionInfo(title="Cart (50%) [x]*", labels={"team": "shop", "n": 1}, at=NOON + 3)]
    )
    assert await names(ledger, states=("running",)) == ["s2"]
    assert set(await names(ledger, states=("ended", "running"))) == {"s1", "s2", "s3", "s4", "s5", "s6"}
    assert set(await names(ledger, agent="agent 1", project="/home/ann/0")) == {"s3"}
    assert set(await names(ledger, model="m", branch="main")) == {"s1", "s2", "s3", "s4", "s5", "s6"}
    assert await names(ledger, query="PROMPT 4") == ["s4"]
    assert await names(ledger, query="(50%) [x]*") == ["s3"]
    assert await names(ledger, label="team=shop") == await names(ledger, label="team") == ["s3"]
    assert (
        await names(ledger, label="team=sho")
        == await names(ledger, branch="mai")
        == await names(ledger, name="s")
        == []
    )
    assert await names(ledger, sort="tokens") == ["s6", "s5", "s4", "s3", "s2", "s1"]
    assert await names(ledger, sort="tokens", descending=False) == ["s1", "s2", "s3", "s4", "s5", "s6"]
    assert (await names(ledger, sort="failed"))[0] == (await names(ledger, sort="calls"))[0] == "s2"
    assert (await names(ledger, sort="title", descending=False))[0] == "s3"
    for sort in ("active", "started", "title", "calls", "failed", "tokens", "duration"):
        for descending in (True, False):
            whole, paged, cursor = await names(ledger, sort=sort, descending=descending), list[str](), ""
            while not paged or cursor:
                page = await ledger.sessions(sort=sort, descending=descending, limit=2, cursor=cursor)
                paged, cursor = paged + [record.name for record in page.items], page.cursor
            assert paged == whole and len(paged) == 6


@pytest.mark.parametrize("filters", [{"states": ("busy",)}, {"sort": "size"}, {"cursor": "[1]"}, {"cursor": "x"}])
async def test_an_unknown_filter_is_refused(ledger: LocalLedger, filters: dict[str, Any]) -> None:
    """LIST2: with the field in the error."""
    await ledger.log.append("s", [ev.TurnStarted()])
    with pytest.raises(InvalidInputError):
        await ledger.sessions(**filters)
    with pytest.raises(InvalidInputError):
        await ledger.sessions(cursor=(await ledger.sessions(limit=1)).cursor, sort="tokens")


@pytest.mark.parametrize("limit", [-1, 0, 2**53, 10**30])
async def test_a_limit_that_no_list_can_have_is_refused(ledger: LocalLedger, limit: int) -> None:
    """LIST2: and not passed to the database, for which it may be an error or no limit."""
    await ledger.log.append("s", [ev.TurnStarted()])
    with pytest.raises(InvalidInputError, match="limit"):
        await ledger.sessions(limit=limit)
    assert len((await ledger.sessions(limit=2**53 - 1)).items) == 1


@pytest.mark.parametrize("filters", [{"since": -1}, {"until": 2**53 + 1}, {"since": 10**30}])
async def test_a_time_that_no_event_can_have_is_refused(ledger: LocalLedger, filters: Any) -> None:
    """USE2: and not passed to the database, which cannot store it."""
    with pytest.raises(InvalidInputError, match="must be from 0"):
        await ledger.usage(**filters)
    assert (await ledger.usage(since=2**53, until=2**53)).groups == []


async def test_long_and_odd_facts_are_listed(ledger: LocalLedger) -> None:
    """LIST1: an index holds no long text, and PostgreSQL no NUL in a text."""
    odd = ev.SessionInfo(project="\u00e9\0" * 5000, agent="x" * 5000, branch="\u0645", labels=["a\nb", 5, {"x": 1}])
    await ledger.log.append(
        "s", [odd, ev.MessageUser(text="\0" * 5000), used("r\u00e9", 1, model="\0m", currency="\0")]
    )
    record = await get(ledger, "s")
    assert len(record.project) == len(record.agent) == 500 and record.branch == "\u0645"
    assert await verify(ledger.log) == []


async def test_times_of_another_clock_do_not_keep_a_session_first(ledger: LocalLedger) -> None:
    """LIST1: a session was not active after it was written."""
    await ledger.log.append("later", [ev.MessageUser(text="x", at=2**52)])
    record = await get(ledger, "later")
    assert record.active_at == record.updated_at >= record.started_at


# Keeping up


async def test_a_list_reads_only_what_is_new(ledger: LocalLedger) -> None:
    """LIST3: without new events no log is read, and then only the new events of that session."""
    for number in range(5):
        await ledger.log.append(f"s{number}", session_events(number))
    assert await ledger.log.summaries.refresh()
    with mock.patch.object(ledger.log.store, "events", wraps=ledger.log.store.events) as events:
        await ledger.sessions()
        assert events.call_count == 0
        await ledger.log.append("s3", [ev.TurnStarted()])
        assert (await get(ledger, "s3")).state == "running"
        ((args, _),) = events.call_args_list
        assert args[:2] == ("s3", 6)


async def test_old_sessions_are_not_looked_at_again(ledger: LocalLedger, monkeypatch: pytest.MonkeyPatch) -> None:
    """LIST3: the database knows until when all summaries are complete, also for other processes."""
    monkeypatch.setattr(summaries, "MARGIN_MS", -3_600_000)
    await ledger.log.append("s", session_events(1))
    assert await ledger.log.summaries.refresh()
    stored = int(await ledger.log.store.meta(summaries.COMPLETE_UNTIL))
    assert stored > await ledger.log.store.clock()
    monkeypatch.undo()
    with mock.patch.object(ledger.log.store, "stale_sessions", wraps=ledger.log.store.stale_sessions) as stale:
        await ledger.log.summaries.refresh()
        assert stale.call_args.args[0] == 0, "the clock was set back, so all sessions are looked at"
    await ledger.log.store.put_meta(summaries.COMPLETE_UNTIL, "17")
    with mock.patch.object(ledger.log.store, "stale_sessions", wraps=ledger.log.store.stale_sessions) as stale:
        await ledger.log.summaries.refresh()
        assert stale.call_args.args[0] == 17
    assert int(await ledger.log.store.meta(summaries.COMPLETE_UNTIL)) > NOON


async def test_many_new_sessions_are_listed_before_they_are_read(ledger: LocalLedger) -> None:
    """LIST3: a list waits a second at most. It says that it is not complete, and the next ones continue."""
    for number in range(60):
        await ledger.log.append(f"s{number}", session_events(number))
    with (
        mock.patch("callslip.api.session_list.READ_S", 0),
        mock.patch.object(
            ledger.log.summaries, "refresh", lambda: summaries.Summaries.refresh(ledger.log.summaries, 0.0)
        ),
    ):
        page = await ledger.sessions()
        assert len(page.items) == 60 and not page.is_complete
        assert not (await ledger.usage()).complete
    async with asyncio.timeout(60):
        while not (await ledger.sessions()).is_complete:  # A busy machine needs more than one list.
            pass
        while (usage := await ledger.usage()).groups[0].responses < 60:
            pass
    assert usage.groups[0].responses == 60


async def test_a_long_log_is_read_in_steps(ledger: LocalLedger, monkeypatch: pytest.MonkeyPatch) -> None:
    """LIST3: each step is stored, so the next one continues after it."""
    monkeypatch.setattr(summaries, "PAGE_ROWS", 10)
    await ledger.log.append("s", [*session_events(1), *(used(f"x{n % 7}", n) for n in range(45))])
    steps = 0
    while not await ledger.log.summaries.refresh(0.0):
        steps += 1
    assert steps == 6
    assert (await get(ledger, "s")).usage.input_tokens == 10 + sum(range(38, 45))
    assert await verify(ledger.log) == []


async def test_a_full_disk_does_not_keep_a_list_from_being_read(ledger: LocalLedger) -> None:
    """LIST3: it shows what is stored."""
    await ledger.log.append("s", session_events(1))
    await ledger.sessions()
    await ledger.log.append("s", [ev.TurnStarted()])
    with mock.patch.object(ledger.log.store, "save_summaries", side_effect=DiskFullError("full")):
        page = await ledger.sessions()
    assert not page.is_complete and [record.state for record in page.items] == ["ended"]
    assert (await get(ledger, "s")).state == "running"


async def test_a_newer_version_derives_summaries_again(ledger: LocalLedger, monkeypatch: pytest.MonkeyPatch) -> None:
    """LIST3: with the same result. An older version then leaves them as they are."""
    await ledger.log.append("s", session_events(3))
    before = await get(ledger, "s")
    version = session_summary.VERSION
    monkeypatch.setattr(summaries, "VERSION", version + 1)
    await ledger.log.store.put_meta(summaries.COMPLETE_UNTIL, str(await ledger.log.store.clock() + 1000))
    assert await get(ledger, "s") == before
    stored = await ledger.log.store.summary("s")
    assert stored is not None and stored.version == version + 1
    monkeypatch.undo()
    assert await ledger.log.summaries.refresh()
    assert await ledger.log.store.summary("s") == stored


async def test_a_damaged_event_is_left_out(ledger: LocalLedger, db: str) -> None:
    """LIST3: `verify` reports it, and the session stays in the list."""
    await ledger.log.append("s", session_events(3))
    blank = "'{}'" if is_postgres(db) else "x'7b7d'"
    change_rows(db, f"UPDATE events SET body = {blank} WHERE seq = 2")
    record = await get(ledger, "s")
    assert record.prompt == "Prompt 3" and record.usage.input_tokens == 30
    assert await verify(ledger.log) != []


async def test_a_deleted_session_leaves_nothing(ledger: LocalLedger, db: str) -> None:
    """LIST3: also if an older version, which does not know these tables, deletes it."""
    for name in ("new", "old"):
        await ledger.log.append(name, session_events(1))
    await ledger.sessions()
    await ledger.delete("new")
    for table in ("events", "sessions"):
        change_rows(db, f"DELETE FROM {table}")
    assert fetch_rows(db, "SELECT * FROM summaries") == fetch_rows(db, "SELECT * FROM usage") == []
    assert await names(ledger) == [] and (await ledger.usage()).groups == []


async def test_retention_keeps_the_sums(ledger: LocalLedger) -> None:
    """USE3: tokens, prompt and failures stay when the events are removed, also for a newer version."""
    await ledger.log.append("s", session_events(5, ev.CallFailed(aliases=(Alias("acp", "1"),))))
    assert await ledger.prune(-60) > 0
    await ledger.log.append("s", [used("r5", 1), used("next", 2)])
    record = await get(ledger, "s")
    assert (record.prompt, record.failed, record.usage.input_tokens) == ("Prompt 5", 1, 3)
    assert await verify(ledger.log) == []
    with mock.patch.object(summaries, "VERSION", session_summary.VERSION + 1):
        assert (await get(ledger, "s")).usage == record.usage


async def test_verify_compares_summaries_and_usage(ledger: LocalLedger, db: str) -> None:
    """LIST3, USE3: every damage is found."""
    await ledger.log.append("s", session_events(5))
    await ledger.sessions()
    assert await verify(ledger.log) == []
    for change in ("model = 'other'", "input_tokens = 3", "id = 'other'", "of_turn = 1"):
        change_rows(db, f"UPDATE usage SET {change}")
        assert {problem.what for problem in await verify(ledger.log)} & {"usage", "summary"}
        change_rows(db, "UPDATE summaries SET version = 0")
        await ledger.sessions()
        assert await verify(ledger.log) == []
    for body in ('{"seq":5,"prompt":"other"}', "[]"):
        value = f"'{body}'" if is_postgres(db) else f"x'{body.encode().hex()}'"
        change_rows(db, f"UPDATE summaries SET body = {value}")
        assert {problem.what for problem in await verify(ledger.log)} == {"summary"}
        assert len(await names(ledger)) == 1


async def test_a_read_only_ledger_lists_what_it_has(
    ledger: LocalLedger, db: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """LIST3: summaries that cannot be stored are derived for the answer."""
    await ledger.log.append("s", session_events(5))
    await ledger.sessions()
    await ledger.log.append("s", [ev.TurnStarted()])
    async with await callslip.open(read_only_url(db, monkeypatch), SETTINGS) as reader:
        page = await reader.sessions()
        assert [record.state for record in page.items] == ["running"] and not page.is_complete
        assert (await reader.usage()).groups[0].input_tokens == 50


async def test_a_ledger_that_cannot_be_migrated_is_listed(db: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """LIST3: a reader of an older schema has no tables of summaries."""
    async with await callslip.open(db, SETTINGS) as ledger:
        await ledger.log.append("s", session_events(5))
    trigger = "TRIGGER summaries_deleted" + (" ON sessions" if is_postgres(db) else "")
    function = ["FUNCTION callslip_delete_summary"] if is_postgres(db) else []
    for name in (trigger, *function, "TABLE summaries", "TABLE usage"):
        change_rows(db, f"DROP {name}")
    older = "UPDATE meta SET value = '1' WHERE name = 'schema'" if is_postgres(db) else "PRAGMA user_version = 5"
    change_rows(db, older)
    async with await callslip.open(read_only_url(db, monkeypatch), SETTINGS) as reader:
        (record,) = (await reader.sessions()).items
        assert (record.prompt, record.agent, record.usage.input_tokens) == ("Prompt 5", "agent 1", 50)
        assert await names(reader, sort="tokens") == ["s"] and not (await reader.usage()).complete
        assert await verify(reader.log) == []


@pytest.mark.parametrize("filters", [{}, {"agent": "a"}, {"project": "p"}, {"states": ("idle",)}, {"sort": "started"}])
async def test_the_usual_lists_use_an_index(ledger: LocalLedger, db: str, filters: dict[str, Any]) -> None:
    """LIST4: a page of 10,000 sessions reads neither all of them nor sorts them."""
    statements: list[str] = []
    store: Any = ledger.log.store
    with mock.patch.object(store, "_fetch", side_effect=lambda sql, values: statements.append(sql) or []):  # pyright: ignore
        await store.list_sessions(session_query(SessionFilters(**filters), 50, ""))
    plan = str(fetch_rows(db, f"EXPLAIN QUERY PLAN {statements[0].replace('?', chr(39) * 2)}"))
    assert "USING INDEX summaries_by" in plan and "TEMP B-TREE" not in plan and "SCAN s" not in plan, plan


# Usage


async def test_the_last_report_of_a_response_counts(ledger: LocalLedger) -> None:
    """USE1: agents repeat the usage of a response for each of its parts. Incomplete numbers are marked."""
    reports = [used("r", 5, incomplete=True), used("r", 9, model="m", cached_tokens=4, cost=0.1, currency="USD")]
    await ledger.log.append("s", reports)
    await ledger.sessions()
    await ledger.log.append("s", [used("r", 8, cost=0.2, currency="USD"), used("q", 1, incomplete=True)])
    (total,) = (await ledger.usage()).groups
    assert (total.responses, total.input_tokens, total.output_tokens, total.incomplete) == (2, 9, 2, 1)
    assert total.costs == {"USD": 0.2} and total.cached_tokens == 0
    assert (await get(ledger, "s")).usage.costs == {"USD": 0.2}
    assert await verify(ledger.log) == []


async def test_reports_without_an_id_count_each(ledger: LocalLedger) -> None:
    """USE1: a server may give its responses no ids."""
    await ledger.log.append("s", [used("", 5), used("", 5)])
    assert (await ledger.usage()).groups[0].input_tokens == 10


async def test_the_sum_of_a_turn_counts_only_without_its_responses(ledger: LocalLedger) -> None:
    """USE1: a wrapped agent reports sums, and its own session file the responses of the same turns."""
    await ledger.log.append("s", [used("", 5, of_turn=True), used("", 6, of_turn=True)])
    assert (await ledger.usage()).groups[0].input_tokens == (await get(ledger, "s")).usage.input_tokens == 11
    await ledger.log.append("s", [used("r1", 4), used("r2", 6)])
    assert (await ledger.usage(by="model")).groups[0].input_tokens == (await get(ledger, "s")).usage.input_tokens == 10
    assert await verify(ledger.log) == []


@pytest.mark.parametrize("is_turn_first", [True, False])
async def test_the_cost_of_a_turn_counts_unless_responses_state_theirs(
    ledger: LocalLedger, is_turn_first: bool
) -> None:
    """USE1: a wrapped agent states the cost of the session, its session file only the tokens of responses."""
    turn = [used("cost", 7, cost=0.5, currency="USD", of_turn=True, at=NOON), used("", 5, of_turn=True, at=NOON)]
    responses = [used("r1", 4, model="m", at=NOON), used("r2", 6, model="m", at=NOON, incomplete=True)]
    for events in (turn, responses) if is_turn_first else (responses, turn):
        await ledger.log.append("s", events)
        await ledger.usage()
    (total,) = (await ledger.usage()).groups
    assert total == UsageGroup(
        responses=2, input_tokens=10, output_tokens=2, costs={"USD": 0.5}, incomplete=1, group=""
    )
    assert (await get(ledger, "s")).usage.costs == {"USD": 0.5} and (await get(ledger, "s")).usage.responses == 2
    by_model = {group.group: (group.input_tokens, group.costs) for group in (await ledger.usage("model")).groups}
    assert by_model == {"m": (10, {}), "": (0, {"USD": 0.5})}
    await ledger.log.append("s", [used("r1", 4, model="m", cost=0.0, currency="USD", at=NOON)])
    (total,) = (await ledger.usage("model")).groups
    assert (total.group, total.input_tokens, total.costs) == ("m", 10, {"USD": 0.0})
    assert (await get(ledger, "s")).usage.costs == {"USD": 0.0}
    assert await verify(ledger.log) == []


async def test_the_tokens_of_a_turn_count_if_responses_state_only_costs(ledger: LocalLedger) -> None:
    """USE1: tokens and costs may come from different reports."""
    cost = ev.UsageReported(id="r1", cost=0.25, currency="USD")
    await ledger.log.append("s", [used("", 5, cost=9.0, currency="USD", of_turn=True), cost])
    (total,) = (await ledger.usage()).groups
    assert (total.responses, total.input_tokens, total.costs) == (1, 5, {"USD": 0.25})
    usage = (await get(ledger, "s")).usage
    assert (usage.responses, usage.input_tokens, usage.costs) == (1, 5, {"USD": 0.25})
    assert await verify(ledger.log) == []


async def test_tokens_without_a_stated_cost_are_counted(ledger: LocalLedger) -> None:
    """USE5: a sum of costs that lacks something is known as such; a cost of 0 and that of a turn are stated."""
    stated = [used("r1", 4, model="m", cost=0.0, currency="USD", at=NOON), used("r2", 6, model="n", at=NOON)]
    await ledger.log.append("mixed", stated)
    turn = used("cost", 1, cost=0.5, currency="USD", of_turn=True, at=NOON)
    await ledger.log.append("turns", [used("r1", 20, model="n", at=NOON), turn])
    cost = ev.UsageReported(id="r1", cost=0.25, currency="USD", at=NOON)
    await ledger.log.append("costs", [used("", 5, of_turn=True, at=NOON), cost])

    async def without_cost(by: str = "", **filters: Any) -> dict[str, int]:
        return {group.group: group.tokens_without_cost for group in (await ledger.usage(by, **filters)).groups}

    assert await without_cost("session", since=NOON) == {"mixed": 7, "turns": 0, "costs": 0}
    assert await without_cost("model") == {"m": 0, "n": 7, "": 0}
    assert await without_cost(session="mixed") == {"": 7} and await without_cost(session="turns") == {"": 0}


async def test_usage_is_added_up_by_each_group(ledger: LocalLedger) -> None:
    """USE2: by day, model, project, agent, session, turn and call of a sub-agent, with filters."""
    await ledger.log.append("a", [ev.SessionInfo(agent="x", project="/p"), ev.TurnStarted(turn="t1")])
    await ledger.log.append("a", [used("1", 1, model="m", at=NOON), used("2", 2, model="n", at=NOON + DAY_MS)])
    await ledger.log.append("a", [ev.CallProposed(call="new:1", aliases=[Alias("acp", "task")], tool_name="Task")])
    await ledger.log.append("a", [Draft(used("3", 4, model="n", at=NOON), parent=Alias("acp", "task"))])
    await ledger.log.append("a", [ev.TurnEnded(), used("4", 8, model="m", at=NOON)])
    await ledger.log.append("b", [used("1", 16, at=NOON, cost=1.5, currency="EUR")])
    (call,) = (await ledger.calls(session="a")).items

    async def sums(by: str = "", **filters: Any) -> dict[str, int]:
        return {group.group: group.input_tokens for group in (await ledger.usage(by, **filters)).groups}

    assert await sums() == {"": 31}
    assert await sums("day") == {"2024-10-04": 29, "2024-10-05": 2}
    assert list(await sums("day", utc_offset_minutes=-13 * 60)) == ["2024-10-03", "2024-10-04"]
    assert await sums("model") == {"": 16, "m": 9, "n": 6}
    assert await sums("project") == {"": 16, "/p": 15} and await sums("agent") == {"": 16, "x": 15}
    assert await sums("session") == {"b": 16, "a": 15}
    assert await sums("turn", session="a") == {"t1": 15}
    assert await sums("call", session="a") == {"": 11, call.id: 4}
    assert await sums(agent="x", model="m") == {"": 9} and await sums(project="/p", until=NOON + 1) == {"": 13}
    assert await sums(since=NOON + 1) == {"": 2} and await sums(session="nobody") == {}
    for by, filters in (("size", {}), ("turn", {}), ("day", {"utc_offset_minutes": 99999})):
        with pytest.raises(InvalidInputError):
            await ledger.usage(by, **filters)


@pytest.mark.parametrize(
    "fields", [{"input_tokens": -1}, {"output_tokens": MAX_TOKENS + 1}, {"cost": -1.0}, {"cost": 1e99}]
)
async def test_impossible_usage_is_refused(ledger: LocalLedger, fields: dict[str, Any]) -> None:
    """USE1: no sum can be too large for the database."""
    with pytest.raises(InvalidInputError):
        await ledger.log.append("s", [ev.UsageReported(id="r", **fields)])
    await ledger.log.append("s", [ev.UsageReported(id=f"r{n}", input_tokens=MAX_TOKENS, cost=1e9) for n in range(20)])
    assert (
        (await ledger.usage()).groups[0].input_tokens == (await get(ledger, "s")).usage.input_tokens == 20 * MAX_TOKENS
    )
