"""Runs one real shell command as one call: its output is streamed while it runs, its exit status decides the end."""

from __future__ import annotations

import asyncio
import codecs
import os
import signal
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple, cast

from callslip.call import Call
from callslip.session import Session

PIECE = 4096
TIMEOUT = 10.0


class Result(NamedTuple):
    """What a command printed, both streams as they came, and its exit status."""

    text: str
    status: int


async def run(session: Session, command: str, folder: Path, *, approve: str = "") -> Result:
    """Run a command in a folder. Cancelled, it takes everything it started with it."""
    made = session.call("shell", {"command": command}, title=command, kind="execute", approve=approve, timeout=TIMEOUT)
    async with made as call:
        process = await asyncio.create_subprocess_exec(
            "/bin/sh",
            "-c",
            _command(call, command),
            cwd=folder,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            text = await _stream(process, call)
            status = await process.wait()
        finally:
            await _end(process)
        await call.progress(exit_status=status)
        if status:
            call.fail(text or f"exit status {status}")
        else:
            call.complete(text)
        return Result(text, status)


def _command(call: Call, command: str) -> str:
    """Whoever approved may have changed it."""
    given = cast("dict[str, Any]", call.input) if isinstance(call.input, dict) else {}
    edited = given.get("command")
    return edited if call.edited and isinstance(edited, str) else command


async def _stream(process: asyncio.subprocess.Process, call: Call) -> str:
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    parts: list[str] = []
    assert process.stdout is not None
    while data := await process.stdout.read(PIECE):
        if piece := decoder.decode(data):
            parts.append(piece)
            await call.progress(piece)
    return "".join(parts) + decoder.decode(b"", final=True)


async def _end(process: asyncio.subprocess.Process) -> None:
    """A command that was cut short is ended with its whole group, and waited for."""
    if process.returncode is None:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        await process.wait()
