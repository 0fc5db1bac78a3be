"""Start worker processes, and kill them as an out-of-memory killer would."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
from asyncio.subprocess import PIPE, Process

from callslip.errors import CallslipError, NotFoundError
from callslip.model.database_url import DATABASE_VARIABLE


class Workers:
    """The worker processes of one demo, by the id of the call that each runs. Used with `async with`."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._running: dict[str, Process] = {}

    async def __aenter__(self) -> Workers:
        return self

    async def __aexit__(self, *error: object) -> None:
        for call in list(self._running):
            await self.kill(call)

    async def start(self, session: str) -> str:
        """Start a process that runs a call in a session, and return the id of the call once it runs."""
        program = (sys.executable, "-m", "callslip.demo.worker", session)
        # Other users can see arguments, and a URL may have a password.
        environment = {
            **os.environ,
            DATABASE_VARIABLE: self._url,
            "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
        }
        process = await asyncio.create_subprocess_exec(
            *program, stdin=PIPE, stdout=PIPE, env=environment, start_new_session=True
        )  # In its own session it does not receive Ctrl-C; the demo ends it.
        assert process.stdout is not None
        call = ""
        try:
            call = (await process.stdout.readline()).decode().strip()
        finally:
            if not call:
                await _kill(process)
        if not call:
            raise CallslipError("the worker process could not be started")
        self._running[call] = process
        return call

    async def kill(self, call: str) -> int:
        """Kill the process that runs a call, and return its pid."""
        process = self._running.pop(call, None)
        if process is None:
            raise NotFoundError(f"no worker runs call {call!r}")
        await _kill(process)
        return process.pid


async def _kill(process: Process) -> None:
    with contextlib.suppress(ProcessLookupError):
        process.kill()
    await process.wait()
