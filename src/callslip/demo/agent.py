"""What every piece of the demo is made of: an agent that thinks, says, plans and runs, word by word and at a pace."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Sequence
from pathlib import Path

from callslip.agent.shell import ShellResult
from callslip.api.session import Session
from callslip.demo.runner import TIMEOUT, run
from callslip.errors import CallDeniedError, CallEndedError
from callslip.model import events as ev

FILES = {
    "notes/monday.txt": "The reading room opens at nine. Slips go into the box by the door.\n",
    "notes/tuesday.txt": "Two readers asked for the same book. Each has a slip of his own.\n",
    "notes/wednesday.txt": "One slip came back: no such book. It was filed all the same.\n",
    "file-slips.sh": r"""for slip in 1 2 3 4 5; do
  printf '\033[32m✓\033[0m slip %s \033[2mfiled\033[0m\n' $slip; sleep "$1"
done
printf '\033[33mslip 6 is missing\033[0m\n'
""",
    "drafts/one.txt": "Nothing worth keeping.\n",
    "drafts/two.txt": "Nor here.\n",
}


def furnish(folder: Path) -> None:
    """The files that the agent works on."""
    for name, text in FILES.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text, "utf-8")


class Actor:
    """The agent of one session. `pace` stretches the pauses; with 0 there are none."""

    steps: Sequence[str] = ()

    def __init__(self, session: Session, folder: Path, pace: float = 1.0) -> None:
        self.session = session
        self.folder = folder
        self.pace = pace

    async def run(
        self, command: str, *, approval: bool = False, timeout: float = TIMEOUT, stream: bool = True
    ) -> ShellResult | None:
        """Run a command; None if somebody refused it or ended it, which is an answer like any other."""
        try:
            return await run(self.session, command, self.folder, approval=approval, timeout=timeout, stream=stream)
        except (CallDeniedError, CallEndedError):
            return None

    async def plan(self, done: int) -> None:
        """The plan, with so many of its steps done."""
        words = ["completed"] * done + ["in_progress"] + ["pending"] * len(self.steps)
        steps = [
            {"content": step, "priority": "medium", "status": word}
            for step, word in zip(self.steps, words, strict=False)
        ]
        await self.session.append(ev.PlanUpdated(entries=steps))
        await self.pause(0.3)

    async def say(self, text: str) -> None:
        for word in _words(text):
            await self.session.say(word)
            await self.pause(0.04)

    async def think(self, text: str) -> None:
        for word in _words(text):
            await self.session.think(word)
            await self.pause(0.04)

    async def pause(self, seconds: float) -> None:
        await asyncio.sleep(seconds * self.pace)


async def together(*work: Awaitable[object]) -> None:
    """All of it at once. What goes wrong in one is raised when the others have come to their end."""
    for result in await asyncio.gather(*work, return_exceptions=True):
        if isinstance(result, BaseException):
            raise result


def _words(text: str) -> list[str]:
    """A text in pieces, as a model would send it."""
    return [word + " " for word in text.split(" ")]
