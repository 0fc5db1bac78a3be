"""Starts everything, in the order that delays the agent least: the agent itself, then the recorder, then the pumps.

Nothing heavy is imported here: the recorder's process loads what it needs while the agent is starting.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple, NoReturn

from callslip.wrap.io import let_go
from callslip.wrap.proxy import FORWARDED, Agent, Proxy, exit_status
from callslip.wrap.recorder_pipe import BACKPRESSURE_TIMEOUT_S, RecorderPipe, write_all

if TYPE_CHECKING:
    from callslip.wrap.permission_filter import PermissionFilter

FINISH = 15.0
"""How long the recorder may take, once everything has passed, to write what is still on the tape."""
FAILED = 1
HOLDS = "; its client is asked for permission meanwhile"


class Recording(NamedTuple):
    """Where a run is recorded. `prepare` makes the place; `session` is the name that the user chose, or "".

    `format` is what the agent and its client speak. MCP has no sessions of its own: all of a run is one.
    """

    url: str
    prepare: Callable[[], None]
    session: str = ""
    fail_closed: bool = False
    format: str = "acp"


def run(agent: Agent, recording: Recording, desk: PermissionFilter | None, say: Callable[[str], None]) -> int:
    """Pass on and record what an agent says and hears, until it ends. Gives the exit status; `say` tells the person."""
    process, pipe, told = _recorder(agent, recording)
    closed = recording.fail_closed
    voice = _Voice(say, agent, HOLDS if desk is not None and desk.holds else "", closed=closed)
    tape = RecorderPipe(pipe, told, voice.hear, patience=None if closed else BACKPRESSURE_TIMEOUT_S)
    proxy = Proxy(agent, tape, desk=desk, closed=closed)
    voice.recording = proxy.recording
    status = proxy.run()
    missing = tape.close(FINISH)
    _end(process)
    if missing:
        say(f"{missing} of {tape.lines + tape.lost} messages were not recorded")
    return FAILED if voice.stopped else exit_status(status)


class _Voice:
    """Says what the recorder told, to the person, once; and stops the agent where nothing may pass unrecorded."""

    def __init__(self, say: Callable[[str], None], agent: Agent, meanwhile: str = "", *, closed: bool) -> None:
        self._say, self._agent, self._meanwhile, self._closed = say, agent, meanwhile, closed
        self.stopped = self._troubled = False
        self.recording: Callable[[str], None] = lambda _: None

    def hear(self, problem: str) -> None:
        self.recording(problem)
        if not problem:
            if self._troubled:
                self._say("recording goes on")
            self._troubled = False
        elif not self._closed:
            self._troubled = True
            self._say(f"recording fails, the {self._agent.role} goes on: {problem}{self._meanwhile}")
        elif not self.stopped:
            self.stopped = True
            self._say(f"recording fails, so the {self._agent.role} is stopped (--fail-closed): {problem}")
            self._agent.stop()


def _recorder(agent: Agent, recording: Recording) -> tuple[int, int, int]:
    """Start the recorder. Gives its process id (0 if there is none), the pipe to it, and the pipe from it."""
    read, pipe = os.pipe()
    told, tell = os.pipe()
    try:
        process = os.fork()
    except OSError:  # No room for a process: the tape finds its pipes closed, as if the recorder had died.
        process = -1
    if process == 0:
        _become_recorder(read, tell, agent.command, recording)
    os.close(read)
    os.close(tell)
    return max(process, 0), pipe, told


def _become_recorder(read: int, tell: int, command: list[str], recording: Recording) -> NoReturn:
    """This process has nothing of the front's: not its files, so that nobody waits for us, and not its signals."""
    status = 1
    try:
        for number in FORWARDED:
            signal.signal(number, signal.SIG_IGN)
        for stream in (0, 1) if os.environ.get("CALLSLIP_DEBUG", "") not in ("", "0") else (0, 1, 2):
            let_go(stream)
        first, last = sorted((read, tell))
        for start, end in ((3, first), (first + 1, last), (last + 1, os.sysconf("SC_OPEN_MAX"))):
            os.closerange(start, end)
        _record(read, lambda text: _tell(tell, text), command, recording)
        status = 0
    finally:
        os._exit(status)


def _tell(pipe: int, text: str) -> None:
    """Say something to the front. If it is not there any more, the record is finished all the same."""
    try:
        write_all(pipe, text.encode("utf-8", "replace") + b"\n")
    except BrokenPipeError:
        pass


def _record(read: int, tell: Callable[[str], None], command: list[str], recording: Recording) -> None:
    try:
        import asyncio

        from callslip.wrap.recorder import ACP, WAITING, RecorderProcess
        from callslip.wrap.session_names import Names

        names = Names(command, recording.session)
        hold = WAITING if recording.format == ACP and not recording.fail_closed else 0
        recorder = RecorderProcess(recording.url, recording.prepare, names, tell, format=recording.format, hold=hold)
        asyncio.run(recorder.run(read))
    except Exception as error:
        tell(f"-unexpected {type(error).__name__}: {error}")
        raise


def _end(process: int) -> None:
    """The recorder had its time."""
    if not process:
        return
    try:
        if os.waitpid(process, os.WNOHANG) == (0, 0):
            os.kill(process, signal.SIGKILL)
            os.waitpid(process, 0)
    except ChildProcessError:
        pass
