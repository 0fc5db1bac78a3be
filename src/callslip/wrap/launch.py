"""Start a wrapped agent: first the agent, then the recorder, then the proxy, so that the agent starts without delay.

This module imports little. The recorder's process imports what it needs while the agent starts.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple, NoReturn

from callslip.model.database_url import mask_password
from callslip.wrap.frames import Kind, encode_frame, encode_text
from callslip.wrap.io import close_standard_stream, write_all
from callslip.wrap.proxy import FORWARDED_SIGNALS, Agent, Proxy, shell_status
from callslip.wrap.recorder_pipe import BACKPRESSURE_TIMEOUT_S, RecorderPipe

if TYPE_CHECKING:
    from callslip.model.events import Chunks
    from callslip.wrap.permission_filter import PermissionFilter

FINISH_TIMEOUT_S = 15.0
"""How long the recorder may take to record another line once the agent has ended."""
RECORDING_FAILED_STATUS = 1
CLIENT_DECIDES = "; permission requests go to the client"


class Recording(NamedTuple):
    """Where a run is recorded. `prepare` creates the folder; `session` is the name that the user chose, or "".

    `format` is the protocol between client and agent. MCP has no sessions, so an MCP run is one session. `chunks` is
    how the agent splits texts; None if that is detected.
    """

    url: str
    prepare: Callable[[], None]
    session: str = ""
    fail_closed: bool = False
    format: str = "acp"
    chunks: Chunks | None = None

    def __repr__(self) -> str:
        return f"Recording({mask_password(self.url)!r}, session={self.session!r}, format={self.format!r})"


def run(
    agent: Agent,
    recording: Recording,
    permission_filter: PermissionFilter | None,
    print_message: Callable[[str], None],
) -> int:
    """Proxy and record an agent until it ends. Return the exit status; `print_message` shows problems to the user."""
    process, pipe_fd, replies_fd = _start_recorder(agent, recording)
    fail_closed = recording.fail_closed
    holds_requests = permission_filter is not None and permission_filter.holds
    reporter = _ProblemReporter(print_message, agent, CLIENT_DECIDES if holds_requests else "", fail_closed=fail_closed)
    timeout_s = None if fail_closed else BACKPRESSURE_TIMEOUT_S
    pipe = RecorderPipe(pipe_fd, replies_fd, reporter.report, timeout_s=timeout_s)
    proxy = Proxy(agent, pipe, permission_filter=permission_filter, fail_closed=fail_closed)
    reporter.on_problem = proxy.on_problem
    status = proxy.run()
    missing = pipe.close(FINISH_TIMEOUT_S)
    _end_recorder(process)
    if missing:
        print_message(f"{missing} of {pipe.sent_lines + pipe.lost_lines} messages were not recorded")
    return RECORDING_FAILED_STATUS if reporter.has_stopped_agent else shell_status(status)


class _ProblemReporter:
    """Shows the recorder's problems to the user, and stops the agent if nothing may pass unrecorded."""

    def __init__(
        self, print_message: Callable[[str], None], agent: Agent, consequence: str, *, fail_closed: bool
    ) -> None:
        self._print, self._agent, self._consequence, self._fail_closed = print_message, agent, consequence, fail_closed
        self.has_stopped_agent = self._is_failing = False
        self.on_problem: Callable[[str], None] = lambda _: None

    def report(self, problem: str) -> None:
        """Handle a problem, or with "" its end."""
        self.on_problem(problem)
        if not problem:
            if self._is_failing:
                self._print("recording works again")
            self._is_failing = False
        elif not self._fail_closed:
            self._is_failing = True
            self._print(f"recording fails, the {self._agent.role} continues: {problem}{self._consequence}")
        elif not self.has_stopped_agent:
            self.has_stopped_agent = True
            self._print(f"recording fails, so the {self._agent.role} is stopped (--fail-closed): {problem}")
            self._agent.stop()


def _start_recorder(agent: Agent, recording: Recording) -> tuple[int, int, int]:
    """Fork the recorder. Return its process id (0 if the fork failed), the pipe to it and the pipe from it."""
    frames_reader, frames_writer = os.pipe()
    replies_reader, replies_writer = os.pipe()
    try:
        process = os.fork()
    except OSError:  # Too many processes. The closed pipes look to the front as if the recorder had died.
        process = -1
    if process == 0:
        _run_recorder_process(frames_reader, replies_writer, agent.command, recording)
    os.close(frames_reader)
    os.close(replies_writer)
    return max(process, 0), frames_writer, replies_reader


def _run_recorder_process(frames: int, replies: int, command: list[str], recording: Recording) -> NoReturn:
    """Record until the front closes its pipe. Close all files of the front, so that their readers see them end."""
    status = 1
    try:
        for number in FORWARDED_SIGNALS:
            signal.signal(number, signal.SIG_IGN)
        for stream in (0, 1) if os.environ.get("CALLSLIP_DEBUG", "") not in ("", "0") else (0, 1, 2):
            close_standard_stream(stream)
        first, last = sorted((frames, replies))
        for start, end in ((3, first), (first + 1, last), (last + 1, os.sysconf("SC_OPEN_MAX"))):
            os.closerange(start, end)
        _record(frames, lambda kind, payload: _reply(replies, kind, payload), command, recording)
        status = 0
    finally:
        os._exit(status)


def _reply(replies: int, kind: Kind, payload: bytes) -> None:
    try:
        write_all(replies, encode_frame(kind, payload))
    except BrokenPipeError:  # The front is gone; what it sent is still recorded.
        pass


def _record(frames: int, reply: Callable[[Kind, bytes], None], command: list[str], recording: Recording) -> None:
    try:
        import asyncio

        from callslip.wrap.recorder import ACP, MAX_UNNAMED_BYTES, RecorderProcess
        from callslip.wrap.session_names import SessionNames

        names = SessionNames(command, recording.session)
        waits_for_session = recording.format == ACP and not recording.fail_closed
        recorder = RecorderProcess(
            recording.url,
            recording.prepare,
            names,
            reply,
            format=recording.format,
            chunks=recording.chunks,
            max_unnamed_bytes=MAX_UNNAMED_BYTES if waits_for_session else 0,
        )
        asyncio.run(recorder.run(frames))
    except Exception as error:
        reply(Kind.PROBLEM, encode_text(f"unexpected {type(error).__name__}: {error}"))
        raise


def _end_recorder(process: int) -> None:
    """Kill the recorder if it has not ended in time."""
    if not process:
        return
    try:
        if os.waitpid(process, os.WNOHANG) == (0, 0):
            os.kill(process, signal.SIGKILL)
            os.waitpid(process, 0)
    except ChildProcessError:
        pass
