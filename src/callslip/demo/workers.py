"""Starts worker processes and kills them, as an out-of-memory killer would."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
from asyncio.subprocess import PIPE, Process

from callslip.errors import CallslipError, NotFoundError


class Workers:
    """The worker processes of one demo, each by the call that it runs."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._running: dict[str, Process] = {}

    async def start(self, session: str) -> str:
        """Let a new process run a call in a session. The call's id, once it runs."""
        program = (sys.executable, "-m", "callslip.demo.worker", self._url, session)
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        process = await asyncio.create_subprocess_exec(
            *program, stdin=PIPE, stdout=PIPE, env=environment, start_new_session=True
        )  # A session of its own: Ctrl-C is for us, and we end it.
        assert process.stdout is not None
        call = (await process.stdout.readline()).decode().strip()
        if not call:
            await _end(process)
            raise CallslipError("the worker process could not begin")
        self._running[call] = process
        return call

    async def kill(self, call: str) -> int:
        """Kill the process that runs a call, without a word. Its pid."""
        process = self._running.pop(call, None)
        if process is None:
            raise NotFoundError(f"no worker runs {call!r}")
        await _end(process)
        return process.pid

    async def close(self) -> None:
        for call in list(self._running):
            await self.kill(call)


async def _end(process: Process) -> None:
    with contextlib.suppress(ProcessLookupError):
        process.kill()
    await process.wait()
