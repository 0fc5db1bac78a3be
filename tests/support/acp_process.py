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

from callslip.api.ledger import LocalLedger, open_ledger
from callslip.model.entries import ToolCall
from callslip.settings import Settings
from tests.support.invariants import find_faults
from tests.support.paths import PROGRAMS

AGENT = [sys.executable, str(PROGRAMS / "acp_agent.py")]
TIMEOUT_S = 120.0
"""Far more than any agent needs: a real one takes a minute to start on a busy machine."""


def wrap_command(db: str, *options: str) -> list[str]:
    """Return the start of a command that wraps an agent; the agent's command follows."""
    return [sys.executable, "-m", "callslip", "wrap", "--db", db, *options, "--"]


class Client:
    """Runs a command and exchanges messages with it. `requests` are the requests among the `received` messages."""

    def __init__(self, command: list[str], **options: Any) -> None:
        streams = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        self.process = subprocess.Popen(command, bufsize=0, **(streams | options))
        self.received: list[Any] = []
        self.requests: list[Any] = []
        self._buffer = b""
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
        """Send a request and return its id without waiting for the answer."""
        self._number += 1
        self.send(id=self._number, method=method, params=params)
        return self._number

    def ask(self, method: str, **params: Any) -> Any:
        """Send a request and return the answer."""
        number = self.request(method, **params)
        return self.until(lambda message: message.get("id") == number and "method" not in message)

    def until(self, is_wanted: Callable[[Any], bool]) -> Any:
        """Read messages until one is wanted, and return it."""
        while True:
            message = json.loads(self.read_line())
            self.received.append(message)
            if "id" in message and "method" in message:
                self.requests.append(message)
            if is_wanted(message):
                return message

    def read_line(self) -> bytes:
        """Return the next line."""
        assert self.process.stdout is not None
        while b"\n" not in self._buffer:
            readable, _, _ = select.select([self.process.stdout], [], [], TIMEOUT_S)
            assert readable, f"no output within {TIMEOUT_S} s: {self.received[-3:]}"
            data = os.read(self.process.stdout.fileno(), 2**16)
            assert data, f"the output ended: {self.received[-3:]}"
            self._buffer += data
        line, _, self._buffer = self._buffer.partition(b"\n")
        return line

    def open_session(self) -> str:
        """Open a session and return its id."""
        self.ask("initialize", protocolVersion=1)
        return self.ask("session/new", cwd="/", mcpServers=[])["result"]["sessionId"]

    def prompt(self, session: str, text: str) -> Any:
        return self.ask("session/prompt", sessionId=session, prompt=[{"type": "text", "text": text}])

    def reply_to(self, session: str, text: str) -> str:
        """Send a prompt and return the agent's text."""
        before = len(self.received)
        self.prompt(session, text)
        return "".join(map(text_of, self.received[before:]))

    def start_call(self, session: str, call: str) -> int:
        """Make the agent start a call that does not end. Return the process id of the agent."""
        self.request("session/prompt", sessionId=session, prompt=[{"type": "text", "text": f"begin {call}"}])
        update = self.until(lambda message: message.get("params", {}).get("update", {}).get("toolCallId") == call)
        return int(update["params"]["update"]["title"])

    def end(self) -> tuple[int, bytes]:
        """Close the input. Return the exit status and stderr."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        return self.wait()

    def wait(self) -> tuple[int, bytes]:
        """Wait until the command ends. Return the exit status and stderr."""
        assert self.process.stdout is not None and self.process.stderr is not None
        self._buffer += self.process.stdout.read()
        stderr = self.process.stderr.read()
        return self.process.wait(TIMEOUT_S), stderr


def text_of(message: Any) -> str:
    return message.get("params", {}).get("update", {}).get("content", {}).get("text", "")


# The ledger


def with_ledger(db: str, work: Callable[[LocalLedger], Awaitable[Any]]) -> Any:
    """Run `work` with a ledger, of a file or a URL, whose invariants hold, and return the result."""

    async def run_work() -> Any:
        url = db if "://" in db else f"sqlite:///{db}"
        async with await open_ledger(url, Settings(reaper_interval=3600)) as ledger:
            faults = await find_faults(ledger)
            assert not faults, faults
            return await work(ledger)

    return asyncio.run(run_work())


def read_log(db: str, session: str) -> list[Any]:
    """Return the events of a session."""

    async def read(ledger: LocalLedger) -> list[Any]:
        return [event async for event in ledger.log.events(session)]

    return with_ledger(db, read)


def read_sessions(db: str) -> list[str]:
    async def read(ledger: LocalLedger) -> list[str]:
        return sorted(row.name for row in (await ledger.sessions(limit=1000)).items)

    return with_ledger(db, read)


def read_entries(db: str, session: str) -> list[Any]:
    async def read(ledger: LocalLedger) -> list[Any]:
        return (await ledger.snapshot(session)).entries

    return with_ledger(db, read)


def read_calls(db: str, session: str) -> dict[str, ToolCall]:
    """Return the calls of a session by the agent's ids."""
    return {entry.tool_call_id: entry for entry in read_entries(db, session) if isinstance(entry, ToolCall)}


def is_alive(process: int) -> bool:
    """Return whether a process runs; a zombie does not."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except FileNotFoundError:
        return False


def wait_until(condition: Callable[[], Any], timeout_s: float = TIMEOUT_S) -> Any:
    """Wait until a condition is true, and return its value."""
    deadline = time.monotonic() + timeout_s
    while not (value := condition()):
        assert time.monotonic() < deadline, f"not true within {timeout_s} s"
        time.sleep(0.02)
    return value


def child_ids(process: int) -> list[int]:
    """Return the ids of the child processes of a process."""
    return [int(word) for word in Path(f"/proc/{process}/task/{process}/children").read_text().split()]


def kill(process: int) -> None:
    os.kill(process, signal.SIGKILL)
