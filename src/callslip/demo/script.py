"""The part that the agent plays: what it thinks, says and runs, in order. It never looks at the screen."""

from __future__ import annotations

import asyncio
from pathlib import Path

from callslip import events as ev
from callslip.demo.runner import run
from callslip.errors import Denied
from callslip.session import Session

PROMPT = "How many words are in my notes? And throw the drafts away."

FILES = {
    "notes/monday.txt": "The reading room opens at nine. Slips go into the box by the door.\n",
    "notes/tuesday.txt": "Two readers asked for the same book. Each has a slip of his own.\n",
    "notes/wednesday.txt": "One slip came back: no such book. It was filed all the same.\n",
    "drafts/one.txt": "Nothing worth keeping.\n",
    "drafts/two.txt": "Nor here.\n",
}
STEPS = ("look at the notes", "count the words", "throw the drafts away")


def furnish(folder: Path) -> None:
    """The files that the agent works on."""
    for name, text in FILES.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text, "utf-8")


class Script:
    """One performance. `pace` stretches the pauses; with 0 there are none."""

    def __init__(self, session: Session, folder: Path, pace: float = 1.0) -> None:
        self._session = session
        self._folder = folder
        self._pace = pace

    async def play(self) -> None:
        """The whole piece, in one turn. However it ends, no call stays open."""
        session = self._session
        await session.append(ev.SessionInfo(title="words and drafts"))
        await session.turn(PROMPT)
        try:
            await self._acts()
        except BaseException as error:
            stopped = isinstance(error, asyncio.CancelledError | KeyboardInterrupt)
            await asyncio.shield(session.end_turn("cancelled" if stopped else "error"))
            raise
        await session.end_turn()

    async def _acts(self) -> None:
        await self._think("Two people want to see the list, so I ask for it twice, at the same moment.")
        await self._plan(0)
        await asyncio.gather(*(run(self._session, "ls -1 notes", self._folder) for _ in range(2)))
        await self._pause(0.6)
        await run(self._session, "cat notes/summary.txt", self._folder)
        await self._say("There is no summary, so I count file by file.")
        await self._plan(1)
        words = await self._count()
        await self._plan(2)
        gone = await self._discard()
        if gone:
            await self._plan(3)
        drafts = "The drafts are gone." if gone else "The drafts stay, as you wished."
        await self._say(f"Your notes have {words} words. {drafts}")

    async def _count(self) -> int:
        command = f'for note in notes/*.txt; do wc -w "$note"; sleep {0.4 * self._pace:g}; done'
        counted = await run(self._session, command, self._folder)
        return sum(int(line.split()[0]) for line in counted.text.splitlines())

    async def _discard(self) -> bool:
        """This one asks first. A refusal is an answer like any other."""
        try:
            return (await run(self._session, "rm -r drafts", self._folder, approve="ask")).status == 0
        except Denied:
            return False

    async def _plan(self, done: int) -> None:
        words = ["completed"] * done + ["in_progress"] + ["pending"] * len(STEPS)
        steps = [
            {"content": step, "priority": "medium", "status": word} for step, word in zip(STEPS, words, strict=False)
        ]
        await self._session.append(ev.PlanUpdated(entries=steps))
        await self._pause(0.3)

    async def _say(self, text: str) -> None:
        for word in text.split(" "):
            await self._session.say(word + " ")
            await self._pause(0.05)

    async def _think(self, text: str) -> None:
        for word in text.split(" "):
            await self._session.think(word + " ")
            await self._pause(0.04)

    async def _pause(self, seconds: float) -> None:
        await asyncio.sleep(seconds * self._pace)
