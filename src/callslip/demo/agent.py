"""The demo agent: it thinks, writes, plans and runs commands, word by word and at a pace."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

from callslip.agent.shell import ShellResult
from callslip.api.session import Session
from callslip.demo.project import command_env
from callslip.demo.runner import COMMAND_TIMEOUT_S, run_command
from callslip.errors import CallDeniedError, CallEndedError
from callslip.model import events as ev

WORD_PAUSE_S = 0.04


class DemoAgent:
    """The agent of one session. All pauses are multiplied by `pace`. With `color` output has ANSI escapes."""

    steps: Sequence[str] = ()

    def __init__(self, session: Session, folder: Path, pace: float = 1.0, *, color: bool = True) -> None:
        self.session = session
        self.folder = folder
        self.pace = pace
        self._env = command_env(pace, color=color)

    async def run(
        self, command: str, *, approval: bool = False, timeout: float = COMMAND_TIMEOUT_S, stream: bool = True
    ) -> ShellResult | None:
        """Run a command and return its result, or None if the call was denied or ended by another process."""
        try:
            return await run_command(
                self.session, command, self.folder, env=self._env, approval=approval, timeout=timeout, stream=stream
            )
        except (CallDeniedError, CallEndedError):
            return None

    async def plan(self, done: int, current: str = "in_progress") -> None:
        """Record the plan with its first `done` steps completed and the next one in the state `current`."""
        states = ["completed"] * done + [current] + ["pending"] * len(self.steps)
        entries = [
            {"content": step, "priority": "medium", "status": state}
            for step, state in zip(self.steps, states, strict=False)
        ]
        await self.session.append(ev.PlanUpdated(entries=entries))
        await self.pause(0.3)

    async def say(self, text: str) -> None:
        await self._write(text, self.session.say)

    async def think(self, text: str) -> None:
        await self._write(text, self.session.think)

    async def _write(self, text: str, append: Callable[[str], Awaitable[object]]) -> None:
        """Append a text in chunks like those that a model sends."""
        for word in text.split(" "):
            await append(word + " ")
            await self.pause(WORD_PAUSE_S)

    async def pause(self, seconds: float) -> None:
        await asyncio.sleep(seconds * self.pace)


async def run_parallel(*work: Awaitable[object]) -> None:
    """Run everything at once. An error is raised after all the others have ended."""
    for result in await asyncio.gather(*work, return_exceptions=True):
        if isinstance(result, BaseException):
            raise result
