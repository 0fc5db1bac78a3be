"""The piece for a terminal: what the agent thinks, says and runs, in order. It never looks at the screen."""

from __future__ import annotations

import asyncio

from callslip.demo.agent import Actor, together
from callslip.model import events as ev

PROMPT = "How many words are in my notes? And throw the drafts away."


class Script(Actor):
    """One performance."""

    steps = ("look at the notes", "count the words", "throw the drafts away")

    async def play(self) -> None:
        """The whole piece, in one turn. However it ends, no call stays open."""
        session = self.session
        await session.append(ev.SessionInfo(title="words and drafts"))
        await session.start_turn(PROMPT)
        try:
            await self._acts()
        except BaseException as error:
            stopped = isinstance(error, asyncio.CancelledError | KeyboardInterrupt)
            await asyncio.shield(session.end_turn("cancelled" if stopped else "error"))
            raise
        await session.end_turn()

    async def _acts(self) -> None:
        await self.think("Two people want to see the list, so I ask for it twice, at the same moment.")
        await self.plan(0)
        await together(*(self.run("ls -1 notes") for _ in range(2)))
        await self.pause(0.6)
        await self.run("cat notes/summary.txt")
        await self.say("There is no summary, so I count file by file.")
        await self.plan(1)
        words = await self._count()
        await self.plan(2)
        gone = await self.run("rm -r drafts", approval=True)
        if gone is not None and gone.exit_status == 0:
            await self.plan(3)
            drafts = "The drafts are gone."
        else:
            drafts = "The drafts stay, as you wished."
        await self.say(f"Your notes have {words} words. {drafts}")

    async def _count(self) -> int:
        pause = 0.4 * self.pace
        counted = await self.run(f'for note in notes/*.txt; do wc -w "$note"; sleep {pause:g}; done')
        return sum(int(line.split()[0]) for line in counted.stdout.splitlines()) if counted else 0
