"""Run an agent as a child process and pass every byte between it and the client unchanged.

A thread for each direction reads a chunk, sends it to the recorder and writes it on; so a request is sent to the
recorder before the agent can answer it. A write blocks while the receiver is slow, which slows the sender down. The
main thread waits for signals: it forwards those sent to this process, and SIGCHLD reports that the agent ended.
"""

from __future__ import annotations

import os
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from queue import SimpleQueue
from typing import TYPE_CHECKING

from callslip.model.agent_env import agent_environment
from callslip.wrap.frames import Kind, encode_policy_answer, encode_text
from callslip.wrap.held_requests import HeldRequest, HeldRequests
from callslip.wrap.io import LineWriter, close_standard_stream, read_chunks
from callslip.wrap.recorder_pipe import RecorderPipe, RecordingError

if TYPE_CHECKING:
    from callslip.wrap.permission_filter import PermissionFilter

STDIN, STDOUT = 0, 1
FORWARDED_SIGNALS = {signal.SIGINT, signal.SIGTERM, signal.SIGHUP}
AWAITED_SIGNALS = {*FORWARDED_SIGNALS, signal.SIGCHLD}
KILL_DELAY_S = 5.0


class Agent:
    """The wrapped process and its pipes. `role` is what messages call it: "agent" or "server"."""

    def __init__(self, command: list[str], role: str = "agent") -> None:
        self.command, self.role = command, role
        self.process = subprocess.Popen(
            command, bufsize=0, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=agent_environment()
        )
        assert self.process.stdin is not None and self.process.stdout is not None
        self.stdin, self.stdout = os.dup(self.process.stdin.fileno()), os.dup(self.process.stdout.fileno())
        self.process.stdin.close()  # Plain descriptors, because different threads close them.
        self.process.stdout.close()

    def stop(self) -> None:
        """Terminate the process; kill it if it has not ended after KILL_DELAY_S."""
        self.process.terminate()
        timer = threading.Timer(KILL_DELAY_S, self.process.kill)
        timer.daemon = True
        timer.start()


class Proxy:
    """One run of an agent. Requests that the filter takes do not reach the client.

    With `fail_closed` nothing passes unrecorded.
    """

    def __init__(
        self,
        agent: Agent,
        pipe: RecorderPipe,
        *,
        permission_filter: PermissionFilter | None = None,
        fail_closed: bool = False,
    ) -> None:
        self._agent, self._pipe, self._filter, self._fail_closed = agent, pipe, permission_filter, fail_closed
        self._to_agent, self._to_client = LineWriter(agent.stdin), LineWriter(STDOUT)
        self._jobs: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self._held = HeldRequests(pipe, self._to_agent, self._to_client, self._jobs.put, fail_closed=fail_closed)
        self._ended_reader, self._ended_writer = os.pipe()

    def run(self) -> int:
        """Run until the agent has ended and its output is passed on. Return its exit status, or minus its signal."""
        mask = _block_signals()  # Before the first thread starts, because threads inherit the mask.
        self._pipe.start()
        from_client, from_agent, jobs = (
            threading.Thread(target=work, daemon=True)
            for work in (self._copy_from_client, self._copy_from_agent, self._run_jobs)
        )
        from_client.start()
        from_agent.start()
        if self._filter is not None:
            jobs.start()
        status = _wait_for_exit(self._agent.process)
        self._pipe.send_event(Kind.AGENT_ENDED, encode_text(exit_reason(status, self._agent.role)))
        os.close(self._ended_writer)
        _restore_signals(mask)
        from_agent.join()
        self._pipe.end_line(Kind.CLIENT_BYTES)  # The thread of the client may block on its input forever.
        return status

    def on_problem(self, problem: str) -> None:
        """Handle a report of the recorder that recording fails, or with "" that it works again."""
        self._held.on_problem(problem)

    def _copy_from_client(self) -> None:
        try:
            for data in read_chunks(STDIN):
                self._record(Kind.CLIENT_BYTES, data)
                self._to_agent.write(data)
        except (OSError, RecordingError):
            pass
        finally:
            close_standard_stream(STDIN)
            self._held.close_client()
            self._to_agent.close()
            self._pipe.end_line(Kind.CLIENT_BYTES)

    def _copy_from_agent(self) -> None:
        try:
            for data in self._read_agent():
                self._record(Kind.AGENT_BYTES, data)
                self._to_client.write(data)
        except (OSError, RecordingError):
            pass
        finally:
            os.close(self._agent.stdout)
            close_standard_stream(STDOUT)
            self._pipe.end_line(Kind.AGENT_BYTES)

    def _record(self, kind: Kind, data: bytes) -> None:
        lines = self._pipe.send(kind, data)
        if self._fail_closed:
            self._pipe.wait_recorded(lines)

    def _read_agent(self) -> Iterator[bytes]:
        """Yield the agent's output for the client, without the requests that are answered or held here."""
        chunks = read_chunks(self._agent.stdout, self._ended_reader)
        if self._filter is None:
            yield from chunks
            return
        for chunk in chunks:
            for data, action in self._filter.split(chunk):
                if action is None or (isinstance(action, HeldRequest) and not self._held.hold(action, data)):
                    yield data
                elif not isinstance(action, HeldRequest):
                    self._record(Kind.AGENT_BYTES, data)
                    self._record(Kind.POLICY_ANSWER, encode_policy_answer(action.line, action.reason))
                    self._jobs.put(partial(self._to_agent.insert, action.line))
        yield from self._filter.flush()

    def _run_jobs(self) -> None:
        """Write answers to the agent, in a separate thread because an agent that writes may not be reading."""
        while True:
            job = self._jobs.get()
            with suppress(OSError, RecordingError):
                job()


def exit_reason(status: int, role: str = "agent") -> str:
    """Return why calls that were open when the agent ended are lost."""
    if status >= 0:
        return f"the {role} ended (exit status {status}) before this call did"
    try:
        name = signal.Signals(-status).name
    except ValueError:
        name = f"signal {-status}"
    return f"the {role} was killed ({name}) before this call ended"


def shell_status(status: int) -> int:
    """Return the exit status that a shell reports for a process."""
    return status if status >= 0 else 128 - status


# Signals


def _block_signals() -> set[signal.Signals]:
    """Block the awaited signals in this thread and those it starts. Return the previous mask."""
    signal.signal(signal.SIGCHLD, lambda _number, _frame: None)  # Some systems cannot wait for an ignored signal.
    return signal.pthread_sigmask(signal.SIG_BLOCK, AWAITED_SIGNALS)  # pyright: ignore[reportReturnType]


def _restore_signals(mask: set[signal.Signals]) -> None:
    """Let signals end this process again."""
    for number in FORWARDED_SIGNALS:
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def _wait_for_exit(process: subprocess.Popen[bytes]) -> int:
    """Wait until the agent ends, and forward signals to it until then."""
    wait_for_signal = _signal_waiter()
    while (status := process.poll()) is None:
        number = wait_for_signal()
        if number in FORWARDED_SIGNALS:
            process.send_signal(number)
    return status


def _signal_waiter() -> Callable[[], int]:
    """Return a function that waits for a signal. It returns 0 for one from the terminal, which the agent got too."""
    if not hasattr(signal, "sigwaitinfo"):  # macOS
        return lambda: signal.sigwait(AWAITED_SIGNALS)

    def wait() -> int:
        info = signal.sigwaitinfo(AWAITED_SIGNALS)
        return info.si_signo if info.si_code <= 0 else 0

    return wait
