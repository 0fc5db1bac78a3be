"""Runs a shell command and leaves nothing of it behind (S0.7).

On Linux every process that descends from the command is ended with it, however it tried to get away (`setsid`, double
fork, `nohup`), also when the host is killed. Elsewhere a system has no means for that: the command's process group is
ended, and what left it is missed. Never found anywhere is what somebody else starts for the command: a container by
its daemon, a job by cron. What cannot be ended, being another user's or stuck in the kernel, is named in `problem`.
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

from callslip.agent.output_stream import Live, Progress
from callslip.agent.process import Process
from callslip.agent.supervisor.wire import NAMES, Request
from callslip.agent.transcript import Transcript
from callslip.errors import CallslipError, InvalidInputError

MAX_OUTPUT_BYTES = 2**20
KILL_GRACE_S = 0.5
MAX_COMMAND_CHARS = 128 * 2**10 - 1  # What Linux takes as one argument.


class ShellResult(msgspec.Struct, frozen=True, kw_only=True):
    """How a command ended and what it printed. Either `exit_status` or `signal` (its name) is set, unless all was lost.

    `output` is stdout and stderr in the order in which they could be read: what is written to both at almost the same
    moment may change places in it. Sizes are in bytes; a `cut` says how many of them are not in the text.
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
        """Whether anything printed is missing here."""
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

    When the shell ends, when `timeout` seconds are over, or when the caller is cancelled, all its descendants are asked
    to end (SIGTERM) and after `grace` seconds killed. Of each stream the first and the last `cap / 2` bytes are kept
    and the rest is read and forgotten; `progress` is awaited with `(stream, text)` while the first half comes.
    """
    request = _request(command, cwd, env, timeout, grace, cap)
    began = time.monotonic()
    transcript, live = Transcript(), Live(progress)
    process = Process(request, transcript, live)
    telling = asyncio.create_task(live.tell())
    try:
        timed_out = await _timed_out(process, telling, timeout)
        process.end()
        await _outlast(process.gone)
        live.close()
        await telling
    finally:
        process.end()
        telling.cancel()
        await _outlast(process.gone, telling)
    _refuse(process, cwd)
    return _result(process, transcript, timed_out, began)


async def _timed_out(process: Process, telling: asyncio.Task[None], timeout: float | None) -> bool:
    """Wait until the command is over. It is over too when nobody can be told about it."""
    limit = None if timeout is None or math.isinf(timeout) else timeout
    done, _ = await asyncio.wait({process.gone, telling}, timeout=limit, return_when=asyncio.FIRST_COMPLETED)
    if telling in done:
        telling.result()
    return not done


async def _outlast(*awaited: asyncio.Future[None]) -> None:
    """Wait for these whoever cancels us meanwhile; then be cancelled."""
    cancelled: asyncio.CancelledError | None = None
    while waiting := [future for future in awaited if not future.done()]:
        try:
            await asyncio.wait(waiting)
        except asyncio.CancelledError as error:
            cancelled = error
    for future in awaited:
        if not future.cancelled():
            future.exception()
    if cancelled:
        raise cancelled


# What is asked


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
    text = _encoded("command", command)
    if len(text) > MAX_COMMAND_CHARS:
        raise InvalidInputError(
            "command", f"has {len(text)} bytes; write a script to a file and run that", MAX_COMMAND_CHARS
        )
    folder = b"" if cwd is None else _encoded("cwd", os.fspath(cwd)) or b"."
    return Request(text, folder, _environment(env), cap - cap // 2, cap // 2, grace, os.getpid())


def _environment(env: Mapping[str, str] | None) -> dict[bytes, bytes]:
    if env is None:
        return dict(os.environb)
    for name in env:
        if not name or "=" in name:
            raise InvalidInputError("env", f"{name!r} cannot be the name of a variable")
    return {_encoded("env", name): _encoded("env", value) for name, value in env.items()}


def _encoded(field: str, text: str) -> bytes:
    try:
        data = os.fsencode(text)
    except UnicodeEncodeError as error:
        raise InvalidInputError(field, "has a lone surrogate, which no program could be given") from error
    if b"\0" in data:
        raise InvalidInputError(field, "has a NUL, which no program could be given")
    return data


# What came of it


def _refuse(process: Process, cwd: str | os.PathLike[str] | None) -> None:
    """Raise if the shell was never started."""
    if not process.facts and process.status > 0:
        raise CallslipError(f"the process that should watch over the command failed with status {process.status}")
    what, _, number = process.facts.get("refused", "").partition(" ")
    if not what:
        return
    reason = os.strerror(int(number))
    if what == "cwd":
        raise InvalidInputError("cwd", f"{os.fspath(cwd or '')!r}: {reason}")
    if int(number) == errno.E2BIG:
        raise InvalidInputError("env", "the command and its environment are too long together for this system")
    raise CallslipError(f"the shell could not be started: {reason}")


def _result(process: Process, transcript: Transcript, timed_out: bool, began: float) -> ShellResult:
    facts = process.facts
    output, streams = transcript.printed({stream: int(facts.get(name, "0")) for stream, name in NAMES.items()})
    status = int(facts["status"]) if "status" in facts else None
    ended = os.waitstatus_to_exitcode(status) if status is not None else None
    return ShellResult(
        exit_status=ended if ended is not None and ended >= 0 else None,
        signal=_signal_name(-ended) if ended is not None and ended < 0 else None,
        timed_out=timed_out and facts.get("interrupted") != "0",
        stdout=streams[1].text,
        stderr=streams[2].text,
        output=output,
        stdout_size=streams[1].size,
        stderr_size=streams[2].size,
        stdout_cut=streams[1].cut,
        stderr_cut=streams[2].cut,
        duration_ms=round((time.monotonic() - began) * 1000),
        problem=_problem(process),
    )


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _problem(process: Process) -> str:
    if process.status < 0:
        return "the process that watches over the command was killed, and so how it ended is not known"
    if not process.facts:
        return "the time was over before the command could be started"
    if process.facts["left"]:
        return f"these processes could not be ended: {process.facts['left']}"
    if "status" not in process.facts:
        return "the command killed its own parent and was ended with all it had started"
    return ""
