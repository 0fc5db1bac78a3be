"""The piece for the page: one turn with every state that a call can be in and every kind of card."""

from __future__ import annotations

import contextlib
from pathlib import Path

from callslip.api.session import Session
from callslip.demo.agent import Actor, furnish, together
from callslip.demo.workers import Workers
from callslip.errors import CallslipError

PROMPT = "Put my notes in order, and show me what you do."
LAST = """\
That was it. Your turn:

- ask `What's the weather in Paris?` or `What time is it in Tokyo and what's the weather there?`
- write `$` and a command, such as `$ ls -l notes`: it runs in a scratch folder, once you approve it
- reload the page, at any moment: it looks the same
- scroll up to **Break it**, press its buttons, and compare

No model is at work here; `/tour` plays this again.
"""


class Tour(Actor):
    """One performance, in a turn that is open."""

    steps = ("look around", "read and count", "mend a note", "wait for others", "throw the drafts away")

    def __init__(self, session: Session, folder: Path, workers: Workers, pace: float = 1.0) -> None:
        super().__init__(session, folder, pace)
        self._workers = workers

    async def play(self) -> None:
        """All acts, in order."""
        furnish(self.folder)
        await self.think("The same question twice, at the same moment: two calls that only their ids tell apart.")
        await self.plan(0)
        await self.say("I look around first.")
        await together(*(self.run("ls -1 notes") for _ in range(2)))
        await self.pause(0.5)
        for act in (self._read, self._mend, self._wait, self._discard):
            await act()
            await self.pause(0.4)
        await self.say(LAST)

    async def _read(self) -> None:
        await self.plan(1)
        await self.say("Three things at once, each telling as it goes on; then one that cannot work.")
        pause = f"{0.35 * self.pace:g}"
        await together(
            self.run(f'for note in notes/*.txt; do wc -w "$note"; sleep {pause}; done'),
            self.run(f"sh file-slips.sh {pause}"),
            self._look_up(),
        )
        await self.run("cat notes/summary.txt")
        await self.pause(0.3)
        await self.say(
            "There is no summary. The catalogue is long; what is too long for its event is kept beside the log."
        )
        await self.run("seq -f 'catalogue card %g of 6000' 1 6000", stream=False)

    async def _look_up(self) -> None:
        given = {"title": "The Library of Babel"}
        async with self.session.call("catalogue", given, title="look up a book", kind="search") as call:
            await self.pause(0.8)
            found = {**given, "shelf": {"hexagon": 1594, "row": 3}, "copies": [17, 18], "lent": False}
            call.complete(found)

    async def _mend(self) -> None:
        """A real edit of a real file, told as a diff."""
        await self.plan(2)
        path = self.folder / "notes/tuesday.txt"
        before = path.read_text("utf-8")
        after = before.replace("his own", "their own") + "The second copy is on shelf 3.\n"
        given = {"path": "notes/tuesday.txt", "old": "his own", "new": "their own"}
        async with self.session.call("edit", given, title="edit notes/tuesday.txt", kind="edit") as call:
            await self.pause(0.5)
            path.write_text(after, "utf-8")
            diff = {"type": "diff", "path": "notes/tuesday.txt", "oldText": before, "newText": after}
            await call.progress(content=[diff], locations=[{"path": str(path), "line": 1}])
            call.complete("2 lines changed")

    async def _wait(self) -> None:
        await self.plan(3)
        await self.say(
            "One command that never ends, and one in another process, which I kill. Both calls end all the same."
        )
        await together(self.run("echo waiting for the archive; sleep 60", timeout=2.0), self._lose_worker())

    async def _lose_worker(self) -> None:
        with contextlib.suppress(CallslipError):  # Somebody may have cancelled it, or stopped all of us.
            call = await self._workers.start(self.session.name)
            await self.pause(1.2)
            await self._workers.kill(call)
            await self.session.ledger.wait(call, timeout=10)

    async def _discard(self) -> None:
        """This one is the visitor's to decide; nobody's answer is a no."""
        await self.plan(4)
        await self.say("The last step removes files, so it waits for you: approve it or deny it.")
        done = await self.run("rm -rv drafts", approval=True)
        if done is not None and done.exit_status == 0:
            await self.plan(5)
        else:
            await self.say("The drafts stay, then. ")
