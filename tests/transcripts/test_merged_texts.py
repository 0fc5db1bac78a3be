"""Texts without ids that `wrap` recorded and that are in the session file: each is there once, in any order."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import callslip
from callslip.api.ledger import LocalLedger
from callslip.ledger.verify import verify
from callslip.model import events as ev
from callslip.model.entries import Message, Thought, ToolCall
from callslip.settings import Settings
from callslip.transcripts.agents import find_source
from callslip.transcripts.importer import TranscriptImporter
from tests.support.claude_files import Script, session_id, write_lines

pytestmark = pytest.mark.anyio
SETTINGS = Settings(reaper_interval=3600)
SOURCE = find_source("claude-code")
NAME = "live"
START_MS = 1_794_724_980_000
"""When the first line of a script was written."""

CALLS = ("one", "two")


async def import_lines(ledger: LocalLedger, folder: Path, script: Script, end: int | None = None) -> None:
    """Import the first lines of a session as a new process would."""
    write_lines(script.path(folder), script.lines[:end])
    importer = TranscriptImporter(ledger.log)
    await importer.load()
    await importer.run(SOURCE, SOURCE.find(str(folder)))


async def read_shown(ledger: LocalLedger) -> list[Any]:
    """Return the texts, with single spaces, and the calls of the session that was recorded live."""
    return [
        (entry.tool_call_id, entry.status) if isinstance(entry, ToolCall) else " ".join(entry.content.split())
        for entry in (await ledger.snapshot(NAME)).entries
        if isinstance(entry, Message | Thought | ToolCall)
    ]


def write_turn(script: Script, number: int) -> list[list[ev.Event]]:
    """Add a turn to a session file, and return what is sent live of it: texts in chunks, without ids, in other lines.

    Each turn has the same texts, and one of them twice.
    """
    at = START_MS + len(script.lines) * 1000
    one, two = (f"{call}-{number}" for call in CALLS)
    script.prompt("Go on").thought("Hm. A\nthought.").text("Let me look.\n", stop="").call(one).result(one)
    script.text("Same.", stop="").call(two).result(two).text("Same.")
    first, second = (ev.Alias("acp", one),), (ev.Alias("acp", two),)
    return [
        [ev.TurnStarted(at=at), ev.MessageUser(text="Go on", at=at)],
        [ev.ThoughtDelta(text="Hm. ", at=at)],
        [ev.ThoughtDelta(text="A thought.", at=at)],
        [ev.MessageDelta(text="Let ", at=at)],
        [ev.MessageDelta(text="me look.", at=at)],
        [ev.CallProposed(aliases=first, at=at)],
        [ev.CallCompleted(aliases=first, at=at)],
        [ev.MessageDelta(text="Sa", at=at)],
        [ev.MessageDelta(text="me.", at=at)],
        [ev.CallStarted(aliases=second, at=at), ev.CallCompleted(aliases=second, at=at)],
        [ev.MessageDelta(text="Sam", at=at)],
        [ev.MessageDelta(text="e.", at=at)],
        [ev.TurnEnded(at=at)],
    ]


def shown_turn(number: int) -> list[Any]:
    one, two = ((f"{call}-{number}", "completed") for call in CALLS)
    return ["Go on", "Hm. A thought.", "Let me look.", one, "Same.", two, "Same."]


LIVE_STEPS, FILE_STEPS = 26, 18


def orders() -> Iterator[list[bool]]:
    """Yield in which orders both sides may proceed; True is a step of the live side."""
    for seed in range(20):
        order = [True] * LIVE_STEPS + [False] * FILE_STEPS
        random.Random(seed).shuffle(order)
        yield order


ORDERS = {
    "live first": [True] * LIVE_STEPS + [False] * FILE_STEPS,
    "file first": [False] * FILE_STEPS + [True] * LIVE_STEPS,
    **{f"random {number}": order for number, order in enumerate(orders())},
}


@pytest.mark.parametrize("order", ORDERS.values(), ids=ORDERS)
async def test_a_text_without_an_id_is_there_once(db: str, tmp_path: Path, order: list[bool]) -> None:
    """MRG7: whichever source is first with a part, each prompt, text and thought is shown once."""
    script = Script()
    live = [step for number in (1, 2) for step in write_turn(script, number)]
    assert (len(live), len(script.lines)) == (LIVE_STEPS, FILE_STEPS)
    async with callslip.open(db, SETTINGS) as ledger:
        await ledger.log.append(NAME, [ev.SessionInfo(foreign_id=session_id(1))], source="acp")
        lines = 0
        for is_live in order:
            if is_live:
                await ledger.log.append(NAME, live.pop(0), source="acp")
            else:
                lines += 1
                await import_lines(ledger, tmp_path, script, lines)
        assert sorted(map(str, await read_shown(ledger))) == sorted(map(str, shown_turn(1) + shown_turn(2)))
        assert (await ledger.snapshot(NAME)).info.turn == ""
        assert await verify(ledger.log) == []


@pytest.mark.parametrize("recorded", range(1, LIVE_STEPS // 2))
@pytest.mark.parametrize("is_over", [False, True])
async def test_the_file_has_what_a_killed_recorder_has_not(
    db: str, tmp_path: Path, recorded: int, is_over: bool
) -> None:
    """MRG7: a recorder that is killed at any step leaves a session that the file completes, with each text once."""
    script = Script()
    live = write_turn(script, 1)[:recorded]
    async with callslip.open(db, SETTINGS) as ledger:
        await ledger.log.append(NAME, [ev.SessionInfo(foreign_id=session_id(1))], source="acp")
        for step in live:
            await ledger.log.append(NAME, step, source="acp")
        if is_over:
            await ledger.log.append(NAME, [ev.TurnEnded(reason="eof", at=live[-1][-1].at)], source="acp")
        await import_lines(ledger, tmp_path, script)
        shown = await read_shown(ledger)
        texts = "".join("".join(each.split()) for each in shown if isinstance(each, str))
        assert texts == "".join("".join(each.split()) for each in shown_turn(1) if isinstance(each, str))
        assert [each[0] for each in shown if not isinstance(each, str)] == ["one-1", "two-1"]
        assert await verify(ledger.log) == []


async def test_a_live_text_that_continues_differently_is_whole(db: str, tmp_path: Path) -> None:
    """MRG7: a live text that begins like one of the file is shown from its beginning."""
    script = Script().prompt("q").text("I will look.")
    async with callslip.open(db, SETTINGS) as ledger:
        await ledger.log.append(NAME, [ev.SessionInfo(foreign_id=session_id(1))], source="acp")
        await import_lines(ledger, tmp_path, script)
        prompt = [ev.TurnStarted(at=START_MS), ev.MessageUser(text="q", at=START_MS)]
        chunks = [ev.MessageDelta(text=text, at=START_MS) for text in ("I ", "will", " wait", ".")]
        await ledger.log.append(NAME, [*prompt, *chunks], source="acp")
        assert await read_shown(ledger) == ["q", "I will look.", "I will wait."]


async def test_a_prompt_that_was_sent_later_is_another_one(db: str, tmp_path: Path) -> None:
    """MRG7: a user who sends the text of an earlier prompt of the file starts a turn."""
    script = Script().prompt("Go on").text("Done.")
    async with callslip.open(db, SETTINGS) as ledger:
        await ledger.log.append(NAME, [ev.SessionInfo(foreign_id=session_id(1))], source="acp")
        await import_lines(ledger, tmp_path, script)
        at = START_MS + 60_000
        live = [ev.TurnStarted(at=at), ev.MessageUser(text="Go on", at=at), ev.MessageDelta(text="Done.", at=at)]
        await ledger.log.append(NAME, [*live, ev.TurnEnded(at=at)], source="acp")
        assert await read_shown(ledger) == ["Go on", "Done."] * 2
