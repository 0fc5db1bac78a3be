"""Run a shell command and end every process that it starts.

On Linux every descendant of the command is ended, also after `setsid`, a double fork or `nohup`, and also when the host
is killed. Other systems end only the command's process group. Processes that a daemon starts for the command, such as a
container or a cron job, are not found. Processes that cannot be ended, because they are of another user or stuck in the
kernel, are named in `problem`.
"""

from __future__ import annotations

import asyncio
import errno
import math
import os
import signal
import time
from collections.abc import Mapping

import msgspec

from callslip.agent.output_stream import OutputStream, Progress
from callslip.agent.process import Process
from callslip.agent.supervisor.wire import NAMES, Request
from callslip.agent.transcript import Transcript
from callslip.errors import CallslipError, InvalidInputError
from callslip.ledger.aio import wait_despite_cancel
from callslip.model.agent_env import agent_environment

MAX_OUTPUT_BYTES = 2**20
KILL_GRACE_S = 0.5
MAX_COMMAND_CHARS = 128 * 2**10 - 1  # The limit of Linux for one argument.


class ShellResult(msgspec.Struct, frozen=True, kw_only=True):
    """How a command ended and what it printed. Either `exit_status` or `signal` (its name) is set, if it is known.

    `output` is stdout and stderr in the order in which they were read; output to both at almost the same time may be
    swapped. Sizes are in bytes; `*_cut` is how many of them are left out of the text.
    """

    exit_status: int | None = None
    signal: str | None = None
    timed_out: bool = False
    stdout: str = ""
    stderr: str = ""
    output: str = ""
    stdout_size: int = 0
    stderr_size: int = 0
    stdout_cut: int = 0
    stderr_cut: int = 0
    duration_ms: int = 0
    problem: str = ""

    @property
    def truncated(self) -> bool:
        """Whether output is left out."""
        return bool(self.stdout_cut or self.stderr_cut)


async def run_shell(
    command: str,
    *,
    cwd: str | os.PathLike[str] | None = None,
    env: Mapping[str, str] | None = None,
    timeout: float | None = 30.0,
    grace: float = KILL_GRACE_S,
    cap: int = MAX_OUTPUT_BYTES,
    progress: Progress | None = None,
) -> ShellResult:
    """Run `/bin/sh -c COMMAND` with empty input, and return when no process of it is left.

    When the shell ends, after `timeout` seconds, or when the caller is cancelled, all descendants receive SIGTERM, and
    SIGKILL after `grace` seconds. The first and the last `cap / 2` bytes of each stream are kept, the rest is dropped.
    `progress` is awaited with `(stream, text)` for the first half.
    """
    request = _request(command, cwd, env, timeout, grace, cap)
    started = time.monotonic()
    transcript, live = Transcript(), OutputStream(progress)
    process = Process(request, transcript, live)
    sending = asyncio.create_task(live.send())
    try:
        timed_out = await _wait_for_end(process, sending, timeout)
        process.end()
        await wait_despite_cancel(process.gone)
        live.close()
        await sending
    finally:
        process.end()
        sending.cancel()
        await wait_despite_cancel(process.gone, sending)
    _raise_if_not_started(process, cwd)
    return _result(process, transcript, timed_out, started)


async def _wait_for_end(process: Process, sending: asyncio.Task[None], timeout: float | None) -> bool:
    """Wait until the command ends or `progress` fails. Return whether it timed out."""
    limit = None if timeout is None or math.isinf(timeout) else timeout
    done, _ = await asyncio.wait({process.gone, sending}, timeout=limit, return_when=asyncio.FIRST_COMPLETED)
    if sending in done:
        sending.result()
    return not done


# The request


def _request(
    command: str,
    cwd: str | os.PathLike[str] | None,
    env: Mapping[str, str] | None,
    timeout: float | None,
    grace: float,
    cap: int,
) -> Request:
    if timeout is not None and not timeout > 0:
        raise InvalidInputError("timeout", "must be more than 0 seconds")
    if not 0 <= grace < math.inf:
        raise InvalidInputError("grace", "must be 0 seconds or more")
    if cap < 0:
        raise InvalidInputError("cap", "must be 0 bytes or more")
    text = _encode("command", command)
    if len(text) > MAX_COMMAND_CHARS:
        raise InvalidInputError(
            "command", f"has {len(text)} bytes; write it to a script file and run that", MAX_COMMAND_CHARS
        )
    folder = b"" if cwd is None else _encode("cwd", os.fspath(cwd)) or b"."
    return Request(text, folder, _environment(env), cap - cap // 2, cap // 2, grace, os.getpid())


def _environment(env: Mapping[str, str] | None) -> dict[bytes, bytes]:
    for name in env or ():
        if not name or "=" in name:
            raise InvalidInputError("env", f"{name!r} is not a valid variable name")
    return {_encode("env", name): _encode("env", value) for name, value in agent_environment(env).items()}


def _encode(field: str, text: str) -> bytes:
    try:
        data = os.fsencode(text)
    except UnicodeEncodeError as error:
        raise InvalidInputError(field, "contains a lone surrogate, which cannot be passed to a program") from error
    if b"\0" in data:
        raise InvalidInputError(field, "contains a NUL, which cannot be passed to a program")
    return data


# The result


def _raise_if_not_started(process: Process, cwd: str | os.PathLike[str] | None) -> None:
    """Raise if the shell was never started."""
    if not process.facts and process.status > 0:
        raise CallslipError(f"the supervisor of the command failed with status {process.status}")
    step, _, number = process.facts.get("refused", "").partition(" ")
    if not step:
        return
    reason = os.strerror(int(number))
    if step == "cwd":
        raise InvalidInputError("cwd", f"{os.fspath(cwd or '')!r}: {reason}")
    if int(number) == errno.E2BIG:
        raise InvalidInputError("env", "the command and its environment are too long for this system")
    raise CallslipError(f"the shell could not be started: {reason}")


def _result(process: Process, transcript: Transcript, timed_out: bool, started: float) -> ShellResult:
    facts = process.facts
    output, streams = transcript.render({stream: int(facts.get(name, "0")) for stream, name in NAMES.items()})
    status = int(facts["status"]) if "status" in facts else None
    exit_code = os.waitstatus_to_exitcode(status) if status is not None else None
    return ShellResult(
        exit_status=exit_code if exit_code is not None and exit_code >= 0 else None,
        signal=_signal_name(-exit_code) if exit_code is not None and exit_code < 0 else None,
        timed_out=timed_out and facts.get("interrupted") != "0",
        stdout=streams[1].text,
        stderr=streams[2].text,
        output=output,
        stdout_size=streams[1].size,
        stderr_size=streams[2].size,
        stdout_cut=streams[1].cut,
        stderr_cut=streams[2].cut,
        duration_ms=round((time.monotonic() - started) * 1000),
        problem=_problem(process),
    )


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _problem(process: Process) -> str:
    if process.status < 0:
        return "the supervisor of the command was killed, so its exit status is not known"
    if not process.facts:
        return "the timeout passed before the command was started"
    if process.facts["left"]:
        return f"these processes could not be ended: {process.facts['left']}"
    if "status" not in process.facts:
        return "the command killed its parent process and was ended with all its processes"
    return ""
