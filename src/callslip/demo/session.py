"""Script, view, screen and whoever answers, brought together around one ledger for one performance."""

from __future__ import annotations

import asyncio
import contextlib
import os
import tempfile
from collections.abc import AsyncGenerator, Callable
from pathlib import Path
from typing import NamedTuple

from rich.console import Console

from callslip.api.ledger import LocalLedger, open_ledger
from callslip.cli.terminal import keys
from callslip.cli.terminal.background import answered, beside, ended_politely, first, yes_or_no
from callslip.cli.terminal.patched_session import Json, PatchedSession
from callslip.demo.agent import furnish
from callslip.demo.screen import Screen
from callslip.demo.script import Script
from callslip.model.records import CallRecord
from callslip.settings import Settings

EXPIRY = 20.0
FRAME = 1 / 15


class Shown(NamedTuple):
    """What there was to see, and whether a fresh read of the log gives the same."""

    calls: list[CallRecord]
    entries: int
    events: int
    equal: bool


async def perform(url: str, console: Console, *, fast: bool, answer: str) -> Shown:
    """Play the script, show what the ledger tells of it, then read it all again."""
    pace = 0.0 if fast else 1.0
    name = f"demo-{os.urandom(2).hex()}"
    view = PatchedSession()
    ask = answer == "ask" and keys.may_ask()
    with tempfile.TemporaryDirectory(prefix="callslip-work-") as folder, Screen(view, console) as screen:
        furnish(Path(folder))
        async with await open_ledger(url, Settings(approval_expiry=EXPIRY)) as ledger:
            answering = _by_key(ledger, view, screen) if ask else _by_script(ledger, view, console, answer, pace)
            async with beside(_watch(ledger, name, view, screen), _redraw(screen), answering), ended_politely():
                await Script(ledger.session(name), Path(folder), pace).play()
                row = await ledger.find_session(name)
                await view.until(lambda view: view.seq >= row.last_seq)
    async with await open_ledger(url) as again:
        return await _compare(again, name, view)


async def _compare(ledger: LocalLedger, name: str, view: PatchedSession) -> Shown:
    """Twice: entries as they are stored, and entries as the whole log gives them."""
    stored = await ledger.snapshot(name)
    folded = (await ledger.log.state_at(name)).snapshot()
    calls: list[CallRecord] = sorted((await ledger.calls(session=name)).items, key=lambda row: row.entry)
    return Shown(calls, len(stored.entries), stored.seq, view.same_as(stored) and view.same_as(folded))


async def _watch(ledger: LocalLedger, name: str, view: PatchedSession, screen: Screen) -> None:
    """The only way from the ledger to the screen."""
    async for seq, patches in ledger.log.patches(name):
        view.apply(seq, patches)
        screen.draw()


async def _redraw(screen: Screen) -> None:
    """What time alone changes on the screen: how long there is left to answer."""
    while True:
        await asyncio.sleep(0.5)
        screen.draw()


async def _by_key(ledger: LocalLedger, view: PatchedSession, screen: Screen) -> None:
    """Ask the person at the terminal. What was typed before the question is no answer to it."""
    while True:
        request = await view.until(PatchedSession.request)
        async with keys.pressed() as pressed, _question(screen):
            said = await first(yes_or_no(pressed), view.until(_answered(request)))
        if said in ("y", "n"):
            await answered(ledger, request["requestId"], yes=said == "y", by=os.environ.get("USER") or "you")
        await view.until(_answered(request))


@contextlib.asynccontextmanager
async def _question(screen: Screen) -> AsyncGenerator[None]:
    screen.asking = True
    screen.draw()
    try:
        yield
    finally:
        screen.asking = False


def _answered(request: Json) -> Callable[[PatchedSession], bool]:
    return lambda view: view.request() is not request


async def _by_script(ledger: LocalLedger, view: PatchedSession, console: Console, answer: str, pace: float) -> None:
    """Nobody is there to ask, or the answer was given beforehand."""
    while True:
        request = await view.until(PatchedSession.request)
        why = "nobody is at a terminal" if answer == "ask" else "as --answer said"
        console.print(f"{' ' * 24}({why}: answered by the script)", style="dim")
        await asyncio.sleep(1.2 * pace)
        await answered(ledger, request["requestId"], yes=answer != "no", by="the demo script")
        await view.until(_answered(request))
