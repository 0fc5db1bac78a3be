"""A client of the Agent Client Protocol for tests, and the agent it runs: wrapped, or directly."""

from __future__ import annotations

import asyncio
import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import TracebackType
from typing import Any

from callslip.api.ledger import Ledger, open_ledger
from callslip.model.entries import ToolCall
from callslip.settings import Settings
from tests.support.invariants import faults
from tests.support.paths import PROGRAMS

AGENT = [sys.executable, str(PROGRAMS / "acp_agent.py")]
TIMEOUT = 30.0


def wrapping(db: str, *options: str) -> list[str]:
    """The beginning of a command that wraps the rest of it."""
    return [sys.executable, "-m", "callslip", "wrap", "--db", db, *options, "--"]


class Client:
    """Runs a command and talks to it. `heard` are all lines that came, `asked` the requests among them."""

    def __init__(self, command: list[str], **options: Any) -> None:
        streams = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        self.process = subprocess.Popen(command, bufsize=0, **(streams | options))
        self.heard: list[Any] = []
        self.asked: list[Any] = []
        self._rest = b""
        self._number = 0

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        for stream in (self.process.stdin, self.process.stdout, self.process.stderr):
            if stream is not None:
                stream.close()

    def send(self, **message: Any) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n")

    def request(self, method: str, **params: Any) -> int:
        """Ask something, and do not wait for the answer."""
        self._number += 1
        self.send(id=self._number, method=method, params=params)
        return self._number

    def ask(self, method: str, **params: Any) -> Any:
        """Ask something and wait for the answer."""
        number = self.request(method, **params)
        return self.until(lambda message: message.get("id") == number and "method" not in message)

    def until(self, wanted: Callable[[Any], bool]) -> Any:
        """The next message that is wanted."""
        while True:
            message = json.loads(self.line())
            self.heard.append(message)
            if "id" in message and "method" in message:
                self.asked.append(message)
            if wanted(message):
                return message

    def line(self) -> bytes:
        """The next line."""
        assert self.process.stdout is not None
        while b"\n" not in self._rest:
            assert select.select([self.process.stdout], [], [], TIMEOUT)[0], "nothing came"
            data = os.read(self.process.stdout.fileno(), 2**16)
            assert data, f"the agent hung up: {self.heard[-3:]}"
            self._rest += data
        line, _, self._rest = self._rest.partition(b"\n")
        return line

    def begin(self) -> str:
        """Open a session. Gives its id."""
        self.ask("initialize", protocolVersion=1)
        return self.ask("session/new", cwd="/", mcpServers=[])["result"]["sessionId"]

    def prompt(self, session: str, text: str) -> Any:
        return self.ask("session/prompt", sessionId=session, prompt=[{"type": "text", "text": text}])

    def says(self, session: str, text: str) -> str:
        """What the agent says to a prompt."""
        before = len(self.heard)
        self.prompt(session, text)
        return "".join(map(text_of, self.heard[before:]))

    def starts(self, session: str, call: str) -> int:
        """Let a call begin that does not end. Gives the process id of the agent."""
        self.request("session/prompt", sessionId=session, prompt=[{"type": "text", "text": f"begin {call}"}])
        update = self.until(lambda message: message.get("params", {}).get("update", {}).get("toolCallId") == call)
        return int(update["params"]["update"]["title"])

    def end(self) -> tuple[int, bytes]:
        """Hang up. Gives the exit status and what was on stderr."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        return self.left()

    def left(self) -> tuple[int, bytes]:
        """Wait for the command to end by itself. Gives the exit status and what was on stderr."""
        assert self.process.stdout is not None and self.process.stderr is not None
        self._rest += self.process.stdout.read()
        said = self.process.stderr.read()
        return self.process.wait(TIMEOUT), said


def text_of(message: Any) -> str:
    return message.get("params", {}).get("update", {}).get("content", {}).get("text", "")


# The ledger


def reading(db: str, work: Callable[[Ledger], Awaitable[Any]]) -> Any:
    """Something done with a ledger, which must be sound."""

    async def go() -> Any:
        url = f"sqlite:///{db}"
        async with await open_ledger(url, Settings(reaper_interval=3600)) as ledger:
            assert not await faults(ledger)
            return await work(ledger)

    return asyncio.run(go())


def log(db: str, session: str) -> list[Any]:
    """The log of a session."""

    async def read(ledger: Ledger) -> list[Any]:
        return [event async for event in ledger.events(session)]

    return reading(db, read)


def sessions(db: str) -> list[str]:
    async def read(ledger: Ledger) -> list[str]:
        return sorted(row.name for row in (await ledger.sessions(limit=1000)).items)

    return reading(db, read)


def entries(db: str, session: str) -> list[Any]:
    async def read(ledger: Ledger) -> list[Any]:
        return (await ledger.snapshot(session)).entries

    return reading(db, read)


def calls(db: str, session: str) -> dict[str, ToolCall]:
    """The calls of a session by the agent's ids."""
    return {entry.tool_call_id: entry for entry in entries(db, session) if isinstance(entry, ToolCall)}


def is_alive(process: int) -> bool:
    """Whether a process runs; one that only waits to be noticed does not."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except FileNotFoundError:
        return False


def eventually(what: Callable[[], Any], seconds: float = TIMEOUT) -> Any:
    """What is true before long."""
    until = time.monotonic() + seconds
    while not (found := what()):
        assert time.monotonic() < until, "it did not come to pass"
        time.sleep(0.02)
    return found


def children(process: int) -> list[int]:
    """The processes that a process started."""
    return [int(word) for word in Path(f"/proc/{process}/task/{process}/children").read_text().split()]


def kill(process: int) -> None:
    os.kill(process, signal.SIGKILL)
