"""Start the command under a relay, the parent process that a command sees.

A command may kill its parent. The relay only waits for the shell and reports its status, so the supervisor survives
that. If the supervisor is killed, the relay ends all processes. So no single kill leaves a process running.
"""

from __future__ import annotations

import os
import signal

from .processes import adopt_orphans, kill_all, signal_on_parent_death
from .wire import Request

SHELL = "/bin/sh"


def start_relay(request: Request, out: int, err: int, report: int) -> int:
    """Start a relay and return its pid. It writes lines to `report`: `shell PID`, `status N`, `refused STEP ERRNO`."""
    supervisor = os.getpid()
    pid = os.fork()
    if pid:
        return pid
    try:
        _run_relay(supervisor, request, out, err, report)
    except OSError as error:
        _write_line(report, "refused", "start", error.errno)
    finally:
        os._exit(0)


def _run_relay(supervisor: int, request: Request, out: int, err: int, report: int) -> None:
    adopt_orphans()
    signal_on_parent_death(signal.SIGTERM)
    _reset_signals()
    if os.getppid() != supervisor:
        return
    relay = os.getpid()
    shell = os.fork()
    if not shell:
        _run_shell(relay, request, out, err, report)
    signal.signal(signal.SIGTERM, _kill_all)
    os.closerange(1, report)  # The socket (0) stays open: while a process is left, the host must not see it closed.
    _write_line(report, "shell", shell)
    pid = status = 0
    while pid != shell:  # The relay adopts orphans too.
        pid, status = os.wait()
    _write_line(report, "status", status)


def _kill_all(number: int, frame: object) -> None:
    kill_all()
    os._exit(0)


def _run_shell(relay: int, request: Request, out: int, err: int, report: int) -> None:
    """Run the shell in a new session: it has no terminal, and `kill 0` in a script reaches only the script."""
    step = "start"
    try:
        os.setsid()
        signal_on_parent_death(signal.SIGKILL)
        if os.getppid() != relay:
            return
        for source, target in ((os.open(os.devnull, os.O_RDONLY), 0), (out, 1), (err, 2)):
            os.dup2(source, target)
        step = "cwd"
        if request.cwd:
            os.chdir(request.cwd)
        step = "command"
        os.execve(SHELL, [b"sh", b"-c", b"--", request.command], request.env)
    except OSError as error:
        _write_line(report, "refused", step, error.errno)
    finally:
        os._exit(127)


def _reset_signals() -> None:
    """Restore the default handlers and unblock all signals, because the command inherits them."""
    signal.set_wakeup_fd(-1)
    for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, [])


def _write_line(report: int, *words: object) -> None:
    os.write(report, (" ".join(map(str, words)) + "\n").encode())
