"""The demo on a terminal: the agent, the view, the screen and the answers to approvals around one ledger."""

from __future__ import annotations

import asyncio
import contextlib
import os
import tempfile
from collections.abc import AsyncGenerator, Callable
from pathlib import Path
from typing import NamedTuple

from rich.console import Console

import callslip
from callslip.api.ledger import LocalLedger
from callslip.cli.terminal import keys
from callslip.cli.terminal.background import (
    answer_request,
    cancel_on_signal,
    first_result,
    read_answer,
    run_in_background,
)
from callslip.cli.terminal.patched_session import Json, PatchedSession
from callslip.cli.terminal.timeline import INDENT, approval_id
from callslip.demo.project import write_files
from callslip.demo.screen import Screen
from callslip.demo.story import PROMPT, TITLE, Story
from callslip.demo.workers import Workers
from callslip.model import events as ev
from callslip.model.records import CallRecord
from callslip.settings import Settings

APPROVAL_EXPIRY_S = 20.0
REDRAW_S = 0.5


class Summary(NamedTuple):
    """The calls of the session, and whether the live view is the same as the stored session."""

    calls: list[CallRecord]
    entries: int
    events: int
    is_same: bool


async def play(url: str, console: Console, *, fast: bool, answer: str) -> Summary:
    """Play the story, show the ledger's patches live, then read the session again and compare."""
    pace = 0.0 if fast else 1.0
    name = f"demo-{os.urandom(2).hex()}"
    view = PatchedSession()
    can_ask = answer == "ask" and keys.can_prompt()
    with tempfile.TemporaryDirectory(prefix="callslip-work-") as folder, Screen(view, console) as screen:
        write_files(Path(folder))
        async with callslip.open(url, Settings(approval_expiry=APPROVAL_EXPIRY_S)) as ledger, Workers(url) as workers:
            answers = (
                _answer_by_key(ledger, view, screen) if can_ask else _answer_alone(ledger, view, console, answer, pace)
            )
            async with (
                run_in_background(_watch(ledger, name, view, screen), _redraw(screen), answers),
                cancel_on_signal(),
            ):
                session = ledger.session(name)
                await session.append(ev.SessionInfo(title=TITLE))
                async with session.turn(PROMPT):
                    await Story(session, Path(folder), workers, pace, color=False).play()
                record = await ledger.find_session(name)
                await view.wait_until(lambda view: view.seq >= record.last_seq)
    async with callslip.open(url) as ledger:
        return await _compare(ledger, name, view)


async def _compare(ledger: LocalLedger, name: str, view: PatchedSession) -> Summary:
    """Compare the view with the stored entries, and with the entries that the full log results in."""
    stored = await ledger.snapshot(name)
    folded = (await ledger.log.state_at(name)).snapshot()
    calls: list[CallRecord] = sorted((await ledger.calls(session=name)).items, key=lambda record: record.entry)
    return Summary(calls, len(stored.entries), stored.seq, view.equals(stored) and view.equals(folded))


async def _watch(ledger: LocalLedger, name: str, view: PatchedSession, screen: Screen) -> None:
    """Apply every patch to the view. Nothing else changes it."""
    async for seq, patches in ledger.log.patches(name):
        view.apply(seq, patches)
        screen.draw()


async def _redraw(screen: Screen) -> None:
    """Update the time that is left to answer."""
    while True:
        await asyncio.sleep(REDRAW_S)
        screen.draw()


async def _answer_by_key(ledger: LocalLedger, view: PatchedSession, screen: Screen) -> None:
    """Let the user answer. Keys that were pressed before the question are ignored."""
    while True:
        request = await view.wait_until(PatchedSession.pending_request)
        async with keys.read_keys() as pressed, _asking(screen):
            key = await first_result(read_answer(pressed), view.wait_until(_is_answered(request)))
        if key in ("y", "n"):
            await answer_request(ledger, approval_id(request), yes=key == "y", by=os.environ.get("USER") or "you")
        await view.wait_until(_is_answered(request))


@contextlib.asynccontextmanager
async def _asking(screen: Screen) -> AsyncGenerator[None]:
    screen.is_asking = True
    screen.draw()
    try:
        yield
    finally:
        screen.is_asking = False


def _is_answered(request: Json) -> Callable[[PatchedSession], bool]:
    return lambda view: view.pending_request() is not request


async def _answer_alone(ledger: LocalLedger, view: PatchedSession, console: Console, answer: str, pace: float) -> None:
    """Answer without a user: there is no terminal, or the answer is an option of the command."""
    reason = "no terminal to prompt on" if answer == "ask" else f"--answer {answer}"
    while True:
        request = await view.wait_until(PatchedSession.pending_request)
        console.print(f"{' ' * INDENT}({reason}: answered by the demo)", style="dim")
        await asyncio.sleep(1.2 * pace)
        await answer_request(ledger, approval_id(request), yes=answer != "no", by="the demo")
        await view.wait_until(_is_answered(request))
