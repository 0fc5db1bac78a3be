"""The laws of the fold and of the write path, on sessions that Hypothesis makes up."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from msgspec import structs

import callslip
from callslip.errors import ConflictError
from callslip.ledger import checkpoint
from callslip.ledger.verify import verify
from callslip.model import events as ev
from callslip.model import ids
from callslip.model.entries import Patch, PermissionRequest, ToolCall
from callslip.model.events import Alias, Draft, Event, decode_event, encode_event
from callslip.rules.fold import SessionFold
from callslip.rules.lifecycle import is_terminal
from callslip.rules.projection import input_mark
from callslip.rules.redaction import Redactor
from callslip.settings import Settings
from tests.support.strategies import (
    SESSION,
    Desk,
    Names,
    any_event,
    call_events,
    canonical,
    interleaved,
    logs,
    pieces,
    scripts,
    snapshot,
    written,
)

QUIET = Settings(synchronous="NORMAL", reaper_interval=3600, checkpoint_every=10**9)


class Browser:
    """Applies patches as a page does that has no rules: JSON in, three operations, UTF-16 lengths."""

    def __init__(self) -> None:
        self.seq = 0
        self.info: dict[str, Any] = {}
        self.entries: dict[int, dict[str, Any]] = {}

    def take(self, seq: int, patches: list[Patch]) -> None:
        for patch in msgspec.json.decode(msgspec.json.encode(patches)):
            getattr(self, patch.pop("op"))(**patch)
        self.seq = seq

    def put(self, entry: dict[str, Any]) -> None:
        self.entries[entry["id"]] = entry

    def set(self, id: int, fields: dict[str, Any]) -> None:
        target = self.entries[id] if id else self.info
        for name, value in fields.items():
            if value is None:
                target.pop(name, None)
            else:
                target[name] = value

    def append(self, id: int, field: str, offset: int, text: str) -> None:
        before = self.entries[id].get(field, "")
        assert len(before.encode("utf-16-le")) // 2 == offset
        self.entries[id][field] = before + text

    def snapshot(self) -> bytes:
        entries = [self.entries[id] for id in sorted(self.entries)]
        return canonical({"session": SESSION, "seq": self.seq, "info": self.info, "entries": entries})


def folded(events: list[Event], state: SessionFold | None = None) -> SessionFold:
    state = state or SessionFold(SESSION)
    state.fold(events)
    return state


# The fold


@given(logs)
def test_every_prefix_is_the_same_live_in_bulk_from_storage_and_in_the_browser(log: list[Event]) -> None:
    """C9: four ways to the state after each event, one result, byte for byte as JSON."""
    live, browser = SessionFold(SESSION), Browser()
    for number, event in enumerate(log, 1):
        browser.take(event.seq, live.apply(event))
        stored = folded([decode_event(encode_event(one)) for one in log[:number]])
        want = snapshot(folded(log[:number]))
        assert snapshot(live) == want
        assert snapshot(stored) == want
        assert browser.snapshot() == want


@given(logs, st.data())
def test_folding_a_prefix_and_then_the_rest_is_folding_it_all(log: list[Event], data: st.DataObject) -> None:
    """A state may be looked at anywhere without changing what follows."""
    cuts = data.draw(st.sets(st.integers(0, len(log)), max_size=4))
    state = SessionFold(SESSION)
    for start, end in zip([0, *sorted(cuts)], [*sorted(cuts), len(log)], strict=True):
        folded(log[start:end], state)
        state.render()
    assert snapshot(state) == snapshot(folded(log))


@given(logs, st.data())
def test_patches_after_a_snapshot_lead_on_from_it(log: list[Event], data: st.DataObject) -> None:
    """C9: who takes a snapshot at N and the patches after N has the state."""
    cut = data.draw(st.integers(0, len(log)))
    state = folded(log[:cut])
    seen = msgspec.json.decode(snapshot(state))
    browser = Browser()
    browser.seq, browser.info = seen["seq"], seen["info"]
    browser.entries = {entry["id"]: entry for entry in seen["entries"]}
    for event in log[cut:]:
        browser.take(event.seq, state.apply(event))
    assert browser.snapshot() == snapshot(folded(log))


def thawed(state: SessionFold) -> tuple[dict[int, bytes], SessionFold]:
    """The finished entries of a state, and the state that a base of it resumes."""
    state.render()
    copy = folded([], state)
    done = {entry.id: canonical(entry) for entry in copy.finished()}
    return done, checkpoint.resume_base(SESSION, checkpoint.freeze(copy))


@given(logs, st.data())
def test_a_state_kept_and_resumed_folds_on_as_if_nothing_had_been(log: list[Event], data: st.DataObject) -> None:
    """Finished entries are put away, the rest is written down and read again, at any points."""
    cuts = sorted(data.draw(st.sets(st.integers(0, len(log)), max_size=3)))
    state, away = SessionFold(SESSION), dict[int, Any]()
    for start, end in zip([0, *cuts], [*cuts, len(log)], strict=True):
        folded(log[start:end], state)
        for identity, note in state.noted.items():
            away[identity] = canonical(msgspec.json.decode(away[identity]) | note)
        done, state = thawed(state)
        away |= done
    state.render()
    away |= {entry.id: canonical(entry) for entry in state.entries.values()}
    whole = folded(log).snapshot()
    assert [away[id] for id in sorted(away)] == [canonical(entry) for entry in whole.entries]
    assert canonical(state.info) == canonical(whole.info)


async def stored(script: list[Event], projected: set[int]) -> None:
    """Write a script into a store, moving the checkpoint at some points, and compare all ways to read it."""
    names, log = Names(), list[Event]()
    async with await callslip.open("sqlite:///:memory:", QUIET) as ledger:
        for number, event in enumerate(script):
            await ledger.log.append(SESSION, [structs.replace(names.resolve(event), at=event.at or 1000 + number)])
            fresh = [one async for one in ledger.events(SESSION, after=len(log))]
            names.see(fresh)
            log += fresh
            if number in projected:
                await ledger.log.project(SESSION)
                assert canonical(await ledger.snapshot(SESSION)) == snapshot(folded(log))
        want = snapshot(folded(log))
        assert canonical(await ledger.snapshot(SESSION)) == want
        for seq in {0, len(log) // 2, len(log)}:
            assert snapshot(await ledger.log.state_at(SESSION, seq)) == snapshot(folded(log[:seq]))
        await ledger.log.project(SESSION)
        assert canonical(await ledger.snapshot(SESSION)) == want
        assert await verify(ledger.log) == []


@given(scripts(), st.sets(st.integers(0, 40), min_size=6, max_size=30))
def test_the_store_with_checkpoints_anywhere_reads_as_the_fold_of_its_log(
    script: list[Event], projected: set[int]
) -> None:
    """C9: rows and the fold of the tail give what folding the whole log gives, wherever the checkpoint stands."""
    asyncio.run(stored(script, projected))


# The write path


def keyed(script: list[Event]) -> tuple[Desk, list[tuple[Draft, Event]]]:
    """A desk on which every draft was written under its own key, and what came of each."""
    desk, done = Desk(), list[tuple[Draft, Event]]()
    for number, event in enumerate(script):
        draft = Draft(structs.replace(desk.names.resolve(event), at=1000 + number), key=f"key-{number}")
        done.append((draft, desk.write(draft)[0]))
    return desk, done


def rows(desk: Desk) -> bytes:
    """Every row that the log has led to."""
    unit = desk.unit
    tables = (unit.sessions, unit.calls, unit.approvals)
    kept = [[row for _, row in sorted(table.items())] for table in tables]
    return canonical([kept, sorted([*name, call] for name, call in unit.aliases.items())])


@given(scripts(), st.data())
def test_a_draft_sent_again_under_its_key_changes_nothing(script: list[Event], data: st.DataObject) -> None:
    """C7: the first result is given again, whatever happened since, and nothing is appended."""
    desk, done = keyed(script)
    log, before = desk.log, rows(desk)
    for draft, made in data.draw(st.lists(st.sampled_from(done), min_size=1, max_size=10)):
        assert desk.write(draft) == [made]
    assert (desk.log, rows(desk)) == (log, before)


@given(scripts(), any_event, st.data())
def test_another_body_under_a_key_is_refused_and_leaves_no_trace(
    script: list[Event], other: Event, data: st.DataObject
) -> None:
    """C7: nothing of a write is kept when one of its drafts has a key that was used for something else."""
    desk, done = keyed(script)
    log, before = desk.log, rows(desk)
    draft, made = data.draw(st.sampled_from(done))
    changed = structs.replace(draft, event=structs.replace(draft.event, at=draft.event.at + 1))
    with pytest.raises(ConflictError) as refused:
        desk.write(other, changed)
    assert refused.value.winner == made
    assert (desk.log, rows(desk)) == (log, before)


@given(scripts())
def test_events_are_numbered_from_one_without_gaps(script: list[Event]) -> None:
    """C8: whatever is drafted, and however many events one draft leads to."""
    log = written(script).log
    assert [event.seq for event in log] == list(range(1, len(log) + 1))


@given(scripts())
def test_a_call_ends_at_most_once_and_stays_as_it_ended(script: list[Event]) -> None:
    """C4: after the event that ended it only the late note of a call changes."""
    state, ended = SessionFold(SESSION), dict[int, bytes]()
    for event in written(script).log:
        state.apply(event)
        if isinstance(event, ev.CallEvent) and event.verdict == "applied" and is_terminal(event):
            entry = next(e for e in state.entries.values() if isinstance(e, ToolCall) and e.call_id == event.call)
            assert entry.id not in ended
            ended[entry.id] = canonical(structs.replace(entry, late=0))
    for identity, then in ended.items():
        assert canonical(structs.replace(state.entries[identity], late=0)) == then


@given(scripts())
def test_rows_and_entries_agree(script: list[Event]) -> None:
    """The rows that writes decide from tell the same of every call and approval as the entries that readers see."""
    desk = written(script)
    entries = desk.state.snapshot().entries
    calls = {entry.call_id: entry for entry in entries if isinstance(entry, ToolCall)}
    assert calls.keys() == desk.unit.calls.keys()
    for row in desk.unit.calls.values():
        entry = calls[row.id]
        assert (row.entry, row.state, row.client_call_id) == (entry.id, entry.status, entry.tool_call_id)
        assert (row.tool, row.title, row.kind) == (entry.tool_name or "", entry.title or "", entry.kind or "")
        assert (row.iteration, row.index, row.scope) == (entry.iteration, entry.index, entry.scope)
        assert (row.attempt, row.worker, row.reason) == (entry.attempt, entry.worker, entry.reason)
        assert (row.turn, row.source, row.created_at) == (entry.turn, entry.source, entry.at)
        assert (row.started_at, row.ended_at, row.end) == (entry.started_at, entry.ended_at, entry.end)
        assert row.input_mark == input_mark(entry.raw_input)
    asked = {entry.id: entry for entry in entries if isinstance(entry, PermissionRequest)}
    assert {row.entry for row in desk.unit.approvals.values()} == asked.keys()
    for row in desk.unit.approvals.values():
        entry = asked[row.entry]
        assert (row.id, row.call, row.state) == (entry.request_id, entry.call_id, entry.state)
        assert (row.option, row.by, row.reason) == (entry.response_option or "", entry.by, entry.reason)
        assert (row.description, row.options) == (entry.description, entry.options)


@given(scripts())
def test_a_pending_approval_is_one_that_its_call_awaits(script: list[Event]) -> None:
    """An approval is pending exactly while its call awaits it."""
    unit = written(script).unit
    pending = {row.call: row.id for row in unit.approvals.values() if row.state == "pending"}
    assert pending == {row.id: row.approval for row in unit.calls.values() if row.state == "awaiting_approval"}


def about(alias: Alias) -> st.SearchStrategy[list[Event]]:
    """Anything that may be said of one call, each at its own time."""
    some = st.lists(call_events(names_call={"aliases": (alias,)}), min_size=1, max_size=8)
    return some.map(lambda events: [structs.replace(e, at=1000 + n, **unnamed(e)) for n, e in enumerate(events)])


def unnamed(event: Event) -> dict[str, str]:
    """An approval that is named by its call alone."""
    return {"approval": ""} if isinstance(event, ev.ApprovalAnswer | ev.ApprovalRequested) else {}


def final(desk: Desk) -> list[bytes]:
    """Every call as it ended up, without what depends on its place in the log."""
    found = [entry for entry in desk.state.snapshot().entries if isinstance(entry, ToolCall)]
    told = [
        structs.replace(e, id=0, call_id="", approval=str(bool(e.approval)), late=int(e.late > 0), end=int(e.end > 0))
        for e in found
    ]
    shown = {entry.tool_call_id for entry in found if not entry.tool_call_id.startswith("exec_")}
    return sorted(
        canonical(structs.replace(e, tool_call_id=e.tool_call_id if e.tool_call_id in shown else "")) for e in told
    )


@given(about(Alias("acp", "1")), about(Alias("acp", "2")), st.lists(st.integers(0, 1), max_size=16))
def test_events_of_different_calls_commute(one: list[Event], other: list[Event], picks: list[int]) -> None:
    """However the events of two calls are interleaved, each call ends up the same."""
    assert final(written(interleaved([one, other], picks))) == final(written(one + other))


@given(st.lists(call_events([ev.CallProposed], {}), min_size=2, max_size=5))
def test_calls_without_a_foreign_id_are_each_their_own(proposals: list[Event]) -> None:
    """C2, C3: as many calls as proposals, even if they are alike to the byte."""
    desk = written([*proposals, proposals[0]])
    assert len(desk.unit.calls) == len(proposals) + 1


# Secrets


class Reading:
    """How the same text may come: cut anyhow, or growing."""

    SPLITS = st.lists(st.integers(0, 80), max_size=12)

    @staticmethod
    def deltas(text: str, cuts: list[int]) -> list[str]:
        at = sorted({min(cut, len(text)) for cut in cuts})
        return [text[start:end] for start, end in zip([0, *at], [*at, len(text)], strict=True)]

    @staticmethod
    def growing(text: str, cuts: list[int]) -> list[str]:
        return [text[:cut] for cut in sorted({min(cut, len(text)) for cut in cuts} | {len(text)})]


told = st.lists(pieces, min_size=1, max_size=10).map("".join)


def said(parts: list[str], policy: str) -> str:
    """What a reader sees of a message that came in these chunks and ended."""
    desk = written([*(ev.MessageDelta(text=part, chunks=policy) for part in parts), ev.MessageEnded()])
    return "".join(entry.content for entry in desk.state.snapshot().entries)


def uncovers(parts: list[str]) -> bool:
    """Whether a chunk begins with what is no secret only for the letter before it: cut there, it is taken for one."""
    starts = [("".join(parts[:n]), "".join(parts[n:])) for n in range(1, len(parts))]
    return any(before[-1:].isalnum() and Redactor().text(after).startswith("[redacted") for before, after in starts)


@given(told, Reading.SPLITS)
def test_a_text_in_deltas_reads_the_same_however_it_was_cut(text: str, cuts: list[int]) -> None:
    """S2.4, and nothing of a secret shows: chunks that wait for what comes next lose nothing and repeat nothing."""
    parts = Reading.deltas(text, cuts)
    assume(not uncovers(parts))
    assert said(parts, "delta") == Redactor().text(text)


@given(told, Reading.SPLITS, st.integers(0, 2))
def test_a_cumulative_text_reads_the_same_however_it_grew(text: str, cuts: list[int], repeats: int) -> None:
    """S2.4: each chunk brings the whole text; one that comes again, or too late, changes nothing."""
    parts, clean = Reading.growing(text, cuts), Redactor().text(text)
    late = parts[:1] if clean == text else []
    assert said(parts + parts[-1:] * repeats + late, "cumulative") == clean


@given(told, Reading.SPLITS, st.booleans())
def test_an_undeclared_text_reads_the_same_with_and_without_redaction(text: str, cuts: list[int], gaps: bool) -> None:
    """S2.4: holding back the beginning of what is no secret changes nothing of what chunks prove, nor do empty ones."""
    for parts in (Reading.deltas(text, cuts), Reading.growing(text, cuts)):
        parts = [part for whole in parts for part in (whole, "")] if gaps else parts
        plain = written([*(ev.MessageDelta(text=part) for part in parts), ev.MessageEnded()], redact=False)
        seen = "".join(entry.content for entry in plain.state.snapshot().entries)
        assume(Redactor().text(seen) == seen and not uncovers(parts))
        assert said(parts, "auto") == seen


@pytest.mark.parametrize("policy", ["delta", "auto", "dedupe"])
@pytest.mark.parametrize("gap", [[], [""], ["", ""]])
def test_a_secret_in_two_chunks_does_not_show(policy: str, gap: list[str]) -> None:
    """A secret that stretches over chunks is found whatever their policy, and empty chunks between do not hide it."""
    parts = ["the key: sk-", *gap, "ant-api03-abcdefghij", *gap, "0123456789", *gap, " is it"]
    assert said(parts, policy) == "the key: [redacted:anthropic] is it"


def test_what_waited_says_nothing_that_is_old() -> None:
    """C10: the end of a chunk that waited brings its text, and not again the title that the chunk had told."""
    one = {"aliases": (Alias("acp", "1"),)}
    desk = written(
        [
            ev.CallStarted(**one),
            ev.CallProgress(**one, text="key: sk-", title="old", content=1, source="agent"),
            ev.CallProgress(**one, title="new", content=2),
            ev.CallCompleted(**one, source="other"),
        ]
    )
    (entry,) = desk.state.snapshot().entries
    assert (entry.output_text, entry.title, entry.content) == ("key: sk-", "new", 2)
    (released,) = [event for event in desk.log if getattr(event, "text", "") == "sk-"]
    assert released.source == "agent"


@pytest.mark.parametrize("policy", ["delta", "auto", "cumulative", "dedupe"])
@pytest.mark.parametrize(
    "event",
    [ev.CallProgress(title="x"), ev.MessageUser(text="hi"), ev.TurnEnded(), ev.CallProposed(), ev.MessageEnded()],
)
def test_what_waited_leaves_before_what_ends_its_text(policy: str, event: Event) -> None:
    """S2.12: the message is whole before the entry that follows it, also if its last word might have begun a secret."""
    desk = written([ev.TurnStarted(), ev.MessageDelta(text="ask for s", chunks=policy), event])
    first = desk.state.snapshot().entries[0]
    assert (first.content, first.streaming) == ("ask for s", False)


# Cost


@pytest.mark.parametrize("policy", ["delta", "auto", "dedupe"])
@pytest.mark.parametrize("patches", [None, []])
def test_a_long_text_is_held_in_few_pieces(policy: str, patches: list[Patch] | None) -> None:
    """C12: as many strings as a few hundred chunks need, however many there were."""
    chunks = [ev.MessageDelta(text=text, seq=1, chunks=policy) for text in ("never", " ", "é", "😀", "end. ")]
    state = SessionFold(SESSION)
    state.fold(chunks * 4_000, patches)
    text = state.stream.text
    assert text.value() == "never é😀end. " * 4_000
    state.fold(chunks * 4_000, patches)
    assert len(text.pieces) < 256 and len(text.blocks) <= 1 + 20_000 / 256


async def statements(length: int, drafts: list[Event]) -> list[list[str]]:
    """The SQL that each draft takes on a session of some length."""
    ran: list[str] = []

    def trace(_: object, sql: str, __: object) -> bool:
        ran.append(sql)
        return True

    async with await callslip.open("sqlite:///:memory:", QUIET) as ledger:
        filler = [ev.CallCompleted(aliases=(Alias("acp", str(n)),)) for n in range(length // 2)]
        await ledger.log.append(SESSION, [ev.TurnStarted(), *filler, *[ev.MessageDelta(text="x")] * (length // 2)])
        ledger.log.store._writing.exec_trace = trace
        taken: list[list[str]] = []
        for draft in drafts:
            ran.clear()
            await ledger.log.append(SESSION, [draft])
            taken.append(list(ran))
        return taken


def test_writing_to_a_long_session_takes_the_statements_of_a_short_one() -> None:
    """C12: what a write asks the database does not depend on how much was written before."""
    alias = (Alias("acp", "new"),)
    drafts: list[Event] = [
        ev.MessageDelta(text="hello", message_id="m"),
        ev.CallProposed(aliases=alias, tool_name="bash"),
        ev.ApprovalRequested(aliases=alias),
        ev.ApprovalGranted(aliases=alias),
        ev.CallStarted(aliases=alias),
        ev.CallProgress(aliases=alias, text="out"),
        ev.CallCompleted(aliases=alias, output="out"),
        ev.CallCompleted(aliases=alias, output="out"),
        ev.TurnEnded(),
    ]
    short, long = (asyncio.run(statements(length, drafts)) for length in (10, 5000))
    assert all(short)
    assert short == long


# Identity


def test_an_id_that_is_taken_is_minted_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """C1: chance may give an id twice; the ledger does not."""
    given_out = iter(["exec_000000000001"] * 3 + ["exec_000000000002"] * 2 + ["exec_000000000003"])
    monkeypatch.setattr(ids, "call_id", lambda: next(given_out))

    async def main() -> list[str]:
        async with await callslip.open("sqlite:///:memory:", QUIET) as ledger:
            made = [await ledger.log.append(name, [ev.CallProposed()]) for name in ("a", "b", "a")]
            return [event.call for (event,) in made]

    assert asyncio.run(main()) == ["exec_000000000001", "exec_000000000002", "exec_000000000003"]
