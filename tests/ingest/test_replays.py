"""Write the replays of agents to a ledger: in one transaction, once, and the same in a copy of the log."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from callslip.api.ledger import LocalLedger
from callslip.formats.events.decode import EventsDecoder
from callslip.ingest.importer import import_lines
from callslip.model import events as ev
from callslip.model.entries import Entry, Message, ToolCall
from tests.support.acp_session import (
    FOLDER,
    a2c,
    agent_text,
    c2a,
    call,
    prompt,
    prompt_response,
    rpc_request,
    rpc_response,
    update,
)
from tests.support.invariants import sound_ledger
from tests.support.strategies import MemoryLedger, canonical_json

pytestmark = pytest.mark.anyio
RUNS = {path.stem: path for path in sorted((FOLDER / "runs").glob("*.jsonl"))}
COUNTS = {"codex-resume": (2, 1), "claude-gap": (2, 0)}
"""The prompts and calls in the session of each file; the others have four turns with two calls."""


def encode(rows: list[Any]) -> list[bytes]:
    return [json.dumps(row).encode() for row in rows]


def user_text(text: str) -> dict[str, Any]:
    return update("user_message_chunk", content={"type": "text", "text": text})


def load(*updates: Any) -> list[Any]:
    return [c2a(rpc_request("session/load", 9)), *updates, a2c(rpc_response(9))]


async def texts_of(ledger: LocalLedger) -> list[str]:
    entries = (await ledger.snapshot("s")).entries
    return [entry.content for entry in entries if isinstance(entry, Message)]


def count_entries(entries: Sequence[Entry]) -> tuple[int, int]:
    """Return how many prompts and calls there are."""
    prompts = [entry for entry in entries if isinstance(entry, Message) and entry.role == "user"]
    return len(prompts), sum(isinstance(entry, ToolCall) for entry in entries)


@pytest.mark.parametrize("name", RUNS)
async def test_importing_a_replay_twice_changes_nothing(name: str, tmp_path: Path) -> None:
    """RPL4: the log verifies, and a repeated import finds every event, those of added turns too."""
    lines = RUNS[name].read_bytes().splitlines()
    async with sound_ledger(str(tmp_path / "a.db"), synchronous="NORMAL") as ledger:
        first = await import_lines(ledger.log, "s", "acp", lines)
        entries = (await ledger.snapshot("s")).entries
        again = await import_lines(ledger.log, "s", "acp", lines)
        assert (again.events, again.seen) == (0, first.drafts)
        assert (await ledger.snapshot("s")).entries == entries
        assert count_entries(entries) == COUNTS.get(name, (4, 2))


@pytest.mark.parametrize("name", RUNS)
async def test_a_copy_of_a_log_with_replays_is_equal(name: str, tmp_path: Path) -> None:
    """RPL4: the original log decided what a replay adds; the copy decides nothing."""
    async with sound_ledger(str(tmp_path / "a.db"), synchronous="NORMAL") as ledger:
        await import_lines(ledger.log, "s", "acp", RUNS[name].read_bytes().splitlines())
        log = [event async for event in ledger.log.events("s")]
    copy, decoder = MemoryLedger(), EventsDecoder()
    for event in log:
        copy.write(*decoder.feed(json.loads(ev.encode_event(event))))
    assert [event.verdict for event in copy.log] == [event.verdict for event in log]
    assert "witness" in {event.verdict for event in log}
    original = MemoryLedger().state
    original.fold(log)
    assert count_entries(copy.state.snapshot().entries) == COUNTS.get(name, (4, 2))
    assert canonical_json(copy.state.snapshot().entries) == canonical_json(original.snapshot().entries)


async def test_a_long_replay_is_decided_and_written_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """RPL4: otherwise a process that is killed could leave half of a turn."""
    updates = [row for number in range(601) for row in (user_text(f"p{number}"), agent_text(f"a{number}"))]
    live = [prompt(text="p0"), agent_text("a0"), prompt_response()]
    async with sound_ledger(str(tmp_path / "a.db"), synchronous="NORMAL") as ledger:
        append, sizes = ledger.log.append, list[int]()

        async def count(session: str, drafts: Any, **options: Any) -> Any:
            sizes.append(sum(draft.witness for draft in drafts))
            return await append(session, drafts, **options)

        monkeypatch.setattr(ledger.log, "append", count)
        await import_lines(ledger.log, "s", "acp", encode([*live, *load(*updates)]))
        assert [size for size in sizes if size] == [1204]
        assert await texts_of(ledger) == [f"{kind}{number}" for number in range(601) for kind in "pa"]


SMALL = {"synchronous": "NORMAL", "max_event": 8192, "inline_limit": 1024}


def long_call(number: int) -> dict[str, Any]:
    """Return a call that a ledger with small limits refuses."""
    return call("completed", name=f"c{number}", title="x" * 10_000)


async def test_a_refused_part_of_a_replay_is_kept_as_raw(tmp_path: Path) -> None:
    """RPL4: the others are compared and added without it."""
    live = [prompt(text="one"), agent_text("1"), prompt_response()]
    replayed = [user_text("one"), agent_text("1"), user_text("two"), long_call(1), agent_text("2"), long_call(2)]
    async with sound_ledger(str(tmp_path / "a.db"), **SMALL) as ledger:
        await import_lines(ledger.log, "s", "acp", encode([*live, *load(*replayed)]))
        assert await texts_of(ledger) == ["one", "1", "two", "2"]
        log = [event async for event in ledger.log.events("s")]
        bodies = [await ledger.blob(event.blob.hash) for event in log if isinstance(event, ev.Raw) and event.blob]
        assert [body.count(b"x") > 9_000 and b"call.completed" in body for body in bodies] == [True, True]


async def test_a_replay_with_many_refused_parts_adds_nothing(tmp_path: Path) -> None:
    """RPL4: finding each of them would take long. All of them are kept."""
    live = [prompt(text="one"), agent_text("1"), prompt_response()]
    rows = [*live, *load(user_text("one"), agent_text("1"), user_text("two"), *map(long_call, range(60)))]
    async with sound_ledger(str(tmp_path / "a.db"), **SMALL) as ledger:
        await import_lines(ledger.log, "s", "acp", encode(rows))
        assert await texts_of(ledger) == ["one", "1"]
        log = [event async for event in ledger.log.events("s")]
        assert sum(isinstance(event, ev.Raw) and event.blob is not None for event in log) == 60


@pytest.mark.parametrize("live", [[], [prompt(text="one"), agent_text("1"), prompt_response()]])
async def test_a_refused_prompt_is_left_out_with_its_answers(tmp_path: Path, live: list[Any]) -> None:
    """RPL4: they are no part of the turn before. All of it is kept as raw, and the turn after it enters."""
    refused = [user_text("x" * 10_000), agent_text("answer to x"), call("completed", name="c2", title="call of x")]
    replayed = [user_text("one"), agent_text("1"), *refused, user_text("three"), agent_text("3")]
    lines = encode([*live, *load(*replayed)])
    async with sound_ledger(str(tmp_path / "a.db"), **SMALL) as ledger:
        first = await import_lines(ledger.log, "s", "acp", lines)
        entries = (await ledger.snapshot("s")).entries
        assert [(entry.turn, entry.content) for entry in entries if isinstance(entry, Message)] == [
            ("t1", "one"),
            ("t1", "1"),
            ("t2", "three"),
            ("t2", "3"),
        ]
        assert not any(isinstance(entry, ToolCall) for entry in entries)
        raws = [event async for event in ledger.log.events("s") if isinstance(event, ev.Raw)]
        bodies = [await ledger.blob(raw.blob.hash) if raw.blob else json.dumps(raw.body).encode() for raw in raws]
        for text in (b"xxxx", b"answer to x", b"call of x"):
            assert sum(text in body for body in bodies) == 1, bodies
        again = await import_lines(ledger.log, "s", "acp", lines)
        assert (again.events, again.seen) == (0, first.drafts)


async def test_turns_that_retention_removed_neither_enter_again_nor_are_counted(tmp_path: Path) -> None:
    """RPL2: without message ids, with a call that has ended, and with one that is still open and is kept."""
    replayed = [user_text("one"), call("completed", name="c1"), user_text("two"), agent_text("2")]
    one, two = [ev.TurnStarted(), ev.MessageUser(text="one")], [ev.MessageUser(text="two"), ev.MessageDelta(text="2")]
    alias = (ev.Alias("acp", "c1"),)
    for name, end in (("ended", [ev.CallCompleted(aliases=alias)]), ("open", list[ev.Event]())):
        async with sound_ledger(str(tmp_path / f"{name}.db"), synchronous="NORMAL") as ledger:
            calls: list[ev.Event] = [ev.CallProposed(aliases=alias), ev.CallStarted(aliases=alias), *end]
            log: list[ev.Event] = [*one, *calls, ev.TurnEnded(), ev.TurnStarted(), *two, ev.TurnEnded()]
            await ledger.log.append("s", log, owner=ledger.log.owner)
            while not await ledger.prune(0):  # Its events are as old as this in the next millisecond.
                pass
            await import_lines(ledger.log, "s", "acp", encode(load(*replayed)))
            entries = (await ledger.snapshot("s")).entries
            assert [type(entry) for entry in entries] == ([ToolCall] if name == "open" else [])
